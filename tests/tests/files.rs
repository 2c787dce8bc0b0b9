//! Files that nodlet keeps where containers can write: a pod with a read-write hostPath of `/var/log` must
//! not be able to turn nodlet's own rights against the host by replacing directories and files there. Also
//! the settings that nodlet inherits from the process that starts it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nodlet_tests::{Device, TestPod, manifest};

mod special;

/// Runs a pod that can write to the device's `/var/log`, as log collectors can, until it has printed `done`.
fn collect(device: &Device, steps: &str) {
    let app = manifest::container("app", steps, &manifest::mount("log"));
    let volume = manifest::host_path("log", device.path("/var/log").display());
    device.run_pod_of("collector", &[app], &volume).wait_log("app", "done");
}

/// A pod that executes these steps with an emptyDir at `/work`.
fn working(name: &str, steps: &str, spec: &str) -> String {
    let app = manifest::container("app", steps, &manifest::mount("work"));
    manifest::pod_of(name, &[app], &(manifest::empty_dir("work") + spec))
}

/// The names below a directory, with the contents of files.
fn listing(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).expect("it can be read") {
        let path = entry.expect("it can be read").path();
        if fs::symlink_metadata(&path).expect("it is there").is_dir() {
            all.extend(listing(&path));
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        all.push((path, text));
    }
    all.sort();
    all
}

/// The names of the entries of a directory, sorted.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("it is there").flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A directory of host files that an attacker would like nodlet to overwrite.
struct Precious {
    path: PathBuf,
    before: Vec<(PathBuf, String)>,
}

impl Precious {
    fn new(device: &Device) -> Precious {
        let (_, path) = device.shared("precious");
        let line = "2026-01-01T00:00:00.000000000Z stdout F a secret of the host\n";
        for name in ["app/0.log", "app/0.log.20200101-000000", "app/notes"] {
            device.write_file(&format!("precious/{name}"), line);
        }
        for name in ["hostname", "etc-hosts", "resolv.conf"] {
            device.write_file(&format!("precious/{name}"), "of the host\n");
        }
        for name in ["default_gone_some-uid/app", "runs/app", "volumes/kubernetes.io~empty-dir/scratch"] {
            fs::create_dir_all(path.join(name)).expect("made");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("set");
        let before = listing(&path);
        Precious { path, before }
    }

    /// Asserts that nobody has changed the directory.
    #[track_caller]
    fn assert_unchanged(&self, what: &str) {
        assert_eq!(listing(&self.path), self.before, "{what}");
        let mode = fs::metadata(&self.path).expect("it is there").mode() & 0o7777;
        assert_eq!(mode, 0o700, "{what}: nodlet changed the mode of a directory of the host");
    }
}

/// Moves a directory to the name of [`backup`], and puts a link in its place.
fn link_in_the_place_of(directory: &Path, target: &Path) {
    fs::rename(directory, backup(directory)).expect("it can be renamed");
    symlink(target, directory).expect("a link can be made");
}

/// The name of a file or directory while something else is in its place.
fn backup(path: &Path) -> PathBuf {
    path.with_extension("backup")
}

/// Runs the pod `web` until it has printed `up`. Returns the pod, and the name of the directory of its logs.
fn run_web<'a>(device: &'a Device, manifest: &str) -> (TestPod<'a>, String) {
    let web = device.write_pod("web", manifest);
    web.wait_log("app", "up");
    (web, format!("default_web_{}", web.uid()))
}

/// A pod that prints and then waits.
fn printing(name: &str) -> String {
    manifest::pod(name, "print up then sleep")
}

#[test]
fn a_link_in_the_place_of_a_pods_log_directory_is_neither_written_through_nor_emptied() {
    let device = Device::start();
    let precious = Precious::new(&device);
    let steps = "print up then wait /work/go then spam 25000000 then exit 3";
    let (web, logs) = run_web(&device, &working("web", steps, ""));
    let link = format!("link {} /log/pods/{logs}", precious.path.display());
    collect(&device, &format!("rename /log/pods/{logs} /log/backup then {link} then print done then sleep"));
    // The log is rotated, and later runs start new log files and remove the oldest.
    web.tell("app", "/work/go");
    device.wait_for("a third run", || web.container("app").restart_count() >= 2);
    precious.assert_unchanged("while it runs");
    device.remove_pod("web");
    precious.assert_unchanged("after its end");
}

