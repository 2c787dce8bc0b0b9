//! PodPresets: the fields that pods get when they are admitted, and keep.

use nodlet_tests::{Device, Kubectl, manifest};
use serde_json::Value;

fn preset(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: settings.k8s.io/v1alpha1\nkind: PodPreset\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"
    )
}

/// A pod with these labels and annotations that prints its environment and keeps running.
fn pod(name: &str, metadata: &str) -> String {
    manifest::pod(name, "env then sleep").replacen(
        &format!("name: {name}\n"),
        &format!("name: {name}\n{metadata}"),
        1,
    )
}

const WEB: &str = "  labels: {app: web}\n";
const MARK: &str = "podpreset.admission.kubernetes.io/podpreset-";

fn mark(object: &Value, preset: &str) -> Option<String> {
    object["metadata"]["annotations"][format!("{MARK}{preset}")].as_str().map(str::to_owned)
}

#[test]
fn pods_that_are_selected_are_given_variables_volumes_and_mounts() {
    let device = Device::start();
    device.write_manifest(
        "0-preset.yaml",
        &preset(
            "cache",
            "selector: {matchLabels: {app: web}}, env: [{name: GIVEN, value: yes-it-is}, {name: ME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}], \
             volumeMounts: [{name: cache, mountPath: /cache}], volumes: [{name: cache, emptyDir: {}}]",
        ),
    );
    let init = manifest::container("first", "append /cache/said by-the-first", "");
    let app =
        manifest::container("app", "env then cat /cache/said then sleep", "env: [{name: OWN, value: mine}]");
    let behind = manifest::pod_behind("web", &[init], &[app], "").replacen(
        "name: web\n",
        &format!("name: web\n{WEB}"),
        1,
    );
    device.write_manifest("web.yaml", &behind);
    device.write_manifest("other.yaml", &pod("other", "  labels: {app: other}\n"));
    device.write_manifest(
        "without.yaml",
        &pod(
            "without",
            &format!("{WEB}  annotations: {{podpreset.admission.kubernetes.io/exclude: 'true'}}\n"),
        ),
    );
    let web = device.pod("web");
    web.wait_ready();
    web.wait_log("app", "by-the-first");
    for line in ["GIVEN=yes-it-is", "ME=web", "OWN=mine"] {
        web.wait_log("app", line);
    }
    let version = device
        .get("/apis/settings.k8s.io/v1alpha1/namespaces/default/podpresets/cache")
        .expect("it is shown");
    let version = version["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    assert_eq!(mark(&web.object().expect("it is here"), "cache"), version);
    for name in ["other", "without"] {
        let pod = device.pod(name);
        pod.wait_log("app", "HOSTNAME=");
        assert!(!pod.logs("app").contains("GIVEN"), "{}", pod.logs("app"));
        let object = pod.object().expect("it is here");
        assert_eq!(mark(&object, "cache"), None);
        assert!(object["spec"]["volumes"].as_array().is_none_or(Vec::is_empty), "{object}");
    }
}

#[test]
fn an_admitted_pod_keeps_what_it_was_given_whatever_becomes_of_the_preset() {
    let mut device = Device::start();
    let env = |value: &str| preset("p", &format!("env: [{{name: GIVEN, value: {value}}}]"));
    device.write_manifest("0-preset.yaml", &env("first"));
    // Each run prints its environment and ends on request.
    device.write_manifest("again.yaml", &manifest::pod("again", "env then wait /tmp/go then exit 1"));
    device.write_manifest("stays.yaml", &pod("stays", ""));
    device.pod("stays").wait_log("app", "GIVEN=first");
    device.pod("again").wait_log("app", "GIVEN=first");
    let before = device.pod("stays").object().expect("it is here");
    assert!(mark(&before, "p").is_some());
    let (uid, born) = (device.pod("stays").uid(), device.pod("stays").born("app"));

    // After a change of the preset, the next run of a container has what its pod was admitted with, and no
    // pod is replaced.
    device.write_manifest("0-preset.yaml", &env("second"));
    let shown = || device.get("/apis/settings.k8s.io/v1alpha1/namespaces/default/podpresets/p");
    device
        .wait_for("the change", || shown().is_ok_and(|preset| preset["spec"]["env"][0]["value"] == "second"));
    device.pod("again").tell("app", "/tmp/go");
    device.wait_for("another run", || {
        device.pod("again").container("app").restart_count() == 1
            && device.pod("again").logs("app").contains("GIVEN=")
    });
    assert!(device.pod("again").logs("app").contains("GIVEN=first"));
    device.write_manifest("new.yaml", &pod("new", ""));
    device.pod("new").wait_log("app", "GIVEN=second");

    // A new agent, which finds the pod's manifest unchanged.
    device.kill_agent();
    device.start_agent();
    device.wait_for("the pod to be shown", || device.pod("stays").object().is_some());
    let after = device.pod("stays").object().expect("it is here");
    assert_eq!(
        (after["metadata"]["annotations"].clone(), device.pod("stays").uid()),
        (before["metadata"]["annotations"].clone(), uid.clone())
    );
    assert_eq!(after["spec"], before["spec"]);
    assert_eq!(device.pod("stays").born("app"), born, "it was not restarted");

    // After a power cut, with the preset removed: the admitted spec is on the card.
    device.remove_manifest("0-preset.yaml");
    device.wait_for("the preset to go", || {
        device.get("/apis/settings.k8s.io/v1alpha1/namespaces/default/podpresets/p").is_err()
    });
    device.wait_for("what was admitted to be on the card", || {
        ["stays", "again", "new"].iter().all(|name| {
            let record = format!("/var/lib/nodlet/records/{}.json", device.pod(name).uid());
            std::fs::read_to_string(device.path(&record)).is_ok_and(|record| record.contains("GIVEN"))
        })
    });
    device.cut_power();
    device.start_agent();
    for (name, given) in [("stays", "GIVEN=first"), ("again", "GIVEN=first"), ("new", "GIVEN=second")] {
        let pod = device.pod(name);
        device.wait_for("a run of this boot", || {
            pod.container("app").is_running() && pod.logs("app").contains("HOSTNAME=")
        });
        assert!(pod.logs("app").contains(given), "{name}: {}", pod.logs("app"));
        assert_eq!(pod.object().expect("it is here")["spec"]["containers"][0]["env"][0]["name"], "GIVEN");
    }
    assert_eq!(device.pod("stays").uid(), uid);
}

#[test]
fn contradicting_presets_add_nothing_and_are_reported() {
    let device = Device::start();
    device.write_manifest(
        "0-one.yaml",
        &preset("one", "selector: {matchLabels: {app: web}}, env: [{name: A, value: x}]"),
    );
    device.write_manifest(
        "0-two.yaml",
        &preset(
            "two",
            "selector: {matchLabels: {app: web}}, env: [{name: B, value: yy}, {name: A, value: z}]",
        ),
    );
    device.write_manifest("web.yaml", &pod("web", WEB));
    let web = device.pod("web");
    web.wait_ready();
    web.wait_log("app", "HOSTNAME=");
    assert!(!web.logs("app").contains("A=") && !web.logs("app").contains("B="), "{}", web.logs("app"));
    let object = web.object().expect("it is here");
    assert_eq!((mark(&object, "one"), mark(&object, "two")), (None, None));
    let reported = "PodPresetConflict: conflict occurred while applying podpresets: one,two on pod: web err: merging env for two has a conflict on A: ";
    assert!(web.events().iter().any(|event| event.starts_with(reported)), "{:?}", web.events());
}

#[test]
fn kubectl_and_nodlet_show_make_change_and_delete_presets() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let file = |name: &str, text: &str| {
        let path = device.path(&format!("/{name}"));
        std::fs::write(&path, text).expect("the root can be written to");
        path.display().to_string()
    };
    let made = file("made.yaml", &preset("made", "env: [{name: A, value: x}]"));
    assert_eq!(kubectl.run(["create", "-f", &made]).ok(), "podpreset.settings.k8s.io/made created\n");
    let refused = kubectl.run(["create", "-f", &made]).refused();
    assert!(refused.contains("podpresets.settings.k8s.io \"made\" already exists"), "{refused}");
    let table = kubectl.run(["get", "podpresets"]).ok();
    assert!(table.starts_with("NAME   CREATED AT\nmade   20"), "{table}");
    assert_eq!(
        kubectl.run(["get", "podpreset", "made", "-o", "jsonpath={.apiVersion} {.spec.env[0].value}"]).ok(),
        "settings.k8s.io/v1alpha1 x"
    );
    assert!(kubectl.run(["api-resources", "--api-group=settings.k8s.io"]).ok().contains("podpresets"));

    // An applied preset affects later pods.
    assert_eq!(device.nodlet(["apply", "-f", &file("web.yaml", &pod("web", WEB))]).ok(), "pod/web created\n");
    device.pod("web").wait_log("app", "A=x");
    let changed = file("made.yaml", &preset("made", "env: [{name: A, value: yy}]"));
    assert_eq!(kubectl.run(["replace", "-f", &changed]).ok(), "podpreset.settings.k8s.io/made replaced\n");
    assert_eq!(device.nodlet(["apply", "-f", &changed]).ok(), "podpreset.settings.k8s.io/made unchanged\n");
    // Applying the pod again does not change it, either.
    assert_eq!(
        device.nodlet(["apply", "-f", &device.path("/web.yaml").display().to_string()]).ok(),
        "pod/web unchanged\n"
    );
    let more = file("more.yaml", &preset("more", "env: [{name: B, value: z}]"));
    assert_eq!(
        device.nodlet(["apply", "-f", &more, "--dry-run"]).ok(),
        "podpreset.settings.k8s.io/more created (server dry run)\n"
    );
    assert_eq!(device.nodlet(["apply", "-f", &more]).ok(), "podpreset.settings.k8s.io/more created\n");
    assert_eq!(device.nodlet(["get", "podpresets", "-o", "name"]).ok(), "podpreset/made\npodpreset/more\n");

    let wrong = file("wrong.yaml", &preset("wrong", "volumes: [{name: a, nfs: {server: a, path: /}}]"));
    for refused in
        [kubectl.run(["create", "-f", &wrong]).refused(), device.nodlet(["apply", "-f", &wrong]).refused()]
    {
        assert!(refused.contains("spec.volumes[0].nfs: Forbidden: nodlet"), "{refused}");
    }
    assert_eq!(
        kubectl.run(["delete", "podpreset", "made"]).ok(),
        "podpreset.settings.k8s.io \"made\" deleted from default namespace\n"
    );
    assert_eq!(
        device.nodlet(["delete", "-f", &more]).ok(),
        "podpreset.settings.k8s.io \"more\" deleted from default namespace\n"
    );
    assert_eq!(device.nodlet(["get", "podpresets"]).ok(), "");
    device.nodlet(["delete", "podpreset", "more"]).refused();
    assert!(device.pod("web").logs("app").contains("A=x"));

    // A preset that is defined by a file can only be changed there.
    device.write_manifest("own.yaml", &preset("own", "env: [{name: C}]"));
    device.wait_for("the preset", || {
        device.nodlet(["get", "podpresets", "-o", "name"]).ok() == "podpreset/own\n"
    });
    for refused in [
        device.nodlet(["delete", "podpreset", "own"]).refused(),
        device.nodlet(["apply", "-f", &file("own.yaml", &preset("own", "env: [{name: D}]"))]).refused(),
    ] {
        assert!(
            refused.contains("podpresets.settings.k8s.io \"own\" is forbidden: it is defined by"),
            "{refused}"
        );
    }
}

