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

/// `/metrics/cadvisor`: what dashboards read of cAdvisor's series.
pub(super) fn cadvisor(summary: &Value, milliseconds: i64) -> String {
    let mut text = String::new();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
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
        let mut line = |id: &str, names: [&str; 3], of: &Value| {
            let Some(value) = of[field].as_f64() else { return };
            let (value, more) = match part {
                "cpu" => (value / 1e9, "cpu=\"total\",".to_owned()),
                "network" => (value, format!("interface={},", of["name"])),
                _ => (value, String::new()),
            };
            let [namespace, pod, container] = names;
            let _ = writeln!(
                text,
                "container_{name}{{container=\"{container}\",{more}id=\"{id}\",image=\"\",name=\"\",\
                 namespace=\"{namespace}\",pod=\"{pod}\"}} {value} {milliseconds}"
            );
        };
        let node = &summary["node"];
        match part {
            "network" => list(&node[part]["interfaces"]).iter().for_each(|one| line("/", [""; 3], one)),
            _ => line("/", [""; 3], &node[part]),
        }
        for pod in list(&summary["pods"]) {
            let of = |field: &str| pod["podRef"][field].as_str().unwrap_or_default().to_owned();
            let (namespace, name, id) = (of("namespace"), of("name"), format!("/kubepods/pod{}", of("uid")));
            line(&id, [&namespace, &name, ""], &pod[part]);
            for container in list(&pod["containers"]) {
                let container_name = container["name"].as_str().unwrap_or_default();
                line(
                    &format!("{id}/{container_name}"),
                    [&namespace, &name, container_name],
                    &container[part],
                );
            }
        }
    }
    text
}

/// `/metrics/resource`: cpu and memory of the node, its pods and their containers.
pub(super) fn resource_metrics(summary: &Value, milliseconds: i64) -> String {
    let pods = || summary["pods"].as_array().into_iter().flatten();
    let mut text = String::new();
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
        let mut line = |labels: &str, of: &Value| {
            let value = match name {
                "cpu_usage_seconds_total" => of["cpu"]["usageCoreNanoSeconds"].as_f64().map(|cpu| cpu / 1e9),
                "memory_working_set_bytes" => of["memory"]["workingSetBytes"].as_f64(),
                _ => seconds(&of["startTime"]),
            };
            if let Some(value) = value {
                let _ = writeln!(text, "{scope}_{name}{labels} {value} {milliseconds}");
            }
        };
        if scope == "node" {
            line("", &summary["node"]);
            continue;
        }
        for pod in pods() {
            // Names in Kubernetes need no escapes.
            let text = |field: &str| pod["podRef"][field].as_str().unwrap_or_default();
            let (namespace, name) = (text("namespace"), text("name"));
            if scope == "pod" {
                line(&format!("{{namespace=\"{namespace}\",pod=\"{name}\"}}"), pod);
                continue;
            }
            for container in pod["containers"].as_array().into_iter().flatten() {
                let of = container["name"].as_str().unwrap_or_default();
                line(&format!("{{container=\"{of}\",namespace=\"{namespace}\",pod=\"{name}\"}}"), container);
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
