//! Converts a valid Pod from JSON to [`nodlet_core::spec`]. This module never rejects anything: errors were
//! reported before, and a value that is still wrong is read as its type's zero. Read next: `convert/container.rs`.

use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;

use crate::object::value::{flag, list, map, number, optional_number, text};
use nodlet_core::spec::container::{AppArmorProfile, PullPolicy, SeccompProfile};
use nodlet_core::spec::placement::{
    NodeSelectorOperator, NodeSelectorRequirement, NodeSelectorTerm, Placement, Toleration,
};
use nodlet_core::spec::pod::{DnsConfig, DnsPolicy, HostAlias, PodSecurityContext};
use nodlet_core::spec::reference::{ConfigKind, ObjectReference};
use nodlet_core::spec::{Pod, PodSpec, Quantity, RestartPolicy, Uid};

mod container;
mod volume;

use container::{container, overhead, resources};
use volume::volume;

/// Converts a defaulted and validated object to a Pod.
pub(super) fn pod(object: &Value) -> Pod {
    let meta = &object["metadata"];
    let mut pod = Pod {
        name: text(meta, "name").into(),
        namespace: text(meta, "namespace").into(),
        uid: Uid(Rc::from(text(meta, "uid"))),
        generation: u64::try_from(number(meta, "generation")).unwrap_or_default().max(1),
        labels: strings_by_key(&meta["labels"]).collect(),
        annotations: strings_by_key(&meta["annotations"]).collect(),
        priority: i32::try_from(number(&object["spec"], "priority")).unwrap_or_default(),
        spec: spec(&object["spec"]),
    };
    super::board_annotations::apply(&mut pod);
    pod
}

/// Converts the spec of a defaulted object.
pub(super) fn spec(spec: &Value) -> PodSpec {
    PodSpec {
        containers: list(spec, "containers").iter().map(container).collect(),
        init_containers: list(spec, "initContainers").iter().map(container).collect(),
        ephemeral_containers: list(spec, "ephemeralContainers").iter().map(container).collect(),
        volumes: list(spec, "volumes").iter().map(volume).collect(),
        restart_policy: restart_policy(spec),
        termination_grace_period: secs(number(spec, "terminationGracePeriodSeconds")),
        active_deadline: optional_number(spec, "activeDeadlineSeconds").map(secs),
        host_network: flag(spec, "hostNetwork"),
        host_users: spec["hostUsers"] != Value::Bool(false),
        host_pid: flag(spec, "hostPID"),
        host_ipc: flag(spec, "hostIPC"),
        share_process_namespace: flag(spec, "shareProcessNamespace"),
        hostname: filled(spec, "hostname"),
        hostname_override: filled(spec, "hostnameOverride"),
        hostname_as_fqdn: flag(spec, "setHostnameAsFQDN"),
        subdomain: filled(spec, "subdomain"),
        service_links: spec["enableServiceLinks"] != Value::Bool(false),
        host_aliases: list(spec, "hostAliases")
            .iter()
            .map(|alias| HostAlias {
                ip: text(alias, "ip").to_owned(),
                hostnames: strings(alias, "hostnames"),
            })
            .collect(),
        dns_policy: match text(spec, "dnsPolicy") {
            "ClusterFirstWithHostNet" => DnsPolicy::ClusterFirstWithHostNet,
            "Default" => DnsPolicy::Default,
            "None" => DnsPolicy::None,
            _ => DnsPolicy::ClusterFirst,
        },
        dns_config: dns_config(&spec["dnsConfig"]),
        security_context: pod_security_context(&spec["securityContext"]),
        image_pull_secrets: texts(list(spec, "imagePullSecrets"), "name")
            .into_iter()
            .map(|name| ObjectReference { kind: ConfigKind::Secret, name, optional: true })
            .collect(),
        readiness_gates: texts(list(spec, "readinessGates"), "conditionType"),
        scheduling_gates: texts(list(spec, "schedulingGates"), "name"),
        priority_class_name: text(spec, "priorityClassName").to_owned(),
        // As a cluster's admission sets it.
        service_account_name: filled(spec, "serviceAccountName")
            .unwrap_or_else(|| "default".to_owned())
            .into(),
        resources: spec.get("resources").map(|of_pod| Rc::new(resources(of_pod))),
        overhead: spec.get("overhead").map(|amounts| Rc::new(overhead(amounts))),
        has_runtime_class: !text(spec, "runtimeClassName").is_empty(),
        placement: placement(spec),
    }
}

