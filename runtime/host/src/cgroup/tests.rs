//! Tests with the kernel of the machine, below a cgroup named after this process; pure conversions as tables.

use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::unistd::Pid;

use super::hierarchy::Hierarchies;
use super::*;
use nodlet_core::spec::ContainerIndex;
use nodlet_kube::manifest::{self, Validation};

/// Cgroups of one test alone, removed with all their processes at the end of the test.
struct Scratch(Cgroups, Paths);

impl Scratch {
    fn new() -> Scratch {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("nodlet-cgroup-{}-{number}", std::process::id()));
        let paths = Paths::new(&root);
        fs::create_dir_all(paths.run()).expect("a scratch directory");
        Scratch(Cgroups::open(&paths, PodPidsLimit::Share).expect("these tests need root and cgroups"), paths)
    }

    fn kernel(&self) -> &Hierarchies {
        &self.0.hierarchies
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let parent = self.0.parent.clone();
        let _ = tree::kill_all(&self.kernel().unified.join(&parent));
        let all = PodCgroup::new(&self.0.hierarchies, parent);
        smol::block_on(all.emptied());
        self.0.remove_all().unwrap();
        fs::remove_dir_all(self.1.root()).unwrap();
    }
}

/// A pod with one container for each of `resources`.
fn pod(uid: &str, resources: &[&str]) -> Pod {
    let mut yaml =
        format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p, uid: \"{uid}\"}}\nspec:\n  containers:\n");
    for (index, resources) in resources.iter().enumerate() {
        yaml += &format!("  - {{name: c{index}, image: i, resources: {resources}}}\n");
    }
    let mut manifests =
        manifest::parse("p.yaml", yaml.as_bytes(), Validation::Strict, "node").expect("a valid manifest");
    Rc::unwrap_or_clone(manifests.remove(0).pod)
}

