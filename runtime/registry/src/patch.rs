//! Patches of objects: JSON Patch (RFC 6902), merge patch (RFC 7386) and Kubernetes' strategic merge patch,
//! for which the schema defines the merge keys of lists.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{MAX_BYTES, Status};
use nodlet_kube::manifest::VALUES;
use nodlet_kube::schema::{self, Field, Type};

/// The maximum number of operations in one JSON patch. After each operation, the object is at most as large
/// as a request.
const MAX_OPERATIONS: usize = 64;

/// The maximum nesting of objects and lists, the same as in requests. Functions that process a value recurse
/// once for each level, and the stack is small.
const DEPTH: usize = 127;

/// The kinds of patches, by their content types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// `application/json-patch+json`.
    Json,
    /// `application/merge-patch+json`.
    Merge,
    /// `application/strategic-merge-patch+json`.
    Strategic,
}

/// Applies `patch` to `object`, which is of the kind `kind`.
///
/// # Errors
/// 400: the patch is invalid. 422: a path of a JSON patch does not exist.
pub(super) fn apply(object: &mut Value, patch: &Value, how: PatchKind, kind: &str) -> Result<(), Status> {
    match (how, patch, object) {
        (PatchKind::Json, Value::Array(operations), object) => operate(object, operations),
        (PatchKind::Json, _, _) => Err(Status::bad_request(
            "error decoding patch: a JSON patch must be a list of operations, each with \"op\" and \"path\"",
        )),
        (PatchKind::Merge, Value::Object(_), object) => {
            merge(object, patch);
            Ok(())
        }
        (PatchKind::Strategic, Value::Object(patch), Value::Object(object)) => {
            strategic(object, patch.clone(), schema::find(kind))
        }
        (PatchKind::Merge | PatchKind::Strategic, _, _) => {
            Err(Status::bad_request("error decoding patch: a merge patch must be an object"))
        }
    }
}

/// Applies a merge patch (RFC 7386).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(map) = target.as_object_mut() else { return };
    for (key, value) in patch {
        match value {
            Value::Null => drop(map.remove(key)),
            value => merge(map.entry(key.clone()).or_insert(Value::Null), value),
        }
    }
}

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

/// Merges `patch` into an object of the type `owner`, if the schema contains it.
pub(super) fn strategic(
    object: &mut Map<String, Value>,
    mut patch: Map<String, Value>,
    owner: Option<&'static Type>,
) -> Result<(), Status> {
    match patch.remove(DIRECTIVE) {
        None => {}
        Some(directive) => match directive.as_str() {
            Some("replace") => {
                *object = patch;
                return Ok(());
            }
            Some("delete") => {
                object.clear();
                return Ok(());
            }
            Some("merge") => {}
            Some(_) | None => return Err(unknown_directive()),
        },
    }
    if let Some(kept) = patch.remove(RETAIN_KEYS) {
        let kept: BTreeSet<&str> = kept.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        object.retain(|key, _| kept.contains(key.as_str()));
    }
    let prefixed = |patch: &mut Map<String, Value>, prefix: &str| -> Vec<(String, Value)> {
        let keys: Vec<String> = patch.keys().filter(|key| key.starts_with(prefix)).cloned().collect();
        let taken = keys.into_iter().filter_map(|key| patch.remove_entry(&key));
        taken.map(|(key, value)| (key[prefix.len()..].to_owned(), value)).collect()
    };
    for (field, gone) in prefixed(&mut patch, DELETE_FROM) {
        if let (Some(Value::Array(list)), Value::Array(gone)) = (object.get_mut(&field), gone) {
            let gone: BTreeSet<String> = gone.iter().map(Value::to_string).collect();
            list.retain(|value| !gone.contains(&value.to_string()));
        }
    }
    let orders = prefixed(&mut patch, ORDER);
    for (key, value) in patch {
        let field = owner.and_then(|owner| owner.field(&key));
        match (object.get_mut(&key), value) {
            (_, Value::Null) => drop(object.remove(&key)),
            (Some(Value::Object(old)), Value::Object(new)) => {
                strategic(old, new, field.and_then(Field::object))?;
            }
            (Some(Value::Array(old)), Value::Array(new)) if merges(field) => {
                merge_lists(old, new, field)?;
            }
            (None, Value::Object(new)) => {
                let mut made = Map::new();
                strategic(&mut made, new, field.and_then(Field::object))?;
                object.insert(key, Value::Object(made));
            }
            (_, Value::Array(new)) if merges(field) => {
                let mut made = Vec::new();
                merge_lists(&mut made, new, field)?;
                object.insert(key, Value::Array(made));
            }
            (_, value) => drop(object.insert(key, value)),
        }
    }
    for (key, order) in orders {
        let field = owner.and_then(|owner| owner.field(&key));
        if let (Some(Value::Array(list)), Value::Array(order)) = (object.get_mut(&key), order) {
            reorder(list, &order, merge_key(field));
        }
    }
    Ok(())
}

