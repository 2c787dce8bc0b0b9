use super::*;
use nodlet_core::facts::{PodPhase, Record, StatusHandover};
use nodlet_core::time::{Instant, Moment};

fn text(name: &str, image: &str) -> String {
    pod(name, image).to_string()
}

/// Steps: a file and its text, empty if it is removed; and the notifications of the core, with the
/// rejections.
fn check(steps: &[(&str, &str, &[&str])]) {
    let mut world = World::new();
    for (step, (path, text, expected)) in steps.iter().enumerate() {
        let changes = if text.is_empty() { world.remove(path) } else { world.file(path, text) };
        assert_eq!(changes, *expected, "step {step}: {path}");
    }
}

#[test]
fn only_differences_between_wanted_pods_reach_the_core() {
    check(&[
        ("/site/a", &text("web", "a:1"), &["web is a:1"]),
        ("/site/a", &text("web", "a:1"), &[]),
        ("/site/b", &text("db", "b:1"), &["db is b:1"]),
        ("/site/a", &text("web", "a:2"), &["web goes", "web is a:2"]),
        ("/site/b", "", &["db goes"]),
        ("/site/a", "", &["web goes"]),
    ]);
}

#[test]
fn a_later_source_overrides_an_earlier_one_while_it_has_the_object() {
    check(&[
        ("/vendor/a", &text("web", "a:1"), &["web is a:1"]),
        ("/site/a", &text("web", "a:2"), &["web goes", "web is a:2"]),
        ("/run/a", &text("web", "a:3"), &["web goes", "web is a:3"]),
        ("/site/a", "", &[]),
        ("/run/a", "", &["web goes", "web is a:1"]),
    ]);
}

/// The cluster's source has the lowest precedence: its pods are stopped and deleted by the cluster alone, and shown as
/// pods of the API. For the rest it is one more row of the list of sources.
#[test]
fn a_cluster_is_a_source_like_any_other() {
    let (pod_file, map_file) = ("/cluster/default_web.json", "/cluster/configmap_default_c.json");
    let mut world = World::new();
    let config =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}});
    let published = |world: &World| {
        world.registry.published_definition(&(Kind::ConfigMap, "default".into(), "c".into())).is_some()
    };
    let is_from_api = |world: &World| {
        let wanted = world.registry.desired.values().next().expect("there is one pod");
        (world.registry.is_from_api(wanted), world.registry.is_applied(wanted))
    };
    assert_eq!(world.file(pod_file, &text("web", "a:1")), ["web is a:1"]);
    assert_eq!(is_from_api(&world), (true, false));
    assert_eq!(world.file(map_file, &config.to_string()), Vec::<String>::new());
    assert!(published(&world));
    let status = world.delete("web", &Preconditions::default()).expect_err("it belongs to the cluster");
    assert!(status.message.ends_with("change or delete it in the cluster"), "{}", status.message);
    // Any source of the board overrides it while that has the pod.
    assert_eq!(world.file("/vendor/a", &text("web", "a:2")), ["web goes", "web is a:2"]);
    assert_eq!(is_from_api(&world), (false, false));
    let status = world.delete("web", &Preconditions::default()).expect_err("it belongs to a file");
    assert!(status.message.ends_with("in /site overrides it"), "{}", status.message);
    assert_eq!(world.remove("/vendor/a"), ["web goes", "web is a:1"]);
    assert_eq!(world.remove(pod_file), ["web goes"]);
    world.remove(map_file);
    assert!(!published(&world));
}

#[test]
fn the_first_file_of_a_source_that_defines_a_pod_takes_precedence() {
    let ignored = "Error validating pod web_default from file due to duplicate pod name \"web\", ignoring /site/b: /site/a has it already";
    check(&[
        ("/site/b", &text("web", "a:2"), &["web is a:2"]),
        ("/site/a", &text("web", "a:1"), &["web goes", "web is a:1", ignored]),
        ("/site/a", "", &["web goes", "web is a:2"]),
    ]);
}

#[test]
fn a_file_that_becomes_wrong_keeps_its_pod() {
    let wrong = text("web", "a:1").replace("\"image\"", "\"imago\"");
    let refusal = "/site/a: Pod \"web\" cannot be handled as a Pod: strict decoding error: unknown field \"spec.containers[0].imago\"";
    let mut world = World::new();
    world.file("/site/a", &text("web", "a:1"));
    let changes = world.file("/site/a", &wrong);
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert!(changes[0].contains("unknown field \"spec.containers[0].imago\""), "{changes:?} {refusal}");
    assert!(!world.registry.all_read());
    assert_eq!(world.image("web"), "a:1");
    assert_eq!(world.file("/site/a", &text("web", "a:1")), [] as [&str; 0]);
    assert!(world.registry.all_read());
}

