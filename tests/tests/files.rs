//! Files that nodlet keeps where containers can write: a pod with a read-write hostPath of `/var/log` must
//! not be able to turn nodlet's own rights against the host by replacing directories and files there. Also
//! the settings that nodlet inherits from the process that starts it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nodlet_tests::{Device, demo_archive, manifest};

/// A pod that can write to the device's `/var/log`, as log collectors can.
fn collector(device: &Device, steps: &str) -> String {
    manifest::pod_of(
        "collector",
        &[manifest::container("app", steps, "volumeMounts: [{name: log, mountPath: /log}]")],
        &format!("volumes: [{{name: log, hostPath: {{path: {}}}}}]", device.path("/var/log").display()),
    )
}

/// The names below a directory, with the contents of files.
fn listing(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut todo = vec![directory.to_owned()];
    while let Some(path) = todo.pop() {
        for entry in fs::read_dir(&path).expect("it can be read") {
            let path = entry.expect("it can be read").path();
            let is_directory = fs::symlink_metadata(&path).expect("it is there").is_dir();
            let text =
                if is_directory { String::new() } else { fs::read_to_string(&path).unwrap_or_default() };
            if is_directory {
                todo.push(path.clone());
            }
            found.push((path, text));
        }
    }
    found.sort();
    found
}

/// A directory of host files that an attacker would like nodlet to overwrite.
fn precious(device: &Device) -> PathBuf {
    let (_, path) = device.shared("precious");
    fs::create_dir(path.join("app")).expect("made");
    for name in ["app/0.log", "app/0.log.20200101-000000", "app/notes"] {
        let line = "2026-01-01T00:00:00.000000000Z stdout F a secret of the host\n";
        fs::write(path.join(name), line).expect("written");
    }
    fs::create_dir_all(path.join("default_gone_some-uid/app")).expect("made");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("set");
    path
}

fn link_in_the_place_of(directory: &Path, target: &Path) {
    let aside = directory.with_extension("aside");
    fs::rename(directory, aside).expect("it can be renamed");
    symlink(target, directory).expect("a link can be made");
}

#[test]
fn a_link_in_the_place_of_a_pods_log_directory_is_neither_written_through_nor_emptied() {
    let device = Device::start();
    let precious = precious(&device);
    let before = listing(&precious);
    let steps = "print up then wait /work/go then spam 25000000 then exit 3";
    let app = manifest::container("app", steps, "volumeMounts: [{name: work, mountPath: /work}]");
    device.write_manifest(
        "web.yaml",
        &manifest::pod_of("web", &[app], "volumes: [{name: work, emptyDir: {}}]"),
    );
    device.pod("web").wait_log("app", "up");
    let logs = device.path(&format!("/var/log/pods/default_web_{}", device.pod("web").uid()));
    device.write_manifest(
        "collector.yaml",
        &collector(
            &device,
            &format!(
                "rename /log/pods/{name} /log/aside then link {precious} /log/pods/{name} then print done then sleep",
                name = logs.file_name().expect("it has one").display(),
                precious = precious.display()
            ),
        ),
    );
    device.pod("collector").wait_log("app", "done");
    // The log is rotated, and later runs start new log files and remove the oldest.
    device.pod("web").tell("app", "/work/go");
    device.wait_for("a third run", || device.pod("web").container("app").restart_count() >= 2);
    assert_eq!(listing(&precious), before);
    device.remove_manifest("web.yaml");
    device.pod("web").wait_gone();
    assert_eq!(listing(&precious), before);
}

#[test]
fn a_link_in_the_place_of_all_log_directories_is_not_followed_by_this_agent_or_the_next() {
    let mut device = Device::start();
    let precious = precious(&device);
    let before = listing(&precious);
    device.write_manifest("web.yaml", &manifest::pod("web", "print up then sleep"));
    device.pod("web").wait_log("app", "up");
    device.write_manifest(
        "collector.yaml",
        &collector(
            &device,
            &format!(
                "rename /log/pods /log/pods.aside then link {0} /log/pods \
                 then rename /log/containers /log/containers.aside then link {0} /log/containers then sleep",
                precious.display()
            ),
        ),
    );
    device.pod("collector").wait_ready();
    device.wait_for("the links", || {
        fs::symlink_metadata(device.path("/var/log/containers")).is_ok_and(|found| found.is_symlink())
    });
    // A new pod runs nevertheless, if without a log.
    device.write_manifest("late.yaml", &manifest::pod("late", "print up then sleep"));
    device.pod("late").wait_ready();
    device.kill_agent();
    device.start_agent();
    device.write_manifest("later.yaml", &manifest::pod("later", "print up then sleep"));
    device.pod("later").wait_ready();
    device.pod("web").wait_ready();
    let said = device.agent_log();
    assert!(said.contains("no log is written to") && said.contains("/var/log/pods: "), "{said}");
    for name in ["web", "late", "later"] {
        device.remove_manifest(&format!("{name}.yaml"));
        device.pod(name).wait_gone();
    }
    assert_eq!(listing(&precious), before);
    let mode = fs::metadata(&precious).expect("it is there").mode() & 0o7777;
    assert_eq!(mode, 0o700, "the agent changed the mode of a directory of the host");
    device.remove_manifest("collector.yaml");
    device.pod("collector").wait_gone();
}

