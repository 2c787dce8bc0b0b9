//! Checks a Pod against the fields that nodlet acts on: rejects fields that would make it run differently
//! from its manifest, and warns about fields without effect. The support of each field is
//! [`crate::schema`]'s.

use serde_json::{Map, Value};

use super::defaults::{CONTAINERS, app_armor, app_armor_field};
use super::ulimit::{self, ULIMIT};
use super::validate::{APPARMOR, SECCOMP_OF_CONTAINER, SECCOMP_OF_POD};
use super::{board_annotations, runtime_annotations};
use crate::object::field::{Errors, FieldError, First, Path};
use crate::object::value::{list, text};
use crate::schema::{self, Field, FieldSupport, Shape, Type};
use nodlet_core::spec::Quantity;
use nodlet_core::spec::container::{CAPABILITIES, DEVICE_DOMAIN, HUGE_PAGES};

/// The requests of a Pod that nodlet does not fulfil.
#[derive(Debug, Default)]
pub(super) struct Unsupported {
    pub(super) rejected: Errors,
    pub(super) warnings: First<String>,
}

/// The name of the program in messages.
const NODLET: &str =
    concat!("nodlet ", env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));

/// Annotations that Kubernetes knows and nodlet does not act on: their keys, or prefixes of keys that end in
/// `/`, with the text of the warning.
const IGNORED_ANNOTATIONS: [(&str, &str); 15] = [
    (
        "kubernetes.io/config.mirror",
        "has no effect: nodlet itself marks the mirror pods that it makes in a cluster",
    ),
    ("kubernetes.io/egress-bandwidth", "has no effect: nodlet does not limit bandwidth"),
    ("kubernetes.io/ingress-bandwidth", "has no effect: nodlet does not limit bandwidth"),
    (
        "pod.alpha.kubernetes.io/init-containers",
        "has had no effect since Kubernetes 1.8: its init containers will not run: use spec.initContainers",
    ),
    (
        "pod.beta.kubernetes.io/init-containers",
        "has had no effect since Kubernetes 1.8: its init containers will not run: use spec.initContainers",
    ),
    ("pod.beta.kubernetes.io/hostname", "has had no effect since Kubernetes 1.7: use spec.hostname"),
    ("pod.beta.kubernetes.io/subdomain", "has had no effect since Kubernetes 1.7: use spec.subdomain"),
    ("scheduler.alpha.kubernetes.io/affinity", "has had no effect since Kubernetes 1.8: use spec.affinity"),
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        r#"non-functional in v1.16+; use the "priorityClassName" field instead"#,
    ),
    ("scheduler.alpha.kubernetes.io/name", "has had no effect since Kubernetes 1.8: use spec.schedulerName"),
    (
        "scheduler.alpha.kubernetes.io/tolerations",
        "has had no effect since Kubernetes 1.8: use spec.tolerations",
    ),
    ("security.alpha.kubernetes.io/sysctls", r#"non-functional in v1.11+; use the "sysctls" field instead"#),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        r#"non-functional in v1.11+; use the "sysctls" field instead"#,
    ),
    (SECCOMP_OF_POD, r#"non-functional in v1.27+; use the "seccompProfile" field instead"#),
    (SECCOMP_OF_CONTAINER, r#"non-functional in v1.27+; use the "seccompProfile" field instead"#),
];

/// Checks a Pod as it was written, before defaults.
pub(super) fn check(pod: &Value) -> Unsupported {
    let mut unsupported = Unsupported::default();
    metadata(pod, &mut unsupported);
    if let (Some(spec), Some(owner)) = (pod["spec"].as_object(), schema::find("PodSpec")) {
        devices(pod, &mut unsupported);
        let path = Path::root("spec");
        Checker { unsupported: &mut unsupported }.object(spec, owner, &path);
        for field in ["containers", "initContainers", "ephemeralContainers"] {
            let path = path.child(field);
            for (index, container) in list(&pod["spec"], field).iter().enumerate() {
                let path = path.index(index);
                capabilities(container, &path, &mut unsupported);
                fractions(container, &path, &mut unsupported);
            }
        }
    }
    unsupported
}

fn metadata(pod: &Value, unsupported: &mut Unsupported) {
    let path = Path::root("metadata");
    let is_set = |field: &str| pod["metadata"][field].as_array().is_some_and(|list| !list.is_empty());
    if is_set("finalizers") {
        let detail = format!("{NODLET} does not keep an object for its finalizers");
        unsupported.rejected.push(FieldError::forbidden(&path.child("finalizers"), detail));
    }
    if is_set("ownerReferences") {
        let why = "deletes no object with its owner";
        unsupported.warnings.push(warning(&path.child("ownerReferences"), why));
    }
    let path = path.child("annotations");
    for (key, value) in pod["metadata"]["annotations"].as_object().into_iter().flatten() {
        let path = path.key(key);
        if let Some(container) = key.strip_prefix(APPARMOR) {
            apparmor(pod, container, value.as_str().unwrap_or_default(), &path, unsupported);
        }
        let others = || {
            if key == ULIMIT {
                ulimit::without_effect(key, value.as_str().unwrap_or_default())
            } else {
                runtime_annotations::without_effect(key)
            }
        };
        if let Some(why) = board_annotations::without_effect(key).or_else(others) {
            unsupported.warnings.push(format!("{path}: {why}"));
        }
        let ignored = IGNORED_ANNOTATIONS
            .iter()
            .find(|(known, _)| *known == key || (known.ends_with('/') && key.starts_with(known)));
        if let Some((_, why)) = ignored.filter(|_| !has_seccomp_field(pod, key)) {
            unsupported.warnings.push(format!("{path}: {why}"));
        }
    }
}

/// Warns about an AppArmor annotation from which the field `appArmorProfile` of the container is set
/// (`applyAppArmorVersionSkew`), or would be if it were valid.
fn apparmor(pod: &Value, container: &str, profile: &str, path: &Path<'_>, unsupported: &mut Unsupported) {
    let profile = app_armor_field(profile);
    let is_used = profile.is_none() || profile != app_armor(&pod["spec"]).cloned();
    let mut named = CONTAINERS.iter().flat_map(|field| list(&pod["spec"], field));
    if is_used && named.any(|one| one["name"] == container && app_armor(one).is_none()) {
        unsupported
            .warnings
            .push(format!("{path}: deprecated since v1.30; use the \"appArmorProfile\" field instead"));
    }
}

/// Whether a field has the meaning of the seccomp annotation `key`, so that no warning is needed.
fn has_seccomp_field(pod: &Value, key: &str) -> bool {
    let is_set =
        |of: &Value| of["securityContext"].get("seccompProfile").is_some_and(|field| !field.is_null());
    match key.strip_prefix(SECCOMP_OF_CONTAINER) {
        Some(name) => ["containers", "initContainers"]
            .into_iter()
            .flat_map(|field| list(&pod["spec"], field))
            .any(|container| container["name"] == name && is_set(container)),
        None => key == SECCOMP_OF_POD && is_set(&pod["spec"]),
    }
}

struct Checker<'a> {
    unsupported: &'a mut Unsupported,
}

