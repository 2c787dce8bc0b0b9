use std::rc::Rc;

use nodlet_fuzz::cases;

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
    let pod = pod("b: x, a: \"q\\\"\\n\"", volume);
    let read = manifest::contents("o.yaml", OBJECTS.as_bytes(), Validation::Strict, "node");
    let objects =
        read.unwrap_or_else(|error| panic!("{error}")).definitions.into_iter().map(Rc::new).collect();
    of_first(&pod, &objects, &mut Room::new(None))
}

/// A pod with these annotations and a volume.
fn pod(annotations: &str, volume: &str) -> Rc<Pod> {
    let metadata = format!("name: p, labels: {{b: x}}, annotations: {{{annotations}}}");
    let volume = format!("volumes: [{{name: v, {volume}}}]");
    crate::testing::pod(&metadata, "resources: {limits: {cpu: 1500m}}", &volume)
}

/// The files of the first volume of a pod.
fn of_first<'a>(
    pod: &'a Pod,
    objects: &ConfigObjects,
    room: &mut Room<'a>,
) -> Result<ProjectedFiles, String> {
    let allocatable = Amounts { cpu: 2000, memory: 1 << 30, ephemeral_storage: 1 << 32, pods: 110 };
    let (_, projection) = pod.spec.projections().next().expect("there is one");
    of(pod, projection, objects, &allocatable, room)
}

#[test]
fn files_are_keys_or_items_with_their_modes() {
    const CASES: &str = r#"
        a:644:one b:644:two bin:644:\0\u{1} => configMap: {name: c}
        x/y:400:one z:777:\0\u{1} => configMap: {name: c, defaultMode: 256, items: [{key: a, path: x//./y}, {key: bin, path: z, mode: 511}]}
        a:644:hidden => secret: {secretName: s}
        - => secret: {secretName: none, optional: true}
        w:644:one => configMap: {name: c, optional: true, items: [{key: none, path: x}, {key: a, path: w}]}
        b:644:x c:644:1500 l:644:a=\"q\\\"\\n\"\nb=\"x\" m:400:p => downwardAPI: {items: [{path: l, fieldRef: {fieldPath: metadata.annotations}}, {path: m, mode: 256, fieldRef: {fieldPath: metadata.name}}, {path: c, resourceFieldRef: {containerName: c, resource: limits.cpu, divisor: 1m}}, {path: b, fieldRef: {fieldPath: "metadata.labels['b']"}}]}
        a:440:hidden b:440:default bin:440:\0\u{1} => projected: {defaultMode: 288, sources: [{configMap: {name: c}}, {secret: {name: s}}, {downwardAPI: {items: [{path: b, fieldRef: {fieldPath: metadata.namespace}}]}}]}
    "#;
    for [expected, volume] in cases::<2>(CASES) {
        let expected: Vec<&str> = expected.split(' ').filter(|file| *file != "-").collect();
        assert_eq!(files(volume).unwrap_or_else(|error| panic!("{error}")), expected, "{volume}");
    }
}

#[test]
fn a_missing_object_or_key_of_a_volume_is_reported_with_the_kubelets_text() {
    let items = "items: [{key: none, path: x}]";
    let (map, secret) = ("configMap: {name: none}", "secret: {name: none}");
    let field = "resourceFieldRef: {containerName: none, resource: limits.cpu}";
    for (volume, expected) in [
        (map, "configmap \"none\" not found"),
        ("secret: {secretName: none}", "secret \"none\" not found"),
        (&format!("configMap: {{name: c, {items}}}"), "configmap references non-existent config key: none"),
        (&format!("secret: {{secretName: s, {items}}}"), "references non-existent secret key: none"),
        (
            &format!("projected: {{sources: [{{{map}}}, {{{secret}}}, {{{map}}}]}}"),
            "[configmap \"none\" not found, secret \"none\" not found]",
        ),
        (&format!("downwardAPI: {{items: [{{path: c, {field}}}]}}"), "container none not found"),
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
    let with = |items: usize| {
        let item = |number: usize| {
            format!("{{path: f{number}, fieldRef: {{fieldPath: \"metadata.annotations['a']\"}}}}")
        };
        let items: Vec<String> = (0..items).map(item).collect();
        let annotation = format!("a: {}", "x".repeat(200_000));
        pod(&annotation, &format!("downwardAPI: {{items: [{}]}}", items.join(", ")))
    };
    let (many, few, none) = (with(100), with(20), std::iter::empty().collect());
    let mut room = Room::new(None);
    let files = of_first(&many, &none, &mut room).expect("20 MB are allowed");
    let mut contents = files.values().map(|file| file.content.as_ptr());
    let first = contents.next();
    assert!(contents.all(|content| Some(content) == first), "each file has a copy of the annotation");
    // The next volume of the pod has the rest of the room.
    let error = of_first(&many, &none, &mut room).expect_err("40 MB");
    assert!(error.contains("need more than 33554432 bytes"), "{error}");
    // The files of a pod with a limit are in its memory.
    assert!(of_first(&few, &none, &mut Room::new(Some(16 << 20))).is_ok());
    let error = of_first(&many, &none, &mut Room::new(Some(16 << 20))).expect_err("20 MB");
    assert!(error.contains("need more than 16777216 bytes"), "{error}");
}
