use super::*;

fn class(name: &str, fields: Value) -> Value {
    let mut object = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 10,
    });
    object.as_object_mut().expect("an object").extend(fields.as_object().cloned().unwrap_or_default());
    object
}

#[test]
fn clients_may_apply_only_definitions_that_no_file_defines() {
    let mut world = World::new();
    world.file("/site/site.yaml", &class("site", json!({})).to_string());
    let dry = RequestOptions { dry_run: true, ..CREATE };
    let tried = world.apply(class("tried", json!({})), dry).expect("it is new").object;
    assert_eq!((&tried["metadata"]["generation"], tried.get("status")), (&json!(1), None));
    world.apply(class("tried", json!({})), CREATE).expect("it is new");
    let changed =
        world.apply(class("tried", json!({"description": "x"})), RequestOptions { new: false, ..dry });
    let changed = changed.expect("it is there").object;
    assert!(changed["metadata"]["resourceVersion"].is_string(), "{changed}");
    assert_eq!((&changed["description"], changed.get("status")), (&json!("x"), None));
    for (object, how, expected) in [
        (class("high", json!({})), dry, "Created"),
        (class("high", json!({})), CREATE, "Created"),
        (
            class("high", json!({})),
            CREATE,
            "409 AlreadyExists: priorityclasses.scheduling.k8s.io \"high\" already exists",
        ),
        (class("high", json!({})), APPLY, "Unchanged"),
        (class("high", json!({"description": "x"})), APPLY, "Configured"),
        (class("usual", json!({"globalDefault": true})), CREATE, "Created"),
        (
            class("other", json!({"globalDefault": true})),
            CREATE,
            "403 Forbidden: priorityclasses.scheduling.k8s.io \"other\" is forbidden: PriorityClass usual is already marked as default. Only one default can exist",
        ),
        (
            class("site", json!({"description": "x"})),
            APPLY,
            "403 Forbidden: priorityclasses.scheduling.k8s.io \"site\" is forbidden: it is defined by /site/site.yaml; change that file",
        ),
        (
            class("high", json!({"value": 11})),
            APPLY,
            "422 Invalid: PriorityClass.scheduling.k8s.io \"high\" is invalid: value: Forbidden: may not be changed in an update.",
        ),
    ] {
        assert_eq!(line(world.apply(object.clone(), how)), expected, "{object} {how:?}");
    }
}

#[test]
fn an_existing_definition_is_updated_by_its_name() {
    let mut world = World::new();
    world.apply(class("high", json!({})), CREATE).expect("it is new");
    let change = |name: &str, object: Value| {
        let name: DefinitionName = (Kind::PriorityClass, "".into(), name.into());
        let changed = world.registry.change_definition(&name, Change::Replace(object));
        changed.map_or_else(
            |status| format!("{} {}", status.code, status.message),
            |changed| changed["description"].to_string(),
        )
    };
    assert_eq!(change("low", json!({})), "404 priorityclasses.scheduling.k8s.io \"low\" not found");
    let expected = "400 the name of the object (\"low\") does not match the name on the URL (high)";
    assert_eq!(change("high", class("low", json!({}))), expected);
    let mut versioned = class("high", json!({}));
    versioned["metadata"]["resourceVersion"] = "1".into();
    let expected = "409 Operation cannot be fulfilled on priorityclasses.scheduling.k8s.io \"high\": the object has been modified; please apply your changes to the latest version and try again";
    assert_eq!(change("high", versioned), expected);
    assert_eq!(change("high", class("high", json!({"description": "x"}))), "\"x\"");
}

#[test]
fn clients_may_delete_only_definitions_that_clients_applied() {
    let mut world = World::new();
    world.file("/site/site.yaml", &class("site", json!({})).to_string());
    world.apply(class("high", json!({})), CREATE).expect("it is new");
    let uid = Preconditions { uid: Some("v".to_owned()), resource_version: None };
    for (name, preconditions, expected) in [
        ("low", Preconditions::default(), "404 priorityclasses.scheduling.k8s.io \"low\" not found"),
        (
            "system-node-critical",
            Preconditions::default(),
            "403 priorityclasses.scheduling.k8s.io \"system-node-critical\" is forbidden: this is a system priority class and cannot be deleted",
        ),
        (
            "site",
            Preconditions::default(),
            "403 priorityclasses.scheduling.k8s.io \"site\" is forbidden: it is defined by /site/site.yaml; change that file",
        ),
        (
            "high",
            uid,
            "409 Operation cannot be fulfilled on PriorityClass.scheduling.k8s.io \"high\": the UID in the precondition (v) does not match the UID in record (01010101-0101-4101-8101-010101010101). The object might have been deleted and then recreated",
        ),
        ("high", Preconditions::default(), "/applied/priorityclass__high.json"),
    ] {
        let name: DefinitionName = (Kind::PriorityClass, "".into(), name.into());
        let answer = match world.registry.delete_definition(&name, &preconditions) {
            Ok((_, source)) => source.display().to_string(),
            Err(status) => format!("{} {}", status.code, status.message),
        };
        assert_eq!(answer, expected, "{name:?}");
    }
}