impl Checker<'_> {
    fn object(&mut self, map: &Map<String, Value>, owner: &Type, path: &Path<'_>) {
        for (name, value) in map {
            let path = path.child(name);
            // Without an entry, the enclosing field was rejected already.
            if let (Some(field), Some(support)) = (owner.field(name), schema::support(owner.name, name)) {
                self.field(value, field, support, &path);
            }
        }
    }

    fn field(&mut self, value: &Value, field: &Field, support: FieldSupport, path: &Path<'_>) {
        let is_one_of = |values: &[&str]| values.contains(&value.to_string().as_str());
        match support {
            FieldSupport::Acts => self.check_below(value, field, path),
            FieldSupport::Rejects(why, values) => {
                if !is_one_of(values) {
                    self.refuse(path, why);
                }
            }
            FieldSupport::Warns(why, values) => {
                if !is_one_of(values) {
                    self.unsupported.warnings.push(warning(path, why));
                }
            }
            FieldSupport::Resources => {
                for (name, amount) in value.as_object().into_iter().flatten() {
                    match name.as_str() {
                        "cpu" | "memory" | "ephemeral-storage" => {}
                        // A request for zero is always fulfilled.
                        _ if is_none(amount) => {}
                        // Admission rejects a device, or huge pages, that the node does not have.
                        name if name.starts_with(DEVICE_DOMAIN) || name.starts_with(HUGE_PAGES) => {}
                        _ => self.refuse(
                            &path.key(name),
                            "has no resources but cpu, memory, ephemeral-storage, hugepages-<size> and devices (nodlet.dev/<name>)",
                        ),
                    }
                }
            }
        }
    }

    /// Checks the fields below a field that is acted on.
    fn check_below(&mut self, value: &Value, field: &Field, path: &Path<'_>) {
        let Some(owner) = field.object() else { return };
        match (field.shape, value) {
            (Shape::List(_), Value::Array(list)) => {
                for (index, element) in list.iter().enumerate() {
                    if let Value::Object(map) = element {
                        self.object(map, owner, &path.index(index));
                    }
                }
            }
            (Shape::One, Value::Object(map)) => self.object(map, owner, path),
            _ => {}
        }
    }

    fn refuse(&mut self, path: &Path<'_>, why: &str) {
        self.unsupported.rejected.push(FieldError::forbidden(path, format!("{NODLET} {why}")));
    }
}

