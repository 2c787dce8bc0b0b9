//! Converts containers: resources, variables, ports, mounts, probes, hooks and the security context.

use std::rc::Rc;

use serde_json::{Value, json};

use super::{
    app_armor_profile, filled, id, pull_policy, quantity, restart_policy, seccomp_profile, secs, strings,
};
use crate::object::value::{flag, list, number, optional_number, text};
use nodlet_core::spec::container::{
    ContainerPort, DEVICE_DOMAIN, EnvFrom, EnvSource, HUGE_PAGES, SecurityContext,
};
use nodlet_core::spec::probe::PortOrName;
use nodlet_core::spec::reference::{ConfigKind, ObjectReference, ResourceField};
use nodlet_core::spec::volume::{MountPropagation, VolumeDevice};
use nodlet_core::spec::{
    Container, EnvVar, Hook, Lifecycle, OwnRestart, Probe, ProbeAction, ResourceRequirements, RestartAction,
    RestartRule, VolumeMount,
};

pub(super) fn container(container: &Value) -> Container {
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

pub(super) fn resources(resources: &Value) -> ResourceRequirements {
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

pub(super) fn overhead(overhead: &Value) -> ResourceRequirements {
    resources(&json!({ "limits": overhead, "requests": overhead }))
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

pub(super) fn object_reference(source: &Value, kind: ConfigKind) -> ObjectReference {
    ObjectReference { kind, name: text(source, "name").to_owned(), optional: flag(source, "optional") }
}

pub(super) fn resource_field(field: &Value) -> ResourceField {
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

/// A list that exists and is not empty.
fn filled_list(owner: &Value, field: &str) -> Option<Vec<String>> {
    Some(strings(owner, field)).filter(|list| !list.is_empty())
}
