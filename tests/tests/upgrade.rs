//! Another binary: its agent has the running supervisors take it over in place, and no
//! container notices; one that cannot leaves them what they are, and says so.
//! `cargo xtask long upgrade` begins with a binary of an earlier commit, `$NODLET_EARLIER`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use nodlet_tests::{Device, demo_archive, manifest, nodlet_program};

/// Writes a binary where a device can have it installed.
fn program(device: &Device, name: &str, bytes: &[u8]) -> PathBuf {
    let path = device.shared("binaries").1.join(name);
    fs::write(&path, bytes).expect("the root can be written to");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    path
}

/// The binary under test, as another file.
fn newer(device: &Device, name: &str) -> PathBuf {
    let mut bytes = fs::read(nodlet_program()).expect("it is built");
    // Nothing of an ELF file; for people who compare.
    bytes.extend_from_slice(name.as_bytes());
    program(device, name, &bytes)
}

/// The binary under test, but for the word by which it is asked on trial to take over.
fn incompatible(device: &Device) -> PathBuf {
    let mut bytes = fs::read(nodlet_program()).expect("it is built");
    let word = b"--parse";
    let places: Vec<usize> =
        bytes.windows(word.len()).enumerate().filter(|(_, at)| at == word).map(|(place, _)| place).collect();
    assert!(!places.is_empty(), "the binary knows no trial");
    for place in places {
        bytes[place + 2] = b'P';
    }
    program(device, "incompatible", &bytes)
}

/// The supervisors of the pods by uid, with the file that each executes.
fn supervisors(device: &Device) -> BTreeMap<String, (u32, u64)> {
    let processes = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let directory = device.path("/run/nodlet/pods");
    let cgroup = |pid: u32| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mut found = BTreeMap::new();
    for pid in pids.filter(|pid| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "nodlet:super")
    }) {
        let cgroup = cgroup(pid);
        for pod in fs::read_dir(&directory).expect("it is there").flatten() {
            let uid = pod.file_name().to_string_lossy().into_owned();
            if cgroup.contains(&uid)
                && let Ok(file) = fs::metadata(format!("/proc/{pid}/exe"))
            {
                found.insert(uid, (pid, file.ino()));
            }
        }
    }
    found
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).expect("it is there").ino()
}

/// Pods of every kind that an upgrade may disturb, all of them where they stay.
fn settle(device: &Device, shared: &str) {
    let held = |name: &str, steps: &str| {
        manifest::container(
            name,
            &format!("lock /one/{name} then append /one/{name}-starts run then {steps}"),
            "volumeMounts: [{name: one, mountPath: /one}]",
        )
    };
    let volumes = format!("volumes: [{{name: one, hostPath: {{path: {shared}}}}}]");
    device
        .write_manifest("tick.yaml", &manifest::pod_of("tick", &[held("app", "print tick 0.02")], &volumes));
    let web = [
        held("server", "fail-once /one/failed then print up then sleep"),
        held("beside", "print up then sleep"),
    ];
    let spec = format!("shareProcessNamespace: true\n{volumes}");
    device.write_manifest("web.yaml", &manifest::pod_of("web", &web, &spec));
    let spec = format!("restartPolicy: Never\n{volumes}");
    let job = held("job", "print begun then wait /one/go then print done then exit 7");
    device.write_manifest("job.yaml", &manifest::pod_of("job", &[job], &spec));
    device.pod("tick").wait_log("app", "tick 3\n");
    device.wait_for("web to have failed once", || device.pod("web").container("server").restart_count() == 1);
    device.pod("web").wait_ready();
    device.pod("job").wait_ready();
    device.pod("job").wait_log("job", "begun");
}

/// When each first process was started, and how often it was restarted.
fn lives(device: &Device) -> Vec<(String, i64)> {
    [("tick", "app"), ("web", "server"), ("web", "beside"), ("job", "job")]
        .map(|(pod, container)| {
            let pod = device.pod(pod);
            let started = pod.container(container).of_state("startedAt").to_string();
            (started + &pod.container(container).id(), pod.container(container).restart_count())
        })
        .to_vec()
}

/// The first process of every container, by what the kernel says of it.
fn processes(device: &Device) -> Vec<(u32, String)> {
    let mut all: Vec<(u32, String)> = device
        .container_processes()
        .into_iter()
        .map(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let born = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19));
            (pid, born.unwrap_or_default().to_owned())
        })
        .collect();
    all.sort();
    all
}

