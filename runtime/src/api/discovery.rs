//! What there is: the answers by which kubectl finds its way, and whether the agent lives.

use crate::schema::KUBERNETES;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::Status;
use super::body::{self, Body};
use super::route::{RESOURCES, SETTINGS, Target};

pub(super) fn show(target: &Target) -> Result<Response<Body>, Status> {
    let shown = match target {
        Target::Version => version(),
        Target::Versions => json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
        }),
        Target::Groups => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]}),
        Target::Group => {
            let mut shown = group();
            shown["kind"] = "APIGroup".into();
            shown["apiVersion"] = "v1".into();
            shown
        }
        Target::Resources(version) => resources(version),
        Target::OpenApi => json!({"paths": {
            "api/v1": {"serverRelativeURL": "/openapi/v3/api/v1"},
            (format!("apis/{SETTINGS}")): {"serverRelativeURL": format!("/openapi/v3/apis/{SETTINGS}")},
        }}),
        Target::OpenApiOf(version) => openapi(version),
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

/// The one group besides the core.
fn group() -> Value {
    let version = json!({"groupVersion": SETTINGS, "version": "v1alpha1"});
    json!({"name": "settings.k8s.io", "versions": [version], "preferredVersion": version})
}

fn resources(version: &str) -> Value {
    let mut list = Vec::new();
    for resource in RESOURCES.iter().filter(|resource| resource.version == version) {
        let verbs: &[&str] = if resource.name == "pods" {
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
    let (root, group, number, plural, kind) = match version {
        SETTINGS => {
            ("apis/settings.k8s.io/v1alpha1", "settings.k8s.io", "v1alpha1", "podpresets", "PodPreset")
        }
        _ => ("api/v1", "", "v1", "pods", "Pod"),
    };
    let parameter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string"}});
    json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": KUBERNETES},
        "paths": {(format!("/{root}/namespaces/{{namespace}}/{plural}/{{name}}")): {"patch": {
            "operationId": format!("patchNamespaced{kind}"), "responses": {},
            "parameters": [parameter("dryRun"), parameter("fieldValidation")],
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": {"group": group, "version": number, "kind": kind},
        }}},
    })
}