/// Runs `script` in a shell that joins the leaf first.
fn spawn(leaf: &Leaf, script: &str) -> Child {
    let paths = leaf.paths();
    let mut joined = format!("echo $$ > {}/cgroup.procs || exit 99; ", paths.unified.display());
    for tasks in paths.v1_tasks {
        joined += &format!("echo $$ > {} || exit 99; ", tasks.display());
    }
    let script = format!("{joined}{script}");
    Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The leaf's file in the hierarchy of `controller`.
fn file(leaf: &Path, kernel: &Hierarchies, controller: Controller, v1: &str, v2: &str) -> PathBuf {
    match kernel.hierarchy_of(controller) {
        ControllerHierarchy::V1(mount) => mount.join(leaf).join(v1),
        ControllerHierarchy::V2 => kernel.unified.join(leaf).join(v2),
        ControllerHierarchy::Missing => panic!("this machine has no {controller:?} controller"),
    }
}

/// The content of the leaf's file in the hierarchy of `controller`.
fn read(leaf: &Path, kernel: &Hierarchies, controller: Controller, v1: &str, v2: &str) -> String {
    fs::read_to_string(file(leaf, kernel, controller, v1, v2)).unwrap().trim().to_owned()
}

#[test]
fn requests_and_limits_become_shares_quotas_and_bytes_as_the_kubelets() {
    let of = |resources| ContainerLimits::of(&pod("u", &[resources]), ContainerIndex(0));
    let limits = |cpu_shares, cpu_quota_us, memory| ContainerLimits {
        cpu_shares,
        cpu_quota_us,
        memory,
        pids: None,
        swap: 0,
        huge_pages: Vec::new(),
        cpus: None,
        all_devices: false,
        devices: Vec::new(),
    };
    assert_eq!(of("{}"), limits(2, None, None));
    assert_eq!(of("{requests: {cpu: 250m, memory: 1Mi}}"), limits(256, None, None));
    assert_eq!(of("{requests: {cpu: 1m}}"), limits(2, None, None));
    assert_eq!(of("{requests: {cpu: 1k}}"), limits(262_144, None, None));
    assert_eq!(of("{limits: {cpu: 1500m, memory: 64Mi}}"), limits(1536, Some(150_000), Some(64 << 20)));
    assert_eq!(of("{limits: {cpu: 5m}}"), limits(5, Some(1000), None));
    assert_eq!(of("{limits: {cpu: 0, memory: 0}}"), limits(2, None, None));

    let of_pod = |resources: &[&str]| ContainerLimits::of_pod(&pod("u", resources));
    let (both, memory) = ("{limits: {cpu: 200m, memory: 8Mi}}", "{limits: {memory: 8Mi}}");
    assert_eq!(of_pod(&["{}", "{}"]), limits(2, None, None));
    assert_eq!(of_pod(&[both, both]), limits(409, Some(40_000), Some(16 << 20)));
    assert_eq!(of_pod(&[both, memory]), limits(204, None, Some(16 << 20)));
    assert_eq!(of_pod(&[both, "{}"]), limits(204, None, None));

    // Of the init containers the largest request counts, together with the sidecars that already run beside
    // it.
    let of_all = |init: &[(&str, bool)], regular: &[&str]| {
        let mut all = pod("u", regular);
        let names: Vec<&str> = init.iter().map(|(resources, _)| *resources).collect();
        all.spec.init_containers = pod("u", &names).spec.containers;
        for (container, (_, sidecar)) in all.spec.init_containers.iter_mut().zip(init) {
            container.sidecar = *sidecar;
        }
        ContainerLimits::of_pod(&all)
    };
    let (large, small) = ("{limits: {cpu: 1, memory: 64Mi}}", "{limits: {cpu: 100m, memory: 1Mi}}");
    let whole = |milli: u64, mib: u64| limits(milli * 1024 / 1000, Some(milli as i64 * 100), Some(mib << 20));
    assert_eq!(of_all(&[(large, false), (both, false)], &[both]), whole(1000, 64));
    assert_eq!(of_all(&[(large, true)], &[both]), whole(1200, 72));
    assert_eq!(of_all(&[(small, true), (large, false), (small, true)], &[both]), whole(1100, 65));
    assert_eq!(of_all(&[(large, false), (small, true)], &[large, large]), whole(2100, 129));
    assert_eq!(of_all(&[("{}", false)], &[large]), limits(1024, None, None));
    assert_eq!(of_all(&[("{requests: {cpu: 3}}", false)], &[large]), limits(3072, None, None));
}

#[test]
fn resources_of_the_pod_as_a_whole_limit_it_and_the_containers_without_a_limit() {
    let mut whole = pod("u", &["{requests: {cpu: 100m}, limits: {memory: 8Mi}}", "{}"]);
    let of_pod =
        &pod("u", &["{limits: {cpu: 500m, memory: 64Mi}, requests: {cpu: 300m}}"]).spec.containers[0];
    whole.spec.resources = Some(of_pod.resources.clone().into());
    let limits = |cpu_shares, memory| ContainerLimits {
        cpu_shares,
        cpu_quota_us: Some(50_000),
        memory: Some(memory),
        pids: None,
        swap: 0,
        huge_pages: Vec::new(),
        cpus: None,
        all_devices: false,
        devices: Vec::new(),
    };
    assert_eq!(ContainerLimits::of_pod(&whole), limits(307, 64 << 20));
    assert_eq!(ContainerLimits::of(&whole, ContainerIndex(0)), limits(102, 8 << 20));
    // Without a request, the limit counts.
    assert_eq!(ContainerLimits::of(&whole, ContainerIndex(1)), limits(512, 64 << 20));
    // The overhead of a runtime class comes on top.
    let overhead = &pod("u", &["{limits: {cpu: 100m, memory: 1Mi}}"]).spec.containers[0];
    whole.spec.overhead = Some(overhead.resources.clone().into());
    let with_overhead = ContainerLimits { cpu_quota_us: Some(60_000), ..limits(400 * 1024 / 1000, 65 << 20) };
    assert_eq!(ContainerLimits::of_pod(&whole), with_overhead);
}

#[test]
fn a_leaf_has_the_limits_of_its_container_and_the_pod_their_sum() {
    let scratch = Scratch::new();
    let burstable = pod(
        "b",
        &["{requests: {cpu: 500m}, limits: {cpu: 1, memory: 32Mi}}", "{limits: {cpu: 250m, memory: 8Mi}}"],
    );
    let cgroup = scratch.0.pod(&burstable).unwrap();
    assert_eq!(cgroup.name(), "podb");
    assert!(cgroup.relative.ends_with("kubepods/burstable/podb"));
    let leaf = cgroup
        .leaf(
            "c0",
            3,
            &ContainerLimits { pids: Some(7), ..ContainerLimits::of(&burstable, ContainerIndex(0)) },
        )
        .unwrap();
    assert!(leaf.relative.ends_with("podb/c0-3"));
    let read = |relative: &Path, controller, v1, v2| read(relative, scratch.kernel(), controller, v1, v2);
    assert_eq!(read(&leaf.relative, Controller::Pids, "pids.max", "pids.max"), "7");
    assert_eq!(
        read(&leaf.relative, Controller::Memory, "memory.limit_in_bytes", "memory.max"),
        (32 << 20).to_string()
    );
    let (v1, v2) = ("memory.memsw.limit_in_bytes", "memory.swap.max");
    // Not every kernel accounts for swap.
    if let Ok(swap) = fs::read_to_string(file(&leaf.relative, scratch.kernel(), Controller::Memory, v1, v2)) {
        assert!([(32 << 20).to_string().as_str(), "0"].contains(&swap.trim()), "it may swap: {swap}");
    }
    assert_eq!(
        read(&cgroup.relative, Controller::Memory, "memory.limit_in_bytes", "memory.max"),
        (40 << 20).to_string()
    );
    for (relative, quota, shares) in [(&leaf.relative, 100_000, 512), (&cgroup.relative, 125_000, 768)] {
        let target = Target::new(scratch.kernel(), relative);
        assert!(
            read(relative, Controller::Cpu, "cpu.cfs_quota_us", "cpu.max").starts_with(&quota.to_string())
        );
        assert!(target.shares().unwrap().abs_diff(shares) < 27, "{:?}", target.shares());
    }
    // The shares of the class are the sum of its pods' shares.
    scratch.0.pod(&pod("c", &["{requests: {cpu: 1}}"])).unwrap();
    let class = Target::new(scratch.kernel(), &scratch.0.class(QosClass::Burstable)).shares().unwrap();
    assert!(class.abs_diff(768 + 1024) < 60, "{class}");
}

#[test]
fn the_pods_together_leave_processes_to_the_machine() {
    let scratch = Scratch::new();
    let kubepods = scratch.0.kubepods();
    let most = read(&kubepods, scratch.kernel(), Controller::Pids, "pids.max", "pids.max");
    let threads = fs::read_to_string("/proc/sys/kernel/threads-max").unwrap();
    let (most, threads): (u64, u64) = (most.parse().unwrap(), threads.trim().parse().unwrap());
    assert!(most > 0 && most < threads, "{most} of {threads}");
}

/// systemd removes the cgroup of a service that has just ended, while the agent makes cgroups below it.
#[test]
fn cgroups_removed_while_the_agent_creates_them_are_created_again() {
    let scratch = Scratch::new();
    let doomed: Vec<PathBuf> =
        scratch.kernel().mounts().iter().map(|mount| mount.join(scratch.0.kubepods())).collect();
    let tidies = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while tidies.load(Ordering::Relaxed) {
                doomed.iter().for_each(|directory| drop(fs::remove_dir(directory)));
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let opened: Vec<_> = (0..200).map(|_| Cgroups::open(&scratch.1, PodPidsLimit::Share)).collect();
        tidies.store(false, Ordering::Relaxed);
        for opened in opened {
            opened.unwrap();
        }
    });
}

