//! `get` and `list`, served from the store.

use std::rc::Rc;

use hyper::{HeaderMap, Response, StatusCode};
use nodlet_core::sorted::SortedMap;
use serde_json::{Value, json};

use super::body::{self, Body};
use super::select::Selector;
use super::{Api, Query, Status, table, wants_table};
use nodlet_kube::kinds::{KINDS, Kind, Row};
use nodlet_kube::manifest;
use nodlet_registry::objects::Key;

pub(super) fn get(
    api: &Api,
    row: &Row,
    key: &Key,
    query: &Query,
    headers: &HeaderMap,
) -> Result<Response<Body>, Status> {
    let table = wants_table(headers, query)?;
    let missing = || Status::not_found(&row.qualified(), &key.name);
    let (json, version) = if row.kind == Kind::Namespace {
        let (found, version) = all(api, row, None);
        let found = found.into_iter().find(|shown| *shown.name == *key.name).ok_or_else(missing)?;
        (found.json, version)
    } else {
        let object = api.objects.get(key).ok_or_else(missing)?;
        (object.json, object.version)
    };
    Ok(match table {
        None => body::json(StatusCode::OK, json.as_bytes().to_vec()),
        Some(include) => {
            let objects = &mut std::iter::once(parse(&json));
            body::json(
                StatusCode::OK,
                table::table(row, objects, &version.to_string(), include, nodlet_host::clock::timestamp()),
            )
        }
    })
}

pub(super) fn list(
    api: &Api,
    row: &Row,
    namespace: Option<&str>,
    query: &Query,
    headers: &HeaderMap,
) -> Result<Response<Body>, Status> {
    // `limit` is ignored: all objects of a board fit in one response, so that the server never returns a
    // `continue` token.
    if query.get("continue").is_some_and(|token| !token.is_empty()) {
        return Err(Status::expired("The provided continue parameter is too old: list again without it"));
    }
    check_options(query)?;
    let selector = selector(row, query)?;
    let table = wants_table(headers, query)?;
    let (found, version) = all(api, row, namespace);
    if let Some(future) = query.get("resourceVersion").and_then(|text| text.parse::<u64>().ok())
        && future > version
    {
        return Err(Status::timeout(format!(
            "Timeout: Too large resource version: {future}, current: {version}"
        )));
    }
    let version = version.to_string();
    if table.is_none() && selector.is_empty() {
        return Ok(body::json(StatusCode::OK, join(row, found.iter().map(|shown| &*shown.json), &version)));
    }
    let mut found = found.iter().map(|shown| parse(&shown.json)).filter(|object| selector.matches(object));
    let listed = match table {
        Some(include) => table::table(row, &mut found, &version, include, nodlet_host::clock::timestamp()),
        None => {
            let found: Vec<String> = found.map(|object| object.to_string()).collect();
            join(row, found.iter().map(String::as_str), &version)
        }
    };
    Ok(body::json(StatusCode::OK, listed))
}

/// `ValidateListOptions`.
fn check_options(query: &Query) -> Result<(), Status> {
    const MATCH: &str = "resourceVersionMatch";
    let text = |name| query.get(name).unwrap_or("");
    let (version, asked) = (text("resourceVersion"), text(MATCH));
    let mut errors = Vec::new();
    if !asked.is_empty() && version.is_empty() {
        errors.push(format!("{MATCH}: Forbidden: {MATCH} is forbidden unless resourceVersion is provided"));
    }
    if !["", "Exact", "NotOlderThan"].contains(&asked) {
        let supported = r#"supported values: "Exact", "NotOlderThan", """#;
        errors.push(format!("{MATCH}: Unsupported value: {}: {supported}", manifest::go_quoted(asked)));
    }
    if asked == "Exact" && version == "0" {
        errors.push(format!("{MATCH}: Forbidden: {MATCH} \"exact\" is forbidden for resourceVersion \"0\""));
    }
    if query.get("sendInitialEvents").is_some_and(|text| !text.is_empty()) {
        errors.push("sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list".to_owned());
    }
    let all = match &errors[..] {
        [] => return Ok(()),
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    };
    let kind = "ListOptions.meta.k8s.io";
    Err(Status::invalid(kind, "", format!("{kind} \"\" is invalid: {all}"), Vec::new()))
}

/// A published object.
pub(super) struct Shown {
    pub(super) name: Rc<str>,
    pub(super) json: Rc<str>,
}

/// Returns all objects of a kind, and the version of this state.
pub(super) fn all(api: &Api, row: &Row, namespace: Option<&str>) -> (Vec<Shown>, u64) {
    if row.kind == Kind::Namespace {
        return namespaces(api);
    }
    let (found, version) = api.objects.list(row.plural, namespace);
    (found.into_iter().map(|(key, object)| Shown { name: key.name, json: object.json }).collect(), version)
}

/// The namespaces, for which a board stores no objects: `default`, which is as old as the node, and each
/// namespace of an object that a user wrote, such as a pod, which is as old as its oldest object.
fn namespaces(api: &Api) -> (Vec<Shown>, u64) {
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
        Shown { name, json: object.to_string().into() }
    });
    (objects.collect(), version)
}

pub(super) fn selector(row: &Row, query: &Query) -> Result<Selector, Status> {
    let text = |name| query.get(name).unwrap_or("");
    Selector::parse(text("labelSelector"), text("fieldSelector"), row.fields)
}

/// Parses an object of the store.
pub(super) fn parse(json: &str) -> Value {
    serde_json::from_str(json).expect("the store holds what it wrote itself")
}

fn join<'a>(row: &Row, objects: impl Iterator<Item = &'a str>, version: &str) -> String {
    let mut list = format!(
        r#"{{"kind":"{}List","apiVersion":"{}","metadata":{{"resourceVersion":"{version}"}},"items":["#,
        row.name, row.version
    );
    for (index, object) in objects.enumerate() {
        if index > 0 {
            list.push(',');
        }
        list.push_str(object);
    }
    list.push_str("]}");
    list
}
