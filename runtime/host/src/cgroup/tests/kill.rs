//! Processes of a cgroup are killed, frozen and counted.

use super::*;

#[test]
fn killing_a_pod_ends_every_process_and_the_empty_cgroup_is_reported() {
    let scratch = Scratch::new();
    let cgroup = scratch.0.pod(&pod("k", &["{}"])).unwrap();
    let leaf = cgroup.leaf("c0", 0, &ContainerLimits::none()).unwrap();
    assert!(!leaf.populated().unwrap());
    wait_until_empty(&cgroup);
    let mut child = spawn(&leaf, "setsid sleep 1000 & sleep 1000");
    let pid = child.id() as i32;
    until("the process is in its leaf", || leaf.contains(pid));
    assert!(leaf.populated().unwrap());
    assert!(!cgroup.known_leaf("c0", 1).contains(pid));
    assert!(cgroup.leaf("c0", 0, &ContainerLimits::none()).is_err(), "two runs in one cgroup");
    assert!(leaf.contains(pid) && leaf.remove().is_err());

    leaf.freeze(true).unwrap();
    cgroup.kill().unwrap();
    wait_until_empty(&cgroup);
    assert!(!child.wait().unwrap().success());
    cgroup.remove().unwrap();
    // A removed cgroup counts as empty, and may be killed and removed again.
    wait_until_empty(&cgroup);
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
    wait_until_empty(&cgroup);
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
    wait_until_empty(&cgroup);
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
    wait_until_empty(&cgroup);
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
    wait_until_empty(&cgroup);
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
    wait_until_empty(&cgroup);
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
    wait_until_empty(&cgroup);
    // With `memory.oom.group`, v2 counts the process that it chose a second time.
    let as_one = matches!(scratch.kernel().hierarchy_of(Controller::Memory), ControllerHierarchy::V2);
    assert_eq!(leaf.oom_kills().unwrap(), if as_one { 2 } else { 1 });
}
