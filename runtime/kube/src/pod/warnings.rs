//! Kubernetes' warnings about a new Pod (`GetWarningsForPod`): what is valid, and hardly what somebody means.
//!
//! Its warnings about annotations and about fractions of bytes are in [`super::unsupported`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::IpAddr;

use serde_json::Value;

use super::validate::affinity::{PREFERRED, REQUIRED};
use crate::object::check::Field;
use crate::object::field::{Errors, First, go_quoted};
use crate::object::rules;
use crate::object::value::{list, number, text};

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
    // Only the paths of the fields are needed here.
    let mut none = Errors::default();
    let (spec, name) = (Field::root(&pod["spec"], "spec", &mut none), text(&pod["metadata"], "name"));
    let why = rules::dns_label(name);
    if !why.is_empty() {
        let text = "this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended";
        found.add("metadata.name", &format!("{text}: [{}]", why.join(" ")));
    }
    found.node_labels(spec);
    found.volumes(list(spec.value, "volumes"));
    found.repeated_names(spec);
    containers(&spec).for_each(|container| found.variables(container));
    found.ports(spec);
    let grace = spec.child("terminationGracePeriodSeconds");
    if grace.number() < 0 {
        found.add(grace.path, "must be >= 0; negative values are invalid and will be treated as 1");
    }
    found.pod_affinities(spec.child("affinity"));
    spec.child("dnsConfig").items("nameservers").for_each(|server| found.address(server));
    spec.items("hostAliases").for_each(|alias| found.address(alias.child("ip")));
    found.0
}

fn containers<'v, 'b>(spec: &'b Field<'v, 'b>) -> impl Iterator<Item = Field<'v, 'b>> {
    ["initContainers", "containers"].iter().flat_map(|field| spec.items(field))
}

struct Warnings(First<String>);

impl Warnings {
    fn add(&mut self, path: impl Display, why: &str) {
        self.0.push_with(|| format!("{path}: {why}"));
    }

    /// Warns about deprecated labels of nodes, and about topologies without a selector.
    fn node_labels(&mut self, spec: Field<'_, '_>) {
        for (label, entry) in spec.child("nodeSelector").entries() {
            if let Some(why) = deprecated(label) {
                self.add(entry.path, why);
            }
        }
        let affinity = spec.child("affinity");
        let affinity = affinity.child("nodeAffinity");
        affinity.child(REQUIRED).items("nodeSelectorTerms").for_each(|term| self.term(term, false));
        affinity.items(PREFERRED).for_each(|term| self.term(term.child("preference"), true));
        for constraint in spec.items("topologySpreadConstraints") {
            self.key(constraint.child("topologyKey"));
            self.selector(constraint);
        }
    }

    fn term(&mut self, term: Field<'_, '_>, checks_values: bool) {
        for expression in term.items("matchExpressions") {
            self.key(expression.child("key"));
            for value in expression.items("values").filter(|_| checks_values) {
                for why in rules::label_value(value.text()) {
                    self.add(value.path, &format!("{} is invalid, {why}", value.text()));
                }
            }
        }
    }

    fn key(&mut self, key: Field<'_, '_>) {
        if let Some(why) = deprecated(key.text()) {
            self.add(key.path, &format!("{} is {why}", key.text()));
        }
    }

    fn selector(&mut self, owner: Field<'_, '_>) {
        let selector = owner.child("labelSelector");
        if selector.value.is_null() {
            self.add(selector.path, NULL_SELECTOR);
        }
    }

    fn pod_affinities(&mut self, affinity: Field<'_, '_>) {
        for kind in ["podAffinity", "podAntiAffinity"].map(|kind| affinity.child(kind)) {
            kind.items(REQUIRED).for_each(|term| self.selector(term));
            kind.items(PREFERRED).for_each(|term| self.selector(term.child("podAffinityTerm")));
        }
    }

    /// Warns about aliases of one address, and about secrets of one name or without a name.
    fn repeated_names(&mut self, spec: Field<'_, '_>) {
        for (list_of, field) in [("hostAliases", "ip"), ("imagePullSecrets", "name")] {
            let mut known = BTreeSet::new();
            for element in spec.items(list_of) {
                let value = element.child(field);
                if !known.insert(value.text()) {
                    self.add(value.path, &format!("duplicate {field} {}", go_quoted(value.text())));
                }
            }
        }
        for secret in spec.items("imagePullSecrets") {
            let name = secret.child("name");
            if name.text().is_empty() {
                self.add(name.path, "invalid empty name \"\"");
            }
        }
    }

    /// Warns about variables that replace others without using them.
    fn variables(&mut self, container: Field<'_, '_>) {
        let mut known = BTreeSet::new();
        for variable in container.items("env") {
            let one = variable.value;
            let (name, value) = (text(one, "name"), text(one, "value"));
            let reference = format!("$({name})");
            let hides = one["valueFrom"].is_object() || value == reference || !value.contains(&reference);
            if !known.insert(name) && hides {
                let why = format!(
                    "hides previous definition of {}, which may be dropped when using apply",
                    go_quoted(name)
                );
                self.add(variable.path, &why);
            }
        }
    }

