use std::rc::Rc;

use super::*;
use nodlet_kube::manifest::{self, Validation};

const OBJECTS: &str = "
kind: ConfigMap
apiVersion: v1
metadata: {name: c}
data: {a: one, b: two}
binaryData: {bin: AAE=}
---
kind: Secret
apiVersion: v1
metadata: {name: s}
stringData: {a: hidden}
";

/// The files of the volume `volume` of a pod as `path:mode:content`, or the error.
fn files(volume: &str) -> Result<Vec<String>, String> {
    let made = projected(volume)?;
    let line = |(path, file): (&String, &ProjectedFile)| {
        format!("{path}:{:o}:{}", file.mode, String::from_utf8_lossy(&file.content).escape_debug())
    };
    Ok(made.iter().map(line).collect())
}

fn projected(volume: &str) -> Result<ProjectedFiles, String> {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, labels: {{b: x}}, annotations: {{b: x, a: \"q\\\"\\n\"}}}}\n\
         spec: {{containers: [{{name: c, image: i, resources: {{limits: {{cpu: 1500m}}}}}}], volumes: [{{name: v, {volume}}}]}}\n"
    );
    let parsed = manifest::parse("p.yaml", text.as_bytes(), Validation::Strict, "node");
    let pod = parsed.unwrap_or_else(|error| panic!("{error}")).remove(0).pod;
    let read = manifest::contents("o.yaml", OBJECTS.as_bytes(), Validation::Strict, "node");
    let objects =
        read.unwrap_or_else(|error| panic!("{error}")).definitions.into_iter().map(Rc::new).collect();
    let (_, projection) = pod.spec.projections().next().expect("there is one");
    let allocatable = Amounts { cpu: 2000, memory: 1 << 30, ephemeral_storage: 1 << 32, pods: 110 };
    of(&pod, projection, &objects, &allocatable, &mut Room::new(None))
}

#[test]
fn files_are_keys_or_items_with_their_modes() {
    for (volume, expected) in [
        ("configMap: {name: c}", &["a:644:one", "b:644:two", "bin:644:\\0\\u{1}"][..]),
        (
            "configMap: {name: c, defaultMode: 256, items: [{key: a, path: x//./y}, {key: bin, path: z, mode: 511}]}",
            &["x/y:400:one", "z:777:\\0\\u{1}"],
        ),
        ("secret: {secretName: s}", &["a:644:hidden"]),
        ("secret: {secretName: none, optional: true}", &[]),
        (
            "configMap: {name: c, optional: true, items: [{key: none, path: x}, {key: a, path: w}]}",
            &["w:644:one"],
        ),
        (
            "downwardAPI: {items: [{path: l, fieldRef: {fieldPath: metadata.annotations}}, {path: m, mode: 256, fieldRef: {fieldPath: metadata.name}}, {path: c, resourceFieldRef: {containerName: c, resource: limits.cpu, divisor: 1m}}, {path: b, fieldRef: {fieldPath: \"metadata.labels['b']\"}}]}",
            &["b:644:x", "c:644:1500", r#"l:644:a=\"q\\\"\\n\"\nb=\"x\""#, "m:400:p"],
        ),
        (
            "projected: {defaultMode: 288, sources: [{configMap: {name: c}}, {secret: {name: s}}, {downwardAPI: {items: [{path: b, fieldRef: {fieldPath: metadata.namespace}}]}}]}",
            &["a:440:hidden", "b:440:default", "bin:440:\\0\\u{1}"],
        ),
    ] {
        assert_eq!(
            files(volume).as_deref(),
            Ok(&*expected.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>()),
            "{volume}"
        );
    }
}

#[test]
fn a_missing_object_or_key_of_a_volume_is_reported_with_the_kubelets_text() {
    for (volume, expected) in [
        ("configMap: {name: none}", "configmap \"none\" not found"),
        ("secret: {secretName: none}", "secret \"none\" not found"),
        (
            "configMap: {name: c, items: [{key: none, path: x}]}",
            "configmap references non-existent config key: none",
        ),
        (
            "secret: {secretName: s, items: [{key: none, path: x}]}",
            "references non-existent secret key: none",
        ),
        (
            "projected: {sources: [{configMap: {name: none}}, {secret: {name: none}}, {configMap: {name: none}}]}",
            "[configmap \"none\" not found, secret \"none\" not found]",
        ),
        (
            "downwardAPI: {items: [{path: c, resourceFieldRef: {containerName: none, resource: limits.cpu}}]}",
            "container none not found",
        ),
    ] {
        assert_eq!(files(volume), Err(expected.to_owned()), "{volume}");
    }
}

#[test]
fn files_of_one_key_share_its_content() {
    let two = "configMap: {name: c, items: [{key: a, path: one}, {key: a, path: two}]}";
    let made = projected(two).expect("both are there");
    assert!(Arc::ptr_eq(&made["one"].content, &made["two"].content));
}

#[test]
fn a_long_annotation_is_in_memory_once_and_the_files_of_a_pod_are_bounded() {
    let pod = |items: usize| {
        let item = |number: usize| {
            format!("{{path: f{number}, fieldRef: {{fieldPath: \"metadata.annotations['a']\"}}}}")
        };
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, annotations: {{a: {}}}}}\nspec: {{containers: [{{name: c, \
             image: i}}], volumes: [{{name: v, downwardAPI: {{items: [{}]}}}}]}}\n",
            "x".repeat(200_000),
            (0..items).map(item).collect::<Vec<_>>().join(", ")
        );
        let parsed = manifest::parse("p.yaml", text.as_bytes(), Validation::Strict, "node");
        parsed.unwrap_or_else(|error| panic!("{error}")).remove(0).pod
    };
    let (many, few) = (pod(100), pod(20));
    fn projected<'a>(pod: &'a Pod, room: &mut Room<'a>) -> Result<ProjectedFiles, String> {
        let allocatable = Amounts { cpu: 2000, memory: 1 << 30, ephemeral_storage: 1 << 32, pods: 110 };
        let (_, projection) = pod.spec.projections().next().expect("there is one");
        of(pod, projection, &std::iter::empty().collect(), &allocatable, room)
    }
    let mut room = Room::new(None);
    let files = projected(&many, &mut room).expect("20 MB are allowed");
    let mut contents = files.values().map(|file| file.content.as_ptr());
    let first = contents.next();
    assert!(contents.all(|content| Some(content) == first), "each file has a copy of the annotation");
    // The next volume of the pod has the rest of the room.
    let error = projected(&many, &mut room).expect_err("40 MB");
    assert!(error.contains("need more than 33554432 bytes"), "{error}");
    // The files of a pod with a limit are in its memory.
    assert!(projected(&few, &mut Room::new(Some(16 << 20))).is_ok());
    let error = projected(&many, &mut Room::new(Some(16 << 20))).expect_err("20 MB");
    assert!(error.contains("need more than 16777216 bytes"), "{error}");
}
