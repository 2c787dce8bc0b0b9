//! Converts a valid Pod from JSON to [`nodlet_core::spec`]. This module never rejects anything: errors were
//! reported before, and a value that is still wrong is read as its type's zero.

use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;

use super::validate::HUGE_PAGES_MEDIUM;
use crate::object::value::{flag, list, map, number, optional_number, text};
use nodlet_core::spec::container::{
    AppArmorProfile, ContainerPort, DEVICE_DOMAIN, EnvFrom, EnvSource, HUGE_PAGES, PullPolicy,
    SeccompProfile, SecurityContext,
};
use nodlet_core::spec::placement::{
    NodeSelectorOperator, NodeSelectorRequirement, NodeSelectorTerm, Placement, Toleration,
};
use nodlet_core::spec::pod::{DnsConfig, DnsPolicy, HostAlias, PodSecurityContext};
use nodlet_core::spec::probe::PortOrName;
use nodlet_core::spec::reference::{ConfigKind, ObjectReference, ResourceField};
use nodlet_core::spec::volume::{
    DownwardField, DownwardFile, HostPathType, KeyToPath, MountPropagation, Projection, ProjectionKind,
    ProjectionSource, VolumeDevice,
};
use nodlet_core::spec::{
    Container, EnvVar, Hook, Lifecycle, OwnRestart, Pod, PodSpec, Probe, ProbeAction, Quantity,
    ResourceRequirements, RestartAction, RestartPolicy, RestartRule, Uid, Volume, VolumeMount, VolumeSource,
};

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
        restart_policy: match text(spec, "restartPolicy") {
            "OnFailure" => RestartPolicy::OnFailure,
            "Never" => RestartPolicy::Never,
            _ => RestartPolicy::Always,
        },
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

fn volume(volume: &Value) -> Volume {
    let source = if let Some(host) = volume.get("hostPath") {
        VolumeSource::HostPath {
            path: text(host, "path").to_owned(),
            kind: HostPathType::named(text(host, "type")),
        }
    } else if let Some(claim) = volume.get("persistentVolumeClaim") {
        VolumeSource::Claim {
            claim: Some(text(claim, "claimName").into()),
            read_only: flag(claim, "readOnly"),
        }
    } else if let Some(image) = volume.get("image") {
        VolumeSource::Image {
            reference: text(image, "reference").to_owned(),
            pull_policy: pull_policy(text(image, "pullPolicy")),
        }
    } else if volume.get("ephemeral").is_some() {
        VolumeSource::Claim { claim: None, read_only: false }
    } else if let Some(projection) = projection(volume) {
        VolumeSource::Projected(projection)
    } else {
        let directory = &volume["emptyDir"];
        let medium = text(directory, "medium");
        // A limit of zero is no limit.
        let size_limit = quantity(&directory["sizeLimit"]).filter(|size| !size.is_zero());
        match medium.strip_prefix(HUGE_PAGES_MEDIUM) {
            Some(size) => {
                VolumeSource::HugePages { page_size: size.trim_start_matches('-').to_owned(), size_limit }
            }
            None => VolumeSource::EmptyDir { memory: medium == "Memory", size_limit },
        }
    };
    Volume { name: text(volume, "name").to_owned(), source }
}

fn projection(volume: &Value) -> Option<Projection> {
    let of = |kind, source: &Value, sources| Projection {
        kind,
        default_mode: mode(source, "defaultMode").unwrap_or_default(),
        sources,
    };
    if let Some(source) = volume.get("configMap") {
        let sources = vec![object_source(source, ConfigKind::ConfigMap, "name")];
        Some(of(ProjectionKind::ConfigMap, source, sources))
    } else if let Some(source) = volume.get("secret") {
        let sources = vec![object_source(source, ConfigKind::Secret, "secretName")];
        Some(of(ProjectionKind::Secret, source, sources))
    } else if let Some(source) = volume.get("downwardAPI") {
        Some(of(ProjectionKind::DownwardApi, source, vec![downward_source(source)]))
    } else {
        let source = volume.get("projected")?;
        let sources = list(source, "sources").iter().filter_map(|source| {
            if let Some(object) = source.get("configMap") {
                Some(object_source(object, ConfigKind::ConfigMap, "name"))
            } else if let Some(object) = source.get("secret") {
                Some(object_source(object, ConfigKind::Secret, "name"))
            } else {
                source.get("downwardAPI").map(downward_source)
            }
        });
        Some(of(ProjectionKind::Projected, source, sources.collect()))
    }
}

