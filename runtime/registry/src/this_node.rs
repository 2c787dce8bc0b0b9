//! The Node object of this machine: what it offers to pods, how it is shown, and the texts of its events. The facts come
//! from the engine (`engine/this_node.rs`).

use std::borrow::Cow;

use serde_json::{Value, json};

use nodlet_core::facts::{Amounts, NodeInfo, NodePort};
use nodlet_core::pressure::{NodeCondition, StarvedResource};
use nodlet_core::sorted::SortedMap;
use nodlet_core::spec::Taint;
use nodlet_core::spec::container::{DEVICE_DOMAIN, EXCLUSIVE_CPUS, HUGE_PAGES};

/// The configuration of the node, and the resources of its machine.
#[derive(Debug)]
pub struct NodeFacts<'a> {
    /// The name of the node.
    pub name: &'a str,
    /// The processor, as Rust names it.
    pub processor: &'a str,
    /// `--node-labels`.
    pub labels: &'a SortedMap<String, String>,
    /// `--register-with-taints`.
    pub taints: &'a [Taint],
    /// `--allowed-unsafe-sysctls`.
    pub allowed_sysctls: &'a [String],
    /// The resources of the machine.
    pub capacity: Amounts,
    /// `--kube-reserved` and `--system-reserved` together.
    pub reserved: Amounts,
    /// The bytes in huge pages, by the size of the pages.
    pub huge_pages: &'a SortedMap<String, i64>,
    /// How many containers may use each device at a time.
    pub devices: SortedMap<String, i64>,
    /// How many cpus containers may be limited to; 0 if the kernel cannot limit them.
    pub cpus: usize,
    /// Whether the operator allows containers to have cpus for themselves.
    pub allows_exclusive_cpus: bool,
    /// Whether the kernel has AppArmor.
    pub app_armor: bool,
    /// Whether containers of burstable pods may swap.
    pub limited_swap: bool,
    /// The ports of the board that Services have.
    pub node_ports: Vec<NodePort>,
    /// The conditions about pressure whose status is true.
    pub pressure: Vec<NodeCondition>,
}

/// The present state of the node, for its object.
#[derive(Debug)]
pub struct NodeState {
    /// `metadata.creationTimestamp`: when this agent started.
    pub began: String,
    /// The present time.
    pub now: String,
    /// Since when the node has been ready, or has been shutting down.
    pub since: String,
    /// Whether the machine is shutting down.
    pub goes_down: bool,
    /// The address of the machine.
    pub ip: Option<String>,
    /// The version of the kernel.
    pub kernel: String,
    /// The ID of this boot.
    pub boot_id: String,
    /// The ID of the machine.
    pub machine_id: String,
    /// The UUID of the hardware, or the ID of the machine if it has none.
    pub system_uuid: String,
    /// The name of the operating system.
    pub os_image: String,
    /// The version of nodlet.
    pub version: String,
    /// The conditions about pressure: the status of each, and since when.
    pub conditions: Vec<(NodeCondition, bool, String)>,
    /// Why the node cannot write to its file system, and since when. The condition is that of the node problem detector.
    pub broken_disk: Option<(String, String)>,
    /// `status.images`, as [`node_images`] returns them.
    pub images: Value,
}

/// An image on the node.
#[derive(Debug)]
pub struct NodeImage {
    /// The ID of the image.
    pub id: String,
    /// Names with digests, and then names with tags.
    pub names: Vec<String>,
    /// The size on the node in bytes.
    pub size: u64,
}

/// The number of images in the status of a Node (`nodeStatusMaxImages`).
const MAX_IMAGES: usize = 50;

/// The number of names of each of these images.
const MAX_NAMES: usize = 5;

/// The images in the status of the Node: the largest ones, by their size.
pub fn node_images(mut images: Vec<NodeImage>) -> Value {
    images.sort_unstable_by(|one, other| (other.size, &other.id).cmp(&(one.size, &one.id)));
    images.truncate(MAX_IMAGES);
    let of = |mut image: NodeImage| {
        image.names.truncate(MAX_NAMES);
        json!({ "names": image.names, "sizeBytes": image.size })
    };
    images.into_iter().map(of).collect()
}

