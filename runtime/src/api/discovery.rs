//! What there is: the answers by which kubectl finds its way, and whether the agent lives.

use crate::schema::KUBERNETES;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::Status;
use super::body::{self, Body};
use super::route::{RESOURCES, Target};

pub(super) fn show(target: &Target) -> Result<Response<Body>, Status> {
    let shown = match target {
        Target::Version => version(),
        Target::Versions => json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
        }),
        Target::Groups => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []}),
        Target::Resources => resources(),
        Target::OpenApi => json!({"paths": {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1"}}}),
        Target::OpenApiPods => openapi(),
        Target::Healthy => return Ok(body::text(Body::Whole(Some("ok".into())))),
        Target::Objects(_) | Target::Ring { .. } => {
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

fn resources() -> Value {
    let mut list = Vec::new();
    for resource in RESOURCES {
        let verbs: &[&str] = if resource.writable {
            &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
        } else {
            &["get", "list", "watch"]
        };
        list.push(json!({
            "name": resource.name, "singularName": resource.singular, "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": verbs, "shortNames": resource.short_names,
        }));
    }
    for (name, kind, verbs) in [
        ("pods/attach", "PodAttachOptions", &["create", "get"][..]),
        ("pods/ephemeralcontainers", "Pod", &["get", "patch", "update"]),
        ("pods/exec", "PodExecOptions", &["create", "get"]),
        ("pods/log", "Pod", &["get"]),
        ("pods/portforward", "PodPortForwardOptions", &["create", "get"]),
        ("pods/status", "Pod", &["get", "patch", "update"]),
    ] {
        list.push(
            json!({"name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": verbs}),
        );
    }
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": list})
}

/// So much of OpenAPI that kubectl leaves validation to us: that a Pod can be
/// sent with `fieldValidation`.
fn openapi() -> Value {
    let parameter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string"}});
    json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": KUBERNETES},
        "paths": {"/api/v1/namespaces/{namespace}/pods/{name}": {"patch": {
            "operationId": "patchCoreV1NamespacedPod", "responses": {},
            "parameters": [parameter("dryRun"), parameter("fieldValidation")],
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": {"group": "", "version": "v1", "kind": "Pod"},
        }}},
    })
}
