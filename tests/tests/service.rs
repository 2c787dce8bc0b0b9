//! nodlet on other systems: the notifications to a service manager, and the network configuration of the
//! machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodlet_tests::{Device, demo_archive};

/// A service manager that reads every notification as soon as it is sent.
struct Manager(Receiver<String>);

impl Manager {
    fn listen(address: &Path) -> Manager {
        let socket = UnixDatagram::bind(address).expect("the root can be written to");
        let (sender, reported) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 256];
            while let Ok(length) = socket.recv(&mut bytes) {
                if sender.send(String::from_utf8_lossy(&bytes[..length]).into_owned()).is_err() {
                    return;
                }
            }
        });
        Manager(reported)
    }

    /// The next notification, if one arrives within the time.
    fn next(&self, within: Duration) -> Option<String> {
        self.0.recv_timeout(within).ok()
    }
}

const SOON: Duration = Duration::from_secs(60);

#[test]
fn the_service_manager_is_notified_of_readiness_keep_alive_and_stopping() {
    let mut device = Device::new();
    let address = device.path("notify");
    let manager = Manager::listen(&address);
    device.agent_variable("NOTIFY_SOCKET", &address);
    device.agent_variable("WATCHDOG_USEC", "400000");
    device.launch_agent();
    assert_eq!(manager.next(SOON).as_deref(), Some("READY=1"));
    assert!(device.get("/version").is_ok(), "who is ready answers");
    for _ in 0..3 {
        assert_eq!(manager.next(SOON).as_deref(), Some("WATCHDOG=1"));
    }

    let agent = Pid::from_raw(device.agent_pid().cast_signed());
    kill(agent, Signal::SIGSTOP).expect("a child can be signalled");
    // Notifications that were already sent arrive, and then none for many times the interval.
    let still = (0..20).take_while(|_| manager.next(Duration::from_secs(2)).is_some()).count();
    assert!(still < 20, "an agent that does not turn says that it lives");
    kill(agent, Signal::SIGCONT).expect("a child can be signalled");
    assert_eq!(manager.next(SOON).as_deref(), Some("WATCHDOG=1"));

    device.load_image(demo_archive());
    device.run_pod("web", "env then sleep").wait_log("app", "PATH=");
    assert!(!device.pod("web").logs("app").contains("NOTIFY_SOCKET"), "a pod must not speak for the agent");
    for pid in device.own_processes().into_iter().filter(|pid| *pid != device.agent_pid()) {
        let environment = fs::read(format!("/proc/{pid}/environ")).expect("the supervisor lives");
        assert!(!String::from_utf8_lossy(&environment).contains("NOTIFY_SOCKET"), "nor a supervisor");
    }

    assert_eq!(device.stop_agent(), 0);
    while let Some(message) = manager.next(SOON) {
        if message == "STOPPING=1" {
            return;
        }
        assert_eq!(message, "WATCHDOG=1");
    }
    panic!("nobody said that the agent ends");
}

#[test]
fn process_1_sees_the_progress_of_the_agents_loop_in_a_shared_page() {
    let mut device = Device::new();
    let page = device.path("progress");
    let mut bytes = [0; 4096];
    bytes[8..12].copy_from_slice(&100u32.to_ne_bytes());
    fs::write(&page, bytes).expect("the root can be written to");
    device.agent_variable("NODLET_PROGRESS", &page);
    device.launch_agent();
    let latest = || {
        let bytes = fs::read(&page).expect("it is a file");
        u64::from_ne_bytes(bytes[..8].try_into().expect("eight bytes"))
    };
    let turns = |device: &Device| {
        let before = latest();
        device.wait_for("progress of the loop", || latest() > before);
    };
    (0..3).for_each(|_| turns(&device));
    let agent = Pid::from_raw(device.agent_pid().cast_signed());
    kill(agent, Signal::SIGSTOP).expect("a child can be signalled");
    // Notifications that were already sent arrive, and then none for many times the interval.
    let stopped = |before: u64| {
        thread::sleep(Duration::from_secs(2));
        latest() == before
    };
    assert!((0..5).any(|_| stopped(latest())), "an agent that does not turn stores progress");
    kill(agent, Signal::SIGCONT).expect("a child can be signalled");
    turns(&device);
}

#[test]
fn a_watchdog_that_is_for_another_process_is_not_fed() {
    let mut device = Device::new();
    let address = device.path("notify");
    let manager = Manager::listen(&address);
    device.agent_variable("NOTIFY_SOCKET", &address);
    device.agent_variable("WATCHDOG_USEC", "100000");
    device.agent_variable("WATCHDOG_PID", "1");
    device.start_agent();
    assert_eq!(manager.next(SOON).as_deref(), Some("READY=1"));
    assert_eq!(manager.next(Duration::from_secs(1)), None);
}

#[test]
fn resolv_conf_of_running_pods_follows_the_machines_however_that_changes() {
    let mut device = Device::new();
    let etc = device.own_etc();
    let conf = etc.join("resolv.conf");
    fs::write(&conf, "nameserver 192.0.2.1\n").expect("/tmp can be written to");
    device.start_agent();
    device.load_image(demo_archive());
    device.run_pod_with("web", "sleep", "dnsPolicy: Default");
    let own = "dnsPolicy: None\ndnsConfig: {nameservers: [192.0.2.99]}";
    device.run_pod_with("own", "sleep", own);
    device.wait_all_ready(["web", "own"]);
    assert!(sees(&device, "web", "192.0.2.1"));
    let changed = |how: &str, server: &str| device.wait_for(how, || sees(&device, "web", server));

    fs::write(&conf, "nameserver 192.0.2.2\n").expect("it can be written to");
    changed("what was written where it lies", "192.0.2.2");
    let new = etc.join("resolv.conf.new");
    fs::write(&new, "nameserver 192.0.2.3\n").expect("it can be written to");
    fs::rename(&new, &conf).expect("it can be replaced");
    changed("what was renamed over it", "192.0.2.3");

    for (number, target) in [(4, "a.conf"), (5, "b.conf")] {
        fs::create_dir_all(etc.join("net")).expect("it can be written to");
        fs::write(etc.join("net").join(target), format!("nameserver 192.0.2.{number}\n")).expect("it can");
        symlink(format!("net/{target}"), &new).expect("it can be written to");
        fs::rename(&new, &conf).expect("it can be replaced");
        changed("where the link leads now", &format!("192.0.2.{number}"));
    }
    fs::write(etc.join("net/b.conf"), "nameserver 192.0.2.6\n").expect("it can be written to");
    changed("what was written where the link leads", "192.0.2.6");

    // While the file is missing, pods keep their name servers. A new agent also checks the file for changes.
    fs::remove_file(&conf).expect("it is there");
    device.restart_agent();
    assert!(sees(&device, "web", "192.0.2.6"));
    device.kill_agent();
    fs::write(&conf, "nameserver 192.0.2.7\n").expect("it can be written to");
    device.start_agent();
    device.wait_for("what changed while no agent ran", || sees(&device, "web", "192.0.2.7"));
    assert!(sees(&device, "own", "192.0.2.99"), "this one said what it wants");
    assert_eq!(device.pod("web").container("app").restart_count(), 0);
}

fn sees(device: &Device, pod: &str, server: &str) -> bool {
    let text = device.pod(pod).demo("app", "cat /etc/resolv.conf").stdout;
    text == format!("nameserver {server}\n")
}