/// The facts of the node that decide which pods it admits.
pub fn node_info(facts: &NodeFacts<'_>) -> NodeInfo {
    let own = [
        ("kubernetes.io/hostname", facts.name),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture(facts.processor)),
    ];
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let (all, reserved) = (&facts.capacity, &facts.reserved);
    let left = |all: i64, reserved: i64| all.saturating_sub(reserved).max(0);
    let memory = reserved.memory.max(kept_memory(all.memory));
    NodeInfo {
        name: facts.name.to_owned(),
        labels: own.into_iter().chain(facts.labels.clone()).collect(),
        taints: facts.taints.to_owned(),
        allocatable: Amounts {
            pods: all.pods,
            cpu: left(all.cpu, reserved.cpu),
            // Huge pages are a part of the memory.
            memory: left(all.memory, memory.saturating_add(facts.huge_pages.values().sum())),
            ephemeral_storage: left(all.ephemeral_storage, reserved.ephemeral_storage),
        },
        devices: facts.devices.clone(),
        huge_pages: facts.huge_pages.clone(),
        exclusive_cpus: exclusive_cpus(facts.cpus),
        allows_exclusive_cpus: facts.allows_exclusive_cpus,
        allowed_sysctls: facts.allowed_sysctls.to_owned(),
        app_armor: facts.app_armor,
        limited_swap: facts.limited_swap,
        node_ports: facts.node_ports.clone(),
        pressure: facts.pressure.clone(),
    }
}

/// How many cpus containers may have for themselves: all but one.
fn exclusive_cpus(cpus: usize) -> SortedMap<String, i64> {
    let count = i64::try_from(cpus.saturating_sub(1)).unwrap_or(i64::MAX);
    (count > 0).then(|| (EXCLUSIVE_CPUS.to_owned(), count)).into_iter().collect()
}

/// The memory limit of all pods together in bytes, if they have one, so that a shortage ends a container, and not SSH, the
/// agent or another process of the machine.
pub fn memory_of_all_pods(facts: &NodeFacts<'_>) -> Option<u64> {
    let (all, allocatable) = (facts.capacity.memory, node_info(facts).allocatable.memory);
    // Where more is reserved than there is, pods that request nothing run all the same.
    let limit = if allocatable > 0 { allocatable } else { all.saturating_sub(kept_memory(all)) };
    u64::try_from(limit).ok().filter(|limit| *limit > 0)
}

/// Messages about resources of which more is reserved than there is (`validateNodeAllocatable`). A kubelet ends then;
/// this node runs pods that request none of these resources.
pub fn excessive_reservations(facts: &NodeFacts<'_>) -> Vec<String> {
    let (all, reserved) = (&facts.capacity, &facts.reserved);
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

/// The Node object.
pub fn node_object(facts: &NodeFacts<'_>, state: NodeState) -> Value {
    let (ready, reason, message) = if state.goes_down {
        ("False", "KubeletNotReady", "node is shutting down")
    } else {
        ("True", "KubeletReady", "nodlet answers")
    };
    let info = node_info(facts);
    let mut addresses = vec![json!({ "type": "Hostname", "address": facts.name })];
    if let Some(ip) = &state.ip {
        addresses.insert(0, json!({ "type": "InternalIP", "address": ip }));
    }
    let version = state.version;
    let condition = |kind: &str, status: &str, reason: &str, message: &str, since: &str| {
        json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": state.now,
            "lastTransitionTime": since,
        })
    };
    let pressure = state.conditions.iter().map(|(kind, is_true, since)| {
        let [reason, message, _] = kind.texts(*is_true);
        condition(kind.name(), if *is_true { "True" } else { "False" }, reason, message, since)
    });
    let ready = [condition("Ready", ready, reason, message, &state.since)];
    let broken = state
        .broken_disk
        .iter()
        .map(|(why, since)| condition("ReadonlyFilesystem", "True", "FilesystemIsReadOnly", why, since));
    let conditions: Vec<Value> = pressure.chain(broken).chain(ready).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": facts.name,
            "uid": if state.machine_id.is_empty() { state.boot_id.clone() } else { uid(&state.machine_id) },
            "creationTimestamp": state.began,
            "labels": info.labels,
        },
        "spec": if info.taints.is_empty() { json!({}) } else { json!({ "taints": info.taints }) },
        "status": {
            "capacity": render(&facts.capacity, &info),
            "allocatable": render(&info.allocatable, &info),
            "addresses": addresses,
            "conditions": conditions,
            "images": state.images,
            "nodeInfo": {
                "architecture": architecture(facts.processor),
                "operatingSystem": "linux",
                "kernelVersion": state.kernel,
                "bootID": state.boot_id,
                "machineID": state.machine_id,
                "systemUUID": state.system_uuid,
                "osImage": state.os_image,
                "containerRuntimeVersion": format!("nodlet://{version}"),
                "kubeletVersion": format!("{}+nodlet-{version}", nodlet_kube::schema::KUBERNETES),
                "kubeProxyVersion": "",
            },
        },
    })
}

