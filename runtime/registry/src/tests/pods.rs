use super::*;
use nodlet_fuzz::cases;

fn with(pointer: &str, value: Value) -> Value {
    let mut object = pod("web", "a:1");
    let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
    object.pointer_mut(parent).expect("it is there")[field] = value;
    object
}

#[test]
fn applying_a_pod_reports_created_configured_or_unchanged() {
    let mut world = World::new();
    let dry = |how: RequestOptions| RequestOptions { dry_run: true, ..how };
    let tried = world.apply(pod("web", "a:1"), dry(CREATE)).expect("it is new").object;
    assert_eq!(tried["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
    assert_eq!(tried["metadata"]["generation"], 1);
    for (object, how, expected, image) in [
        (pod("web", "a:1"), dry(CREATE), "Created", "none"),
        (pod("web", "a:1"), CREATE, "Created", "a:1"),
        (pod("web", "a:1"), CREATE, "409 AlreadyExists: pods \"web\" already exists", "a:1"),
        (pod("web", "a:1"), APPLY, "Unchanged", "a:1"),
        (pod("web", "a:2"), dry(APPLY), "Configured", "a:1"),
        (pod("web", "a:2"), APPLY, "Configured", "a:2"),
        (with("/spec/hostname", json!("h")), APPLY, "Configured", "a:1"),
        (
            with("/spec/priorityClassName", json!("high")),
            APPLY,
            "403 Forbidden: pods \"web\" is forbidden: no PriorityClass with name high was found",
            "a:1",
        ),
        (
            with("/spec/priorityClassName", json!("high")),
            dry(APPLY),
            "403 Forbidden: pods \"web\" is forbidden: no PriorityClass with name high was found",
            "a:1",
        ),
        (
            with("/metadata/resourceVersion", json!("1")),
            APPLY,
            "409 Conflict: Operation cannot be fulfilled on pods \"web\": the object has been modified; please apply your changes to the latest version and try again",
            "a:1",
        ),
        (
            with("/spec/nodeName", json!("other")),
            APPLY,
            "422 Invalid: Pod \"web\" is invalid: spec.nodeName: Invalid value: \"other\": this node is \"board\": leave the field out",
            "a:1",
        ),
        (
            with("/spec/colour", json!("red")),
            APPLY,
            "400 BadRequest: Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: unknown field \"spec.colour\"",
            "a:1",
        ),
    ] {
        let answer = line(world.apply(object.clone(), how));
        assert_eq!((answer.as_str(), world.image("web")), (expected, image), "{object} {how:?}");
    }
}

#[test]
fn an_update_in_place_keeps_the_uid_and_a_replacement_gets_another() {
    let mut world = World::new();
    world.apply(pod("web", "a:1"), CREATE).expect("it is new");
    let identity = |world: &World| {
        let pod = &world.pods[&pod_name("web")].pod;
        (pod.uid.clone(), pod.generation)
    };
    let (uid, generation) = identity(&world);
    world.apply(pod("web", "a:2"), APPLY).expect("it is right");
    assert_eq!(identity(&world), (uid.clone(), generation + 1));
    world.apply(with("/spec/hostname", json!("h")), APPLY).expect("it is right");
    let (other, generation) = identity(&world);
    assert!(other != uid && generation == 1, "{other} {generation}");
}

#[test]
fn a_terminating_pod_keeps_its_name_reserved() {
    let mut world = World::new();
    world.file("/site/web.yaml", &pod("web", "a:1").to_string());
    let ending = world.pods[&pod_name("web")].clone();
    world.remove("/site/web.yaml");
    world.ending.insert(ending.pod.uid.clone());
    world.publish(ending);
    let expected = "409 AlreadyExists: object is being deleted: pods \"web\" already exists";
    assert_eq!(line(world.apply(pod("web", "a:1"), CREATE)), expected);
    let label = Change::Replace(with("/metadata/labels", json!({"a": "b"})));
    let expected = "409 Conflict: Operation cannot be fulfilled on pods \"web\": the pod is being deleted";
    assert_eq!(line(world.update("web", label, false)), expected);
    world.delete("web", &Preconditions::default()).expect("again");
    assert_eq!(line(world.apply(pod("web", "a:1"), APPLY)), "Created");
}

#[test]
fn applying_a_pod_that_a_file_overrides_returns_a_warning() {
    let mut world = World::new();
    world.file("/run/web.yaml", &pod("web", "file:1").to_string());
    let warning =
        "/run/web.yaml overrides this: pod \"web\" is defined by that file until it is removed from it";
    assert_eq!(line(world.apply(pod("web", "a:1"), APPLY)), format!("Configured; {warning}"));
    assert_eq!(world.image("web"), "file:1");
    world.remove("/run/web.yaml");
    assert_eq!(world.image("web"), "a:1");
    // An applied pod overrides a pod of the device image.
    world.file("/vendor/db.yaml", &pod("db", "file:1").to_string());
    assert_eq!(line(world.apply(pod("db", "a:1"), CREATE)), "409 AlreadyExists: pods \"db\" already exists");
    assert_eq!(line(world.apply(pod("db", "a:1"), APPLY)), "Configured");
    assert_eq!(world.image("db"), "a:1");
}

#[test]
fn updates_that_are_not_possible_in_place_are_rejected() {
    let mut world = World::new();
    world.apply(pod("web", "a:1"), CREATE).expect("it is new");
    world.file("/site/site.yaml", &pod("site", "a:1").to_string());
    world.file("/vendor/vendor.yaml", &pod("vendor", "a:1").to_string());
    let image = |name: &str| {
        let mut object = pod(name, "a:2");
        object["metadata"]["namespace"] = "default".into();
        object
    };
    for (name, object, expected) in [
        ("db", image("db"), "404 NotFound: pods \"db\" not found"),
        (
            "site",
            image("site"),
            "403 Forbidden: pods \"site\" is forbidden: it is defined by /site/site.yaml; edit that file",
        ),
        (
            "vendor",
            image("vendor"),
            "403 Forbidden: pods \"vendor\" is forbidden: it is defined by /vendor/vendor.yaml; a pod of the same name in /site overrides it",
        ),
        ("web", image("web"), "Configured"),
        ("web", image("web"), "Unchanged"),
        (
            "web",
            with("/metadata/uid", json!("v")),
            "409 Conflict: Operation cannot be fulfilled on pods \"web\": Precondition failed: UID in precondition: v, UID in object meta: 01010101-0101-4101-8101-010101010101",
        ),
        (
            "web",
            with("/metadata/deletionTimestamp", json!(NOW)),
            "422 Invalid: Pod \"web\" is invalid: metadata.deletionTimestamp: Invalid value: \"2026-01-01T00:00:00Z\": field is immutable",
        ),
    ] {
        let answer = line(world.update(name, Change::Replace(object.clone()), false));
        assert_eq!(answer, expected, "{object}");
    }
    let command = with("/spec/hostname", json!("h"));
    let answer = line(world.update("web", Change::Replace(command), false));
    let forbidden =
        "422 Invalid: Pod \"web\" is invalid: spec: Forbidden: pod updates may not change fields other than ";
    assert!(answer.starts_with(forbidden), "{answer}");
    assert_eq!(world.image("web"), "a:2");
    assert_eq!(line(world.update("web", Change::Replace(image("web").clone()), true)), "Unchanged");
}

#[test]
fn a_pod_whose_next_version_waits_rejects_another_change() {
    let mut world = World::new();
    world.apply(pod("web", "a:1"), CREATE).expect("it is new");
    let mut outcome = |present: Present| {
        let change = Change::Replace(pod("web", "a:2"));
        let updating =
            Updating { change, part: Part::Whole, validation: FieldValidation::Strict, dry_run: true };
        let decision = world.registry.update("web", updating, Some(&present));
        decision.map_or_else(|status| status.message, |_| "taken".to_owned())
    };
    let present = || {
        let mut world = World::new();
        world.apply(pod("web", "a:1"), CREATE).expect("it is new");
        world.present("web").expect("it is there")
    };
    assert_eq!(outcome(present()), "taken");
    let waiting = Some(present().wanted);
    let expected = "Operation cannot be fulfilled on pods \"web\": another version of the pod, from /applied/default_web.json, waits for its images: change that version, or remove it first";
    assert_eq!(outcome(Present { waiting, ..present() }), expected);
}

#[test]
fn clients_may_set_conditions_that_the_node_does_not_own() {
    let mut world = World::new();
    world.file("/site/web.yaml", &pod("web", "a:1").to_string());
    let gate = json!({"type": "example.com/gate", "status": "True"});
    let mut given: Rc<[ClientCondition]> = Rc::new([]);
    for (status, validation, expected) in [
        (json!({}), FieldValidation::Strict, "published"),
        (json!({"conditions": [gate]}), FieldValidation::Strict, "given 1"),
        (json!({"conditions": [gate]}), FieldValidation::Strict, "published"),
        (json!({"conditions": [gate], "colour": 1}), FieldValidation::Ignore, "published"),
        (
            json!({"conditions": [gate], "colour": 1}),
            FieldValidation::Strict,
            "400 strict decoding error: unknown field \"status.colour\"",
        ),
        (
            json!({"conditions": [gate], "colour": 1}),
            FieldValidation::Warn,
            "published; unknown field \"status.colour\"",
        ),
        (
            json!({"phase": "Running"}),
            FieldValidation::Strict,
            "422 Pod \"web\" is invalid: status.phase: Forbidden: is set by the node: clients can set only conditions that the node does not set",
        ),
    ] {
        let mut object = pod("web", "a:1");
        object["status"] = status.clone();
        let change = Change::Replace(object);
        let updating = Updating { change, part: Part::Status, validation, dry_run: false };
        let present =
            Present { client_conditions: given.clone(), ..world.present("web").expect("it is there") };
        let answer = match world.registry.update("web", updating, Some(&present)) {
            Ok(Decision::Published(warnings)) => {
                warnings.iter().fold("published".to_owned(), |all, warning| format!("{all}; {warning}"))
            }
            Ok(Decision::ClientConditions(conditions, _)) => {
                given = conditions;
                format!("given {}", given.len())
            }
            Ok(decision) => format!("{decision:?}"),
            Err(status) => format!("{} {}", status.code, status.message),
        };
        assert_eq!(answer, expected, "{status}");
    }
}

#[test]
fn clients_may_delete_only_pods_that_clients_applied() {
    let mut world = World::new();
    world.apply(pod("web", "a:1"), CREATE).expect("it is new");
    world.file("/site/site.yaml", &pod("site", "a:1").to_string());
    world.file("/vendor/vendor.yaml", &pod("vendor", "a:1").to_string());
    let uid = |uid: &str| Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let version = Preconditions { uid: None, resource_version: Some("1".to_owned()) };
    let none = Preconditions::default;
    for (name, preconditions, expected) in [
        ("db", none(), "404 NotFound: pods \"db\" not found"),
        (
            "site",
            none(),
            "403 Forbidden: pods \"site\" is forbidden: it is defined by /site/site.yaml; remove that file, or the pod from it",
        ),
        (
            "vendor",
            none(),
            "403 Forbidden: pods \"vendor\" is forbidden: it is defined by /vendor/vendor.yaml; a pod of the same name in /site overrides it",
        ),
        (
            "web",
            uid("v"),
            "409 Conflict: Operation cannot be fulfilled on Pod \"web\": the UID in the precondition (v) does not match the UID in record (01010101-0101-4101-8101-010101010101). The object might have been deleted and then recreated",
        ),
        (
            "web",
            version,
            "409 Conflict: Operation cannot be fulfilled on Pod \"web\": the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (103). The object might have been modified",
        ),
        ("web", uid("01010101-0101-4101-8101-010101010101"), "gone"),
        ("web", none(), "404 NotFound: pods \"web\" not found"),
    ] {
        let answer = match world.delete(name, &preconditions) {
            Ok(()) => "gone".to_owned(),
            Err(status) => line(Err(status)),
        };
        assert_eq!(answer, expected, "{name} {preconditions:?}");
    }
}

#[test]
fn only_containers_that_may_run_again_are_restarted() {
    let mut world = World::new();
    let mut web = pod("web", "a:1");
    web["spec"]["initContainers"] = json!([
        {"name": "setup", "image": "a:1"}, {"name": "proxy", "image": "a:1", "restartPolicy": "Always"}
    ]);
    world.file("/site/web.yaml", &web.to_string());
    let present = || world.present("web").expect("it is there");
    let restart = |container, present: Option<Present>| match world.registry.restart(
        "web",
        container,
        present.as_ref(),
    ) {
        Ok(uid) => uid.0.to_string(),
        Err(status) => status.message,
    };
    let uid = present().wanted.pod.uid.0.to_string();
    for container in [None, Some("app"), Some("proxy")] {
        assert_eq!(restart(container, Some(present())), uid);
    }
    let conflict = "Operation cannot be fulfilled on pods \"web\": the pod";
    for (container, present, message) in [
        (None, None, "pods \"web\" not found".to_owned()),
        (Some("db"), Some(present()), "container db is not valid for pod web".into()),
        (
            Some("setup"),
            Some(present()),
            "container setup is an init container, and init containers do not run again".into(),
        ),
        (None, Some(Present { is_unwanted: true, ..present() }), format!("{conflict} is being deleted")),
        (
            None,
            Some(Present { has_terminal_phase: true, ..present() }),
            format!(
                "{conflict} has finished, and its containers do not run again: delete it, and apply its manifest"
            ),
        ),
    ] {
        assert_eq!(restart(container, present), message);
    }
}

#[test]
fn a_deleted_pod_gets_the_requested_grace_period_and_none_with_force() {
    for (own, asked, expected) in [
        (30, None, (None, false)),
        (30, Some(5), (Some(5), false)),
        // By force the object goes at once, and what runs has the grace of the pod.
        (30, Some(0), (None, true)),
        (0, None, (None, true)),
        (0, Some(5), (Some(5), false)),
    ] {
        let mut world = World::new();
        world.apply(with("/spec/terminationGracePeriodSeconds", json!(own)), CREATE).expect("it is new");
        let present = world.present("web");
        let deletion = world.registry.delete("web", &Preconditions::default(), asked, present.as_ref());
        let Deletion { stop, replacement, .. } = deletion.expect("it may go");
        assert_eq!(replacement, None);
        assert_eq!((stop.grace.map(|grace| grace.as_secs()), stop.is_forced), expected, "{own} {asked:?}");
    }
}

#[test]
fn only_finished_pods_that_clients_applied_are_garbage_collected() {
    let mut world = World::new();
    world.apply(pod("applied", "a:1"), CREATE).expect("it is new");
    world.file("/site/site.yaml", &pod("site", "a:1").to_string());
    // A file of the user, beside those of clients.
    world.file("/applied/mine.yaml", &pod("mine", "a:1").to_string());
    for (name, expected) in [("applied", true), ("site", false), ("mine", false)] {
        assert_eq!(world.registry.may_collect(&world.pods[&pod_name(name)]), expected, "{name}");
    }
}

#[test]
fn deleting_a_pod_by_name_deletes_its_waiting_replacement_unless_a_uid_is_given() {
    let mut world = World::new();
    world.apply(pod("web", "a:1"), CREATE).expect("it is new");
    let old = world.pods[&pod_name("web")].clone();
    world.apply(with("/spec/hostname", json!("h")), APPLY).expect("it is right");
    let new = world.pods[&pod_name("web")].pod.uid.clone();
    // The old pod is published until it has ended.
    world.publish(old.clone());
    let present = world.present("web");
    for (uid, expected) in [(None, Some(new)), (Some(old.pod.uid.0.to_string()), None)] {
        let preconditions = Preconditions { uid, resource_version: None };
        let deletion = world.registry.delete("web", &preconditions, None, present.as_ref());
        let Deletion { desired, replacement, .. } = deletion.expect("it may go");
        let desired = desired.map(|desired| desired.pod.uid.clone());
        assert_eq!((&desired, &replacement), (&expected, &expected), "{preconditions:?}");
    }
}

#[test]
fn files_beyond_the_quota_are_read_again_when_others_become_smaller_or_go() {
    let objects = |from: usize, to: usize| -> String {
        let one = |number| format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c{number}}}\n");
        (from..to).map(one).collect()
    };
    let mut world = World::new();
    world.file("/site/all.yaml", &objects(0, 1024));
    world.file("/site/all.yaml", &objects(0, 1023));
    assert!(!world.registry.sources.take_freed_room(), "no file needs the room");
    world.file("/site/small.yaml", &objects(2000, 2001));
    world.file("/site/late.yaml", &objects(2001, 2003));
    assert!(!world.registry.sources.take_freed_room(), "there is as little room as before");
    world.file("/site/all.yaml", &objects(0, 1022));
    assert!(world.registry.sources.take_freed_room());
    assert!(!world.registry.sources.take_freed_room(), "it was read again");
    world.remove("/site/small.yaml");
    assert!(world.registry.sources.take_freed_room());
    world.file("/site/late.yaml", &objects(2001, 2003));
    world.file("/site/all.yaml", &objects(0, 1));
    assert!(!world.registry.sources.take_freed_room(), "no file needs the room any more");
}

