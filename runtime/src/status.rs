//! `status` of a Pod, as the API shows it, derived from [`PodState`].
//!
//! Nothing is decided here and nothing is stored: asked twice, it says the same
//! twice. Which phase a pod is in is decided in `pod.rs`, because the core acts on it.

use std::net::Ipv4Addr;

use serde_json::{Map, Value, json};

use crate::node::PodPhase;
use crate::pod::{Condition, ContainerState, Ended, PodState, Shown};
use crate::spec::{Container, QosClass};
use crate::time::{Anchor, Instant, Moment};

/// Scheme of `containerID`.
const RUNTIME: &str = "nodlet";
/// Bytes of termination messages in one status, shared equally by its containers.
const MAX_MESSAGES: usize = 12_288;
/// A pod never changes here: another manifest makes another pod.
const GENERATION: u64 = 1;

/// The whole `status` object, its times as `anchor` tells them.
pub fn of(pod: &PodState, anchor: Anchor, host_ip: Option<Ipv4Addr>) -> Value {
    let mut status = Map::new();
    let mut set = |key: &str, value: Value| status.insert(key.to_owned(), value);
    set("phase", pod.phase().as_str().into());
    if let Some(verdict) = pod.shown_verdict() {
        if let Some(reason) = &verdict.reason {
            set("reason", (&**reason).into());
        }
        if let Some(message) = &verdict.message {
            set("message", (&**message).into());
        }
    }
    set("observedGeneration", GENERATION.into());
    set("startTime", time(pod.start_time(), anchor));
    set("qosClass", pod.pod().spec.qos_class().as_str().into());
    if pod.was_refused() {
        return Value::Object(status);
    }
    set("conditions", conditions(pod, anchor));
    if let Some(ip) = host_ip {
        set("hostIP", ip.to_string().into());
        set("hostIPs", json!([{ "ip": ip.to_string() }]));
    }
    let pod_ip = if pod.pod().spec.host_network { host_ip } else { pod.ip() };
    if let Some(ip) = pod_ip {
        set("podIP", ip.to_string().into());
        set("podIPs", json!([{ "ip": ip.to_string() }]));
    }
    set("containerStatuses", container_statuses(pod, anchor));
    Value::Object(status)
}

impl PodPhase {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            PodPhase::Pending => "Pending",
            PodPhase::Running => "Running",
            PodPhase::Succeeded => "Succeeded",
            PodPhase::Failed => "Failed",
        }
    }
}

impl QosClass {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            QosClass::Guaranteed => "Guaranteed",
            QosClass::Burstable => "Burstable",
            QosClass::BestEffort => "BestEffort",
        }
    }
}

fn conditions(pod: &PodState, anchor: Anchor) -> Value {
    let conditions = pod.conditions();
    let accepted = Condition { status: true, since: conditions.accepted };
    let over = match pod.phase() {
        PodPhase::Pending | PodPhase::Running => None,
        PodPhase::Succeeded => Some("PodCompleted"),
        PodPhase::Failed => Some("PodFailed"),
    };
    let unready = || {
        let names: Vec<&str> = pod
            .containers()
            .filter(|(_, container)| !container.health().ready)
            .map(|(index, _)| pod.pod().spec.container(index).name.as_str())
            .collect();
        format!("containers with unready status: [{}]", names.join(" "))
    };
    let why_not_ready = match (conditions.containers_ready.status, over) {
        (true, _) => None,
        (false, Some(reason)) => Some((reason, None)),
        (false, None) => Some(("ContainersNotReady", Some(unready()))),
    };
    let completed = (pod.phase() == PodPhase::Succeeded).then_some(("PodCompleted", None));
    Value::Array(vec![
        condition("PodReadyToStartContainers", conditions.ready_to_start_containers, None, anchor),
        condition("Initialized", accepted, completed, anchor),
        condition("Ready", conditions.containers_ready, why_not_ready.clone(), anchor),
        condition("ContainersReady", conditions.containers_ready, why_not_ready, anchor),
        condition("PodScheduled", accepted, None, anchor),
    ])
}

