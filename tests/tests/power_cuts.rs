//! Power cuts on a medium that loses what was not flushed: for hundreds of states that the medium may be in after a
//! cut, the next boot finds everything that was acknowledged, and each thing old or new.
//!
//! Whether the tests find a sync that is missing is tried by hand: remove one, build, and run the test that is named
//! with `NODLET_SEED=5 NODLET_ROUNDS=60`. Found are those of
//!
//! | writer | of the file | of the directory | test |
//! | --- | --- | --- | --- |
//! | `runtime/kernel/src/durable.rs` (objects, records, the record of a push) | yes | yes | `applied`, `finished`, `a_log` |
//! | `runtime/kernel/src/durable/reserve.rs` | yes | as above | `full_disk` |
//! | `runtime/src/engine/manifests.rs` (manifests that others copied) | yes | by the same call | `copied` |
//! | `rootfs/src/content.rs` (layers, index of images) | yes | yes | `loaded` |
//!
//! ext4 commits renames and removals in their order, so a sync of a directory before another durable change cannot be
//! missed: that of `set_aside` in `runtime/src/engine/cleanup.rs`, that of a push's record, and that of an update before
//! its state is written. Two writers of process 1 have such tests beside them, which `cargo xtask check` runs:
//!
//! | writer | found are | test |
//! | --- | --- | --- |
//! | `board/src/system/update_files.rs` (updates) | the sync of the program's file | `board/src/system/trial/power_cuts.rs` |
//! | `board/src/init/partitions/gpt.rs` (partition table) | both syncs of a copy | `board/src/init/partitions/gpt/tests.rs` |
//!
//! The boot partition is recorded on a board, because not every kernel has FAT: `tests/system/src/boards/disk/boot_files.rs`
//! finds the sync of `sync_boot` in `board/src/init/partitions.rs`, and that the old file is open until the new one is durable.
//! What else process 1 writes is cut off by `cargo xtask long board-power-cuts`, too.

use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nodlet_tests::honest::{ABSENT, Disk, HONEST_OPTIONS, Medium, make_data_partition};
use nodlet_tests::image::Image;
use nodlet_tests::ssh::{BOARD, Line, noise, path};
use nodlet_tests::{Device, demo_archive, demo_program, manifest, seed};

/// The size of the data partition.
const MIB: u64 = 96;

/// States after a power cut that each test checks, unless `$NODLET_ROUNDS` says otherwise.
const STATES: usize = 20;

/// Bytes of incompressible data in an image.
const NOISE: usize = 200_000;

/// Bytes of output that a log is rotated for several times, and those of one of its lines.
const SPAM: usize = 400_000;
const LINE: usize = 100;

/// The files of a whole reserve: spare files, and the one that fills directories with its names.
const FILES: usize = 65;

/// Bytes of each ConfigMap, so that its file has several blocks: ext4 makes the last block of a file that is shortened
/// durable with its length.
const FILL: usize = 9000;

/// The images of pushes.
const IMAGES: [&str; 2] = ["four", "seven"];

/// A device whose `/var` is recorded.
struct Recorded {
    device: Device,
    medium: Arc<Medium>,
    disk: Disk,
    directory: PathBuf,
}

impl Recorded {
    /// Starts an agent on a new data partition, made as process 1 makes it, with the demo image.
    fn start(name: &str) -> Recorded {
        Recorded::start_with(name, [])
    }

