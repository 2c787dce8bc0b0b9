//! `create`, `replace` and `delete`: this module checks the arguments, and the engine performs the request.

use hyper::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::body::{self, Body};
use super::options::{self, Repeated, WriteOptions, Wrong};
use super::place::Held;
use super::request::ANSWER_WITHIN;
use super::{
    Accepted, Answered, Api, Applied, Change, EphemeralRequest, Exchange, Part, PatchKind, Preconditions,
    Query, Reply, Request, Status, read,
};
use nodlet_kube::kinds::{Kind, Row};
use nodlet_registry::objects::Key;
use nodlet_wire::timeout::within;

/// The header of the response to a PUT with its effect: `created`, `configured` or `unchanged`.
const APPLIED: &str = "nodlet-applied";

pub(super) async fn create(exchange: Exchange<'_>, row: &Row, namespace: &str) -> Answered {
    let api = exchange.api;
    let (object, held, repeated) = object(exchange, "CreateOptions", row, namespace, None).await?;
    let (validation, dry_run) = (repeated.options.validation, repeated.dry_run());
    let request = |reply| Request::Create { object, validation, dry_run, reply };
    let reply = ask_in(api, Some(held), request).await;
    Ok(show(StatusCode::CREATED, &repeated.finish(row, reply)?))
}

pub(super) async fn apply(exchange: Exchange<'_>, row: &Row, key: &Key) -> Answered {
    // `nodlet apply` (`force`) may replace the pod by another one; for other clients, changes of fields that
    // cannot change are rejected.
    if row.kind == Kind::Pod && exchange.query.get("force") != Some("true") {
        return update(exchange, row, key, Part::Whole).await;
    }
    let api = exchange.api;
    let (object, held, repeated) =
        object(exchange, "UpdateOptions", row, &key.namespace, Some(&key.name)).await?;
    let (validation, dry_run) = (repeated.options.validation, repeated.dry_run());
    let request = |reply| Request::Apply { object, validation, dry_run, reply };
    let reply = ask_in(api, Some(held), request).await;
    let accepted = repeated.finish(row, reply)?;
    let (code, applied) = match accepted.applied {
        Applied::Created => (StatusCode::CREATED, "created"),
        Applied::Configured => (StatusCode::OK, "configured"),
        Applied::Unchanged => (StatusCode::OK, "unchanged"),
    };
    let mut response = show(code, &accepted);
    response.headers_mut().insert(APPLIED, hyper::header::HeaderValue::from_static(applied));
    Ok(response)
}

/// PATCH and PUT of an object, or of a part of a pod: the engine applies the change to the object at that time.
pub(super) async fn update(exchange: Exchange<'_>, row: &Row, key: &Key, part: Part) -> Answered {
    let api = exchange.api;
    let (change, held, repeated) = change(exchange, row, key).await?;
    let (validation, dry_run) = (repeated.options.validation, repeated.dry_run());
    let (resource, namespace, name) = (key.resource, key.namespace.to_string(), key.name.to_string());
    let accepted = ask_in(api, Some(held), |reply| Request::Update {
        resource,
        namespace,
        name,
        change,
        part,
        validation,
        dry_run,
        reply,
    });
    Ok(show(StatusCode::OK, &repeated.finish(row, accepted.await)?))
}

/// Restarts the containers of a pod, or the one that `container` names.
pub(super) async fn restart(api: &Api, key: &Key, query: &Query) -> Answered {
    let (namespace, name) = (key.namespace.to_string(), key.name.to_string());
    let container = query.get("container").map(Into::into);
    let object = ask(api, |reply| Request::Restart { namespace, name, container, reply }).await?;
    Ok(body::value(StatusCode::OK, &object))
}

/// PATCH and PUT of a pod's ephemeral containers.
pub(super) async fn ephemeral(exchange: Exchange<'_>, row: &Row, key: &Key) -> Answered {
    let api = exchange.api;
    let (change, held, repeated) = change(exchange, row, key).await?;
    let (validation, dry_run) = (repeated.options.validation, repeated.dry_run());
    if let Change::Replace(body) = &change {
        // The format before Kubernetes 1.22, which old examples use.
        if body["kind"] == "EphemeralContainers" {
            return Err(Status::bad_request(
                "EphemeralContainers in version \"v1\" cannot be handled as a Pod: since Kubernetes 1.22 a Pod is \
                 sent here; use `kubectl debug` or `nodlet debug`",
            ));
        }
        if body["kind"].as_str().is_some_and(|kind| kind != "Pod") {
            return Err(Status::bad_request(format!("{} cannot be handled as a Pod", body["kind"])));
        }
    }
    let (namespace, name) = (key.namespace.to_string(), key.name.to_string());
    let accepted = ask_in(api, Some(held), |reply| {
        Request::Ephemeral(EphemeralRequest { namespace, name, change, validation, dry_run, reply })
    });
    Ok(show(StatusCode::OK, &repeated.finish(row, accepted.await)?))
}

