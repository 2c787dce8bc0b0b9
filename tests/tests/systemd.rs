//! nodlet as a service of a real systemd, together with NetworkManager, systemd-networkd and
//! systemd-resolved. The tests check what `docs/systemd.md` says of them, with the files of `board/systemd`
//! installed where that document says.
//!
//! `cargo xtask guest systemd` runs these tests, in a machine of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodlet_tests::service::{is_ready, journal, property, run, try_run, wait_for};
use nodlet_tests::{demo_archive, manifest, service};
use serde_json::Value;

/// The directory of the unit's drop-ins, which a test creates.
const DROP_INS: &str = "/run/systemd/system/nodlet.service.d";

/// Overrides nodlet's file for networkd, as if it were not installed.
const NO_FILE_FOR_NETWORKD: &str = "/run/systemd/network/05-nodlet.network";

/// Overrides nodlet's file for NetworkManager, as if it were not installed.
const NO_FILE_FOR_NETWORKMANAGER: &str = "/run/NetworkManager/conf.d/80-nodlet.conf";

/// Makes NetworkManager write /etc/resolv.conf itself.
const FILE_OF_NETWORKMANAGER: &str = "/run/NetworkManager/conf.d/90-file.conf";

/// A file for networkd that matches all wired interfaces, as on many machines.
const EVERYTHING_WIRED: &str = "/run/systemd/network/20-wired.network";

/// The services that manage the network, one at a time.
const OTHERS: &str = "NetworkManager systemd-networkd.socket systemd-networkd systemd-resolved";

fn agent() -> Pid {
    Pid::from_raw(property("MainPID").parse().expect("it is a number"))
}

/// The processes whose command line begins like this, wherever the program is installed.
fn processes(line: &str) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").expect("it is mounted").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_it = |pid: &i32| {
        let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
        text.starts_with(line)
            || text.split(' ').next().is_some_and(|word| word.ends_with(&format!("/{line}")))
    };
    pids.filter(is_it).map(Pid::from_raw).collect()
}

/// The v2 cgroup of a process.
fn cgroup(pid: Pid) -> PathBuf {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it lives");
    text.trim().strip_prefix("0::").expect("there is only v2").into()
}

/// nodlet as it is installed in the machine: its service is running, and the demo image is loaded.
struct Service;

impl Service {
    #[track_caller]
    fn start() -> Service {
        run("systemctl start nodlet");
        let service = Service;
        run(&format!("nodlet image load {}", demo_archive().display()));
        service
    }

    /// A pod of one container, which is deleted when its file is removed.
    fn pod(&self, name: &str, text: &str) -> TestPod {
        fs::create_dir_all("/etc/nodlet/manifests").expect("/etc can be written to");
        fs::write(format!("/etc/nodlet/manifests/{name}.yaml"), text).expect("/etc can be written to");
        let pod = TestPod { name: name.to_owned() };
        wait_for(&format!("{name} to be ready"), || pod.is_ready());
        pod
    }
}

impl Drop for Service {
    /// Ends the pods as `docs/systemd.md` says; nothing of them may be left afterwards.
    fn drop(&mut self) {
        if thread::panicking() {
            println!("{}", journal());
        }
        let _ = fs::remove_dir_all("/etc/nodlet/manifests");
        let _ = fs::remove_dir_all(DROP_INS);
        let files =
            [NO_FILE_FOR_NETWORKD, NO_FILE_FOR_NETWORKMANAGER, FILE_OF_NETWORKMANAGER, EVERYTHING_WIRED];
        for file in files {
            let _ = fs::remove_file(file);
        }
        try_run(&format!("systemctl stop {OTHERS}"));
        for line in
            ["systemctl stop nodlet", "nodlet down", "systemctl daemon-reload", "systemctl reset-failed"]
        {
            let (ok, said) = try_run(line);
            if !thread::panicking() {
                assert!(ok, "{line}: {said}");
            }
        }
        if !thread::panicking() {
            assert_eq!(links(), Vec::<String>::new());
            assert_eq!(processes("nodlet"), []);
            assert!(!Path::new("/run/nodlet").exists());
        }
    }
}

struct TestPod {
    name: String,
}

impl TestPod {
    fn status(&self) -> Value {
        service::pod(&self.name)["status"].clone()
    }

    fn is_ready(&self) -> bool {
        is_ready(&self.name)
    }

    fn restarts(&self) -> i64 {
        self.status()["containerStatuses"][0]["restartCount"].as_i64().expect("it has a container")
    }