#[test]
fn a_link_in_the_place_of_all_log_directories_is_not_followed_by_this_agent_or_the_next() {
    let mut device = Device::start();
    let precious = Precious::new(&device);
    run_web(&device, &printing("web"));
    let replaced = ["pods", "containers"].map(|name| {
        format!(
            "rename /log/{name} /log/{name}.backup then link {} /log/{name} then ",
            precious.path.display()
        )
    });
    // The log of this pod is lost, too.
    let app = manifest::container("app", &(replaced.concat() + "sleep"), &manifest::mount("log"));
    let volume = manifest::host_path("log", device.path("/var/log").display());
    device.run_pod_of("collector", &[app], &volume).wait_ready();
    device.wait_for("the links", || device.path("/var/log/containers").is_symlink());
    // A new pod runs nevertheless, if without a log.
    device.write_pod("late", &printing("late")).wait_ready();
    device.restart_agent();
    device.write_pod("later", &printing("later")).wait_ready();
    device.pod("web").wait_ready();
    let log = device.agent_log();
    assert!(log.contains("no log is written to") && log.contains("/var/log/pods: "), "{log}");
    for name in ["web", "late", "later"] {
        device.remove_pod(name);
    }
    precious.assert_unchanged("after the end of the pods");
    device.remove_pod("collector");
}

#[test]
fn logs_shows_no_file_of_the_host_through_a_link() {
    let device = Device::start();
    let precious = Precious::new(&device).path;
    let (web, name) = run_web(&device, &printing("web"));
    let all = device.path("/var/log/pods");
    for (place, target) in [
        (all.join(&name).join("app"), precious.join("app")),
        (all.join(&name), precious.clone()),
        (all.clone(), precious.clone()),
    ] {
        if place == all {
            let text = fs::read(precious.join("app/0.log")).expect("it is there");
            device.write_file(&format!("precious/{name}/app/0.log"), text);
        }
        link_in_the_place_of(&place, &target);
        for words in [&["logs", "web"][..], &["logs", "-f", "web"], &["logs", "--tail=1", "web"]] {
            let ran = device.command(words).output().expect("nodlet can be run");
            let is_refused = !ran.status.success() && ran.stdout.is_empty();
            assert!(is_refused, "{}: {words:?}: {ran:?}", place.display());
        }
        fs::remove_file(&place).expect("the link goes");
        fs::rename(backup(&place), &place).expect("it comes back");
    }
    assert_eq!(web.logs("app"), "up\n");
}

#[test]
fn log_directories_that_are_exchanged_with_links_all_the_time_lead_nodlet_nowhere() {
    let device = Device::start();
    let precious = Precious::new(&device);
    let steps = "print up then wait /go then spam 130000000 then touch /done then sleep";
    let (web, logs) = run_web(&device, &manifest::pod("web", steps));
    let link = format!("link {}/app /log/evil then print done", precious.path.display());
    collect(&device, &format!("{link} then swap /log/pods/{logs}/app /log/evil"));
    web.tell("app", "/go");
    device.wait_for("all to be logged or lost", || web.demo("app", "stat /done").code == 0);
    precious.assert_unchanged("while it runs");
    device.remove_pod("web");
    precious.assert_unchanged("after its end");
}