/// The subject of an event of the node.
#[derive(Clone, Copy, Debug)]
pub enum NodeEvent<'a> {
    /// The agent starts.
    Starting,
    /// The machine is shutting down.
    Shutdown,
    /// A shutdown of the machine was cancelled.
    ShutdownCancelled,
    /// A file of devices is wrong, with the message.
    InvalidDeviceFile(&'a str),
    /// Another program changed nodlet's table of nftables; and why the table could not be restored, if so.
    FirewallTable(Result<(), &'a str>),
    /// A condition of this node has changed, with the reason of the event.
    StatusChanged(&'a str, &'static str),
    /// The node has too little of a resource, and reclaims it.
    ThresholdMet(StarvedResource),
    /// A warning about the machine: reason and message.
    Machine(&'a str, &'a str),
}

impl<'a> NodeEvent<'a> {
    /// Whether the event is a warning, its reason and its message.
    pub(crate) fn text(self) -> (bool, &'a str, Cow<'a, str>) {
        let foreign_change = "another program changed the nftables table of nodlet";
        match self {
            NodeEvent::Starting => (false, "Starting", "Starting kubelet.".into()),
            NodeEvent::Shutdown => (false, "Shutdown", "Shutdown manager detected shutdown event".into()),
            NodeEvent::ShutdownCancelled => {
                (false, "Shutdown", "Shutdown manager detected shutdown cancellation".into())
            }
            NodeEvent::InvalidDeviceFile(message) => (true, "InvalidDeviceFile", message.into()),
            NodeEvent::FirewallTable(Ok(())) => {
                (true, "FirewallTableRestored", format!("{foreign_change}; it is restored").into())
            }
            NodeEvent::FirewallTable(Err(why)) => {
                (true, "FirewallTableLost", format!("{foreign_change}: failed to {why}").into())
            }
            NodeEvent::StatusChanged(node, reason) => {
                (false, reason, format!("Node {node} status is now: {reason}").into())
            }
            NodeEvent::ThresholdMet(resource) => {
                (true, "EvictionThresholdMet", format!("Attempting to reclaim {}", resource.name()).into())
            }
            NodeEvent::Machine(reason, message) => (true, reason, message.into()),
        }
    }
}

/// The part of `all` memory that is reserved at least: for the kernel, the agent, the supervisors and a login. The
/// kubelet's counterpart is its eviction threshold of 100 MiB (`evictionHard`).
fn kept_memory(all: i64) -> i64 {
    const MIB: i64 = 1024 * 1024;
    (all / 8).clamp(8 * MIB, 64 * MIB).min(all / 2)
}

/// The architecture of a processor, as Go names it.
pub fn architecture(processor: &str) -> &str {
    match processor {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The UID of the Node: the identity of the machine, in the form of a UUID. A machine without one has that of its boot:
/// kubectl shows events of a Node without UID twice.
fn uid(machine: &str) -> String {
    let digits = machine.char_indices().flat_map(|(index, digit)| {
        matches!(index, 8 | 12 | 16 | 20).then_some('-').into_iter().chain([digit])
    });
    digits.collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1024 * 1024;

    struct Settings {
        labels: SortedMap<String, String>,
        taints: Vec<Taint>,
        huge_pages: SortedMap<String, i64>,
    }

    /// A machine with this memory, of which this much is reserved and this much is in huge pages.
    fn with_facts<T>(memory: [i64; 3], check: impl FnOnce(&NodeFacts<'_>) -> T) -> T {
        let [all, reserved, huge] = memory;
        let key = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let settings = Settings {
            labels: [key("site", "north"), key("kubernetes.io/os", "other")].into_iter().collect(),
            taints: Vec::new(),
            huge_pages: [("2Mi".to_owned(), huge)].into_iter().filter(|(_, huge)| *huge > 0).collect(),
        };
        check(&NodeFacts {
            name: "board",
            processor: "aarch64",
            labels: &settings.labels,
            taints: &settings.taints,
            allowed_sysctls: &[],
            capacity: Amounts { pods: 110, cpu: 4000, memory: all, ephemeral_storage: 1025 },
            reserved: Amounts { pods: 0, cpu: 250, memory: reserved, ephemeral_storage: 1 },
            huge_pages: &settings.huge_pages,
            devices: [("gps".to_owned(), 2)].into_iter().collect(),
            cpus: 4,
            allows_exclusive_cpus: false,
            app_armor: false,
            limited_swap: false,
            node_ports: Vec::new(),
            pressure: vec![NodeCondition::DiskPressure],
        })
    }

    #[test]
    fn pods_get_what_is_neither_reserved_nor_kept_for_the_machine_nor_in_huge_pages() {
        for (memory, allocatable, of_all_pods) in [
            ([1024 * MIB, 0, 0], 960 * MIB, Some(960 * MIB)),
            ([1024 * MIB, 63 * MIB, 0], 960 * MIB, Some(960 * MIB)),
            ([1024 * MIB, 100 * MIB, 24 * MIB], 900 * MIB, Some(900 * MIB)),
            ([256 * MIB, 0, 0], 224 * MIB, Some(224 * MIB)),
            ([32 * MIB, 0, 0], 24 * MIB, Some(24 * MIB)),
            ([8 * MIB, 0, 0], 4 * MIB, Some(4 * MIB)),
            // More is reserved than there is: pods that request nothing run.
            ([64 * MIB, 65 * MIB, 0], 0, Some(56 * MIB)),
            ([0, 0, 0], 0, None),
        ] {
            let (found, limit) = with_facts(memory, |facts| (node_info(facts), memory_of_all_pods(facts)));
            assert_eq!(found.allocatable.memory, allocatable, "{memory:?}");
            assert_eq!(limit, of_all_pods.map(|limit| limit as u64), "{memory:?}");
            assert_eq!((found.allocatable.cpu, found.allocatable.ephemeral_storage), (3750, 1024));
            assert_eq!(found.allocatable.pods, 110);
        }
        let info = with_facts([MIB; 3], node_info);
        let label = |key: &str| info.labels.get(key).map(String::as_str);
        assert_eq!((label("kubernetes.io/arch"), label("site")), (Some("arm64"), Some("north")));
        assert_eq!(label("kubernetes.io/hostname"), Some("board"));
        assert_eq!((info.devices.get("gps"), info.huge_pages.get("2Mi")), (Some(&2), Some(&MIB)));
    }

    #[test]
    fn a_reservation_above_the_capacity_is_named_in_the_words_of_the_kubelet() {
        assert_eq!(with_facts([MIB, MIB, 0], excessive_reservations), [""; 0]);
        assert_eq!(
            with_facts([MIB, MIB + 1, 0], excessive_reservations),
            [
                "Resource \"memory\" has a reservation of 1048577 but capacity of 1048576. Expected capacity >= \
              reservation."
            ]
        );
    }

    #[test]
    fn the_object_shows_what_the_node_offers_and_whether_it_goes_down() {
        let state = |goes_down: bool, ip: Option<&str>| NodeState {
            began: "b".into(),
            now: "n".into(),
            since: "s".into(),
            goes_down,
            ip: ip.map(str::to_owned),
            kernel: "6.6".into(),
            boot_id: "1".into(),
            machine_id: "0123456789abcdef0123456789abcdef".into(),
            system_uuid: "uuid".into(),
            os_image: "Linux".into(),
            version: "0.1.0".into(),
            conditions: vec![
                (NodeCondition::MemoryPressure, false, "m".into()),
                (NodeCondition::DiskPressure, true, "d".into()),
            ],
            broken_disk: None,
            images: node_images(Vec::new()),
        };
        let anonymous = NodeState { machine_id: String::new(), ..state(false, None) };
        let object = with_facts([1024 * MIB, 0, 2 * MIB], |facts| node_object(facts, anonymous));
        assert_eq!(object["metadata"]["uid"], "1", "the boot is what identifies it");
        let of = |goes_down, ip| {
            with_facts([1024 * MIB, 0, 2 * MIB], |facts| node_object(facts, state(goes_down, ip)))
        };
        let object = of(false, Some("10.0.0.2"));
        let expected = json!({"cpu": "3750m", "memory": "981" , "ephemeral-storage": "1Ki", "pods": "110",
            "nodlet.dev/gps": "2", "hugepages-2Mi": "2048Ki"});
        let mut found = object["status"]["allocatable"].clone();
        assert_eq!(found["memory"], "980992Ki");
        found["memory"] = "981".into();
        assert_eq!(found, expected);
        let capacity = &object["status"]["capacity"];
        assert_eq!((&capacity["cpu"], &capacity["ephemeral-storage"]), (&"4".into(), &"1025".into()));
        assert_eq!(object["spec"], json!({}));
        assert_eq!(object["status"]["nodeInfo"]["systemUUID"], "uuid");
        assert_eq!(object["metadata"]["uid"], "01234567-89ab-cdef-0123-456789abcdef");
        assert_eq!(
            object["status"]["addresses"],
            json!([{"type": "InternalIP", "address": "10.0.0.2"}, {"type": "Hostname", "address": "board"}])
        );
        let conditions = object["status"]["conditions"].as_array().expect("a list");
        let shown = |one: &Value| {
            let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
            ["type", "status", "reason", "lastTransitionTime"].map(text).join(" ")
        };
        assert_eq!(
            conditions.iter().map(shown).collect::<Vec<_>>(),
            [
                "MemoryPressure False KubeletHasSufficientMemory m",
                "DiskPressure True KubeletHasDiskPressure d",
                "Ready True KubeletReady s",
            ]
        );
        let ready = |object: &Value| object["status"]["conditions"][2]["status"].clone();
        let down = of(true, None);
        assert_eq!((ready(&object), ready(&down)), ("True".into(), "False".into()));
        assert_eq!(down["status"]["addresses"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn the_largest_images_are_shown_with_at_most_five_names() {
        let image = |number: u64, names: usize| NodeImage {
            id: format!("{number:02}"),
            names: (0..names).map(|name| format!("i{number}:{name}")).collect(),
            size: number / 2,
        };
        let shown = node_images((0..60).map(|number| image(number, 7)).collect());
        let shown = shown.as_array().expect("a list");
        assert_eq!(shown.len(), 50);
        assert_eq!(
            shown[0],
            json!({ "names": ["i59:0", "i59:1", "i59:2", "i59:3", "i59:4"], "sizeBytes": 29 })
        );
        // The order of images of one size does not depend on that of the store.
        assert_eq!(json!([shown[1]["names"][0], shown[49]["names"][0]]), json!(["i58:0", "i10:0"]));
    }

    #[test]
    fn events_of_the_node_have_their_texts() {
        let text = |event: NodeEvent<'_>| {
            let (warning, reason, message) = event.text();
            format!("{} {reason}: {message}", if warning { "Warning" } else { "Normal" })
        };
        for (event, expected) in [
            (NodeEvent::Starting, "Normal Starting: Starting kubelet."),
            (NodeEvent::Shutdown, "Normal Shutdown: Shutdown manager detected shutdown event"),
            (
                NodeEvent::ShutdownCancelled,
                "Normal Shutdown: Shutdown manager detected shutdown cancellation",
            ),
            (NodeEvent::InvalidDeviceFile("no"), "Warning InvalidDeviceFile: no"),
            (
                NodeEvent::FirewallTable(Ok(())),
                "Warning FirewallTableRestored: another program changed the nftables table of nodlet; it is restored",
            ),
            (
                NodeEvent::FirewallTable(Err("list tables")),
                "Warning FirewallTableLost: another program changed the nftables table of nodlet: failed to list tables",
            ),
            (
                NodeEvent::StatusChanged("board", "NodeHasDiskPressure"),
                "Normal NodeHasDiskPressure: Node board status is now: NodeHasDiskPressure",
            ),
            (
                NodeEvent::ThresholdMet(StarvedResource::EphemeralStorage),
                "Warning EvictionThresholdMet: Attempting to reclaim ephemeral-storage",
            ),
            (NodeEvent::Machine("Old", "it is old"), "Warning Old: it is old"),
        ] {
            assert_eq!(text(event), expected);
        }
    }
}