    /// The process of the pod's container: no other pod sleeps for the same number of seconds.
    fn process(&self, sleep: u32) -> Pid {
        let found = processes(&format!("/bin/demo sleep {sleep}"));
        assert_eq!(found.len(), 1, "who sleep {sleep} s\n{}", journal());
        found[0]
    }

    fn exec(&self, words: &str) -> String {
        run(&format!("nodlet exec {} -- {words}", self.name))
    }
}

/// The network interfaces of pods on this machine.
fn links() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/net").expect("/sys is mounted");
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut links: Vec<String> = names.filter(|name| name.starts_with("nl")).collect();
    links.sort();
    links
}

fn limited(name: &str, steps: &str) -> String {
    manifest::single(name, steps, "resources: {limits: {memory: 64Mi, cpu: 500m}}", "")
}

/// Gives pods twenty seconds when the machine shuts down, the last five of them for critical pods.
fn give_time_to_end() {
    let flags = "--shutdown-grace-period 20s --shutdown-grace-period-critical-pods 5s";
    let exec = format!("[Service]\nExecStart=\nExecStart=/usr/bin/nodlet agent {flags}\n");
    write(format!("{DROP_INS}/flags.conf"), &exec);
    write("/run/systemd/logind.conf.d/99-nodlet.conf", "[Login]\nInhibitDelayMaxSec=20\n");
    run("systemctl daemon-reload");
    run("systemctl start dbus");
    run("systemctl restart systemd-logind");
}

fn write(file: impl AsRef<Path>, text: &str) {
    let file = file.as_ref();
    fs::create_dir_all(file.parent().expect("it lies in a directory")).expect("/run can be written to");
    fs::write(file, text).expect("/run can be written to");
}

#[test]
#[ignore = "needs systemd: cargo xtask guest systemd"]
fn systemd_finds_no_fault_in_the_unit_and_start_returns_when_the_api_answers() {
    assert_eq!(run("systemd-analyze verify --man=no /usr/lib/systemd/system/nodlet.service"), "");
    run("systemctl start nodlet");
    let _service = Service;
    assert_eq!(property("SubState"), "running");
    run("nodlet get pods");
    let all = run("nodlet get nodes");
    assert!(all.contains("Ready"), "{all}");
}

#[test]
#[ignore = "needs systemd: cargo xtask guest systemd"]
fn pods_live_below_the_delegated_cgroup_beside_the_agent_with_their_limits() {
    let service = Service::start();
    let pod = service.pod("web", &limited("web", "sleep 4711"));
    assert_eq!(cgroup(agent()), Path::new("/system.slice/nodlet.service/agent"));
    let leaf = cgroup(pod.process(4711));
    assert!(leaf.starts_with("/system.slice/nodlet.service/"), "{}", leaf.display());
    let read = |file: &str| {
        let path = Path::new("/sys/fs/cgroup").join(leaf.strip_prefix("/").expect("it has one")).join(file);
        fs::read_to_string(path).expect("the controller is on")
    };
    assert_eq!(read("memory.max"), format!("{}\n", 64 << 20));
    assert_eq!(read("cpu.max"), "50000 100000\n");
    let tops = fs::read_dir("/sys/fs/cgroup").expect("it is mounted").flatten();
    let ours = tops.filter(|entry| entry.file_name().to_string_lossy().starts_with("nodlet"));
    assert_eq!(ours.count(), 0, "something lies at the top");
    assert!(run("systemctl status nodlet").contains("sleep 4711"), "systemd knows whose they are");
}