#[test]
fn pods_are_found_by_class_and_removed_with_all_their_leaves() {
    let scratch = Scratch::new();
    let guaranteed = pod("g", &["{limits: {cpu: 1, memory: 8Mi}}"]);
    for pod in [&guaranteed, &pod("b", &["{requests: {cpu: 1}}"]), &pod("e", &["{}"])] {
        let cgroup = scratch.0.pod(pod).unwrap();
        let leaf = cgroup.leaf("c0", 0, &ContainerLimits::of(pod, ContainerIndex(0))).unwrap();
        fs::create_dir(leaf.paths().unified.join("exec-1")).unwrap();
        let pause = cgroup.pause_paths(false).unwrap().unified;
        assert!(pause.ends_with("pause") && !pause.exists());
        assert_eq!(cgroup.pause_paths(true).unwrap().unified, pause);
        assert!(pause.is_dir());
    }
    let mut uids: Vec<String> = scratch.0.pods().unwrap().into_iter().map(|(uid, _)| uid).collect();
    uids.sort();
    assert_eq!(uids, ["b", "e", "g"]);
    for (_, cgroup) in scratch.0.pods().unwrap() {
        cgroup.remove().unwrap();
        cgroup.remove().unwrap();
    }
    assert!(scratch.0.pods().unwrap().is_empty());
    let own = scratch.0.supervisor("one").expect("made");
    assert!(scratch.0.supervisor_paths(&own).iter().all(|directory| directory.is_dir()));
}

#[test]
fn a_uid_that_is_a_path_names_no_cgroup() {
    let scratch = Scratch::new();
    let mut hostile = pod("u", &["{}"]);
    for uid in ["", "../../x", "a/b"] {
        hostile.uid = uid.into();
        assert!(scratch.0.pod(&hostile).unwrap_err().to_string().contains("metadata.uid"));
        assert!(scratch.0.supervisor(uid).is_err());
    }
}

#[test]
fn killing_a_pod_ends_every_process_and_the_empty_cgroup_is_reported() {
    let scratch = Scratch::new();
    let cgroup = scratch.0.pod(&pod("k", &["{}"])).unwrap();
    let leaf = cgroup.leaf("c0", 0, &ContainerLimits::none()).unwrap();
    assert!(!leaf.populated().unwrap());
    smol::block_on(cgroup.emptied());
    let mut child = spawn(&leaf, "setsid sleep 1000 & sleep 1000");
    let pid = child.id() as i32;
    until("the process is in its leaf", || leaf.contains(pid));
    assert!(leaf.populated().unwrap());
    assert!(!cgroup.known_leaf("c0", 1).contains(pid));
    assert!(cgroup.leaf("c0", 0, &ContainerLimits::none()).is_err(), "two runs in one cgroup");
    assert!(leaf.contains(pid) && leaf.remove().is_err());

    leaf.freeze(true).unwrap();
    cgroup.kill().unwrap();
    smol::block_on(cgroup.emptied());
    assert!(!child.wait().unwrap().success());
    cgroup.remove().unwrap();
    // A removed cgroup counts as empty, and may be killed and removed again.
    smol::block_on(cgroup.emptied());
    leaf.kill().unwrap();
    leaf.kill_exec(1).unwrap();
    leaf.remove().unwrap();
    assert_eq!((leaf.populated().unwrap(), leaf.oom_kills().unwrap()), (false, 0));
}

