use serde_json::{Value, json};

use super::{PatchKind, apply};

fn check(how: PatchKind, object: Value, patch: Value, expected: Value) {
    let mut changed = object.clone();
    let said = match apply(&mut changed, &patch, how, "Pod") {
        Ok(()) => changed,
        Err(status) => status.message.into(),
    };
    assert_eq!(said, expected, "{object} with {patch}");
}

#[test]
fn a_merge_patch_is_that_of_rfc_7386() {
    for (object, patch, expected) in [
        (json!({ "a": "b" }), json!({ "a": "c" }), json!({ "a": "c" })),
        (json!({ "a": "b" }), json!({ "b": "c" }), json!({ "a": "b", "b": "c" })),
        (json!({ "a": "b", "b": "c" }), json!({ "a": null }), json!({ "b": "c" })),
        (json!({ "a": ["b"] }), json!({ "a": ["c"] }), json!({ "a": ["c"] })),
        (json!({ "a": { "b": "c" } }), json!({ "a": { "b": "d", "c": null } }), json!({ "a": { "b": "d" } })),
        (json!({ "a": "b" }), json!({ "a": { "b": { "c": null } } }), json!({ "a": { "b": {} } })),
        (
            json!({}),
            json!(["c"]),
            json!("error decoding patch: a merge patch is an object, as what it changes"),
        ),
    ] {
        check(PatchKind::Merge, object, patch, expected);
    }
}

#[test]
fn a_strategic_patch_merges_lists_by_what_tells_their_elements_apart() {
    let conditions = |list: Value| json!({ "status": { "conditions": list } });
    let (a, b) = (json!({ "type": "a", "status": "True" }), json!({ "type": "b", "status": "True" }));
    let off = json!({ "type": "a", "status": "False" });
    for (object, patch, expected) in [
        (conditions(json!([a, b])), conditions(json!([off])), conditions(json!([off, b]))),
        (conditions(json!([a])), conditions(json!([b])), conditions(json!([a, b]))),
        (json!({}), conditions(json!([b])), conditions(json!([b]))),
        (
            conditions(json!([a, b])),
            conditions(json!([{ "type": "a", "$patch": "delete" }])),
            conditions(json!([b])),
        ),
        (
            conditions(json!([a, b])),
            conditions(json!([{ "$patch": "replace" }, off])),
            conditions(json!([off])),
        ),
        (
            conditions(json!([a, b])),
            conditions(json!([{ "status": "True" }])),
            json!("map: {\"status\":\"True\"} does not contain declared merge key: type"),
        ),
        (
            conditions(json!([a, b])),
            json!({ "status": { "conditions": [off], "$setElementOrder/conditions": [{ "type": "b" }, { "type": "a" }] } }),
            conditions(json!([b, off])),
        ),
        (
            json!({ "spec": { "schedulingGates": [{ "name": "a" }, { "name": "b" }] } }),
            json!({ "spec": { "schedulingGates": null } }),
            json!({ "spec": {} }),
        ),
        (
            json!({ "spec": { "schedulingGates": [{ "name": "a" }, { "name": "b" }] } }),
            json!({ "spec": { "schedulingGates": [{ "name": "a", "$patch": "delete" }] } }),
            json!({ "spec": { "schedulingGates": [{ "name": "b" }] } }),
        ),
        // A list without a merge key is another as a whole.
        (
            json!({ "spec": { "tolerations": [{ "key": "a" }] } }),
            json!({ "spec": { "tolerations": [{ "key": "b" }] } }),
            json!({ "spec": { "tolerations": [{ "key": "b" }] } }),
        ),
        (
            json!({ "metadata": { "finalizers": ["a/b", "c/d"] } }),
            json!({ "metadata": { "finalizers": ["e/f", "c/d"], "$deleteFromPrimitiveList/finalizers": ["a/b"] } }),
            json!({ "metadata": { "finalizers": ["c/d", "e/f"] } }),
        ),
        (
            json!({ "metadata": { "labels": { "a": "b" } } }),
            json!({ "metadata": { "labels": { "$patch": "replace", "c": "d" } } }),
            json!({ "metadata": { "labels": { "c": "d" } } }),
        ),
        (
            json!({ "metadata": { "labels": { "a": "b" } } }),
            json!({ "metadata": { "labels": { "$patch": "burn" } } }),
            json!("Unknown patch type found: burn"),
        ),
    ] {
        check(PatchKind::Strategic, object, patch, expected);
    }
}