    /// Starts an agent with these arguments.
    fn start_with<const N: usize>(name: &str, arguments: [&str; N]) -> Recorded {
        let directory = std::env::temp_dir().join(format!("nodlet-power-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("/tmp can be written to");
        let initial = directory.join("initial");
        make_data_partition(&initial, MIB);
        let medium = Medium::new(&initial, &directory.join("current")).expect("/tmp can be written to");
        let disk = Disk::attach(medium.clone(), &directory.join("fuse"));
        let mut device = Device::new();
        device.replay_nothing();
        device.agent_arguments(arguments);
        device.run_on(disk.path(), HONEST_OPTIONS);
        // The directory of manifests is on the data partition, too.
        fs::create_dir(device.path("/var/manifests")).expect("the partition is new");
        fs::create_dir_all(device.path("/etc/nodlet")).expect("the root can be written to");
        std::os::unix::fs::symlink(device.path("/var/manifests"), device.manifests()).expect("it is new");
        device.start_agent();
        device.load_image(demo_archive());
        Recorded { device, medium, disk, directory }
    }

    /// Cuts the power at random moments, and checks what the next boot finds.
    fn check(self) {
        let Recorded { mut device, medium, disk, directory } = self;
        let record = medium.record(&directory.join("initial"));
        println!("{} writes, {} flushes", record.writes(), record.flushes());
        device.cut_power();
        device.run_on_nothing();
        drop(disk);
        let image = directory.join("state");
        for (round, cut) in record.cuts(&mut seed(), rounds()).into_iter().enumerate() {
            println!("{round}: {}", record.describe(&cut));
            record.write(&cut, &image).expect("/tmp can be written to");
            device.run_on_a_copy(&image);
            device.start_agent();
            for (thing, allowed) in record.allowed(&cut) {
                let found = observe(&device, thing);
                assert!(
                    allowed.contains(&*found),
                    "after the {}, {thing} is {found}, not one of {allowed:?}",
                    record.describe(&cut)
                );
            }
            device.cut_power();
            device.run_on_nothing();
        }
        drop(device);
        let _ = fs::remove_dir_all(&directory);
    }

    /// The names of all log files.
    fn log_files(&self) -> Vec<String> {
        let names = |path: PathBuf| {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let pods = names(self.device.path("/var/log/pods"));
        let files = pods.into_iter().flat_map(names).flat_map(names);
        files.map(|file| file.display().to_string()).collect()
    }

    /// Applies a ConfigMap.
    fn configure(&self, name: &str, value: &str) {
        self.medium.during(&format!("configmap/{name}"), value, || {
            let fill = "x".repeat(FILL);
            let text = format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{fill: {fill}, value: {value}}}\n"
            );
            self.device.apply(&text);
        });
    }

    fn apply(&self, name: &str, value: &str, text: &str) {
        self.medium.during(&format!("pod/{name}"), value, || {
            self.device.apply(text);
        });
    }
}

fn rounds() -> usize {
    std::env::var("NODLET_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(STATES)
}

/// The present value of a thing; a text that no operation has as its value, if it is damaged.
fn observe(device: &Device, thing: &str) -> String {
    let (kind, name) = thing.split_once('/').expect("a thing has a kind and a name");
    match kind {
        // Its log begins with its value.
        "pod" => {
            if !device.pods().iter().any(|pod| pod == name) {
                return ABSENT.to_owned();
            }
            device.pod(name).wait_ready();
            device.wait_for("the pod's first line", || device.pod(name).logs("app").contains('\n'));
            device.pod(name).logs("app").lines().next().unwrap_or_default().to_owned()
        }
        "finished" => {
            if device.pods().iter().any(|pod| pod == name) {
                device.pod(name).phase()
            } else {
                ABSENT.to_owned()
            }
        }
        "configmap" => match device.get(&format!("/api/v1/namespaces/default/configmaps/{name}")) {
            Ok(found) => found["data"]["value"].as_str().unwrap_or("damaged").to_owned(),
            Err(why) if why.starts_with("404") => ABSENT.to_owned(),
            Err(why) => why,
        },
        // The present run writes on in the log of the run before, if that was not recorded: what ends with the last line is
        // judged as it was read.
        "log" => {
            if !device.pods().iter().any(|pod| pod == name) {
                return ABSENT.to_owned();
            }
            device.pod(name).wait_ready();
            let last = format!("{:0>12} ", SPAM / LINE - 1);
            let mut text = String::new();
            device.wait_for("the last line of the log", || {
                text = device.pod(name).logs("app");
                text.lines().last().is_some_and(|line| line.starts_with(&last))
            });
            observe_log(&text)
        }
        "image" => observe_image(device, name),
        // A process completes an interrupted push after the start of the agent.
        "push" => {
            let record = device.path("/var/lib/nodlet/push/redo.json");
            device.wait_for("the record of an interrupted push to go", || !record.exists());
            let pod = observe(device, &format!("pod/{name}"));
            IMAGES.map(|name| observe_image(device, name)).join(",") + "," + &pod
        }
        _ => panic!("no thing is a {kind}"),
    }
}

/// `whole` if a log has numbered lines up to the last one, and no others.
fn observe_log(text: &str) -> String {
    let first = SPAM / LINE - text.lines().count();
    let is_whole = text.lines().enumerate().all(|(number, line)| {
        line.len() == LINE - 1 && line.starts_with(&format!("{:0>12} ", first + number))
    });
    (if is_whole { "whole" } else { "damaged" }).to_owned()
}

/// `present` if an image is in the store, runs, and has all of its bytes.
fn observe_image(device: &Device, name: &str) -> String {
    let images = device.nodlet(["image", "ls"]).ok();
    if !images.contains(&format!("localhost/{name}")) {
        return ABSENT.to_owned();
    }
    let pod = image_pod(&format!("of-{name}"), name, "v1");
    device.apply(&pod);
    device.pod(&format!("of-{name}")).wait_ready();
    let words = ["exec", &format!("of-{name}"), "--", "/bin/demo", "cat", "/noise"];
    let read = device.command(&words).output().expect("nodlet runs");
    let is_whole = read.stdout == noise(NOISE, name.len() as u64);
    (if is_whole { "present" } else { "damaged" }).to_owned()
}

/// Appends to a file until its file system has no block left.
fn fill(path: &Path) {
    let hog = fs::File::options().create(true).append(true).open(path).expect("it can be written to");
    let mut chunk = 1 << 20;
    while chunk > 0 {
        match (&hog).write(&vec![b'x'; chunk]) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => chunk /= 2,
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
    nix::unistd::syncfs(hog.as_raw_fd()).expect("it is a file of a file system");
}

/// An image of this name with some noise.
fn image(name: &str, archive: &Path) {
    let program = fs::read(demo_program()).expect("built");
    Image::demo(&format!("localhost/{name}:1"), &program)
        .layer()
        .file("noise", 0o644, &noise(NOISE, name.len() as u64))
        .write_oci_archive(archive)
        .expect("written");
}

/// A pod of such an image.
fn image_pod(pod: &str, name: &str, value: &str) -> String {
    manifest::pod(pod, &format!("print {value} then sleep"))
        .replace("localhost/demo:1", &format!("localhost/{name}:1"))
}

/// The one of these tests that `cargo xtask check` runs, too.
#[test]
fn applied_replaced_and_deleted_objects_survive_as_acknowledged() {
    let recorded = Recorded::start("objects");
    let (device, medium) = (&recorded.device, &recorded.medium);
    for value in ["v1", "v2", "v3"] {
        // Another command makes another pod.
        recorded.apply("web", value, &manifest::pod("web", &format!("print {value} then sleep")));
        recorded.configure("settings", value);
        device.pod("web").wait_log("app", value);
        device.pod("web").wait_ready();
    }
    medium.during("configmap/settings", ABSENT, || device.nodlet(["delete", "configmap", "settings"]).ok());
    medium.during("pod/web", ABSENT, || device.nodlet(["delete", "pod", "web"]).ok());
    recorded.apply("web", "v4", &manifest::pod("web", "print v4 then sleep"));
    device.pod("web").wait_log("app", "v4");
    recorded.check();
}

/// On a full disk, files are written in spare files of the reserve.
#[test]
#[ignore = "by cargo xtask long power-cuts"]
fn what_is_applied_on_a_full_disk_survives_as_acknowledged() {
    let recorded = Recorded::start("full");
    let device = &recorded.device;
    device.wait_for("the reserve", || device.path("/var/lib/nodlet/reserve/63").exists());
    recorded.configure("before", "v1");
    for value in ["v1", "v2", "v3"] {
        for name in ["first", "second"] {
            fill(&device.path("/var/hog"));
            recorded.configure(name, value);
        }
    }
    let left = fs::read_dir(device.path("/var/lib/nodlet/reserve")).expect("it is there").count();
    assert!(left <= FILES - 6, "{left} spare files are left");
    recorded.check();
}

#[test]
#[ignore = "by cargo xtask long power-cuts"]
fn a_pod_that_was_shown_as_finished_stays_finished() {
    let recorded = Recorded::start("finished");
    let (device, medium) = (&recorded.device, &recorded.medium);
    for number in 0..4 {
        let name = format!("job-{number}");
        let text = manifest::pod_with(&name, "print v1", "restartPolicy: Never");
        // Until the end is acknowledged, the pod may be in any phase of its life. It has failed
        // if it was interrupted, because it must not run twice.
        for phase in ["Pending", "Running", "Failed"] {
            medium.expect(&format!("finished/{name}"), phase);
        }
        medium.during(&format!("finished/{name}"), "Succeeded", || {
            device.apply(&text);
            device.pod(&name).wait_phase("Succeeded");
        });
    }
    recorded.check();
}

/// `scp` syncs nothing; the agent syncs what it accepts.
#[test]
#[ignore = "by cargo xtask long power-cuts"]
fn a_manifest_that_was_copied_into_its_directory_survives_as_its_pod_ran() {
    let recorded = Recorded::start("copied");
    let (device, medium) = (&recorded.device, &recorded.medium);
    for name in ["one", "two", "three"] {
        let file = device.manifests().join(format!("{name}.yaml"));
        let fill = format!("  annotations: {{fill: {}}}\n  name: {name}\n", "x".repeat(FILL));
        let text =
            manifest::pod(name, "print v1 then sleep").replacen(&format!("  name: {name}\n"), &fill, 1);
        medium.during(&format!("pod/{name}"), "v1", || {
            fs::write(&file, &text).expect("it is new");
            device.pod(name).wait_log("app", "v1");
            // The same thread writes this, after the sync.
            recorded.configure(&format!("after-{name}"), "v1");
        });
    }
    medium.during("pod/one", ABSENT, || {
        fs::remove_file(device.manifests().join("one.yaml")).expect("it is there");
        device.wait_for("the pod to be gone", || !device.pods().iter().any(|pod| pod == "one"));
        recorded.configure("after-all", "v1");
    });
    recorded.check();
}

/// The agent promises no line of a log, but a rotation that was cut off must neither keep the pod from running nor mix
/// lines into the log of its next run.
#[test]
#[ignore = "by cargo xtask long power-cuts"]
fn a_log_whose_rotation_was_cut_off_is_written_on() {
    let recorded =
        Recorded::start_with("logs", ["--container-log-max-size=64Ki", "--container-log-max-files=3"]);
    let (device, medium) = (&recorded.device, &recorded.medium);
    for name in ["one", "two", "three"] {
        medium.during(&format!("log/{name}"), "whole", || {
            let text = manifest::pod(name, &format!("spam {SPAM} then sleep"));
            device.apply(&text);
            let last = format!("{:0>12} ", SPAM / LINE - 1);
            device.wait_for("the last line", || device.pod(name).logs("app").contains(&last));
        });
        // Files of a log are written when the kernel likes: the test wants them on the medium.
        let var = fs::File::open(device.path("/var")).expect("it is there");
        nix::unistd::syncfs(var.as_raw_fd()).expect("it is ext4");
    }
    let files = recorded.log_files();
    assert!(files.iter().any(|name| name.contains("/0.log.")), "no log was rotated: {files:?}");
    recorded.check();
}

#[test]
#[ignore = "by cargo xtask long power-cuts"]
fn loaded_and_removed_images_survive_as_acknowledged() {
    let recorded = Recorded::start("images");
    let (device, medium) = (&recorded.device, &recorded.medium);
    for name in ["one", "three"] {
        let archive = recorded.directory.join(name);
        image(name, &archive);
        medium.during(&format!("image/{name}"), "present", || device.load_image(&archive));
    }
    medium.during("image/one", ABSENT, || device.nodlet(["image", "rm", "localhost/one:1"]).ok());
    let archive = recorded.directory.join("one");
    medium.during("image/one", "present", || device.load_image(&archive));
    recorded.check();
}

#[test]
#[ignore = "by cargo xtask long power-cuts"]
fn a_push_survives_as_acknowledged_and_is_whole_or_nothing() {
    let recorded = Recorded::start("push");
    let (device, medium) = (&recorded.device, &recorded.medium);
    let line = Line::new(device, "plain", "cat");
    medium.expect("push/pushed", "absent,absent,absent");
    for (name, value, whole) in
        [(IMAGES[0], "v1", "present,absent,v1"), (IMAGES[1], "v2", "present,present,v2")]
    {
        let (archive, pod) = (recorded.directory.join(name), recorded.directory.join("pod.yaml"));
        image(name, &archive);
        fs::write(&pod, image_pod("pushed", name, value)).expect("/tmp can be written to");
        medium.during("push/pushed", whole, || line.ok(device, &["push", BOARD, path(&archive), path(&pod)]));
        device.pod("pushed").wait_log("app", value);
        device.pod("pushed").wait_ready();
    }
    recorded.check();
}