#[test]
#[ignore = "needs systemd: cargo xtask guest systemd"]
fn pods_go_on_whatever_becomes_of_the_service() {
    let service = Service::start();
    let pod = service.pod("web", &limited("web", "sleep 4711"));
    let (process, mut before) = (pod.process(4711), agent());
    let mut is_as_it_was = |what: &str| {
        assert_eq!(pod.process(4711), process, "{what}");
        wait_for(&format!("the pod to be ready after {what}"), || pod.is_ready());
        assert_eq!(pod.restarts(), 0, "{what}");
        assert_ne!(std::mem::replace(&mut before, agent()), agent(), "{what}");
    };
    run("systemctl restart nodlet");
    is_as_it_was("a restart");

    run("systemctl stop nodlet");
    assert_eq!(property("ActiveState"), "inactive");
    assert_eq!(pod.process(4711), process, "the service was stopped");
    run("systemctl daemon-reload");
    run("systemctl start nodlet");
    is_as_it_was("a stop and a start");

    kill(agent(), Signal::SIGKILL).expect("it runs");
    let killed = agent();
    wait_for("another agent", || property("SubState") == "running" && agent() != killed);
    is_as_it_was("a kill");

    run("systemctl daemon-reexec");
    run("systemctl restart nodlet");
    is_as_it_was("another systemd");

    // The settings that systemd applied when it started the service have removed no controller.
    let later = service.pod("later", &limited("later", "sleep 4712"));
    let leaf = cgroup(later.process(4712));
    let path = Path::new("/sys/fs/cgroup").join(leaf.strip_prefix("/").expect("it has one"));
    assert_eq!(fs::read_to_string(path.join("memory.max")).expect("it is on"), format!("{}\n", 64 << 20));
}

#[test]
#[ignore = "needs systemd: cargo xtask guest systemd"]
fn an_agent_that_hangs_is_started_anew_and_its_pods_notice_nothing() {
    let service = Service::start();
    let pod = service.pod("web", &manifest::pod("web", "sleep 4711"));
    let (process, hung) = (pod.process(4711), agent());
    assert_eq!(property("WatchdogUSec"), "1min");
    // systemd lets an agent run whose main loop turns, even longer than the interval.
    thread::sleep(Duration::from_secs(90));
    assert_eq!(agent(), hung, "{}", journal());
    kill(hung, Signal::SIGSTOP).expect("it runs");
    wait_for("another agent", || property("SubState") == "running" && agent() != hung);
    wait_for("the pod to be ready", || pod.is_ready());
    assert_eq!((pod.process(4711), pod.restarts()), (process, 0));
    assert!(journal().contains("Watchdog timeout"), "{}", journal());
}

#[test]
#[ignore = "needs systemd: cargo xtask guest systemd"]
fn logind_waits_for_the_pods_to_end_and_says_when_the_machine_stays_after_all() {
    // Powering off does nothing here: logind then finishes the request, and reports it.
    write("/run/systemd/system/poweroff.target", "[Unit]\nDescription=Nothing\nDefaultDependencies=no\n");
    give_time_to_end();
    let service = Service::start();
    let usual = service.pod("usual", &manifest::pod("usual", "on-term 0 1 then sleep 4711"));
    let critical = manifest::pod_with(
        "critical",
        "on-term 0 1 then sleep 4712",
        "priorityClassName: system-node-critical",
    );
    let critical = service.pod("critical", &critical);
    let held = || run("systemd-inhibit --list --no-pager --mode=delay");
    wait_for("the lock", || held().contains("nodlet"));

    run(
        "busctl call org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager PowerOff b false",
    );
    // The pods end, and run again because the machine stays on.
    for pod in [&usual, &critical] {
        let again = || pod.is_ready() && pod.status()["containerStatuses"][0]["restartCount"] == 1;
        wait_for(&format!("{} to run again", pod.name), again);
    }
    wait_for("the lock to be taken again", || held().contains("nodlet"));
    let said = run("nodlet events");
    for words in
        ["Shutdown manager detected shutdown event", "Shutdown manager detected shutdown cancellation"]
    {
        assert!(said.contains(words), "{said}");
    }
    let ended = |pod: &TestPod| {
        let last = pod.status()["containerStatuses"][0]["lastState"]["terminated"].take();
        last["finishedAt"].as_str().map(str::to_owned).unwrap_or_else(|| panic!("{last}"))
    };
    assert!(ended(&usual) < ended(&critical), "the critical one ends last");
    let log = run("journalctl --no-pager --unit=nodlet --output=cat");
    assert!(log.contains("all pods have ended; the machine may go down"), "{log}");
    for file in ["/run/systemd/system/poweroff.target", "/run/systemd/logind.conf.d/99-nodlet.conf"] {
        fs::remove_file(file).expect("it is there");
    }
}

