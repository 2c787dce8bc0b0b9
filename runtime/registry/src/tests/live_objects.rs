use nodlet_fuzz::assert_starts_with;
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
        let seen = LiveFields { created: NOW.to_owned(), generation: 3, deletion, status: status.clone() };
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
    let mut web = pod("web", "a:1");
    web["spec"]["schedulerName"] = "mine".into();
    world.apply(web, CREATE).expect("it is new");
    let seen = LiveFields { created: NOW.to_owned(), generation: 1, deletion: None, status: json!({}) };
    let object = world.registry.published(&world.pods[&pod_name("web")], seen).expect("it is JSON");
    // A complete object causes the same warnings as a new one.
    assert_starts_with(
        &line(world.apply(object.clone(), APPLY)),
        "Unchanged; spec.schedulerName: has no effect: ",
    );
    assert_eq!(line(world.update("web", Change::Replace(object), false)), "Unchanged");
}

/// The pod of this name, in a core that has just observed it.
fn with_state<T>(world: &World, name: &str, check: impl FnOnce(&nodlet_core::pod::PodState) -> T) -> T {
    let mut node = nodlet_core::node::Node::new();
    let pod = world.pods[&pod_name(name)].pod.clone();
    node.observe(Instant(0), nodlet_core::facts::Observation::Wanted { pod, record: None, status: None });
    check(node.pods().next().expect("the core observed it"))
}

#[test]
fn the_images_that_a_replacement_waits_for_are_shown_instead_of_those_of_a_change_in_place() {
    let mut world = World::new();
    world.file("/site/web.yaml", &pod("web", "a:1").to_string());
    let of = |kind: &str, message: &str| json!({"type": kind, "message": message});
    let before = json!({"conditions": [of("Ready", ""), of("PodImageUpdatePending", "in place")]});
    let shown = |world: &World| {
        let mut status = before.clone();
        let anchor = nodlet_core::time::Anchor(0);
        with_state(world, "web", |state| world.registry.add_awaited_images(&mut status, state, anchor));
        status
    };
    assert_eq!(shown(&world), before, "nothing waits");
    let missing = vec!["a:2".to_owned()];
    let waits = crate::held_updates::Waits { since: Instant(0), missing };
    world.registry.held_updates.adopt(world.pods[&pod_name("web")].pod.uid.clone(), waits);
    let status = shown(&world);
    let conditions = status["conditions"].as_array().expect("a list");
    assert_eq!(conditions.len(), 2, "{status}");
    assert_eq!(conditions[0]["type"], "Ready");
    assert!(conditions[1]["message"].as_str().is_some_and(|message| message.contains("a:2")), "{status}");
}

#[test]
fn a_successor_is_the_pod_that_is_wanted_now_unless_it_resumes_or_has_another_uid() {
    let mut world = World::new();
    let with_uid = |uid: &str, image: &str| {
        let mut object = pod("web", image);
        object["metadata"]["uid"] = uid.into();
        object.to_string()
    };
    let image = |wanted: &Wanted| wanted.pod.spec.containers[0].image.clone();
    world.file("/site/web.yaml", &with_uid("u", "a:1"));
    let gone = world.pods[&pod_name("web")].clone();
    world.file("/site/web.yaml", &with_uid("u", "a:2"));
    let new = world.pods[&pod_name("web")].pod.clone();
    assert_eq!(image(&world.registry.successor_of(&gone, Some(&new), true)), "a:1");
    assert_eq!(image(&world.registry.successor_of(&gone, Some(&new), false)), "a:2");
    assert_eq!(image(&world.registry.successor_of(&gone, None, false)), "a:1");
    world.file("/site/web.yaml", &with_uid("v", "a:3"));
    assert_eq!(image(&world.registry.successor_of(&gone, Some(&new), false)), "a:1");
}