#[test]
fn the_default_class_of_lowest_value_in_files_is_the_default() {
    let mut world = World::new();
    world.file("/site/a.yaml", &class("a", json!({"globalDefault": true, "value": 5})).to_string());
    let changes =
        world.file("/site/b.yaml", &class("b", json!({"globalDefault": true, "value": 3})).to_string());
    assert_eq!(
        changes,
        [
            "/site/a.yaml: globalDefault of PriorityClass a is ignored: b is the default, because its value is lower or its name comes first"
        ]
    );
    world.file("/site/web.yaml", &pod("web", "a:1").to_string());
    assert_eq!(world.pods[&pod_name("web")].pod.priority, 3);
}

fn config(kind: &str, namespace: &str, fields: Value) -> Value {
    let mut object =
        json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "web", "namespace": namespace}});
    object.as_object_mut().expect("an object").extend(fields.as_object().cloned().unwrap_or_default());
    object
}

/// Sends a patch as the API does.
fn patch(world: &mut World, name: &DefinitionName, how: PatchKind, patch: Value) -> String {
    let changed = world.registry.change_definition(name, Change::Patch(how, patch));
    line(changed.and_then(|changed| world.apply(changed, APPLY)))
}

#[test]
fn objects_of_the_same_name_in_two_namespaces_are_independent() {
    let mut world = World::new();
    let name = |namespace: &str| -> DefinitionName { (Kind::ConfigMap, namespace.into(), "web".into()) };
    let shown = |world: &World, namespace: &str| {
        let object = world.registry.published_definition(&name(namespace)).expect(namespace);
        (object["data"].clone(), object["metadata"]["uid"].clone())
    };
    for namespace in ["default", "kitchen"] {
        let created = world.apply(config("ConfigMap", namespace, json!({"data": {"a": "1"}})), CREATE);
        assert_eq!(line(created), "Created");
    }
    let (_, uid) = shown(&world, "kitchen");
    let kitchen = name("kitchen");
    assert_eq!(patch(&mut world, &kitchen, PatchKind::Merge, json!({"data": {"b": "2"}})), "Configured");
    assert_eq!(patch(&mut world, &kitchen, PatchKind::Strategic, json!({"data": {"a": null}})), "Configured");
    assert_eq!(patch(&mut world, &kitchen, PatchKind::Strategic, json!({"data": {"b": "2"}})), "Unchanged");
    assert_eq!(shown(&world, "kitchen"), (json!({"b": "2"}), uid), "it is the same object");
    assert_eq!(shown(&world, "default").0, json!({"a": "1"}));
    let none = name("none");
    let expected = "404 NotFound: configmaps \"web\" not found";
    assert_eq!(patch(&mut world, &none, PatchKind::Merge, json!({})), expected);
    let (_, source) =
        world.registry.delete_definition(&kitchen, &Preconditions::default()).expect("it is the client's");
    assert_eq!(source, Path::new("/applied/configmap_kitchen_web.json"));
    world.remove("/applied/configmap_kitchen_web.json");
    assert!(world.registry.published_definition(&kitchen).is_none());
    assert_eq!(shown(&world, "default").0, json!({"a": "1"}));
}

#[test]
fn an_immutable_object_may_get_labels_and_be_replaced() {
    let mut world = World::new();
    let map = |fields: Value| config("ConfigMap", "default", fields);
    let fixed = json!({"data": {"a": "1"}, "immutable": true});
    world.apply(map(fixed.clone()), CREATE).expect("it is new");
    let stays = "field is immutable when `immutable` is set";
    for (object, expected) in [
        (map(fixed), "Unchanged".to_owned()),
        (
            map(json!({"data": {"a": "2"}, "immutable": true})),
            format!("422 Invalid: ConfigMap \"web\" is invalid: data: Forbidden: {stays}"),
        ),
        (
            map(json!({"data": {"a": "1"}})),
            format!("422 Invalid: ConfigMap \"web\" is invalid: immutable: Forbidden: {stays}"),
        ),
    ] {
        assert_eq!(line(world.apply(object, APPLY)), expected);
    }
    let name: DefinitionName = (Kind::ConfigMap, "default".into(), "web".into());
    let labels = json!({"metadata": {"labels": {"tier": "front"}}});
    assert_eq!(patch(&mut world, &name, PatchKind::Merge, labels), "Configured");
}

