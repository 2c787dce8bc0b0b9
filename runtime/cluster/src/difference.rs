//! Strategic merge patches that make a status in the cluster that of this board. Pure.
//!
//! Such a patch adds and replaces fields. What the board's status does not have any more must be in the patch by name:
//! `null` removes a field, and `$patch: delete` an element of a list that merges by a key. Other clients write to the same
//! status, so that the patch removes only what the board owns.

use serde_json::{Map, Value, json};

/// The key of a directive in a strategic merge patch.
const DIRECTIVE: &str = "$patch";

/// The patch that makes `old` the value `new`; `None` if they are equal. Objects merge, with `null` for each field that
/// `new` lacks and that `owns` selects by its name. Lists are replaced, as the API server replaces a list without a merge
/// key.
pub(crate) fn value(old: &Value, new: &Value, owns: &dyn Fn(&str) -> bool) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return (old != new).then(|| new.clone());
    };
    let mut patch = Map::new();
    for (field, new) in new {
        if let Some(changed) = value(old.get(field).unwrap_or(&Value::Null), new, &|_| true) {
            patch.insert(field.clone(), changed);
        }
    }
    for (field, old) in old {
        if !old.is_null() && !new.contains_key(field) && owns(field) {
            patch.insert(field.clone(), Value::Null);
        }
    }
    (!patch.is_empty()).then(|| patch.into())
}

/// All of `new`, with `null` for each field of `old` that `new` lacks and that `owns` selects by its name: for an `old` that
/// the cluster may have changed since.
pub(crate) fn whole(old: &Value, new: &Value, owns: &dyn Fn(&str) -> bool) -> Value {
    let mut patch = new.clone();
    if let (Value::Object(patch), Value::Object(old)) = (&mut patch, old) {
        for (field, old) in old {
            let new = patch.get_mut(field);
            match new {
                Some(new) => *new = whole(old, new, &|_| true),
                None if !old.is_null() && owns(field) => drop(patch.insert(field.clone(), Value::Null)),
                None => {}
            }
        }
    }
    patch
}

/// The patch that makes the conditions `old` those of the board, which merge by their type; `None` if they have all that
/// `new` has. `patch_of` is the patch of one condition. Conditions that are gone are removed if `owns` selects them.
pub(crate) fn conditions(
    old: &Value,
    new: &[Value],
    patch_of: impl Fn(&Value, &Value) -> Option<Value>,
    owns: impl Fn(&Value) -> bool,
) -> Option<Value> {
    let old: &[Value] = old.as_array().map_or(&[], Vec::as_slice);
    let of_type = |all: &[Value], kind: &Value| all.iter().find(|one| one["type"] == *kind).cloned();
    let mut patch = Vec::new();
    for new in new.iter().filter(|new| new.is_object()) {
        let known = of_type(old, &new["type"]).unwrap_or_default();
        if let Some(mut changed) = patch_of(&known, new) {
            changed["type"] = new["type"].clone();
            patch.push(changed);
        }
    }
    for old in old {
        if owns(old) && of_type(new, &old["type"]).is_none() {
            patch.push(json!({ "type": old["type"], DIRECTIVE: "delete" }));
        }
    }
    (!patch.is_empty()).then(|| patch.into())
}

/// The patch that replaces a list which would merge by a key; `None` if it is that list already.
pub(crate) fn replaced(old: &Value, new: &[Value]) -> Option<Value> {
    let is_equal = old.as_array().map_or(new.is_empty(), |old| old == new);
    let directive = json!({ DIRECTIVE: "replace" });
    (!is_equal).then(|| [directive].into_iter().chain(new.iter().cloned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_are_gone_are_removed_if_they_are_owned() {
        let (old, new) =
            (json!({ "a": 1, "b": { "c": 2, "d": 3 }, "e": null }), json!({ "a": 1, "b": { "c": 4 } }));
        assert_eq!(value(&old, &new, &|_| true), Some(json!({ "b": { "c": 4, "d": null } })));
        assert_eq!(value(&old, &old, &|_| true), None);
        assert_eq!(
            value(&json!({ "own": 1, "other": 2 }), &json!({}), &|field| field == "own"),
            Some(json!({ "own": null }))
        );
        assert_eq!(value(&Value::Null, &json!({ "a": 1 }), &|_| true), Some(json!({ "a": 1 })));
        assert_eq!(whole(&old, &new, &|_| true), json!({ "a": 1, "b": { "c": 4, "d": null } }));
        assert_eq!(
            value(&json!({ "a": [1, 2] }), &json!({ "a": [2] }), &|_| true),
            Some(json!({ "a": [2] }))
        );
    }

    #[test]
    fn conditions_of_others_stay() {
        let old = json!([
            { "type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "m" },
            { "type": "PodResizeInProgress", "status": "True" },
            { "type": "example.com/gate", "status": "True" },
        ]);
        let new = [json!({ "type": "Ready", "status": "True" })];
        let owns = |one: &Value| one["type"] != "example.com/gate";
        let differs = |old: &Value, new: &Value| value(old, new, &|_| true);
        let patch = conditions(&old, &new, differs, owns);
        assert_eq!(
            patch,
            Some(json!([
                { "type": "Ready", "status": "True", "reason": null, "message": null },
                { "type": "PodResizeInProgress", "$patch": "delete" },
            ]))
        );
        let after = json!([{ "type": "Ready", "status": "True", "lastProbeTime": null }, old[2]]);
        assert_eq!(conditions(&after, &new, differs, owns), None);
    }

    #[test]
    fn lists_that_merge_are_replaced() {
        let one = [json!({ "ip": "10.0.0.2" })];
        assert_eq!(
            replaced(&Value::Null, &one),
            Some(json!([{ "$patch": "replace" }, { "ip": "10.0.0.2" }]))
        );
        assert_eq!(replaced(&json!([{ "ip": "10.0.0.2" }]), &one), None);
        assert_eq!(replaced(&Value::Null, &[]), None);
        assert_eq!(replaced(&json!([1]), &[]), Some(json!([{ "$patch": "replace" }])));
    }
}
