//! Regression tests of problems found by manual attacks: each test here once failed.

use std::fs;
use std::os::unix::process::CommandExt;

use nodlet_tests::{Device, manifest};

#[test]
fn a_run_that_is_over_is_known_to_the_next_agent_however_the_last_one_died() {
    let mut device = Device::start();
    device.run_pod("crash", "print boom then exit 4");
    device.wait_for("the second run to have failed", || {
        let app = device.pod("crash").container("app");
        app.restart_count() == 1 && app.reason() == "CrashLoopBackOff"
    });
    device.restart_agent();
    device.wait_for("its restarts to be counted on", || {
        let app = device.pod("crash").container("app");
        app.restart_count() >= 2 && app.of_last("exitCode") == 4
    });
    let before = device.nodlet(["logs", "-p", "crash"]).ok();
    assert_eq!(before, "boom\n");
}

#[test]
fn a_pod_whose_file_is_wrong_stays_when_the_agent_is_another() {
    let mut device = Device::start();
    let born = device.run_pod("web", "print up then sleep").wait_ready().born("app");
    device.write_pod("web", "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspecs: {}\n");
    device.pod("web").wait_event_of("FailedValidation", "specs");
    device.restart_agent();
    device.pod("web").wait_ready();
    assert_eq!(device.pod("web").born("app"), born);
    device.remove_pod("web");
}

#[test]
fn a_run_that_was_lost_with_its_supervisor_while_no_agent_looked_is_counted() {
    let mut device = Device::start();
    device.run_pod("web", "print up then sleep");
    device.run_pod_with("job", "print up then sleep", "restartPolicy: Never");
    device.pod("web").wait_ready();
    device.pod("job").wait_ready();
    device.kill_agent();
    for pid in device.own_processes() {
        let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("a supervisor can be killed");
    }
    device.start_agent();
    device.pod("web").wait_restarts("app", 1);
    let lost = device.pod("web").container("app");
    assert_eq!(
        (lost.of_last("exitCode"), lost.of_last("reason")),
        (137.into(), "ContainerStatusUnknown".into())
    );
    device.pod("job").wait_phase("Failed");
    let lost = device.pod("job").container("app");
    assert_eq!((lost.exit_code(), lost.reason().as_str()), (Some(137), "ContainerStatusUnknown"));
}

#[test]
fn a_deletion_goes_on_with_its_whole_grace_under_the_next_agent() {
    let mut device = Device::start();
    device.run_pod_with("slow", "on-term 0 4 then print up then sleep", "terminationGracePeriodSeconds: 30");
    device.pod("slow").wait_log("app", "up");
    let log = device.path("/var/log/pods");
    device.remove_manifest("slow.yaml");
    device.pod("slow").wait_log("app", "stopping");
    device.kill_agent();
    let since = std::time::Instant::now();
    device.start_agent();
    device.pod("slow").wait_gone();
    // An orphan would get a grace period of one second, but this pod needs the rest of its four seconds.
    assert!(since.elapsed() > std::time::Duration::from_millis(2500), "killed after {:?}", since.elapsed());
    assert_eq!(fs::read_dir(log).expect("it stays").count(), 0);
}