#[test]
fn logs_shows_no_file_of_the_host_through_a_link() {
    let device = Device::start();
    let precious = precious(&device);
    device.write_manifest("web.yaml", &manifest::pod("web", "print up then sleep"));
    device.pod("web").wait_log("app", "up");
    let logs = device.path(&format!("/var/log/pods/default_web_{}", device.pod("web").uid()));
    for place in [logs.join("app"), logs.clone(), device.path("/var/log/pods")] {
        let target = if place.ends_with("app") { precious.join("app") } else { precious.clone() };
        if place.ends_with("pods") {
            fs::create_dir_all(precious.join(logs.file_name().expect("it has one")).join("app"))
                .expect("made");
            let inside = precious.join(logs.file_name().expect("it has one")).join("app/0.log");
            fs::copy(precious.join("app/0.log"), inside).expect("copied");
        }
        link_in_the_place_of(&place, &target);
        for words in [&["logs", "web"][..], &["logs", "-f", "web"], &["logs", "--tail=1", "web"]] {
            let said = device.command(words).output().expect("nodlet can be run");
            let shown = String::from_utf8_lossy(&said.stdout);
            assert!(!said.status.success() && shown.is_empty(), "{}: {words:?}: {said:?}", place.display());
        }
        fs::remove_file(&place).expect("the link goes");
        fs::rename(place.with_extension("aside"), &place).expect("it comes back");
    }
    assert_eq!(device.pod("web").logs("app"), "up\n");
}

#[test]
fn log_directories_that_are_exchanged_with_links_all_the_time_lead_nodlet_nowhere() {
    let device = Device::start();
    let precious = precious(&device);
    let before = listing(&precious);
    device.write_manifest(
        "web.yaml",
        &manifest::pod("web", "print up then wait /go then spam 130000000 then touch /done then sleep"),
    );
    device.pod("web").wait_log("app", "up");
    let name = format!("pods/default_web_{}/app", device.pod("web").uid());
    device.write_manifest(
        "collector.yaml",
        &collector(
            &device,
            &format!(
                "link {}/app /log/evil then print swapping then swap /log/{name} /log/evil",
                precious.display()
            ),
        ),
    );
    device.pod("collector").wait_log("app", "swapping");
    device.pod("web").tell("app", "/go");
    device.wait_for("all to be logged or lost", || {
        device.pod("web").exec("app", ["/bin/demo", "stat", "/done"]).code == 0
    });
    assert_eq!(listing(&precious), before);
    device.remove_manifest("web.yaml");
    device.pod("web").wait_gone();
    assert_eq!(listing(&precious), before);
}

#[test]
fn volumes_of_a_finished_pod_are_removed_and_its_status_and_logs_stay() {
    let mut device = Device::start();
    let text = manifest::pod_of(
        "job",
        &[manifest::container(
            "app",
            "touch /work/file then touch /layer then print done",
            "volumeMounts: [{name: work, mountPath: /work}]",
        )],
        "restartPolicy: Never\nvolumes: [{name: work, emptyDir: {}}]",
    );
    device.write_manifest("job.yaml", &text);
    device.pod("job").wait_phase("Succeeded");
    let directory = device.path(&format!("/var/lib/nodlet/pods/{}", device.pod("job").uid()));
    device.wait_for("its volumes to be removed", || !directory.exists());
    let is_told = |device: &Device| {
        assert_eq!(device.pod("job").phase(), "Succeeded");
        assert_eq!(device.pod("job").logs("app"), "done\n");
        assert_eq!(device.pod("job").container("app").exit_code(), Some(0));
    };
    is_told(&device);
    // A leftover of an earlier agent, or of one that was killed in between.
    let volume = directory.join("volumes/kubernetes.io~empty-dir/work");
    device.kill_agent();
    fs::create_dir_all(&volume).expect("made");
    device.start_agent();
    device.wait_for("what lies there to be removed", || !directory.exists());
    is_told(&device);
    device.cut_power();
    fs::create_dir_all(&volume).expect("made");
    device.start_agent();
    device.wait_for("what lies there to be removed", || !directory.exists());
    is_told(&device);
}

#[test]
fn volumes_of_a_pod_that_a_power_cut_ended_are_removed() {
    let mut device = Device::start();
    let pod = |restart: &str| {
        manifest::pod_of(
            &restart.to_lowercase(),
            &[manifest::container(
                "app",
                "touch /work/file then print up then sleep",
                "volumeMounts: [{name: work, mountPath: /work}]",
            )],
            &format!("restartPolicy: {restart}\nvolumes: [{{name: work, emptyDir: {{}}}}]"),
        )
    };
    device.write_manifest("never.yaml", &pod("Never"));
    device.write_manifest("always.yaml", &pod("Always"));
    let file_of = |device: &Device, name: &str| {
        let uid = device.pod(name).uid();
        device.path(&format!("/var/lib/nodlet/pods/{uid}/volumes/kubernetes.io~empty-dir/work/file"))
    };
    device.pod("never").wait_log("app", "up");
    device.pod("always").wait_log("app", "up");
    let (never, always) = (file_of(&device, "never"), file_of(&device, "always"));
    assert!(never.exists() && always.exists());
    device.cut_power();
    device.start_agent();
    device.pod("never").wait_phase("Failed");
    device.wait_for("its volumes to be removed", || !never.exists());
    device.pod("always").wait_ready();
    assert!(always.exists(), "the volume of a pod that goes on is gone");
}