#[test]
#[ignore = "turns the machine off: cargo xtask guest poweroff"]
fn a_machine_that_is_turned_off_goes_down_when_its_pods_have_ended_in_their_order() {
    give_time_to_end();
    let service = Service::start();
    let pod = |name: &str, spec: &str| {
        let hook = format!("{{exec: {{command: [/bin/demo, append, /host/ended, {name}]}}}}");
        let fields =
            format!("lifecycle: {{preStop: {hook}}}\nvolumeMounts: [{{name: host, mountPath: /host}}]");
        let volumes = "volumes: [{name: host, hostPath: {path: /var/tmp/host, type: DirectoryOrCreate}}]";
        service.pod(
            name,
            &manifest::single(name, "on-term 0 2 then sleep", &fields, &format!("{volumes}\n{spec}")),
        )
    };
    let critical = pod("critical", "priorityClassName: system-node-critical");
    let usual = pod("usual", "");
    for pod in [&critical, &usual] {
        assert_eq!(pod.restarts(), 0);
    }
    wait_for("the lock", || run("systemd-inhibit --list --no-pager --mode=delay").contains("nodlet"));

    run("systemctl poweroff --no-block");
    // What systemd stops from here on it stops after logind's delay.
    wait_for("systemd to stop what runs", || try_run("systemctl is-system-running").1.trim() == "stopping");
    let log = run("journalctl --no-pager --unit=nodlet --output=cat");
    assert!(log.contains("all pods have ended; the machine may go down"), "{log}");
    let ended = fs::read_to_string("/var/tmp/host/ended").expect("hooks wrote it");
    assert_eq!(ended, "usual\ncritical\n", "{log}");
    assert_eq!(processes("/bin/demo"), []);
    wait_for("the agent to be stopped", || property("ActiveState") == "inactive");
    assert_eq!(property("Result"), "success");
    // The machine is off once this service has ended, so nothing can clean up.
    std::mem::forget(service);
}

#[test]
#[ignore = "needs systemd: cargo xtask guest systemd"]
fn an_agent_of_another_unit_finds_the_pods_and_adds_to_them() {
    let service = Service::start();
    let pod = service.pod("web", &manifest::pod("web", "sleep 4711"));
    let process = pod.process(4711);
    run("systemctl stop nodlet");
    run("systemd-run --quiet --unit=other nodlet agent");
    wait_for("the pod to be ready", || pod.is_ready());
    assert_eq!((pod.process(4711), pod.restarts()), (process, 0));
    let later = service.pod("later", &limited("later", "sleep 4712"));
    let leaf = cgroup(later.process(4712));
    assert!(leaf.starts_with("/system.slice/nodlet.service/"), "{}", leaf.display());
    // The other agent delays the service only until it has been stopped.
    run("systemctl stop other");
    run("systemctl start nodlet");
    wait_for("both to be ready", || pod.is_ready() && later.is_ready());
    assert_eq!((pod.process(4711), pod.restarts(), later.restarts()), (process, 0, 0));
}

/// systemd before 254 lacks DelegateSubgroup=, and could start no process in a cgroup with pods below.
#[test]
#[ignore = "needs systemd: cargo xtask guest systemd"]
fn under_a_systemd_without_subgroups_pods_lie_at_the_top_and_survive_a_restart() {
    write(Path::new(DROP_INS).join("old.conf"), "[Service]\nDelegateSubgroup=\n");
    run("systemctl daemon-reload");
    let service = Service::start();
    assert_eq!(cgroup(agent()), Path::new("/system.slice/nodlet.service"));
    let pod = service.pod("web", &limited("web", "sleep 4711"));
    let process = pod.process(4711);
    assert!(cgroup(process).to_string_lossy().starts_with("/nodlet-"), "{}", cgroup(process).display());
    run("systemctl restart nodlet");
    wait_for("the pod to be ready", || pod.is_ready());
    assert_eq!((pod.process(4711), pod.restarts()), (process, 0));
}

#[test]
#[ignore = "needs systemd: cargo xtask guest systemd"]
fn down_ends_the_service_too_and_it_stays_ended() {
    let service = Service::start();
    service.pod("web", &manifest::pod("web", "sleep 4711"));
    run("nodlet down");
    wait_for("the service to have ended", || property("ActiveState") == "inactive");
    assert_eq!(processes("nodlet"), []);
}

