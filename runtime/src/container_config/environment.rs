//! The environment of a container, and `$(VAR)`.

use nodlet_rootfs::ImageConfig;

use crate::pod_files;
use crate::spec::container::EnvSource;
use crate::spec::{Container, Pod};

use super::Facts;

/// Where an image says nothing, as container runtimes have it.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables in the order in which they were set; a later one of a name wins.
pub(super) type Variables = Vec<(String, String)>;

fn get<'a>(variables: &'a Variables, name: &str) -> Option<&'a str> {
    variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

fn set(variables: &mut Variables, name: &str, value: String) {
    match variables.iter_mut().find(|(known, _)| known == name) {
        Some((_, old)) => *old = value,
        None => variables.push((name.to_owned(), value)),
    }
}

/// The whole environment: PATH and HOSTNAME, what the image says, what the container says.
pub(super) fn of(pod: &Pod, container: &Container, image: &ImageConfig, facts: &Facts<'_>) -> Vec<String> {
    let mut variables = vec![
        ("PATH".to_owned(), PATH.to_owned()),
        ("HOSTNAME".to_owned(), pod_files::hostname(pod, facts.host_name)),
    ];
    for pair in &image.env {
        if let Some((name, value)) = pair.split_once('=') {
            set(&mut variables, name, value.to_owned());
        }
    }
    for (name, value) in self::variables(pod, container, facts) {
        set(&mut variables, &name, value);
    }
    variables.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// `env` in order, each value expanded by those before it.
pub(super) fn variables(pod: &Pod, container: &Container, facts: &Facts<'_>) -> Variables {
    let mut variables = Variables::new();
    for variable in &container.env {
        let value = match &variable.value {
            EnvSource::Value(value) => expand(value, &variables),
            EnvSource::Field(path) => field(pod, path, facts),
        };
        set(&mut variables, &variable.name, value);
    }
    variables
}

/// The variables with plain values, as written: what a kubelet expands in the command of an exec probe.
pub(super) fn plain(container: &Container) -> Variables {
    let plain = container.env.iter().filter_map(|variable| match &variable.value {
        EnvSource::Value(value) => Some((variable.name.clone(), value.clone())),
        EnvSource::Field(_) => None,
    });
    plain.collect()
}

/// `valueFrom.fieldRef`: validation lets no other path through.
fn field(pod: &Pod, path: &str, facts: &Facts<'_>) -> String {
    let address = |ip: Option<std::net::Ipv4Addr>| ip.map(|ip| ip.to_string()).unwrap_or_default();
    match path {
        "metadata.name" => pod.name.to_string(),
        "metadata.namespace" => pod.namespace.to_string(),
        "metadata.uid" => pod.uid.to_string(),
        "spec.nodeName" => facts.node_name.to_owned(),
        "spec.serviceAccountName" => "default".to_owned(),
        "status.hostIP" | "status.hostIPs" => address(facts.host_ip),
        "status.podIP" | "status.podIPs" => address(facts.ip.or(facts.host_ip)),
        _ => {
            let key = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']");
            let label = key("metadata.labels['").and_then(|key| pod.labels.get(key));
            let annotation = key("metadata.annotations['").and_then(|key| pod.annotations.get(key));
            label.or(annotation).cloned().unwrap_or_default()
        }
    }
}

/// `$(NAME)` by its value, `$$` by `$`; what is unknown stays as it is written
/// (Kubernetes: `third_party/forked/golang/expansion`).
pub(super) fn expand(text: &str, variables: &Variables) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(reference) = after.strip_prefix('(') {
            match reference.split_once(')') {
                Some((name, tail)) => {
                    match get(variables, name) {
                        Some(value) => out.push_str(value),
                        None => out.push_str(&rest[at..at + name.len() + 3]),
                    }
                    rest = tail;
                }
                None => {
                    out.push_str("$(");
                    rest = reference;
                }
            }
        } else if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}
