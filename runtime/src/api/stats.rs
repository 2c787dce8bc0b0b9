//! Resource usage of the node and its pods, for `kubectl top` and Prometheus: the kubelet's summary and its metrics.

use std::fmt::Write;

use serde_json::Value;

use super::{Api, Request, Status, write};

/// The summary (`stats/v1alpha1`).
pub(super) async fn summary(api: &Api) -> Result<Value, Status> {
    write::ask(api, |reply| Request::Stats { reply }).await
}

/// `/metrics/probes`.
pub(super) async fn probes(api: &Api) -> Result<String, Status> {
    write::ask(api, |reply| Request::ProbeMetrics { reply }).await
}

/// The usage of the node, of a pod, or of a container.
struct Usage<'a> {
    scope: &'static str,
    /// The UID of the pod.
    uid: &'a str,
    /// The names of namespace, pod and container; empty if there is none. Names in Kubernetes need no escapes.
    names: [&'a str; 3],
    usage: &'a Value,
}

/// All usages in a summary.
fn usages(summary: &Value) -> Vec<Usage<'_>> {
    let mut all = vec![Usage { scope: "node", uid: "", names: [""; 3], usage: &summary["node"] }];
    for pod in summary["pods"].as_array().into_iter().flatten() {
        let of = |field: &str| pod["podRef"][field].as_str().unwrap_or_default();
        let (uid, namespace, name) = (of("uid"), of("namespace"), of("name"));
        all.push(Usage { scope: "pod", uid, names: [namespace, name, ""], usage: pod });
        for usage in pod["containers"].as_array().into_iter().flatten() {
            let names = [namespace, name, usage["name"].as_str().unwrap_or_default()];
            all.push(Usage { scope: "container", uid, names, usage });
        }
    }
    all
}

/// `/metrics/cadvisor`: what dashboards read of cAdvisor's series.
pub(super) fn cadvisor(summary: &Value, milliseconds: i64) -> String {
    let mut text = String::new();
    let usages = usages(summary);
    for (name, kind, part, field) in [
        ("cpu_usage_seconds_total", "counter", "cpu", "usageCoreNanoSeconds"),
        ("memory_working_set_bytes", "gauge", "memory", "workingSetBytes"),
        ("memory_usage_bytes", "gauge", "memory", "usageBytes"),
        ("memory_rss", "gauge", "memory", "rssBytes"),
        ("network_receive_bytes_total", "counter", "network", "rxBytes"),
        ("network_receive_errors_total", "counter", "network", "rxErrors"),
        ("network_transmit_bytes_total", "counter", "network", "txBytes"),
        ("network_transmit_errors_total", "counter", "network", "txErrors"),
    ] {
        let _ = writeln!(text, "# TYPE container_{name} {kind}");
        for Usage { scope, uid, names: [namespace, pod, container], usage } in &usages {
            let id = match *scope {
                "node" => "/".to_owned(),
                "pod" => format!("/kubepods/pod{uid}"),
                _ => format!("/kubepods/pod{uid}/{container}"),
            };
            // A node may have several interfaces, a pod has one.
            let one = std::slice::from_ref(&usage[part]);
            for of in usage[part]["interfaces"].as_array().map_or(one, Vec::as_slice) {
                let Some(value) = of[field].as_f64() else { continue };
                let (value, more) = match part {
                    "cpu" => (value / 1e9, "cpu=\"total\",".to_owned()),
                    "network" => (value, format!("interface={},", of["name"])),
                    _ => (value, String::new()),
                };
                let _ = writeln!(
                    text,
                    "container_{name}{{container=\"{container}\",{more}id=\"{id}\",image=\"\",name=\"\",\
                     namespace=\"{namespace}\",pod=\"{pod}\"}} {value} {milliseconds}"
                );
            }
        }
    }
    text
}

/// `/metrics/resource`: cpu and memory of the node, its pods and their containers.
pub(super) fn resource_metrics(summary: &Value, milliseconds: i64) -> String {
    let mut text = String::new();
    let usages = usages(summary);
    for (scope, name, kind) in [
        ("container", "cpu_usage_seconds_total", "counter"),
        ("container", "memory_working_set_bytes", "gauge"),
        ("container", "start_time_seconds", "gauge"),
        ("node", "cpu_usage_seconds_total", "counter"),
        ("node", "memory_working_set_bytes", "gauge"),
        ("pod", "cpu_usage_seconds_total", "counter"),
        ("pod", "memory_working_set_bytes", "gauge"),
    ] {
        let _ = writeln!(text, "# TYPE {scope}_{name} {kind}");
        for Usage { names: [namespace, pod, container], usage, .. } in
            usages.iter().filter(|usage| usage.scope == scope)
        {
            let labels = match scope {
                "node" => String::new(),
                "pod" => format!("{{namespace=\"{namespace}\",pod=\"{pod}\"}}"),
                _ => format!("{{container=\"{container}\",namespace=\"{namespace}\",pod=\"{pod}\"}}"),
            };
            let value = match name {
                "cpu_usage_seconds_total" => {
                    usage["cpu"]["usageCoreNanoSeconds"].as_f64().map(|cpu| cpu / 1e9)
                }
                "memory_working_set_bytes" => usage["memory"]["workingSetBytes"].as_f64(),
                _ => seconds(&usage["startTime"]),
            };
            if let Some(value) = value {
                let _ = writeln!(text, "{scope}_{name}{labels} {value} {milliseconds}");
            }
        }
    }
    text.push_str("# TYPE resource_scrape_error gauge\nresource_scrape_error 0\n");
    text
}