#[test]
fn a_pod_beyond_the_manifest_quota_is_rejected_and_changes_nothing() {
    let mut world = World::new();
    let large = |name: &str, image: &str| {
        let mut object = pod(name, image);
        object["metadata"]["annotations"] = json!({"a": "x".repeat(250_000)});
        object
    };
    let mut taken = 0;
    let answer = loop {
        match line(world.apply(large(&format!("p{taken}"), "a:1"), CREATE)) {
            answer if answer == "Created" => taken += 1,
            answer => break answer,
        }
    };
    assert_eq!(taken, 16);
    let full = "403 Forbidden: pods \"p16\" is forbidden: quota exceeded: all manifests together can have at most 1024 objects and 4 MiB; delete some";
    assert_eq!(answer, full);
    assert_eq!(world.pods.len(), 16);
    let dry = RequestOptions { dry_run: true, ..CREATE };
    assert_eq!(line(world.apply(large("p16", "a:1"), dry)), full);
    // Replaces the existing pod.
    assert_eq!(line(world.apply(large("p3", "a:2"), APPLY)), "Configured");
    world.delete("p3", &Preconditions::default()).expect("it is there");
    assert_eq!(line(world.apply(large("p16", "a:1"), CREATE)), "Created");
    let mut object = pod("big", "a:1");
    object["metadata"]["annotations"] = json!({"a": "x".repeat(200_000)});
    world.delete("p1", &Preconditions::default()).expect("it is there");
    object["spec"]["containers"][0]["args"] = vec!["\n".repeat(300_000), "\n".repeat(300_000)].into();
    let expected = "403 Forbidden: pods \"big\" is forbidden: its manifest is larger than 1 MiB";
    assert_eq!(line(world.apply(object, CREATE)), expected);
}