/// Writes a script that starts nodlet carelessly: `setup` prepares the environment, and `by` executes nodlet.
fn careless(device: &Device, setup: &str, by: &str) -> PathBuf {
    let path = device.path("/careless");
    let program = nodlet_tests::nodlet_program();
    let text = format!("#!/bin/sh\n{setup}\nexec {by} {} \"$@\"\n", program.display());
    fs::write(&path, text).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
    path
}

#[test]
fn nothing_is_writable_by_everybody_whatever_umask_the_agent_is_started_with() {
    let mut device = Device::new();
    let program = careless(&device, "umask 000", "");
    device.install(&program);
    device.start_agent();
    device.load_image(nodlet_tests::demo_archive());
    device.nodlet_with_input(["apply", "-f", "-"], &manifest::pod("web", "print up then sleep")).ok();
    device.pod("web").wait_log("app", "up");
    let mut todo = vec![device.root().to_owned()];
    let mut open = Vec::new();
    while let Some(path) = todo.pop() {
        let found = fs::symlink_metadata(&path).expect("nothing is removed here");
        if found.is_symlink() {
            continue;
        }
        // The container's user must be able to write the termination message, which is in a directory that
        // only root can enter. The API's socket is also for its group.
        let others = if path.ends_with("api.sock") { 0o002 } else { 0o022 };
        if found.mode() & others != 0 && !path.starts_with(device.path("/var/lib/nodlet/pods")) {
            open.push(path.clone());
        }
        if found.is_dir() {
            todo.extend(
                fs::read_dir(&path).expect("it can be read").map(|entry| entry.expect("read").path()),
            );
        }
    }
    assert!(open.is_empty(), "everybody can write to {open:?}");
}

#[test]
fn a_container_inherits_nothing_of_whoever_started_the_agent() {
    let mut device = Device::new();
    let secret = device.path("/secret");
    fs::write(&secret, "x").expect("written");
    let setup = format!("umask 077; cd {}; SECRET=x; export SECRET; exec 9<secret", device.root().display());
    let by = format!("{} deafened", nodlet_tests::demo_program().display());
    let program = careless(&device, &setup, &by);
    device.install(&program);
    device.start_agent();
    device.load_image(nodlet_tests::demo_archive());
    device.nodlet_with_input(
        ["apply", "-f", "-"],
        &manifest::pod("web", "ls /proc/self/fd then status then env then touch /file then stat /file then print up then sleep"),
    )
    .ok();
    device.pod("web").wait_log("app", "up");
    let said = device.pod("web").logs("app");
    let field = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{said}"));
        line.trim().to_owned()
    };
    // 0x1000 is SIGPIPE, which the demo program itself ignores, as Rust programs do.
    assert_eq!((field("SigBlk:"), field("SigIgn:")), ("0".repeat(16), format!("{:016x}", 0x1000)));
    assert!(!said.lines().any(|line| line == "9") && !said.contains("SECRET"), "{said}");
    assert!(said.contains("file 0644 0:0"), "{said}");
    // The agent itself keeps no inherited descriptor open, and reacts to signals.
    let agent = PathBuf::from(format!("/proc/{}", device.agent_pid()));
    assert_eq!(fs::read_link(agent.join("cwd")).expect("it lives"), Path::new("/"));
    for entry in fs::read_dir(agent.join("fd")).expect("it lives") {
        let target = fs::read_link(entry.expect("it lives").path()).unwrap_or_default();
        assert_ne!(target, secret);
    }
    assert_eq!(device.stop_agent(), 0);
}

/// All pods share one storage thread, so removing one pod's leftovers must not block the others.
#[test]
fn removing_the_files_of_a_pod_does_not_delay_the_start_of_others() {
    const DIRECTORIES: usize = 300;
    let device = Device::start();
    device.write_manifest(
        "full.yaml",
        &manifest::pod_of(
            "full",
            &[manifest::container("app", "sleep", "")],
            "volumes: [{name: work, emptyDir: {}}]",
        ),
    );
    let full = device.pod("full");
    full.wait_ready();
    let left = device.path(&format!("/var/lib/nodlet/pods/{}", full.uid()));
    let work = find(&left, "work").expect("the volume is there");
    for directory in 0..DIRECTORIES {
        let directory = work.join(directory.to_string());
        fs::create_dir(&directory).expect("made");
        for file in 0..400 {
            fs::write(directory.join(file.to_string()), "").expect("written");
        }
    }
    device.remove_manifest("full.yaml");
    let entries = || fs::read_dir(&work).map_or(0, Iterator::count);
    device.wait_for("its removal to begin", || entries() < DIRECTORIES);
    assert!(entries() > 0, "it was removed before anything else was asked for");
    device.write_manifest("other.yaml", &manifest::pod("other", "sleep"));
    device.pod("other").wait_ready();
    assert!(left.exists(), "the other pod waited for the removal");
    device.wait_for("the end of the removal", || !left.exists());
    device.wait_for("the end of the pod", || device.pod("full").object().is_none());
}

/// The emptyDir volume with this name of the pod with this directory.
fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    Some(directory.join("volumes/kubernetes.io~empty-dir").join(name)).filter(|path| path.is_dir())
}

