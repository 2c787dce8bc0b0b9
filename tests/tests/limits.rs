//! Limits of pods, with cgroup v2 and all controllers: resource limits, lack of memory, devices, and the
//! order in which the kernel kills.
//!
//! `cargo xtask guest` runs these tests, in a virtual machine: see `src/guest.rs`.

use std::fs;
use std::path::PathBuf;

use nodlet_tests::{Device, HalfLoad, manifest};

/// A pod of one container with these limits, which is never restarted.
fn limited(name: &str, steps: &str, limits: &str) -> String {
    let container = manifest::container("app", steps, &format!("resources: {{limits: {{{limits}}}}}"));
    manifest::pod_of(name, &[container], "restartPolicy: Never")
}

/// The cgroup of the only running container on the device.
fn leaf(device: &Device) -> PathBuf {
    device.wait_for("a process of a container", || !device.container_processes().is_empty());
    let pid = device.container_processes()[0];
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it runs");
    let path = text.lines().find_map(|line| line.strip_prefix("0::/")).expect("it is in a v2 cgroup");
    PathBuf::from("/sys/fs/cgroup").join(path)
}

/// A number in one of the cgroup's files, given as `FILE` or `FILE:KEY`.
fn number(leaf: &std::path::Path, what: &str) -> u64 {
    let (file, key) = what.split_once(':').unwrap_or((what, ""));
    let text = fs::read_to_string(leaf.join(file)).expect("the controller is on");
    let value = text.lines().find_map(|line| line.strip_prefix(key)).expect("the file has it");
    value.trim().parse().expect("it is a number")
}

/// All files of the guest are in memory, where a load would have no cgroup; an overlay counts as a disk.
#[test]
#[ignore = "needs cgroup v2 with all controllers: cargo xtask guest"]
fn the_process_that_reads_an_archive_has_the_memory_of_its_cgroup_and_no_more() {
    let device = Device::new();
    let over = device.mount_tmpfs("/over", "");
    for name in ["/lower", "/over/upper", "/over/work", "/var/lib/nodlet"] {
        fs::create_dir_all(device.path(name)).expect("it can be made");
    }
    let store = device.path("/var/lib/nodlet");
    let root = device.root().display();
    let options = format!("lowerdir={root}/lower,upperdir={root}/over/upper,workdir={root}/over/work");
    let (overlay, none) = (Some("overlay"), nix::mount::MsFlags::empty());
    nix::mount::mount(overlay, &store, overlay, none, Some(options.as_str())).expect("overlayfs is there");

    let half = HalfLoad::start(&device);
    let cgroup = half.of_reader("cgroup");
    let cgroup = cgroup.trim().strip_prefix("0::/").expect("v2 has all controllers");
    assert!(cgroup.starts_with("nodlet-") && cgroup.ends_with("/unpacker"), "{cgroup}");
    let cgroup = PathBuf::from("/sys/fs/cgroup").join(cgroup);
    assert_eq!(number(&cgroup, "memory.max"), 160 << 20);
    assert!(number(&cgroup, "memory.current") > 1 << 20, "half of the layer counts");
    // A limit below the current usage: the kernel kills the process at once.
    fs::write(cgroup.join("memory.max"), "1M").expect("it can be written");
    let error = half.error();
    let expected = "the process that reads it was killed by SIGKILL; it can use 160 MiB of memory";
    assert!(error.contains(expected), "{error}");
    assert!(!cgroup.exists(), "it goes with the load");
    assert_eq!(fs::read_dir(store.join("images/staging")).expect("it is there").count(), 0);
    nix::mount::umount(&store).expect("nobody uses it");
    drop(over);
}