fn object_source(source: &Value, kind: ConfigKind, name: &str) -> ProjectionSource {
    let item = |item: &Value| KeyToPath {
        key: text(item, "key").to_owned(),
        path: text(item, "path").to_owned(),
        mode: mode(item, "mode"),
    };
    ProjectionSource::Object {
        object: ObjectReference {
            kind,
            name: text(source, name).to_owned(),
            optional: flag(source, "optional"),
        },
        items: list(source, "items").iter().map(item).collect(),
    }
}

fn downward_source(source: &Value) -> ProjectionSource {
    let file = |file: &Value| DownwardFile {
        path: text(file, "path").to_owned(),
        mode: mode(file, "mode"),
        field: match file.get("resourceFieldRef") {
            Some(field) => DownwardField::Resource(resource_field(field)),
            None => DownwardField::Field(text(&file["fieldRef"], "fieldPath").to_owned()),
        },
    };
    ProjectionSource::DownwardApi(list(source, "items").iter().map(file).collect())
}

fn mode(owner: &Value, field: &str) -> Option<u32> {
    optional_number(owner, field).and_then(|mode| u32::try_from(mode).ok())
}

fn container(container: &Value) -> Container {
    Container {
        name: text(container, "name").to_owned(),
        image: text(container, "image").to_owned(),
        image_pull_policy: pull_policy(text(container, "imagePullPolicy")),
        sidecar: text(container, "restartPolicy") == "Always",
        target: filled(container, "targetContainerName"),
        restart: container.get("restartPolicy").map(|_| Rc::new(own_restart(container))),
        command: filled_list(container, "command"),
        args: filled_list(container, "args"),
        working_dir: filled(container, "workingDir"),
        env: list(container, "env").iter().map(variable).collect(),
        env_from: list(container, "envFrom").iter().filter_map(env_from).collect(),
        ports: list(container, "ports").iter().map(port).collect(),
        resources: ResourceRequirements {
            cpu_resize_restarts: resize_restarts(container, "cpu"),
            memory_resize_restarts: resize_restarts(container, "memory"),
            devices: named(&container["resources"]["limits"], DEVICE_DOMAIN),
            ..resources(&container["resources"])
        },
        volume_devices: list(container, "volumeDevices")
            .iter()
            .map(|device| VolumeDevice {
                name: text(device, "name").to_owned(),
                path: text(device, "devicePath").to_owned(),
            })
            .collect(),
        volume_mounts: list(container, "volumeMounts").iter().map(mount).collect(),
        liveness_probe: container.get("livenessProbe").map(probe),
        readiness_probe: container.get("readinessProbe").map(probe),
        startup_probe: container.get("startupProbe").map(probe),
        lifecycle: lifecycle(&container["lifecycle"]),
        termination_message_path: text(container, "terminationMessagePath").to_owned(),
        termination_message_fallback_to_logs: text(container, "terminationMessagePolicy")
            == "FallbackToLogsOnError",
        stdin: container["stdin"] == true,
        stdin_once: container["stdinOnce"] == true,
        tty: container["tty"] == true,
        security_context: security_context(&container["securityContext"]),
    }
}

fn resources(resources: &Value) -> ResourceRequirements {
    let amount = |list: &str, name: &str| resources.get(list).and_then(|list| quantity(&list[name]));
    ResourceRequirements {
        cpu_limit: amount("limits", "cpu"),
        cpu_request: amount("requests", "cpu"),
        memory_limit: amount("limits", "memory"),
        memory_request: amount("requests", "memory"),
        ephemeral_storage_request: amount("requests", "ephemeral-storage"),
        ephemeral_storage_limit: amount("limits", "ephemeral-storage"),
        huge_pages: named(&resources["limits"], HUGE_PAGES),
        ..ResourceRequirements::default()
    }
}

/// Whether `resizePolicy` of a container requires a restart for a change of the resource.
fn resize_restarts(container: &Value, resource: &str) -> bool {
    list(container, "resizePolicy").iter().any(|policy| {
        text(policy, "resourceName") == resource && text(policy, "restartPolicy") == "RestartContainer"
    })
}

fn overhead(overhead: &Value) -> ResourceRequirements {
    let amount = |name: &str| quantity(&overhead[name]);
    ResourceRequirements {
        cpu_limit: amount("cpu"),
        cpu_request: amount("cpu"),
        memory_limit: amount("memory"),
        memory_request: amount("memory"),
        ephemeral_storage_request: amount("ephemeral-storage"),
        ephemeral_storage_limit: amount("ephemeral-storage"),
        ..ResourceRequirements::default()
    }
}

