use nodlet_fuzz::{assert_contains, assert_starts_with, cases};
use serde_json::json;

use super::*;
use crate::manifest::{contents, inject, read_new};

fn preset(spec: &str) -> Definition {
    named("p", spec)
}

fn named(name: &str, spec: &str) -> Definition {
    read(&text(name, spec)).unwrap_or_else(|error| panic!("{spec}: {error}"))
}

fn text(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: settings.k8s.io/v1alpha1\nkind: PodPreset\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"
    )
}

fn read(text: &str) -> Result<Definition, ManifestError> {
    contents("p.yaml", text.as_bytes(), Validation::Strict, "board").map(|mut read| {
        assert!(read.pods.is_empty());
        read.definitions.remove(0)
    })
}

fn refused(spec: &str) -> String {
    read(&text("p", spec)).expect_err(spec).to_string()
}

fn pod(metadata: &str, container: &str, spec: &str) -> Value {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, {metadata}}}\nspec: {{containers: [{{name: app, image: 'app:1', {container}}}], {spec}}}\n"
    );
    let mut read = contents("w.yaml", text.as_bytes(), Validation::Strict, "board")
        .unwrap_or_else(|error| panic!("{text}: {error}"));
    read.pods.remove(0).object
}

fn injected(pod: &Value, presets: &[Definition]) -> Result<Value, String> {
    let applied: Vec<AppliedPreset> =
        (7..).zip(presets).map(|(version, preset)| preset.applied(version)).collect();
    let mut new = pod.clone();
    match inject(&mut new, &applied) {
        // The changed object is a valid Pod.
        Ok(()) => {
            Ok(read_new(new, Validation::Strict, "board").unwrap_or_else(|error| panic!("{error}")).object)
        }
        Err(error) => {
            assert_eq!(new, *pod, "it is as it was");
            Err(error)
        }
    }
}

