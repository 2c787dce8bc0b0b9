//! Answers that depend on no object: what clients of a cluster request that a board does not have, or that is the same
//! for each client.

use hyper::{Method, Response, StatusCode, header};
use nodlet_kube::kinds;
use serde_json::{Value, json};

use super::body::{self, Body};
use super::{Answered, Status};

/// Why a kind is rejected that has a template of Pods.
const ONLY_PODS: &str = "nodlet has no such kind: it runs Pods; put the Pod template of a Deployment, DaemonSet, \
                         StatefulSet or Job into a Pod manifest";

/// The groups of the kinds that are rejected for [`ONLY_PODS`], and these kinds with their short names. Discovery has them
/// without verbs, which `kubectl api-resources` leaves out: so kubectl sends their objects, and shows the reason.
static REJECTED: [(&str, &[(&str, &str)]); 2] = [
    (
        "apps/v1",
        &[("DaemonSet", "ds"), ("Deployment", "deploy"), ("ReplicaSet", "rs"), ("StatefulSet", "sts")],
    ),
    ("batch/v1", &[("CronJob", "cj"), ("Job", "job")]),
];

/// All groups besides the core group, with their versions.
pub(super) fn groups() -> impl Iterator<Item = &'static str> {
    kinds::groups().chain(REJECTED.iter().map(|(version, _)| *version))
}

/// The resources of a group of rejected kinds.
fn rejected(version: &str) -> Option<Value> {
    let (_, kinds) = REJECTED.iter().find(|(group, _)| *group == version)?;
    let resource = |(kind, short): &(&str, &str)| {
        let name = kind.to_ascii_lowercase();
        json!({
            "name": format!("{name}s"), "singularName": name, "namespaced": true, "kind": kind, "verbs": [],
            "shortNames": [short],
        })
    };
    let resources: Vec<Value> = kinds.iter().map(resource).collect();
    Some(json!({"kind": "APIResourceList", "groupVersion": version, "resources": resources}))
}

/// The answer to a request with this method and path, if it is one of these. `node` is the name of the node.
pub(super) fn find(method: &Method, path: &str, node: &str) -> Option<Answered> {
    let path = path.strip_prefix('/')?;
    if path == "openapi/v2" {
        return Some(Ok(openapi_v2()));
    }
    if let (&Method::GET, Some(shown)) = (method, path.strip_prefix("apis/").and_then(rejected)) {
        return Some(Ok(answer("v1", shown)));
    }
    if path.starts_with("apis/apps/") || path.starts_with("apis/batch/") {
        return Some(Err(Status { message: ONLY_PODS.to_owned(), ..Status::no_such_path() }));
    }
    if let Some(path) = path.strip_prefix("apis/") {
        let (version, rest) = path.split_at_checked(path.match_indices('/').nth(1)?.0)?;
        let shown = match (method, version, rest.strip_prefix('/')?) {
            (&Method::POST, "authorization.k8s.io/v1" | "authentication.k8s.io/v1", review) => {
                review_of(review)?
            }
            (&Method::GET, "coordination.k8s.io/v1", lease) => {
                // Nothing renews it: that the agent answers shows that the node is there.
                let name =
                    lease.strip_prefix("namespaces/kube-node-lease/leases/").filter(|name| *name == node)?;
                let metadata = json!({"name": name, "namespace": "kube-node-lease"});
                json!({"kind": "Lease", "metadata": metadata, "spec": {"holderIdentity": node}})
            }
            _ => return None,
        };
        return Some(Ok(answer(version, shown)));
    }
    None
}

/// A review of the client's own rights: who can open the socket may do everything.
fn review_of(resource: &str) -> Option<Value> {
    let (kind, status) = match resource {
        "selfsubjectaccessreviews" => ("SelfSubjectAccessReview", json!({"allowed": true})),
        "selfsubjectrulesreviews" => (
            "SelfSubjectRulesReview",
            json!({
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                "incomplete": false,
            }),
        ),
        "selfsubjectreviews" => (
            "SelfSubjectReview",
            json!({"userInfo": {"username": "root", "groups": ["system:masters", "system:authenticated"]}}),
        ),
        _ => return None,
    };
    Some(json!({"kind": kind, "metadata": {}, "spec": {}, "status": status}))
}

/// The second version of OpenAPI, without a schema. kubectl requests it, in protobuf, to validate a `List` and kinds that
/// the third version lacks; it leaves what has no schema to the agent.
fn openapi_v2() -> Response<Body> {
    /// The field `swagger` of the message `Document`.
    const DOCUMENT: &[u8] = b"\x0a\x032.0";
    let kind = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    let mut response = body::json(StatusCode::OK, DOCUMENT);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

fn answer(version: &str, mut shown: Value) -> Response<Body> {
    shown["apiVersion"] = version.into();
    body::value(StatusCode::OK, &shown)
}

#[cfg(test)]
mod tests {
    use nodlet_fuzz::cases;

    use super::*;

    #[test]
    fn what_a_board_has_one_answer_to_is_found_by_method_and_path() {
        let found = |method: Method, path: &str| match find(&method, path, "board") {
            None => "-".to_owned(),
            Some(Err(status)) => status.code.to_string(),
            Some(Ok(_)) => "answered".to_owned(),
        };
        const CASES: &str = "
            POST => /apis/authorization.k8s.io/v1/selfsubjectaccessreviews => answered
            POST => /apis/authorization.k8s.io/v1/selfsubjectrulesreviews => answered
            GET => /apis/authorization.k8s.io/v1/selfsubjectrulesreviews => -
            POST => /apis/authentication.k8s.io/v1/selfsubjectreviews => answered
            POST => /apis/authentication.k8s.io/v1/tokenreviews => -
            POST => /apis/authentication.k8s.io => -
            GET => /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/board => answered
            GET => /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/other => -
            GET => /api/v1/services => -
            GET => /api/v1/pods => -
            POST => /apis/apps/v1/namespaces/default/deployments => 404
            GET => /apis/batch/v1/jobs => 404
            GET => /apis/batch/v1 => answered
            GET => /apis/batch/v2 => 404
            GET => /openapi/v2 => answered
            GET => /openapi/v3 => -
            GET => /apis/policy/v1/poddisruptionbudgets => -
            GET => /version => -
        ";
        for [method, path, expected] in cases::<3>(CASES) {
            assert_eq!(found(method.parse().expect("a method"), path), expected, "{method} {path}");
        }
    }
}