/// The uid of a file pod depends on the file's contents. If the file is restored while the pod's leftovers
/// are being removed, the pod must start without them, and nothing of the new run may be removed.
#[test]
fn a_pod_that_is_put_back_while_another_is_swept_keeps_what_it_has() {
    let mut device = Device::start();
    let pod = |name: &str, uid: &str| {
        let app = manifest::container(
            "app",
            "write /work/file up then print up then sleep",
            "volumeMounts: [{name: work, mountPath: /work}]",
        );
        manifest::pod_of(name, &[app], "volumes: [{name: work, emptyDir: {}}]").replacen(
            &format!("  name: {name}"),
            &format!("  name: {name}\n  uid: {uid}"),
            1,
        )
    };
    // The pod that is swept first has much to remove.
    let (first, second) = (
        pod("first", "00000000-0000-4000-8000-000000000001"),
        pod("second", "f0000000-0000-4000-8000-000000000002"),
    );
    for (file, text, files) in [("first.yaml", &first, 60_000), ("second.yaml", &second, 3)] {
        device.write_manifest(file, text);
        let pod = device.pod(file.trim_end_matches(".yaml"));
        pod.wait_log("app", "up");
        let work =
            find(&device.path(&format!("/var/lib/nodlet/pods/{}", pod.uid())), "work").expect("its volume");
        for number in 0..files {
            fs::write(work.join(format!("left-{number}")), "").expect("written");
        }
    }
    let directory = device.path("/var/lib/nodlet/pods");
    device.cut_power();
    device.remove_manifest("first.yaml");
    device.remove_manifest("second.yaml");
    device.start_agent();
    device.write_manifest("second.yaml", &second);
    device.pod("second").wait_log("app", "up");
    let names = || -> Vec<String> {
        let entries = fs::read_dir(&directory).expect("it is there").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let own = device.pod("second").uid();
    device.wait_for("the end of the sweep", || names() == [own.clone()]);
    let work = find(&directory.join(&own), "work").expect("its volume");
    assert_eq!(fs::read_to_string(work.join("file")).expect("it was written"), "up\n");
    assert!(!work.join("left-0").exists(), "it began with what was left before");
    device.pod("second").wait_ready();
}

#[test]
fn layers_of_runs_that_an_agent_left_when_it_died_go_with_the_next_run() {
    let mut device = Device::start();
    let steps = "print up then until /work/go then exit 1";
    let app = manifest::container("app", steps, "volumeMounts: [{name: work, mountPath: /work}]");
    device.write_manifest(
        "web.yaml",
        &manifest::pod_of("web", &[app], "volumes: [{name: work, emptyDir: {}}]"),
    );
    let web = device.pod("web");
    web.wait_log("app", "up");
    let directory = device.path(&format!("/var/lib/nodlet/pods/{}", web.uid()));
    let work = find(&directory, "work").expect("its volume");
    let runs = directory.join("containers/app");
    let names = || -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&runs)
            .expect("it is there")
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    let next = |device: &Device, number: u32| {
        fs::write(work.join("go"), "").expect("written");
        device.wait_for("the next run", || names().contains(&number.to_string()));
        let _ = fs::remove_file(work.join("go"));
    };
    next(&device, 1);
    device.wait_for("the layer of the first run to go", || !names().contains(&"0".to_owned()));
    device.kill_agent();
    fs::create_dir_all(runs.join("0/upper/left")).expect("made");
    device.start_agent();
    next(&device, 2);
    device.wait_for("all earlier layers to go", || names() == ["2"]);
}

#[test]
fn a_link_whose_log_is_gone_goes_when_the_agent_starts_and_no_other() {
    let mut device = Device::start();
    device.write_manifest("web.yaml", &manifest::pod("web", "print up then sleep"));
    device.pod("web").wait_log("app", "up");
    device.kill_agent();
    let links = device.path("/var/log/containers");
    let before = fs::read_dir(&links).expect("it is there").flatten().map(|entry| entry.file_name());
    let before: Vec<_> = before.collect();
    assert_eq!(before.len(), 1);
    let dead = links.join("old_default_app-1234.log");
    std::os::unix::fs::symlink(device.path("/var/log/pods/default_old_uid/app/0.log"), &dead).expect("made");
    let foreign = links.join("foreign.log");
    std::os::unix::fs::symlink("/nowhere/0.log", &foreign).expect("made");
    device.start_agent();
    device.wait_for("the dead link to go", || fs::symlink_metadata(&dead).is_err());
    assert!(fs::symlink_metadata(&foreign).is_ok() && fs::symlink_metadata(links.join(&before[0])).is_ok());
    device.pod("web").wait_ready();
}

