//! Liveness, readiness and startup probes.

use std::time::Duration;

/// The three probes of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum ProbeKind {
    /// `livenessProbe`.
    Liveness,
    /// `readinessProbe`.
    Readiness,
    /// `startupProbe`.
    Startup,
}

/// A probe, with defaults applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// `exec`, `httpGet`, `tcpSocket` or `grpc`.
    pub action: ProbeAction,
    /// `initialDelaySeconds`; 0 by default.
    pub initial_delay: Duration,
    /// `timeoutSeconds`; 1 s by default.
    pub timeout: Duration,
    /// `periodSeconds`; 10 s by default, never 0.
    pub period: Duration,
    /// `successThreshold`; 1 by default.
    pub success_threshold: u32,
    /// `failureThreshold`; 3 by default.
    pub failure_threshold: u32,
    /// `terminationGracePeriodSeconds` of the probe.
    pub termination_grace_period: Option<Duration>,
}

/// The action of a probe.
#[derive(Clone, Debug, PartialEq)]
pub enum ProbeAction {
    /// `exec.command`, not run in a shell.
    Exec(Vec<String>),
    /// `httpGet`.
    HttpGet {
        /// Whether `scheme` is `HTTPS`: TLS, which accepts any certificate.
        secure: bool,
        /// `host`; the pod's address if none was given.
        host: Option<String>,
        /// `port`, a number or the name of a port of the container.
        port: PortOrName,
        /// `path`, with its query; `/` by default.
        path: String,
        /// `httpHeaders`, in order.
        headers: Vec<(String, String)>,
    },
    /// `grpc`: a call of `grpc.health.v1.Health/Check` at the pod's address.
    Grpc {
        /// `port`.
        port: u16,
        /// `service`, whose health is checked; empty for the whole server.
        service: String,
    },
    /// `tcpSocket`.
    TcpSocket {
        /// `host`; the pod's address if none was given.
        host: Option<String>,
        /// `port`, a number or the name of a port of the container.
        port: PortOrName,
    },
}

/// A port as an `IntOrString`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortOrName {
    /// A number in 1..=65535.
    Port(u16),
    /// The name of one of the container's ports.
    Name(String),
}
