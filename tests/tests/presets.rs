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

/// The preset as the API shows it.
fn shown(device: &Device, name: &str) -> Result<Value, String> {
    device.get(&format!("/apis/settings.k8s.io/v1alpha1/namespaces/default/podpresets/{name}"))
}

/// Writes the preset `p`, which gives pods this value, and waits until it is shown.
#[track_caller]
fn give(device: &Device, value: &str) {
    device.write_manifest("0-preset.yaml", &preset("p", &format!("env: [{{name: GIVEN, value: {value}}}]")));
    device.wait_for("the preset", || {
        shown(device, "p").is_ok_and(|preset| preset["spec"]["env"][0]["value"] == value)
    });
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
    let web = device.pod("web").wait_ready().wait_log("app", "by-the-first");
    for line in ["GIVEN=yes-it-is", "ME=web", "OWN=mine"] {
        web.wait_log("app", line);
    }
    let version = shown(&device, "cache").expect("it is shown");
    let version = version["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    assert_eq!(mark(&web.object().expect("it is here"), "cache"), version);
    for name in ["other", "without"] {
        let pod = device.pod(name).wait_log("app", "HOSTNAME=");
        assert!(!pod.logs("app").contains("GIVEN"), "{}", pod.logs("app"));
        let object = pod.object().expect("it is here");
        assert_eq!(mark(&object, "cache"), None);
        assert!(object["spec"]["volumes"].as_array().is_none_or(Vec::is_empty), "{object}");
    }
}

#[test]
fn an_admitted_pod_keeps_what_it_was_given_whatever_becomes_of_the_preset() {
    let mut device = Device::start();
    give(&device, "first");
    // Each run prints its environment and ends on request.
    device.run_pod("again", "env then wait /tmp/go then exit 1");
    device.write_pod("stays", &pod("stays", "")).wait_log("app", "GIVEN=first");
    device.pod("again").wait_log("app", "GIVEN=first");
    let before = device.pod("stays").object().expect("it is here");
    assert!(mark(&before, "p").is_some());
    let (uid, born) = (device.pod("stays").uid(), device.pod("stays").born("app"));

    // After a change of the preset, the next run of a container has what its pod was admitted with, and no
    // pod is replaced.
    give(&device, "second");
    device.pod("again").tell("app", "/tmp/go");
    device.wait_for("another run", || {
        device.pod("again").container("app").restart_count() == 1
            && device.pod("again").logs("app").contains("GIVEN=")
    });
    assert!(device.pod("again").logs("app").contains("GIVEN=first"));
    device.write_pod("new", &pod("new", "")).wait_log("app", "GIVEN=second");

    // A new agent, which finds the pod's manifest unchanged.
    device.restart_agent();
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
    device.wait_for("the preset to go", || shown(&device, "p").is_err());
    device.wait_for("what was admitted to be on the card", || {
        ["stays", "again", "new"].iter().all(|name| {
            let record = format!("/var/lib/nodlet/records/{}.json", device.pod(name).uid());
            std::fs::read_to_string(device.path(&record)).is_ok_and(|record| record.contains("GIVEN"))
        })
    });
    device.power_cycle();
    for (name, given) in [("stays", "GIVEN=first"), ("again", "GIVEN=first"), ("new", "GIVEN=second")] {
        let pod = device.pod(name);
        device.wait_for("a run of this boot", || {
            pod.container("app").is_running() && pod.logs("app").contains("HOSTNAME=")
        });
        assert!(pod.logs("app").contains(given), "{name}: {}", pod.logs("app"));
        assert_eq!(pod.get("/spec/containers/0/env/0/name"), "GIVEN");
    }
    assert_eq!(device.pod("stays").uid(), uid);
}

#[test]
fn contradicting_presets_add_nothing_and_are_reported() {
    let device = Device::start();
    let selected = |name: &str, env: &str| {
        preset(name, &format!("selector: {{matchLabels: {{app: web}}}}, env: [{env}]"))
    };
    device.write_manifest("0-one.yaml", &selected("one", "{name: A, value: x}"));
    device.write_manifest("0-two.yaml", &selected("two", "{name: B, value: yy}, {name: A, value: z}"));
    let web = device.write_pod("web", &pod("web", WEB)).wait_ready().wait_log("app", "HOSTNAME=");
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
    let made = device.file("/made.yaml", preset("made", "env: [{name: A, value: x}]"));
    assert_eq!(kubectl.run(["create", "-f", &made]).ok(), "podpreset.settings.k8s.io/made created\n");
    kubectl.run(["create", "-f", &made]).refused_with("podpresets.settings.k8s.io \"made\" already exists");
    let table = kubectl.run(["get", "podpresets"]).ok();
    assert!(table.starts_with("NAME   CREATED AT\nmade   20"), "{table}");
    assert_eq!(
        kubectl.run(["get", "podpreset", "made", "-o", "jsonpath={.apiVersion} {.spec.env[0].value}"]).ok(),
        "settings.k8s.io/v1alpha1 x"
    );
    assert!(kubectl.run(["api-resources", "--api-group=settings.k8s.io"]).ok().contains("podpresets"));

    // An applied preset affects later pods.
    let web = pod("web", WEB);
    assert_eq!(device.apply(&web), "pod/web created\n");
    device.pod("web").wait_log("app", "A=x");
    let changed = device.file("/made.yaml", preset("made", "env: [{name: A, value: yy}]"));
    assert_eq!(kubectl.run(["replace", "-f", &changed]).ok(), "podpreset.settings.k8s.io/made replaced\n");
    assert_eq!(device.nodlet(["apply", "-f", &changed]).ok(), "podpreset.settings.k8s.io/made unchanged\n");
    // Applying the pod again does not change it, either.
    assert_eq!(device.apply(&web), "pod/web unchanged\n");
    let more = device.file("/more.yaml", preset("more", "env: [{name: B, value: z}]"));
    assert_eq!(
        device.nodlet(["apply", "-f", &more, "--dry-run"]).ok(),
        "podpreset.settings.k8s.io/more created (server dry run)\n"
    );
    assert_eq!(device.nodlet(["apply", "-f", &more]).ok(), "podpreset.settings.k8s.io/more created\n");
    assert_eq!(device.nodlet(["get", "podpresets", "-o", "name"]).ok(), "podpreset/made\npodpreset/more\n");

    let wrong =
        device.file("/wrong.yaml", preset("wrong", "volumes: [{name: a, nfs: {server: a, path: /}}]"));
    for ran in [kubectl.run(["create", "-f", &wrong]), device.nodlet(["apply", "-f", &wrong])] {
        ran.refused_with("spec.volumes[0].nfs: Forbidden: nodlet");
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
    for ran in
        [device.nodlet(["delete", "podpreset", "own"]), device.try_apply(&preset("own", "env: [{name: D}]"))]
    {
        ran.refused_with("podpresets.settings.k8s.io \"own\" is forbidden: it is defined by");
    }
}

/// Later changes of a pod and additions to it neither change the fields from presets, nor do these interfere.
#[test]
fn presets_stay_under_patches_containers_to_debug_with_and_a_new_agent() {
    let mut device = Device::start();
    give(&device, "first");
    let text = pod("web", "  labels: {app: web}\n");
    device.apply(&text);
    let web = device.pod("web").wait_log("app", "GIVEN=first");
    let (uid, born) = (web.uid(), web.born("app"));
    let spec = web.get("/spec");
    // A later version of the preset only applies to other pods.
    give(&device, "second");
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
    device.restart_agent();
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
    device.apply(&text);
    same(&device);

    // Another image is taken in place, and waited for. If the change required another pod, it would be held back, and the
    // pod would be shown unchanged.
    device.apply(&text.replacen("demo:1", "demo:9", 1));
    let web = device.pod("web");
    device.wait_for("what it waits for", || {
        web.whole_condition("PodImageUpdatePending")["reason"] == "ErrImagePull"
    });
    let object = web.object().expect("it is here");
    assert_eq!(object["spec"]["containers"][0]["image"], "localhost/demo:9");
    assert!(mark(&object, "p").is_some() && object["spec"].to_string().contains("GIVEN"), "{object}");
    assert_eq!((web.uid(), web.born("app"), web.is_ready()), (uid, born, true));
}