/// The error for an unknown directive. It does not repeat the directive, which may be a value of a Secret.
fn unknown_directive() -> Status {
    Status::bad_request(format!("Unknown patch type found: {DIRECTIVE} must be replace, delete or merge"))
}

fn merges(field: Option<&Field>) -> bool {
    field.and_then(Field::merge).is_some_and(|merge| merge.patch_merge)
}

fn merge_key(field: Option<&Field>) -> &'static str {
    field.and_then(Field::merge).map_or("", |merge| merge.patch_merge_key)
}

/// Merges lists whose elements have a merge key, or are distinct scalars.
fn merge_lists(old: &mut Vec<Value>, new: Vec<Value>, field: Option<&'static Field>) -> Result<(), Status> {
    let key = merge_key(field);
    if key.is_empty() {
        let mut known: BTreeSet<String> = old.iter().map(Value::to_string).collect();
        old.extend(new.into_iter().filter(|value| known.insert(value.to_string())));
        return Ok(());
    }
    let replaces = |value: &Value| value.get(DIRECTIVE).is_some_and(|directive| directive == "replace");
    if new.iter().any(replaces) {
        *old = new.into_iter().filter(|value| !replaces(value)).collect();
        return Ok(());
    }
    // The indices of the elements by name, because a list may have as many elements as a request has values.
    let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (place, value) in old.iter().enumerate() {
        if let Some(name) = value.get(key) {
            places.entry(name.to_string()).or_default().push(place);
        }
    }
    let mut gone = BTreeSet::new();
    for value in new {
        let Value::Object(mut value) = value else {
            return Err(Status::bad_request(format!(
                "error decoding patch: the elements of this list must be objects with the merge key \"{key}\""
            )));
        };
        let Some(name) = value.get(key).map(Value::to_string) else {
            return Err(Status::bad_request(format!(
                "map: {} does not contain declared merge key: {key}",
                Value::Object(value)
            )));
        };
        match value.get(DIRECTIVE).map(|directive| directive.as_str().unwrap_or_default().to_owned()) {
            Some(directive) if directive == "delete" => {
                gone.extend(places.remove(&name).unwrap_or_default());
                continue;
            }
            Some(directive) if directive != "merge" => return Err(unknown_directive()),
            Some(_) | None => drop(value.remove(DIRECTIVE)),
        }
        let owner = field.and_then(Field::object);
        let places = places.entry(name).or_default();
        match places.first().and_then(|place| old[*place].as_object_mut()) {
            Some(known) => strategic(known, value, owner)?,
            None => {
                let mut made = Map::new();
                strategic(&mut made, value, owner)?;
                places.push(old.len());
                old.push(Value::Object(made));
            }
        }
    }
    let mut place = 0..;
    old.retain(|_| place.next().is_none_or(|place| !gone.contains(&place)));
    Ok(())
}

/// Sorts the elements in `order` into that order; other elements keep their places.
fn reorder(list: &mut [Value], order: &[Value], key: &str) {
    let name = |value: &Value| if key.is_empty() { value.to_string() } else { value[key].to_string() };
    let mut places = BTreeMap::new();
    for (place, ordered) in order.iter().enumerate() {
        places.entry(name(ordered)).or_insert(place);
    }
    let place = |value: &Value| places.get(&name(value)).copied();
    let found: Vec<Option<usize>> = list.iter().map(place).collect();
    let named = list.iter_mut().zip(&found);
    let mut named: Vec<(usize, Value)> =
        named.filter_map(|(value, found)| Some(((*found)?, value.take()))).collect();
    named.sort_by_key(|(place, _)| *place);
    let free = list.iter_mut().zip(&found).filter(|(_, found)| found.is_some());
    for ((value, _), (_, next)) in free.zip(named) {
        *value = next;
    }
}

