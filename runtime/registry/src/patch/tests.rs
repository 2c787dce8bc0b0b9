use nodlet_fuzz::cases;
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

/// Checks a table of objects, patches, and the objects that they give or the errors.
fn check_all(how: PatchKind, table: &str) {
    let read = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| text.into());
    for [object, patch, expected] in cases(table) {
        check(how, read(object), read(patch), read(expected));
    }
}

#[test]
fn merge_patches_are_applied_as_in_rfc_7386() {
    check_all(
        PatchKind::Merge,
        r#"
            {"a": "b"} => {"a": "c"} => {"a": "c"}
            {"a": "b"} => {"b": "c"} => {"a": "b", "b": "c"}
            {"a": "b", "b": "c"} => {"a": null} => {"b": "c"}
            {"a": ["b"]} => {"a": ["c"]} => {"a": ["c"]}
            {"a": {"b": "c"}} => {"a": {"b": "d", "c": null}} => {"a": {"b": "d"}}
            {"a": "b"} => {"a": {"b": {"c": null}}} => {"a": {"b": {}}}
            {} => ["c"] => error decoding patch: a merge patch must be an object
        "#,
    );
}

#[test]
fn a_strategic_patch_merges_lists_by_their_merge_keys() {
    let conditions = r#"
        [A, B] => [OFF] => [OFF, B]
        [A] => [B] => [A, B]
        [] => [B] => [B]
        [A, B] => [{"type": "a", "$patch": "delete"}] => [B]
        [A, B] => [{"$patch": "replace"}, OFF] => [OFF]
    "#;
    let (a, b) = (r#"{"type": "a", "status": "True"}"#, r#"{"type": "b", "status": "True"}"#);
    let off = r#"{"type": "a", "status": "False"}"#;
    let conditions = conditions.replace("OFF", off).replace('A', a).replace('B', b);
    for row in cases::<3>(&conditions) {
        let [object, patch, expected] = row.map(|list| {
            let list: Value = serde_json::from_str(list).expect("a list");
            if list == json!([]) { json!({}) } else { json!({ "status": { "conditions": list } }) }
        });
        check(PatchKind::Strategic, object, patch, expected);
    }
    check_all(
        PatchKind::Strategic,
        r#"
            {"status": {"conditions": [{"type": "a", "status": "True"}]}} => {"status": {"conditions": [{"status": "True"}]}}
                => map: {"status":"True"} does not contain declared merge key: type
            {"status": {"conditions": [{"type": "a", "status": "True"}, {"type": "b", "status": "True"}]}}
                => {"status": {"conditions": [{"type": "a", "status": "False"}], "$setElementOrder/conditions": [{"type": "b"}, {"type": "a"}]}}
                => {"status": {"conditions": [{"type": "b", "status": "True"}, {"type": "a", "status": "False"}]}}
            {"spec": {"schedulingGates": [{"name": "a"}, {"name": "b"}]}} => {"spec": {"schedulingGates": null}} => {"spec": {}}
            {"spec": {"schedulingGates": [{"name": "a"}, {"name": "b"}]}}
                => {"spec": {"schedulingGates": [{"name": "a", "$patch": "delete"}]}} => {"spec": {"schedulingGates": [{"name": "b"}]}}
            // A list without a merge key is replaced as a whole.
            {"spec": {"tolerations": [{"key": "a"}]}} => {"spec": {"tolerations": [{"key": "b"}]}} => {"spec": {"tolerations": [{"key": "b"}]}}
            {"metadata": {"finalizers": ["a/b", "c/d"]}}
                => {"metadata": {"finalizers": ["e/f", "c/d"], "$deleteFromPrimitiveList/finalizers": ["a/b"]}}
                => {"metadata": {"finalizers": ["c/d", "e/f"]}}
            {"metadata": {"labels": {"a": "b"}}} => {"metadata": {"labels": {"$patch": "replace", "c": "d"}}} => {"metadata": {"labels": {"c": "d"}}}
            {"metadata": {"labels": {"a": "b"}}} => {"metadata": {"labels": {"$patch": "burn"}}}
                => Unknown patch type found: $patch must be replace, delete or merge
            // Nor is a value of a Secret in the error.
            {"data": {"a": "b"}} => {"data": {"$patch": {"password": "hunter2"}}}
                => Unknown patch type found: $patch must be replace, delete or merge
            {"spec": {"containers": [{"name": "a"}]}} => {"spec": {"containers": [{"name": "a", "$patch": "burn"}]}}
                => Unknown patch type found: $patch must be replace, delete or merge
        "#,
    );
}

#[test]
fn json_patches_are_applied_as_in_rfc_6902() {
    check_all(
        PatchKind::Json,
        r#"
            {"a": 1} => [{"op": "add", "path": "/b", "value": 2}] => {"a": 1, "b": 2}
            {"a": [1, 3]} => [{"op": "add", "path": "/a/1", "value": 2}] => {"a": [1, 2, 3]}
            {"a": [1]} => [{"op": "add", "path": "/a/-", "value": 2}] => {"a": [1, 2]}
            {"a": [1, 2]} => [{"op": "remove", "path": "/a/0"}] => {"a": [2]}
            {"a/b": 1, "c~d": 2} => [{"op": "remove", "path": "/a~1b"}] => {"c~d": 2}
            {"a": 1} => [{"op": "replace", "path": "/a", "value": 2}] => {"a": 2}
            {"a": 1} => [{"op": "move", "from": "/a", "path": "/b"}] => {"b": 1}
            {"a": 1} => [{"op": "copy", "from": "/a", "path": "/b"}] => {"a": 1, "b": 1}
            {"a": 1} => [{"op": "test", "path": "/a", "value": 1}] => {"a": 1}
        "#,
    );
    for [operation, why] in cases(
        r#"
            {"op": "remove", "path": "/b"} => the path does not exist
            {"op": "replace", "path": "/b", "value": 1} => the path does not exist
            {"op": "add", "path": "/a/b", "value": 1} => the path does not exist
            {"op": "test", "path": "/a", "value": 2} => the test failed
            {"op": "burn", "path": "/a"} => "op" must be add, remove, replace, move, copy or test
            {"op": "add", "path": "/a"} => the operation has no "value"
            {"op": "add"} => the operation has no "path"
            {"op": "move", "path": "/a"} => the operation has no "from"
        "#,
    ) {
        let operation: Value = serde_json::from_str(operation).expect("JSON");
        let mut shown = operation.clone();
        shown.as_object_mut().expect("an object").remove("value");
        let head = "the server rejected our request due to an error in our request";
        let expected = json!(format!("{head}: {why}: {shown}"));
        check(PatchKind::Json, json!({ "a": 1 }), json!([operation]), expected);
    }
    let many: Vec<Value> = (0..65).map(|_| json!({ "op": "test", "path": "/a", "value": 1 })).collect();
    let expected = json!("Request entity too large: limit is 64 operations in a JSON patch");
    check(PatchKind::Json, json!({ "a": 1 }), many.into(), expected);
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
        let expected = (422, "the patched object would be nested deeper than 127 levels");
        assert_eq!((refused.code, refused.message.as_str()), expected);
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
    let expected = (413, "Request entity too large: limit is 25000 values");
    assert_eq!((refused.code, refused.message.as_str()), expected);
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
        changed.map_or_else(|status| format!("{} {}", status.code, status.message), |_| String::new())
    };
    for [metadata, expected] in cases(
        r#"
            {"name": "a"} =>
            {"namespace": null} =>
            {"name": "b"} => 400 the name of the object (b) does not match the name on the URL (a)
            {"name": null} => 400 the name of the object (a based on URL) was undeterminable: name must be provided
            {"name": ""} => 400 the name of the object (a based on URL) was undeterminable: name must be provided
            null => 400 the name of the object (a based on URL) was undeterminable: name must be provided
            "a" => 422 Pod "" is invalid: metadata: Invalid value: "a": must be an object with fields of its own
            {"namespace": "other"} => 400 the namespace of the provided object does not match the namespace sent on the request
        "#,
    ) {
        let value: Value = serde_json::from_str(metadata).expect("JSON");
        assert_eq!(apply(json!({ "metadata": value })), expected, "{metadata}");
    }
}