/// A placement with only this node selector.
pub(crate) fn required_nodes(required: &Value) -> Placement {
    let requirement = |requirement: &Value| NodeSelectorRequirement {
        key: text(requirement, "key").to_owned(),
        operator: match text(requirement, "operator") {
            "In" => NodeSelectorOperator::In,
            "NotIn" => NodeSelectorOperator::NotIn,
            "Exists" => NodeSelectorOperator::Exists,
            "Gt" => NodeSelectorOperator::Gt,
            "Lt" => NodeSelectorOperator::Lt,
            _ => NodeSelectorOperator::DoesNotExist,
        },
        values: strings(requirement, "values"),
    };
    let term = |term: &Value| NodeSelectorTerm {
        match_expressions: list(term, "matchExpressions").iter().map(requirement).collect(),
        match_fields: list(term, "matchFields").iter().map(requirement).collect(),
    };
    let terms = required.is_object().then(|| list(required, "nodeSelectorTerms").iter().map(term).collect());
    Placement { node_affinity: terms, ..Placement::default() }
}

fn placement(spec: &Value) -> Placement {
    let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let toleration = |toleration: &Value| Toleration {
        key: text(toleration, "key").to_owned(),
        exists: text(toleration, "operator") == "Exists",
        value: text(toleration, "value").to_owned(),
        effect: text(toleration, "effect").to_owned(),
    };
    Placement {
        node_selector: strings_by_key(&spec["nodeSelector"]).collect(),
        tolerations: list(spec, "tolerations").iter().map(toleration).collect(),
        os: text(&spec["os"], "name").to_owned(),
        ..required_nodes(required)
    }
}

/// The value of `field` in each element.
fn texts(list: &[Value], field: &str) -> Vec<String> {
    list.iter().map(|element| text(element, field).to_owned()).collect()
}

fn dns_config(config: &Value) -> DnsConfig {
    DnsConfig {
        nameservers: strings(config, "nameservers"),
        searches: strings(config, "searches"),
        options: list(config, "options")
            .iter()
            .map(|option| match option["value"].as_str() {
                Some(value) => format!("{}:{value}", text(option, "name")),
                None => text(option, "name").to_owned(),
            })
            .collect(),
    }
}

fn pod_security_context(context: &Value) -> PodSecurityContext {
    PodSecurityContext {
        run_as_user: id(context, "runAsUser"),
        run_as_group: id(context, "runAsGroup"),
        run_as_non_root: context["runAsNonRoot"].as_bool(),
        supplemental_groups: list(context, "supplementalGroups")
            .iter()
            .filter_map(|group| group.as_u64().and_then(|group| u32::try_from(group).ok()))
            .collect(),
        fs_group: id(context, "fsGroup"),
        fs_group_always: text(context, "fsGroupChangePolicy") == "Always",
        strict_groups: text(context, "supplementalGroupsPolicy") == "Strict",
        sysctls: list(context, "sysctls")
            .iter()
            .map(|sysctl| (text(sysctl, "name").to_owned(), text(sysctl, "value").to_owned()))
            .collect(),
        seccomp: seccomp_profile(context),
        app_armor: app_armor_profile(context),
    }
}

fn app_armor_profile(context: &Value) -> Option<AppArmorProfile> {
    let profile = context.get("appArmorProfile")?;
    Some(match text(profile, "type") {
        "RuntimeDefault" => AppArmorProfile::RuntimeDefault,
        "Localhost" => AppArmorProfile::Localhost(text(profile, "localhostProfile").into()),
        _ => AppArmorProfile::Unconfined,
    })
}

fn seccomp_profile(context: &Value) -> Option<SeccompProfile> {
    let profile = context.get("seccompProfile")?;
    Some(match text(profile, "type") {
        "RuntimeDefault" => SeccompProfile::RuntimeDefault,
        "Localhost" => SeccompProfile::Localhost(text(profile, "localhostProfile").to_owned()),
        _ => SeccompProfile::Unconfined,
    })
}

fn pull_policy(policy: &str) -> PullPolicy {
    match policy {
        "Always" => PullPolicy::Always,
        "Never" => PullPolicy::Never,
        _ => PullPolicy::IfNotPresent,
    }
}

fn restart_policy(owner: &Value) -> RestartPolicy {
    match text(owner, "restartPolicy") {
        "OnFailure" => RestartPolicy::OnFailure,
        "Never" => RestartPolicy::Never,
        _ => RestartPolicy::Always,
    }
}

fn quantity(value: &Value) -> Option<Quantity> {
    value.as_str().and_then(|text| Quantity::parse(text).ok())
}

fn id(owner: &Value, field: &str) -> Option<u32> {
    optional_number(owner, field).and_then(|id| u32::try_from(id).ok())
}

fn secs(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// A string that exists and is not empty.
fn filled(owner: &Value, field: &str) -> Option<String> {
    Some(text(owner, field)).filter(|text| !text.is_empty()).map(str::to_owned)
}

fn strings(owner: &Value, field: &str) -> Vec<String> {
    list(owner, field).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn strings_by_key(value: &Value) -> impl Iterator<Item = (String, String)> + use<'_> {
    map(value).map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
}
