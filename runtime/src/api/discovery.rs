//! Discovery: the documents with which kubectl finds resources, and the health of the agent.

use hyper::StatusCode;
use nodlet_kube::schema::KUBERNETES;
use nodlet_kube::schema::openapi::{self, Descriptions};
use serde_json::{Map, Value, json};

use super::body;
use super::route::Target;
use super::{Answered, Status};
use crate::built_from;
use nodlet_kube::kinds::{self, KINDS, Kind};

pub(super) fn show(target: &Target) -> Answered {
    let shown = match target {
        Target::Version => version(),
        Target::Versions => json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
        }),
        Target::Groups => {
            let groups: Vec<Value> = super::fixed::groups().map(group).collect();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        Target::Group(version) => {
            let mut shown = group(version);
            shown["kind"] = "APIGroup".into();
            shown["apiVersion"] = "v1".into();
            shown
        }
        Target::Resources(version) => resources(version),
        Target::OpenApi => {
            let mut paths = json!({"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1"}});
            for version in kinds::groups() {
                let url = format!("/openapi/v3/apis/{version}");
                paths[format!("apis/{version}")] = json!({"serverRelativeURL": url});
            }
            json!({"paths": paths})
        }
        Target::OpenApiOf(version) => openapi(version),
        Target::Healthy => return Ok(body::text("ok")),
        Target::Objects(_) | Target::Push | Target::Cluster | Target::Ring { .. } => {
            return Err(Status::method_not_allowed(
                "the server does not allow this method on the requested resource",
            ));
        }
    };
    Ok(body::value(StatusCode::OK, &shown))
}

/// The version in the format of `kubectl version`; its build metadata names nodlet.
fn version() -> Value {
    let mut numbers = KUBERNETES.trim_start_matches('v').split('.');
    let nodlet = built_from::version(env!("CARGO_PKG_VERSION"));
    let mut version = built_from::fields();
    version.extend([
        ("major".into(), numbers.next().into()),
        ("minor".into(), numbers.next().into()),
        ("gitVersion".into(), format!("{KUBERNETES}+nodlet-{nodlet}").into()),
        ("goVersion".into(), "".into()),
    ]);
    version.into()
}

/// A named API group, with its only version.
fn group(version: &str) -> Value {
    let (group, number) = version.split_once('/').unwrap_or_default();
    let version = json!({"groupVersion": version, "version": number});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

fn resources(version: &str) -> Value {
    let rows = || KINDS.iter().filter(|row| row.version == version);
    let mut list = Vec::new();
    for row in rows() {
        let mut shown = json!({
            "name": row.plural, "singularName": row.singular, "namespaced": row.namespaced,
            "kind": row.name, "verbs": row.verbs, "shortNames": row.short_names,
        });
        if matches!(row.kind, Kind::Pod | Kind::Service) {
            shown["categories"] = json!(["all"]);
        }
        list.push(shown);
    }
    if version == "v1" {
        // `kubectl drain` deletes pods if this is missing; as it is here, it sends evictions, and ends with the reason why
        // they are rejected (`NO_EVICTION` in `api.rs`).
        list.push(json!({
            "name": "pods/eviction", "singularName": "", "namespaced": true, "group": "policy", "version": "v1",
            "kind": "Eviction", "verbs": [],
        }));
    }
    for (row, part) in rows().flat_map(|row| row.subresources.iter().map(move |part| (row, part))) {
        list.push(json!({
            "name": format!("{}/{}", row.plural, part.name), "singularName": "", "namespaced": row.namespaced,
            "kind": part.kind, "verbs": part.verbs,
        }));
    }
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": list})
}

/// The part of OpenAPI that makes kubectl leave validation to the server: for each kind that can be created,
/// objects can be sent with `fieldValidation`. And the fields of each kind, which `kubectl explain` shows.
fn openapi(version: &str) -> Value {
    let parameter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string"}});
    let (mut paths, mut schemas, texts) = (json!({}), Map::new(), Descriptions::unpack());
    let mut add = |root: &str, namespaced: bool, plural: &str, kind: &str, verb: &str| {
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let gvk = json!({"group": group, "version": version.rsplit('/').next(), "kind": kind});
        let (scope, word) = if namespaced { ("/namespaces/{namespace}", "Namespaced") } else { ("", "") };
        let parameters: &[&str] = if verb == "patch" { &["dryRun", "fieldValidation"] } else { &[] };
        paths[format!("/{root}{scope}/{plural}/{{name}}")] = json!({verb: {
            "operationId": format!("{verb}{word}{kind}"), "responses": {},
            "parameters": parameters.iter().map(|name| parameter(name)).collect::<Vec<_>>(),
            "x-kubernetes-action": verb, "x-kubernetes-group-version-kind": gvk,
        }});
        openapi::add_kind(kind, gvk, &texts, &mut schemas);
    };
    for row in KINDS.iter().filter(|row| row.version == version) {
        let verb = if row.allows("create") { "patch" } else { "get" };
        add(&row.root(), row.namespaced, row.plural, row.name, verb);
    }
    json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": KUBERNETES}, "paths": paths,
        "components": {"schemas": schemas},
    })
}
