//! Collects the facts of this machine for its Node object. The registry decides what the node offers
//! (`registry/src/this_node.rs`).

use nodlet_core::facts::NodeInfo;
use nodlet_host::error::chain;
use nodlet_registry::objects::Key;
use nodlet_registry::{NodeFacts, NodeState, Transitions, memory_of_all_pods, node_info, node_object};

use super::machine::{Machine, first_line};
use super::{Config, Shell, handover_files};

/// Publishes the Node object. It is not renewed: that the agent answers shows that the node is ready.
pub(super) fn publish(shell: &Shell) {
    let (config, machine) = (&shell.config, &shell.machine);
    let boot_id = first_line("/proc/sys/kernel/random/boot_id");
    let anchor = machine.anchor();
    let time = |at| anchor.timestamp(at).to_string();
    let mut transitions = machine.transitions.borrow_mut();
    let before = transitions.clone();
    let transitions = transitions.get_or_insert_with(|| {
        Transitions::of_boot(&boot_id, handover_files::read_transitions(&shell.paths))
    });
    let goes_down = machine.shutdown.goes_down.get();
    let state = NodeState {
        began: time(machine.began),
        now: time(nodlet_host::clock::instant()),
        since: time(transitions.since("Ready", !goes_down, machine.shutdown.since.get())),
        goes_down,
        ip: machine.network.borrow().host_ip().map(|ip| ip.to_string()),
        kernel: first_line("/proc/sys/kernel/osrelease"),
        boot_id,
        machine_id: machine.installed.machine_id.clone(),
        system_uuid: machine.installed.system_uuid.clone(),
        os_image: machine.installed.os_image.clone(),
        version: crate::built_from::version(env!("CARGO_PKG_VERSION")),
        conditions: {
            let pressure = machine.pressure.borrow();
            pressure
                .conditions()
                .map(|(condition, is_true, since)| {
                    (condition, is_true, time(transitions.since(condition.name(), is_true, since)))
                })
                .collect()
        },
        broken_disk: machine.records_disk.borrow().broken().map(|(why, since)| (why.into(), time(since))),
        images: machine.images.borrow().clone(),
    };
    let object = node_object(&facts(config, machine), state);
    shell.publication.objects.put(Key::new("nodes", "", &config.node_name), object);
    if before.as_ref() != Some(transitions)
        && let Err(error) = handover_files::write_transitions(&shell.paths, transitions)
    {
        log::warn!("the times of the Node's conditions begin anew with the next agent: {error}");
    }
}

/// The facts of the node that decide which pods it admits.
pub(super) fn info(config: &Config, machine: &Machine) -> NodeInfo {
    let mut info = node_info(&facts(config, machine));
    info.labels.extend(machine.cluster_labels.borrow().clone());
    info
}

/// The configuration of the node, and the resources of its machine.
pub(super) fn facts<'a>(config: &'a Config, machine: &'a Machine) -> NodeFacts<'a> {
    NodeFacts {
        name: &config.node_name,
        processor: std::env::consts::ARCH,
        labels: &config.node_labels,
        taints: &config.taints,
        allowed_sysctls: &config.allowed_sysctls,
        capacity: machine.capacity,
        reserved: config.reserved,
        huge_pages: machine.cgroups.huge_pages().amounts(),
        devices: machine.devices.borrow().capacity(),
        cpus: machine.cgroups.cpus().len(),
        allows_exclusive_cpus: config.allowed_annotations.allow_exclusive_cpus(),
        app_armor: machine.app_armor,
        limited_swap: config.limited_swap && machine.cgroups.limits_swap(),
        node_ports: machine.node_ports.borrow().clone(),
        pressure: machine.pressure.borrow().present(),
    }
}

/// Limits the memory of all pods together.
pub(super) fn keep_memory(config: &Config, machine: &Machine) {
    if let Some(limit) = memory_of_all_pods(&facts(config, machine))
        && let Err(error) = machine.cgroups.limit_memory(limit)
    {
        log::warn!("pods may take all memory of this machine: failed to {}", chain(&error));
    }
}