#[test]
#[ignore = "needs cgroup v2 with all controllers: cargo xtask guest"]
fn requests_and_limits_stand_in_the_files_of_the_kernel() {
    let device = Device::start();
    let resources = "resources: {requests: {cpu: 500m}, limits: {cpu: 1500m, memory: 64Mi}}";
    let container = manifest::container("app", "print up then sleep", resources);
    device.run_pod_of("web", &[container], "").wait_ready();
    let leaf = leaf(&device);
    let read = |file: &str| fs::read_to_string(leaf.join(file)).expect("the controller is on");
    for (file, expected) in [
        ("cpu.max", "150000 100000"),
        ("cpu.weight", "20"),
        ("memory.max", "67108864"),
        ("memory.oom.group", "1"),
        // The pod's.
        ("../cpu.max", "150000 100000"),
        ("../memory.max", "67108864"),
    ] {
        assert_eq!(read(file).trim(), expected, "{file}");
    }
}

#[test]
#[ignore = "needs cgroup v2 with all controllers: cargo xtask guest"]
fn a_container_has_no_more_cpu_than_its_limit() {
    let device = Device::start();
    device.write_pod("spin", &limited("spin", "spin", "cpu: 100m")).wait_phase("Running");
    let leaf = leaf(&device);
    device.wait_for("the container to be held back", || number(&leaf, "cpu.stat:nr_throttled ") >= 10);
    let (used, periods) = (number(&leaf, "cpu.stat:usage_usec "), number(&leaf, "cpu.stat:nr_periods "));
    // A tenth of each period of 100 ms; the kernel assigns time in slices of 5 ms.
    assert!(used < (periods + 2) * 15_000, "{used} us in {periods} periods");
    assert!(number(&leaf, "cpu.stat:throttled_usec ") > used, "most of the time it must wait");
}

#[test]
#[ignore = "needs cgroup v2 with all controllers: cargo xtask guest"]
fn a_process_that_takes_too_much_memory_takes_its_container_with_it() {
    let device = Device::start();
    for (name, steps) in [
        ("hog", "hog 100 then print survived then sleep"),
        ("child", "child hog 100 then print survived then sleep"),
    ] {
        let pod = device.write_pod(name, &limited(name, steps, "memory: 32Mi")).wait_phase("Failed");
        let app = pod.container("app");
        assert_eq!((app.exit_code(), app.reason().as_str()), (Some(137), "OOMKilled"), "{name}");
        assert!(!pod.logs("app").contains("survived"), "{name}");
    }
    let container = manifest::container("app", "print up then sleep", "resources: {limits: {memory: 32Mi}}");
    let web = device.run_pod_of("web", &[container], "").wait_ready();
    let ran = web.demo("app", "hog 100");
    assert_eq!(ran.code, 137, "{ran:?}");
    device.wait_for("the container to be started again", || {
        let app = web.container("app");
        app.restart_count() == 1 && app.is_running()
    });
    let app = web.container("app");
    assert_eq!((app.of_last("exitCode"), app.of_last("reason")), (137.into(), "OOMKilled".into()));
}

#[test]
#[ignore = "needs cgroup v2 with all controllers: cargo xtask guest"]
fn an_oom_killed_container_does_not_affect_others_of_its_pod() {
    let device = Device::start();
    let hog = manifest::container("hog", "hog 100 then sleep", "resources: {limits: {memory: 32Mi}}");
    let calm = manifest::container("calm", "print up then sleep", "resources: {limits: {memory: 32Mi}}");
    let two = device.run_pod_of("two", &[hog, calm], "restartPolicy: Never").wait_reason("hog", "OOMKilled");
    // Containers start one after the other: the hog may end before `calm` has started.
    assert_eq!(two.wait_running("calm").container("calm").restart_count(), 0);
}

#[test]
#[ignore = "needs cgroup v2 with all controllers: cargo xtask guest"]
fn a_pod_that_forks_without_end_has_as_many_processes_as_it_may() {
    let device = Device::start_with(["--pod-pids-limit", "20"]);
    device.write_pod("forks", &limited("forks", "forks 100 then sleep", "memory: 64Mi")).wait_phase("Failed");
    let log = device.pod("forks").logs("app");
    assert!(log.contains("Resource temporarily unavailable"), "{log}");
    assert!(log.lines().filter(|line| line.starts_with("child ")).count() < 20, "{log}");
}

