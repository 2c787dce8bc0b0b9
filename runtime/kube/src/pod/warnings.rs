//! Kubernetes' warnings about a new Pod (`GetWarningsForPod`): what is valid, and hardly what somebody means.
//!
//! Its warnings about annotations and about fractions of bytes are in [`super::unsupported`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;

use crate::object::field::{First, go_quoted};
use crate::object::rules;
use crate::object::value::{list, map, number, text};

const DEPRECATED_LABELS: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

const NULL_SELECTOR: &str = "a null labelSelector results in matching no pod";

fn deprecated(label: &str) -> Option<&'static str> {
    DEPRECATED_LABELS.iter().find(|(known, _)| *known == label).map(|(_, why)| *why)
}

/// Returns the warnings about a defaulted Pod, in the order of Kubernetes.
pub(super) fn of_new(pod: &Value) -> First<String> {
    let mut found = Warnings(First::default());
    let (spec, name) = (&pod["spec"], text(&pod["metadata"], "name"));
    let why = rules::dns_label(name);
    if !why.is_empty() {
        let text = "this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended";
        found.add("metadata.name", &format!("{text}: [{}]", why.join(" ")));
    }
    found.node_labels(spec);
    found.volumes(list(spec, "volumes"));
    found.repeated_names(spec);
    for container in containers(spec) {
        found.variables(&container);
    }
    found.ports(spec);
    if number(spec, "terminationGracePeriodSeconds") < 0 {
        let why = "must be >= 0; negative values are invalid and will be treated as 1";
        found.add("spec.terminationGracePeriodSeconds", why);
    }
    found.pod_affinities(&spec["affinity"]);
    for (index, server) in list(&spec["dnsConfig"], "nameservers").iter().enumerate() {
        found.address(&format!("spec.dnsConfig.nameservers[{index}]"), server.as_str().unwrap_or_default());
    }
    for (index, alias) in list(spec, "hostAliases").iter().enumerate() {
        found.address(&format!("spec.hostAliases[{index}].ip"), text(alias, "ip"));
    }
    found.0
}

/// A container with its path.
struct Container<'a> {
    path: String,
    container: &'a Value,
}

fn containers(spec: &Value) -> impl Iterator<Item = Container<'_>> {
    ["initContainers", "containers"].into_iter().flat_map(move |field| {
        let numbered = list(spec, field).iter().enumerate();
        numbered
            .map(move |(index, container)| Container { path: format!("spec.{field}[{index}]"), container })
    })
}

struct Warnings(First<String>);

impl Warnings {
    fn add(&mut self, path: &str, why: &str) {
        self.0.push_with(|| format!("{path}: {why}"));
    }

    /// Warns about deprecated labels of nodes, and about topologies without a selector.
    fn node_labels(&mut self, spec: &Value) {
        for (label, _) in map(&spec["nodeSelector"]) {
            if let Some(why) = deprecated(label) {
                self.add(&format!("spec.nodeSelector[{label}]"), why);
            }
        }
        let affinity = &spec["affinity"]["nodeAffinity"];
        let (required, preferred) = (
            "requiredDuringSchedulingIgnoredDuringExecution",
            "preferredDuringSchedulingIgnoredDuringExecution",
        );
        for (index, term) in list(&affinity[required], "nodeSelectorTerms").iter().enumerate() {
            self.term(
                term,
                &format!("spec.affinity.nodeAffinity.{required}.nodeSelectorTerms[{index}]"),
                false,
            );
        }
        for (index, term) in list(affinity, preferred).iter().enumerate() {
            let path = format!("spec.affinity.nodeAffinity.{preferred}[{index}].preference");
            self.term(&term["preference"], &path, true);
        }
        for (index, constraint) in list(spec, "topologySpreadConstraints").iter().enumerate() {
            let path = format!("spec.topologySpreadConstraints[{index}]");
            let key = text(constraint, "topologyKey");
            if let Some(why) = deprecated(key) {
                self.add(&format!("{path}.topologyKey"), &format!("{key} is {why}"));
            }
            self.selector(constraint, &path);
        }
    }

