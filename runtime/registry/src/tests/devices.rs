use nodlet_core::facts::StartFailureReason;
use nodlet_core::spec::ContainerIndex;
use nodlet_kube::manifest::{DeviceDefinition, parse_device_file};

use super::*;

const FILE: &str = "{name: gps, path: /dev/ttyUSB0}
---
{name: same-path, path: /dev/ttyUSB1, containerPath: /dev/ttyUSB0}
---
{name: meter, usb: {vendor: '0403', product: '6001', serial: A1}}
---
{name: can, interface: can0}
";

fn definitions() -> Vec<Rc<DeviceDefinition>> {
    let parsed = parse_device_file("/etc/devices/a.yaml", FILE.as_bytes());
    parsed.expect("it is right").into_iter().map(Rc::new).collect()
}

fn definition_of(name: &str) -> Option<Rc<DeviceDefinition>> {
    definitions().into_iter().find(|definition| definition.name == name)
}

/// A pod that requests these devices in its only container.
fn requesting(names: &[&str], more: Value) -> Rc<Pod> {
    let limits: SortedMap<String, Value> =
        names.iter().map(|name| (format!("nodlet.dev/{name}"), 1.into())).collect();
    let mut object = pod("web", "app:1");
    object["spec"]["containers"][0]["resources"] = json!({"limits": limits});
    object["spec"].as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    let text = object.to_string();
    let read = manifest::contents("p", text.as_bytes(), Validation::Strict, NODE);
    read.unwrap_or_else(|error| panic!("{error}")).pods[0].pod.clone()
}

fn at(minor: u32) -> FoundDevice {
    FoundDevice { block: false, major: 188, minor }
}

/// What a container that requests `names` gets, where these devices are there, and these are in use.
fn granted(
    names: &[&str],
    there: &[(&str, u32)],
    in_use: &[(&str, u32)],
) -> Result<String, (StartFailureReason, String)> {
    let pod = requesting(names, json!({}));
    let look_up = |name: &str| {
        let found = there.iter().find(|(other, _)| *other == name).map(|(_, minor)| at(*minor));
        Some((definition_of(name)?, found.ok_or_else(|| "it is unplugged".to_owned())))
    };
    let in_use = || in_use.iter().map(|(name, minor)| (*name, at(*minor)));
    let granted = grant_devices(&pod.spec.containers[0], look_up, in_use, "/etc/devices");
    let granted = granted.map_err(|failure| (failure.reason, failure.message.into_string()))?;
    let shown = granted.iter().map(|(definition, found)| format!("{}={}", definition.name, found.minor));
    Ok(shown.collect::<Vec<_>>().join(" "))
}

#[test]
fn a_container_gets_the_devices_that_are_there_and_waits_for_others() {
    assert_eq!(
        granted(&["gps", "meter", "can"], &[("gps", 0), ("meter", 1)], &[]),
        Ok("gps=0 meter=1".into())
    );
    assert_eq!(granted(&[], &[], &[("gps", 0)]), Ok(String::new()));
    let waits = |names: &[&str], there: &[(&str, u32)], in_use: &[(&str, u32)]| {
        let (reason, message) = granted(names, there, in_use).expect_err("it has to wait");
        assert_eq!(reason, StartFailureReason::ObjectNotFound, "{message}");
        message
    };
    let expected = "device nodlet.dev/none is not defined: no file in /etc/devices has this name";
    assert_eq!(waits(&["none"], &[], &[]), expected);
    let expected =
        "device nodlet.dev/gps was not found (/dev/ttyUSB0): it is unplugged (/etc/devices/a.yaml:1)";
    assert_eq!(waits(&["gps"], &[], &[]), expected);
    assert_eq!(
        waits(&["meter"], &[], &[]),
        "device nodlet.dev/meter was not found (a device of the subsystem tty with idVendor=0403, idProduct=6001, \
         serial=A1): it is unplugged (/etc/devices/a.yaml:5)"
    );
    // The device of one name may be the same as that of another name, and has its users counted twice then.
    let expected = "device nodlet.dev/gps is in use as nodlet.dev/meter: two files find the same device (/etc/devices/a.yaml:1)";
    assert_eq!(waits(&["gps"], &[("gps", 7)], &[("gps", 7), ("meter", 7)]), expected);
    assert_eq!(granted(&["gps"], &[("gps", 7)], &[("gps", 7), ("meter", 8)]), Ok("gps=7".into()), "shared");
    assert_eq!(
        granted(&["gps", "same-path"], &[("gps", 0), ("same-path", 1)], &[]),
        Err((
            StartFailureReason::CreateContainerConfigError,
            "devices nodlet.dev/gps and nodlet.dev/same-path have the same containerPath /dev/ttyUSB0 \
             (/etc/devices/a.yaml:3)"
                .into()
        ))
    );
}