fn open_session(device: &Device) -> Child {
    let before = device.container_processes().len();
    let session = device
        .command(&["exec", "web", "-c", "beside", "--", "/bin/demo", "print", "in", "then", "sleep"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("nodlet can be run");
    device.wait_for("the session's process", || device.container_processes().len() > before);
    session
}

/// No tick is missing, and none is there twice.
fn check_ticks(device: &Device) {
    let text = device.nodlet(["logs", "tick"]).ok();
    for (number, line) in text.lines().enumerate() {
        assert_eq!(line, format!("tick {number}"));
    }
}

/// Everything works that did before: exits are told, processes executed, pods deleted.
fn check_use(device: &Device, here: &Path) {
    check_ticks(device);
    assert_eq!(device.pod("web").exec("beside", ["/bin/demo", "print", "hello"]).ok(), "hello\n");
    fs::write(here.join("go"), "").expect("it can be written");
    device.pod("job").wait_phase("Failed");
    let app = device.pod("job").container("job");
    assert_eq!((app.exit_code(), app.restart_count()), (Some(7), 0));
    assert_eq!(device.pod("job").logs("job"), "begun\ndone\n");
    for name in ["app", "server", "beside", "job"] {
        let starts = fs::read_to_string(here.join(format!("{name}-starts"))).expect("it ran");
        assert_eq!(starts.lines().count(), if name == "server" { 2 } else { 1 }, "{name}");
        assert!(!here.join(format!("{name}.twice")).exists(), "two of {name} at once");
    }
    device.remove_manifest("web.yaml");
    device.pod("web").wait_gone();
    check_ticks(device);
}

/// From one binary to another while a session is open: what the next agent finds.
fn upgrade(device: &mut Device, to: &Path) {
    let (lives_before, were) = (lives(device), processes(device));
    let mut session = open_session(device);
    let pids =
        |device: &Device| -> Vec<u32> { supervisors(device).into_values().map(|(pid, _)| pid).collect() };
    let supervisors_before = pids(device);
    assert!(!supervisors_before.is_empty());
    let ticks = device.pod("tick").logs("app").lines().count();

    device.stop_agent();
    device.install(to);
    device.start_agent();

    for pod in ["tick", "web"] {
        device.pod(pod).wait_ready();
    }
    assert!(!session.wait().expect("it ends").success(), "its connection went to the agent before");
    device.wait_for("the session's process to end", || processes(device) == were);
    assert_eq!(lives(device), lives_before);
    assert_eq!(pids(device), supervisors_before);
    device.wait_for("ticks to go on", || device.pod("tick").logs("app").lines().count() > ticks + 10);
    check_ticks(device);
}

fn runs_all_on(device: &Device, program: &Path) -> bool {
    supervisors(device).into_values().all(|(_, executes)| executes == inode(program))
}

#[test]
fn a_newer_binary_takes_over_running_supervisors_and_no_container_notices() {
    let mut device = Device::new();
    let (first, second) = (newer(&device, "first"), newer(&device, "second"));
    device.install(&first);
    device.start_agent();
    device.load_image(demo_archive());
    let (shared, here) = device.shared("one");
    settle(&device, &shared);
    assert!(runs_all_on(&device, &first));
    upgrade(&mut device, &second);
    assert!(runs_all_on(&device, &second), "{:?}", supervisors(&device));
    check_use(&device, &here);
}

#[test]
fn a_binary_that_cannot_take_over_leaves_supervisors_as_they_are_and_says_so() {
    let mut device = Device::new();
    let (first, second) = (newer(&device, "first"), newer(&device, "second"));
    device.install(&first);
    device.start_agent();
    device.load_image(demo_archive());
    let (shared, here) = device.shared("one");
    settle(&device, &shared);
    let incompatible = incompatible(&device);
    upgrade(&mut device, &incompatible);
    assert!(runs_all_on(&device, &first), "{:?}", supervisors(&device));
    let said = "failed to replace the supervisor: the new binary cannot take over from this one; it goes on as it was";
    assert_eq!(device.agent_log().matches(said).count(), 3, "{}", device.agent_log());
    // One that can takes over from the first.
    upgrade(&mut device, &second);
    assert!(runs_all_on(&device, &second), "{:?}", supervisors(&device));
    check_use(&device, &here);
}

#[test]
#[ignore = "needs a binary of an earlier commit: cargo xtask long upgrade"]
fn this_binary_takes_over_what_one_of_an_earlier_commit_runs() {
    let earlier =
        std::env::var_os("NODLET_EARLIER").map(PathBuf::from).expect("cargo xtask long upgrade says it");
    let mut device = Device::new();
    device.install(&earlier);
    device.start_agent();
    device.load_image(demo_archive());
    let (shared, here) = device.shared("one");
    settle(&device, &shared);
    assert!(runs_all_on(&device, &earlier));
    upgrade(&mut device, &nodlet_program());
    assert!(runs_all_on(&device, &nodlet_program()), "{:?}", supervisors(&device));
    check_use(&device, &here);
}