#[test]
fn a_frozen_cgroup_uses_no_cpu_time_and_resumes_when_thawed() {
    let scratch = Scratch::new();
    let cgroup = scratch.0.pod(&pod("f", &["{}"])).unwrap();
    let leaf = cgroup.leaf("c0", 0, &ContainerLimits::none()).unwrap();
    let mut child = spawn(&leaf, "while :; do :; done");
    // User and system time, in ticks.
    let used = || -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let fields = stat.rsplit(") ").next().unwrap().split(' ').skip(11).take(2);
        fields.map(|field| field.parse::<u64>().unwrap()).sum()
    };
    let at_first = used();
    until("it runs", || used() > at_first);
    leaf.freeze(true).unwrap();
    let events = leaf.unified().join("cgroup.events");
    let says = |line: &str| fs::read_to_string(&events).unwrap().lines().any(|found| found == line);
    until("the kernel says that it stands", || says("frozen 1"));
    let frozen = used();
    // Many ticks for a process that runs.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(used(), frozen);
    leaf.freeze(false).unwrap();
    until("it goes on", || says("frozen 0") && used() > frozen);
    leaf.kill().unwrap();
    child.wait().unwrap();
    smol::block_on(cgroup.emptied());
}

#[test]
fn a_kernel_without_cgroup_kill_kills_by_signals() {
    let scratch = Scratch::new();
    let cgroup = scratch.0.pod(&pod("s", &["{}"])).unwrap();
    let leaf = cgroup.leaf("c0", 0, &ContainerLimits::none()).unwrap();
    let mut child = spawn(&leaf, "while :; do sleep 1000 & done");
    until("it forks", || {
        fs::read_to_string(leaf.unified().join("cgroup.procs")).unwrap().lines().count() > 8
    });
    tree::kill_each(&leaf.unified()).unwrap();
    smol::block_on(cgroup.emptied());
    assert!(!child.wait().unwrap().success());
}

/// Makes nested cgroups until their path is longer than any system call accepts, and runs a program in the
/// last one.
fn spawn_deep_below(cgroup: &Path) -> Child {
    use nix::fcntl::{OFlag, openat};
    use nix::sys::stat::{Mode, mkdirat};
    let name = "deep".repeat(60);
    let mut here = fs::File::open(cgroup).unwrap();
    let open = |here: &fs::File, name: &str, flags| {
        let opened = openat(Some(here.as_raw_fd()), name, flags | OFlag::O_CLOEXEC, Mode::empty()).unwrap();
        // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
        unsafe { fs::File::from_raw_fd(opened) }
    };
    for _ in 0..libc::PATH_MAX as usize / name.len() + 1 {
        mkdirat(Some(here.as_raw_fd()), name.as_str(), Mode::from_bits_truncate(0o755)).unwrap();
        here = open(&here, &name, OFlag::O_DIRECTORY);
    }
    let child = Command::new("sleep").arg("1000").spawn().unwrap();
    open(&here, "cgroup.procs", OFlag::O_WRONLY).write_all(child.id().to_string().as_bytes()).unwrap();
    child
}

#[test]
fn a_tree_of_any_width_and_depth_is_killed_and_removed() {
    let scratch = Scratch::new();
    let cgroup = scratch.0.pod(&pod("deep", &["{}"])).unwrap();
    let leaf = cgroup.leaf("c0", 0, &ContainerLimits::none()).unwrap();
    let wide = leaf.unified().join("a/b");
    fs::create_dir_all(&wide).unwrap();
    for number in 0..5000 {
        fs::create_dir(wide.join(number.to_string())).unwrap();
    }
    let mut children = [spawn_deep_below(&leaf.unified()), spawn_deep_below(&wide)];
    assert!(leaf.remove().is_err(), "processes are in it");
    tree::kill_each(&leaf.unified()).unwrap();
    smol::block_on(cgroup.emptied());
    for child in &mut children {
        assert!(!child.wait().unwrap().success());
    }
    cgroup.remove().unwrap();
    assert!(!cgroup.unified().exists());
}

