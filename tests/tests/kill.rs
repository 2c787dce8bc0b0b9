//! The agent is killed after its n-th action, for every n there is, and the next
//! agent carries on: nothing runs twice, nothing is lost. `--stop-after`
//! makes an agent end at that point without another word, so no test has to be lucky.

use nodlet_tests::{Device, manifest};

/// More actions than the longest of these lives has.
const MOST: u32 = 120;

/// Two containers that each hold a lock for as long as they live, so that a
/// second one beside the first would be heard.
fn locked(shared: &str, word: &str) -> String {
    let held = |name: &str| {
        manifest::container(
            name,
            &format!("lock /one/{name} then print {word} then append /one/{name}-starts {word} then sleep"),
            "volumeMounts: [{name: one, mountPath: /one}]",
        )
    };
    manifest::pod_of(
        "web",
        &[held("app"), held("beside")],
        &format!("volumes: [{{name: one, hostPath: {{path: {shared}}}}}]"),
    )
}

/// Runs `life` with an agent that dies after n actions and is started again, for
/// n = 1, 2, … until an agent lives through all of it.
fn at_every_action(
    mut life: impl FnMut(&mut Device, &dyn Fn(&mut Device)),
    mut after: impl FnMut(&mut Device),
) {
    for n in 1..=MOST {
        let mut device = Device::new();
        device.start_agent();
        device.load_image(nodlet_tests::demo_archive());
        device.stop_agent();
        device.agent_arguments(["--stop-after", &n.to_string()]);
        let died = std::cell::Cell::new(false);
        life(&mut device, &|device| {
            // The agent may have stopped itself; the next one knows nothing of that.
            if device.agent_is_dead() {
                died.set(true);
                device.agent_arguments([]);
                device.start_agent();
            }
        });
        after(&mut device);
        if !died.get() {
            assert!(n > 5, "the agent never died: is --stop-after heard?");
            return;
        }
    }
    panic!("{MOST} actions are not enough for one pod");
}

#[test]
fn killed_at_any_action_of_a_start_each_container_runs_exactly_once() {
    at_every_action(
        |device, revive| {
            let (shared, _) = device.shared("one");
            device.write_manifest("web.yaml", &locked(&shared, "up"));
            device.launch_agent();
            device.wait_reviving("web to be ready", revive, |device| device.pod("web").is_ready());
        },
        |device| {
            let (_, here) = device.shared("one");
            let web = device.pod("web");
            for name in ["app", "beside"] {
                let starts =
                    || std::fs::read_to_string(here.join(format!("{name}-starts"))).unwrap_or_default();
                // Ready is what has been executed, before it has done a thing.
                web.wait_log(name, "up");
                device.wait_for("its start to be noted", || !starts().is_empty());
                assert_eq!(web.container(name).restart_count(), 0, "{name}");
                assert_eq!(web.logs(name), "up\n", "{name}");
                assert_eq!(starts(), "up\n", "{name}");
            }
            assert_eq!(device.container_processes().len(), 2);
        },
    );
}

#[test]
fn killed_at_any_action_of_a_replacement_the_old_is_gone_before_the_new_comes() {
    at_every_action(
        |device, revive| {
            let (shared, _) = device.shared("one");
            device.write_manifest("web.yaml", &locked(&shared, "old"));
            device.launch_agent();
            device.wait_reviving("the old pod to be ready", revive, |device| device.pod("web").is_ready());
            device.write_manifest("web.yaml", &locked(&shared, "new"));
            device.wait_reviving("the new pod to be ready", revive, |device| {
                device.pod("web").is_ready() && device.pod("web").logs("app") == "new\n"
            });
        },
        |device| {
            let web = device.pod("web");
            assert!(!web.logs("app").contains("TWO AT ONCE") && !web.logs("beside").contains("TWO AT ONCE"));
            assert_eq!(web.container("app").restart_count(), 0);
            assert_eq!(device.container_processes().len(), 2);
        },
    );
}

#[test]
fn killed_at_any_action_of_a_removal_the_pod_goes_all_the_same() {
    at_every_action(
        |device, revive| {
            let (shared, _) = device.shared("one");
            device.write_manifest("web.yaml", &locked(&shared, "up"));
            device.launch_agent();
            device.wait_reviving("web to be ready", revive, |device| device.pod("web").is_ready());
            device.remove_manifest("web.yaml");
            device.wait_reviving("web to be gone", revive, |device| {
                device
                    .get("/api/v1/pods")
                    .is_ok_and(|list| list["items"].as_array().is_some_and(Vec::is_empty))
            });
        },
        |device| assert!(device.container_processes().is_empty()),
    );
}

#[test]
fn a_node_that_was_renamed_keeps_its_pods() {
    let mut device = Device::start();
    device.nodlet_with_input(["apply", "-f", "-"], &manifest::pod("web", "sleep")).ok();
    device.pod("web").wait_ready();
    let (born, uid) = (device.pod("web").born("app"), device.pod("web").uid());

    device.kill_agent();
    device.agent_arguments(["--node-name", "renamed"]);
    device.start_agent();
    device.pod("web").wait_ready();
    let object = device.pod("web").object().expect("it is there");
    assert_eq!(object["spec"]["nodeName"], "renamed");
    assert_eq!((device.pod("web").born("app"), device.pod("web").uid()), (born, uid));
    assert_eq!(device.pod("web").container("app").restart_count(), 0);
    let events = device.pod("web").events();
    assert!(!events.iter().any(|event| event.starts_with("FailedValidation")), "{events:?}");

    // What was applied is wanted by the node under its new name, too.
    assert_eq!(device.nodlet(["down"]).code, 0);
    device.agent_ended();
    device.start_agent();
    device.pod("web").wait_ready();
}
