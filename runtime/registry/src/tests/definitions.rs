use super::*;

fn class(name: &str, fields: Value) -> Value {
    let mut object = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 10,
    });
    object.as_object_mut().expect("an object").extend(fields.as_object().cloned().unwrap_or_default());
    object
}

#[test]
fn which_definitions_clients_may_apply() {
    let mut world = World::new();
    world.file("/site/site.yaml", &class("site", json!({})).to_string());
    let dry = How { dry_run: true, ..CREATE };
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
            "422 Invalid: PriorityClass \"high\" is invalid: value: Forbidden: may not be changed in an update.",
        ),
    ] {
        assert_eq!(line(world.apply(object.clone(), how)), expected, "{object} {how:?}");
    }
}

#[test]
fn a_definition_that_is_there_is_changed_by_its_name() {
    let mut world = World::new();
    world.apply(class("high", json!({})), CREATE).expect("it is new");
    let change = |name: &str, object: Value| {
        let changed = world.registry.change_definition(Kind::PriorityClass, name, Change::Replace(object));
        changed.map_or_else(
            |status| format!("{} {}", status.code, status.message),
            |changed| changed["description"].to_string(),
        )
    };
    assert_eq!(change("low", json!({})), "404 priorityclasses.scheduling.k8s.io \"low\" not found");
    assert_eq!(
        change("high", class("low", json!({}))),
        "400 the name of the object (\"low\") does not match the name on the URL (high)"
    );
    let mut versioned = class("high", json!({}));
    versioned["metadata"]["resourceVersion"] = "1".into();
    assert_eq!(
        change("high", versioned),
        "409 Operation cannot be fulfilled on priorityclasses.scheduling.k8s.io \"high\": the object has been modified; please apply your changes to the latest version and try again"
    );
    assert_eq!(change("high", class("high", json!({"description": "x"}))), "\"x\"");
}

#[test]
fn who_may_delete_a_definition() {
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
fn of_several_default_classes_in_files_the_least_is_the_default() {
    let mut world = World::new();
    world.file("/site/a.yaml", &class("a", json!({"globalDefault": true, "value": 5})).to_string());
    let told =
        world.file("/site/b.yaml", &class("b", json!({"globalDefault": true, "value": 3})).to_string());
    assert_eq!(
        told,
        [
            "/site/a.yaml: globalDefault of PriorityClass a is not obeyed: b is the default: its value is less, or its name comes first"
        ]
    );
    world.file("/site/web.yaml", &pod("web", "a:1").to_string());
    assert_eq!(world.pods[&pod_name("web")].pod.priority, 3);
}
