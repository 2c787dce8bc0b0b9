//! A card that takes seconds for a read delays what reads or writes the card, and nothing else.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nodlet_tests::slow::SlowDirectory;
use nodlet_tests::{Device, manifest};

/// Where the device's image would bring its manifests.
const SLOW: &str = "/usr/lib/nodlet/manifests";

#[test]
fn a_read_that_takes_long_delays_no_probe_no_get_and_no_exec() {
    let device = Device::start();
    let slow =
        SlowDirectory::mount(&device, SLOW, "slow.yaml", &manifest::pod("slow", "print one then sleep"));
    let (shared, probed) = device.shared("probed");
    let probe = "readinessProbe: {exec: {command: [/bin/demo, append, /probed/times, x]}, periodSeconds: 1}\n\
                 volumeMounts: [{name: probed, mountPath: /probed}]";
    let volumes = format!("volumes: [{{name: probed, hostPath: {{path: {shared}}}}}]");
    let web = device.write_single("web", "print begun then sleep", probe, &volumes).wait_ready();
    device.pod("slow").wait_log("app", "one");

    slow.stall();
    slow.write(&manifest::pod("slow", "print two then sleep"));
    // Has all directories looked at.
    device.run_pod("late", "sleep");
    device.wait_for("the card to be read", || slow.is_awaited());
    // Logs are read by the same thread.
    let mut logs =
        device.command(&["logs", "web"]).stdout(Stdio::piped()).spawn().expect("nodlet can be started");
    let probes = || fs::read_to_string(probed.join("times")).unwrap_or_default().lines().count();
    let (before, since) = (probes(), Instant::now());
    let mut longest = Duration::ZERO;
    device.wait_for("four more probes", || {
        let asked = Instant::now();
        assert_eq!(device.pods(), ["slow", "web"]);
        web.demo("app", "print one").ok();
        longest = longest.max(asked.elapsed());
        probes() >= before + 4
    });
    let took = since.elapsed();
    eprintln!("four probes within {took:?}; get and exec took at most {longest:?} together");
    assert!(took < Duration::from_secs(20), "four probes took {took:?}");
    assert!(longest < Duration::from_secs(2), "get and exec took {longest:?}");
    assert_eq!(logs.try_wait().expect("it is a child"), None, "logs were read past the stalled read");
    assert!(slow.is_awaited() && web.is_ready());

    slow.recover();
    let logs = logs.wait_with_output().expect("it is a child");
    assert!(logs.status.success() && String::from_utf8_lossy(&logs.stdout).contains("begun"), "{logs:?}");
    device.pod("slow").wait_log("app", "two");
    device.pod("late").wait_ready();
    assert_eq!(web.container("app").restart_count(), 0);
}

#[test]
fn a_card_that_answers_no_more_makes_the_agent_unhealthy_until_it_recovers() {
    let device = Device::start();
    let slow = SlowDirectory::mount(&device, SLOW, "slow.yaml", &manifest::pod("slow", "sleep"));
    device.run_pod("web", "sleep");
    device.pod("slow").wait_ready();
    slow.stall();
    slow.write(&manifest::pod("slow", "print two then sleep"));
    device.run_pod("late", "sleep");
    device.wait_for("the card to be read", || slow.is_awaited());
    let since = Instant::now();
    device.nodlet(["healthcheck"]).ok();
    device.wait_within(Duration::from_secs(120), "the agent to be unhealthy", || {
        let checked = device.nodlet(["healthcheck"]);
        checked.code == 1 && checked.stderr.contains("the agent's storage thread hangs")
    });
    assert!(since.elapsed() > Duration::from_secs(30), "a slow card is no reason");
    slow.recover();
    device.pod("late").wait_ready();
    device.nodlet(["healthcheck"]).ok();
}

#[test]
fn apply_and_delete_are_answered_only_after_a_slow_card_has_been_read() {
    let device = Device::start();
    let slow = SlowDirectory::mount(&device, SLOW, "slow.yaml", &manifest::pod("slow", "sleep"));
    device.run_pod("web", "sleep").wait_ready();
    device.apply(&manifest::pod("old", "sleep"));
    device.wait_all_ready(["old", "slow"]);

    slow.stall();
    // The thread that reads the card also writes what clients apply and delete.
    device.run_pod("web", "print two then sleep");
    device.wait_for("the card to be read", || slow.is_awaited());
    let mut requests: Vec<_> = ["one", "two", "three"]
        .into_iter()
        .map(|name| {
            let file = device.path(name);
            fs::write(&file, manifest::pod(name, "sleep")).expect("the root can be written to");
            device
                .command(&["apply", "-f", &file.display().to_string()])
                .spawn()
                .expect("nodlet can be started")
        })
        .collect();
    let delete = device.command(&["delete", "pod", "old"]).spawn();
    requests.push(delete.expect("nodlet can be started"));
    // A client that sleeps with an open socket has sent its request.
    let waits = |client: &std::process::Child| {
        let proc = format!("/proc/{}", client.id());
        let sleeps = fs::read_to_string(format!("{proc}/stat")).is_ok_and(|stat| stat.contains(") S "));
        let links = fs::read_dir(format!("{proc}/fd")).into_iter().flatten().flatten();
        let mut links = links.filter_map(|entry| fs::read_link(entry.path()).ok());
        sleeps && links.any(|link| link.to_string_lossy().starts_with("socket:"))
    };
    device.wait_for("the requests", || requests.iter().all(waits));
    assert_eq!(device.pods(), ["old", "slow", "web"]);
    for request in &mut requests {
        assert_eq!(request.try_wait().expect("it is a child"), None, "it was answered too early");
    }
    slow.recover();
    for mut request in requests {
        assert!(request.wait().expect("it is a child").success());
    }
    assert_eq!(device.pods(), ["one", "slow", "three", "two", "web"], "what is answered is there");
    device.nodlet(["delete", "pod", "one", "two", "three"]).ok();
}