/// Forks a process that joins a cgroup, starts a thread that never ends, and ends its first thread.
fn go_headless(procs: &Path) -> Pid {
    extern "C" fn thread(_: *mut libc::c_void) -> *mut libc::c_void {
        loop {
            // SAFETY: always allowed.
            unsafe { libc::pause() };
        }
    }
    let file = fs::OpenOptions::new().write(true).open(procs).unwrap();
    // SAFETY: the child takes no lock that another thread may have held.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Parent { child } => child,
        // SAFETY: the arguments of the thread live as long as the process does.
        nix::unistd::ForkResult::Child => unsafe {
            libc::write(file.as_raw_fd(), c"0".as_ptr().cast(), 1);
            let mut id = std::mem::zeroed();
            libc::pthread_create(&mut id, std::ptr::null(), thread, std::ptr::null_mut());
            loop {
                libc::syscall(libc::SYS_exit, 0);
            }
        },
    }
}

#[test]
fn a_process_whose_first_thread_has_ended_is_killed_too() {
    let scratch = Scratch::new();
    let cgroup = scratch.0.pod(&pod("h", &["{}"])).unwrap();
    let leaf = cgroup.leaf("c0", 0, &ContainerLimits::none()).unwrap();
    let child = go_headless(&leaf.unified().join("cgroup.procs"));
    until("its first thread to end", || {
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap();
        stat.contains(") Z ") && leaf.populated().unwrap()
    });
    leaf.kill().unwrap();
    until("it to die", || !leaf.populated().unwrap());
    let status = nix::sys::wait::waitpid(child, None).unwrap();
    assert!(matches!(status, nix::sys::wait::WaitStatus::Signaled(..)), "{status:?}");
    smol::block_on(cgroup.emptied());
}

#[test]
fn an_exec_is_killed_alone() {
    let scratch = Scratch::new();
    let cgroup = scratch.0.pod(&pod("x", &["{}"])).unwrap();
    let leaf = cgroup.leaf("c0", 0, &ContainerLimits::none()).unwrap();
    let mut container = spawn(&leaf, "sleep 1000");
    let exec = leaf.unified().join("exec-7");
    fs::create_dir(&exec).unwrap();
    let mut child = Command::new("sh")
        .args(["-c", &format!("echo $$ > {}/cgroup.procs; setsid sleep 1000 & sleep 1000", exec.display())])
        .spawn()
        .unwrap();
    until("both run", || leaf.contains(container.id() as i32) && tree::populated(&exec).unwrap());
    assert!(leaf.contains(child.id() as i32), "an exec is of the container");
    leaf.kill_exec(7).unwrap();
    child.wait().unwrap();
    until("all that the exec started is gone", || !tree::populated(&exec).unwrap());
    assert!(container.try_wait().unwrap().is_none() && leaf.populated().unwrap());
    leaf.kill().unwrap();
    container.wait().unwrap();
    smol::block_on(cgroup.emptied());
    leaf.remove().unwrap();
    assert!(!exec.exists());
}

#[test]
fn oom_kills_are_counted_in_the_cgroup_of_the_container() {
    let scratch = Scratch::new();
    let cgroup = scratch.0.pod(&pod("o", &["{}"])).unwrap();
    let leaf =
        cgroup.leaf("c0", 0, &ContainerLimits { memory: Some(8 << 20), ..ContainerLimits::none() }).unwrap();
    assert_eq!(leaf.oom_kills().unwrap(), 0);
    let mut child = spawn(&leaf, "exec dd if=/dev/zero of=/dev/null bs=64M count=1");
    child.wait().unwrap();
    smol::block_on(cgroup.emptied());
    // With `memory.oom.group`, v2 counts the process that it chose a second time.
    let as_one = matches!(scratch.kernel().hierarchy_of(Controller::Memory), ControllerHierarchy::V2);
    assert_eq!(leaf.oom_kills().unwrap(), if as_one { 2 } else { 1 });
}