#[test]
fn an_exec_of_an_agent_that_died_is_ended_by_the_next_agent() {
    let mut device = Device::start();
    device.run_pod("web", "print up then sleep").wait_ready();
    let mut exec = device
        .command(&["exec", "web", "--", "/bin/demo", "print", "in", "then", "sleep"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("nodlet can be run");
    device.wait_for("the second process", || device.container_processes().len() == 2);
    device.kill_agent();
    assert!(!exec.wait().expect("it ends").success());
    device.start_agent();
    device.wait_for("the first process to be alone", || device.container_processes().len() == 1);
    assert_eq!(device.pod("web").container("app").restart_count(), 0);
}

/// A frozen cgroup, this many levels above that of a process.
struct Frozen(std::path::PathBuf);

impl Frozen {
    fn above(pid: u32, levels: usize) -> Frozen {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it lives");
        let path = text.lines().find_map(|line| line.strip_prefix("0::/")).expect("it has a cgroup of v2");
        let path = std::path::Path::new(path).ancestors().nth(levels).expect("it has parents");
        let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let found = mounts.iter().map(|mount| std::path::Path::new(mount).join(path).join("cgroup.freeze"));
        let frozen = Frozen(found.into_iter().find(|file| file.exists()).expect("cgroup v2 is mounted"));
        fs::write(&frozen.0, "1").expect("a cgroup can be frozen");
        frozen
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, "0");
    }
}

#[test]
fn a_start_that_hangs_holds_up_no_later_agent_and_its_api_hides_no_pod() {
    let mut device = Device::start();
    let born = device.run_pod("web", "print up then sleep").wait_ready().born("app");
    // The cgroup of all pods of this QoS class, in which a start helper is created.
    let frozen = Frozen::above(device.container_processes()[0], 2);
    device.run_pod("late", "print up then sleep");
    device.wait_for("the start helper", || device.container_processes().len() == 2);
    device.restart_agent();
    assert_eq!(device.pods(), ["late", "web"]);
    drop(frozen);
    device.pod("late").wait_log("app", "up");
    assert_eq!(device.pod("web").born("app"), born);
    assert_eq!(device.pod("web").container("app").restart_count(), 0);
}

#[test]
fn a_sandbox_that_hangs_is_given_up_and_can_be_deleted() {
    let device = Device::start();
    device.run_pod("web", "print up then sleep").wait_ready();
    let agent = device.agent_pid();
    let supervisor = device.own_processes().into_iter().find(|pid| *pid != agent).expect("it runs");
    let frozen = Frozen::above(supervisor, 1);
    device.run_pod("stuck", "print up then sleep");
    device.wait_for("its supervisor", || device.own_processes().len() == 3);
    device.remove_pod("stuck");
    device.wait_for("its supervisor to go", || device.own_processes().len() == 2);
    drop(frozen);
    assert_eq!(device.pod("web").container("app").restart_count(), 0);
}

#[test]
fn a_pod_that_is_gone_leaves_no_lock_and_one_that_lives_keeps_its_own() {
    let mut device = Device::start();
    let locks = device.path("/run/nodlet/locks");
    device.run_pod("web", "print up then sleep");
    device.run_pod("job", "print up then sleep");
    device.pod("web").wait_ready();
    device.pod("job").wait_ready();
    device.remove_pod("job");
    assert_eq!(device.names("/run/nodlet/locks"), ["default_web"]);
    // A leftover lock that an agent died before removing.
    device.kill_agent();
    fs::write(locks.join("default_gone"), "").expect("it can be written");
    device.start_agent();
    assert_eq!(device.names("/run/nodlet/locks"), ["default_web"]);
}

#[test]
fn an_agent_empties_no_file_that_its_lock_is_a_link_to() {
    let mut device = Device::new();
    let (run, precious) = (device.path("/run/nodlet"), device.path("/precious"));
    fs::create_dir_all(&run).expect("the root can be written to");
    fs::write(&precious, "precious").expect("the root can be written to");
    std::os::unix::fs::symlink(&precious, run.join("agent.lock")).expect("the root can be written to");
    device.launch_agent();
    assert_eq!(device.agent_ended(), 1);
    assert!(device.agent_log().contains("agent.lock"), "{}", device.agent_log());
    assert_eq!(fs::read_to_string(&precious).expect("it is there"), "precious");
    fs::remove_file(run.join("agent.lock")).expect("it is there");
}

#[test]
fn an_agent_waits_for_the_lock_of_one_that_was_killed_while_it_forked() {
    let mut device = Device::new();
    let path = device.path("/run/nodlet/agent.lock");
    fs::create_dir_all(device.path("/run/nodlet")).expect("the root can be written to");
    // No process has this number.
    fs::write(&path, "2147483646\n").expect("the root can be written to");
    let child = fs::File::open(&path).expect("it is there");
    child.try_lock().expect("nobody has it");
    device.launch_agent();
    let descriptors = format!("/proc/{}/fd", device.agent_pid());
    device.wait_for("the agent to want the lock", || {
        let mut entries = fs::read_dir(&descriptors).into_iter().flatten().flatten();
        entries.any(|entry| fs::read_link(entry.path()).is_ok_and(|file| file == path))
    });
    drop(child);
    device.wait_for("the agent's API to answer", || device.get("/version").is_ok());
}

#[test]
fn a_supervisor_whose_files_were_removed_does_not_stay_for_ever() {
    let mut device = Device::start();
    device.run_pod("web", "print up then sleep").wait_ready();
    device.kill_agent();
    fs::remove_dir_all(device.path("/run/nodlet/pods")).expect("it is there");
    device.remove_manifest("web.yaml");
    device.start_agent();
    assert_eq!(device.pods(), [""; 0]);
    assert_eq!(device.own_processes(), [device.agent_pid()]);
    assert_eq!(device.container_processes(), [0; 0]);
}

#[test]
fn a_manifest_that_has_no_end_or_never_comes_holds_up_no_other() {
    let device = Device::start();
    fs::create_dir_all(device.manifests()).expect("the root can be written to");
    // Regular files whose size is 0, according to `stat`.
    for (name, target) in [("waits.yaml", "/proc/kmsg"), ("endless.yaml", "/proc/self/pagemap")] {
        std::os::unix::fs::symlink(target, device.manifests().join(name))
            .expect("the root can be written to");
    }
    device.run_pod("web", "print up then sleep").wait_ready();
}

/// Limits the descriptors that an agent may open from now on. `None` restores the previous limit.
fn limit_descriptors(agent: u32, to: Option<u64>) {
    let hard = 4096;
    let limit = libc::rlimit { rlim_cur: to.unwrap_or(hard), rlim_max: hard };
    // SAFETY: the limits are read, and nothing is written back.
    let set =
        unsafe { libc::prlimit(agent as i32, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut()) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn an_agent_without_a_descriptor_to_spare_loses_no_pod_and_no_exit_code() {
    let device = Device::start();
    let (host, shared) = device.shared("host");
    let spec = format!("restartPolicy: Never\nvolumes: [{{name: host, hostPath: {{path: {host}}}}}]");
    let mounts = "volumeMounts: [{name: host, mountPath: /host}]";
    let ends = manifest::container("app", "print up then wait /host/end then exit 3", mounts);
    device.run_pod_of("ends", &[ends], &spec).wait_ready();
    limit_descriptors(device.agent_pid(), Some(3));
    fs::write(shared.join("end"), "").expect("it can be written");
    device.wait_logged("failed to read how app#");
    limit_descriptors(device.agent_pid(), None);
    device.pod("ends").wait_phase("Failed");
    assert_eq!(device.pod("ends").container("app").exit_code(), Some(3));
}

#[test]
fn however_many_pods_there_are_the_agent_keeps_descriptors_to_hear_and_end_with() {
    let device = Device::start();
    limit_descriptors(device.agent_pid(), Some(64));
    let names: Vec<String> = (0..30).map(|number| format!("pod-{number}")).collect();
    for name in &names {
        device.run_pod(name, "sleep");
    }
    device.pod("pod-0").wait_ready();
    let why = "of the 64 files that the agent may have open, the last 32 are not for pods";
    device.wait_for("some pods to get the refusal", || {
        names.iter().any(|name| device.pod(name).container("app").message().contains(why))
    });
    for name in &names {
        device.remove_manifest(&format!("{name}.yaml"));
    }
    device.wait_for("all to be gone", || device.pods().is_empty());
}

fn descriptors_of(process: u32) -> usize {
    let all = fs::read_dir(format!("/proc/{process}/fd"));
    all.expect("it runs").count()
}

#[test]
fn a_new_agent_needs_no_more_descriptors_for_the_same_pods() {
    let mut device = Device::start();
    let names: Vec<String> = (0..12).map(|number| format!("pod-{number}")).collect();
    for name in &names {
        device.run_pod(name, "sleep");
    }
    for name in &names {
        device.pod(name).wait_ready();
    }
    let before = descriptors_of(device.agent_pid());
    device.restart_agent();
    for name in &names {
        device.pod(name).wait_ready();
    }
    let after = descriptors_of(device.agent_pid());
    assert!(after <= before + 2, "{after} descriptors after {before}, with 12 pods of one image");
}

#[test]
fn runs_that_begin_together_leave_descriptors_for_probes_and_the_api() {
    let device = Device::start();
    limit_descriptors(device.agent_pid(), Some(96));
    let probe = "readinessProbe: {exec: {command: [/bin/demo, print, hi]}, periodSeconds: 1}";
    let containers: Vec<String> =
        (0..6).map(|number| manifest::container(&format!("c{number}"), "sleep", probe)).collect();
    for pod in 0..14 {
        let name = format!("pod-{pod}");
        device.run_pod_of(&name, &containers, "terminationGracePeriodSeconds: 1");
    }
    device.wait_logged("files that the agent may have open");
    // Probes and clients must release all descriptors that they use.
    let mut looks = 0;
    device.wait_for("some hundred looks at it", || {
        let open = descriptors_of(device.agent_pid());
        assert!(open <= 92, "{open} of 96 are taken");
        assert!(device.get("/version").is_ok());
        looks += 1;
        looks == 200
    });
    device.assert_not_logged("os error 24");
    device.assert_not_logged("EMFILE");
    for pod in 0..14 {
        device.remove_manifest(&format!("pod-{pod}.yaml"));
    }
    device.wait_for("all to be gone", || device.pods().is_empty());
}

#[test]
fn files_that_containers_can_write_are_not_on_the_run_file_system() {
    let device = Device::start();
    device.run_pod("web", "print up then sleep").wait_ready();
    // Each line has the path of the mounted file within its file system.
    let mounts = device.pod("web").demo("app", "mounts").ok();
    for file in ["/dev/termination-log", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"] {
        let mount = mounts.lines().find(|mount| mount.contains(&format!(" {file} ")));
        let mount = mount.unwrap_or_else(|| panic!("{file} is not mounted: {mounts}"));
        assert!(mount.contains("/var/lib/nodlet/pods/") && !mount.contains("/run/"), "{mount}");
    }
}

#[test]
fn an_agent_that_begins_without_descriptors_to_spare_leaves_living_pods_alone() {
    let mut device = Device::start();
    device.replay_nothing();
    device.run_pod("web", "print up then sleep").wait_ready();
    let living = device.container_processes();
    device.stop_agent();
    let log = device.path("/agent.log");
    for limit in 6..=24 {
        let mut command = device.command(&["agent"]);
        command.stderr(fs::File::create(&log).expect("the root can be written to"));
        // SAFETY: between fork and exec, only one system call is made.
        unsafe {
            command.pre_exec(move || {
                let limit = libc::rlimit { rlim_cur: limit, rlim_max: 4096 };
                if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let mut agent = command.spawn().expect("it can be run");
        let pid = agent.id();
        let says = |what: &str| fs::read_to_string(&log).is_ok_and(|log| log.contains(what));
        let mut is_over = || agent.try_wait().expect("it is a child").is_some();
        device.wait_for("it to end or begin", || is_over() || says("its API is on"));
        if !is_over() {
            limit_descriptors(pid, None);
            device.wait_for("it to answer", || is_over() || device.pod("web").is_ready());
        }
        let _ = agent.kill();
        agent.wait().expect("it is a child");
        assert_eq!(device.container_processes(), living, "with {limit} descriptors");
    }
    device.start_agent();
    device.pod("web").wait_ready();
    assert_eq!(device.pod("web").container("app").restart_count(), 0);
    assert_eq!(device.container_processes(), living);
}

#[test]
fn pods_stay_while_the_directory_of_their_manifests_cannot_be_read() {
    let mut device = Device::start();
    device.run_pod("web", "print up then sleep").wait_ready();
    let living = device.container_processes();
    device.stop_agent();
    let (manifests, aside) = (device.manifests(), device.manifests().with_extension("aside"));
    fs::rename(&manifests, &aside).expect("it is there");
    std::os::unix::fs::symlink(&manifests, &manifests).expect("it is not");
    device.start_agent();
    device.wait_logged("its pods stay unchanged");
    device.pod("web").wait_ready();
    // Replaced atomically, because the pods of a missing directory would be removed.
    let link = manifests.with_extension("link");
    std::os::unix::fs::symlink(&aside, &link).expect("it is not");
    fs::rename(&link, &manifests).expect("it is there");
    device.run_pod("other", "print up then sleep").wait_ready();
    assert!(living.iter().all(|pid| device.container_processes().contains(pid)));
}
