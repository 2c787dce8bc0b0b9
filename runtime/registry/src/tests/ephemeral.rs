use super::*;

fn outcome(present: &Present, registry: &Registry, change: Change, all: &[Rc<Wanted>]) -> String {
    match registry.change_ephemeral("web", change, FieldValidation::Strict, present, all) {
        Ok((wanted, applied)) => {
            let names: Vec<&str> =
                wanted.pod.spec.ephemeral_containers.iter().map(|container| &*container.name).collect();
            format!("{applied:?} [{}] {}", names.join(" "), wanted.pod.generation)
        }
        Err(status) => format!("{} {}", status.code, status.message),
    }
}

fn with_list(list: Value) -> Change {
    let mut object = pod("web", "a:1");
    object["spec"]["ephemeralContainers"] = list;
    Change::Replace(object)
}

fn debug(name: &str) -> Value {
    json!({"name": name, "image": "b:1"})
}

#[test]
fn ephemeral_containers_can_be_added_but_neither_removed_nor_changed() {
    let mut world = World::new();
    world.file("/site/web.yaml", &pod("web", "a:1").to_string());
    let plain = world.pods[&pod_name("web")].clone();
    let present = world.present("web").expect("it is there");
    let all = [plain.clone()];
    for (list, expected) in [
        (json!(null), "Unchanged [] 1"),
        (json!([]), "Unchanged [] 1"),
        (json!([debug("one")]), "Configured [one] 2"),
        (json!([debug("one"), debug("two")]), "Configured [one two] 3"),
        (json!({"name": "one"}), "400 spec.ephemeralContainers: must be a list"),
        (
            json!([debug("app")]),
            "422 Pod \"web\" is invalid: spec.ephemeralContainers[0].name: Duplicate value: \"app\"",
        ),
    ] {
        assert_eq!(outcome(&present, &world.registry, with_list(list.clone()), &all), expected, "{list}");
    }
    let base = Base::Ephemeral(json!([debug("one")]));
    let given = admit(base, &plain, &world.registry.policy()).expect("it is right").wanted;
    world.publish(given.clone());
    let present = world.present("web").expect("it is there");
    let known = ephemeral_of(&given)[0].clone();
    let all = [given];
    for (list, expected) in
        [(json!([known]), "Unchanged [one] 2"), (json!([debug("two"), known]), "Configured [one two] 3")]
    {
        assert_eq!(outcome(&present, &world.registry, with_list(list.clone()), &all), expected, "{list}");
    }
    for list in [json!([]), json!([{"name": "one", "image": "b:2"}])] {
        let answer = outcome(&present, &world.registry, with_list(list.clone()), &all);
        assert!(
            answer.starts_with("422 Pod \"web\" is invalid: spec.ephemeralContainers: Forbidden: "),
            "{list}: {answer}"
        );
    }
}

#[test]
fn a_terminating_pod_gets_no_ephemeral_container() {
    let mut world = World::new();
    world.file("/site/web.yaml", &pod("web", "a:1").to_string());
    let present = Present { is_unwanted: true, ..world.present("web").expect("it is there") };
    let expected = "409 Operation cannot be fulfilled on pods \"web\": the pod is being deleted: no container starts in it any more";
    assert_eq!(outcome(&present, &world.registry, with_list(json!([debug("one")])), &[]), expected);
}

#[test]
fn the_ephemeral_containers_of_all_pods_share_one_quota() {
    let mut world = World::new();
    world.file("/site/web.yaml", &pod("web", "a:1").to_string());
    world.file("/site/db.yaml", &pod("db", "a:1").to_string());
    let large = json!([{"name": "one", "image": "b:1", "args": ["x".repeat(300_000)]}]);
    let db = world.pods[&pod_name("db")].clone();
    let db =
        admit(Base::Ephemeral(large.clone()), &db, &world.registry.policy()).expect("it is right").wanted;
    let web = world.pods[&pod_name("web")].clone();
    let present = world.present("web").expect("it is there");
    assert_eq!(
        outcome(&present, &world.registry, with_list(large.clone()), std::slice::from_ref(&web)),
        "Configured [one] 2"
    );
    let expected = "403 pods \"web\" is forbidden: the ephemeral containers of all pods together would have more than 512 KiB: delete a pod that has some";
    assert_eq!(outcome(&present, &world.registry, with_list(large), &[web, db]), expected);
}