/// Checks what a shell in the leaf can do with devices, for either kind of filter.
fn check_devices(leaf: &Leaf, expected: &str) {
    let script = "t() { \"$@\" 2>/dev/null && printf y || printf n; }; d=$(mktemp -d); \
        t sh -c 'head -c1 /dev/zero > /dev/null'; t sh -c 'head -c1 /dev/urandom >/dev/null'; t sh -c ': < /dev/kmsg'; \
        t mknod $d/null c 1 3; t sh -c \": > $d/null\"; t mknod $d/kmsg c 1 11; t sh -c \": < $d/kmsg\"; \
        t mknod $d/loop b 7 0; t sh -c \": < $d/loop\"; rm -r $d";
    let output = spawn(leaf, script).wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

#[test]
fn a_container_opens_only_the_devices_that_every_container_has() {
    let scratch = Scratch::new();
    let cgroup = scratch.0.pod(&pod("d", &["{}"])).unwrap();
    let open = ContainerLimits { all_devices: true, ..ContainerLimits::none() };
    check_devices(&cgroup.leaf("c0", 0, &open).unwrap(), "yyyyyyyyy");
    check_devices(&cgroup.leaf("c1", 0, &ContainerLimits::none()).unwrap(), "yynyyynyn");
    // The same rules as an eBPF program, even if this machine has v1's devices controller.
    let leaf = cgroup.leaf("c2", 0, &open).unwrap();
    devices::filter_v2(&leaf.unified(), &[]).unwrap();
    check_devices(&leaf, "yynyyynyn");
}

#[test]
fn a_container_opens_its_own_devices_and_others_in_their_place_when_they_change() {
    let scratch = Scratch::new();
    let cgroup = scratch.0.pod(&pod("o", &["{}"])).unwrap();
    let node = |block: bool, major: u32, minor: u32, writable: bool| DeviceNode {
        path: "/dev/own".into(),
        block,
        major,
        minor,
        readable: true,
        writable,
        mode: None,
        uid: None,
        gid: None,
    };
    let (kmsg, twice, loop0) = (node(false, 1, 11, false), node(false, 1, 11, true), node(true, 7, 0, true));
    let limits = ContainerLimits { devices: vec![kmsg.clone()], ..ContainerLimits::none() };
    let leaf = cgroup.leaf("c0", 0, &limits).unwrap();
    check_devices(&leaf, "yyyyyyyyn");
    let writes = |leaf: &Leaf| {
        let script =
            "d=$(mktemp -d); mknod $d/k c 1 11; sh -c \": > $d/k\" 2>/dev/null && printf y; rm -r $d";
        String::from_utf8(spawn(leaf, script).wait_with_output().unwrap().stdout).unwrap()
    };
    assert_eq!(writes(&leaf), "", "the device may only be read");
    leaf.change_devices(std::slice::from_ref(&kmsg), &[kmsg.clone(), twice.clone()]).unwrap();
    assert_eq!(writes(&leaf), "y");
    leaf.change_devices(&[kmsg.clone(), twice], std::slice::from_ref(&loop0)).unwrap();
    check_devices(&leaf, "yynyyynyy");
    leaf.change_devices(std::slice::from_ref(&loop0), &[]).unwrap();
    check_devices(&leaf, "yynyyynyn");
    // The same rules as an eBPF program.
    let open = ContainerLimits { all_devices: true, ..ContainerLimits::none() };
    let leaf = cgroup.leaf("c1", 0, &open).unwrap();
    devices::filter_v2(&leaf.unified(), std::slice::from_ref(&kmsg)).unwrap();
    check_devices(&leaf, "yyyyyyyyn");
    assert_eq!(writes(&leaf), "");
    devices::change_filter_v2(&leaf.unified(), &[loop0]).unwrap();
    check_devices(&leaf, "yynyyynyy");
    devices::change_filter_v2(&leaf.unified(), &[]).unwrap();
    check_devices(&leaf, "yynyyynyn");
}

/// Plain files for a v2 cgroup show what is written where, whatever this machine mounts.
#[test]
fn v2_limits_go_into_the_files_of_v2_and_a_missing_controller_has_a_name() {
    let mount = std::env::temp_dir().join(format!("nodlet-v2-{}", std::process::id()));
    let leaf = mount.join("leaf");
    fs::create_dir_all(&leaf).unwrap();
    let all = Hierarchies::v2_at(&mount, &[Controller::Cpu, Controller::Memory, Controller::Pids]);
    let limits = ContainerLimits { pids: Some(9), ..ContainerLimits::none() };
    let limits =
        ContainerLimits { cpu_shares: 1024, cpu_quota_us: Some(150_000), memory: Some(64 << 20), ..limits };
    for (file, value) in
        [("cpu.weight", "100"), ("memory.max", "max"), ("memory.oom.group", "0"), ("pids.max", "max")]
    {
        fs::write(leaf.join(file), value).unwrap();
    }
    let target = Target::new(&all, Path::new("leaf"));
    assert!(
        target
            .limit(&limits)
            .unwrap_err()
            .to_string()
            .contains("a cpu limit: the kernel cannot (CONFIG_CFS_BANDWIDTH)")
    );
    fs::write(leaf.join("cpu.max"), "max 100000").unwrap();
    target.limit(&limits).unwrap();
    target.end_as_one().unwrap();
    target.limit_swap(&limits).unwrap();
    assert!(!leaf.join("memory.swap.max").exists(), "a kernel without swap has no such file");
    fs::write(leaf.join("memory.swap.max"), "max").unwrap();
    target.limit_swap(&ContainerLimits::none()).unwrap();
    for (file, expected) in [
        ("memory.swap.max", "0"),
        ("cpu.weight", "39"),
        ("cpu.max", "150000 100000"),
        ("memory.max", "67108864"),
        ("memory.oom.group", "1"),
        ("pids.max", "9"),
    ] {
        assert_eq!(fs::read_to_string(leaf.join(file)).unwrap(), expected, "{file}");
    }
    fs::write(leaf.join("memory.events"), "low 0\noom 4\noom_kill 3\noom_group_kill 1\n").unwrap();
    assert_eq!(target.oom_kills().unwrap(), 3);

    let none = Hierarchies::v2_at(&mount, &[]);
    let target = Target::new(&none, Path::new("leaf"));
    target.limit(&ContainerLimits::none()).unwrap();
    assert_eq!(target.oom_kills().unwrap(), 0);
    for (limits, option) in [
        (ContainerLimits { cpu_quota_us: Some(1000), ..ContainerLimits::none() }, "CONFIG_CGROUP_SCHED"),
        (ContainerLimits { memory: Some(1 << 20), ..ContainerLimits::none() }, "CONFIG_MEMCG"),
        (ContainerLimits { pids: Some(9), ..ContainerLimits::none() }, "CONFIG_CGROUP_PIDS"),
    ] {
        let error = target.limit(&limits).unwrap_err().to_string();
        assert!(error.contains(option), "{error}");
    }
    fs::remove_dir_all(mount).unwrap();
}

/// A load that ends while another one waits for it must not remove the cgroup that they share.
#[test]
fn loads_of_one_store_share_the_cgroup_of_the_process_that_unpacks() {
    let paths = Paths::new(Path::new(&format!("/tmp/nodlet-unpacker-{}", std::process::id())));
    let make = || UnpackerCgroup::make(&paths, 64 << 20).expect("these tests need root and cgroups");
    let (first, second) = (make(), make());
    let procs = second.procs();
    assert_eq!(first.procs(), procs);
    drop(first);
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(&procs, child.id().to_string()).expect("it is still there");
    child.kill().unwrap();
    child.wait().unwrap();
    drop(second);
    assert!(!procs.exists());
    assert!(!procs.ancestors().nth(2).unwrap().exists(), "nor what it was in");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert!(make().procs().exists(), "it is made, and was taken away");
                }
            });
        }
    });
    assert!(!procs.exists());
}

