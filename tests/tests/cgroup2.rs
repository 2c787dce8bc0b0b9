//! Attacks on cgroup v2: what a container can do with its own cgroup, with devices and with cgroups of
//! others, by its privileges, and how that affects the agent. `docs/security.md` refers to these tests.
//!
//! `cargo xtask guest` runs these tests, in a virtual machine: see `src/guest.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nodlet_tests::{Device, manifest};

/// The timeout of operations that take a guest's emulated processor some time.
const LONG: Duration = Duration::from_secs(300);

/// A pod that runs beside the attacker and must not be affected.
struct Witness {
    device: Device,
    born: String,
    cgroup: PathBuf,
}

impl Witness {
    fn start() -> Witness {
        let device = Device::start();
        let probe = "livenessProbe: {exec: {command: [/bin/demo, exit, \"0\"]}, periodSeconds: 2, timeoutSeconds: 60}\n\
                     resources: {requests: {cpu: 10m}, limits: {memory: 64Mi, cpu: \"1\"}}";
        let container = manifest::container("app", "print up then sleep", probe);
        let born = device.run_pod_of("witness", &[container], "").wait_ready().born("app");
        let cgroup = leaf(&device, "witness");
        Witness { device, born, cgroup }
    }

    /// Requires that the pod never stopped and has its original limits, and that the agent runs another pod.
    #[track_caller]
    fn is_undisturbed(&self) {
        let device = &self.device;
        device.run_pod("after", "sleep");
        device.wait_within(LONG, "one more pod to run", || device.pod("after").is_ready());
        device.remove_pod("after");
        assert_eq!(device.pod("witness").born("app"), self.born, "the witness was started again");
        assert_eq!(device.pod("witness").container("app").restart_count(), 0);
        assert_eq!(read(&self.cgroup, "memory.max"), "67108864");
        assert_eq!(read(&self.cgroup, "cpu.max"), "100000 100000");
        assert_eq!(read(&self.cgroup, "cgroup.freeze"), "0");
    }
}

/// A pod of one container that is never restarted, with more lines in its security context.
fn attacker(steps: &str, security: &str) -> String {
    let more = format!(
        "securityContext: {{{security}}}\nresources: {{requests: {{cpu: 10m}}, limits: {{memory: 256Mi, cpu: \"1\"}}}}"
    );
    let container = manifest::container("app", steps, &more);
    manifest::pod_of("attacker", &[container], "restartPolicy: Never\nterminationGracePeriodSeconds: 1")
}

/// The cgroup of a pod's only container.
fn leaf(device: &Device, pod: &str) -> PathBuf {
    let uid = format!("pod{}", device.pod(pod).uid());
    let groups = device.cgroups();
    let found = groups.iter().find(|group| group.ends_with(format!("{uid}/app-0")));
    found.unwrap_or_else(|| panic!("{pod} has no cgroup among {groups:?}")).clone()
}

fn read(cgroup: &Path, file: &str) -> String {
    fs::read_to_string(cgroup.join(file)).expect("the cgroup is there").trim().to_owned()
}

/// Runs the attacker until it ends. Returns its output.
fn run(device: &Device, steps: &str, security: &str) -> String {
    device.write_manifest("attacker.yaml", &attacker(steps, security));
    device.wait_within(LONG, "the attacker to end", || {
        ["Succeeded", "Failed"].contains(&device.pod("attacker").phase().as_str())
    });
    let log = device.pod("attacker").logs("app");
    device.remove_pod("attacker");
    log
}

/// The devices that every container has, for any access.
fn allowed() -> BTreeSet<String> {
    const MINORS: [u32; 17] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 63, 130, 200, 255, 256, 1_048_575];
    let terminals = MINORS.iter().map(|minor| format!("136:{minor}"));
    let fixed = ["1:3", "1:5", "1:7", "1:8", "1:9", "5:0", "5:2", "10:200"].map(str::to_owned);
    fixed.into_iter().chain(terminals).map(|device| format!("c {device} 0,1,2,3")).collect()
}

