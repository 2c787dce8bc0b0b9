//! Sample pods for tests.

use super::secs;
use crate::sorted::SortedMap;
use crate::spec::container::{PullPolicy, SecurityContext};
use crate::spec::pod::{DnsConfig, DnsPolicy, PodSecurityContext};
use crate::spec::*;

/// A pod `web` with one container `app`.
pub(crate) fn pod(restart_policy: RestartPolicy) -> Pod {
    Pod {
        name: "web".into(),
        namespace: "default".into(),
        uid: "u1".into(),
        generation: 1,
        labels: SortedMap::new(),
        annotations: SortedMap::new(),
        priority: 0,
        spec: PodSpec {
            containers: vec![container("app")],
            init_containers: Vec::new(),
            ephemeral_containers: Vec::new(),
            volumes: Vec::new(),
            restart_policy,
            termination_grace_period: secs(30),
            active_deadline: None,
            host_network: false,
            host_users: true,
            host_pid: false,
            host_ipc: false,
            share_process_namespace: false,
            hostname: None,
            hostname_override: None,
            hostname_as_fqdn: false,
            service_links: true,
            subdomain: None,
            host_aliases: Vec::new(),
            dns_policy: DnsPolicy::default(),
            dns_config: DnsConfig::default(),
            security_context: PodSecurityContext::default(),
            image_pull_secrets: Vec::new(),
            readiness_gates: Vec::new(),
            scheduling_gates: Vec::new(),
            priority_class_name: String::new(),
            service_account_name: "default".into(),
            resources: None,
            overhead: None,
            has_runtime_class: false,
            placement: Placement::default(),
        },
    }
}

impl Pod {
    /// Changes the uid.
    pub(crate) fn uid(mut self, uid: &str) -> Self {
        self.uid = uid.into();
        self
    }

    /// Changes the name.
    pub(crate) fn named(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// Replaces the containers.
    pub(crate) fn with(mut self, containers: impl IntoIterator<Item = Container>) -> Self {
        self.spec.containers = containers.into_iter().collect();
        self
    }

    /// Replaces the init containers.
    pub(crate) fn init(mut self, containers: impl IntoIterator<Item = Container>) -> Self {
        self.spec.init_containers = containers.into_iter().collect();
        self
    }

    /// Replaces the ephemeral containers.
    pub(crate) fn debugged(mut self, containers: impl IntoIterator<Item = Container>) -> Self {
        self.spec.ephemeral_containers = containers.into_iter().collect();
        self.generation += self.spec.ephemeral_containers.len() as u64;
        self
    }
}

/// A container with default values.
pub(crate) fn container(name: &str) -> Container {
    Container {
        name: name.into(),
        image: "app:1".into(),
        image_pull_policy: PullPolicy::IfNotPresent,
        sidecar: false,
        target: None,
        restart: None,
        command: None,
        args: None,
        working_dir: None,
        env_from: Vec::new(),
        env: Vec::new(),
        ports: Vec::new(),
        resources: ResourceRequirements::default(),
        volume_devices: Vec::new(),
        volume_mounts: Vec::new(),
        liveness_probe: None,
        readiness_probe: None,
        startup_probe: None,
        lifecycle: Lifecycle::default(),
        termination_message_path: "/dev/termination-log".into(),
        termination_message_fallback_to_logs: false,
        stdin: false,
        stdin_once: false,
        tty: false,
        security_context: SecurityContext::default(),
    }
}

/// A sidecar: an init container with `restartPolicy: Always`.
pub(crate) fn sidecar(name: &str) -> Container {
    Container { sidecar: true, ..container(name) }
}

/// An exec probe every ten seconds; the third failure in a row counts.
pub(crate) fn exec_probe() -> Probe {
    Probe {
        action: ProbeAction::Exec(vec!["true".into()]),
        initial_delay: secs(0),
        timeout: secs(1),
        period: secs(10),
        success_threshold: 1,
        failure_threshold: 3,
        termination_grace_period: None,
    }
}