#[test]
fn a_kill_lifts_the_cpu_limits_of_container_and_pod_and_the_next_start_renews_that_of_the_pod() {
    let scratch = Scratch::new();
    let (kernel, limited) = (scratch.kernel(), "{limits: {cpu: 100m}}");
    let pod = pod("q", &[limited, limited]);
    let cgroup = scratch.0.pod(&pod).unwrap();
    let limits = ContainerLimits::of(&pod, ContainerIndex(0));
    let [killed, beside] = [("c0", 0), ("c1", 0)].map(|(name, run)| cgroup.leaf(name, run, &limits).unwrap());
    let quota = |of: &Path| {
        let text = read(of, kernel, Controller::Cpu, "cpu.cfs_quota_us", "cpu.max");
        text.split(' ').next().unwrap().parse::<i64>().unwrap_or(-1)
    };
    let all = || [&cgroup.relative, &killed.relative, &beside.relative].map(|relative| quota(relative));
    assert_eq!(all(), [20_000, 10_000, 10_000]);

    // The end of an executed process leaves the limits of its container and pod in force.
    killed.kill_exec(1).unwrap();
    assert_eq!(all(), [20_000, 10_000, 10_000]);
    killed.kill().unwrap();
    assert_eq!(all(), [-1, -1, 10_000]);
    killed.remove().unwrap();
    cgroup.renew_cpu_limit(&pod).unwrap();
    let killed = cgroup.leaf("c0", 1, &limits).unwrap();
    let all = || [&cgroup.relative, &killed.relative, &beside.relative].map(|relative| quota(relative));
    assert_eq!(all(), [20_000, 10_000, 10_000]);

    // Like a supervisor, which knows one path only.
    super::quota::lift_at(&beside.unified());
    assert_eq!(all(), [-1, 10_000, -1]);
    cgroup.kill().unwrap();
    // In version 2, a leaf without processes keeps its limit, since nobody waits for its end.
    let [pod, _, beside] = all();
    assert_eq!((pod, beside), (-1, -1));
}

#[test]
fn a_pod_has_a_share_of_the_processes_unless_a_limit_is_configured() {
    let limits = |wanted| {
        let mut scratch = Scratch::new();
        scratch.0 = Cgroups::open(&scratch.1, wanted).unwrap();
        let cgroup = scratch.0.pod(&pod("p", &["{}"])).unwrap();
        let of = |relative| read(relative, scratch.kernel(), Controller::Pids, "pids.max", "pids.max");
        (of(&cgroup.relative), of(&scratch.0.kubepods()).parse::<u64>().unwrap())
    };
    let (share, all) = limits(PodPidsLimit::Share);
    // 15 of the 90 percent that all pods together may have.
    assert!(share.parse::<u64>().unwrap().abs_diff((all / 6).max(64)) <= 2, "{share} of {all}");
    assert_eq!(limits(PodPidsLimit::Of(7)).0, "7");
    assert_eq!(limits(PodPidsLimit::Unlimited).0, "max");
}

