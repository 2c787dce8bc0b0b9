//! Resource usage of the node and its pods, in the form of the kubelet's summary (`stats/v1alpha1`).

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use serde_json::{Map, Value, json};

use nodlet_core::facts::{PodIndex, ProbeResult};
use nodlet_core::spec::{ContainerIndex, ProbeKind};
use nodlet_host::cgroup::Usage;
use nodlet_registry::objects::Key;

use super::Shell;
use super::pods::Pods;

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
        if let Some(ip) = sandbox.ip {
            entry["network"] = network_of_pod(&shell.machine.network.borrow().host_link(&pod.uid, ip));
        }
        entry["containers"] = containers.into();
        found.push(entry);
    }
    let mut node = of_usage(of_node());
    node["nodeName"] = (*shell.config.node_name).into();
    node["startTime"] = shell.machine.timestamp(nodlet_core::time::Instant(0)).into();
    let records = shell.paths.records();
    node["fs"] = shell.stores.storage.run(move || filesystem(&records)).await;
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

/// Resource usage of the whole machine.
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

/// The file system with the files of the agent, of which `records` is one. Waits for the disk.
fn filesystem(records: &Path) -> Value {
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
        let (name, [received, bad, sent, unsent]) = counts(line).filter(|(name, _)| *name != "lo")?;
        Some(json!({ "name": name, "rxBytes": received, "rxErrors": bad, "txBytes": sent, "txErrors": unsent }))
    });
    json!({ "time": nodlet_host::clock::timestamp().to_string(), "interfaces": interfaces.collect::<Vec<_>>() })
}

/// The interface of a pod, by the host's end of its link, which receives what the pod sends.
fn network_of_pod(link: &str) -> Value {
    let text = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let found = text.lines().filter_map(counts).find(|(name, _)| *name == link);
    let Some((_, [sent, unsent, received, bad])) = found else { return Value::Null };
    json!({
        "time": nodlet_host::clock::timestamp().to_string(),
        "name": "eth0", "rxBytes": received, "rxErrors": bad, "txBytes": sent, "txErrors": unsent,
    })
}

/// The name of an interface in a line of /proc/net/dev, and its received bytes, errors, sent bytes and errors.
fn counts(line: &str) -> Option<(&str, [u64; 4])> {
    let (name, counts) = line.split_once(':')?;
    let mut of = [0; 4];
    for (count, value) in [0, 2, 8, 10].into_iter().zip(&mut of) {
        *value = counts.split_ascii_whitespace().nth(count)?.parse().ok()?;
    }
    Some((name.trim(), of))
}

/// How often each probe succeeded, failed and could not be carried out. Counted only on a board that has joined a
/// cluster.
#[derive(Default)]
pub(super) struct ProbeCounts(Vec<((PodIndex, ContainerIndex, ProbeKind), [u64; 3])>);

impl ProbeCounts {
    /// Counts the result of a probe.
    pub(super) fn add(
        &mut self,
        pod: PodIndex,
        container: ContainerIndex,
        kind: ProbeKind,
        result: &ProbeResult,
    ) {
        let key = (pod, container, kind);
        let place = self.0.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            self.0.push((key, [0; 3]));
            self.0.len() - 1
        });
        let result = match result {
            ProbeResult::Success | ProbeResult::Warning(_) => 0,
            ProbeResult::Failure(_) => 1,
            ProbeResult::Error(_) => 2,
        };
        self.0[place].1[result] += 1;
    }

    /// Forgets a pod.
    pub(super) fn remove(&mut self, pod: PodIndex) {
        self.0.retain(|((of, ..), _)| *of != pod);
    }

    /// `/metrics/probes`.
    pub(super) fn metrics(&self, pods: &Pods) -> String {
        let mut text = "# TYPE prober_probe_total counter\n".to_owned();
        for ((pod, container, kind), counts) in &self.0 {
            let Some(wanted) = pods.wanted(*pod) else { continue };
            let pod = &wanted.pod;
            let kind = match kind {
                ProbeKind::Liveness => "Liveness",
                ProbeKind::Readiness => "Readiness",
                ProbeKind::Startup => "Startup",
            };
            for (result, count) in ["successful", "failed", "unknown"].iter().zip(counts) {
                if *count > 0 {
                    let _ = writeln!(
                        text,
                        "prober_probe_total{{container=\"{}\",namespace=\"{}\",pod=\"{}\",pod_uid=\"{}\",\
                         probe_type=\"{kind}\",result=\"{result}\"}} {count}",
                        pod.spec.container(*container).name,
                        pod.namespace,
                        pod.name,
                        pod.uid.0
                    );
                }
            }
        }
        text
    }
}
