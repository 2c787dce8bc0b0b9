use serde_json::{Value, json};

use super::super::Change;
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
fn merge_patches_are_applied_as_in_rfc_7386() {
    for (object, patch, expected) in [
        (json!({ "a": "b" }), json!({ "a": "c" }), json!({ "a": "c" })),
        (json!({ "a": "b" }), json!({ "b": "c" }), json!({ "a": "b", "b": "c" })),
        (json!({ "a": "b", "b": "c" }), json!({ "a": null }), json!({ "b": "c" })),
        (json!({ "a": ["b"] }), json!({ "a": ["c"] }), json!({ "a": ["c"] })),
        (json!({ "a": { "b": "c" } }), json!({ "a": { "b": "d", "c": null } }), json!({ "a": { "b": "d" } })),
        (json!({ "a": "b" }), json!({ "a": { "b": { "c": null } } }), json!({ "a": { "b": {} } })),
        (json!({}), json!(["c"]), json!("error decoding patch: a merge patch must be an object")),
    ] {
        check(PatchKind::Merge, object, patch, expected);
    }
}

#[test]
fn a_strategic_patch_merges_lists_by_their_merge_keys() {
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
        // A list without a merge key is replaced as a whole.
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
            json!("Unknown patch type found: $patch must be replace, delete or merge"),
        ),
        // Nor is a value of a Secret in the error.
        (
            json!({ "data": { "a": "b" } }),
            json!({ "data": { "$patch": { "password": "hunter2" } } }),
            json!("Unknown patch type found: $patch must be replace, delete or merge"),
        ),
        (
            json!({ "spec": { "containers": [{ "name": "a" }] } }),
            json!({ "spec": { "containers": [{ "name": "a", "$patch": "burn" }] } }),
            json!("Unknown patch type found: $patch must be replace, delete or merge"),
        ),
    ] {
        check(PatchKind::Strategic, object, patch, expected);
    }
}

#[test]
fn json_patches_are_applied_as_in_rfc_6902() {
    let wrong = |why: &str, operation: &Value| {
        let head = "the server rejected our request due to an error in our request";
        let mut operation = operation.clone();
        operation.as_object_mut().expect("an object").remove("value");
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
        (json!({ "op": "remove", "path": "/b" }), "the path does not exist"),
        (json!({ "op": "replace", "path": "/b", "value": 1 }), "the path does not exist"),
        (json!({ "op": "add", "path": "/a/b", "value": 1 }), "the path does not exist"),
        (json!({ "op": "test", "path": "/a", "value": 2 }), "the test failed"),
        (json!({ "op": "burn", "path": "/a" }), "\"op\" must be add, remove, replace, move, copy or test"),
        (json!({ "op": "add", "path": "/a" }), "the operation has no \"value\""),
        (json!({ "op": "add" }), "the operation has no \"path\""),
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
fn a_patch_with_copies_cannot_exceed_the_maximum_size() {
    let grow = |place: usize| json!({ "op": "copy", "from": "", "path": (["/a", "/b"][place % 2]) });
    let mut object = json!({ "x": "y".repeat(1000) });
    let patch: Vec<Value> = (0..60).map(grow).collect();
    let refused =
        apply(&mut object, &patch.into(), PatchKind::Json, "Pod").expect_err("it doubles each time");
    assert_eq!(refused.code, 413);
}

#[test]
fn no_patch_exceeds_the_maximum_nesting_depth() {
    let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!({ "a": inner }));
    let add = |levels| json!({ "op": "add", "path": "/x", "value": nested(levels) });
    let place = |levels: usize| format!("/x{}", "/a".repeat(levels));
    // Each copy into its own deepest element would double the depth: seven of them overflow a stack.
    let mut doubled = vec![add(100)];
    doubled.extend((0..7).map(|copy| json!({ "op": "copy", "from": "/x", "path": place(100 << copy) })));
    let far = |op: &str| {
        let mut operation = json!({ "op": op, "path": place(100), "from": "/y", "value": nested(50) });
        operation.as_object_mut().expect("it is one").retain(|key, _| key != "value" || op != "move");
        json!([add(100), { "op": "add", "path": "/y", "value": nested(50) }, operation])
    };
    for patch in [doubled.into(), far("add"), far("copy"), far("move"), far("replace")] {
        let refused = apply(&mut json!({}), &patch, PatchKind::Json, "Pod").expect_err("it is too deep");
        assert_eq!(
            (refused.code, refused.message.as_str()),
            (422, "the patched object would be nested deeper than 127 levels")
        );
    }
    check(PatchKind::Json, json!({}), json!([add(126)]), json!({ "x": nested(126) }));
    let mut object = json!({});
    let patch = json!([add(127)]);
    assert_eq!(
        apply(&mut object, &patch, PatchKind::Json, "Pod").map_err(|status| status.code),
        Err(422),
        "one more"
    );
}

#[test]
fn a_patch_with_copies_cannot_exceed_the_maximum_number_of_values() {
    let lists = json!({ "op": "add", "path": "/x", "value": vec![json!([]); 4000] });
    let copies = |how_many: usize| {
        let copy = |number| json!({ "op": "copy", "from": "/x", "path": format!("/x{number}") });
        let patch: Vec<Value> = [lists.clone()].into_iter().chain((0..how_many).map(copy)).collect();
        apply(&mut json!({}), &patch.into(), PatchKind::Json, "Pod")
    };
    copies(5).expect("24 000 lists and what they are in");
    let refused = copies(6).expect_err("more than 25 000");
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (413, "Request entity too large: limit is 25000 values")
    );
}