#[test]
fn volumes_of_a_finished_pod_are_removed_and_its_status_and_logs_stay() {
    let mut device = Device::start();
    let job = working("job", "touch /work/file then touch /layer then print done", "restartPolicy: Never\n");
    device.write_pod("job", &job).wait_phase("Succeeded");
    let directory = device.pod("job").directory();
    let assert_removed = |device: &Device| {
        device.wait_for("its volumes to be removed", || !directory.exists());
        let job = device.pod("job");
        let app = job.container("app");
        assert_eq!((job.phase(), job.logs("app")), ("Succeeded".into(), "done\n".into()));
        assert_eq!(app.exit_code(), Some(0));
    };
    assert_removed(&device);
    // Pods that a power cut ends.
    let run = |policy: &str| {
        let name = policy.to_lowercase();
        let spec = format!("restartPolicy: {policy}\n");
        let text = working(&name, "touch /work/file then print up then sleep", &spec);
        device.write_pod(&name, &text).wait_log("app", "up");
        let file = device.pod(&name).empty_dir("work").join("file");
        assert!(file.exists());
        file
    };
    let (never, always) = (run("Never"), run("Always"));
    // A leftover of an earlier agent, or of one that was killed in between.
    let volume = directory.join("volumes/kubernetes.io~empty-dir/work");
    for stop in [Device::kill_agent as fn(&mut Device), Device::cut_power] {
        stop(&mut device);
        fs::create_dir_all(&volume).expect("made");
        device.start_agent();
        assert_removed(&device);
    }
    device.pod("never").wait_phase("Failed");
    device.wait_for("its volumes to be removed", || !never.exists());
    device.pod("always").wait_ready();
    assert!(always.exists(), "the volume of a pod that goes on is gone");
}

/// A device with the pod `web`, whose nodlet is started carelessly: by a script in which `setup` prepares the
/// environment and `by` executes nodlet.
fn careless(setup: &str, by: &str, steps: &str) -> Device {
    let mut device = Device::new();
    let program = nodlet_tests::nodlet_program();
    let root = device.root().display();
    let text = format!("#!/bin/sh\ncd {root}; {setup}\nexec {by} {} \"$@\"\n", program.display());
    let path = device.write_file("/careless", text);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
    device.install(&path);
    device.start_agent_with_demo();
    device.apply(&manifest::pod("web", steps));
    device.pod("web").wait_log("app", "up");
    device
}

#[test]
fn nothing_is_writable_by_everybody_whatever_umask_the_agent_is_started_with() {
    let device = careless("umask 000", "", "print up then sleep");
    let mut todo = vec![device.root().to_owned()];
    let mut open = Vec::new();
    while let Some(path) = todo.pop() {
        let metadata = fs::symlink_metadata(&path).expect("nothing is removed here");
        if metadata.is_symlink() {
            continue;
        }
        // The container's user must be able to write the termination message, which is in a directory that
        // only root can enter. The API's socket is also for its group.
        let others = if path.ends_with("api.sock") { 0o002 } else { 0o022 };
        if metadata.mode() & others != 0 && !path.starts_with(device.path("/var/lib/nodlet/pods")) {
            open.push(path.clone());
        }
        if metadata.is_dir() {
            todo.extend(names(&path).iter().map(|name| path.join(name)));
        }
    }
    assert!(open.is_empty(), "everybody can write to {open:?}");
}

#[test]
fn a_container_inherits_nothing_of_whoever_started_the_agent() {
    let by = format!("{} deafened", nodlet_tests::demo_program().display());
    let steps =
        "ls /proc/self/fd then status then env then touch /file then stat /file then print up then sleep";
    let setup = "umask 077; echo x > secret; SECRET=x; export SECRET; exec 9<secret";
    let mut device = careless(setup, &by, steps);
    let log = device.pod("web").logs("app");
    let field = |name: &str| {
        log.lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_else(|| panic!("{log}"))
            .trim()
            .to_owned()
    };
    // 0x1000 is SIGPIPE, which the demo program itself ignores, as Rust programs do.
    assert_eq!((field("SigBlk:"), field("SigIgn:")), ("0".repeat(16), format!("{:016x}", 0x1000)));
    assert!(!log.lines().any(|line| line == "9") && !log.contains("SECRET"), "{log}");
    assert!(log.contains("file 0644 0:0"), "{log}");
    // The agent itself keeps no inherited descriptor open, and reacts to signals.
    let agent = PathBuf::from(format!("/proc/{}", device.agent_pid()));
    assert_eq!(fs::read_link(agent.join("cwd")).expect("it lives"), Path::new("/"));
    for name in names(&agent.join("fd")) {
        let target = fs::read_link(agent.join("fd").join(name)).unwrap_or_default();
        assert_ne!(target, device.path("/secret"));
    }
    assert_eq!(device.stop_agent(), 0);
}

