//! The environment of a container, and `$(VAR)`.

use std::cell::Cell;
use std::rc::Rc;

use nodlet_core::sorted::{SortedMap, SortedSet};
use nodlet_rootfs::ImageConfig;

use crate::volume_files::not_found;
use crate::{downward_api, pod_files};
use nodlet_core::facts::{StartFailure, StartFailureReason};
use nodlet_core::spec::container::EnvSource;
use nodlet_core::spec::reference::{ConfigKind, ObjectReference};
use nodlet_core::spec::{Container, Pod};
use nodlet_registry::ConfigData;

use super::{Facts, config_error, not_created};

/// Default of `PATH` if the image sets none, as in other container runtimes.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Maximum size of a command with its environment in bytes. The kernel accepts no more (`ARG_MAX` of execve(2)), so
/// the expansion of nested variables stops at this size.
const ROOM: usize = 2 << 20;

/// Variables in the order in which they were set. The last variable with a name counts.
#[derive(Default)]
pub(super) struct Variables {
    list: Vec<(String, String)>,
    /// The index in the list by name.
    places: SortedMap<String, usize>,
    /// The names whose value is that of a Secret or of a file, or was expanded with such a value: no message shows it.
    secret: SortedSet<String>,
    /// The variables of Services: every other variable with the name counts instead.
    links: SortedMap<String, String>,
    /// The part of [`ROOM`] that the variables, and what was expanded with them, have taken.
    taken: Cell<usize>,
}

impl Variables {
    fn take(&self, bytes: usize) -> Result<(), StartFailure> {
        self.taken.set(self.taken.get() + bytes);
        if self.taken.get() > ROOM {
            return Err(not_created(
                "its command and environment, with the variables in them expanded, are longer than 2 MiB, \
                 which no process can be given",
            ));
        }
        Ok(())
    }

    fn get(&self, name: &str) -> Option<&str> {
        let own = self.places.get(name).map(|place| &self.list[*place].1);
        own.or_else(|| self.links.get(name)).map(String::as_str)
    }

    fn set(&mut self, name: &str, value: String) {
        match self.places.get(name) {
            Some(place) => self.list[*place].1 = value,
            None => {
                self.places.insert(name.to_owned(), self.list.len());
                self.list.push((name.to_owned(), value));
            }
        }
        self.secret.remove(name);
    }

    /// Sets a variable whose value no message shows.
    fn set_secret(&mut self, name: &str, value: String) {
        self.set(name, value);
        self.secret.insert(name.to_owned());
    }

    /// Whether the expansion of a text, or what a variable leads to, may not be shown in a message.
    pub(super) fn hides(&self, text: &str) -> bool {
        names(text).any(|name| self.secret.contains(name))
    }
}

/// Returns the environment of a container: `PATH` and `HOSTNAME`, the image's variables, the container's variables.
pub(super) fn of(pod: &Pod, image: &ImageConfig, own: Variables, facts: &Facts<'_>) -> Vec<String> {
    let mut variables = Variables::default();
    variables.set("PATH", PATH.to_owned());
    variables.set("HOSTNAME", pod_files::kernel_name(pod, facts.host_name, facts.dns).unwrap_or_default());
    for pair in &image.env {
        if let Some((name, value)) = pair.split_once('=') {
            variables.set(name, value.to_owned());
        }
    }
    for (name, value) in own.links.into_iter().chain(own.list) {
        variables.set(&name, value);
    }
    variables.list.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// Returns the variables of `envFrom` and `env` in order, each value expanded with the variables before it and with those
/// of Services (`makeEnvironmentVariables`).
pub(super) fn variables(
    pod: &Pod,
    container: &Container,
    facts: &Facts<'_>,
) -> Result<Variables, StartFailure> {
    let mut variables = Variables { links: facts.services.iter().cloned().collect(), ..Variables::default() };
    for (name, value) in &facts.services {
        variables.take(name.len() + value.len() + 2)?;
    }
    for source in &container.env_from {
        let Some(object) = data_of(&source.object, facts)? else { continue };
        for (key, value) in &object.data {
            let name = format!("{}{key}", source.prefix);
            let value = text_of(value, &name, &source.object)?;
            variables.take(name.len() + value.len() + 2)?;
            match source.object.kind {
                ConfigKind::Secret => variables.set_secret(&name, value.to_owned()),
                ConfigKind::ConfigMap => variables.set(&name, value.to_owned()),
            }
        }
    }
    for variable in &container.env {
        // Also for its own value, which does not refer to itself.
        variables.links.remove(&variable.name);
        let value = match &variable.value {
            EnvSource::Value(value) => expand(value, &variables)?,
            EnvSource::Field(path) => {
                let value = field(pod, path, facts);
                // Before it is kept: one long annotation may be the value of many variables.
                variables.take(variable.name.len() + value.len() + 2)?;
                value
            }
            EnvSource::Resource(field) => {
                let amount = downward_api::resource(pod, Some(container), field, &facts.allocatable);
                amount.map_err(config_error)?
            }
            EnvSource::File { .. } => {
                let Some(value) = facts.file_values.get(&variable.name) else { continue };
                variables.take(value.len() + 1)?;
                value.clone()
            }
            EnvSource::Key { object, key } => {
                let Some(found) = data_of(object, facts)? else { continue };
                match found.data.get(key) {
                    Some(value) => {
                        let value = text_of(value, &variable.name, object)?;
                        variables.take(value.len() + 1)?;
                        value.to_owned()
                    }
                    None if object.optional => continue,
                    None => {
                        let (kind, namespace, name) = (object.kind.as_str(), &pod.namespace, &object.name);
                        let why = format!("couldn't find key {key} in {kind} {namespace}/{name}");
                        return Err(awaits_object(why));
                    }
                }
            }
        };
        if is_secret(&variable.value, &variables) {
            variables.set_secret(&variable.name, value)
        } else {
            variables.set(&variable.name, value)
        }
    }
    Ok(variables)
}

/// Whether no message may show a value: that of a Secret, of a file that a container wrote, or one made of them.
fn is_secret(source: &EnvSource, variables: &Variables) -> bool {
    match source {
        EnvSource::Value(text) => variables.hides(text),
        EnvSource::Key { object, .. } => object.kind == ConfigKind::Secret,
        EnvSource::File { .. } => true,
        EnvSource::Field(_) | EnvSource::Resource(_) => false,
    }
}

/// The data of an object; `None` if it is missing and optional.
fn data_of(object: &ObjectReference, facts: &Facts<'_>) -> Result<Option<Rc<ConfigData>>, StartFailure> {
    match facts.objects.get(object) {
        None if !object.optional => Err(awaits_object(not_found(object))),
        found => Ok(found),
    }
}

fn awaits_object(message: String) -> StartFailure {
    StartFailure::new(StartFailureReason::ObjectNotFound, message)
}

/// Returns a value as text. The error names the variable and never contains the value.
fn text_of<'a>(value: &'a [u8], name: &str, object: &ObjectReference) -> Result<&'a str, StartFailure> {
    match std::str::from_utf8(value) {
        Ok(text) if !text.contains('\0') => Ok(text),
        Ok(_) | Err(_) => Err(not_created(format!(
            "the value of the environment variable {name:?} from {} {:?} is not text: mount the object as \
             a volume",
            object.kind.resource(),
            object.name
        ))),
    }
}

