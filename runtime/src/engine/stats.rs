//! What the node and its pods use, in the form of the kubelet's summary (`stats/v1alpha1`).

use std::fs;
use std::rc::Rc;

use serde_json::{Map, Value, json};

use nodlet_host::cgroup::Usage;
use nodlet_registry::objects::Key;

use super::Shell;

/// The ticks of a second in /proc/stat (`USER_HZ`).
const TICKS: u64 = 100;

/// The summary. Other tasks run between two pods.
pub(super) async fn summary(shell: &Rc<Shell>) -> Value {
    let pods: Vec<_> = shell
        .pods
        .borrow()
        .values()
        .filter_map(|pod| Some((pod.wanted.clone(), pod.sandbox.clone()?)))
        .collect();
    let mut found = Vec::new();
    for (wanted, sandbox) in pods {
        smol::future::yield_now().await;
        let pod = &wanted.pod;
        let object = shell.publication.objects.get(&Key::new("pods", &pod.namespace, &pod.name));
        let object: Value =
            object.and_then(|object| serde_json::from_str(&object.json).ok()).unwrap_or_default();
        let status = &object["status"];
        let mut containers = Vec::new();
        for ((name, _), run) in sandbox.runs.borrow().iter() {
            let entries = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
            let mut entries = entries.iter().filter_map(|field| status[field].as_array()).flatten();
            let entry = entries.find(|entry| entry["name"] == **name).unwrap_or(&Value::Null);
            // The leaf of a run that has ended is no longer read.
            let Some(started) = entry["state"]["running"]["startedAt"].as_str() else { continue };
            let mut container = of_usage(run.leaf.usage());
            container["name"] = (**name).into();
            container["startTime"] = started.into();
            containers.push(container);
        }
        let mut entry = of_usage(sandbox.cgroup.usage());
        entry["podRef"] = json!({
            "name": &*pod.name, "namespace": &*pod.namespace, "uid": &*pod.uid.0,
        });
        entry["startTime"] = status["startTime"].clone();
        entry["containers"] = containers.into();
        found.push(entry);
    }
    let mut node = of_usage(of_node());
    node["nodeName"] = (*shell.config.node_name).into();
    node["startTime"] = shell.machine.timestamp(nodlet_core::time::Instant(0)).into();
    node["fs"] = filesystem(shell);
    node["runtime"] = json!({ "imageFs": node["fs"] });
    node["network"] = network();
    json!({ "node": node, "pods": found })
}

/// Cpu, memory and processes of a cgroup or the node.
fn of_usage(usage: Usage) -> Value {
    let time = nodlet_host::clock::timestamp().to_string();
    let mut all = Map::new();
    if let Some(cpu) = usage.cpu_us {
        all.insert("cpu".to_owned(), json!({ "time": time, "usageCoreNanoSeconds": cpu * 1000 }));
    }
    if let Some(memory) = usage.memory {
        all.insert("memory".to_owned(), json!({
            "time": time, "usageBytes": memory, "workingSetBytes": usage.working_set, "rssBytes": usage.anonymous,
        }));
    }
    if let Some(tasks) = usage.tasks {
        all.insert("process_stats".to_owned(), json!({ "process_count": tasks }));
    }
    all.into()
}

/// What everything on the machine uses.
fn of_node() -> Usage {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = stat.lines().next().unwrap_or_default().split_ascii_whitespace().skip(1);
    // user, nice, system, idle, iowait, irq, softirq, steal; the time of guests is that of users, too.
    let busy = ticks.take(8).zip(0..).filter(|(_, place)| !matches!(place, 3 | 4));
    let busy: u64 = busy.filter_map(|(ticks, _)| ticks.parse::<u64>().ok()).sum();
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let bytes = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line?.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
    };
    let memory = bytes("MemTotal").zip(bytes("MemFree")).map(|(total, free)| total.saturating_sub(free));
    Usage {
        cpu_us: Some(busy * (1_000_000 / TICKS)),
        memory,
        working_set: memory.map(|memory| memory.saturating_sub(bytes("Inactive(file)").unwrap_or(0))),
        anonymous: bytes("AnonPages"),
        tasks: None,
    }
}

/// The file system with the files of the agent.
fn filesystem(shell: &Shell) -> Value {
    let records = shell.paths.records();
    let found = records.ancestors().find_map(|directory| nix::sys::statvfs::statvfs(directory).ok());
    let Some(disk) = found else { return Value::Null };
    // On 32-bit boards these have 32 bits.
    #[allow(clippy::useless_conversion, reason = "on 64-bit machines they are the same")]
    let of = |blocks: libc::fsblkcnt_t| u64::from(blocks) * u64::from(disk.fragment_size());
    json!({
        "time": nodlet_host::clock::timestamp().to_string(),
        "availableBytes": of(disk.blocks_available()),
        "capacityBytes": of(disk.blocks()),
        "usedBytes": of(disk.blocks() - disk.blocks_free()),
        "inodesFree": disk.files_free(),
        "inodes": disk.files(),
        "inodesUsed": disk.files() - disk.files_free(),
    })
}

/// The interfaces of the machine.
fn network() -> Value {
    let text = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let interfaces = text.lines().filter_map(|line| {
        let (name, counts) = line.split_once(':')?;
        let name = name.trim();
        let counts: Vec<u64> =
            counts.split_ascii_whitespace().filter_map(|count| count.parse().ok()).collect();
        let at = |place: usize| counts.get(place);
        (name != "lo").then(|| {
            json!({
                "name": name, "rxBytes": at(0), "rxErrors": at(2), "txBytes": at(8), "txErrors": at(10),
            })
        })
    });
    json!({ "time": nodlet_host::clock::timestamp().to_string(), "interfaces": interfaces.collect::<Vec<_>>() })
}