#[test]
fn a_link_in_the_place_of_a_pods_directory_is_neither_written_through_nor_emptied() {
    let device = Device::start();
    let precious = precious(&device);
    for directory in ["runs/app", "volumes/kubernetes.io~empty-dir/scratch"] {
        fs::create_dir_all(precious.join(directory)).expect("made");
    }
    for name in ["hostname", "etc-hosts", "resolv.conf"] {
        fs::write(precious.join(name), "of the host\n").expect("written");
    }
    let before = listing(&precious);
    let text = |pod: &str, steps: &str| {
        manifest::pod(pod, steps).replacen("  name:", &format!("  uid: uid-of-{pod}\n  name:"), 1)
    };
    let place = |pod: &str| device.path(&format!("/var/lib/nodlet/pods/uid-of-{pod}"));
    let said = |pod: &str| {
        let wanted = format!("{}: it is not a directory: remove it", place(pod).display());
        device.wait_for(&format!("{pod} to say why"), || {
            device.pod(pod).events().iter().any(|event| event.contains(&wanted))
        });
    };
    // A link before the pod starts.
    let steps = "wait /tmp/go";
    fs::create_dir_all(place("first").parent().expect("of all pods")).expect("made");
    symlink(&precious, place("first")).expect("a link can be made");
    device.write_manifest("first.yaml", &text("first", steps));
    said("first");
    assert_eq!(listing(&precious), before);
    fs::remove_file(place("first")).expect("it is a link");
    device.pod("first").wait_ready();
    // A link while the pod runs, before its container starts again.
    link_in_the_place_of(&place("first"), &precious);
    device.pod("first").tell("app", "/tmp/go");
    said("first");
    assert_eq!(listing(&precious), before);
    // The removal of the pod removes the link only.
    device.remove_manifest("first.yaml");
    device.pod("first").wait_gone();
    assert!(fs::symlink_metadata(place("first")).is_err());
    assert_eq!(listing(&precious), before);
}

/// Puts something at a path that is not a regular file.
type Put<'a> = &'a dyn Fn(&Path);

