//! What there is: the answers by which kubectl finds its way, and whether the agent lives.

use crate::schema::KUBERNETES;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::Status;
use super::body::{self, Body};
use super::route::{GROUPS, RESOURCES, Target};

pub(super) fn show(target: &Target) -> Result<Response<Body>, Status> {
    let shown = match target {
        Target::Version => version(),
        Target::Versions => json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
        }),
        Target::Groups => {
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": GROUPS.map(group)})
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
            for version in GROUPS {
                let url = format!("/openapi/v3/apis/{version}");
                paths[format!("apis/{version}")] = json!({"serverRelativeURL": url});
            }
            json!({"paths": paths})
        }
        Target::OpenApiOf(version) => openapi(version),
        Target::Healthy => return Ok(body::text(Body::Whole(Some("ok".into())))),
        Target::Objects(_) | Target::Push | Target::Ring { .. } => {
            return Err(Status::method_not_allowed(
                "the server does not allow this method on the requested resource",
            ));
        }
    };
    Ok(body::value(StatusCode::OK, &shown))
}

/// As `kubectl version` reads it; the build says that it is nodlet who answers.
fn version() -> Value {
    let mut numbers = KUBERNETES.trim_start_matches('v').split('.');
    json!({
        "major": numbers.next(), "minor": numbers.next(),
        "gitVersion": format!("{KUBERNETES}+nodlet-{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "",
        "compiler": "rustc", "platform": format!("linux/{}", std::env::consts::ARCH),
    })
}

/// A group besides the core, with the only version that it has here.
fn group(version: &str) -> Value {
    let (group, number) = version.split_once('/').unwrap_or_default();
    let version = json!({"groupVersion": version, "version": number});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

fn resources(version: &str) -> Value {
    let mut list = Vec::new();
    for resource in RESOURCES.iter().filter(|resource| resource.version == version) {
        let verbs: &[&str] = if matches!(resource.name, "pods" | "priorityclasses") {
            &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
        } else if resource.writable {
            &["create", "delete", "deletecollection", "get", "list", "update", "watch"]
        } else {
            &["get", "list", "watch"]
        };
        list.push(json!({
            "name": resource.name, "singularName": resource.singular, "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": verbs, "shortNames": resource.short_names,
        }));
    }
    let subresources = [
        ("pods/attach", "PodAttachOptions", &["create", "get"][..]),
        ("pods/ephemeralcontainers", "Pod", &["get", "patch", "update"]),
        ("pods/exec", "PodExecOptions", &["create", "get"]),
        ("pods/log", "Pod", &["get"]),
        ("pods/portforward", "PodPortForwardOptions", &["create", "get"]),
        ("pods/status", "Pod", &["get", "patch", "update"]),
    ];
    for (name, kind, verbs) in subresources.into_iter().filter(|_| version == "v1") {
        list.push(
            json!({"name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": verbs}),
        );
    }
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": list})
}

/// So much of OpenAPI that kubectl leaves validation to us: that a Pod or a
/// PodPreset can be sent with `fieldValidation`.
fn openapi(version: &str) -> Value {
    let (group, number) = version.split_once('/').unwrap_or(("", version));
    let root = if group.is_empty() { "api/v1".to_owned() } else { format!("apis/{version}") };
    let written = RESOURCES.iter().find(|resource| resource.version == version && resource.writable);
    let Some(resource) = written else { return json!({}) };
    let (plural, kind) = (resource.name, resource.kind);
    let (scope, namespaced) =
        if resource.namespaced { ("/namespaces/{namespace}", "Namespaced") } else { ("", "") };
    let parameter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string"}});
    json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": KUBERNETES},
        "paths": {(format!("/{root}{scope}/{plural}/{{name}}")): {"patch": {
            "operationId": format!("patch{namespaced}{kind}"), "responses": {},
            "parameters": [parameter("dryRun"), parameter("fieldValidation")],
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": {"group": group, "version": number, "kind": kind},
        }}},
    })
}
