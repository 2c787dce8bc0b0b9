//! Pods that change while they run: which changes keep the pod, and which replace it with another.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nodlet_tests::image::Image;
use nodlet_tests::{AgentSteps, Device, Kubectl, demo_program, manifest, seed};
use serde_json::Value;

/// A device that has the demo image also under another name.
fn device_with_two_images() -> Device {
    let device = Device::start();
    load_another(&device);
    device
}

fn load_another(device: &Device) {
    let program = fs::read(demo_program()).expect("it is built");
    device.load(&Image::demo("localhost/demo:2", &program));
}

/// A pod of two containers; each container detects whether another one with its name runs at the same time.
fn two(device: &Device, spec: &str) -> String {
    let (shared, _) = device.shared("one");
    let container = |name: &str| {
        let steps = format!("on-term 0 1 then lock /one/{name} then print begun then sleep");
        manifest::container(name, &steps, "volumeMounts: [{name: one, mountPath: /one}]")
    };
    let volumes = format!("volumes: [{{name: one, hostPath: {{path: {shared}}}}}]\n{spec}");
    manifest::pod_of("web", &[container("app"), container("other")], &volumes)
}

/// A pod that detects whether another one with its name runs at the same time, and takes some seconds to end.
fn version(device: &Device, seconds: u32, word: &str) -> String {
    let (shared, _) = device.shared("one");
    let steps = format!("on-term 0 {seconds} then lock /one/lock then print {word} then sleep");
    let volumes = format!("volumes: [{{name: one, hostPath: {{path: {shared}}}}}]");
    manifest::single("web", &steps, "volumeMounts: [{name: one, mountPath: /one}]", &volumes)
}

/// Waits until the container `app` runs once with this image.
fn wait_for_image(device: &Device, image: &str) {
    let web = device.pod("web");
    device.wait_for(&format!("app to run with {image}"), || {
        let app = web.container("app");
        web.is_ready() && app.is_running() && spec_image(device) == image && app.of_status("image") == image
    });
    for container in ["app", "other"] {
        assert!(!web.logs(container).contains("TWO AT ONCE"), "{container}");
    }
}

fn spec_image(device: &Device) -> Value {
    device.pod("web").get("/spec/containers/0/image")
}

fn annotation(device: &Device, name: &str) -> Value {
    device.pod("web").get("/metadata/annotations")[name].clone()
}