#[test]
#[ignore = "needs systemd: cargo xtask guest systemd"]
fn networkmanager_leaves_the_links_of_pods_alone() {
    let service = Service::start();
    service.pod("web", &manifest::pod("web", "sleep 4711"));
    run("systemctl start NetworkManager");
    let state = |link: &str| try_run(&format!("nmcli --get-values GENERAL.STATE device show {link}")).1;
    let bridge = links().remove(0);
    assert_eq!(links().len(), 2, "a bridge and one pod: {:?}", links());
    for link in links() {
        wait_for("NetworkManager to leave it alone", || state(&link).starts_with("10 (unmanaged)"));
    }
    // Also an interface that appears while NetworkManager is running.
    service.pod("later", &manifest::pod("later", "sleep 4712"));
    for link in links() {
        wait_for("NetworkManager to leave it alone", || state(&link).starts_with("10 (unmanaged)"));
    }
    // Without nodlet's file, NetworkManager manages the bridge.
    write(NO_FILE_FOR_NETWORKMANAGER, "");
    run("systemctl restart NetworkManager");
    wait_for("NetworkManager to take the bridge", || state(&bridge).contains("connect"));
}

#[test]
#[ignore = "needs systemd: cargo xtask guest systemd"]
fn networkd_leaves_the_links_of_pods_alone() {
    let service = Service::start();
    let pod = service.pod("web", &manifest::pod("web", "sleep 4711"));
    write(EVERYTHING_WIRED, "[Match]\nType=ether bridge\n[Network]\nDHCP=yes\n");
    run("systemctl start systemd-networkd");
    let state = |link: &str| {
        let text = try_run("networkctl --json=short list").1;
        let list: Value = serde_json::from_str(&text).unwrap_or_default();
        let all = list["Interfaces"].as_array().cloned().unwrap_or_default();
        let found = all.iter().find(|interface| interface["Name"] == link);
        found.map(|found| found["AdministrativeState"].to_string()).unwrap_or_default()
    };
    assert_eq!(links().len(), 2, "a bridge and one pod: {:?}", links());
    for link in links() {
        wait_for("networkd to leave it alone", || state(&link) == "\"unmanaged\"");
    }
    // Also an interface that appears while networkd is running.
    let later = service.pod("later", &manifest::pod("later", "serve 8080 /srv"));
    assert_eq!(links().len(), 3);
    for link in links() {
        wait_for("networkd to leave it alone", || state(&link) == "\"unmanaged\"");
    }
    let address = later.status()["podIP"].as_str().expect("it has one").to_owned();
    let get = format!("nodlet exec {} -- /bin/demo get http://{address}:8080/", pod.name);
    run(&get);
    // Without nodlet's file, networkd manages all interfaces and removes the addresses that it has not set:
    // pods are cut off.
    write(NO_FILE_FOR_NETWORKD, "");
    run("systemctl restart systemd-networkd");
    for link in links() {
        wait_for("networkd to take it", || state(&link).contains("config"));
    }
    wait_for("networkd to cut the pods off", || !try_run(&get).0);
}

#[test]
#[ignore = "needs systemd: cargo xtask guest systemd"]
fn resolv_conf_of_pods_follows_resolved_and_networkmanager() {
    let service = Service::start();
    run("systemctl start systemd-resolved");
    run("ip link add lan0 type dummy");
    run("ip link set lan0 up");
    run("resolvectl dns lan0 192.0.2.1");
    let conf = fs::read_to_string("/etc/resolv.conf").expect("it leads to what resolved wrote");
    assert!(conf.contains("nameserver 127.0.0.53"), "{conf}");
    let pod = service.pod("web", &manifest::pod_with("web", "sleep 4711", "dnsPolicy: Default"));
    let asks = |server: &str| {
        wait_for(&format!("the pod to ask {server}"), || {
            pod.exec("/bin/demo cat /etc/resolv.conf").contains(&format!("nameserver {server}\n"))
        });
    };
    asks("192.0.2.1");
    run("resolvectl dns lan0 192.0.2.2");
    asks("192.0.2.2");

    // NetworkManager writes the file itself if the file is not a link.
    run("systemctl stop systemd-resolved");
    fs::remove_file("/etc/resolv.conf").expect("/etc can be written to");
    write("/etc/resolv.conf", "nameserver 192.0.2.3\n");
    asks("192.0.2.3");
    write(FILE_OF_NETWORKMANAGER, "[main]\ndns=default\nrc-manager=file\nsystemd-resolved=false\n");
    run("ip link delete lan0");
    run("systemctl start NetworkManager");
    run(
        "nmcli connection add type dummy con-name lan1 ifname lan1 ip4 198.51.100.7/24 ipv4.dns 198.51.100.1",
    );
    asks("198.51.100.1");
    run("nmcli connection modify lan1 ipv4.dns 198.51.100.2");
    run("nmcli connection up lan1");
    asks("198.51.100.2");
    run("nmcli connection delete lan1");
}