    fn ports(&mut self, spec: Field<'_, '_>) {
        let mut ports = Vec::new();
        for container in containers(&spec) {
            ports.extend(container.items("ports").map(|port| (port.path.to_string(), port.value)));
        }
        let host = |port| (number(port, "hostPort"), text(port, "hostIP"));
        let mut earlier = EarlierPorts::default();
        for (at, (path, port)) in ports.iter().enumerate() {
            let (host_port, address) = host(*port);
            let (name, number_of, protocol) =
                (text(port, "name"), number(port, "containerPort"), text(port, "protocol"));
            if !address.is_empty() && host_port == 0 {
                let shown = format!(
                    "{{Name:{name} HostPort:0 ContainerPort:{number_of} Protocol:{protocol} HostIP:{address}}}"
                );
                self.add(path, &format!("hostIP set without hostPort: {shown}"));
            }
            let count = earlier.add((number_of, protocol), host_port, address);
            if count == 0 || self.0.is_full() {
                self.0.add_more(count);
                continue;
            }
            for (other, before) in &ports[..at] {
                if (number(before, "containerPort"), text(before, "protocol")) != (number_of, protocol) {
                    continue;
                }
                let Some(what) = conflict((host_port, address), host(*before)) else { continue };
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

    fn overlaps(&mut self, volume: &str, kind: &str, mut paths: Vec<(&str, String)>) {
        paths.retain(|(path, _)| !path.is_empty());
        let show = |(path, of): &(&str, String)| match &**of {
            "" => go_quoted(path),
            of => format!("{} ({of})", go_quoted(path)),
        };
        let (mut count, overlapping) = overlapping(&paths.iter().map(|(path, _)| *path).collect::<Vec<_>>());
        for index in overlapping {
            if self.0.is_full() {
                break;
            }
            let one = &paths[index];
            let others = paths[..index].iter().filter(|other| is_in(one.0, other.0) || is_in(other.0, one.0));
            for other in others {
                let (one, other) = (show(one), show(other));
                self.0
                    .push_with(|| format!("volume {volume} ({kind}): overlapping paths: {one} with {other}"));
                count -= 1;
            }
        }
        self.0.add_more(count);
    }

    /// Warns about addresses that are not in their usual form.
    fn address(&mut self, address: Field<'_, '_>) {
        if let Ok(IpAddr::V6(parsed)) = address.text().parse::<IpAddr>()
            && parsed.to_string() != address.text()
        {
            let path = address.path;
            let address = go_quoted(address.text());
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

/// What is wrong with two definitions of one port that have these ports and addresses of the host.
fn conflict(one: (i64, &str), other: (i64, &str)) -> Option<&'static str> {
    if one == other {
        Some("duplicate")
    } else if one.0 == 0 || other.0 == 0 {
        Some("overlapping")
    } else if one.0 == other.0 && one.1.is_empty() != other.1.is_empty() {
        Some("dangerously ambiguous")
    } else {
        None
    }
}

/// Counts of ports, because a Pod can have so many that comparing each with all others takes minutes.
#[derive(Default)]
struct EarlierPorts<'a>(BTreeMap<(Port<'a>, Option<i64>, Option<&'a str>), usize>);

/// The number and the protocol of a port of a container.
type Port<'a> = (i64, &'a str);

impl<'a> EarlierPorts<'a> {
    /// Adds a port. Returns the number of earlier ports with which there is a warning about it.
    fn add(&mut self, port: Port<'a>, host_port: i64, address: &'a str) -> usize {
        let count = |host_port, address| self.0.get(&(port, host_port, address)).copied().unwrap_or_default();
        let host = Some(host_port);
        let found = match (host_port, address) {
            (0, _) => count(None, None),
            (_, "") => count(Some(0), None) + count(host, None),
            (_, address) => count(Some(0), None) + count(host, Some("")) + count(host, Some(address)),
        };
        for key in [(port, None, None), (port, host, None), (port, host, Some(address))] {
            *self.0.entry(key).or_default() += 1;
        }
        found
    }
}

/// Whether `inner` is the path `outer`, or below it.
fn is_in(outer: &str, inner: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The number of pairs of paths of which one is in the other, and the indexes of the paths that overlap an earlier one.
/// A volume can have so many that comparing each with all others takes minutes.
fn overlapping(paths: &[&str]) -> (usize, Vec<usize>) {
    // A path comes directly before all those that are in it.
    let mut sorted: Vec<usize> = (0..paths.len()).collect();
    sorted.sort_by(|one, other| paths[*one].split('/').cmp(paths[*other].split('/')));
    let (mut pairs, mut found) = (0, Vec::new());
    // The paths that the present one is in, each with the lowest index of these, and the lowest index of those in it.
    let mut outer: Vec<(usize, usize, usize)> = Vec::new();
    let leave = |outer: &mut Vec<(usize, usize, usize)>, found: &mut Vec<usize>| {
        let Some((index, before, within)) = outer.pop() else { return };
        if before.min(within) < index {
            found.push(index);
        }
        if let Some((.., of_outer)) = outer.last_mut() {
            *of_outer = within.min(index).min(*of_outer);
        }
    };
    for index in sorted {
        while outer.last().is_some_and(|(last, ..)| !is_in(paths[*last], paths[index])) {
            leave(&mut outer, &mut found);
        }
        pairs += outer.len();
        let before = outer.last().map_or(usize::MAX, |(last, before, _)| *before.min(last));
        outer.push((index, before, usize::MAX));
    }
    while !outer.is_empty() {
        leave(&mut outer, &mut found);
    }
    found.sort_unstable();
    (pairs, found)
}

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