/// All pods share one storage thread, so removing one pod's leftovers must not block the others.
#[test]
fn removing_the_files_of_a_pod_does_not_delay_the_start_of_others() {
    const DIRECTORIES: usize = 300;
    let device = Device::start();
    let full = device.write_pod("full", &working("full", "sleep", "")).wait_ready();
    let (directory, work) = (full.directory(), full.empty_dir("work"));
    for directory in (0..DIRECTORIES).map(|number| work.join(number.to_string())) {
        fs::create_dir(&directory).expect("made");
        for file in 0..400 {
            fs::write(directory.join(file.to_string()), "").expect("written");
        }
    }
    device.remove_manifest("full.yaml");
    let entries = || fs::read_dir(&work).map_or(0, Iterator::count);
    device.wait_for("its removal to begin", || entries() < DIRECTORIES);
    assert!(entries() > 0, "it was removed before anything else was asked for");
    device.run_pod("other", "sleep").wait_ready();
    assert!(directory.exists(), "the other pod waited for the removal");
    device.wait_for("the end of the removal", || !directory.exists());
    full.wait_gone();
}

/// The uid of a file pod depends on the file's contents. If the file is restored while the pod's leftovers
/// are being removed, the pod must start without them, and nothing of the new run may be removed.
#[test]
fn a_pod_that_is_put_back_while_another_is_swept_keeps_what_it_has() {
    let mut device = Device::start();
    // The pod that is swept first has much to remove.
    let pods = [
        ("first", "00000000-0000-4000-8000-000000000001", 60_000),
        ("second", "f0000000-0000-4000-8000-000000000002", 3),
    ];
    let text = |name: &str, uid: &str| {
        let pod = working(name, "write /work/file up then print up then sleep", "");
        manifest::with_metadata(&pod, &format!("uid: {uid}"))
    };
    for (name, uid, files) in pods {
        let pod = device.write_pod(name, &text(name, uid));
        pod.wait_log("app", "up");
        let work = pod.empty_dir("work");
        for number in 0..files {
            fs::write(work.join(format!("left-{number}")), "").expect("written");
        }
    }
    device.cut_power();
    pods.iter().for_each(|(name, ..)| device.remove_manifest(&format!("{name}.yaml")));
    device.start_agent();
    let (name, uid, _) = pods[1];
    let second = device.write_pod(name, &text(name, uid));
    second.wait_log("app", "up");
    device.wait_for("the end of the sweep", || names(&device.path("/var/lib/nodlet/pods")) == [second.uid()]);
    let work = second.empty_dir("work");
    assert_eq!(fs::read_to_string(work.join("file")).expect("it was written"), "up\n");
    assert!(!work.join("left-0").exists(), "it began with what was left before");
    second.wait_ready();
}

#[test]
fn layers_of_runs_that_an_agent_left_when_it_died_go_with_the_next_run() {
    let mut device = Device::start();
    run_web(&device, &working("web", "print up then until /work/go then exit 1", ""));
    let (runs, work) =
        (device.pod("web").directory().join("containers/app"), device.pod("web").empty_dir("work"));
    let next = |device: &Device, number: u32| {
        fs::write(work.join("go"), "").expect("written");
        device.wait_for("the next run", || names(&runs).contains(&number.to_string()));
        let _ = fs::remove_file(work.join("go"));
    };
    next(&device, 1);
    device.wait_for("the layer of the first run to go", || !names(&runs).contains(&"0".to_owned()));
    device.kill_agent();
    fs::create_dir_all(runs.join("0/upper/left")).expect("made");
    device.start_agent();
    next(&device, 2);
    device.wait_for("all earlier layers to go", || names(&runs) == ["2"]);
}

#[test]
fn a_link_whose_log_is_gone_goes_when_the_agent_starts_and_no_other() {
    let mut device = Device::start();
    run_web(&device, &printing("web"));
    device.kill_agent();
    let links = device.path("/var/log/containers");
    let mut expected = names(&links);
    assert_eq!(expected.len(), 1);
    let dead = links.join("old_default_app-1234.log");
    symlink(device.path("/var/log/pods/default_old_uid/app/0.log"), &dead).expect("made");
    symlink("/nowhere/0.log", links.join("foreign.log")).expect("made");
    device.start_agent();
    device.wait_for("the dead link to go", || fs::symlink_metadata(&dead).is_err());
    expected.insert(0, "foreign.log".to_owned());
    assert_eq!(names(&links), expected);
    device.pod("web").wait_ready();
}