/// The amounts in `limits` of resources with this prefix, by the rest of their names; requests are equal.
fn named(limits: &Value, prefix: &str) -> Vec<(Box<str>, i64)> {
    let limits = limits.as_object().into_iter().flatten();
    let devices = limits.filter_map(|(name, amount)| {
        let name = name.strip_prefix(prefix)?;
        Some((name.into(), quantity(amount)?.value()))
    });
    devices.filter(|(_, amount)| *amount > 0).collect()
}

fn variable(variable: &Value) -> EnvVar {
    let from = &variable["valueFrom"];
    let key = |source: &Value, kind| EnvSource::Key {
        object: object_reference(source, kind),
        key: text(source, "key").to_owned(),
    };
    let value = if let Some(field) = from.get("fieldRef") {
        // Clients before 1.0 sent `spec.host`.
        let path = text(field, "fieldPath");
        EnvSource::Field(if path == "spec.host" { "spec.nodeName" } else { path }.to_owned())
    } else if let Some(resource) = from.get("resourceFieldRef") {
        EnvSource::Resource(resource_field(resource))
    } else if let Some(file) = from.get("fileKeyRef") {
        EnvSource::File {
            volume: text(file, "volumeName").to_owned(),
            path: text(file, "path").to_owned(),
            key: text(file, "key").to_owned(),
            optional: flag(file, "optional"),
        }
    } else if let Some(source) = from.get("configMapKeyRef") {
        key(source, ConfigKind::ConfigMap)
    } else if let Some(source) = from.get("secretKeyRef") {
        key(source, ConfigKind::Secret)
    } else {
        EnvSource::Value(text(variable, "value").to_owned())
    };
    EnvVar { name: text(variable, "name").to_owned(), value }
}

fn env_from(source: &Value) -> Option<EnvFrom> {
    let object = match (source.get("configMapRef"), source.get("secretRef")) {
        (Some(of), _) => object_reference(of, ConfigKind::ConfigMap),
        (None, Some(of)) => object_reference(of, ConfigKind::Secret),
        (None, None) => return None,
    };
    Some(EnvFrom { prefix: text(source, "prefix").to_owned(), object })
}

fn object_reference(source: &Value, kind: ConfigKind) -> ObjectReference {
    ObjectReference { kind, name: text(source, "name").to_owned(), optional: flag(source, "optional") }
}

fn resource_field(field: &Value) -> ResourceField {
    ResourceField {
        container: filled(field, "containerName"),
        resource: text(field, "resource").to_owned(),
        divisor: quantity(&field["divisor"]).filter(|divisor| !divisor.is_zero()),
    }
}

fn port(port: &Value) -> ContainerPort {
    ContainerPort {
        name: filled(port, "name"),
        container_port: u16::try_from(number(port, "containerPort")).unwrap_or_default(),
        protocol: text(port, "protocol").to_owned(),
        host_port: u16::try_from(number(port, "hostPort")).unwrap_or_default(),
        host_ip: text(port, "hostIP").to_owned(),
    }
}

fn mount(mount: &Value) -> VolumeMount {
    VolumeMount {
        name: text(mount, "name").to_owned(),
        mount_path: text(mount, "mountPath").to_owned(),
        sub_path: filled(mount, "subPath"),
        sub_path_expr: filled(mount, "subPathExpr"),
        read_only: flag(mount, "readOnly"),
        recursive_read_only: matches!(text(mount, "recursiveReadOnly"), "Enabled" | "IfPossible"),
        propagation: match text(mount, "mountPropagation") {
            "HostToContainer" => MountPropagation::HostToContainer,
            "Bidirectional" => MountPropagation::Bidirectional,
            _ => MountPropagation::None,
        },
    }
}

fn pull_policy(policy: &str) -> PullPolicy {
    match policy {
        "Always" => PullPolicy::Always,
        "Never" => PullPolicy::Never,
        _ => PullPolicy::IfNotPresent,
    }
}

fn own_restart(container: &Value) -> OwnRestart {
    let rule = |rule: &Value| {
        let codes = &rule["exitCodes"];
        RestartRule {
            action: match text(rule, "action") {
                "RestartAllContainers" => RestartAction::RestartAllContainers,
                _ => RestartAction::Restart,
            },
            within: text(codes, "operator") == "In",
            codes: list(codes, "values")
                .iter()
                .filter_map(|code| code.as_i64().and_then(|code| i32::try_from(code).ok()))
                .collect(),
        }
    };
    OwnRestart {
        policy: restart_policy(container),
        rules: list(container, "restartPolicyRules").iter().map(rule).collect(),
    }
}