#[test]
fn pods_together_leave_memory_to_the_machine() {
    let scratch = Scratch::new();
    let all = || {
        let kubepods = scratch.0.kubepods();
        read(&kubepods, scratch.kernel(), Controller::Memory, "memory.limit_in_bytes", "memory.max")
    };
    for limit in [96 << 20, 64 << 20] {
        scratch.0.limit_memory(limit).unwrap();
        assert_eq!(all(), limit.to_string());
    }
}

/// The limits of a cgroup: memory, cpu quota in microseconds, and cpu weight, as the kernel has them.
fn limits_of(relative: &Path, kernel: &Hierarchies) -> [String; 3] {
    let first = |text: String| text.split_whitespace().next().unwrap_or_default().to_owned();
    [
        first(read(relative, kernel, Controller::Memory, "memory.limit_in_bytes", "memory.max")),
        first(read(relative, kernel, Controller::Cpu, "cpu.cfs_quota_us", "cpu.max")),
        first(read(relative, kernel, Controller::Cpu, "cpu.shares", "cpu.weight")),
    ]
}

#[test]
fn a_running_pod_is_resized_up_and_down_but_not_below_its_usage() {
    let scratch = Scratch::new();
    let of = |cpu: u64, mib: u64| {
        let resources = format!("{{limits: {{cpu: {cpu}m, memory: {mib}Mi}}, requests: {{cpu: 50m}}}}");
        pod("resized", &[&resources, &resources])
    };
    let before = of(100, 32);
    let cgroup = scratch.0.pod(&before).unwrap();
    let limits = |index| ContainerLimits::of(&before, ContainerIndex(index));
    let leaves = [
        (cgroup.leaf("c0", 0, &limits(0)).unwrap(), ContainerIndex(0)),
        (cgroup.leaf("c1", 0, &limits(1)).unwrap(), ContainerIndex(1)),
    ];
    // Sixteen MiB that are not given back.
    let mut child = spawn(&leaves[0].0, "x=$(head -c 16777216 /dev/zero | tr '\\0' x); echo up; sleep 1000");
    let usage = |_: ()| {
        read(
            &leaves[0].0.relative,
            scratch.kernel(),
            Controller::Memory,
            "memory.usage_in_bytes",
            "memory.current",
        )
    };
    until("the memory is used", || usage(()).parse::<u64>().unwrap() > 15 << 20);
    let found = |relative: &Path| {
        let [memory, quota, _] = limits_of(relative, scratch.kernel());
        (memory.parse::<u64>().unwrap() >> 20, quota.parse::<i64>().unwrap() / 100)
    };
    let all = || [found(&cgroup.relative), found(&leaves[0].0.relative), found(&leaves[1].0.relative)];
    assert_eq!(all(), [(64, 200), (32, 100), (32, 100)]);
    scratch.0.resize(&of(300, 96), &leaves).unwrap();
    assert_eq!(all(), [(192, 600), (96, 300), (96, 300)]);
    scratch.0.resize(&of(150, 48), &leaves).unwrap();
    assert_eq!(all(), [(96, 300), (48, 150), (48, 150)]);

    let refused = scratch.0.resize(&of(200, 6), &leaves).unwrap_err().to_string();
    assert!(
        refused.starts_with("cannot decrease memory limits: [attempting to set pod memory limit (12582912)"),
        "{refused}"
    );
    assert!(
        refused.contains("attempting to set container \"c0\" memory limit (6291456) below current usage ("),
        "{refused}"
    );
    assert!(!refused.contains("\"c1\""), "{refused}");
    assert_eq!(all(), [(96, 300), (48, 150), (48, 150)], "nothing was written");
    assert!(child.try_wait().unwrap().is_none(), "the container runs");

    // A container that has ended meanwhile is no error.
    leaves[1].0.remove().unwrap();
    scratch.0.resize(&of(200, 64), &leaves).unwrap();
    assert_eq!((found(&cgroup.relative), found(&leaves[0].0.relative)), ((128, 400), (64, 200)));
    leaves[0].0.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn limited_swap_is_a_part_of_the_machines_swap_for_burstable_containers_alone() {
    let of =
        |resources: &str| limited_swap(&pod("u", &[resources]), ContainerIndex(0), 1000 << 20, 500 << 20);
    assert_eq!(of("{requests: {memory: 100Mi}}"), 50 << 20);
    assert_eq!(of("{requests: {memory: 100Mi}, limits: {memory: 300Mi}}"), 50 << 20);
    assert_eq!(of("{limits: {memory: 100Mi}}"), 0);
    assert_eq!(of("{limits: {memory: 100Mi, cpu: 1}}"), 0);
    assert_eq!(of("{requests: {cpu: 1}}"), 0);
    assert_eq!(of("{}"), 0);
    let mut critical = pod("u", &["{requests: {memory: 100Mi}}"]);
    critical.priority = 2_000_000_000;
    assert_eq!(limited_swap(&critical, ContainerIndex(0), 1000 << 20, 500 << 20), 0);
}