#[test]
#[ignore = "needs cgroup v2 with all controllers: cargo xtask guest"]
fn the_device_filter_allows_only_the_devices_of_every_container() {
    let device = Device::start();
    let devices = |text: &str| -> BTreeSet<String> {
        assert!(text.ends_with("no other\n"), "{text}");
        text.lines().filter(|line| *line != "no other").map(str::to_owned).collect()
    };
    let log = run(&device, "devices 260", "");
    assert_eq!(devices(&log), allowed());
    // More capabilities than needed, but not privileged: the filter does not depend on capabilities.
    let rights = "capabilities: {add: [MKNOD, SYS_ADMIN, SYS_RAWIO, DAC_OVERRIDE]}";
    let steps = "devices 260 then mknod-block /disk 7 5 then child mount erofs /disk /mnt";
    let log = run(&device, steps, rights);
    let (list, mount) = log.split_once("no other\n").expect("it came to its end");
    assert_eq!(devices(&format!("{list}no other\n")), allowed());
    assert!(mount.contains("Operation not permitted"), "{mount}");

    // Without the filter, a privileged container opens others.
    let log = run(&device, "mknod /kmsg 1 11 then open /kmsg then print opened", "privileged: true");
    assert!(log.contains("opened"), "{log}");

    device.write_pod("attacker", &attacker("print up then sleep", rights)).wait_log("app", "up");
    let exec = device.pod("attacker").demo("app", "devices 12").ok();
    assert_eq!(devices(&exec), allowed().into_iter().filter(|one| !one.starts_with("c 136")).collect());
}

#[test]
#[ignore = "needs cgroup v2 with all controllers: cargo xtask guest"]
fn a_container_sees_its_own_cgroup_alone_and_writes_nothing_there() {
    let witness = Witness::start();
    let device = &witness.device;
    let steps = "writable /sys/fs/cgroup then cat /proc/self/cgroup then cat /proc/1/cgroup then mounts \
                 then ls /sys/fs/cgroup/.. then child remount /sys/fs/cgroup then child mount cgroup2 none /mnt then print up then sleep";
    device.write_pod("attacker", &attacker(steps, "capabilities: {add: [DAC_OVERRIDE, SYS_RESOURCE, KILL]}"));
    device.pod("attacker").wait_log("app", "up");
    let log = device.pod("attacker").logs("app");
    let (files, rest) = log.split_once(" no other\n").expect("it looked at all");
    assert!(files.starts_with("of ") && !files.contains('\n'), "{log}");
    assert!(files[3..].parse::<u32>().expect("a number") > 20, "it has files: {files}");
    assert!(rest.starts_with("0::/\n0::/\n"), "{rest}");
    let mount = rest.lines().find(|line| line.contains(" - cgroup2 ")).expect("it is mounted");
    let fields: Vec<&str> = mount.split(' ').collect();
    assert_eq!((fields[3], fields[4]), ("/", "/sys/fs/cgroup"), "{mount}");
    assert!(fields[5].contains("ro"), "{mount}");
    assert!(!rest.contains("kubepods"), "{rest}");
    assert_eq!(log.matches("Operation not permitted").count(), 2, "neither remount nor mount: {log}");
    let exec = device.pod("attacker").demo("app", "cat /proc/self/cgroup").ok();
    assert!(exec.starts_with("0::/exec-"), "{exec}");
    let exec = device.pod("attacker").demo("app", "writable /sys/fs/cgroup").ok();
    assert!(exec.starts_with("of ") && exec.ends_with(" no other\n"), "{exec}");
    witness.is_undisturbed();
}

/// `docs/security.md` on CAP_SYS_ADMIN and `privileged`, with cgroup v2 mounted with `nsdelegate`: the
/// container can create cgroups below its own, but change neither its own nor any other.
#[test]
#[ignore = "needs cgroup v2 with all controllers: cargo xtask guest"]
fn a_privileged_container_can_change_only_the_cgroups_that_it_created() {
    const NOT_ITS_OWN: [&str; 7] = [
        "cgroup.freeze 1",
        "cgroup.kill 1",
        "cgroup.max.descendants 0",
        "cgroup.type threaded",
        "memory.max max",
        "pids.max max",
        "cpu.max max",
    ];
    let witness = Witness::start();
    let device = &witness.device;
    for (security, before) in
        [("capabilities: {add: [SYS_ADMIN]}", "remount /sys/fs/cgroup then "), ("privileged: true", "")]
    {
        let tries: String =
            NOT_ITS_OWN.iter().map(|what| format!("child write /sys/fs/cgroup/{what} then ")).collect();
        let steps = format!(
            "{before}ls /sys/fs/cgroup then mount cgroup2 none /mnt then ls /mnt then {tries}\
             mkdir /sys/fs/cgroup/own then write /sys/fs/cgroup/own/cgroup.procs 0 then cat /proc/self/cgroup \
             then write /mnt/cgroup.procs 0 then cat /proc/self/cgroup then print at-the-end \
             then write /mnt/own/cgroup.freeze 1 then write /mnt/own/cgroup.procs 0 then sleep"
        );
        device.write_pod("attacker", &attacker(&steps, security)).wait_log("app", "at-the-end");
        let log = device.pod("attacker").logs("app");
        assert_eq!(log.matches("Operation not permitted").count(), NOT_ITS_OWN.len(), "{security}: {log}");
        assert!(log.contains("0::/own\n0::/\n"), "{security}: {log}");
        for other in ["kubepods", "supervisors", "nodlet-", "app-0"] {
            assert!(!log.contains(other), "{security} sees {other}: {log}");
        }
        let own = leaf(device, "attacker");
        let pod = own.parent().expect("the pod's").to_owned();
        device.wait_for("it to be frozen", || read(&own.join("own"), "cgroup.events").contains("frozen 1"));
        assert_eq!(read(&own, "memory.max"), "268435456");
        assert_eq!(read(&own, "cpu.max"), "100000 100000");
        // Even a frozen pod can be removed.
        device.remove_pod("attacker");
        assert!(!pod.exists(), "{}", pod.display());
        witness.is_undisturbed();
    }
}