#[test]
fn a_secret_keeps_its_type_and_no_error_contains_its_values() {
    let mut world = World::new();
    let name: DefinitionName = (Kind::Secret, "default".into(), "web".into());
    let secret = config("Secret", "default", json!({"stringData": {"password": "hunter2"}}));
    let accepted = world.apply(secret, CREATE).expect("it is new");
    assert_eq!(accepted.object["data"], json!({"password": "aHVudGVyMg=="}));
    assert_eq!((&accepted.object["stringData"], &accepted.object["type"]), (&Value::Null, &json!("Opaque")));
    let wrong = [
        (PatchKind::Merge, json!({"type": "other"}), "type: Invalid value: \"other\": field is immutable"),
        (PatchKind::Merge, json!({"data": {"password": "*hunter2*"}}), "illegal base64 data at input byte 0"),
        (PatchKind::Merge, json!({"data": "hunter2"}), "must be a map"),
        (PatchKind::Merge, json!({"stringData": {"a": ["hunter2"]}}), "must be a string"),
        (PatchKind::Merge, json!({"passwrod": "hunter2"}), "unknown field \"passwrod\""),
        (
            PatchKind::Json,
            json!([{"op": "test", "path": "/data/password", "value": "hunter2"}]),
            "the test failed",
        ),
        (
            PatchKind::Json,
            json!([{"op": "replace", "path": "/data/none", "value": "hunter2"}]),
            "the path does not exist",
        ),
    ];
    for (how, change, expected) in wrong {
        let answer = patch(&mut world, &name, how, change.clone());
        assert!(answer.contains(expected) && !answer.contains("hunter2"), "{change}: {answer}");
    }
    let changes = world.file(
        "/site/secret.yaml",
        &config("Secret", "default", json!({"data": {"password": "*hunter2*"}})).to_string(),
    );
    assert_eq!(
        changes,
        [
            "/site/secret.yaml, line 1: The Secret \"web\" is invalid: data[password]: Invalid value: \"<secret contents redacted>\": illegal base64 data at input byte 0"
        ]
    );
}

#[test]
fn site_config_maps_override_those_of_the_vendor_and_clients_cannot_change_either() {
    let mut world = World::new();
    let map = |value: &str| config("ConfigMap", "default", json!({"data": {"a": value}})).to_string();
    let name: DefinitionName = (Kind::ConfigMap, "default".into(), "web".into());
    let data =
        |world: &World| world.registry.published_definition(&name).expect("it is there")["data"]["a"].take();
    world.file("/vendor/a.yaml", &map("vendor"));
    assert_eq!(data(&world), "vendor");
    world.file("/site/z.yaml", &map("site"));
    assert_eq!(data(&world), "site");
    let changes = world.file("/site/zz.yaml", &map("second"));
    assert_eq!(changes, ["/site/zz.yaml: configmap default/web is ignored: /site/z.yaml already defines it"]);
    let expected =
        "403 Forbidden: configmaps \"web\" is forbidden: it is defined by /site/z.yaml; change that file";
    assert_eq!(patch(&mut world, &name, PatchKind::Merge, json!({"data": {"a": "mine"}})), expected);
    world.remove("/site/z.yaml");
    world.remove("/site/zz.yaml");
    assert_eq!(data(&world), "vendor");
}

#[test]
fn a_file_is_refused_only_while_it_has_no_valid_objects() {
    let mut world = World::new();
    let valid = class("high", json!({})).to_string();
    for (text, is_refused) in [("{", true), (&*valid, false), ("{", false)] {
        world.file("/site/a.yaml", text);
        assert_eq!(world.registry.sources.is_refused(Path::new("/site/a.yaml")), is_refused, "{text}");
    }
}

#[test]
fn a_volume_that_no_claim_has_is_unchanged_if_it_is_applied_again() {
    let mut world = World::new();
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"}},
    });
    for expected in ["Created", "Unchanged"] {
        assert_eq!(line(world.apply(volume.clone(), APPLY)), expected);
    }
}