/// Later changes of a pod and additions to it neither change the fields from presets, nor do these interfere.
#[test]
fn presets_stay_under_patches_containers_to_debug_with_and_a_new_agent() {
    let mut device = Device::start();
    device.write_manifest("0-preset.yaml", &preset("p", "env: [{name: GIVEN, value: first}]"));
    device.wait_for("the preset", || {
        device.get("/apis/settings.k8s.io/v1alpha1/namespaces/default/podpresets/p").is_ok()
    });
    let text = pod("web", "  labels: {app: web}\n");
    device.nodlet_with_input(["apply", "-f", "-"], &text).ok();
    let web = device.pod("web");
    web.wait_log("app", "GIVEN=first");
    let (uid, born) = (web.uid(), web.born("app"));
    let spec = web.object().expect("it is here")["spec"].clone();
    // A later version of the preset only applies to other pods.
    device.write_manifest("0-preset.yaml", &preset("p", "env: [{name: GIVEN, value: second}]"));
    let same = |device: &Device| {
        let object = device.pod("web").object().expect("it is here");
        assert!(mark(&object, "p").is_some(), "{object}");
        assert_eq!(object["spec"]["containers"], spec["containers"]);
        assert_eq!((device.pod("web").uid(), device.pod("web").born("app")), (uid.clone(), born.clone()));
        object
    };
    {
        let kubectl = Kubectl::new(&device);
        kubectl.run(["label", "pod", "web", "tier=front"]).ok();
        assert_eq!(same(&device)["metadata"]["labels"]["tier"], "front");
        kubectl.run(["annotate", "pod", "web", "note=it"]).ok();
        assert_eq!(same(&device)["metadata"]["annotations"]["note"], "it");
        kubectl
            .run(["debug", "web", "--image=localhost/demo:1", "-c", "tool", "--", "/bin/demo", "env"])
            .ok();
        device.wait_for("it to be over", || device.pod("web").container("tool").exit_code() == Some(0));
        // Presets do not apply to ephemeral containers.
        assert!(!device.pod("web").logs("tool").contains("GIVEN"));
        same(&device);
    }
    device.kill_agent();
    device.start_agent();
    device.wait_for("the pod to be shown", || device.pod("web").object().is_some());
    let object = same(&device);
    assert_eq!(object["spec"]["ephemeralContainers"][0]["name"], "tool");
    assert_eq!(object["metadata"]["labels"]["tier"], "front");
    // A new agent accepts changes, too, and applying the pod once more changes no container.
    {
        let kubectl = Kubectl::new(&device);
        kubectl.run(["label", "pod", "web", "tier=back", "--overwrite"]).ok();
        assert_eq!(same(&device)["metadata"]["labels"]["tier"], "back");
    }
    device.nodlet_with_input(["apply", "-f", "-"], &text).ok();
    same(&device);
}

