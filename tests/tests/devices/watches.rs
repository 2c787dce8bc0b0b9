//! What watches devices, and all other files: one instance of inotify, or none.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Stdio};

use nodlet_tests::{Background, Device, demo_archive};

use super::{Node, asking, define, offer, resource};

/// The instances of inotify of a device's agent.
fn instances(device: &Device) -> usize {
    let files = fs::read_dir(format!("/proc/{}/fd", device.agent_pid())).expect("the agent runs");
    let links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    links.filter(|link| link == Path::new("anon_inode:inotify")).count()
}

/// The kernel allows the user of all agents of a machine few instances of inotify.
#[test]
fn an_agent_that_watches_devices_images_and_manifests_and_follows_logs_has_one_instance_of_inotify() {
    let device = Device::start();
    let instances = || instances(&device);
    let node = Node::plugged("radio");
    offer(&device, "radio", &format!("path: {}\n", node.path()));
    device.write_manifest("radio.yaml", &asking("radio", "print on then sleep", "nodlet.dev/radio: 1"));
    device.run_pod("web", "print up then sleep");
    device.pod("radio").wait_log("app", "on\n");
    device.pod("web").wait_ready();
    let mut followers: Vec<Child> = ["radio", "web", "web"]
        .map(|pod| device.command(&["logs", "-f", pod]).stdout(Stdio::piped()).spawn().expect("it starts"))
        .into();
    for follower in &mut followers {
        let mut begun = [0; 2];
        let output = follower.stdout.as_mut().expect("it is a pipe");
        output.read_exact(&mut begun).expect("each pod prints something");
    }
    assert_eq!(instances(), 1);
    // Of pods that end, the agent watches the cgroups.
    for name in ["web", "radio"] {
        device.remove_manifest(&format!("{name}.yaml"));
    }
    device.wait_for("the pods to be gone", || {
        assert_eq!(instances(), 1);
        ["web", "radio"].iter().all(|name| device.pod(name).object().is_none())
    });
    for mut follower in followers {
        assert!(follower.wait().expect("it is our child").success(), "a log ends with its container");
    }
}

/// A machine with many agents, or with hostile pods of UID 0, has no instance left for an agent.
/// Uevents of the machine, such as those of other agents' loop devices, have devices looked up as well: a test of
/// `devices/watch.rs` shows that the agent does it without them.
#[test]
fn without_an_instance_of_inotify_each_watcher_looks_from_time_to_time() {
    let mut device = Device::new();
    device.lack_inotify();
    let resolvers = device.path("resolv.conf");
    fs::write(&resolvers, "nameserver 192.0.2.1\n").expect("the directory can be written to");
    device.agent_arguments(["--resolv-conf", &resolvers.to_string_lossy()]);
    device.start_agent();
    let said = |what: &str| {
        let (log, line) = (device.agent_log(), format!("failed to watch {what}"));
        assert_eq!(log.matches(&line).count(), 1, "{line}: {log}");
    };

    // Manifests, the definition of a device, and then an image.
    let (web, modem, node) = (device.pod("web"), device.pod("modem"), Node::named("dongle"));
    let definition = format!("name: dongle\npath: {}\ncontainerPath: /dev/dongle\n", node.path());
    define(&device, "dongle.yaml", &definition);
    device.run_pod_with("web", "print tick 1", "dnsPolicy: Default");
    device.wait_for("the resource", || resource(&device, "capacity", "dongle") == "1");
    device.wait_for("the pod to wait for its image", || !web.events().is_empty());
    let steps = "open /dev/dongle then sleep";
    device.write_manifest("modem.yaml", &asking("modem", steps, "nodlet.dev/dongle: 1"));
    device.load_image(demo_archive());
    web.wait_ready();

    // The name servers of the machine, a log that is followed, and the device: it comes, goes, and comes back as another one.
    fs::write(&resolvers, "nameserver 192.0.2.2\n").expect("the directory can be written to");
    let follower = Background::start(device.command(&["logs", "-f", "web"]));
    device.wait_for("the log", || follower.saw(|line| line.starts_with("tick ")));
    let shown = web.logs("app").lines().count();
    device.wait_for("what is written later", || follower.saw(|line| line == format!("tick {}", shown + 2)));
    device.pod("modem").wait_event("device nodlet.dev/dongle was not found");
    node.plug(0);
    modem.wait_ready();
    node.unplug();
    device.pod("modem").wait_event("DeviceLost: device nodlet.dev/dongle (/dev/dongle, 7:0) is gone");
    node.plug(1);
    device
        .pod("modem")
        .wait_event("DeviceFound: device nodlet.dev/dongle (/dev/dongle, 7:1) is present again");
    device.wait_for("the node", || modem.demo("app", "stat /dev/dongle").stdout == "block 0660 0:0 7,1\n");
    device.wait_for("the other name server", || {
        web.demo("app", "cat /etc/resolv.conf").ok().contains("192.0.2.2")
    });

    // Files that are removed, and the cgroups of pods that end.
    fs::remove_file(device.path("/etc/nodlet/devices/dongle.yaml")).expect("it is there");
    device.remove_manifest("web.yaml");
    device.remove_manifest("modem.yaml");
    web.wait_gone();
    modem.wait_gone();
    device.wait_for("the resource to go", || resource(&device, "capacity", "dongle").is_null());
    assert_eq!(instances(&device), 0);
    for what in ["the images", "/dev", &resolvers.to_string_lossy()] {
        said(what);
    }
    let log = device.agent_log();
    let of_resolvers = format!("failed to watch {}: ", resolvers.display());
    let line = log.lines().find(|line| line.contains(&of_resolvers)).expect("it is there once");
    let advice = "(see fs.inotify.max_user_instances and fs.inotify.max_user_watches); until that is possible it is read \
                  every 10 s";
    assert!(line.ends_with(advice), "{line}");
    device.nodlet(["down"]).ok();
}