#[test]
#[ignore = "needs cgroup v2 with all controllers: cargo xtask guest"]
fn a_pod_that_goes_takes_every_process_of_its_cgroup_with_it() {
    let device = Device::start();
    let spec = "terminationGracePeriodSeconds: 1";
    device.run_pod_with("forks", "forks 5 then print up then sleep", spec).wait_log("app", "up");
    assert_eq!(device.container_processes().len(), 6);
    device.remove_pod("forks");
    assert_eq!(device.container_processes(), Vec::<u32>::new());
}

/// An init system in a privileged container does the same; its own cgroup then cannot have processes any
/// more.
#[test]
#[ignore = "needs cgroup v2 with all controllers: cargo xtask guest"]
fn processes_left_by_execs_take_no_slot_in_a_container_with_child_cgroups() {
    let device = Device::start();
    let steps = "print up then sleep";
    device.write_pod("init", &limited("init", steps, "memory: 64Mi")).wait_log("app", "up");
    let leaf = leaf(&device);
    fs::create_dir(leaf.join("init.scope")).expect("it can be made");
    let first = device.container_processes()[0].to_string();
    fs::write(leaf.join("init.scope/cgroup.procs"), first).expect("it can be moved");
    fs::write(leaf.join("cgroup.subtree_control"), "+memory").expect("it has no process");
    let exec = || device.pod("init").demo("app", "leave sleep").ok();
    exec();
    let groups = || {
        let entries = fs::read_dir(&leaf).expect("it is there").flatten();
        let groups = entries.filter(|entry| entry.path().is_dir());
        let mut names: Vec<_> = groups.filter_map(|group| group.file_name().into_string().ok()).collect();
        names.sort();
        names
    };
    device.wait_for("the place of the process to be free", || groups() == ["init.scope", "left-behind"]);
    exec();
    let left = || fs::read_to_string(leaf.join("left-behind/cgroup.procs")).expect("it is there");
    device.wait_for("both that were left", || left().lines().count() == 2);
    device.remove_pod("init");
    assert_eq!(device.container_processes(), Vec::<u32>::new());
    assert!(!leaf.exists());
}

/// The kubelet's OOM scores. Those below zero need CAP_SYS_RESOURCE, which root has in the guest.
#[test]
#[ignore = "needs CAP_SYS_RESOURCE: cargo xtask guest"]
fn the_kernel_kills_best_effort_first_and_nodlet_last() {
    let device = Device::start();
    let score = |pid: u32| {
        let path = format!("/proc/{pid}/oom_score_adj");
        fs::read_to_string(path).expect("it runs").trim().to_owned()
    };
    let low = device.run_pod_with("low", "sleep", "shareProcessNamespace: true");
    let high = device.write_pod("high", &limited("high", "sleep", "cpu: 1, memory: 64Mi"));
    let needed = device.run_pod_with("needed", "sleep", "priorityClassName: system-node-critical");
    for (pod, expected) in [(low, "1000\n"), (high, "-997\n"), (needed, "-997\n")] {
        let own = pod.wait_ready().demo("app", "cat /proc/self/oom_score_adj").ok();
        assert_eq!(own, expected);
    }
    let mut scores: Vec<String> = device.container_processes().into_iter().map(score).collect();
    scores.sort();
    assert_eq!(scores, ["-997", "-997", "-998", "1000"], "high, needed, pause, low");
    for pid in device.own_processes() {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).expect("it runs");
        let expected = if name.trim() == "pause" { "-998" } else { "-999" };
        assert_eq!(score(pid), expected, "{name}");
    }
}