/// `/metrics`: what runs on the node.
pub(super) fn metrics(summary: &Value) -> String {
    let pods = summary["pods"].as_array().map_or(&[][..], Vec::as_slice);
    let containers: usize = pods.iter().map(|pod| pod["containers"].as_array().map_or(0, Vec::len)).sum();
    format!(
        "# TYPE kubelet_node_name gauge\nkubelet_node_name{{node={}}} 1\n\
         # TYPE kubelet_running_containers gauge\nkubelet_running_containers{{container_state=\"running\"}} {containers}\n\
         # TYPE kubelet_running_pods gauge\nkubelet_running_pods {}\n",
        summary["node"]["nodeName"],
        pods.iter().filter(|pod| pod["containers"][0].is_object()).count(),
    )
}

/// Seconds since 1970.
fn seconds(time: &Value) -> Option<f64> {
    let time = nodlet_core::time::Timestamp::parse(time.as_str()?)?;
    Some(time.0.div_euclid(1_000_000_000) as f64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metrics_have_the_labels_that_metrics_server_reads() {
        let summary = json!({
            "node": { "nodeName": "board", "cpu": { "usageCoreNanoSeconds": 2_500_000_000u64 }, "memory": { "workingSetBytes": 7 },
                "network": { "interfaces": [{ "name": "end0", "txBytes": 13 }] } },
            "pods": [
                { "podRef": { "name": "web", "namespace": "default", "uid": "u1" }, "network": { "name": "eth0", "rxBytes": 11 }, "cpu": { "usageCoreNanoSeconds": 1 }, "containers": [
                    { "name": "app", "startTime": "1970-01-01T00:00:09Z", "cpu": { "usageCoreNanoSeconds": 5_000_000 }, "memory": { "workingSetBytes": 4096 } },
                ] },
                { "podRef": { "name": "new", "namespace": "default" }, "containers": [] },
            ],
        });
        let text = resource_metrics(&summary, 1234);
        for line in [
            "container_cpu_usage_seconds_total{container=\"app\",namespace=\"default\",pod=\"web\"} 0.005 1234",
            "container_memory_working_set_bytes{container=\"app\",namespace=\"default\",pod=\"web\"} 4096 1234",
            "container_start_time_seconds{container=\"app\",namespace=\"default\",pod=\"web\"} 9 1234",
            "node_cpu_usage_seconds_total 2.5 1234",
            "node_memory_working_set_bytes 7 1234",
            "pod_cpu_usage_seconds_total{namespace=\"default\",pod=\"web\"} 0.000000001 1234",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(!text.contains("new"), "{text}");
        let text = cadvisor(&summary, 1234);
        for line in [
            "container_cpu_usage_seconds_total{container=\"app\",cpu=\"total\",id=\"/kubepods/podu1/app\",image=\"\",name=\"\",namespace=\"default\",pod=\"web\"} 0.005 1234",
            "container_memory_working_set_bytes{container=\"app\",id=\"/kubepods/podu1/app\",image=\"\",name=\"\",namespace=\"default\",pod=\"web\"} 4096 1234",
            "container_memory_working_set_bytes{container=\"\",id=\"/\",image=\"\",name=\"\",namespace=\"\",pod=\"\"} 7 1234",
            "container_network_receive_bytes_total{container=\"\",interface=\"eth0\",id=\"/kubepods/podu1\",image=\"\",name=\"\",namespace=\"default\",pod=\"web\"} 11 1234",
            "container_network_transmit_bytes_total{container=\"\",interface=\"end0\",id=\"/\",image=\"\",name=\"\",namespace=\"\",pod=\"\"} 13 1234",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        let text = metrics(&summary);
        assert!(text.contains("kubelet_node_name{node=\"board\"} 1\n"), "{text}");
        assert!(text.contains("kubelet_running_pods 1\n") && text.contains("running\"} 1\n"), "{text}");
    }
}
