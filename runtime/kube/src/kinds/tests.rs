use serde_json::{Value, json};

use super::*;
use crate::manifest::{self, Validation};

/// A manifest of each kind, as short as it may be. A new kind does not compile without one.
fn manifest_of(row: &Row) -> Value {
    let mut object = match row.kind {
        Kind::Pod => json!({"spec": {"containers": [{"name": "app", "image": "app:1"}]}}),
        Kind::PodPreset => json!({"spec": {"env": [{"name": "A", "value": "1"}]}}),
        Kind::PriorityClass => json!({"value": 1}),
        Kind::RuntimeClass => json!({"handler": "nodlet"}),
        Kind::LimitRange => json!({"spec": {"limits": [{"type": "Pod"}]}}),
        Kind::ConfigMap | Kind::Secret => json!({"data": {"a": "YQ=="}}),
        Kind::PersistentVolume => json!({"spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"},
        }}),
        Kind::PersistentVolumeClaim => json!({"spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        }}),
        Kind::Service => json!({"spec": {"ports": [{"port": 80}]}}),
        Kind::EndpointSlice => json!({"addressType": "IPv4", "endpoints": []}),
        Kind::Endpoints | Kind::Event | Kind::Namespace | Kind::Node => json!({}),
    };
    object["apiVersion"] = row.version.into();
    object["kind"] = row.name.into();
    object["metadata"] = json!({"name": "web"});
    object
}

#[test]
fn each_kind_has_its_row_and_unique_names() {
    let mut names = Vec::new();
    for (place, row) in KINDS.iter().enumerate() {
        assert_eq!(row.kind as usize, place, "{}", row.name);
        assert!(
            row.kind.row().name == row.name
                && !strategy(row.kind).columns.is_empty()
                && !row.fields.is_empty()
        );
        // Of Endpoints, one word is both.
        let singular = Some(row.singular).filter(|singular| *singular != row.plural);
        let all = [row.plural].into_iter().chain(singular).chain(row.short_names.iter().copied());
        for name in all {
            assert!(on_command_line(name).is_some_and(|found| found.kind == row.kind), "{name}");
            names.push(name);
        }
        assert!(on_command_line(&row.plural.to_uppercase()).is_some());
        assert_eq!(row.singular, row.name.to_lowercase());
        assert!(row.plural.starts_with(row.singular), "manifest/find.rs makes its plural of the kind's name");
    }
    let every = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), every, "{names:?}");
    let expected =
        ["settings.k8s.io/v1alpha1", "scheduling.k8s.io/v1", "node.k8s.io/v1", "discovery.k8s.io/v1"];
    assert_eq!(groups().collect::<Vec<_>>(), expected);
}

#[test]
fn manifests_may_have_exactly_the_kinds_that_clients_may_create() {
    for row in KINDS {
        let bytes = manifest_of(row).to_string();
        let read = manifest::contents("a.json", bytes.as_bytes(), Validation::Strict, "board");
        assert_eq!(Kind::named(row.name), row.allows("create").then_some(row.kind));
        assert_eq!(Kind::of_resource(row.plural), Kind::named(row.name));
        match (row.allows("create"), read) {
            (true, Ok(contents)) if row.kind == Kind::Pod => {
                assert_eq!((contents.pods.len(), contents.definitions.len()), (1, 0));
            }
            (true, Ok(contents)) => {
                assert_eq!((contents.pods.len(), contents.definitions.len()), (0, 1));
                assert_eq!(contents.definitions[0].kind, row.kind);
                assert_eq!(contents.definitions[0].object()["kind"], row.name);
                assert_eq!(contents.definitions[0].namespace.is_empty(), !row.namespaced);
            }
            (false, Err(refused)) => assert!(refused.to_string().contains(row.name), "{refused}"),
            (true, Err(refused)) => panic!("{}: {refused}", row.name),
            (false, Ok(_)) => panic!("{} is read", row.name),
        }
    }
}

#[test]
fn each_kind_that_clients_may_create_has_a_type_in_the_schema() {
    for row in readable() {
        // Kubernetes has removed PodPresets: they are checked as the Pods of which they are pieces.
        let is_expected = row.kind != Kind::PodPreset;
        let is_found = crate::schema::find(row.name).is_some();
        assert_eq!(is_found, is_expected, "{}: run `cargo xtask schema`", row.name);
    }
}

#[test]
fn the_uids_of_objects_from_files_differ_between_kinds_and_never_change() {
    for (kind, expected) in [
        (Kind::Pod, "45938f0b408656864599fc056b95cc50"),
        (Kind::ConfigMap, "243675731b88359f2ecf9b7dff114dac"),
        (Kind::Secret, "91fbcf0f51bd38ede886f6fcdfea07b2"),
        (Kind::PodPreset, "63ba334a85c4ab14fd5b4ddfc3d97f8a"),
        (Kind::PriorityClass, "d4c2e55391b573987751320b0793a9a5"),
        (Kind::PersistentVolume, "cbc57b4f0837729c5ce30feeb89131c9"),
        (Kind::PersistentVolumeClaim, "a6713996cff93fdd21a4d0193998939d"),
        (Kind::Service, "1ea491b8a0cb3f0254943e69f67cad1f"),
        (Kind::EndpointSlice, "0dba0fc509027b8b55998284963e478d"),
    ] {
        let bytes = manifest_of(kind.row()).to_string();
        let contents =
            manifest::contents("a.json", bytes.as_bytes(), Validation::Strict, "board").expect("it is right");
        let objects = contents.pods.into_iter().map(|pod| pod.object);
        let mut objects = objects.chain(contents.definitions.iter().map(|definition| definition.object()));
        let object = objects.next().expect("there is one");
        assert_eq!(object["metadata"]["uid"], expected, "{}", kind.as_str());
    }
}

#[test]
fn each_kind_is_described_by_its_name() {
    for row in KINDS {
        let object = manifest_of(row);
        let strategy = strategy(row.kind);
        let described = strategy.describe(&object, &[], strategy.has_events.then(Vec::new));
        let first = described.lines().next().unwrap_or_default();
        assert!(first.starts_with("Name:") && first.ends_with(" web"), "{described}");
        let without = [Kind::Namespace, Kind::Secret, Kind::LimitRange].contains(&row.kind);
        assert_eq!(described.contains("\nEvents: "), !without, "{described}");
    }
}

#[test]
fn an_object_that_was_applied_has_a_file_of_its_own() {
    for (kind, expected) in [
        (Kind::Pod, "default_web.json"),
        (Kind::PodPreset, "podpreset_default_web.json"),
        (Kind::PriorityClass, "priorityclass__web.json"),
        (Kind::Secret, "secret_default_web.json"),
    ] {
        assert_eq!(kind.row().file("default", "web"), expected);
        let namespace = if kind.row().namespaced { "default" } else { "" };
        let found = (kind != Kind::Pod).then_some((kind, namespace, "web"));
        assert_eq!(definition_of_file(expected), found);
    }
    for other in [
        "secret_web.json",
        "secret__web.json",
        "priorityclass_a_b.json",
        "secret_default_web.yaml",
        "node__a.json",
    ] {
        assert_eq!(definition_of_file(other), None, "{other}");
    }
}
