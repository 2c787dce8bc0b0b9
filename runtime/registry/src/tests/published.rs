use std::time::Duration;

use super::*;

#[test]
fn a_pod_is_published_as_admitted_with_its_observed_status() {
    let mut world = World::new();
    world.file("/site/file.yaml", &pod("file", "a:1").to_string());
    world.apply(pod("applied", "a:1"), CREATE).expect("it is new");
    let mut gated = pod("gated", "a:1");
    gated["spec"]["schedulingGates"] = json!([{"name": "g"}]);
    world.apply(gated, CREATE).expect("it is new");
    let deletion = || Some(("2026-01-02T00:00:00Z".to_owned(), Duration::from_secs(30)));
    let config =
        |source: &str| json!({"kubernetes.io/config.source": source, "kubernetes.io/config.seen": NOW});
    for (name, deletion, source, node, expected) in [
        ("file", None, "file", json!(NODE), json!({})),
        ("applied", None, "api", json!(NODE), json!({})),
        ("gated", None, "api", json!(null), json!({})),
        (
            "applied",
            deletion(),
            "api",
            json!(NODE),
            json!({"deletionTimestamp": "2026-01-02T00:00:00Z", "deletionGracePeriodSeconds": 30}),
        ),
    ] {
        let wanted = &world.pods[&pod_name(name)];
        let status = json!({"phase": "Running"});
        let seen = Seen { created: NOW.to_owned(), generation: 3, deletion, status: status.clone() };
        let object = world.registry.published(wanted, seen).expect("it is JSON");
        let mut annotations = config(source);
        if source == "file" {
            annotations["kubernetes.io/config.hash"] = (*wanted.pod.uid.0).into();
        }
        let mut metadata = json!({
            "name": name, "namespace": "default", "uid": &*wanted.pod.uid.0, "generation": 3,
            "creationTimestamp": NOW, "annotations": annotations,
        });
        metadata
            .as_object_mut()
            .expect("an object")
            .extend(expected.as_object().cloned().unwrap_or_default());
        assert_eq!((&object["metadata"], &object["status"]), (&metadata, &status), "{name}");
        assert_eq!(object["spec"]["nodeName"], node, "{name}");
    }
}

#[test]
fn sending_a_published_pod_back_changes_nothing() {
    let mut world = World::new();
    world.apply(pod("web", "a:1"), CREATE).expect("it is new");
    let seen = Seen { created: NOW.to_owned(), generation: 1, deletion: None, status: json!({}) };
    let object = world.registry.published(&world.pods[&pod_name("web")], seen).expect("it is JSON");
    // A complete object causes the same warnings as a new one, including those about defaults without effect.
    assert!(
        line(world.apply(object.clone(), APPLY))
            .starts_with("Unchanged; spec.enableServiceLinks: has no effect: ")
    );
    assert_eq!(line(world.update("web", Change::Replace(object), false)), "Unchanged");
}