/// `docs/security.md` on CAP_SYS_ADMIN: the kernel asks the device filter when a block device is opened, and
/// a file system that is already mounted is shared without opening its device again.
#[test]
#[ignore = "needs a mounted loop device: cargo xtask guest"]
fn a_container_that_may_mount_reaches_mounted_file_systems_of_the_board() {
    let device = Device::start();
    let steps = "mknod-block /disk 7 0 then mount erofs /disk /mnt ro then ls /mnt";
    let log = run(&device, steps, "");
    assert!(log.contains("Operation not permitted"), "no mount without CAP_SYS_ADMIN: {log}");
    let log = run(&device, steps, "capabilities: {add: [SYS_ADMIN]}");
    assert!(!log.is_empty() && !log.contains("demo mount"), "{log}");
}

#[test]
#[ignore = "needs cgroup v2 with all controllers: cargo xtask guest"]
fn nothing_that_is_executed_stays_outside_of_the_cgroup_of_its_container() {
    let witness = Witness::start();
    let device = &witness.device;
    device.write_pod("attacker", &attacker("print up then daemon sleep then sleep", ""));
    device.pod("attacker").wait_log("app", "up");
    let own = leaf(device, "attacker");
    let before: BTreeSet<u32> = all_processes();
    for _ in 0..5 {
        device.pod("attacker").demo("app", "daemon sleep then leave sleep").ok();
    }
    let mut left = 0;
    for pid in all_processes().difference(&before) {
        let Ok(command) = fs::read(format!("/proc/{pid}/cmdline")) else { continue };
        if command.starts_with(b"/bin/demo") || command.starts_with(b"/proc/self/exe") {
            let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            let inside = Path::new("/sys/fs/cgroup").join(cgroup.trim().trim_start_matches("0::/"));
            assert!(
                inside.starts_with(&own) || cgroup.contains(&device.pod("witness").uid()),
                "{pid}: {cgroup}"
            );
            left += 1;
        }
    }
    assert!(left >= 10, "{left} were left");
    device.remove_pod("attacker");
    assert!(!own.exists());
    witness.is_undisturbed();
}

fn all_processes() -> BTreeSet<u32> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// A privileged container may give its cgroup any tree below it. nodlet's handling of it must neither fail
/// nor block others.
#[test]
#[ignore = "needs cgroup v2 with all controllers: cargo xtask guest"]
fn a_pod_is_removed_whatever_cgroups_its_privileged_container_created() {
    let witness = Witness::start();
    let device = &witness.device;
    for (what, steps) in [
        ("threaded", "mkdir /sys/fs/cgroup/t then child write /sys/fs/cgroup/t/cgroup.type threaded"),
        (
            "frozen",
            "mkdir /sys/fs/cgroup/f then leave write /sys/fs/cgroup/f/cgroup.procs 0 then sleep 1 \
                    then write /sys/fs/cgroup/f/cgroup.freeze 1",
        ),
        ("wide", "wide-cgroups /sys/fs/cgroup 6000"),
        ("deep", "leave deep-cgroups /sys/fs/cgroup 30 then sleep 1"),
        (
            "both",
            "mkdir /sys/fs/cgroup/a then mkdir /sys/fs/cgroup/a/b then wide-cgroups /sys/fs/cgroup/a/b 5000 \
                  then wide-cgroups /sys/fs/cgroup/a 500 then leave deep-cgroups /sys/fs/cgroup/a 40 then sleep 1",
        ),
    ] {
        let steps = format!("{steps} then print made-all then sleep");
        device.write_manifest("attacker.yaml", &attacker(&steps, "privileged: true"));
        device.wait_within(LONG, "the tree", || device.pod("attacker").logs("app").contains("made-all"));
        println!("{what}: {}", device.pod("attacker").logs("app"));
        let own = leaf(device, "attacker");
        let pod = own.parent().expect("the pod's").to_owned();
        device.remove_manifest("attacker.yaml");
        device.wait_within(LONG, "the pod to be gone", || device.pod("attacker").object().is_none());
        assert!(!pod.exists(), "{what}: {} stays\n{}", pod.display(), device.agent_log());
        assert!(!device.agent_log().contains("failed to remove"), "{what}: {}", device.agent_log());
        witness.is_undisturbed();
    }
}