/// Returns the object that a request contains. `options` is the kind of its options.
async fn object(
    exchange: Exchange<'_>,
    options: &str,
    row: &Row,
    namespace: &str,
    name: Option<&str>,
) -> Result<(Value, Held, Repeated), Status> {
    let options = WriteOptions::of(options, &exchange.query)?;
    let (mut object, held, texts) = body::read(exchange).await?;
    belongs(&mut object, row, namespace, name)?;
    Ok((object, held, Repeated { texts, options }))
}

/// Returns the change of an existing object that a request contains.
async fn change(exchange: Exchange<'_>, row: &Row, key: &Key) -> Result<(Change, Held, Repeated), Status> {
    if exchange.request.method() != hyper::Method::PATCH {
        let replaced = object(exchange, "UpdateOptions", row, &key.namespace, Some(&key.name)).await;
        return replaced.map(|(object, held, repeated)| (Change::Replace(object), held, repeated));
    }
    let (api, headers) = (exchange.api, exchange.request.headers());
    if content_type(headers).starts_with("application/apply-patch") {
        let text = "nodlet does not support server-side apply: leave --server-side out";
        return Err(Status::unsupported_media_type(text));
    }
    let options = WriteOptions::of("PatchOptions", &exchange.query)?;
    let kind = patch_kind(headers)?;
    let (patch, held, mut texts) = body::read_any(exchange).await?;
    if kind == PatchKind::Json {
        texts.iter_mut().for_each(|text| text.insert_str(0, "json patch "));
    }
    // Even for a short patch, the whole object is parsed, changed and rendered.
    let object = api.objects.get(key).map_or(0, |shown| body::cost(shown.json.as_bytes()));
    let held = api.places.hold_more(held, object)?;
    Ok((Change::Patch(kind, patch), held, Repeated { texts, options }))
}

pub(super) async fn delete(exchange: Exchange<'_>, row: &Row, key: &Key) -> Answered {
    let api = exchange.api;
    let object = DeleteOptions::read(exchange).await?.delete(api, key).await?;
    // A pod without a `deletionTimestamp` is already gone, so that clients need not wait, like all other objects.
    let shown = if row.kind == Kind::Pod { object } else { deleted(row, key, &object) };
    Ok(body::value(StatusCode::OK, &shown))
}

