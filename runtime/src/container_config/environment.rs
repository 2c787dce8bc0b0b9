//! The environment of a container, and `$(VAR)`.

use std::collections::BTreeMap;

use nodlet_rootfs::ImageConfig;

use crate::pod_files;
use nodlet_core::facts::{StartFailure, StartFailureReason};
use nodlet_core::spec::container::EnvSource;
use nodlet_core::spec::{Container, Pod};

use super::Facts;

/// Where an image says nothing, as container runtimes have it.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Bytes of a command with its environment: the kernel executes no more (`ARG_MAX` of execve(2)), so what
/// variables of variables would grow beyond it is not made.
const ROOM: usize = 2 << 20;

/// What is left of [`ROOM`] for one container.
pub(super) struct Room(usize);

impl Room {
    pub(super) fn new() -> Self {
        Room(ROOM)
    }

    fn take(&mut self, bytes: usize) -> Result<(), StartFailure> {
        match self.0.checked_sub(bytes) {
            Some(left) => {
                self.0 = left;
                Ok(())
            }
            None => Err(StartFailure {
                reason: StartFailureReason::CreateContainerError,
                message: "its command and environment, with the variables in them expanded, are longer than 2 MiB, \
                          which no process can be given"
                    .into(),
            }),
        }
    }
}

/// Variables in the order in which they were set; a later one of a name wins.
#[derive(Default)]
pub(super) struct Variables {
    list: Vec<(String, String)>,
    /// Where in the list each is.
    places: BTreeMap<String, usize>,
}

impl Variables {
    fn get(&self, name: &str) -> Option<&str> {
        self.places.get(name).map(|place| self.list[*place].1.as_str())
    }

    fn set(&mut self, name: &str, value: String) {
        match self.places.get(name) {
            Some(place) => self.list[*place].1 = value,
            None => {
                self.places.insert(name.to_owned(), self.list.len());
                self.list.push((name.to_owned(), value));
            }
        }
    }
}

/// The whole environment: PATH and HOSTNAME, what the image says, what the container says.
pub(super) fn of(pod: &Pod, image: &ImageConfig, own: Variables, facts: &Facts<'_>) -> Vec<String> {
    let mut variables = Variables::default();
    variables.set("PATH", PATH.to_owned());
    variables.set("HOSTNAME", pod_files::hostname(pod, facts.host_name));
    for pair in &image.env {
        if let Some((name, value)) = pair.split_once('=') {
            variables.set(name, value.to_owned());
        }
    }
    for (name, value) in own.list {
        variables.set(&name, value);
    }
    variables.list.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// `env` in order, each value expanded by those before it.
pub(super) fn variables(
    pod: &Pod,
    container: &Container,
    facts: &Facts<'_>,
    room: &mut Room,
) -> Result<Variables, StartFailure> {
    let mut variables = Variables::default();
    for variable in &container.env {
        let value = match &variable.value {
            EnvSource::Value(value) => expand(value, &variables, room)?,
            EnvSource::Field(path) => field(pod, path, facts),
        };
        variables.set(&variable.name, value);
    }
    Ok(variables)
}

/// The variables with plain values, as written: what a kubelet expands in the command of an exec probe.
pub(super) fn plain(container: &Container) -> Variables {
    let mut variables = Variables::default();
    for variable in &container.env {
        match &variable.value {
            EnvSource::Value(value) => variables.set(&variable.name, value.clone()),
            EnvSource::Field(_) => {}
        }
    }
    variables
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
pub(super) fn expand(text: &str, variables: &Variables, room: &mut Room) -> Result<String, StartFailure> {
    let mut out = String::with_capacity(text.len());
    let mut add = |text: &str| {
        room.take(text.len())?;
        out.push_str(text);
        Ok(())
    };
    let mut rest = text;
    // Nothing behind the last one is a name, however often one begins there.
    let last = text.rfind(')').unwrap_or(0);
    while let Some(at) = rest.find('$') {
        add(&rest[..at])?;
        let after = &rest[at + 1..];
        let closes = text.len() - after.len() < last;
        if let Some(reference) = after.strip_prefix('(') {
            match closes.then(|| reference.split_once(')')).flatten() {
                Some((name, tail)) => {
                    add(variables.get(name).unwrap_or(&rest[at..at + name.len() + 3]))?;
                    rest = tail;
                }
                None => {
                    add("$(")?;
                    rest = reference;
                }
            }
        } else if let Some(tail) = after.strip_prefix('$') {
            add("$")?;
            rest = tail;
        } else {
            add("$")?;
            rest = after;
        }
    }
    add(rest)?;
    room.take(1)?;
    Ok(out)
}