    fn term(&mut self, term: &Value, path: &str, checks_values: bool) {
        for (index, expression) in list(term, "matchExpressions").iter().enumerate() {
            let path = format!("{path}.matchExpressions[{index}]");
            let key = text(expression, "key");
            if let Some(why) = deprecated(key) {
                self.add(&format!("{path}.key"), &format!("{key} is {why}"));
            }
            let values = list(expression, "values").iter().filter_map(Value::as_str);
            for (index, value) in values.enumerate().filter(|_| checks_values) {
                for why in rules::label_value(value) {
                    self.add(&format!("{path}.values[{index}]"), &format!("{value} is invalid, {why}"));
                }
            }
        }
    }

    fn selector(&mut self, owner: &Value, path: &str) {
        if owner["labelSelector"].is_null() {
            self.add(&format!("{path}.labelSelector"), NULL_SELECTOR);
        }
    }

    fn pod_affinities(&mut self, affinity: &Value) {
        for kind in ["podAffinity", "podAntiAffinity"] {
            for (field, inside) in [
                ("requiredDuringSchedulingIgnoredDuringExecution", None),
                ("preferredDuringSchedulingIgnoredDuringExecution", Some("podAffinityTerm")),
            ] {
                for (index, term) in list(&affinity[kind], field).iter().enumerate() {
                    let path = format!("spec.affinity.{kind}.{field}[{index}]");
                    match inside {
                        None => self.selector(term, &path),
                        Some(inside) => self.selector(&term[inside], &format!("{path}.{inside}")),
                    }
                }
            }
        }
    }

    /// Warns about aliases of one address, and about secrets of one name or without a name.
    fn repeated_names(&mut self, spec: &Value) {
        for (list_of, field) in [("hostAliases", "ip"), ("imagePullSecrets", "name")] {
            let elements = list(spec, list_of);
            for (index, element) in elements.iter().enumerate() {
                let value = text(element, field);
                if elements[..index].iter().any(|before| text(before, field) == value) {
                    let why = format!("duplicate {field} {}", go_quoted(value));
                    self.add(&format!("spec.{list_of}[{index}].{field}"), &why);
                }
            }
        }
        for (index, secret) in list(spec, "imagePullSecrets").iter().enumerate() {
            if text(secret, "name").is_empty() {
                self.add(&format!("spec.imagePullSecrets[{index}].name"), "invalid empty name \"\"");
            }
        }
    }

    /// Warns about variables that replace others without using them.
    fn variables(&mut self, Container { path, container }: &Container<'_>) {
        let all = list(container, "env");
        for (index, one) in all.iter().enumerate() {
            let (name, value) = (text(one, "name"), text(one, "value"));
            let reference = format!("$({name})");
            let hides = one["valueFrom"].is_object() || value == reference || !value.contains(&reference);
            if hides && all[..index].iter().any(|before| text(before, "name") == name) {
                let why = format!(
                    "hides previous definition of {}, which may be dropped when using apply",
                    go_quoted(name)
                );
                self.add(&format!("{path}.env[{index}]"), &why);
            }
        }
    }

