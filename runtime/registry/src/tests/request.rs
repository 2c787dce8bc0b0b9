use super::super::live_objects::{CONFIG_HASH, CONFIG_SEEN, CONFIG_SOURCE};
use super::super::request::same;
use super::*;

#[test]
fn an_identity_is_a_uuid_of_version_4_and_five_letters() {
    let identity = |byte, suffix| Identity::new([byte; 16], suffix, NOW.to_owned());
    assert_eq!(identity(0, [0; 5]).uid, "00000000-0000-4000-8000-000000000000");
    assert_eq!(identity(0xff, [0; 5]).uid, "ffffffff-ffff-4fff-bfff-ffffffffffff");
    assert_eq!(identity(0, [0, 1, 26, 27, 255]).suffix, "bc9bq");
}

#[test]
fn server_owned_fields_of_a_sent_object_are_replaced() {
    let world = World::new();
    let identity = Identity::new([1; 16], [0, 1, 2, 3, 4], NOW.to_owned());
    let uid = "01010101-0101-4101-8101-010101010101";
    for (metadata, expected) in [
        (json!({"name": "web"}), json!({"name": "web"})),
        (json!({"generateName": "web-"}), json!({"generateName": "web-", "name": "web-bcdfg"})),
        (json!({"generateName": "web-", "name": "x"}), json!({"generateName": "web-", "name": "x"})),
        (
            json!({"generateName": "x".repeat(70)}),
            json!({"generateName": "x".repeat(70), "name": "x".repeat(58) + "bcdfg"}),
        ),
        (
            json!({"name": "web", "generation": 4, "managedFields": [], "selfLink": "/", "deletionTimestamp": NOW,
                   "deletionGracePeriodSeconds": 3, "creationTimestamp": "x", "uid": "x"}),
            json!({"name": "web"}),
        ),
        (
            json!({"name": "web", "annotations": {CONFIG_SEEN: "x", CONFIG_SOURCE: "file", CONFIG_HASH: "x"}}),
            json!({"name": "web"}),
        ),
        (
            json!({"name": "web", "annotations": {CONFIG_SEEN: "x", "mine": "y"}}),
            json!({"name": "web", "annotations": {"mine": "y"}}),
        ),
        (json!({"name": "web", "annotations": {}}), json!({"name": "web", "annotations": {}})),
    ] {
        let mut object = json!({"metadata": metadata, "status": {"phase": "Failed"}});
        world.registry.prepare(Kind::Pod, &mut object, true, &identity).expect("it is right");
        let mut expected = json!({"metadata": expected});
        expected["metadata"]["uid"] = uid.into();
        expected["metadata"]["creationTimestamp"] = NOW.into();
        assert_eq!(object, expected, "{metadata}");
    }
}

#[test]
fn objects_are_compared_without_the_fields_of_the_server() {
    let old = json!({"metadata": {"name": "web", "uid": "a", "generation": 3}, "spec": 1});
    for (new, expected) in [
        (json!({"metadata": {"name": "web", "uid": "b", "creationTimestamp": NOW}, "spec": 1}), true),
        (json!({"metadata": {"name": "web", "labels": {}}, "spec": 1}), false),
        (json!({"metadata": {"name": "web"}, "spec": 2}), false),
    ] {
        assert_eq!(same(&old.to_string(), &new), expected, "{new}");
    }
    assert!(!same("{", &old));
}