/// Patches that would take minutes on a board if their time grew quadratically with the size of a request.
#[test]
fn the_time_of_a_strategic_patch_is_linear_in_its_length() {
    let many = 12_000;
    let scalars = |prefix: &str, turned: bool| -> Vec<Value> {
        let numbers = 0..many;
        let numbers: Vec<usize> = if turned { numbers.rev().collect() } else { numbers.collect() };
        numbers.into_iter().map(|number| format!("{prefix}{number}").into()).collect()
    };
    let named = |turned: bool| -> Vec<Value> {
        scalars("E", turned).into_iter().map(|name| json!({ "name": name })).collect()
    };
    let env = |env: Vec<Value>| json!({ "spec": { "containers": [{ "name": "c", "env": env }] } });
    let mut ordered = env(named(false));
    ordered["spec"]["containers"][0]["$setElementOrder/env"] = named(true).into();
    let gone: Vec<Value> =
        scalars("E", true).into_iter().map(|name| json!({ "name": name, "$patch": "delete" })).collect();
    let finalizers = |list: Vec<Value>| json!({ "metadata": { "finalizers": list } });
    let keys = |names: &[Value]| -> Value {
        names.iter().map(|name| (name.as_str().unwrap_or_default().to_owned(), json!(1))).collect()
    };
    let started = std::time::Instant::now();
    for (object, patch, expected) in [
        (
            json!({ "x": scalars("f", false) }),
            json!({ "$setElementOrder/x": scalars("f", true) }),
            json!({ "x": scalars("f", true) }),
        ),
        (env(named(false)), ordered, env(named(true))),
        (env(named(false)), env(gone), env(Vec::new())),
        (json!({}), finalizers(scalars("f", false)), finalizers(scalars("f", false))),
        (
            finalizers(scalars("f", false)),
            json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": scalars("f", true) } }),
            finalizers(Vec::new()),
        ),
        (
            json!({ "x": keys(&scalars("f", false)) }),
            json!({ "x": { "$retainKeys": scalars("f", true) } }),
            json!({ "x": keys(&scalars("f", false)) }),
        ),
    ] {
        let mut changed = object;
        apply(&mut changed, &patch, PatchKind::Strategic, "Pod").expect("it is a patch");
        assert!(changed == expected, "another object");
    }
    // Some 0.4 s on a busy machine; quadratic time was more than a minute.
    assert!(started.elapsed() < std::time::Duration::from_secs(10), "{:?}", started.elapsed());
}

#[test]
fn a_delete_directive_removes_all_earlier_elements_with_its_merge_key() {
    let ports = |list: Value| json!({ "spec": { "containers": [{ "name": "c", "ports": list }] } });
    let (tcp, udp) = (
        json!({ "containerPort": 53, "protocol": "TCP" }),
        json!({ "containerPort": 53, "protocol": "UDP" }),
    );
    let other = json!({ "containerPort": 80 });
    let delete = json!({ "containerPort": 53, "$patch": "delete" });
    for (patch, expected) in [
        (json!([delete]), json!([other])),
        (json!([delete, udp]), json!([other, udp])),
        (
            json!([{ "containerPort": 53, "name": "dns" }]),
            json!([
                { "containerPort": 53, "protocol": "TCP", "name": "dns" }, other, udp
            ]),
        ),
    ] {
        check(PatchKind::Strategic, ports(json!([tcp, other, udp])), ports(patch), ports(expected));
    }
}

#[test]
fn a_patch_cannot_change_the_name_of_an_object() {
    let current = json!({ "metadata": { "name": "a", "namespace": "default" } });
    let apply = |patch: Value| {
        let changed = Change::Patch(PatchKind::Merge, patch).apply(&current);
        changed.map(|_| ()).map_err(|status| (status.code, status.message))
    };
    let refused = |why: &str| Err((400, why.to_owned()));
    let undeterminable = "the name of the object (a based on URL) was undeterminable: name must be provided";
    for (metadata, expected) in [
        (json!({ "name": "a" }), Ok(())),
        (json!({ "namespace": null }), Ok(())),
        (
            json!({ "name": "b" }),
            refused("the name of the object (b) does not match the name on the URL (a)"),
        ),
        (json!({ "name": null }), refused(undeterminable)),
        (json!({ "name": "" }), refused(undeterminable)),
        (json!(null), refused(undeterminable)),
        (
            json!("a"),
            Err((
                422,
                "Pod \"\" is invalid: metadata: Invalid value: \"a\": must be an object with fields of its own".to_owned(),
            )),
        ),
        (
            json!({ "namespace": "other" }),
            refused(
                "the namespace of the provided object does not match the namespace sent on the request",
            ),
        ),
    ] {
        assert_eq!(apply(json!({ "metadata": metadata })), expected, "{metadata}");
    }
}