    fn ports(&mut self, spec: &Value) {
        let mut ports = Vec::new();
        for Container { path, container } in containers(spec) {
            for (index, port) in list(container, "ports").iter().enumerate() {
                ports.push((format!("{path}.ports[{index}]"), port));
            }
        }
        let host = |port: &Value| (number(port, "hostPort"), text(port, "hostIP").to_owned());
        for (at, (path, port)) in ports.iter().enumerate() {
            let (host_port, address) = host(port);
            let (name, number_of, protocol) =
                (text(port, "name"), number(port, "containerPort"), text(port, "protocol"));
            if !address.is_empty() && host_port == 0 {
                let shown = format!(
                    "{{Name:{name} HostPort:0 ContainerPort:{number_of} Protocol:{protocol} HostIP:{address}}}"
                );
                self.add(path, &format!("hostIP set without hostPort: {shown}"));
            }
            for (other, before) in &ports[..at] {
                if (number(before, "containerPort"), text(before, "protocol")) != (number_of, protocol) {
                    continue;
                }
                let (other_port, other_address) = host(before);
                let what = if (host_port, &address) == (other_port, &other_address) {
                    "duplicate"
                } else if host_port == 0 || other_port == 0 {
                    "overlapping"
                } else if host_port == other_port && address.is_empty() != other_address.is_empty() {
                    "dangerously ambiguous"
                } else {
                    continue;
                };
                self.add(path, &format!("{what} port definition with {other}"));
            }
        }
        let mut named: BTreeMap<&str, &str> = BTreeMap::new();
        for (path, port) in &ports {
            let name = text(port, "name");
            match named.get(name) {
                _ if name.is_empty() => {}
                None => drop(named.insert(name, path)),
                Some(other) => {
                    let why = format!(
                        "duplicate port name {} with {other}, services and probes that select ports by name will use {other}",
                        go_quoted(name)
                    );
                    self.add(path, &why);
                }
            }
        }
    }

    /// Warns about files of a volume that replace each other.
    fn volumes(&mut self, volumes: &[Value]) {
        for volume in volumes {
            let name = go_quoted(text(volume, "name"));
            for (field, kind, named) in SOURCES {
                let source = &volume[field];
                let of = source_of(source, kind, named);
                self.overlaps(&name, &of, paths(source, ""));
            }
            let mut all = Vec::new();
            for source in list(&volume["projected"], "sources") {
                if source.as_object().is_some_and(serde_json::Map::is_empty) {
                    self.0.push_with(|| format!("volume {name} (Projected) has no sources provided"));
                }
                for (field, kind, _) in SOURCES {
                    let of = source_of(&source[field], kind, "name");
                    all.extend(paths(&source[field], &of));
                }
                if let Some(path) = source["serviceAccountToken"]["path"].as_str() {
                    all.push((path, "ServiceAccountToken".to_owned()));
                }
            }
            self.overlaps(&name, "Projected", all);
        }
    }

    fn overlaps(&mut self, volume: &str, kind: &str, paths: Vec<(&str, String)>) {
        let show = |(path, of): &(&str, String)| match &**of {
            "" => go_quoted(path),
            of => format!("{} ({of})", go_quoted(path)),
        };
        let is_in = |outer: &str, inner: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        for (index, one) in paths.iter().enumerate().filter(|(_, (path, _))| !path.is_empty()) {
            for other in paths[..index].iter().filter(|(path, _)| !path.is_empty()) {
                if is_in(one.0, other.0) || is_in(other.0, one.0) {
                    let (one, other) = (show(one), show(other));
                    self.0.push_with(|| {
                        format!("volume {volume} ({kind}): overlapping paths: {one} with {other}")
                    });
                }
            }
        }
    }

    /// Warns about addresses that are not in their usual form.
    fn address(&mut self, path: &str, address: &str) {
        if let Ok(IpAddr::V6(parsed)) = address.parse::<IpAddr>()
            && parsed.to_string() != address
        {
            let address = go_quoted(address);
            let why = format!("IPv6 address {address} should be in RFC 5952 canonical format (\"{parsed}\")");
            self.add(path, &why);
        }
    }
}

/// Volumes of single files: the field, its name in warnings, and the field with the name of its object.
const SOURCES: [(&str, &str, &str); 3] = [
    ("configMap", "ConfigMap", "name"),
    ("secret", "Secret", "secretName"),
    ("downwardAPI", "DownwardAPI", ""),
];

fn source_of(source: &Value, kind: &str, named: &str) -> String {
    match kind {
        "DownwardAPI" => kind.to_owned(),
        kind => format!("{kind} {}", go_quoted(text(source, named))),
    }
}

fn paths<'a>(source: &'a Value, of: &str) -> Vec<(&'a str, String)> {
    let path = |item: &'a Value| text(item, "path").trim_end_matches('/');
    list(source, "items").iter().map(|item| (path(item), of.to_owned())).collect()
}

#[cfg(test)]
mod tests;