#[test]
fn interfaces_move_into_the_network_of_the_pod_if_it_has_one() {
    let interfaces = |pod: &Pod, is_there: bool| {
        grant_interfaces(pod, definition_of, |_| is_there.then(|| at(3)).ok_or_else(|| "no can0".to_owned()))
            .map_err(|(reason, message)| format!("{reason:?}: {message}"))
    };
    let own = requesting(&["can", "gps", "none"], json!({}));
    assert_eq!(interfaces(&own, true), Ok(vec!["can0".to_owned()]));
    assert_eq!(
        interfaces(&own, false),
        Err("DeviceNotFound: device nodlet.dev/can was not found: no can0 (/etc/devices/a.yaml:7)".into())
    );
    let limits = json!({"limits": {"nodlet.dev/can": 1}});
    let second = json!({"containers": [
        {"name": "a", "image": "a", "resources": limits}, {"name": "b", "image": "b", "resources": limits},
    ]});
    assert_eq!(interfaces(&requesting(&[], second), true), Ok(vec!["can0".to_owned()]), "once");
    assert_eq!(
        interfaces(&requesting(&["can"], json!({"hostNetwork": true})), true),
        Err("Sandbox: device nodlet.dev/can is the interface can0, which moves into the pod's own network; remove \
             hostNetwork (/etc/devices/a.yaml:7)"
            .into())
    );
    assert_eq!(interfaces(&requesting(&["gps"], json!({"hostNetwork": true})), false), Ok(Vec::new()));
}

#[test]
fn devices_that_come_go_or_move_are_reported_once() {
    let mut seen = SeenDevices::default();
    seen.record("gps", Some(at(0)));
    seen.record("meter", None);
    seen.add("gps");
    seen.add("can");
    assert_eq!(seen.names().collect::<Vec<_>>(), ["can", "gps", "meter"]);
    let mut look = |there: &[(&str, u32)]| {
        seen.refresh(|name| there.iter().find(|(other, _)| *other == name).map(|(_, minor)| at(*minor)))
    };
    assert_eq!(look(&[("gps", 0)]), [""; 0]);
    assert_eq!(look(&[("gps", 1), ("meter", 2)]), ["gps", "meter"]);
    assert_eq!(look(&[("gps", 1), ("meter", 2), ("other", 3)]), [""; 0]);
    assert_eq!(look(&[("meter", 2)]), ["gps"]);
    seen.clear();
    assert_eq!(seen.names().count(), 0);
    let expected = ["can", "gps"];
    assert_eq!(requested_devices(&requesting(&["gps", "can"], json!({}))).collect::<Vec<_>>(), expected);
}

#[test]
fn events_name_the_device_that_is_gone_or_there_again() {
    let device = |minor: u32, is_gone: bool| DeviceOfRun {
        name: "gps",
        path: "/dev/gps",
        number: (188, minor),
        is_gone,
    };
    let events = |old, new| -> Vec<String> {
        let events = device_events(ContainerIndex(2), old, new);
        assert!(events.iter().all(|event| event.container == Some(ContainerIndex(2))));
        let shown =
            events.iter().map(|event| format!("{} {} {}", event.warning, event.reason, event.message));
        shown.collect()
    };
    let (lost, found) = ("true DeviceLost device nodlet.dev/gps (/dev/gps, 188:0) is gone", |minor: u32| {
        format!("false DeviceFound device nodlet.dev/gps (/dev/gps, 188:{minor}) is present again")
    });
    assert_eq!(events(device(0, false), device(0, true)), [lost]);
    assert_eq!(events(device(0, true), device(1, false)), [found(1)]);
    assert_eq!(events(device(0, false), device(1, false)), [lost.to_owned(), found(1)], "it has moved");
    let renamed = interface_returned("can0", "dev3");
    assert!(renamed.warning && renamed.message.starts_with("interface can0 came back from the pod as dev3"));
    for (how, reason, message) in [
        ("changed MTU, flags", "InterfaceChanged", "with other settings than before: MTU, flags"),
        (
            "lost it was removed in the pod",
            "InterfaceLost",
            "did not come back from the pod: it was removed in the pod",
        ),
    ] {
        let event = interface_returned("can0", how);
        assert_eq!((event.warning, &*event.reason), (true, reason));
        assert!(event.message.contains(message), "{}", event.message);
    }
}

#[test]
fn a_change_of_devices_that_fails_is_tried_again_later_and_later() {
    let mut retry = crate::DeviceRetry::default();
    let delays: Vec<u64> = (0..9).map(|_| retry.failed().as_secs()).collect();
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
}