#[test]
fn special_files_in_the_place_of_nodlets_own_hold_up_only_their_pods() {
    let mut device = Device::start();
    let precious = precious(&device);
    let before = listing(&precious);
    let target = precious.join("app/notes");
    let node = |kind: SFlag, number: u64| {
        move |path: &Path| mknod(path, kind, Mode::S_IRUSR | Mode::S_IWUSR, number).expect("made")
    };
    let (fifo, socket, zero) =
        (node(SFlag::S_IFIFO, 0), node(SFlag::S_IFSOCK, 0), node(SFlag::S_IFCHR, makedev(1, 5)));
    let kinds: [(&str, Put<'_>); 5] = [
        ("fifo", &fifo),
        ("socket", &socket),
        ("device", &zero),
        ("directory", &|path| fs::create_dir(path).expect("made")),
        ("link", &|path| symlink(&target, path).expect("made")),
    ];
    let mut held_up = Vec::new();
    for (kind, put) in kinds {
        for file in ["hostname", "etc-hosts", "resolv.conf"] {
            let pod = format!("{kind}-{}", file.replace('.', "-"));
            let directory = device.path(&format!("/var/lib/nodlet/pods/uid-of-{pod}"));
            fs::create_dir_all(&directory).expect("made");
            put(&directory.join(file));
            let text =
                manifest::pod(&pod, "sleep").replacen("  name:", &format!("  uid: uid-of-{pod}\n  name:"), 1);
            device.write_manifest(&format!("{pod}.yaml"), &text);
            held_up.push((pod, directory.join(file)));
        }
    }
    device.write_manifest("other.yaml", &manifest::pod("other", "sleep"));
    device.pod("other").wait_ready();
    for (pod, path) in &held_up {
        let said = format!("{}: it is not a regular file", path.display());
        device.wait_for(&format!("{pod} to say why"), || {
            device.pod(pod).events().iter().any(|event| event.contains(&said))
        });
        assert!(!device.pod(pod).is_ready(), "{pod}");
    }
    device.nodlet(["healthcheck"]).ok();
    let (mended, path) = &held_up[0];
    fs::remove_file(path).expect("it is there");
    device.pod(mended).wait_ready();

    let index = device.path("/var/lib/nodlet/images/index.json");
    let aside = index.with_extension("aside");
    fs::rename(&index, &aside).expect("it is there");
    for (kind, put) in kinds {
        put(&index);
        let refusal = device.nodlet(["image", "ls"]).refused();
        assert!(refusal.contains("it is not a regular file"), "{kind}: {refusal}");
        device.write_manifest("next.yaml", &manifest::pod("next", "sleep"));
        device.wait_for("the pod to be handled", || device.pod("next").object().is_some());
        device.nodlet(["healthcheck"]).ok();
        device.remove_manifest("next.yaml");
        device.pod("next").wait_gone();
        let removed = if kind == "directory" { fs::remove_dir(&index) } else { fs::remove_file(&index) };
        removed.expect("it is there");
    }
    fs::rename(&aside, &index).expect("it is there");
    device.write_manifest("last.yaml", &manifest::pod("last", "sleep"));
    device.pod("last").wait_ready();
    fs::remove_file(&index).expect("it is there");
    fifo(&index);
    device.stop_agent();
    device.start_agent();
    device.pod("last").wait_ready();
    device.load_image(demo_archive());
    assert!(fs::symlink_metadata(&index).expect("the load wrote it").is_file());
    fs::remove_file(&index).expect("it is there");
    fifo(&index);
    device.stop_agent();
    device.nodlet(["down"]).ok();
    assert_eq!(listing(&precious), before);
}

#[test]
fn a_special_file_in_the_place_of_a_manifest_ends_no_pod_and_an_event_says_what_to_do() {
    let kinds: [(&str, Put<'_>); 2] = [
        ("fifo", &|path| mknod(path, SFlag::S_IFIFO, Mode::S_IRWXU, 0).expect("made")),
        ("link to a directory", &|path| symlink("/", path).expect("made")),
    ];
    // At no time is nothing in the place of the manifest.
    let replace = |path: &Path, put: Put<'_>| {
        let aside = path.with_file_name(".aside");
        put(&aside);
        fs::rename(aside, path).expect("it is the same directory");
    };
    for (kind, put) in kinds {
        let mut device = Device::start();
        let text = |name: &str| manifest::pod_with(name, "sleep", "volumes: [{name: data, emptyDir: {}}]");
        device.write_manifest("site.yaml", &text("site"));
        device.nodlet_with_input(["apply", "-f", "-"], &text("keep")).ok();
        let pods = [
            ("site", device.path("/etc/nodlet/manifests/site.yaml")),
            ("keep", device.path("/var/lib/nodlet/manifests/default_keep.json")),
        ];
        let ours = pods.each_ref().map(|(name, _)| {
            device.pod(name).wait_ready();
            let directory = device.path(&format!("/var/lib/nodlet/pods/{}", device.pod(name).uid()));
            let data = directory.join("volumes/kubernetes.io~empty-dir/data/file");
            fs::write(&data, "kept").expect("the emptyDir exists");
            (data, device.pod(name).born("app"))
        });
        let texts = pods.each_ref().map(|(_, path)| fs::read(path).expect("it is there"));
        pods.iter().for_each(|(_, path)| replace(path, put));
        let new = pods[0].1.with_file_name("new.yaml");
        put(&new);
        for is_next_agent in [false, true] {
            let logged = if is_next_agent { device.agent_log().len() } else { 0 };
            if is_next_agent {
                device.stop_agent();
                device.start_agent();
            }
            let said =
                |path: &Path| format!("{}: it is not a regular file: replace it by one", path.display());
            let places = pods.iter().map(|(_, path)| path).chain([&new]);
            for said in places.map(|path| said(path)) {
                device.wait_for(&said, || device.agent_log()[logged..].contains(&said));
            }
            for ((name, path), (data, born)) in pods.iter().zip(&ours) {
                // The next agent does not know which pod a manifest had that it never read.
                device.wait_for(&format!("{kind}: {name} to say why"), || {
                    is_next_agent || device.pod(name).events().iter().any(|event| event.contains(&said(path)))
                });
                device.pod(name).wait_ready();
                assert_eq!(device.pod(name).born("app"), *born, "{kind}: {name}");
                assert_eq!(fs::read_to_string(data).expect("it is kept"), "kept", "{kind}");
            }
        }
        for ((_, path), text) in pods.iter().zip(&texts) {
            replace(path, &|aside| fs::write(aside, text).expect("written"));
        }
        device.write_manifest("last.yaml", &manifest::pod("last", "sleep"));
        device.pod("last").wait_ready();
        for ((name, path), (_, born)) in pods.iter().zip(&ours) {
            assert_eq!(device.pod(name).born("app"), *born, "{kind}: {name}");
            fs::remove_file(path).expect("it is there");
            device.pod(name).wait_gone();
        }
    }
}

/// Replaces a directory, which is kept aside, by a special file.
fn replace(directory: &Path, put: Put<'_>) {
    fs::rename(directory, directory.with_extension("aside")).expect("it is there");
    put(directory);
}

/// Puts a directory back that [`replace`] has replaced. Whatever the agent made in its place is removed.
fn put_back(directory: &Path) {
    let is_directory = fs::symlink_metadata(directory).is_ok_and(|found| found.is_dir());
    let removed = if is_directory { fs::remove_dir_all(directory) } else { fs::remove_file(directory) };
    removed.expect("it is there");
    fs::rename(directory.with_extension("aside"), directory).expect("it can be renamed");
}

/// The directories of nodlet with content that nodlet can make anew.
const SCRATCH: [&str; 6] = [
    "run/nodlet/leases",
    "run/nodlet/locks",
    "run/nodlet/pods",
    "run/nodlet/statuses",
    "var/lib/nodlet/images/staging",
    "var/lib/nodlet/reserve",
];

/// The directories of nodlet with content that nobody can make anew.
const STATE: [&str; 7] = [
    "run/nodlet",
    "run/nodlet/manifests",
    "var/lib/nodlet",
    "var/lib/nodlet/images",
    "var/lib/nodlet/manifests",
    "var/lib/nodlet/pods",
    "var/lib/nodlet/records",
];

#[test]
fn a_special_file_in_the_place_of_a_directory_of_scratch_files_is_removed_and_pods_run() {
    let mut device = Device::start();
    let precious = precious(&device);
    let before = listing(&precious);
    device.write_manifest("web.yaml", &manifest::pod("web", "sleep"));
    device.pod("web").wait_ready();
    device.wait_for("the reserve", || device.path("/var/lib/nodlet/reserve").exists());
    let kinds: [(&str, Put<'_>); 4] = [
        ("fifo", &|path| mknod(path, SFlag::S_IFIFO, Mode::S_IRWXU, 0).expect("made")),
        ("file", &|path| fs::write(path, "").expect("written")),
        ("link", &|path| symlink(&precious, path).expect("made")),
        ("dangling", &|path| symlink("/nothing", path).expect("made")),
    ];
    for (kind, put) in kinds {
        let born = device.pod("web").born("app");
        device.stop_agent();
        let places = SCRATCH.map(|place| device.path(&format!("/{place}")));
        places.iter().for_each(|place| replace(place, put));
        let logged = device.agent_log().len();
        device.start_agent();
        device.pod("web").wait_ready();
        assert_ne!(device.pod("web").born("app"), born, "{kind}: its supervisor is not found");
        device.write_manifest("next.yaml", &manifest::pod("next", "sleep"));
        device.pod("next").wait_ready();
        device.load_image(demo_archive());
        for place in &places {
            device.wait_for(&format!("{kind}: {} to be a directory", place.display()), || {
                fs::symlink_metadata(place).is_ok_and(|found| found.is_dir())
            });
            let said = format!("removed {}, which was not a directory", place.display());
            assert_eq!(device.agent_log()[logged..].matches(&said).count(), 1, "{kind}: {said}");
        }
        device.remove_manifest("next.yaml");
        device.pod("next").wait_gone();
        assert_eq!(listing(&precious), before, "{kind}");
        places.iter().for_each(|place| fs::remove_dir_all(place.with_extension("aside")).expect("removed"));
    }
    for (kind, put) in kinds {
        device.stop_agent();
        for place in SCRATCH.map(|place| device.path(&format!("/{place}"))) {
            fs::remove_dir_all(&place).expect("removed");
            put(&place);
        }
        device.nodlet(["down"]).ok();
        assert_eq!(listing(&precious), before, "{kind}");
        device.start_agent();
        device.pod("web").wait_ready();
        device.wait_for("the reserve", || device.path("/var/lib/nodlet/reserve").is_dir());
    }
}

#[test]
fn a_special_file_in_the_place_of_a_directory_of_state_is_refused_with_its_path_and_a_remedy() {
    let mut device = Device::start();
    let precious = precious(&device);
    let before = listing(&precious);
    device.write_manifest("web.yaml", &manifest::pod("web", "sleep"));
    device.pod("web").wait_ready();
    let born = device.pod("web").born("app");
    let kinds: [(&str, Put<'_>); 3] = [
        ("fifo", &|path| mknod(path, SFlag::S_IFIFO, Mode::S_IRWXU, 0).expect("made")),
        ("file", &|path| fs::write(path, "").expect("written")),
        ("link", &|path| symlink(&precious, path).expect("made")),
    ];
    device.stop_agent();
    for place in STATE {
        for (kind, put) in kinds {
            // All of the data may be elsewhere.
            if kind == "link" && ["run/nodlet", "var/lib/nodlet"].contains(&place) {
                continue;
            }
            let path = device.path(&format!("/{place}"));
            replace(&path, put);
            let wanted = format!("{}: it is not a directory: remove it", path.display());
            let logged = device.agent_log().len();
            device.launch_agent();
            assert_eq!(device.agent_ended(), 1, "{kind} {place}");
            let said = device.agent_log()[logged..].to_owned();
            assert!(said.contains(&wanted), "{kind} {place}: the agent: {said}");
            let said = device.nodlet(["down"]).refused();
            assert!(said.contains(&wanted), "{kind} {place}: down: {said}");
            assert_eq!(listing(&precious), before, "{kind} {place}");
            put_back(&path);
        }
    }
    // Nothing is lost, and the pod has run on.
    device.start_agent();
    device.pod("web").wait_ready();
    assert_eq!(device.pod("web").born("app"), born);
}

#[test]
fn a_special_file_in_the_place_of_the_lock_or_the_socket_of_an_agent_is_named_or_replaced() {
    let mut device = Device::new();
    let run = device.path("/run/nodlet");
    fs::create_dir_all(&run).expect("made");
    let node = |kind: SFlag| move |path: &Path| mknod(path, kind, Mode::S_IRWXU, 0).expect("made");
    let (fifo, socket) = (node(SFlag::S_IFIFO), node(SFlag::S_IFSOCK));
    let directory: Put<'_> = &|path| fs::create_dir(path).expect("made");
    let refused: [(&str, Put<'_>, &str); 5] = [
        ("agent.lock", &fifo, "it is not a regular file: remove it"),
        ("agent.lock", &socket, "it is not a regular file: remove it"),
        ("agent.lock", directory, "it is not a regular file: remove it"),
        ("api.sock", directory, "it is a directory: remove it"),
        ("api.sock.new", directory, "it is a directory: remove it"),
    ];
    for (name, put, said) in refused {
        let path = run.join(name);
        put(&path);
        let logged = device.agent_log().len();
        device.launch_agent();
        assert_eq!(device.agent_ended(), 1, "{name}");
        let said = format!("{}: {said}", path.display());
        assert!(device.agent_log()[logged..].contains(&said), "{said}: {}", device.agent_log());
        let is_directory = fs::symlink_metadata(&path).expect("it stays").is_dir();
        if is_directory { fs::remove_dir(&path) } else { fs::remove_file(&path) }.expect("it is there");
    }
    let file: Put<'_> = &|path| fs::write(path, "").expect("written");
    for name in ["api.sock", "api.sock.new"] {
        for put in [&fifo, file] {
            let _ = fs::remove_file(run.join("api.sock"));
            put(&run.join(name));
            device.start_agent();
            device.nodlet(["healthcheck"]).ok();
            device.stop_agent();
        }
    }
}

/// A pod with a fixed UID.
fn pod_with_uid(name: &str) -> String {
    manifest::pod(name, "sleep").replacen("  name:", &format!("  uid: uid-of-{name}\n  name:"), 1)
}

#[test]
fn a_pod_is_deleted_at_once_behind_special_files_among_locks_and_leases() {
    // A removal that fails is tried again after 10 s.
    const AT_ONCE: Duration = Duration::from_secs(8);
    let mut device = Device::start();
    let precious = precious(&device);
    let before = listing(&precious);
    let kinds: [(&str, Put<'_>); 4] = [
        ("fifo", &|path| mknod(path, SFlag::S_IFIFO, Mode::S_IRWXU, 0).expect("made")),
        ("file", &|path| fs::write(path, "").expect("written")),
        ("directory", &|path| fs::create_dir_all(path.join("within")).expect("made")),
        ("link", &|path| symlink(&precious, path).expect("made")),
    ];
    let (locks, leases) = (device.path("/run/nodlet/locks"), device.path("/run/nodlet/leases"));
    for (kind, put) in kinds {
        let replace = |path: &Path| {
            fs::remove_file(path).or_else(|_| fs::remove_dir_all(path)).expect("it is there");
            put(path);
        };
        for place in ["lock", "lease", "image", "other", "locks", "leases"] {
            let at = format!("{kind} in the place of the {place}");
            device.nodlet_with_input(["apply", "-f", "-"], &manifest::pod("web", "sleep")).ok();
            device.pod("web").wait_ready();
            let uid = device.pod("web").uid();
            let mut images = fs::read_dir(&leases).expect("read").flatten().map(|entry| entry.path());
            let image = images.find(|path| path.join(&uid).exists()).expect("the pod's lease");
            match place {
                "lock" => replace(&locks.join("default_web")),
                "lease" => replace(&image.join(&uid)),
                "image" => replace(&image),
                "other" => {
                    put(&leases.join(kind));
                    put(&locks.join(kind));
                }
                "locks" => replace(&locks),
                _ => replace(&leases),
            }
            let mut deletion = device.command(&["delete", "pod", "web", "--now"]);
            let mut deletion = deletion.spawn().expect("nodlet can be run");
            device.wait_within(AT_ONCE, &at, || deletion.try_wait().expect("a child").is_some());
            assert!(deletion.wait().expect("a child").success(), "{at}");
            assert_eq!(listing(&precious), before, "{at}");
            // What is in the place of all leases stays until an agent starts.
            if place == "leases" {
                device.stop_agent();
                device.start_agent();
                assert!(fs::symlink_metadata(&leases).expect("it is made anew").is_dir(), "{at}");
            }
        }
    }
}

#[test]
fn the_image_of_a_running_pod_stays_behind_a_special_file_in_the_place_of_the_leases() {
    let mut device = Device::start();
    let leases = device.path("/run/nodlet/leases");
    let apply = |device: &Device, name: &str| {
        device.nodlet_with_input(["apply", "-f", "-"], &manifest::pod(name, "sleep")).ok();
    };
    apply(&device, "one");
    apply(&device, "two");
    device.pod("one").wait_ready();
    device.pod("two").wait_ready();
    let born = device.pod("one").born("app");
    replace(&leases, &|path| mknod(path, SFlag::S_IFIFO, Mode::S_IRWXU, 0).expect("made"));
    let expected = format!("{}: it is not a directory: restart the agent", leases.display());
    device.nodlet(["delete", "pod", "two"]).ok();
    apply(&device, "two");
    device.wait_for("the reason", || {
        device.pod("two").events().iter().any(|event| event.contains(&expected))
            || device.pod("two").is_ready()
    });
    device.nodlet(["delete", "pod", "two"]).ok();
    let refused = device.nodlet(["image", "rm", "localhost/demo:1"]).refused();
    assert!(refused.contains(&expected), "{refused}");
    apply(&device, "two");
    device.stop_agent();
    device.start_agent();
    device.pod("two").wait_ready();
    device.nodlet(["delete", "pod", "two"]).ok();
    assert_eq!(device.pod("one").born("app"), born);
    let refused = device.nodlet(["image", "rm", "localhost/demo:1"]).refused();
    assert!(refused.contains("in use by default/one; delete the pods first"), "{refused}");
    device.nodlet(["delete", "pod", "one"]).ok();
    device.nodlet(["image", "rm", "localhost/demo:1"]).ok();
}

#[test]
fn a_pod_with_a_link_in_the_place_of_its_run_time_directory_does_not_start_and_says_why() {
    let device = Device::start();
    let precious = precious(&device);
    let before = listing(&precious);
    let place = device.path("/run/nodlet/pods/uid-of-web");
    symlink(&precious, &place).expect("a link can be made");
    device.write_manifest("web.yaml", &pod_with_uid("web"));
    let wanted = format!("{}: it is not a directory: remove it", place.display());
    device.wait_for("the reason", || device.pod("web").events().iter().any(|event| event.contains(&wanted)));
    assert_eq!(listing(&precious), before);
    // What failed is removed before the pod starts again, and so is the link.
    device.pod("web").wait_ready();
    device.remove_manifest("web.yaml");
    device.pod("web").wait_gone();
    assert_eq!(listing(&precious), before);
}