/// A privileged container obstructs its own probes: each must release the slot that it takes.
#[test]
#[ignore = "needs cgroup v2 with all controllers: cargo xtask guest"]
fn a_container_that_spoils_the_cgroups_of_its_probes_takes_no_place_from_others() {
    let witness = Witness::start();
    let device = &witness.device;
    let probe = "livenessProbe: {exec: {command: [/bin/demo, sleep]}, periodSeconds: 1, timeoutSeconds: 1, failureThreshold: 1000}\n\
                 securityContext: {privileged: true}";
    // The container freezes, disables and occupies the cgroups in which probes are executed.
    let mut steps = String::new();
    for id in 0..40 {
        steps += &format!("mkdir /sys/fs/cgroup/exec-{id} then ");
        steps += &match id % 2 {
            0 => format!("write /sys/fs/cgroup/exec-{id}/cgroup.type threaded then "),
            _ => format!("write /sys/fs/cgroup/exec-{id}/cgroup.freeze 1 then "),
        };
    }
    let containers: Vec<String> = (0..4)
        .map(|number| {
            manifest::container(&format!("c{number}"), &format!("{steps}print up then sleep"), probe)
        })
        .collect();
    device.run_pod_of("attacker", &containers, "terminationGracePeriodSeconds: 1");
    let failing =
        || device.pod("attacker").events().iter().filter(|event| event.contains("Unhealthy")).count();
    device.wait_within(LONG, "probes to fail", || failing() > 0);
    witness.is_undisturbed();
    device.remove_pod("attacker");
    witness.is_undisturbed();
}

/// The cgroup of a login session, in which this process is until it is dropped.
struct Session(PathBuf);

impl Session {
    /// Creates the cgroup, delegates it as systemd documents, and enters it.
    fn enter() -> Session {
        let session = Session(PathBuf::from("/sys/fs/cgroup/session"));
        fs::create_dir_all(session.0.join("scope")).expect("it can be made");
        let path = std::ffi::CString::new(session.0.to_str().expect("text")).expect("no NUL");
        // SAFETY: both strings end in NUL, and the value is one byte long.
        let set =
            unsafe { libc::setxattr(path.as_ptr(), c"user.delegate".as_ptr(), c"1".as_ptr().cast(), 1, 0) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
        fs::write(session.0.join("scope/cgroup.procs"), "0").expect("we can go there");
        session
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = fs::write("/sys/fs/cgroup/cgroup.procs", "0");
        let _ = fs::remove_dir(self.0.join("scope")).and_then(|()| fs::remove_dir(&self.0));
    }
}

/// Any user can mark a cgroup of their own as delegated. A user's session belongs to that user, and an agent
/// started by `sudo` is in one. Pods must not be placed where an ordinary user has control.
#[test]
#[ignore = "needs cgroup v2 with all controllers: cargo xtask guest"]
fn a_cgroup_owned_by_another_user_does_not_count_as_delegated() {
    let session = Session::enter();
    let mut device = Device::new();
    let mut place_of = |owner: u32| {
        chown(&session.0, Some(owner), Some(owner)).expect("it can be given");
        device.start_agent();
        let groups = device.cgroups();
        device.nodlet(["down"]).ok();
        device.agent_ended();
        assert!(!groups.is_empty());
        groups.into_iter().filter(|group| group.starts_with(&session.0)).count()
    };
    assert_eq!(place_of(1000), 0, "what another user delegates is not ours to use");
    assert!(place_of(0) > 0, "what root delegates is");
}
