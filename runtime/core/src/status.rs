//! `status` of a Pod, as the API shows it, derived from [`PodState`].
//!
//! This module decides and stores nothing: the same state gives the same status. The phase is decided in
//! `pod.rs`, because the core acts on it.

mod conditions;
pub mod signal;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use serde_json::{Map, Value, json};

use crate::facts::{Ended, PodPhase};
use crate::pod::{ContainerState, PodState, Shown};
use crate::spec::{Container, ContainerIndex, PodSpec, QosClass, Quantity, ResourceRequirements, Role};
use crate::time::{Anchor, Instant, Moment};

/// Scheme of `containerID`.
const RUNTIME: &str = "nodlet";
/// Bytes of termination messages in one status, shared equally by its containers.
const MAX_MESSAGES: usize = 12_288;

/// The `PodImageUpdatePending` condition of a pod whose next version waits for images.
pub fn image_update_pending(pod: &PodState, anchor: Anchor, since: Moment, missing: &[String]) -> Value {
    conditions::image_update_pending(pod, anchor, since, "ErrImagePull", &conditions::of_missing(missing))
}

/// The whole `status` object; `anchor` converts its times to wall time.
pub fn of(pod: &PodState, anchor: Anchor, host_ip: Option<Ipv4Addr>) -> Value {
    let mut status = Map::new();
    let mut set = |key: &str, value: Value| status.insert(key.to_owned(), value);
    set("phase", pod.phase().as_str().into());
    if let Some(terminal) = pod.shown_terminal_phase() {
        if let Some(reason) = &terminal.reason {
            set("reason", (&**reason).into());
        }
        if let Some(message) = &terminal.message {
            set("message", (&**message).into());
        }
    }
    set("observedGeneration", pod.generation().into());
    set("qosClass", pod.pod().spec.qos_class().as_str().into());
    if pod.pod().is_gated() {
        set("conditions", conditions::of_gated(pod, anchor));
        return Value::Object(status);
    }
    set("startTime", time(pod.start_time(), anchor));
    if pod.is_rejected() {
        if !pod.client_conditions().is_empty() {
            set("conditions", conditions::client_conditions(pod).collect());
        }
        return Value::Object(status);
    }
    set("conditions", conditions::of(pod, anchor));
    if pod.pod().spec.resources.is_some() {
        set("resources", resources(&of_pod(&pod.actuated().spec)));
        let allocated = of_pod(&pod.pod().spec);
        if let Some(allocated) = amounts(&allocated.cpu_request, &allocated.memory_request) {
            set("allocatedResources", allocated);
        }
    }
    if let Some(ip) = host_ip {
        set("hostIP", ip.to_string().into());
        set("hostIPs", json!([{ "ip": ip.to_string() }]));
    }
    let pod_ip = if pod.pod().spec.host_network { host_ip } else { pod.ip() };
    if let Some(ip) = pod_ip {
        set("podIP", ip.to_string().into());
        set("podIPs", json!([{ "ip": ip.to_string() }]));
    }
    if !pod.pod().spec.init_containers.is_empty() {
        set("initContainerStatuses", init_container_statuses(pod, anchor));
    }
    set("containerStatuses", container_statuses(pod, Role::Regular, anchor));
    if !pod.pod().spec.ephemeral_containers.is_empty() {
        set("ephemeralContainerStatuses", container_statuses(pod, Role::Ephemeral, anchor));
    }
    Value::Object(status)
}

/// Adds the IPv6 addresses of pod and host to a status that has their IPv4 addresses.
pub fn add_ipv6(status: &mut Value, pod: &PodState, ip: Option<Ipv6Addr>, host_ip: Option<Ipv6Addr>) {
    let ip = if pod.pod().spec.host_network { host_ip } else { ip };
    for (list, ip) in [("podIPs", ip), ("hostIPs", host_ip)] {
        if let (Some(ip), Some(all)) = (ip, status.get_mut(list).and_then(Value::as_array_mut)) {
            all.push(json!({ "ip": ip.to_string() }));
        }
    }
}