/// Shared memory stays after its container was killed for it, and counts towards no container's limit.
#[test]
#[ignore = "needs cgroup v2 with all controllers: cargo xtask guest"]
fn shared_memory_of_a_pod_without_limits_leaves_the_rest_of_the_machine_alone() {
    const PODS_MIB: u64 = 96;
    let meminfo = fs::read_to_string("/proc/meminfo").expect("there is one");
    let kib = meminfo.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("MemTotal");
    let reserved = format!("--system-reserved=memory={}Ki", kib - PODS_MIB * 1024);
    let device = Device::start_with([&reserved]);
    device.run_pod("other", "print up then sleep").wait_ready();
    let shares = device.run_pod("shares", &format!("shared-memory {} then sleep", 4 * PODS_MIB));
    device.wait_for("the container to be killed for it", || {
        let app = shares.container("app");
        app.of_last("reason") == "OOMKilled" || app.reason() == "CrashLoopBackOff"
    });
    let kubepods =
        leaf(&device).ancestors().find(|path| path.ends_with("kubepods")).expect("it is below").to_owned();
    assert_eq!(number(&kubepods, "memory.max"), PODS_MIB << 20);
    assert!(number(&kubepods, "memory.peak") <= PODS_MIB << 20);
    assert!(number(&kubepods, "memory.events:oom_kill ") > 0);
    // The shared memory is freed with the pod.
    device.remove_pod("shares");
    device.wait_for("the memory to be free", || number(&kubepods, "memory.current") < PODS_MIB << 18);
    device.pod("other").wait_ready();
}

/// Huge pages of the machine, which are given back at the end.
struct Reserved {
    file: &'static str,
    before: String,
}

impl Reserved {
    fn of_2_mib(count: u32) -> Reserved {
        let file = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        let before = fs::read_to_string(file).expect("the kernel has huge pages");
        fs::write(file, count.to_string()).expect("they can be reserved");
        let reserved = fs::read_to_string(file).expect("it was written");
        assert_eq!(reserved.trim(), count.to_string(), "the memory is too fragmented");
        Reserved { file, before }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let _ = fs::write(self.file, &self.before);
    }
}

/// The limits of a controller that this machine may have in either version.
fn huge_limit(device: &Device, pod: &str, run: &str) -> String {
    let end = format!("pod{}{run}", device.pod(pod).uid());
    let groups = device.cgroups();
    let texts = groups.iter().filter(|group| group.ends_with(&end)).flat_map(|group| {
        ["hugetlb.2MB.max", "hugetlb.2MB.limit_in_bytes"]
            .map(|file| fs::read_to_string(group.join(file)).ok())
    });
    texts.flatten().next().unwrap_or_else(|| panic!("no limit of {end} in {groups:?}")).trim().to_owned()
}

#[test]
#[ignore = "reserves huge pages of the machine: cargo xtask guest"]
fn huge_pages_are_limited_for_each_container_and_volumes_are_made_of_them() {
    let _pages = Reserved::of_2_mib(8);
    let device = Device::start();
    let node = device.get("/api/v1/nodes").expect("it answers").to_string();
    assert!(node.contains(r#""hugepages-2Mi":"16384Ki""#), "{node}");
    let app = manifest::container(
        "app",
        "mounts then sleep",
        "resources: {limits: {memory: 32Mi, hugepages-2Mi: 8Mi}}\nvolumeMounts: [{name: v, mountPath: /huge}]",
    );
    let other = manifest::container("other", "sleep", "resources: {limits: {memory: 32Mi}}");
    let volume = "volumes: [{name: v, emptyDir: {medium: HugePages, sizeLimit: 4Mi}}]";
    device.run_pod_of("huge", &[app, other], volume).wait_ready();
    device.pod("huge").wait_log("app", " /huge rw,nosuid,nodev,relatime - hugetlbfs ");
    device.pod("huge").wait_log("app", "pagesize=2M,size=4194304");
    assert_eq!(huge_limit(&device, "huge", "/app-0"), (8 << 20).to_string());
    assert_eq!(huge_limit(&device, "huge", "/other-0"), "0");
    assert_eq!(huge_limit(&device, "huge", ""), (8 << 20).to_string());

    let large = limited("large", "sleep", "memory: 32Mi, hugepages-2Mi: 10Mi");
    device.write_manifest("large.yaml", &large);
    device.wait_for("the pod to be rejected", || device.pod("large").phase() == "Failed");
    let status = device.pod("large").status();
    assert_eq!(status["reason"], "OutOfhugepages-2Mi", "{status}");
    let message = "Pod was rejected: Node didn't have enough resource: hugepages-2Mi, requested: 10485760, used: 8388608, capacity: 16777216";
    assert_eq!(status["message"], message);
}
