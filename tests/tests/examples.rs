//! The manifests in `examples/`, which people will copy: each works as described.

use std::path::Path;

use nodlet_tests::Device;

#[test]
fn the_examples_do_what_they_say() {
    let mut device = Device::new();
    // One of them opens a port of the board.
    let board = device.own_network();
    device.agent_arguments(["--allowed-annotations=exclusive-cpus.nodlet.dev,rtprio.nodlet.dev"]);
    device.start_agent_with_demo();
    let examples =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member of the workspace").join("examples");
    let files = std::fs::read_dir(&examples).expect("there are examples");
    let files = files.filter(|file| file.as_ref().is_ok_and(|file| file.path().is_file()));
    let devices = device.path("/etc/nodlet/devices");
    std::fs::create_dir_all(&devices).expect("the root can be written to");
    std::fs::copy(examples.join("devices/gps.yaml"), devices.join("gps.yaml")).expect("it is there");
    device.wait_for("the device", || {
        let nodes = device.get("/api/v1/nodes").expect("the API has a node");
        nodes["items"][0]["status"]["capacity"]["nodlet.dev/gps"] == "1"
    });
    let text = |file: std::fs::DirEntry| std::fs::read_to_string(file.path()).expect("it is text");
    let count: usize = files
        .map(|file| {
            text(file.expect("it is there")).lines().filter(|line| line.starts_with("kind: ")).count()
        })
        .sum();
    let applied = device.nodlet(["apply", "-f", &examples.display().to_string()]).ok();
    assert_eq!(applied.lines().filter(|line| line.ends_with(" created")).count(), count, "{applied}");

    let (web, shared) = (device.pod("web"), device.pod("shared"));
    web.wait_ready();
    shared.wait_ready();
    let page = shared.exec("writer", ["demo", "get", "http://127.0.0.1:8080/"]).ok();
    assert!(page.starts_with("written by the other container "), "{page}");
    device.pod("ports").wait_ready();
    assert_eq!(board.demo("get http://127.0.0.1:8088/").as_deref(), Ok("hello from the image\n"));
    device.pod("greeter-1").wait_ready();
    let caller = device.pod("caller").wait_ready();
    device.wait_for("the Service", || {
        caller.exec("app", ["/bin/demo", "get", "http://greeter/"]).stdout == "hello from the image\n"
    });
    let prepared = device.pod("prepared");
    prepared.wait_ready();
    prepared.wait_log("client", "written before anybody asked");
    assert_eq!(prepared.container("client").restart_count(), 0, "it was served the first time it asked");
    let drain = device.pod("drain");
    drain.wait_ready();
    let page = || drain.exec("server", ["demo", "cat", "/page/index.html"]).stdout.trim().to_owned();
    assert_eq!(page(), "ready", "it has not started before");
    device.nodlet(["delete", "pod", "drain", "--wait=false"]).ok();
    device.wait_for("its page to say that it goes", || page() == "going");
    assert!(drain.container("server").is_running());
    drain.wait_gone();
    let diary = device.pod("diary");
    diary.wait_ready();
    let written = diary.exec("writer", ["demo", "cat", "/diary/starts"]).ok();
    std::fs::remove_dir_all("/var/tmp/nodlet-diary").expect("it was made for the volume");
    assert!(written.ends_with("started\n"), "{written}");
    device.wait_for("the pod to name its device", || {
        let events = device.pod("serial").events();
        events
            .iter()
            .any(|event| event.contains("device nodlet.dev/gps was not found (a device of the subsystem tty"))
    });
    // Not every machine has what these need; then they say so.
    let fails = |name: &str, expected: &str| {
        let pod = device.pod(name);
        device.wait_for(&format!("pod {name} to run or to fail"), || {
            pod.is_ready() || pod.phase() == "Failed" || !pod.container("app").message().is_empty()
        });
        let object = pod.object().expect("it is here").to_string();
        assert!(pod.is_ready() || object.contains(expected), "{object}");
    };
    fails("apparmor", "AppArmor");
    fails("cpus", "this node has no exclusive cpus");
    fails("realtime", "allow real-time priorities (rtprio.nodlet.dev)");
    device.pod("job").wait_phase("Succeeded");
    assert_eq!(device.pod("job").logs("work"), "one two three\n");
    device.pod("preset").wait_ready();
    device.pod("preset").wait_log("app", "DB_PORT=6379");
    let configured = device.pod("configured");
    configured.wait_ready();
    let page = || configured.exec("server", ["demo", "get", "http://127.0.0.1:8080/index.html"]).stdout;
    assert_eq!(page(), "a page from a ConfigMap\n");
    let (status, patched) = device.patch(
        "/api/v1/namespaces/default/configmaps/site",
        "merge",
        &serde_json::json!({"data": {"index.html": "a new page\n"}}),
    );
    assert_eq!(status, 200, "{patched}");
    device.wait_for("the new page", || page() == "a new page\n");
    assert_eq!(configured.container("server").restart_count(), 0);
    let labels = configured.exec("server", ["demo", "cat", "/about/labels"]).ok();
    assert_eq!(labels, "tier=\"front\"");
    let priority = |name: &str| device.pod(name).object().expect("it is here")["spec"]["priority"].clone();
    for (name, expected) in [("alarm", 1000), ("needed", 2_000_001_000)] {
        device.pod(name).wait_ready();
        assert_eq!(priority(name), expected, "{name}");
    }
    let greedy = device.pod("greedy");
    greedy.wait_phase("Failed");
    assert_eq!(greedy.status()["reason"], "OutOfcpu");
    device.nodlet(["describe", "pc"]).ok_with("Ends after all that names no class.");
    device.wait_for("the crash to be backed off", || {
        device.pod("crash").container("app").reason() == "CrashLoopBackOff"
    });

    let gated = device.pod("gated");
    assert_eq!(gated.phase(), "Pending");
    let (uid, text) =
        (gated.uid(), std::fs::read_to_string(examples.join("gated.yaml")).expect("it is there"));
    let free = text.replace("  schedulingGates:\n    - name: example.com/not-yet\n", "");
    assert_eq!(device.apply(&free), "pod/gated configured\n");
    device.wait_for("it to run", || gated.condition("ContainersReady") == "True");
    assert_eq!((gated.uid(), gated.is_ready()), (uid, false));

    web.exec("server", ["demo", "touch", "/tmp/sick"]).ok();
    device.wait_for("the sick server to be unready", || !web.is_ready());
    device.wait_for("its restart", || web.container("server").restart_count() == 1);
    web.wait_ready();
}