impl PodPhase {
    /// The phase as the API spells it.
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
    /// The class as the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            QosClass::Guaranteed => "Guaranteed",
            QosClass::Burstable => "Burstable",
            QosClass::BestEffort => "BestEffort",
        }
    }
}

fn name(pod: &PodState, index: ContainerIndex) -> &str {
    &pod.pod().spec.container(index).name
}

/// The statuses of the containers with this role, sorted by name.
fn container_statuses(pod: &PodState, role: Role, anchor: Anchor) -> Value {
    let with_role = pod.containers().filter(|(_, container)| container.role() == role);
    let mut sorted: Vec<_> = with_role.collect();
    sorted.sort_by_key(|(index, _)| name(pod, *index));
    sorted.into_iter().map(|(index, container)| container_status(pod, index, container, anchor)).collect()
}

/// The statuses of the init containers, in the order of the spec.
fn init_container_statuses(pod: &PodState, anchor: Anchor) -> Value {
    let init = pod.containers().filter(|(_, container)| container.role().is_init());
    init.map(|(index, container)| container_status(pod, index, container, anchor)).collect()
}

fn container_status(
    pod: &PodState,
    index: ContainerIndex,
    container: &ContainerState,
    anchor: Anchor,
) -> Value {
    let of_pod = &pod.pod().spec;
    let spec: &Container = of_pod.container(index);
    let message_bytes = MAX_MESSAGES / of_pod.container_count().max(1);
    // Why the pod has no sandbox. A kubelet reports it only by an event, which expires long before the pod
    // runs.
    let first_deferred = pod.sandbox_failure();
    let (state, last) = match container.shown() {
        // A kube-apiserver takes back no end of a container that its policy does not restart.
        (Shown::Terminated(_), last) if pod.is_active() && container.awaits_next_run() => {
            (Shown::NotYet, last)
        }
        shown => shown,
    };
    let state = match state {
        Shown::NotYet => json!({ "waiting": waiting(not_yet(of_pod), first_deferred) }),
        Shown::Waiting { reason, message } => {
            let message = if message.is_empty() { first_deferred } else { message };
            json!({ "waiting": waiting(reason, message) })
        }
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
    if container.role() == Role::Ephemeral
        && let Some(fields) = status.as_object_mut()
    {
        // An ephemeral container has no probes, and so no `started`.
        fields.remove("started");
    }
    if let Some(identity) = &identity {
        status["containerID"] = container_id(&identity.id).into();
    }
    if identity.is_some() {
        let actuated = match container.role() {
            Role::Regular | Role::Init | Role::Sidecar => pod.actuated().spec.container(index),
            Role::Ephemeral => spec,
        };
        let allocated = amounts(&spec.resources.cpu_request, &spec.resources.memory_request);
        status["resources"] = resources(&actuated.resources);
        if let Some(allocated) = allocated {
            status["allocatedResources"] = allocated;
        }
    }
    if let Some(process) = identity.and_then(|identity| identity.process) {
        status["stopSignal"] = signal::name(process.stop_signal).into();
        status["user"] = json!({ "linux": {
            "uid": process.user.uid,
            "gid": process.user.gid,
            "supplementalGroups": process.user.supplemental_groups,
        }});
    }
    if !spec.volume_mounts.is_empty() {
        let mounts = spec.volume_mounts.iter().map(|mount| {
            let mut value = json!({ "name": mount.name, "mountPath": mount.mount_path });
            if mount.read_only {
                value["readOnly"] = true.into();
                let recursive = if mount.recursive_read_only { "Enabled" } else { "Disabled" };
                value["recursiveReadOnly"] = recursive.into();
            }
            value
        });
        status["volumeMounts"] = mounts.collect();
    }
    status
}

/// The amounts of a pod as a whole: those of the spec, or else requests of its containers together; and its overhead.
fn of_pod(spec: &PodSpec) -> ResourceRequirements {
    let whole = |own: fn(&ResourceRequirements) -> &Option<Quantity>, is_request: bool| {
        let of = |resources: &Option<Rc<ResourceRequirements>>| own(resources.as_deref()?).clone();
        match (of(&spec.resources), of(&spec.overhead)) {
            (Some(own), Some(overhead)) => Some(own.plus(&overhead)),
            (None, _) if is_request => {
                let sum = spec.effective(|resources| own(resources).as_ref().map(Quantity::milli_value));
                (sum > 0).then(|| Quantity::from_milli(sum.into()))
            }
            (own, _) => own,
        }
    };
    ResourceRequirements {
        cpu_request: whole(|resources| &resources.cpu_request, true),
        cpu_limit: whole(|resources| &resources.cpu_limit, false),
        memory_request: whole(|resources| &resources.memory_request, true),
        memory_limit: whole(|resources| &resources.memory_limit, false),
        ..ResourceRequirements::default()
    }
}

/// `resources`: the requests and limits in effect.
fn resources(actuated: &ResourceRequirements) -> Value {
    let limits = amounts(&actuated.cpu_limit, &actuated.memory_limit);
    let requests = amounts(&actuated.cpu_request, &actuated.memory_request);
    let all = [("limits", limits), ("requests", requests)];
    let all = all.into_iter().filter_map(|(name, list)| list.map(|list| (name.to_owned(), list)));
    Value::Object(all.collect())
}

/// A list of amounts; `None` if there are none.
fn amounts(cpu: &Option<Quantity>, memory: &Option<Quantity>) -> Option<Value> {
    let given = [("cpu", cpu), ("memory", memory)];
    let given = given.into_iter().filter_map(|(name, quantity)| {
        quantity.as_ref().map(|quantity| (name.to_owned(), Value::from(quantity.to_string())))
    });
    Some(given.collect::<Map<_, _>>()).filter(|list| !list.is_empty()).map(Value::Object)
}

/// The waiting reason of a container that has not run yet.
fn not_yet(spec: &PodSpec) -> &'static str {
    if spec.init_containers.is_empty() { "ContainerCreating" } else { "PodInitializing" }
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

/// At most `bytes` of `text`, in whole characters.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

fn time(moment: Moment, anchor: Anchor) -> Value {
    moment.timestamp(anchor).to_string().into()
}

fn instant(instant: Instant, anchor: Anchor) -> Value {
    anchor.timestamp(instant).to_string().into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::sim::*;
    use crate::spec::*;

    #[test]
    fn a_running_pod_is_shown_as_a_kubelet_shows_it() {
        let mut b = container("b");
        b.volume_mounts = vec![VolumeMount {
            recursive_read_only: false,
            name: "data".into(),
            mount_path: "/data".into(),
            sub_path: None,
            sub_path_expr: None,
            read_only: true,
            propagation: Default::default(),
        }];
        let recursive = VolumeMount { recursive_read_only: true, ..b.volume_mounts[0].clone() };
        b.volume_mounts.push(VolumeMount { mount_path: "/again".into(), ..recursive });
        let mut a = container("a");
        a.readiness_probe = Some(exec_probe());
        let mut sim = Sim::new(pod(RestartPolicy::Always).with([b, a]), |name, _| match name {
            "a" => Fate::Runs,
            _ => Fate::Exits(2, secs(5)),
        })
        .probes(|_, _, _| crate::facts::ProbeResult::Failure("no".into()));
        sim.run_until(secs(8));
        let transition = "1970-01-01T00:00:00Z";
        let unready = "containers with unready status: [b a]";
        sim.run_until(secs(12));
        let condition = |kind: &str, status: &str| {
            json!({
                "type": kind, "status": status, "observedGeneration": 1, "lastProbeTime": null,
                "lastTransitionTime": transition,
            })
        };
        let not_ready = |kind: &str| {
            let mut condition = condition(kind, "False");
            condition["reason"] = "ContainersNotReady".into();
            condition["message"] = unready.into();
            condition
        };
        let id = |container: u8, number: u8| format!("nodlet://{container:060}{number:04}");
        let user = json!({ "linux": { "uid": 1000, "gid": 1000, "supplementalGroups": [1000] } });
        let expected = json!({
            "phase": "Running",
            "observedGeneration": 1,
            "startTime": "1970-01-01T00:00:00Z",
            "qosClass": "BestEffort",
            "hostIP": "192.168.1.7",
            "hostIPs": [{ "ip": "192.168.1.7" }],
            "podIP": "10.85.0.2",
            "podIPs": [{ "ip": "10.85.0.2" }],
            "conditions": [
                condition("PodReadyToStartContainers", "True"),
                condition("Initialized", "True"),
                not_ready("Ready"),
                not_ready("ContainersReady"),
                condition("PodScheduled", "True"),
            ],
            "containerStatuses": [
                {
                    "name": "a", "image": "docker.io/library/app:1", "imageID": "docker.io/library/app@sha256:00",
                    "containerID": id(1, 0), "restartCount": 0, "ready": false, "started": true,
                    "state": { "running": { "startedAt": "1970-01-01T00:00:00Z" } }, "lastState": {},
                    "user": user, "resources": {}, "stopSignal": "SIGTERM",
                },
                {
                    "name": "b", "image": "docker.io/library/app:1", "imageID": "docker.io/library/app@sha256:00",
                    "containerID": id(0, 1), "restartCount": 1, "ready": false, "started": false,
                    "state": { "waiting": {
                        "reason": "CrashLoopBackOff",
                        "message": "back-off 10s restarting failed container=b pod=web_default(u1)",
                    }},
                    "lastState": { "terminated": {
                        "exitCode": 2, "reason": "Error", "containerID": id(0, 1),
                        "startedAt": "1970-01-01T00:00:05Z", "finishedAt": "1970-01-01T00:00:10Z",
                    }},
                    "user": user, "resources": {}, "stopSignal": "SIGTERM",
                    "volumeMounts": [{
                        "name": "data", "mountPath": "/data", "readOnly": true, "recursiveReadOnly": "Disabled",
                    }, {
                        "name": "data", "mountPath": "/again", "readOnly": true, "recursiveReadOnly": "Enabled",
                    }],
                },
            ],
        });
        let status = sim.status(&"u1".into());
        for (key, value) in expected.as_object().expect("an object") {
            assert_eq!(&status[key], value, "{key}");
        }
        assert_eq!(status, expected);
    }

    #[test]
    fn a_pod_without_a_process_waits_for_its_containers_to_be_created() {
        let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
        sim.weather.latency = secs(5);
        sim.run_until(secs(0));
        let status = sim.status(&"u1".into());
        assert_eq!(status["phase"], "Pending");
        let app = &status["containerStatuses"][0];
        assert_eq!(app["state"], json!({ "waiting": { "reason": "ContainerCreating" } }));
        assert_eq!((&app["image"], &app["imageID"]), (&"app:1".into(), &"".into()));
        assert!(app.get("containerID").is_none() && status.get("podIP").is_none());
    }

    #[test]
    fn long_messages_are_cut_to_their_share_at_a_character() {
        assert_eq!(super::cut("häuser", 2), "h");
        assert_eq!(super::cut("short", 2000), "short");
    }

    #[test]
    fn quality_of_service_follows_requests_and_limits() {
        let milli = |milli| Some(Quantity::from_milli(milli));
        let none = ResourceRequirements::default();
        let limits =
            ResourceRequirements { cpu_limit: milli(500), memory_limit: milli(1000), ..none.clone() };
        let equal =
            ResourceRequirements { cpu_request: milli(500), memory_request: milli(1000), ..limits.clone() };
        let less = ResourceRequirements { cpu_request: milli(100), ..equal.clone() };
        let zero = ResourceRequirements { cpu_request: milli(0), ..none.clone() };
        for (resources, class) in [
            (vec![none.clone()], QosClass::BestEffort),
            (vec![zero], QosClass::BestEffort),
            // Admission sets missing requests to the limits.
            (vec![limits.clone()], QosClass::Burstable),
            (vec![equal.clone(), equal.clone()], QosClass::Guaranteed),
            (vec![less], QosClass::Burstable),
            (vec![equal, none], QosClass::Burstable),
        ] {
            let containers = resources.into_iter().map(|resources| Container { resources, ..container("c") });
            assert_eq!(pod(RestartPolicy::Always).with(containers).spec.qos_class(), class);
        }
    }
}