fn restart_policy(owner: &Value) -> RestartPolicy {
    match text(owner, "restartPolicy") {
        "OnFailure" => RestartPolicy::OnFailure,
        "Never" => RestartPolicy::Never,
        _ => RestartPolicy::Always,
    }
}

fn lifecycle(lifecycle: &Value) -> Lifecycle {
    let hook = |name: &str| {
        lifecycle.get(name).map(|hook| match hook.get("sleep") {
            Some(sleep) => Hook::Sleeps(secs(number(sleep, "seconds"))),
            None => Hook::Asks(action(hook)),
        })
    };
    Lifecycle {
        post_start: hook("postStart"),
        pre_stop: hook("preStop"),
        stop_signal: filled(lifecycle, "stopSignal"),
    }
}

/// The action of a probe or hook.
fn action(probe: &Value) -> ProbeAction {
    if let Some(exec) = probe.get("exec") {
        ProbeAction::Exec(strings(exec, "command"))
    } else if let Some(http) = probe.get("httpGet") {
        ProbeAction::HttpGet {
            secure: text(http, "scheme") == "HTTPS",
            host: filled(http, "host"),
            port: port_or_name(http),
            path: text(http, "path").to_owned(),
            headers: list(http, "httpHeaders")
                .iter()
                .map(|header| (text(header, "name").to_owned(), text(header, "value").to_owned()))
                .collect(),
        }
    } else if let Some(grpc) = probe.get("grpc") {
        ProbeAction::Grpc {
            port: u16::try_from(number(grpc, "port")).unwrap_or_default(),
            service: text(grpc, "service").to_owned(),
        }
    } else {
        let tcp = &probe["tcpSocket"];
        ProbeAction::TcpSocket { host: filled(tcp, "host"), port: port_or_name(tcp) }
    }
}

fn probe(probe: &Value) -> Probe {
    let count = |field: &str| u32::try_from(number(probe, field)).unwrap_or(1).max(1);
    Probe {
        action: action(probe),
        initial_delay: secs(number(probe, "initialDelaySeconds")),
        timeout: secs(number(probe, "timeoutSeconds")),
        period: secs(number(probe, "periodSeconds")),
        success_threshold: count("successThreshold"),
        failure_threshold: count("failureThreshold"),
        termination_grace_period: optional_number(probe, "terminationGracePeriodSeconds").map(secs),
    }
}

fn port_or_name(owner: &Value) -> PortOrName {
    match owner["port"].as_str() {
        Some(name) => PortOrName::Name(name.to_owned()),
        None => PortOrName::Port(u16::try_from(number(owner, "port")).unwrap_or_default()),
    }
}

fn security_context(context: &Value) -> SecurityContext {
    let capabilities = &context["capabilities"];
    SecurityContext {
        run_as_user: id(context, "runAsUser"),
        run_as_group: id(context, "runAsGroup"),
        run_as_non_root: context["runAsNonRoot"].as_bool(),
        privileged: flag(context, "privileged"),
        read_only_root_filesystem: flag(context, "readOnlyRootFilesystem"),
        no_new_privileges: context["allowPrivilegeEscalation"].as_bool() == Some(false),
        capabilities_add: self::capabilities(capabilities, "add"),
        capabilities_drop: self::capabilities(capabilities, "drop"),
        seccomp: seccomp_profile(context),
        app_armor: app_armor_profile(context),
        unmasked: text(context, "procMount") == "Unmasked",
    }
}

/// Capability names in upper case and without `CAP_`: runtimes accept any spelling.
fn capabilities(owner: &Value, field: &str) -> Vec<String> {
    strings(owner, field)
        .into_iter()
        .map(|name| {
            let name = name.to_ascii_uppercase();
            name.strip_prefix("CAP_").map_or_else(|| name.clone(), str::to_owned)
        })
        .collect()
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

/// A list that exists and is not empty.
fn filled_list(owner: &Value, field: &str) -> Option<Vec<String>> {
    Some(strings(owner, field)).filter(|list| !list.is_empty())
}

fn strings(owner: &Value, field: &str) -> Vec<String> {
    list(owner, field).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn strings_by_key(value: &Value) -> impl Iterator<Item = (String, String)> + use<'_> {
    map(value).map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
}