#[test]
fn a_pod_that_was_given_something_takes_another_image_in_place_and_waits_for_it() {
    let device = Device::start();
    device.write_manifest("0-preset.yaml", &preset("p", "env: [{name: GIVEN, value: first}]"));
    device.wait_for("the preset", || {
        device.get("/apis/settings.k8s.io/v1alpha1/namespaces/default/podpresets/p").is_ok()
    });
    let text = pod("web", "");
    device.nodlet_with_input(["apply", "-f", "-"], &text).ok();
    device.pod("web").wait_log("app", "GIVEN=first");
    let (uid, born) = (device.pod("web").uid(), device.pod("web").born("app"));
    device.nodlet_with_input(["apply", "-f", "-"], &text.replacen("demo:1", "demo:9", 1)).ok();
    device.wait_for("what it waits for", || {
        let object = device.pod("web").object().unwrap_or_default();
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let pending = conditions.into_iter().find(|one| one["type"] == "PodImageUpdatePending");
        pending.is_some_and(|pending| pending["reason"] == "ErrImagePull")
    });
    let web = device.pod("web");
    // If the change required another pod, it would be held back, and the pod would be shown unchanged.
    let object = web.object().expect("it is here");
    assert_eq!(object["spec"]["containers"][0]["image"], "localhost/demo:9");
    assert!(mark(&object, "p").is_some() && object["spec"].to_string().contains("GIVEN"), "{object}");
    assert_eq!((web.uid(), web.born("app")), (uid, born));
    assert!(web.is_ready());
}