/// Returns the variables with plain values, unexpanded. A kubelet expands only these in the command of an exec probe.
pub(super) fn plain(container: &Container) -> Variables {
    let mut variables = Variables::default();
    for variable in &container.env {
        if let EnvSource::Value(value) = &variable.value {
            variables.set(&variable.name, value.clone());
        }
    }
    variables
}

/// Returns the value of `valueFrom.fieldRef`.
fn field(pod: &Pod, path: &str, facts: &Facts<'_>) -> String {
    let address = |ip: Option<std::net::Ipv4Addr>| ip.map(|ip| ip.to_string()).unwrap_or_default();
    let addresses = |ip, ipv6: Option<std::net::Ipv6Addr>| match ipv6 {
        Some(ipv6) => format!("{},{ipv6}", address(ip)),
        None => address(ip),
    };
    match path {
        "spec.nodeName" => facts.node_name.to_owned(),
        "spec.serviceAccountName" => pod.spec.service_account_name.to_string(),
        "status.hostIP" => address(facts.host_ip),
        "status.podIP" => address(facts.ip.or(facts.host_ip)),
        "status.podIPs" if facts.ip.is_some() => addresses(facts.ip, facts.ipv6),
        "status.hostIPs" | "status.podIPs" => addresses(facts.host_ip, facts.host_ipv6),
        _ => downward_api::metadata(pod, path),
    }
}

/// Expands the variables of a path, each of which must have a value (kubelet: `ExpandContainerVolumeMounts`).
pub(super) fn expand_path(text: &str, variables: &Variables) -> Result<String, StartFailure> {
    let missing = names(text).filter(|name| variables.get(name).is_none_or(str::is_empty));
    match &*missing.collect::<SortedSet<_>>().into_iter().collect::<Vec<_>>() {
        [] => expand(text, variables),
        missing => Err(config_error(format!("missing value for {}", missing.join(", ")))),
    }
}

/// Returns the names of the variables to which a text refers.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let after = &rest[rest.find('$')? + 1..];
            if let Some((name, tail)) =
                after.strip_prefix('(').and_then(|reference| reference.split_once(')'))
            {
                rest = tail;
                return Some(name);
            }
            // An escaped `$`, or one without a name.
            rest = after.strip_prefix('$').unwrap_or(after);
        }
    })
}

/// Replaces `$(NAME)` with its value and `$$` with `$`. Unknown names stay unchanged
/// (Kubernetes: `third_party/forked/golang/expansion`).
pub(super) fn expand(text: &str, variables: &Variables) -> Result<String, StartFailure> {
    let mut out = String::with_capacity(text.len());
    let mut add = |text: &str| {
        variables.take(text.len())?;
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
    variables.take(1)?;
    Ok(out)
}
