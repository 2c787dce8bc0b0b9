//! The Node object of this machine, and its allocatable resources.

use serde_json::{Value, json};

use nodlet_core::facts::{Amounts, NodeInfo};
use nodlet_core::spec::container::{DEVICE_DOMAIN, HUGE_PAGES};
use nodlet_registry::objects::{Key, Objects};

use super::Config;
use super::machine::{Machine, first_line};

/// Publishes the Node object. It is not renewed: that the agent answers shows that the node is ready.
pub(super) fn publish(config: &Config, machine: &Machine, objects: &Objects) {
    objects.put(Key::new("nodes", "", &config.node_name), node(config, machine));
}

/// The facts of the node that decide which pods it admits.
pub(super) fn info(config: &Config, machine: &Machine) -> NodeInfo {
    let own = [
        ("kubernetes.io/hostname", config.node_name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture()),
    ];
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let (all, reserved) = (&machine.capacity, &config.reserved);
    let left = |all: i64, reserved: i64| all.saturating_sub(reserved).max(0);
    let memory = reserved.memory.max(kept_memory(all.memory));
    let huge_pages = machine.cgroups.huge_pages().amounts();
    NodeInfo {
        name: config.node_name.clone(),
        labels: own.into_iter().chain(config.node_labels.clone()).collect(),
        taints: config.taints.clone(),
        allocatable: Amounts {
            pods: all.pods,
            cpu: left(all.cpu, reserved.cpu),
            // Huge pages are a part of the memory.
            memory: left(all.memory, memory.saturating_add(huge_pages.values().sum())),
            ephemeral_storage: left(all.ephemeral_storage, reserved.ephemeral_storage),
        },
        devices: machine.devices.borrow().capacity(),
        huge_pages: huge_pages.clone(),
        allowed_sysctls: config.allowed_sysctls.clone(),
    }
}

/// Limits the memory of all pods together, so that a shortage ends a container, and not SSH, the agent or another
/// process of the machine.
pub(super) fn keep_memory(config: &Config, machine: &Machine) {
    let (all, allocatable) = (machine.capacity.memory, info(config, machine).allocatable.memory);
    // Where more is reserved than there is, pods that request nothing run all the same.
    let limit = if allocatable > 0 { allocatable } else { all.saturating_sub(kept_memory(all)) };
    if let Ok(limit @ 1..) = u64::try_from(limit)
        && let Err(error) = machine.cgroups.limit_memory(limit)
    {
        log::warn!(
            "pods may take all memory of this machine: failed to {}",
            nodlet_host::error::chain(&error)
        );
    }
}

/// Messages about resources of which more is reserved than there is (`validateNodeAllocatable`). A kubelet ends then;
/// this node runs pods that request none of these resources.
pub(super) fn reserved_in_vain(config: &Config, machine: &Machine) -> Vec<String> {
    let (all, reserved) = (&machine.capacity, &config.reserved);
    let resources = [
        ("cpu", all.cpu, reserved.cpu, "m"),
        ("memory", all.memory, reserved.memory, ""),
        ("ephemeral-storage", all.ephemeral_storage, reserved.ephemeral_storage, ""),
    ];
    let too_much = resources.into_iter().filter(|(_, all, reserved, _)| reserved > all);
    let messages = too_much.map(|(name, all, reserved, unit)| {
        format!(
            "Resource {name:?} has a reservation of {reserved}{unit} but capacity of {all}{unit}. Expected \
             capacity >= reservation."
        )
    });
    messages.collect()
}

fn node(config: &Config, machine: &Machine) -> Value {
    let name = &config.node_name;
    let anchor = machine.anchor();
    let [began, now] =
        [machine.began, nodlet_host::clock::instant()].map(|at| anchor.timestamp(at).to_string());
    let since = anchor.timestamp(machine.shutdown.since.get()).to_string();
    let (ready, reason, message) = match machine.shutdown.goes_down.get() {
        false => ("True", "KubeletReady", "nodlet answers"),
        true => ("False", "KubeletNotReady", "node is shutting down"),
    };
    let info = info(config, machine);
    let architecture = architecture();
    let mut addresses = vec![json!({ "type": "Hostname", "address": name })];
    if let Some(ip) = machine.network.borrow().host_ip() {
        addresses.insert(0, json!({ "type": "InternalIP", "address": ip.to_string() }));
    }
    let version = env!("CARGO_PKG_VERSION");
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "creationTimestamp": began,
            "labels": info.labels,
        },
        "spec": if info.taints.is_empty() { json!({}) } else { json!({ "taints": info.taints }) },
        "status": {
            "capacity": render(&machine.capacity, &info),
            "allocatable": render(&info.allocatable, &info),
            "addresses": addresses,
            "conditions": [{
                "type": "Ready",
                "status": ready,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": since,
            }],
            "nodeInfo": {
                "architecture": architecture,
                "operatingSystem": "linux",
                "kernelVersion": first_line("/proc/sys/kernel/osrelease"),
                "bootID": first_line("/proc/sys/kernel/random/boot_id"),
                "machineID": machine.installed.machine_id,
                "systemUUID": "",
                "osImage": machine.installed.os_image,
                "containerRuntimeVersion": format!("nodlet://{version}"),
                "kubeletVersion": format!("{}+nodlet-{version}", nodlet_kube::schema::KUBERNETES),
                "kubeProxyVersion": "",
            },
        },
    })
}

/// The part of `all` memory that is reserved at least: for the kernel, the agent, the supervisors and a login. The
/// kubelet's counterpart is its eviction threshold of 100 MiB (`evictionHard`).
fn kept_memory(all: i64) -> i64 {
    const MIB: i64 = 1024 * 1024;
    (all / 8).clamp(8 * MIB, 64 * MIB).min(all / 2)
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Renders amounts as in a Node's status.
fn render(amounts: &Amounts, info: &NodeInfo) -> Value {
    let bytes = |bytes: i64| match bytes % 1024 {
        0 => format!("{}Ki", bytes / 1024),
        _ => bytes.to_string(),
    };
    let cpu = match amounts.cpu % 1000 {
        0 => (amounts.cpu / 1000).to_string(),
        _ => format!("{}m", amounts.cpu),
    };
    let mut all = json!({
        "cpu": cpu,
        "memory": bytes(amounts.memory),
        "ephemeral-storage": bytes(amounts.ephemeral_storage),
        "pods": amounts.pods.to_string(),
    });
    for (name, users) in &info.devices {
        all[format!("{DEVICE_DOMAIN}{name}")] = users.to_string().into();
    }
    for (size, amount) in &info.huge_pages {
        all[format!("{HUGE_PAGES}{size}")] = bytes(*amount).into();
    }
    all
}