#[test]
fn a_new_pod_of_a_missing_class_is_rejected_and_a_running_one_is_kept() {
    let classy = |class: &str| {
        let mut object = pod("web", "a:1");
        object["spec"]["priorityClassName"] = class.into();
        object.to_string()
    };
    let refused = "/site/a: pods \"web\" is forbidden: no PriorityClass with name high was found";
    check(&[
        ("/site/a", &classy("high"), &[refused]),
        ("/site/a", &text("web", "a:1"), &["web is a:1"]),
        ("/site/a", &classy("high"), &[refused]),
        // The file exists, so that the pod may still be desired.
        ("/site/b", &text("db", "b:1"), &["db is b:1", refused]),
        ("/site/a", "", &["web goes"]),
    ]);
    let class = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 9\n";
    let mut world = World::new();
    world.file("/site/class", class);
    assert_eq!(world.file("/site/a", &classy("high")), ["web is a:1"]);
    // A pod keeps the priority that it was admitted with.
    assert_eq!(world.remove("/site/class"), [] as [&str; 0]);
    assert_eq!(world.pods[&pod_name("web")].pod.priority, 9);
    let found = world.pods[&pod_name("web")].clone();
    assert!(!world.registry.is_unread(&found));
    world.file("/site/a", &classy("low"));
    assert!(world.registry.is_unread(&found));
}

#[test]
fn a_pod_that_a_client_deletes_is_not_stopped_again_when_its_file_is_removed() {
    let mut world = World::new();
    world.file("/site/a", &text("web", "a:1"));
    let uid = world.pods[&pod_name("web")].pod.uid.clone();
    let unwanted = |removing: Option<&Uid>| {
        let mut world = World::new();
        world.file("/site/a", &text("web", "a:1"));
        world.registry.sources.remove(Path::new("/site/a"));
        let read = world.registry.read(NOW, NOW);
        let (admitted, _) = world.registry.admit_all(read, Vec::new(), drop);
        let difference = world.registry.difference(admitted.all_due(), removing);
        assert!(!world.registry.desires(&uid) && difference.wanted.is_empty());
        difference.unwanted.len()
    };
    assert_eq!((unwanted(None), unwanted(Some(&uid))), (1, 0));
}

/// A removal that was delayed must not take the manifest of the next pod of the name.
#[test]
fn a_manifest_is_that_of_others_if_it_has_pods_but_not_the_one_of_this_uid() {
    let mut world = World::new();
    for (uids, is_of_others) in
        [(&["new"][..], true), (&["old"], false), (&["new", "old"], false), (&[], false)]
    {
        let manifest = |uid: &&str| {
            let mut object = pod(uid, "a:1");
            object["metadata"]["uid"] = (*uid).into();
            object.to_string()
        };
        let texts: Vec<String> = uids.iter().map(manifest).collect();
        world.file("/cluster/a", &texts.join("\n---\n"));
        let sources = &world.registry.sources;
        assert_eq!(
            sources.is_of_others(Path::new("/cluster/a"), &Uid::from("old")),
            is_of_others,
            "{uids:?}"
        );
        assert!(!sources.is_of_others(Path::new("/cluster/b"), &Uid::from("old")), "there is no such file");
    }
}

#[test]
fn pods_that_the_node_has_admitted_come_before_new_ones() {
    let record = |phase, start_time| Record { phase, start_time, ..Record::default() };
    let started = Some(Moment::ThisBoot(Instant(1)));
    let status = |is_admitted, is_gated| {
        let state = json!({
            "phase": "Pending", "start_time": {"ThisBoot": 1}, "active_since": 1, "containers": [],
            "has_place": is_admitted, "is_gated": is_gated,
        });
        let status = json!({"conditions": [], "state": state});
        serde_json::from_value::<StatusHandover>(status).expect("it is a status")
    };
    let mut pods = [
        ("a new one", None, None),
        ("one that has started", Some(record(PodPhase::Running, started)), None),
        ("one that was not admitted", Some(record(PodPhase::Pending, None)), Some(status(false, false))),
        ("one that has finished", Some(record(PodPhase::Failed, None)), None),
        ("one that waits for scheduling gates", None, Some(status(true, true))),
        ("one that an earlier agent admitted", None, Some(status(true, false))),
    ];
    sort_admitted_first(&mut pods, |(_, record, status)| (record.as_ref(), status.as_ref()));
    assert_eq!(
        pods.map(|(name, ..)| name),
        [
            "one that has started",
            "one that has finished",
            "one that an earlier agent admitted",
            "a new one",
            "one that was not admitted",
            "one that waits for scheduling gates",
        ]
    );
}
