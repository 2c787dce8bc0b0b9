//! `get` and `list`, served from the store.

use std::rc::Rc;

use hyper::StatusCode;
use nodlet_core::sorted::SortedMap;
use serde_json::{Value, json};

use super::accept::Form;
use super::body;
use super::options::{self, ListOptions};
use super::select::Selector;
use super::{Answered, Api, Query, Status, table};
use nodlet_kube::kinds::{KINDS, Kind, Row};
use nodlet_registry::objects::{Key, Object};

pub(super) fn get(api: &Api, row: &Row, key: &Key, query: &Query) -> Answered {
    let asked = options::version_of_one(query)?;
    options::require_reached(asked, api.objects.version())?;
    let missing = || Status::not_found(&row.qualified(), &key.name);
    let json = if row.kind == Kind::Namespace {
        let (found, _) = all(api, row, None);
        found.into_iter().find(|(found, _)| found.name == key.name).ok_or_else(missing)?.1.json
    } else {
        api.objects.get(key).ok_or_else(missing)?.json
    };
    Ok(body::json(StatusCode::OK, json.as_bytes().to_vec()))
}

pub(super) fn list(api: &Api, row: &Row, namespace: Option<&str>, query: &Query, form: Form) -> Answered {
    let selector = parsed_selector(query)?;
    let options = ListOptions::of(query)?;
    selector.require(row.fields)?;
    let (mut found, mut version) = all(api, row, namespace);
    options::require_reached(options.version, version)?;
    // The parts of a list are all of the state that the first one was of.
    let earlier = options.after.as_ref().map(|(version, ..)| *version).or(options.exactly);
    if let Some(asked) = earlier.filter(|asked| *asked != version) {
        // Namespaces have no earlier states, and nothing has one of the future.
        if row.kind != Kind::Namespace || asked > version {
            found = api.objects.list_at(row.plural, namespace, asked).map_err(|_| {
                Status::expired(match options.exactly {
                    Some(_) => "The resourceVersion for the provided list is too old.",
                    None => {
                        "The provided continue parameter is too old to display a consistent list result. \
                         You must start a new list without the continue parameter."
                    }
                })
            })?;
        }
        version = asked;
    }
    if let Some((_, namespace, name)) = &options.after {
        let after = (&**namespace, &**name);
        let first = found.partition_point(|(key, _)| (&*key.namespace, &*key.name) <= after);
        found.drain(..first);
    }
    let mut list = json!({"resourceVersion": version.to_string()});
    if !selector.is_empty() {
        found.retain(|(_, object)| selector.matches(&parse(&object.json)));
    }
    let more = found.len().saturating_sub(options.limit);
    if options.limit > 0 && more > 0 {
        found.truncate(options.limit);
        if let Some((Key { namespace, name, .. }, _)) = found.last() {
            list["continue"] = format!("{version}/{namespace}/{name}").into();
        }
        // As in Kubernetes, whose store does not count by selectors.
        if selector.is_empty() {
            list["remainingItemCount"] = more.into();
        }
    }
    let mut objects = found.iter().map(|(_, object)| &*object.json);
    Ok(body::json(
        StatusCode::OK,
        match form {
            Form::Whole => join((row.name, row.version), &mut objects, &list),
            Form::Metadata { .. } => {
                let found: Vec<String> =
                    objects.map(|json| table::metadata_of(parse(json)).to_string()).collect();
                let of = ("PartialObjectMetadata", "meta.k8s.io/v1");
                join(of, &mut found.iter().map(String::as_str), &list)
            }
            Form::Table(include) => {
                let now = nodlet_host::clock::timestamp();
                table::table(row, &mut objects.map(parse), list, include, now)
            }
        },
    ))
}

/// Returns all objects of a kind, and the version of this state.
pub(super) fn all(api: &Api, row: &Row, namespace: Option<&str>) -> (Vec<(Key, Object)>, u64) {
    match row.kind {
        Kind::Namespace => namespaces(api, row),
        _ => api.objects.list(row.plural, namespace),
    }
}

/// The namespaces, for which a board stores no objects: `default`, which is as old as the node, and each
/// namespace of an object that a user wrote, such as a pod, which is as old as its oldest object.
fn namespaces(api: &Api, row: &Row) -> (Vec<(Key, Object)>, u64) {
    let created = |json: &str| parse(json)["metadata"]["creationTimestamp"].as_str().map(str::to_owned);
    let (nodes, _) = api.objects.list("nodes", None);
    let version = api.objects.version();
    let written = KINDS.iter().filter(|row| row.namespaced && row.allows("create"));
    let written = written.flat_map(|row| api.objects.list(row.plural, None).0);
    let node = nodes.first().and_then(|(_, node)| created(&node.json));
    let mut since = SortedMap::from([(Rc::from("default"), node)]);
    for (key, object) in written {
        let object = created(&object.json);
        let oldest = since.entry(key.namespace).or_default();
        // The order of the texts is the order of the times.
        if oldest.is_none() || object.is_some() && object < *oldest {
            *oldest = object;
        }
    }
    let objects = since.into_iter().map(|(name, since)| {
        let object = json!({
            "kind": "Namespace", "apiVersion": "v1",
            "metadata": {"name": &*name, "labels": {"kubernetes.io/metadata.name": &*name},
                         "creationTimestamp": since, "resourceVersion": version.to_string()},
            "spec": {"finalizers": []}, "status": {"phase": "Active"},
        });
        let key = Key { resource: row.plural, namespace: "".into(), name };
        (key, Object { version, json: object.to_string().into() })
    });
    (objects.collect(), version)
}

/// The selector of a request, whose fields are those of the kind.
pub(super) fn selector(row: &Row, query: &Query) -> Result<Selector, Status> {
    let selector = parsed_selector(query)?;
    selector.require(row.fields)?;
    Ok(selector)
}

fn parsed_selector(query: &Query) -> Result<Selector, Status> {
    let text = |name| query.get(name).unwrap_or("");
    Selector::parse(text("labelSelector"), text("fieldSelector"))
}

/// Parses an object of the store.
pub(super) fn parse(json: &str) -> Value {
    serde_json::from_str(json).expect("the store holds what it wrote itself")
}

fn join((kind, version): (&str, &str), objects: &mut dyn Iterator<Item = &str>, metadata: &Value) -> String {
    let mut list =
        format!(r#"{{"kind":"{kind}List","apiVersion":"{version}","metadata":{metadata},"items":["#);
    for (index, object) in objects.enumerate() {
        if index > 0 {
            list.push(',');
        }
        list.push_str(object);
    }
    list.push_str("]}");
    list
}