#[test]
fn a_preset_is_defaulted_like_the_fields_of_a_pod() {
    let preset = preset(
        "selector: {matchLabels: {role: frontend}}, env: [{name: A, value: '1'}, {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}], \
         volumeMounts: [{name: cache, mountPath: /cache}], volumes: [{name: cache, emptyDir: {}}]",
    );
    assert_eq!(preset.key(), (Kind::PodPreset, "default".into(), "p".into()));
    assert_eq!(preset.object()["kind"], "PodPreset");
    assert_eq!(preset.object()["apiVersion"], "settings.k8s.io/v1alpha1");
    assert_eq!(preset.object()["metadata"]["namespace"], "default");
    assert!(preset.object()["metadata"]["uid"].is_string());
    assert_eq!(
        preset.object()["spec"],
        json!({
            "selector": {"matchLabels": {"role": "frontend"}},
            "env": [
                {"name": "A", "value": "1"},
                {"name": "IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
            ],
            "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
            "volumes": [{"name": "cache", "emptyDir": {}}],
        })
    );
    assert!(preset.warnings.is_empty());
    // A preset without a selector matches all pods, and gives the same warnings as a Pod.
    let all = named(
        "all",
        "volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], \
         resources: {limits: {storage: 1Gi}, requests: {storage: 1Gi}}}}}}]",
    );
    assert_eq!(all.object()["spec"]["selector"], json!({}));
    assert_eq!(
        all.warnings,
        [format!(
            "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.limits: has no effect: nodlet {}.{} binds claims by their requests alone",
            env!("CARGO_PKG_VERSION_MAJOR"),
            env!("CARGO_PKG_VERSION_MINOR")
        )]
    );
}

#[test]
fn an_invalid_preset_is_rejected_with_the_path_of_the_wrong_field() {
    let expected = "spec.volumes.env.envFrom.volumeMounts: Required value: must specify at least one";
    assert_contains(&refused(""), expected);
    for [spec, expected] in cases(
        r#"
        env: [{name: A}], extra: 1
            => PodPreset in version "settings.k8s.io/v1alpha1" cannot be handled as a PodPreset: strict decoding error: unknown field "spec.extra"
        env: [{name: A, valu: b}] => unknown field "spec.env[0].valu"
        env: [{name: A}], selector: {matchLabel: {a: b}} => unknown field "spec.selector.matchLabel"
        env: [{value: A}] => The PodPreset "p" is invalid: spec.env[0].name: Required value
        env: {A: b} => spec.env: Invalid value
        env: [{name: A}], selector: [] => spec.selector: Invalid value
        volumeMounts: [{name: v, mountPath: /v}] => spec.volumeMounts[0].name: Not found: "v"
        env: [{name: A}], selector: {matchLabels: {'a b': c}} => spec.selector.matchLabels: Invalid value: "a b"
        env: [{name: A}], selector: {matchExpressions: [{key: a, operator: In}]}
            => spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'
        env: [{name: A}], selector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}
            => spec.selector.matchExpressions[0].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'
        env: [{name: A}], selector: {matchExpressions: [{key: a, operator: Gt}]}
            => spec.selector.matchExpressions[0].operator: Invalid value: "Gt": not a valid selector operator
        env: [{name: A}], selector: {matchExpressions: [{key: '/', operator: Exists}]}
            => spec.selector.matchExpressions[0].key: Invalid value: "/"
        env: [{name: A}], selector: {matchExpressions: [{key: a, operator: In, values: ['a b']}]}
            => spec.selector.matchExpressions[0].values[0]: Invalid value: "a b"
        env: [{name: A, valueFrom: {fileKeyRef: {volumeName: a, path: p, key: b}}}]
            => spec.env[0].valueFrom.fileKeyRef.volumeName: Not found: "a"
        // Fields of a Pod on which nodlet does not act are rejected in a preset, too.
        volumes: [{name: v, nfs: {server: a, path: /b}}] => spec.volumes[0].nfs: Forbidden: nodlet
        "#,
    ) {
        let error = refused(spec);
        assert!(error.contains(expected), "{spec}: {error}");
        assert!(!error.contains("containers[0]"), "{spec}: {error}");
    }
    let long = "a".repeat(54);
    let error = read(&text(&long, "env: [{name: A}]")).expect_err("too long").to_string();
    assert!(
        error.contains("metadata.name: Invalid value")
            && error.contains("must be no more than 53 characters"),
        "{error}"
    );
    assert!(read(&text(&long[1..], "env: [{name: A}]")).is_ok());
    let error =
        read(&text("p", "env: [{name: A}]").replace("v1alpha1", "v1")).expect_err("version").to_string();
    assert!(error.contains("no matches for kind \"PodPreset\" in version \"settings.k8s.io/v1\": write apiVersion: settings.k8s.io/v1alpha1"), "{error}");
    let twice = text("p", "env: [{name: A}]") + "---\n" + &text("p", "env: [{name: B}]");
    let error = read(&twice).expect_err("twice").to_string();
    assert!(error.contains("podpreset default/p is in this file twice"), "{error}");
    let list = "apiVersion: settings.k8s.io/v1alpha1\nkind: PodPresetList\nitems: [{metadata: {name: a}, spec: {env: [{name: A}]}}, {metadata: {name: b}, spec: {env: [{name: A}]}}]\n";
    let read = contents("p.yaml", list.as_bytes(), Validation::Strict, "board").expect("it is right");
    assert_eq!(read.definitions.iter().map(|preset| &*preset.name).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn a_preset_applies_to_the_pods_that_its_selector_matches() {
    let web = pod("labels: {app: web, tier: front}", "", "");
    for [selector, expected] in cases(
        "
            {} => true
            {matchLabels: {app: web}} => true
            {matchLabels: {app: web, tier: back}} => false
            {matchLabels: {other: web}} => false
            {matchExpressions: [{key: app, operator: In, values: [db, web]}]} => true
            {matchExpressions: [{key: app, operator: In, values: [db]}]} => false
            {matchExpressions: [{key: other, operator: In, values: [db]}]} => false
            {matchExpressions: [{key: app, operator: NotIn, values: [db]}]} => true
            {matchExpressions: [{key: app, operator: NotIn, values: [web]}]} => false
            {matchExpressions: [{key: other, operator: NotIn, values: [web]}]} => true
            {matchExpressions: [{key: app, operator: Exists}]} => true
            {matchExpressions: [{key: other, operator: Exists}]} => false
            {matchExpressions: [{key: app, operator: DoesNotExist}]} => false
            {matchExpressions: [{key: other, operator: DoesNotExist}]} => true
            {matchLabels: {app: web}, matchExpressions: [{key: tier, operator: DoesNotExist}]} => false
        ",
    ) {
        let expected = expected == "true";

        let preset = preset(&format!("selector: {selector}, env: [{{name: A}}]"));
        assert_eq!(preset.is_for(&web), expected, "{selector}");
    }
    let all = preset("env: [{name: A}]");
    assert!(all.is_for(&pod("", "", "")), "no labels are no obstacle");
    for (metadata, expected) in [
        ("namespace: other", false),
        ("annotations: {podpreset.admission.kubernetes.io/exclude: 'true'}", false),
        ("annotations: {podpreset.admission.kubernetes.io/exclude: 'yes'}", true),
        ("annotations: {kubernetes.io/config.mirror: x}", false),
    ] {
        assert_eq!(all.is_for(&pod(metadata, "", "")), expected, "{metadata}");
    }
}

#[test]
fn a_preset_is_injected_into_all_containers_and_marked_by_an_annotation() {
    let web = pod(
        "annotations: {mine: yes-it-is}",
        "env: [{name: OWN, value: '1'}], volumeMounts: [{name: data, mountPath: /data}]",
        "initContainers: [{name: first, image: 'app:1'}, {name: side, image: 'app:1', restartPolicy: Always}], volumes: [{name: data, emptyDir: {}}]",
    );
    let one = named(
        "one",
        "env: [{name: A, value: x}], volumeMounts: [{name: cache, mountPath: /cache}], volumes: [{name: cache, emptyDir: {}}]",
    );
    let two = named("two", "env: [{name: B, value: $(A)}]");
    let new = injected(&web, &[one, two]).expect("they agree");
    let names = |list: &Value| -> Vec<String> {
        let names = list.as_array().into_iter().flatten();
        names.map(|element| element["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let spec = &new["spec"];
    assert_eq!(names(&spec["volumes"]), ["data", "cache"]);
    assert_eq!(names(&spec["containers"][0]["env"]), ["OWN", "A", "B"]);
    assert_eq!(names(&spec["containers"][0]["volumeMounts"]), ["data", "cache"]);
    for init in [0, 1] {
        assert_eq!(names(&spec["initContainers"][init]["env"]), ["A", "B"]);
        assert_eq!(names(&spec["initContainers"][init]["volumeMounts"]), ["cache"]);
    }
    assert_eq!(
        new["metadata"]["annotations"],
        json!({
            "mine": "yes-it-is",
            "podpreset.admission.kubernetes.io/podpreset-one": "7",
            "podpreset.admission.kubernetes.io/podpreset-two": "8",
        })
    );
    assert_eq!(injected(&web, &[]), Ok(web.clone()));
}

#[test]
fn elements_that_a_pod_has_already_are_not_injected_again() {
    let web = pod(
        "",
        "env: [{name: A, value: x}], volumeMounts: [{name: cache, mountPath: /cache, readOnly: false}]",
        "volumes: [{name: cache, emptyDir: {}}]",
    );
    let same = "env: [{name: A, value: x}], volumeMounts: [{name: cache, mountPath: /cache}], volumes: [{name: cache, emptyDir: {}}]";
    let new = injected(&web, &[named("one", same), named("two", same)]).expect("they agree");
    for list in ["env", "volumeMounts"] {
        assert_eq!(new["spec"]["containers"][0][list], web["spec"]["containers"][0][list]);
    }
    assert_eq!(new["spec"]["volumes"], web["spec"]["volumes"]);
    assert_eq!(new["metadata"]["annotations"].as_object().map(Map::len), Some(2));
}

#[test]
fn a_conflicting_preset_is_reported_and_nothing_is_injected() {
    let web = pod(
        "",
        "env: [{name: A, value: x}], volumeMounts: [{name: data, mountPath: /data}]",
        "volumes: [{name: data, emptyDir: {}}]",
    );
    let volume = "volumes: [{name: data, emptyDir: {}}, {name: other, emptyDir: {}}]";
    for (spec, expected) in [
        ("env: [{name: A, value: yy}]", "merging env for p has a conflict on A: \n"),
        ("volumes: [{name: data, hostPath: {path: /x}}]", "merging volumes for p has a conflict on data: \n"),
        (
            &*format!("volumeMounts: [{{name: data, mountPath: /else}}], {volume}"),
            "merging volume mounts for p has a conflict on data: \n",
        ),
        (
            &*format!("volumeMounts: [{{name: other, mountPath: /data}}], {volume}"),
            "merging volume mounts for p has a conflict on mount path /data: \n",
        ),
    ] {
        let error = injected(&web, &[preset(spec)]).expect_err(spec);
        assert!(error.starts_with(expected), "{spec}: {error}");
        assert!(error.contains("\ndoes not match\n") && error.ends_with("\n in container"), "{error}");
        // One contradicting preset prevents the injection of all.
        let fine = named("fine", "env: [{name: B}]");
        assert!(injected(&web, &[fine, preset(spec)]).is_err());
    }
    // Two presets contradict each other, not the Pod.
    let both = [named("one", "env: [{name: C, value: x}]"), named("two", "env: [{name: C, value: yy}]")];
    let error = injected(&web, &both).expect_err("they contradict");
    assert_starts_with(
        &error,
        "merging env for two has a conflict on C: \n{\"name\":\"C\",\"value\":\"yy\"}\n",
    );
    // In a container that is not the first one.
    let init = pod("", "", "initContainers: [{name: first, image: 'app:1', env: [{name: A, value: x}]}]");
    assert!(injected(&init, &[preset("env: [{name: A, value: yy}]")]).is_err());
}

#[test]
fn env_from_sources_are_merged_without_duplicates() {
    let source = |name: &str| json!({"configMapRef": {"name": name}});
    let applied = |names: &[&str]| AppliedPreset {
        name: "p".into(),
        version: "1".into(),
        spec: json!({"envFrom": names.iter().map(|name| source(name)).collect::<Vec<_>>()}),
    };
    let mut web = pod("", "", "");
    web["spec"]["containers"][0]["envFrom"] = json!([source("a")]);
    inject(&mut web, &[applied(&["b", "a"]), applied(&["b", "c"])]).expect("sources contradict nothing");
    assert_eq!(web["spec"]["containers"][0]["envFrom"], json!([source("a"), source("b"), source("c")]));
}

#[test]
fn a_preset_of_a_file_of_the_agent_keeps_its_age() {
    let read = |metadata: &str| {
        let text = format!(
            "{{apiVersion: settings.k8s.io/v1alpha1, kind: PodPreset, metadata: {{name: p, {metadata}}}, spec: {{env: [{{name: A}}]}}}}"
        );
        let contents = crate::manifest::contents("p.json", text.as_bytes(), Validation::Strict, "board");
        contents.expect("it is right").definitions.remove(0).object()["metadata"]["creationTimestamp"].clone()
    };
    let created = "creationTimestamp: '2026-01-02T03:04:05Z'";
    assert_eq!(read(&format!("uid: abc, {created}")), "2026-01-02T03:04:05Z");
    // A file of somebody else does not say when its object was created.
    assert_eq!(read(created), Value::Null);
}
