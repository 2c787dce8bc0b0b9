//! `nodlet push` and `nodlet --board`: to a device whose `ssh` is a shell, since what ssh itself does
//! is not nodlet's; `cargo xtask boards` has a real one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use nodlet_tests::image::{ARCHITECTURE, Image};
use nodlet_tests::{Device, manifest, nodlet_program};

const BOARD: &str = "root@board";

/// What stands in for ssh: the command line for the board is its last argument.
struct Line {
    directory: PathBuf,
}

impl Line {
    /// `upwards` is a command through which all passes that is sent to the board.
    fn new(device: &Device, name: &str, upwards: &str) -> Line {
        let directory = device.path(&format!("/line-{name}"));
        fs::create_dir_all(&directory).expect("a scratch directory");
        let _ = std::os::unix::fs::symlink(nodlet_program(), directory.join("nodlet"));
        let script = format!(
            "#!/bin/sh\nfor last; do :; done\nexport PATH={}:$PATH\n{upwards} | sh -c \"$last\"\n",
            directory.display()
        );
        let ssh = directory.join("ssh");
        fs::write(&ssh, script).expect("a script");
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).expect("its own");
        Line { directory }
    }

    fn run(&self, device: &Device, words: &[&str]) -> Output {
        let mut command = device.command(words);
        command.env("NODLET_SSH", self.directory.join("ssh")).stdin(Stdio::null());
        command.output().expect("nodlet can be started")
    }

    /// Standard output of what succeeded.
    #[track_caller]
    fn ok(&self, device: &Device, words: &[&str]) -> String {
        let output = self.run(device, words);
        assert!(output.status.success(), "{words:?}: {output:#?}");
        text(&output.stdout)
    }

    /// Standard error of what did not.
    #[track_caller]
    fn refused(&self, device: &Device, words: &[&str]) -> String {
        let output = self.run(device, words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:#?}");
        text(&output.stderr)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Bytes that no compression makes fewer.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path of the tests")
}

/// What lets so many bytes pass, each as it comes.
fn cutter(bytes: u64) -> String {
    format!("dd iflag=count_bytes bs=4096 count={bytes} status=none")
}

/// What a push may change: images, and pods that were applied.
fn state(device: &Device) -> (String, Vec<String>) {
    (device.nodlet(["image", "ls"]).ok(), device.pods())
}

#[test]
fn every_verb_reaches_the_agent_of_a_board() {
    let device = Device::start();
    let line = Line::new(&device, "plain", "cat");
    let file = device.path("/web.yaml");
    fs::write(&file, manifest::pod("web", "print hello then sleep")).expect("written");
    assert_eq!(line.ok(&device, &["--board", BOARD, "apply", "-f", path(&file)]), "pod/web created\n");
    device.pod("web").wait_ready();
    assert!(line.ok(&device, &["get", "pods", "--board", BOARD]).contains("Running"));
    assert_eq!(line.ok(&device, &["--board=root@board:2222", "logs", "web"]), "hello\n");
    let exec = line.run(&device, &["--board", BOARD, "exec", "web", "--", "/bin/demo", "exit", "7"]);
    assert_eq!(exec.status.code(), Some(7), "{exec:?}");
    assert!(line.ok(&device, &["image", "ls", "--board", BOARD]).contains("localhost/demo"));
    assert!(line.refused(&device, &["--board", "a b", "get", "pods"]).contains("is no board"));
}

#[test]
fn what_is_wrong_with_the_line_is_told() {
    let device = Device::start();
    let dead = Line::new(&device, "dead", "exit 255; cat");
    assert!(
        dead.refused(&device, &["--board", BOARD, "get", "pods"])
            .contains("there is no connection to root@board")
    );
    let bare = Line::new(&device, "bare", "exit 127; cat");
    assert!(bare.refused(&device, &["--board", BOARD, "get", "pods"]).contains("has no `nodlet`"));
}

#[test]
fn images_and_manifests_come_together_and_only_what_is_lacking_is_sent() {
    let device = Device::start();
    let line = Line::new(&device, "plain", "cat");
    let first = Image::new("localhost/app:1").file("base", 0o644, &noise(100_000, 1));
    let archive = device.path("/app1.tar");
    first.clone().write_oci_archive(&archive).expect("written");
    let out = line.ok(&device, &["push", BOARD, path(&archive)]);
    assert!(out.starts_with("image/localhost/app:1 loaded, 1 of 1 layers sent, 100 kB"), "{out}");

    // Another layer on it, with a pod, from a directory.
    let site = device.path("/site");
    fs::create_dir(&site).expect("new");
    let program = fs::read(nodlet_tests::demo_program()).expect("built");
    let second = first.layer().directory("bin", 0o755).file("bin/demo", 0o755, &program);
    second.write_docker_archive(&site.join("app.tar")).expect("written");
    let pod = manifest::pod("app", "print pushed then sleep").replace("localhost/demo:1", "localhost/app:1");
    fs::write(site.join("app.yaml"), pod.replace("args:", "command: [/bin/demo]\n    args:"))
        .expect("written");
    fs::write(site.join("notes.txt"), "no manifest").expect("written");
    let would = line.ok(&device, &["push", BOARD, path(&site), "--dry-run"]);
    assert_eq!(
        would,
        "image/localhost/app:1 checked, 1 of 2 layers lacking (server dry run)\n\
         pod/app created (server dry run)\n"
    );
    assert!(device.pods().is_empty());
    let out = line.ok(&device, &["push", BOARD, path(&site), "--wait"]);
    assert!(out.starts_with("image/localhost/app:1 loaded, 1 of 2 layers sent, "), "{out}");
    assert!(out.ends_with("pod/app created\npod/app ready\n"), "{out}");
    let out = line.ok(&device, &["push", BOARD, path(&site), "--wait"]);
    assert_eq!(
        out,
        "image/localhost/app:1 unchanged, 0 of 2 layers sent, 0 B\npod/app unchanged\npod/app ready\n"
    );
}

#[test]
fn what_cannot_be_is_refused_by_name_and_changes_nothing() {
    let device = Device::start();
    let line = Line::new(&device, "plain", "cat");
    let write = |name: &str, bytes: &[u8]| {
        let file = device.path(&format!("/{name}"));
        fs::write(&file, bytes).expect("written");
        path(&file).to_owned()
    };
    let good = write("good.yaml", manifest::pod("good", "sleep").as_bytes());
    let image = device.path("/new.tar");
    Image::new("localhost/new:1").file("f", 0o644, b"x").write_oci_archive(&image).expect("written");
    let other = device.path("/other.tar");
    let architecture = if ARCHITECTURE == "s390x" { "amd64" } else { "s390x" };
    Image::new("localhost/o:1").architecture(architecture).write_oci_archive(&other).expect("written");
    let before = state(&device);
    for (file, expected) in [
        (write("notes.txt", b"shopping list\n"), "notes.txt"),
        (write("noise.bin", &noise(2000, 3)), "noise.bin"),
        (write("unknown.yaml", manifest::pod("u", "sleep").replace("args", "argz").as_bytes()), "argz"),
        (write("name.yaml", manifest::pod("Web_X", "sleep").as_bytes()), "metadata.name"),
        (path(&other).to_owned(), "other.tar has images for"),
        ("nowhere.yaml".to_owned(), "\"nowhere.yaml\" does not exist"),
    ] {
        let refused = line.refused(&device, &["push", BOARD, &good, path(&image), &file]);
        assert!(refused.contains(expected), "{file}: {refused}");
        assert_eq!(state(&device), before, "{file}");
    }
    // Its name promises another content.
    let mut bytes = fs::read(&image).expect("there");
    let layer = bytes.windows(2).position(|pair| pair == [0x1f, 0x8b]).expect("a layer in gzip");
    bytes[layer + 20] ^= 1;
    let damaged = write("damaged.tar", &bytes);
    let refused = line.refused(&device, &["push", BOARD, &good, &damaged]);
    assert!(refused.contains("layer"), "{refused}");
    assert_eq!(state(&device), before);
}

#[test]
fn a_push_that_is_cut_at_any_byte_changes_nothing_and_the_next_goes_on() {
    let device = Device::start();
    let archive = device.path("/app.tar");
    let image = Image::new("localhost/cut:1").file("a", 0o644, &noise(300_000, 5));
    image.layer().file("b", 0o644, &noise(200_000, 7)).write_oci_archive(&archive).expect("written");
    let pod = device.path("/cut.yaml");
    fs::write(&pod, manifest::pod("cut", "sleep")).expect("written");
    // A pass that counts.
    let counted = device.path("/counted");
    let whole = Line::new(&device, "whole", &format!("tee {}", counted.display()));
    whole.ok(&device, &["push", BOARD, path(&archive), path(&pod), "--dry-run"]);
    let offer = fs::metadata(&counted).expect("counted").len();
    let before = state(&device);
    let spool = device.path("/var/lib/nodlet/push");
    let forget = || {
        for entry in fs::read_dir(&spool).expect("made by the dry run") {
            fs::remove_file(entry.expect("listed").path()).expect("only parts lie there");
        }
    };
    let mut cuts: Vec<u64> = vec![0, 1, 50, offer / 2, offer - 1, offer, offer + 3, offer + 30, offer + 40];
    cuts.extend((0..10).map(|step| offer + 50_000 * step + 17 * step));
    for cut in cuts {
        forget();
        let line = Line::new(&device, "cut", &cutter(cut));
        line.refused(&device, &["push", BOARD, path(&archive), path(&pod)]);
        assert_eq!(state(&device), before, "cut at {cut}");
    }
    // The last cut left some 450 kB.
    let out = whole.ok(&device, &["push", BOARD, path(&archive), path(&pod)]);
    let sent = fs::metadata(&counted).expect("counted").len();
    assert!(sent < offer + 150_000, "{sent} bytes after a cut at 450 kB");
    assert!(out.ends_with("pod/cut created\n"), "{out}");
    assert!(fs::read_dir(&spool).expect("still there").next().is_none(), "nothing is left over");
    // Cut between the last piece and the word to carry it out, nothing had changed either.
    device.nodlet(["delete", "pod", "cut"]).ok();
    device.nodlet(["image", "rm", "localhost/cut:1"]).ok();
    let all = whole.run(&device, &["push", BOARD, path(&archive), path(&pod)]);
    assert!(all.status.success(), "{all:?}");
    let length = fs::metadata(&counted).expect("counted").len();
    device.nodlet(["delete", "pod", "cut"]).ok();
    device.nodlet(["image", "rm", "localhost/cut:1"]).ok();
    for short in [1, 10, 18, 19, 40] {
        forget();
        let line = Line::new(&device, "cut", &cutter(length - short));
        line.refused(&device, &["push", BOARD, path(&archive), path(&pod)]);
        assert_eq!(state(&device), before, "{short} bytes before the end");
    }
}

#[test]
fn of_two_pushes_at_once_one_is_told_to_wait_its_turn() {
    let device = Device::start();
    let archive = device.path("/app.tar");
    Image::new("localhost/slow:1")
        .file("a", 0o644, &noise(100_000, 9))
        .write_oci_archive(&archive)
        .expect("written");
    // Holds its connection open behind the offer.
    let gate = device.path("/gate");
    let slow = Line::new(
        &device,
        "slow",
        &format!("({}; until test -e {}; do sleep 0.1; done; cat)", cutter(150), gate.display()),
    );
    let ssh = slow.directory.join("ssh");
    let mut command = device.command(&["push", BOARD, path(&archive)]);
    let mut first =
        command.env("NODLET_SSH", &ssh).stdout(Stdio::null()).spawn().expect("nodlet can be started");
    let spool = device.path("/var/lib/nodlet/push");
    let held = || {
        fs::File::open(&spool).is_ok_and(|file| {
            nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusiveNonblock).is_err()
        })
    };
    device.wait_for("the first push to hold the spool", held);
    let plain = Line::new(&device, "plain", "cat");
    let refused = plain.refused(&device, &["push", BOARD, path(&archive)]);
    assert!(refused.contains("another push to this board is under way"), "{refused}");
    fs::write(&gate, "").expect("opened");
    assert!(first.wait().expect("a child").success());
    assert!(device.nodlet(["image", "ls"]).ok().contains("localhost/slow"));
}

#[test]
fn a_disk_without_room_says_so_before_anything_is_sent() {
    let mut device = Device::new();
    let _disk = device.mount_tmpfs("/var/lib/nodlet", "size=2m");
    device.start_agent();
    let line = Line::new(&device, "plain", "cat");
    let archive = device.path("/app.tar");
    Image::new("localhost/big:1")
        .file("a", 0o644, &noise(3_000_000, 11))
        .write_oci_archive(&archive)
        .expect("written");
    let refused = line.refused(&device, &["push", BOARD, path(&archive)]);
    assert!(refused.contains("the board's disk has no room: the layers have 3.0 MB"), "{refused}");
}