#[test]
fn a_json_patch_is_that_of_rfc_6902() {
    let wrong = |why: &str, operation: &Value| {
        let head = "the server rejected our request due to an error in our request";
        json!(format!("{head}: {why}: {operation}"))
    };
    for (object, operation, expected) in [
        (json!({ "a": 1 }), json!({ "op": "add", "path": "/b", "value": 2 }), json!({ "a": 1, "b": 2 })),
        (
            json!({ "a": [1, 3] }),
            json!({ "op": "add", "path": "/a/1", "value": 2 }),
            json!({ "a": [1, 2, 3] }),
        ),
        (json!({ "a": [1] }), json!({ "op": "add", "path": "/a/-", "value": 2 }), json!({ "a": [1, 2] })),
        (json!({ "a": [1, 2] }), json!({ "op": "remove", "path": "/a/0" }), json!({ "a": [2] })),
        (json!({ "a/b": 1, "c~d": 2 }), json!({ "op": "remove", "path": "/a~1b" }), json!({ "c~d": 2 })),
        (json!({ "a": 1 }), json!({ "op": "replace", "path": "/a", "value": 2 }), json!({ "a": 2 })),
        (json!({ "a": 1 }), json!({ "op": "move", "from": "/a", "path": "/b" }), json!({ "b": 1 })),
        (json!({ "a": 1 }), json!({ "op": "copy", "from": "/a", "path": "/b" }), json!({ "a": 1, "b": 1 })),
        (json!({ "a": 1 }), json!({ "op": "test", "path": "/a", "value": 1 }), json!({ "a": 1 })),
    ] {
        check(PatchKind::Json, object, json!([operation]), expected);
    }
    for (operation, why) in [
        (json!({ "op": "remove", "path": "/b" }), "there is nothing at this path"),
        (json!({ "op": "replace", "path": "/b", "value": 1 }), "there is nothing at this path"),
        (json!({ "op": "add", "path": "/a/b", "value": 1 }), "there is nothing at this path"),
        (json!({ "op": "test", "path": "/a", "value": 2 }), "the test failed"),
        (
            json!({ "op": "burn", "path": "/a" }),
            "the operation is none of add, remove, replace, move, copy and test",
        ),
        (json!({ "op": "add", "path": "/a" }), "the operation has no value"),
        (json!({ "op": "add" }), "an operation has a path"),
        (json!({ "op": "move", "path": "/a" }), "the operation has no \"from\""),
    ] {
        check(PatchKind::Json, json!({ "a": 1 }), json!([operation]), wrong(why, &operation));
    }
    let many: Vec<Value> = (0..65).map(|_| json!({ "op": "test", "path": "/a", "value": 1 })).collect();
    check(
        PatchKind::Json,
        json!({ "a": 1 }),
        many.into(),
        json!("Request entity too large: limit is 64 operations in a JSON patch"),
    );
}

#[test]
fn copies_of_copies_do_not_grow_beyond_what_a_request_may_hold() {
    let grow = |place: usize| json!({ "op": "copy", "from": "", "path": (["/a", "/b"][place % 2]) });
    let mut object = json!({ "x": "y".repeat(1000) });
    let patch: Vec<Value> = (0..60).map(grow).collect();
    let refused =
        apply(&mut object, &patch.into(), PatchKind::Json, "Pod").expect_err("it doubles each time");
    assert_eq!(refused.code, 413);
}