/// Applies a JSON patch (RFC 6902).
fn operate(object: &mut Value, operations: &[Value]) -> Result<(), Status> {
    if operations.len() > MAX_OPERATIONS {
        return Err(Status::too_large(format!("{MAX_OPERATIONS} operations in a JSON patch")));
    }
    for operation in operations {
        let text = |field: &str| operation[field].as_str();
        let fails = |why: &str| {
            let message = "the server rejected our request due to an error in our request";
            // The message omits the value, which may be that of a Secret.
            let mut operation = operation.clone();
            match operation.as_object_mut() {
                Some(operation) => drop(operation.remove("value")),
                None => operation = "not an object".into(),
            }
            Status::unprocessable(format!("{message}: {why}: {operation}"))
        };
        let path = text("path").ok_or_else(|| fails("the operation has no \"path\""))?;
        let from = || text("from").ok_or_else(|| fails("the operation has no \"from\""));
        let value = || operation.get("value").cloned().ok_or_else(|| fails("the operation has no \"value\""));
        let missing = || fails("the path does not exist");
        match text("op").unwrap_or_default() {
            "add" => add(object, path, value()?).ok_or_else(missing)?,
            "remove" => drop(remove(object, path).ok_or_else(missing)?),
            "replace" => *object.pointer_mut(path).ok_or_else(missing)? = value()?,
            "move" => {
                let moved = remove(object, from()?).ok_or_else(missing)?;
                add(object, path, moved).ok_or_else(missing)?;
            }
            "copy" => {
                let copied = object.pointer(from()?).ok_or_else(missing)?;
                // Copies of copies can grow without bound, so that the size is checked before each copy.
                bounded(&[object, copied])?;
                let copied = copied.clone();
                add(object, path, copied).ok_or_else(missing)?;
            }
            "test" => {
                if object.pointer(path) != Some(&value()?) {
                    return Err(fails("the test failed"));
                }
            }
            _ => return Err(fails("\"op\" must be add, remove, replace, move, copy or test")),
        }
        // The check follows each operation, because the next one might double the depth.
        bounded(&[object])?;
    }
    Ok(())
}

/// Rejects values that are together larger than a request may be.
fn bounded(values: &[&Value]) -> Result<(), Status> {
    let mut size = Size::default();
    values.iter().for_each(|value| size.count(value, 0));
    match size {
        Size { levels, .. } if levels > DEPTH => {
            let message = format!("the patched object would be nested deeper than {DEPTH} levels");
            Err(Status::unprocessable(message))
        }
        Size { values, .. } if values > VALUES => Err(Status::too_large(format!("{VALUES} values"))),
        Size { bytes, .. } if bytes as u64 > MAX_BYTES => Err(Status::too_large(MAX_BYTES)),
        Size { .. } => Ok(()),
    }
}

/// The number of values of an object, including the object.
pub(super) fn values_of(object: &Value) -> usize {
    let mut size = Size::default();
    size.count(object, 0);
    size.values
}

/// The size of values.
#[derive(Default)]
struct Size {
    levels: usize,
    values: usize,
    /// The bytes of all strings and keys.
    bytes: usize,
}

impl Size {
    fn count(&mut self, value: &Value, level: usize) {
        self.values += 1;
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
            Value::String(text) => self.bytes += text.len(),
            Value::Array(list) => {
                self.levels = self.levels.max(level + 1);
                list.iter().for_each(|value| self.count(value, level + 1));
            }
            Value::Object(map) => {
                self.levels = self.levels.max(level + 1);
                for (key, value) in map {
                    self.bytes += key.len();
                    self.count(value, level + 1);
                }
            }
        }
    }
}

fn split(path: &str) -> Option<(&str, String)> {
    let (parent, last) = path.rsplit_once('/')?;
    Some((parent, last.replace("~1", "/").replace("~0", "~")))
}

fn add(object: &mut Value, path: &str, value: Value) -> Option<()> {
    if path.is_empty() {
        *object = value;
        return Some(());
    }
    let (parent, last) = split(path)?;
    match object.pointer_mut(parent)? {
        Value::Object(map) => drop(map.insert(last, value)),
        Value::Array(list) if last == "-" => list.push(value),
        Value::Array(list) => {
            let place = last.parse::<usize>().ok().filter(|place| *place <= list.len())?;
            list.insert(place, value);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return None,
    }
    Some(())
}

fn remove(object: &mut Value, path: &str) -> Option<Value> {
    let (parent, last) = split(path)?;
    match object.pointer_mut(parent)? {
        Value::Object(map) => map.remove(&last),
        Value::Array(list) => {
            let place = last.parse::<usize>().ok().filter(|place| *place < list.len())?;
            Some(list.remove(place))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

#[cfg(test)]
mod tests;
