use super::*;

fn outcome(result: Result<(), Status>) -> String {
    result.map_or_else(|status| format!("{} {}", status.code, status.message), |()| "holds".to_owned())
}

const MODIFIED: &str = "409 Operation cannot be fulfilled on pods \"web\": the object has been modified; please apply your changes to the latest version and try again";

#[test]
fn preconditions_on_version_and_uid_must_match_the_object() {
    let current = json!({"metadata": {"uid": "u", "resourceVersion": "7"}});
    for (metadata, expected) in [
        (json!({}), "holds"),
        (json!({"uid": "", "resourceVersion": ""}), "holds"),
        (json!({"uid": "u", "resourceVersion": "7"}), "holds"),
        (json!({"resourceVersion": "6"}), MODIFIED),
        (json!({"resourceVersion": "0"}), "holds"),
        (json!({"resourceVersion": "a"}), "500 strconv.ParseUint: parsing \"a\": invalid syntax"),
        (json!({"resourceVersion": "+7"}), "500 strconv.ParseUint: parsing \"+7\": invalid syntax"),
        (
            json!({"resourceVersion": "18446744073709551616"}),
            "500 strconv.ParseUint: parsing \"18446744073709551616\": value out of range",
        ),
        (
            json!({"uid": "v", "resourceVersion": "6"}),
            "409 Operation cannot be fulfilled on pods \"web\": Precondition failed: UID in precondition: v, UID in object meta: u",
        ),
    ] {
        let changed = json!({"metadata": metadata});
        assert_eq!(
            outcome(super::super::preconditions::check(&current, &changed, ("pods", "web"))),
            expected,
            "{changed}"
        );
    }
}

#[test]
fn a_full_update_must_match_the_published_resource_version() {
    let mut world = World::new();
    world.file("/site/web.yaml", &pod("web", "a:1").to_string());
    let published = world.objects.get(&Key::new("pods", "default", "web")).expect("it is published");
    let version = published.version.to_string();
    let uid = world.pods[&pod_name("web")].pod.uid.0.to_string();
    for (metadata, new, expected) in [
        (json!({"name": "web"}), false, "holds"),
        (json!({"name": "web", "resourceVersion": version, "uid": uid}), false, "holds"),
        (json!({"name": "web", "resourceVersion": "0"}), false, "holds"),
        (json!({"name": "web", "resourceVersion": "1"}), false, MODIFIED),
        // For an object that does not exist, every version is accepted.
        (json!({"name": "db", "resourceVersion": "1"}), false, "holds"),
        (json!({"name": "web", "namespace": "other", "resourceVersion": "1"}), false, "holds"),
        (json!({"name": "web"}), true, "holds"),
        (json!({"name": "web", "uid": "v"}), true, "holds"),
        (json!({"name": "web", "resourceVersion": "a"}), true, "holds"),
        (json!({"name": "web", "resourceVersion": "0644"}), true, "holds"),
        (
            json!({"name": "web", "resourceVersion": "1"}),
            true,
            "400 resourceVersion should not be set on objects to be created",
        ),
    ] {
        let object = json!({"metadata": metadata});
        assert_eq!(outcome(world.registry.check_version("pods", &object, new)), expected, "{object} {new}");
    }
    let object = json!({"metadata": {"name": "system-node-critical", "uid": "v"}});
    assert_eq!(
        outcome(world.registry.check_version("priorityclasses", &object, false)),
        "409 Operation cannot be fulfilled on priorityclasses.scheduling.k8s.io \"system-node-critical\": Precondition failed: UID in precondition: v, UID in object meta: system-node-critical"
    );
}