/// Warns about unknown capability names, which neither add nor drop anything.
fn capabilities(container: &Value, path: &Path<'_>, unsupported: &mut Unsupported) {
    let (context, field) = (path.child("securityContext"), "capabilities");
    let path = context.child(field);
    for list in ["add", "drop"] {
        let path = path.child(list);
        let names = container["securityContext"][field][list].as_array();
        for (index, name) in names.into_iter().flatten().enumerate() {
            let name = name.as_str().unwrap_or_default();
            let upper = name.to_ascii_uppercase();
            let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
            if bare != "ALL" && !CAPABILITIES.contains(&bare) {
                let path = path.index(index);
                let warning =
                    format!("{path}: has no effect: {name:?} is none of the capabilities that Linux has");
                unsupported.warnings.push(warning);
            }
        }
    }
}

/// Devices that every container may use.
const COMMON_DEVICES: [&str; 7] = ["null", "zero", "full", "random", "urandom", "tty", "net/tun"];

/// What is below `/dev` and no device.
const NO_DEVICES: [&str; 6] = ["shm", "mqueue", "pts", "log", "hugepages", "net"];

/// Warns about a device by hostPath in a container that is not privileged: opening it fails there.
fn devices(pod: &Value, unsupported: &mut Unsupported) {
    let path = Path::root("spec");
    let path = path.child("volumes");
    for (index, volume) in list(&pod["spec"], "volumes").iter().enumerate() {
        let source = &volume["hostPath"];
        let Some(file) = source["path"].as_str() else { continue };
        let below = file.strip_prefix("/dev").map(|rest| rest.trim_matches('/'));
        let is_device = match source["type"].as_str().unwrap_or_default() {
            "CharDevice" | "BlockDevice" => true,
            "" | "Directory" => below.is_some_and(|below| {
                let first = below.split('/').next().unwrap_or_default();
                file == "/dev" || file.starts_with("/dev/") && !NO_DEVICES.contains(&first)
            }),
            _ => false,
        };
        if !is_device || below.is_some_and(|below| COMMON_DEVICES.contains(&below)) {
            continue;
        }
        let is_denied = |container: &Value| {
            container["securityContext"]["privileged"] != true
                && list(container, "volumeMounts").iter().any(|mount| mount["name"] == volume["name"])
        };
        let mut containers = CONTAINERS.iter().flat_map(|field| list(&pod["spec"], field));
        if let Some(container) = containers.find(|container| is_denied(container)) {
            let name = text(container, "name");
            let path = path.index(index);
            unsupported.warnings.push(format!(
                "{}: container {name:?} is not privileged, and opening the device {file} fails there (Operation not \
                 permitted): request a device of the board in resources (nodlet.dev/<name>), or set \
                 securityContext.privileged",
                path.child("hostPath")
            ));
        }
    }
}

/// Warns about fractional byte values, as Kubernetes' API does (`GetWarningsForPod`): `m` for thousandths
/// instead of `M`.
fn fractions(container: &Value, path: &Path<'_>, unsupported: &mut Unsupported) {
    let path = path.child("resources");
    for field in ["limits", "requests"] {
        let path = path.child(field);
        for name in ["memory", "ephemeral-storage"] {
            // Limits are requests, too, unless there are others.
            let of = |list: &str| container["resources"][list][name].as_str();
            let Some(text) = of(field).or_else(|| of("limits")) else { continue };
            if let (Ok(amount), Ok(text)) = (Quantity::parse(text), Quantity::shown(text, true))
                && !amount.is_whole()
            {
                let path = path.key(name);
                unsupported
                    .warnings
                    .push(format!("{path}: fractional byte value {text:?} is invalid, must be an integer"));
            }
        }
    }
}

fn is_none(amount: &Value) -> bool {
    match amount {
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => Quantity::parse(text).is_ok_and(|amount| amount.is_zero()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    }
}

fn warning(path: &Path<'_>, why: &str) -> String {
    format!("{path}: has no effect: {NODLET} {why}")
}

#[cfg(test)]
mod tests;