fn condition(kind: &str, condition: Condition, why: Option<(&str, Option<String>)>, anchor: Anchor) -> Value {
    let mut value = json!({
        "type": kind,
        "status": if condition.status { "True" } else { "False" },
        "observedGeneration": GENERATION,
        "lastProbeTime": null,
        "lastTransitionTime": instant(condition.since, anchor),
    });
    if let Some((reason, message)) = why {
        value["reason"] = reason.into();
        if let Some(message) = message {
            value["message"] = message.into();
        }
    }
    value
}

fn container_statuses(pod: &PodState, anchor: Anchor) -> Value {
    let spec = &pod.pod().spec;
    let message_bytes = MAX_MESSAGES / spec.containers.len().max(1);
    let mut statuses: Vec<(&str, Value)> = pod
        .containers()
        .map(|(index, container)| {
            let spec = spec.container(index);
            (spec.name.as_str(), container_status(spec, container, message_bytes, anchor))
        })
        .collect();
    statuses.sort_by_key(|(name, _)| *name);
    statuses.into_iter().map(|(_, status)| status).collect()
}

fn container_status(
    spec: &Container,
    container: &ContainerState,
    message_bytes: usize,
    anchor: Anchor,
) -> Value {
    let (state, last) = container.shown();
    let state = match state {
        Shown::Waiting { reason, message } => json!({ "waiting": waiting(reason, message) }),
        Shown::Running { at } => json!({ "running": { "startedAt": instant(at, anchor) } }),
        Shown::Terminated(ended) => json!({ "terminated": terminated(ended, message_bytes, anchor) }),
    };
    let last = match last {
        Some(ended) => json!({ "terminated": terminated(ended, message_bytes, anchor) }),
        None => json!({}),
    };
    let health = container.health();
    let identity = container.identity();
    let image = identity.as_ref().map_or(spec.image.as_str(), |identity| &identity.image);
    let image_id = identity.as_ref().map_or("", |identity| &identity.image_id);
    let mut status = json!({
        "name": spec.name,
        "state": state,
        "lastState": last,
        "ready": health.ready,
        "started": health.started,
        "restartCount": container.restart_count(),
        "image": image,
        "imageID": image_id,
    });
    if let Some(identity) = &identity {
        status["containerID"] = container_id(&identity.id).into();
    }
    if let Some(started) = &container.started {
        status["user"] = json!({ "linux": {
            "uid": started.user.uid,
            "gid": started.user.gid,
            "supplementalGroups": started.user.supplemental_groups,
        }});
    }
    if !spec.volume_mounts.is_empty() {
        let mounts = spec.volume_mounts.iter().map(|mount| {
            let mut value = json!({ "name": mount.name, "mountPath": mount.mount_path });
            if mount.read_only {
                value["readOnly"] = true.into();
                value["recursiveReadOnly"] = "Disabled".into();
            }
            value
        });
        status["volumeMounts"] = mounts.collect();
    }
    status
}

fn waiting(reason: &str, message: &str) -> Value {
    match message {
        "" => json!({ "reason": reason }),
        message => json!({ "reason": reason, "message": message }),
    }
}

fn terminated(ended: &Ended, message_bytes: usize, anchor: Anchor) -> Value {
    let when = |moment: Option<Moment>| moment.map_or(Value::Null, |moment| time(moment, anchor));
    let mut value = json!({
        "exitCode": ended.code,
        "reason": &*ended.reason,
        "startedAt": when(ended.started_at),
        "finishedAt": when(ended.finished_at),
    });
    if !ended.message.is_empty() {
        value["message"] = cut(&ended.message, message_bytes).into();
    }
    if let Some(id) = &ended.id {
        value["containerID"] = container_id(id).into();
    }
    value
}

fn container_id(id: &str) -> String {
    format!("{RUNTIME}://{id}")
}

/// At most `bytes` of `text`, whole characters.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

fn time(moment: Moment, anchor: Anchor) -> Value {
    moment.timestamp(anchor).to_string().into()
}

fn instant(instant: Instant, anchor: Anchor) -> Value {
    anchor.timestamp(instant).to_string().into()
}