#[test]
fn the_answer_to_a_change_without_effect_is_complete() {
    let mut world = World::new();
    world.apply(pod("web", "a:1"), CREATE).expect("it is new");
    let patch = |patch: Value| Change::Patch(PatchKind::Merge, patch);
    let deadline = patch(json!({"kind": null, "spec": {"activeDeadlineSeconds": 5}}));
    let mut present = world.present("web").expect("it is there");
    present.object["status"] = json!({"phase": "Running"});
    present.object["metadata"]["creationTimestamp"] = NOW.into();
    let updating =
        Updating { change: deadline, part: Part::Whole, validation: FieldValidation::Strict, dry_run: true };
    let decision = world.registry.update("web", updating, Some(&present)).expect("it is right");
    let accepted = world.carry_out(decision).expect("it is right");
    let current = &present.object;
    for pointer in ["/status", "/metadata/creationTimestamp", "/spec/priority", "/spec/preemptionPolicy"] {
        let value = accepted.object.pointer(pointer);
        assert!(value.is_some_and(|value| !value.is_null()), "{pointer}: {}", accepted.object);
        assert_eq!(value, current.pointer(pointer), "{pointer}");
    }
    assert!(accepted.object["metadata"]["resourceVersion"].is_string());
    assert_eq!(accepted.object["metadata"]["generation"], 2);
    // A patch cannot make it another pod, or one without a node; a manifest that is sent again names no node.
    for [change, expected] in cases(
        r#"
            {"metadata": {"uid": "v"}}
                => 422 Invalid: Pod "web" is invalid: metadata.uid: Invalid value: "v": field is immutable
            {"spec": {"nodeName": null}}
                => 422 Invalid: Pod "web" is invalid: spec: Forbidden: pod updates may not change
            {"spec": {"containers": []}}
                => 422 Invalid: Pod "web" is invalid: [spec.containers: Required value, spec.containers: Forbidden: pod updates may not add or remove containers]
            {"metadata": {"creationTimestamp": 1}}
                => 422 Invalid: Pod "web" is invalid: metadata.creationTimestamp: Invalid value: 1: must be a time
        "#,
    ) {
        let change: Value = serde_json::from_str(change).expect("JSON");

        let answer = line(world.update("web", patch(change.clone()), false));
        assert!(answer.starts_with(expected), "{change}: {answer}");
    }
}

#[test]
fn a_new_pod_is_admitted_before_it_is_validated() {
    let mut world = World::new();
    let mut object = with("/spec/priority", json!(80));
    object["spec"]["hostname"] = json!("A");
    let expected = "403 Forbidden: pods \"web\" is forbidden: the integer value of priority (80) must not be provided in pod spec; priority admission controller computed 0 from the given PriorityClass name";
    assert_eq!(line(world.apply(object.clone(), CREATE)), expected);
    object["spec"]["priority"] = json!(0);
    let answer = line(world.apply(object.clone(), CREATE));
    assert!(answer.starts_with("422 Invalid: Pod \"web\" is invalid: spec.hostname"), "{answer}");
    // A type that is wrong is found first.
    object["spec"]["priority"] = json!(80);
    object["spec"]["hostPID"] = json!("true");
    let answer = line(world.apply(object, CREATE));
    assert!(answer.starts_with("422 Invalid: Pod \"web\" is invalid: spec.hostPID"), "{answer}");
}