#[test]
fn kubectl_sets_an_image_and_only_that_container_begins_anew() {
    let device = device_with_two_images();
    let kubectl = Kubectl::new(&device);
    let web = device.run_applied("web", &two(&device, "restartPolicy: Never"));
    let (uid, other, app) = (web.uid(), web.born("other"), web.born("app"));

    assert_eq!(kubectl.line(SET_IMAGE).ok(), "pod/web image updated\n");
    wait_for_image(&device, "localhost/demo:2");
    assert_eq!((web.uid(), web.born("other")), (uid.clone(), other.clone()));
    assert_ne!(web.born("app"), app);
    assert_eq!((web.container("app").restart_count(), web.container("other").restart_count()), (1, 0));
    assert_eq!(web.container("app").of_last("exitCode"), 0);
    assert_eq!(web.get("/metadata/generation"), 2);
    let events = kubectl.line("get events -o jsonpath={.items[*].message}").ok();
    assert!(events.contains("Container app definition changed, will be restarted"), "{events}");

    // Changes of labels and annotations, and rejected changes, disturb no running container.
    let app = web.born("app");
    kubectl.line("annotate pod web example.com/note=first").ok();
    // kubectl sends the pod back with all its defaults, which must cause no warning.
    assert_eq!(kubectl.line("label pod web tier=front").stderr, "");
    kubectl
        .line("annotate --overwrite pod web example.com/note=second kubernetes.io/config.source=none")
        .ok();
    assert_eq!(annotation(&device, "example.com/note"), "second");
    assert_eq!(kubectl.line("get pods -l tier=front -o name").ok(), "pod/web\n");
    let words = "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,\
        `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
        tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
    kubectl.line(r#"patch pod web -p {"spec":{"hostNetwork":true}}"#).refused_with(words);
    assert_eq!((web.uid(), web.born("app"), web.born("other")), (uid, app, other));
}

#[test]
fn a_user_restarts_the_containers_of_a_pod_with_the_image_that_its_tag_names_now() {
    let device = Device::start();
    let program = fs::read(demo_program()).expect("it is built");
    let build = |text: &[u8]| Image::demo("localhost/app:1", &program).layer().file("/build", 0o644, text);
    device.load(&build(b"first\n"));
    let app = |name| {
        let steps = "on-term 0 1 then cat /build then sleep";
        manifest::container(name, steps, "").replace("localhost/demo:1", "localhost/app:1")
    };
    // The file of a site, which no client may change.
    let web = device.run_pod_of("web", &[app("app"), app("other")], "restartPolicy: Never").wait_ready();
    let (uid, ip, other) = (web.uid(), web.ip(), web.born("other"));
    let archive = device.path("/second.tar");
    build(b"second\n").write_oci_archive(&archive).expect("written");
    let said = device.nodlet(["image", "load", &archive.display().to_string()]).stderr;
    let hint = "Pod default/web runs an earlier build of this image; `nodlet restart web` restarts it with this one\n";
    assert_eq!(said, hint);
    assert_eq!(web.container("app").restart_count(), 0);

    // As in `kubectl delete pod web`.
    assert_eq!(device.nodlet(["restart", "pod", "web", "-c", "app"]).ok(), "pod/web restarted\n");
    web.wait_log("app", "second");
    web.wait_ready();
    assert_eq!((web.uid(), web.ip(), web.born("other")), (uid.clone(), ip.clone(), other.clone()));
    assert_eq!((web.container("app").restart_count(), web.container("other").restart_count()), (1, 0));
    assert!(web.has_event("Container app was requested to restart"), "{:?}", web.events());

    assert_eq!(device.nodlet(["restart", "pod/web"]).ok(), "pod/web restarted\n");
    web.wait_log("other", "second");
    device.wait_for("both containers", || web.is_ready() && web.container("app").restart_count() == 2);
    assert_eq!((web.uid(), web.ip()), (uid, ip));
    assert_ne!(web.born("other"), other);
    assert_eq!(device.nodlet(["image", "load", &archive.display().to_string()]).stderr, "");

    for (words, said) in [
        (["restart", "web", "-c", "db"], "container db is not valid for pod web"),
        (["restart", "db", "-c", "db"], "pods \"db\" not found"),
        (["restart", "-n", "default", "-c"], "missing"),
    ] {
        device.nodlet(words).refused_with(said);
    }
}

#[test]
fn kubectl_edits_replaces_and_applies_what_may_change() {
    let device = device_with_two_images();
    let kubectl = Kubectl::new(&device);
    let text = two(&device, "");
    kubectl.apply(&text).ok();
    let web = device.pod("web").wait_ready();
    let (uid, other) = (web.uid(), web.born("other"));

    let editor = device.file(
        "/editor",
        // Changes only the first match, with any sed.
        "#!/bin/sh\nsed -i -e '/^    image: .*demo:1/{s/demo:1/demo:2/;:a' -e 'n;ba' -e '}' \"$1\"\n",
    );
    fs::set_permissions(Path::new(&editor), fs::Permissions::from_mode(0o755)).expect("it is ours");
    let mut edit = kubectl.command(["edit", "pod", "web"]);
    let edited = edit.env("KUBE_EDITOR", &editor).output().expect("kubectl can be run");
    assert_eq!(String::from_utf8_lossy(&edited.stdout), "pod/web edited\n", "{edited:?}");
    wait_for_image(&device, "localhost/demo:2");

    // The file's value applies again, and no other field changes.
    let again = text.replacen("  containers:", "  activeDeadlineSeconds: 3600\n  containers:", 1);
    kubectl.apply(&again).ok();
    kubectl.apply(&again).ok();
    assert_eq!(web.get("/spec/activeDeadlineSeconds"), 3600);
    wait_for_image(&device, "localhost/demo:1");
    assert_eq!((web.uid(), web.born("other")), (uid.clone(), other.clone()));

    // A change by kubectl keeps the pod or is rejected; one by nodlet's `apply` may replace the pod.
    let replace = |field: &str, value: Value| {
        let whole = kubectl.line("get pod web -o json").ok();
        let mut whole: Value = serde_json::from_str(&whole).expect("it is JSON");
        *whole.pointer_mut(field).expect("it is there") = value;
        kubectl.run(["replace", "-f", &device.file("/put.json", whole.to_string())])
    };
    replace("/spec/containers/0/image", "localhost/demo:2".into()).ok();
    wait_for_image(&device, "localhost/demo:2");
    let words =
        "spec.activeDeadlineSeconds: Invalid value: 3601: must be less than or equal to previous value";
    replace("/spec/activeDeadlineSeconds", 3601.into()).refused_with(words);
    replace("/spec/containers/0/args", Value::Null)
        .refused_with("pod updates may not change fields other than");
    assert_eq!((web.uid(), web.born("other")), (uid.clone(), other));
    assert_eq!(device.apply(&again.replace("begun", "stolen")), "pod/web configured\n");
    web.wait_log("app", "stolen");
    assert_ne!(web.uid(), uid);
}

#[test]
fn a_file_with_a_uid_is_changed_in_place_where_that_is_possible() {
    let mut device = device_with_two_images();
    let text =
        two(&device, "restartPolicy: OnFailure").replacen("  name: web", "  name: web\n  uid: mine", 1);
    let other = device.write_pod("web", &text).wait_ready().born("other");
    device.write_manifest("web.yaml", &text.replacen("demo:1", "demo:2", 1));
    wait_for_image(&device, "localhost/demo:2");
    assert_eq!((device.pod("web").uid().as_str(), device.pod("web").born("other")), ("mine", other.clone()));
    assert_eq!(device.pod("web").container("app").restart_count(), 1);

    // A new agent finds the container as it was started, and keeps it, though the file is invalid by now.
    let app = device.pod("web").born("app");
    device.kill_agent();
    device.write_manifest("web.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: web\n");
    device.start_agent();
    device.pod("web").wait_ready();
    assert_eq!((device.pod("web").born("app"), device.pod("web").born("other")), (app, other));

    // A change of an immutable field replaces the pod with another one that has the same uid.
    device.write_pod("web", &text.replace("begun", "otherwise")).wait_log("app", "otherwise");
    assert_eq!(device.pod("web").uid(), "mine");
    assert!(!device.pod("web").logs("app").contains("TWO AT ONCE"));
}

#[test]
fn pods_have_config_source_annotations_that_are_not_stored() {
    let mut device = Device::start();
    let uid = device.run_pod("web", "sleep").wait_ready().uid();
    assert_eq!(annotation(&device, "kubernetes.io/config.source"), "file");
    assert_eq!(annotation(&device, "kubernetes.io/config.hash"), uid.as_str());
    let seen = annotation(&device, "kubernetes.io/config.seen");
    assert!(seen.as_str().is_some_and(|seen| seen.len() == 20 && seen.ends_with('Z')), "{seen}");
    // After a reboot, the same file defines the same pod.
    device.power_cycle();
    device.pod("web").wait_ready();
    assert_eq!(device.pod("web").uid(), uid);
    device.remove_pod("web");

    device.run_applied("web", &manifest::pod("web", "sleep"));
    assert_eq!(annotation(&device, "kubernetes.io/config.source"), "api");
    assert_eq!(annotation(&device, "kubernetes.io/config.hash"), Value::Null);
    let card = device.path("/var/lib/nodlet/manifests/default_web.json");
    let before = fs::read_to_string(&card).expect("it is applied");
    // Applying an object that was read from this API changes nothing.
    let shown = device.pod("web").object().expect("it is there").to_string();
    assert_eq!(device.apply(&shown), "pod/web unchanged\n");
    Kubectl::new(&device).line("label pod web a=b").ok();
    let after = fs::read_to_string(&card).expect("it is applied");
    assert!(before != after && !after.contains("kubernetes.io/config"), "{after}");
}

#[test]
fn whenever_the_agent_dies_over_a_new_image_it_is_the_old_or_the_new_and_never_both() {
    let mut device = device_with_two_images();
    let other = device.run_applied("web", &two(&device, "restartPolicy: OnFailure")).born("other");
    // How many steps the first change has tells where to kill the agent in the others.
    let (mut seed, mut all, mut died) = (seed(), 0, 0);
    for (round, image) in (1..=6_u64).zip(["localhost/demo:2", "localhost/demo:1"].into_iter().cycle()) {
        device.restart_agent();
        device.nodlet(["get", "pods"]).ok();
        let kill_before =
            (round > 1).then(|| 1 + (round - 2) * all / 5 + seed.number() % u64::max(all / 5, 1));
        let steps = AgentSteps::follow(device.agent_pid(), kill_before);
        let (_, mut object) = device.request("GET", "/api/v1/namespaces/default/pods/web", None);
        object["spec"]["containers"][0]["image"] = image.into();
        object["metadata"]["resourceVersion"] = Value::Null;
        let changed = object.to_string();
        // The agent may die before it has responded, and before it has stored anything.
        device.try_apply(&changed);
        let revive = |device: &mut Device| {
            if device.agent_is_dead() {
                device.start_agent();
                device.apply(&changed);
            }
        };
        device.wait_reviving("the new image", &revive, |device| {
            let web = device.pod("web");
            web.is_ready() && web.container("app").of_status("image") == image
        });
        all = if round == 1 { steps.made() } else { all };
        let what = format!("killed before step {kill_before:?} of {all}, {:?}", steps.killed_before());
        println!("{what}");
        died += usize::from(steps.killed_before().is_some());
        // It may have died since it was asked.
        drop(steps);
        revive(&mut device);
        wait_for_image(&device, image);
        assert_eq!(device.pod("web").container("app").restart_count(), round.cast_signed(), "{what}");
    }
    assert!(died > 1, "is the agent killed?");
    assert_eq!(device.pod("web").born("other"), other);
}

#[test]
fn a_power_cut_over_a_new_image_leaves_the_old_or_the_new() {
    let mut device = device_with_two_images();
    let uid = device.run_applied("web", &two(&device, "restartPolicy: OnFailure")).uid();
    for image in ["localhost/demo:2", "localhost/demo:1"] {
        let changed = two(&device, "restartPolicy: OnFailure").replacen("localhost/demo:1", image, 1);
        assert_eq!(device.apply(&changed), "pod/web configured\n");
        // The response was sent, so the change is on the card, whatever the state of the containers is.
        device.power_cycle();
        wait_for_image(&device, image);
        assert_eq!(device.pod("web").uid(), uid);
    }
}

#[test]
fn applied_to_a_pod_that_is_over_another_image_makes_another_pod() {
    let device = device_with_two_images();
    let once = manifest::pod_with("web", "print begun then exit 3", "restartPolicy: Never");
    device.apply(&once);
    let web = device.pod("web").wait_phase("Failed");
    let uid = web.uid();
    Kubectl::new(&device).line(SET_IMAGE).ok();
    assert_eq!((web.uid(), web.phase()), (uid.clone(), "Failed".to_owned()));
    device.apply(&once.replace("demo:1", "demo:3"));
    device.wait_for("another pod", || web.object().is_some_and(|web| web["metadata"]["uid"] != uid.as_str()));
}

#[test]
fn a_file_changed_twice_during_termination_starts_only_its_last_version() {
    let device = Device::start();
    let version = |word: &str| version(&device, 4, word);
    let web = device.write_pod("web", &version("first")).wait_log("app", "first");
    device.write_pod("web", &version("second"));
    device.wait_for("its end to begin", || web.get("/metadata/deletionTimestamp").is_string());
    device.write_pod("web", &version("third"));
    web.wait_log("app", "third");
    let logs = web.logs("app");
    assert!(!logs.contains("second") && !logs.contains("TWO AT ONCE"), "{logs}");
    assert_eq!(web.container("app").restart_count(), 0);
}

#[test]
fn a_name_from_two_sources_is_one_pod_at_a_time_whichever_comes_or_goes() {
    let device = Device::start();
    let version = |word: &str| version(&device, 1, word);
    let web = device.write_pod("web", &version("site")).wait_log("app", "site");
    // The directory of applied objects comes after the site's directory.
    device.apply(&version("applied"));
    web.wait_log("app", "applied");
    assert_eq!(annotation(&device, "kubernetes.io/config.source"), "api");
    device.shared("/run/nodlet/manifests");
    let passing = device.file("/run/nodlet/manifests/web.yaml", version("passing"));
    web.wait_log("app", "passing");
    fs::remove_file(passing).expect("it is there");
    web.wait_log("app", "applied");
    device.nodlet(["delete", "pod", "web"]).ok();
    web.wait_log("app", "site");
    assert_eq!(annotation(&device, "kubernetes.io/config.source"), "file");
    assert!(!web.logs("app").contains("TWO AT ONCE"));
    assert_eq!(web.container("app").restart_count(), 0);
}

/// Gives the container `app` an image that is not on each board.
const SET_IMAGE: &str = "set image pod/web app=localhost/demo:2";

/// The pod's condition about the image that it waits for.
fn pending(device: &Device) -> Value {
    device.pod("web").whole_condition("PodImageUpdatePending")
}

#[track_caller]
fn wait_pending(device: &Device) {
    device.wait_for("what it waits for", || pending(device)["reason"] == "ErrImagePull");
}

#[test]
fn an_image_that_is_not_on_the_board_stops_nothing_until_it_is() {
    let mut device = Device::start();
    let kubectl = Kubectl::new(&device);
    let web = device.run_applied("web", &two(&device, "restartPolicy: Never"));
    let (uid, app, other) = (web.uid(), web.born("app"), web.born("other"));
    let words =
        "image \"localhost/demo:2\" of container app is not on this node: image \"localhost/demo:1\" runs on";

    let text = two(&device, "restartPolicy: Never").replacen("demo:1", "demo:2", 1);
    let dry = device.nodlet_with_input(["apply", "--dry-run=server", "-f", "-"], &text);
    assert!(dry.stderr.contains(words), "{}", dry.stderr);
    assert_eq!((spec_image(&device), pending(&device)), ("localhost/demo:1".into(), Value::Null));
    let said = kubectl.line(SET_IMAGE);
    assert!(said.stderr.contains(words), "{}", said.stderr);
    wait_pending(&device);
    assert_eq!(spec_image(&device), "localhost/demo:2");
    assert!(web.is_ready() && web.container("app").is_running());
    assert_eq!(web.container("app").of_status("image"), "localhost/demo:1");
    let events = web.events().join("\n");
    assert!(events.contains("Back-off pulling image \"localhost/demo:2\""), "{events}");
    assert!(events.contains("container app keeps running image \"localhost/demo:1\""), "{events}");

    device.restart_agent();
    wait_pending(&device);
    let web = device.pod("web");
    assert_eq!((web.uid(), web.born("app"), web.born("other")), (uid.clone(), app, other.clone()));

    load_another(&device);
    wait_for_image(&device, "localhost/demo:2");
    let web = device.pod("web");
    assert_eq!((web.uid(), web.born("other"), pending(&device)), (uid, other, Value::Null));

    // A change in place and a change that replaces the pod: one condition of each type.
    kubectl.line("set image pod/web app=localhost/demo:3").ok();
    wait_pending(&device);
    device.apply(&text.replacen("demo:2", "demo:4", 1).replacen("sleep", "print fourth then sleep", 1));
    let waits = || {
        let conditions = device.pod("web").status()["conditions"].as_array().cloned().unwrap_or_default();
        let all = conditions.into_iter().filter(|one| one["type"] == "PodImageUpdatePending");
        all.map(|one| one["message"].to_string()).collect::<Vec<_>>()
    };
    device.wait_for("the later change", || waits().iter().any(|message| message.contains("demo:4")));
    assert_eq!(waits().len(), 1, "{:?}", waits());
}

#[test]
fn after_a_power_cut_the_image_runs_that_ran_before_until_the_new_one_is_there() {
    let mut device = Device::start();
    device.run_applied("web", &two(&device, ""));
    Kubectl::new(&device).line(SET_IMAGE).ok();
    wait_pending(&device);
    let record = device.path(&format!("/var/lib/nodlet/records/{}.json", device.pod("web").uid()));
    device.wait_for("its record", || {
        fs::read_to_string(&record).is_ok_and(|text| text.contains("localhost/demo:1"))
    });
    device.power_cycle();
    device.wait_for("the old image", || {
        let app = device.pod("web").container("app");
        app.is_running() && app.of_status("image") == "localhost/demo:1"
    });
    wait_pending(&device);
    assert_eq!(spec_image(&device), "localhost/demo:2");
    load_another(&device);
    wait_for_image(&device, "localhost/demo:2");
}

/// The files name another image and have other steps, so the change replaces the pod.
fn another(image: &str) -> String {
    manifest::pod("web", "print changed then sleep").replacen("localhost/demo:1", image, 1)
}

#[test]
fn a_change_that_makes_another_pod_waits_for_its_image_while_the_old_one_runs() {
    let mut device = Device::start();
    let web = device.run_pod("web", "print first then sleep").wait_ready();
    let (uid, app) = (web.uid(), web.born("app"));

    // In a file, every change replaces the pod, also a change of the image alone.
    let first = manifest::pod("web", "print first then sleep");
    for text in [first.replacen("demo:1", "demo:2", 1), another("localhost/demo:2")] {
        device.write_manifest("web.yaml", &text);
        wait_pending(&device);
        let web = device.pod("web");
        assert_eq!((web.uid(), web.born("app"), web.is_ready()), (uid.clone(), app.clone(), true));
        let event = "Back-off pulling image \"localhost/demo:2\": pod web stays unchanged";
        assert!(web.has_event(event), "{:?}", web.events());
    }
    let waits = pending(&device);
    // Long enough for a new agent to record a different second.
    let begun = std::time::Instant::now();
    device.wait_for("two seconds to pass", || begun.elapsed() > std::time::Duration::from_secs(2));
    device.restart_agent();
    // The condition is unchanged from the new agent's first response on.
    assert_eq!(pending(&device), waits);
    assert_eq!((device.pod("web").uid(), device.pod("web").born("app")), (uid.clone(), app.clone()));
    device.power_cycle();
    device.pod("web").wait_log("app", "first");
    wait_pending(&device);
    assert_eq!(device.pod("web").uid(), uid);

    // If the old image is named again, the pod stays the same and nothing is pending.
    device.write_pod("web", &first);
    device.wait_for("nothing to be waited for", || pending(&device).is_null());
    assert_eq!(device.pod("web").uid(), uid);
    device.write_manifest("web.yaml", &another("localhost/demo:2"));
    wait_pending(&device);
    load_another(&device);
    device.pod("web").wait_log("app", "changed");
    assert_ne!(device.pod("web").uid(), uid);
    device.pod("web").wait_ready();
    assert!(pending(&device).is_null());
    device.wait_for("nothing to be kept", || !device.records().iter().any(|name| name.ends_with(".kept")));
}

#[test]
fn deleting_a_pod_that_is_being_replaced_deletes_its_replacement_too() {
    let device = Device::start();
    let version = |word: &str| {
        manifest::pod_with(
            "web",
            &format!("on-term 0 3 then print {word} then sleep"),
            "terminationGracePeriodSeconds: 20",
        )
    };
    device.apply(&version("first"));
    let web = device.pod("web").wait_log("app", "first");
    device.apply(&version("second"));
    device.wait_for("its end to begin", || web.get("/metadata/deletionTimestamp").is_string());
    device.nodlet(["delete", "pod", "web"]).ok();
    web.wait_gone();
    let applied = device.path("/var/lib/nodlet/manifests/default_web.json");
    assert!(!applied.exists(), "the replacement is still wanted");
}

#[test]
fn applied_changes_that_make_another_pod_wait_for_their_image_too_and_can_be_taken_back() {
    let device = Device::start();
    let runs = manifest::pod("web", "print first then sleep");
    let web = device.run_applied("web", &runs);
    let (uid, app) = (web.uid(), web.born("app"));
    let words = "image \"localhost/demo:2\" of container app is not on this node: the pod as it is runs on";
    for dry in ["--dry-run=server", "--dry-run=none"] {
        let said = device.nodlet_with_input(["apply", dry, "-f", "-"], &another("localhost/demo:2"));
        assert!(said.stderr.contains(words), "{}", said.stderr);
        assert_eq!(web.uid(), uid);
    }
    wait_pending(&device);
    assert_eq!(device.apply(&another("localhost/demo:2")), "pod/web unchanged\n");
    Kubectl::new(&device).line("label pod web tier=front").refused_with("another version of the pod, from ");
    // What runs, or a corrected manifest, replaces the one that waits; deleting the pod deletes that.
    assert_eq!(device.apply(&runs), "pod/web configured\n");
    device.wait_for("nothing to be waited for", || pending(&device).is_null());
    assert_eq!((web.uid(), web.born("app"), web.is_ready()), (uid, app, true));
    device.apply(&another("localhost/demo:2"));
    wait_pending(&device);
    assert_eq!(device.apply(&another("localhost/demo:1")), "pod/web configured\n");
    web.wait_log("app", "changed");
    web.wait_ready();
    device.apply(&manifest::pod("web", "print third then sleep").replacen("demo:1", "demo:3", 1));
    wait_pending(&device);
    device.nodlet(["delete", "pod", "web"]).ok();
    web.wait_gone();
    assert!(!device.path("/var/lib/nodlet/manifests/default_web.json").exists());
}
