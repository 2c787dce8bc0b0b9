//! The routes of the kubelet's server: another form of the URLs of the API, for the API server of a cluster. Errors
//! are texts.
//!
//! Who may send a request is decided before ([`super::Authorization`]). Read next: `engine/cluster/kubelet_server.rs`, which
//! accepts the connections.

use std::time::Instant;

use hyper::{Method, Response, StatusCode};
use nodlet_cluster::mirrors;
use nodlet_kube::kinds::Kind;
use nodlet_registry::objects::Key;
use serde_json::Value;

use super::accept::Form;
use super::body::{self, Body};
use super::container::{self, Verb};
use super::read::{self, parse};
use super::{Answered, Api, Exchange, Query, Status, exec, log, not_allowed, portforward, route, stats};

/// Parameters of streams, in the kubelet's words and in those of the API.
const STREAMS: [(&str, &str); 3] = [("input", "stdin"), ("output", "stdout"), ("error", "stderr")];

pub(super) async fn answer(mut exchange: Exchange<'_>) -> Answered {
    let (api, uri, method) = (exchange.api, exchange.request.uri(), exchange.request.method());
    let segments = route::segments(uri.path())?;
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    exchange.query = Query::parse(uri.query().unwrap_or(""))?;
    let query = &mut exchange.query;
    let milliseconds = nodlet_host::clock::timestamp().0 / 1_000_000;
    let streams = matches!(segments[..], ["exec" | "attach" | "portForward", ..]);
    if !(method == Method::GET || streams && method == Method::POST) {
        return Err(not_allowed(method));
    }
    if streams || query.flag("follow") {
        api.places.stay(exchange.place, Instant::now())?;
    }
    match segments[..] {
        ["healthz", ..] => Ok(body::text("ok")),
        ["pods"] => read::list(api, Kind::Pod.row(), None, &Query::default(), Form::Whole),
        ["runningpods"] => {
            let query = Query::parse("fieldSelector=status.phase=Running")?;
            read::list(api, Kind::Pod.row(), None, &query, Form::Whole)
        }
        ["stats", "summary"] => Ok(body::value(StatusCode::OK, &stats::summary(api).await?)),
        ["metrics"] => Ok(body::text(stats::metrics(&stats::summary(api).await?))),
        ["metrics", "resource"] => {
            Ok(body::text(stats::resource_metrics(&stats::summary(api).await?, milliseconds)))
        }
        ["metrics", "cadvisor"] => Ok(body::text(stats::cadvisor(&stats::summary(api).await?, milliseconds))),
        ["metrics", "probes"] => Ok(body::text(stats::probes(api).await?)),
        ["containerLogs", namespace, pod, container] => {
            let key = pod_key(api, namespace, pod, None)
                .map_err(|_| not_found(format!("pod {pod:?} does not exist")))?;
            query.set("container", container);
            query.rename("tail", "tailLines");
            let object = api.objects.get(&key).map(|object| parse(&object.json)).unwrap_or_default();
            container::named(&object, Some(container))
                .map_err(|_| not_found(format!("container {container:?} not found in pod {pod:?}")))?;
            log::log(api, &key, query, Some(log::APART)).await
        }
        ["exec" | "attach", namespace, pod, ref rest @ ..] => {
            let (uid, container) = match *rest {
                [container] => (None, container),
                [uid, container] => (Some(uid), container),
                _ => return Err(Status::no_such_path()),
            };
            let key = pod_key(api, namespace, pod, uid)?;
            query.set("container", container);
            for (kubelets, of_api) in STREAMS {
                query.rename(kubelets, of_api);
            }
            let verb = if segments[0] == "exec" { Verb::Exec } else { Verb::Attach };
            exec::connect(exchange, &key, verb)
        }
        ["portForward", namespace, pod, ref uid @ ..] if uid.len() <= 1 => {
            let key = pod_key(api, namespace, pod, uid.first().copied())?;
            portforward::portforward(exchange, &key)
        }
        _ => Err(not_found("404 page not found".to_owned())),
    }
}

/// The answer to a rejected request.
pub(super) fn refuse(status: Status) -> Response<Body> {
    let mut response = body::text(status.message);
    *response.status_mut() = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

fn not_found(message: String) -> Status {
    Status { code: 404, reason: "NotFound", message, details: None }
}

/// The key of an existing pod, with this UID if it is given. The cluster knows the pod of a file by its mirror pod.
fn pod_key(api: &Api, namespace: &str, name: &str, uid: Option<&str>) -> Result<Key, Status> {
    let key = |name: &str| Key::new(Kind::Pod.row().plural, namespace, name);
    let object = |key: &Key| api.objects.get(key).map(|object| parse(&object.json));
    let is_it = |pod: &Value| uid.is_none_or(|uid| pod["metadata"]["uid"] == uid);
    if object(&key(name)).is_some_and(|pod| is_it(&pod)) {
        return Ok(key(name));
    }
    let shown =
        name.strip_suffix(&*api.node_name.to_ascii_lowercase()).and_then(|name| name.strip_suffix('-'));
    let shown = shown.map(key).filter(|key| {
        object(key)
            .is_some_and(|pod| mirrors::name_of(&pod, &api.node_name).is_some_and(|(_, of)| of == name))
    });
    shown.ok_or_else(|| not_found("pod does not exist".to_owned()))
}
