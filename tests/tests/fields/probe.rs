//! The fields of probes and of lifecycle hooks.

use super::Observation::{Log, Status};
use super::{Row, elsewhere, row};

const READY: &str = r#""ready":true"#;
const UNREADY: &str = "Readiness probe failed";
const KILLED: &str = "failed liveness probe";

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    row("Lifecycle.postStart", Status, "containers: [{name: app, [[wait /tmp/go]], lifecycle: {@}}]",
        &[("", r#""phase":"Running""#), ("postStart: {((touch /tmp/go))}", r#""phase":"Succeeded""#)]),
    // In these rows, the sidecar is stopped when the other container has ended.
    row("Lifecycle.preStop", Log("side"),
        "initContainers: [{name: side, restartPolicy: Always, [[touch /v/up then wait /tmp/asked then print asked then touch /tmp/told then sleep]], \
           volumeMounts: [{name: v, mountPath: /v}], lifecycle: {@}}], \
         containers: [{name: app, [[wait /v/up]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, emptyDir: {}}]",
        &[("", "stopping\n"), ("preStop: {((touch /tmp/asked then wait /tmp/told))}", "asked\nstopping\n")]),
    row("Lifecycle.stopSignal", Status,
        "initContainers: [{name: side, restartPolicy: Always, \
           [[on-term 7 then ignore-term then on-signal SIGUSR1 then touch /v/up then sleep]], \
           volumeMounts: [{name: v, mountPath: /v}], @}], \
         containers: [{name: app, [[wait /v/up]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, emptyDir: {}}], os: {name: linux}, terminationGracePeriodSeconds: 3",
        &[("", r#""exitCode":137"#), ("lifecycle: {stopSignal: SIGUSR1}", r#""exitCode":7"#)]),
    row("LifecycleHandler.exec", Status, "containers: [{name: app, [[wait /tmp/go]], @}]",
        &[("", r#""phase":"Running""#), ("lifecycle: {postStart: {((touch /tmp/go))}}", r#""phase":"Succeeded""#)]),
    row("LifecycleHandler.httpGet", Log("side"),
        "initContainers: [{name: side, restartPolicy: Always, [[serve 8097 /srv]], \
           startupProbe: {tcpSocket: {port: 8097}, periodSeconds: 1, failureThreshold: 600}, @}], \
         containers: [{name: app, [[exit 0]]}]",
        &[("", "stopping\n"), ("lifecycle: {preStop: {httpGet: {path: /hook, port: 8097}}}", "GET /hook")]),
    row("LifecycleHandler.sleep", Log("side"),
        "initContainers: [{name: side, restartPolicy: Always, [[wait /v/done then sleep 5 then print late then sleep]], \
           volumeMounts: [{name: v, mountPath: /v}], @}], \
         containers: [{name: app, [[touch /v/done]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, emptyDir: {}}]",
        &[("", "stopping\n"), ("lifecycle: {preStop: {sleep: {seconds: 7}}}", "late\nstopping\n")]),
    row("LifecycleHandler.tcpSocket", Status, "containers: [{name: app, [[sleep]], @}]",
        &[("", READY), ("lifecycle: {postStart: {tcpSocket: {port: 8097}}}", "FailedPostStartHook")]),
    row("SleepAction.seconds", Log("side"),
        "initContainers: [{name: side, restartPolicy: Always, [[wait /v/done then sleep 5 then print late then sleep]], \
           volumeMounts: [{name: v, mountPath: /v}], lifecycle: {preStop: {sleep: {seconds: @}}}}], \
         containers: [{name: app, [[touch /v/done]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, emptyDir: {}}]",
        &[("0", "stopping\n"), ("7", "late\nstopping\n")]),

    row("ExecAction.command", Status,
        "containers: [{name: app, [[sleep]], readinessProbe: {exec: {command: [/bin/demo, @]}, periodSeconds: 1}}]",
        &[("id", READY), ("sick", "demo sick: no such step")]),
    row("HTTPGetAction.host", Status,
        "containers: [{name: app, [[serve 8097 /srv]], readinessProbe: {httpGet: {path: /, port: 8097, @}, periodSeconds: 1}}]",
        &[("", READY), ("host: 127.0.0.1", r#"Readiness probe failed: Get "http://127.0.0.1:8097/""#)]),
    row("HTTPGetAction.httpHeaders", Log("app"),
        "containers: [{name: app, [[serve 8097 /srv]], readinessProbe: {httpGet: {path: /headers, port: 8097, @}, periodSeconds: 1}}]",
        &[("", "GET /headers"), ("httpHeaders: [{name: X-Test, value: one}]", "X-Test: one\r\n")]),
    row("HTTPGetAction.path", Log("app"),
        "containers: [{name: app, [[serve 8097 /srv]], readinessProbe: {httpGet: {path: /@, port: 8097}, periodSeconds: 1}}]",
        &[("one", "GET /one"), ("two", "GET /two")]),
    row("HTTPGetAction.port", Status,
        "containers: [{name: app, [[serve 8097 /srv]], ports: [{name: web, containerPort: 8097}], \
         readinessProbe: {httpGet: {path: /, port: @}, periodSeconds: 1}}]",
        &[("8098", UNREADY), ("8097", READY), ("web", READY)]),
    row("HTTPGetAction.scheme", Status,
        "containers: [{name: app, [[serve 8097 /srv]], readinessProbe: {httpGet: {path: /, port: 8097, scheme: @}, periodSeconds: 1}}]",
        &[("HTTP", READY), ("HTTPS", r#"Readiness probe failed: Get "https://"#)]),
    row("HTTPHeader.name", Log("app"),
        "containers: [{name: app, [[serve 8097 /srv]], \
         readinessProbe: {httpGet: {path: /headers, port: 8097, httpHeaders: [{name: @, value: one}]}, periodSeconds: 1}}]",
        &[("X-Test", "X-Test: one\r\n"), ("X-Other", "X-Other: one\r\n")]),
    row("HTTPHeader.value", Log("app"),
        "containers: [{name: app, [[serve 8097 /srv]], \
         readinessProbe: {httpGet: {path: /headers, port: 8097, httpHeaders: [{name: X-Test, value: @}]}, periodSeconds: 1}}]",
        &[("one", "X-Test: one\r\n"), ("two", "X-Test: two\r\n")]),
    row("TCPSocketAction.host", Status,
        "containers: [{name: app, [[serve 8097 /srv]], readinessProbe: {tcpSocket: {port: 8097, @}, periodSeconds: 1}}]",
        &[("", READY), ("host: 127.0.0.1", "Readiness probe failed: dial tcp 127.0.0.1:8097")]),
    row("TCPSocketAction.port", Status,
        "containers: [{name: app, [[serve 8097 /srv]], ports: [{name: web, containerPort: 8097}], \
         readinessProbe: {tcpSocket: {port: @}, periodSeconds: 1}}]",
        &[("8098", UNREADY), ("8097", READY), ("web", READY)]),

    row("Probe.exec", Status, "containers: [{name: app, [[serve 8097 /srv]], readinessProbe: {@, periodSeconds: 1}}]",
        &[("tcpSocket: {port: 8097}", READY), ("((eprint sick then exit 1))", "Readiness probe failed: sick")]).with(&["Probe.tcpSocket"]),
    row("Probe.failureThreshold", Status,
        "containers: [{name: app, [[sleep]], livenessProbe: {((exit 1)), periodSeconds: 1, failureThreshold: @}}]",
        &[("600", "Liveness probe failed"), ("1", KILLED)]),
    row("Probe.grpc", Status, "containers: [{name: app, [[sleep]], readinessProbe: {@, periodSeconds: 1}}]",
        &[("((exit 0))", READY), ("grpc: {port: 8097}", "failed to connect service")]).with(&["Probe.exec"]),
    row("Probe.httpGet", Status, "containers: [{name: app, [[sleep]], readinessProbe: {@, periodSeconds: 1}}]",
        &[("((exit 0))", READY), ("httpGet: {port: 8097}", r#"Readiness probe failed: Get "http"#)]).with(&["Probe.exec"]),
    row("Probe.initialDelaySeconds", Status,
        "containers: [{name: app, [[sleep]], livenessProbe: {((exit 1)), periodSeconds: 1, failureThreshold: 1, @}}]",
        &[("initialDelaySeconds: 3600", r#""started":true"#), ("initialDelaySeconds: 1", KILLED)]),
    row("Probe.periodSeconds", Status,
        "containers: [{name: app, [[sleep]], livenessProbe: {((exit 1)), failureThreshold: 2, periodSeconds: @}}]",
        &[("3600", "Liveness probe failed"), ("1", KILLED)]),
    row("Probe.successThreshold", Status,
        "containers: [{name: app, [[serve 8097 /srv]], readinessProbe: {((touch /tmp/probed)), periodSeconds: 1, successThreshold: @}}]",
        &[("600", r#""started":true"#), ("1", READY)]),
    row("Probe.tcpSocket", Status, "containers: [{name: app, [[sleep]], readinessProbe: {@, periodSeconds: 1}}]",
        &[("((exit 0))", READY), ("tcpSocket: {port: 8097}", "Readiness probe failed: dial tcp")]).with(&["Probe.exec"]),
    row("Probe.terminationGracePeriodSeconds", Status,
        "containers: [{name: app, [[ignore-term then touch /tmp/up then sleep]], \
         startupProbe: {((stat /tmp/up)), periodSeconds: 1, failureThreshold: 600}, \
         livenessProbe: {((exit 1)), periodSeconds: 1, failureThreshold: 1, @}}], terminationGracePeriodSeconds: 3600",
        &[("", KILLED), ("terminationGracePeriodSeconds: 1", r#""exitCode":137"#)]),
    row("Probe.timeoutSeconds", Status,
        "containers: [{name: app, [[sleep]], readinessProbe: {((sleep 3)), periodSeconds: 1, timeoutSeconds: @}}]",
        &[("60", READY), ("1", "timed out")]),
    row("GRPCAction.port", Log("app"),
        "containers: [{name: app, [[serve 8097 /srv]], readinessProbe: {grpc: {port: @}, periodSeconds: 1}}]",
        &[("8098", "serving /srv"), ("8097", "PRI * HTTP/2.0")]),
    elsewhere("GRPCAction.service", "agnhost::a_grpc_probe_follows_what_the_health_service_says",
        "only a server that implements the health service reads it"),
];