/// The `Status` of an object that is gone at once.
fn deleted(row: &Row, key: &Key, object: &Value) -> Value {
    let mut details = json!({"name": &*key.name, "kind": row.plural, "uid": object["metadata"]["uid"]});
    if let Some((group, _)) = row.version.split_once('/') {
        details["group"] = group.into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

/// Deletes all matching objects, and returns them.
pub(super) async fn delete_collection(exchange: Exchange<'_>, row: &Row, namespace: &str) -> Answered {
    let (api, selector) = (exchange.api, read::selector(row, &exchange.query)?);
    options::check_version_match(&exchange.query, false)?;
    let options = DeleteOptions::read(exchange).await?;
    let (found, version) = api.objects.list(row.plural, Some(namespace).filter(|_| row.namespaced));
    let mut deleted = Vec::new();
    for (key, object) in found {
        if !selector.matches(&read::parse(&object.json)) {
            continue;
        }
        match options.delete(api, &key).await {
            Ok(pod) => deleted.push(pod),
            // The object was removed in the meantime.
            Err(status) if status.code == 404 => {}
            Err(status) => return Err(status),
        }
    }
    let list = json!({
        "kind": format!("{}List", row.name), "apiVersion": row.version,
        "metadata": {"resourceVersion": version.to_string()}, "items": deleted,
    });
    Ok(body::value(StatusCode::OK, &list))
}

/// Notifies the agent that the board has joined a cluster, or left it; or has it connect now.
pub(super) async fn follow_cluster(api: &Api, sync: bool) -> Answered {
    let text = ask(api, |reply| Request::Cluster { sync, reply }).await?;
    Ok(body::text(text))
}

/// Sends a request to the engine and waits for the reply.
pub(super) async fn ask<T>(api: &Api, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, Status> {
    ask_in(api, None, request).await
}

/// As [`ask`], for a request with an object, which takes this room until the agent has it.
async fn ask_in<T>(
    api: &Api,
    room: Option<Held>,
    request: impl FnOnce(Reply<T>) -> Request,
) -> Result<T, Status> {
    let (reply, answer) = Reply::new();
    send(api, request(reply.with_room(room)))?;
    match within(ANSWER_WITHIN, answer.recv()).await {
        Some(answer) => answer.map_err(|_| Status::internal("the agent dropped the request"))?,
        None => Err(Status::timeout("the agent did not answer in time")),
    }
}

fn send(api: &Api, request: Request) -> Result<(), Status> {
    let full = || {
        Status::too_many_requests(
            "the agent is processing the maximum number of requests, please try again later",
        )
    };
    // While the card does not respond, further requests would wait in memory.
    let waits_for_flash =
        !matches!(request, Request::Exec { .. } | Request::Attach { .. } | Request::Socket { .. });
    if waits_for_flash && api.storage.is_full() {
        return Err(full());
    }
    api.requests.try_send(request).map_err(|error| match error {
        async_channel::TrySendError::Full(_) => full(),
        async_channel::TrySendError::Closed(_) => Status::unavailable("the agent is shutting down"),
    })
}

/// Sets the fields of an object that the URL defines, and rejects contradictory values.
fn belongs(object: &mut Value, row: &Row, namespace: &str, name: Option<&str>) -> Result<(), Status> {
    if !object.is_object() {
        return Err(Status::bad_request(format!(
            "the body of the request is not an object: send the manifest of a {}",
            row.name
        )));
    }
    // An object without `apiVersion` or `kind` gets those of the URL (`gvkWithDefaults` of the API server).
    for (field, in_url) in [("apiVersion", row.version), ("kind", row.name)] {
        if object[field].is_null() || object[field] == "" || (field == "apiVersion" && object[field] == "/") {
            object[field] = in_url.into();
        }
    }
    // An unknown kind is rejected later, when the object is parsed.
    let given = object["kind"].as_str().unwrap_or_default();
    if given != row.name && Kind::named(given).is_some() {
        let version = object["apiVersion"].as_str().unwrap_or_default();
        return Err(Status::bad_request(format!(
            "{given} in version {version:?} cannot be handled as a {}",
            row.name
        )));
    }
    nodlet_registry::check_types(object, row.kind)?;
    if object["metadata"].is_null() {
        object["metadata"] = json!({});
    }
    let is_of_row = object["kind"] == row.name;
    let metadata = &mut object["metadata"];
    // An object of a kind that there is not is refused for its kind.
    if let Some(name) = name.filter(|_| is_of_row)
        && metadata["name"].as_str().unwrap_or_default().is_empty()
    {
        return Err(Status::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        )));
    }
    let namespace = Some(namespace).filter(|_| row.namespaced);
    for (field, in_url) in [("namespace", namespace), ("name", name)] {
        let Some(in_url) = in_url else { continue };
        match &metadata[field] {
            Value::Null => metadata[field] = in_url.into(),
            Value::String(given) if given.is_empty() || given == in_url => metadata[field] = in_url.into(),
            given => {
                return Err(Status::bad_request(format!(
                    "the {field} of the provided object does not match the {field} sent on the request: \
                     {given}, and not \"{in_url}\""
                )));
            }
        }
    }
    Ok(())
}

fn show(code: StatusCode, accepted: &Accepted) -> Response<Body> {
    let mut response = body::value(code, &accepted.object);
    body::warn(&mut response, &accepted.warnings);
    response
}

/// `metav1.DeleteOptions`, from the body or the query.
struct DeleteOptions {
    grace: Option<u64>,
    preconditions: Preconditions,
    dry_run: bool,
}

impl DeleteOptions {
    async fn read(mut exchange: Exchange<'_>) -> Result<DeleteOptions, Status> {
        let query = std::mem::take(&mut exchange.query);
        let (body, _held, _) = body::read(exchange).await?;
        DeleteOptions::of(&body, &query)
    }

    /// `ValidateDeleteOptions`. Objects have no dependents, so that all propagation policies have the same
    /// effect.
    fn of(body: &Value, query: &Query) -> Result<DeleteOptions, Status> {
        let is_options = |object: &Map<String, Value>| match object.get("kind") {
            Some(Value::String(kind)) => kind.is_empty() || kind == "DeleteOptions",
            Some(Value::Null) | None => true,
            Some(_) => false,
        };
        if !body.is_null() && !body.as_object().is_some_and(is_options) {
            return Err(Status::bad_request("decoded object cannot be converted to DeleteOptions"));
        }
        let grace = match &body["gracePeriodSeconds"] {
            Value::Null => options::integer(query, "gracePeriodSeconds")?,
            value => {
                Some(value.as_i64().ok_or_else(|| not_a("gracePeriodSeconds", "whole number of seconds"))?)
            }
        };
        // In Kubernetes, a negative value means the shortest possible grace period.
        let grace = grace.map(|seconds| u64::try_from(seconds).unwrap_or(1));
        let policy = match (&body[POLICY], query.get(POLICY)) {
            (Value::Null, given) => given,
            (Value::String(given), _) => Some(given.as_str()),
            (_, _) => return Err(not_a(POLICY, "string")),
        };
        let orphan = flag(body, query, "orphanDependents")?;
        let ignores_read_error = flag(body, query, IGNORE_READ_ERROR)?;
        let preconditions = preconditions(&body["preconditions"], query)?;
        let in_body: Option<Vec<&str>> = match &body["dryRun"] {
            Value::Null => Some(Vec::new()),
            Value::Array(values) => values.iter().map(Value::as_str).collect(),
            _ => None,
        };
        let in_body = in_body.ok_or_else(|| not_a("dryRun", "list of strings"))?;
        let mut wrong = Wrong::new();
        let given: Vec<&str> = query.all("dryRun").chain(in_body).collect();
        let dry_run = options::dry_run(&given, &mut wrong);
        if let (Some(_), Some(policy)) = (orphan, policy) {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            wrong.push((POLICY, "FieldValueInvalid", format!("Invalid value: {policy:?}: {why}")));
        }
        if let Some(policy) = policy.filter(|policy| !POLICIES.contains(policy)) {
            let supported = r#""Foreground", "Background", "Orphan", "nil""#;
            let (reason, text) = options::unsupported(&format!("{policy:?}"), supported);
            wrong.push((POLICY, reason, text));
        }
        if ignores_read_error == Some(true) {
            let others = [
                (dry_run, "dryRun"),
                (policy.is_some(), POLICY),
                (orphan.is_some(), "orphanDependents"),
                (grace.is_some(), "gracePeriodSeconds"),
                (preconditions != Preconditions::default(), "preconditions"),
            ];
            for (_, other) in others.iter().filter(|(given, _)| *given) {
                let text = format!("Invalid value: true: cannot be set together with .{other}");
                wrong.push((IGNORE_READ_ERROR, "FieldValueInvalid", text));
            }
            if wrong.is_empty() {
                // All stored objects are readable.
                let text = "Forbidden: no object is stored that cannot be read".to_owned();
                wrong.push((IGNORE_READ_ERROR, "FieldValueForbidden", text));
            }
        }
        options::refuse("DeleteOptions", &wrong)?;
        Ok(DeleteOptions { grace, preconditions, dry_run })
    }

    async fn delete(&self, api: &Api, key: &Key) -> Result<Value, Status> {
        ask(api, |reply| Request::Delete {
            resource: key.resource,
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            preconditions: self.preconditions.clone(),
            grace: self.grace,
            dry_run: self.dry_run,
            reply,
        })
        .await
    }
}

const POLICY: &str = "propagationPolicy";
const POLICIES: [&str; 3] = ["Foreground", "Background", "Orphan"];
const IGNORE_READ_ERROR: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

fn not_a(field: &str, kind: &str) -> Status {
    Status::bad_request(format!("{field}: Invalid value: must be a {kind}"))
}

/// Returns a boolean option.
fn flag(body: &Value, query: &Query, name: &str) -> Result<Option<bool>, Status> {
    match (&body[name], query.get(name)) {
        (Value::Null, None) => Ok(None),
        (Value::Bool(given), _) => Ok(Some(*given)),
        (Value::Null, Some(_)) => Ok(Some(query.flag(name))),
        (_, _) => Err(not_a(name, "boolean")),
    }
}

/// Returns the `preconditions` of the body, or those of the query of a `DELETE` if the body has none.
fn preconditions(given: &Value, query: &Query) -> Result<Preconditions, Status> {
    let of = |field: &str| match &given[field] {
        Value::Null => {
            let in_query = query.get(field);
            Ok(in_query.filter(|value| !value.is_empty()).map(str::to_owned))
        }
        Value::String(text) => Ok(Some(text.clone())),
        _ => Err(not_a(&format!("preconditions.{field}"), "string")),
    };
    match given {
        Value::Null | Value::Object(_) => {
            Ok(Preconditions { uid: of("uid")?, resource_version: of("resourceVersion")? })
        }
        _ => Err(not_a("preconditions", "object")),
    }
}

/// The content type of a request, without parameters; empty if it has none.
fn content_type(headers: &hyper::HeaderMap) -> &str {
    let given = headers.get(hyper::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    given.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim()
}

/// Returns the kind of a patch, by the content type of its request.
fn patch_kind(headers: &hyper::HeaderMap) -> Result<PatchKind, Status> {
    const KINDS: [(&str, PatchKind); 3] = [
        ("application/json-patch+json", PatchKind::Json),
        ("application/merge-patch+json", PatchKind::Merge),
        ("application/strategic-merge-patch+json", PatchKind::Strategic),
    ];
    let given = content_type(headers);
    let found = KINDS.iter().find(|(name, _)| *name == given);
    found.map(|(_, kind)| *kind).ok_or_else(|| {
        let names = KINDS.map(|(name, _)| name).join(", ");
        Status::unsupported_media_type(format!(
            "the body of the request was in an unknown format - accepted media types include: {names}"
        ))
    })
}
