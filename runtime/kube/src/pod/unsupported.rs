//! Checks a Pod against the fields that nodlet acts on: rejects fields that would make it run differently
//! from its manifest, and warns about fields without effect. The support of each field is
//! [`crate::schema`]'s.

use std::collections::BTreeMap;

use serde_json::Value;

use super::defaults::{CONTAINERS, app_armor, app_armor_field};
use super::ulimit::{self, ULIMIT};
use super::validate::{APPARMOR, SECCOMP_OF_CONTAINER, SECCOMP_OF_POD};
use super::{board_annotations, runtime_annotations};
use crate::object::check::Field;
use crate::object::field::{Errors, First, Path};
use crate::object::value::{list, map, text};
use crate::schema::{self, FieldSupport, Shape, Type};
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
    let Unsupported { mut rejected, mut warnings } = Unsupported::default();
    metadata(pod, Field::root(&pod["metadata"], "metadata", &mut rejected), &mut warnings);
    let spec = Field::root(&pod["spec"], "spec", &mut rejected);
    if let Some(owner) = schema::find("PodSpec") {
        devices(spec, &mut warnings);
        fields(spec, owner, &mut warnings);
        for container in CONTAINERS.iter().flat_map(|field| spec.items(field)) {
            capabilities(container, &mut warnings);
            fractions(container, &mut warnings);
        }
    }
    Unsupported { rejected, warnings }
}

fn metadata(pod: &Value, metadata: Field<'_, '_>, warnings: &mut First<String>) {
    if !list(metadata.value, "finalizers").is_empty() {
        let detail = format!("{NODLET} does not keep an object for its finalizers");
        metadata.child("finalizers").forbidden(detail);
    }
    if !list(metadata.value, "ownerReferences").is_empty() {
        warnings.push(warning(&metadata.path.child("ownerReferences"), "deletes no object with its owner"));
    }
    let annotations = metadata.child("annotations");
    for (key, annotation) in annotations.entries() {
        let (path, value) = (annotation.path, annotation.text());
        if let Some(container) = key.strip_prefix(APPARMOR) {
            apparmor(pod, container, value, &path, warnings);
        }
        let others = || {
            if key == ULIMIT {
                ulimit::without_effect(key, value)
            } else {
                runtime_annotations::without_effect(key)
            }
        };
        if let Some(why) = board_annotations::without_effect(key).or_else(others) {
            warnings.push(format!("{path}: {why}"));
        }
        let ignored = IGNORED_ANNOTATIONS
            .iter()
            .find(|(known, _)| *known == key || (known.ends_with('/') && key.starts_with(known)));
        if let Some((_, why)) = ignored.filter(|_| !has_seccomp_field(pod, key)) {
            warnings.push(format!("{path}: {why}"));
        }
    }
}

/// Warns about an AppArmor annotation from which the field `appArmorProfile` of the container is set
/// (`applyAppArmorVersionSkew`), or would be if it were valid.
fn apparmor(pod: &Value, container: &str, profile: &str, path: &Path<'_>, warnings: &mut First<String>) {
    let profile = app_armor_field(profile);
    let is_used = profile.is_none() || profile != app_armor(&pod["spec"]).cloned();
    let mut named = CONTAINERS.iter().flat_map(|field| list(&pod["spec"], field));
    if is_used && named.any(|one| one["name"] == container && app_armor(one).is_none()) {
        warnings.push(format!("{path}: deprecated since v1.30; use the \"appArmorProfile\" field instead"));
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

/// Checks the fields of an object of this type, and those below fields on which nodlet acts.
fn fields(object: Field<'_, '_>, owner: &Type, warnings: &mut First<String>) {
    for (name, value) in map(object.value) {
        let field = object.child(name);
        let (Some(of), Some(support)) = (owner.field(name), schema::support(owner.name, name)) else {
            continue;
        };
        let is_one_of = |values: &[&str]| values.contains(&value.to_string().as_str());
        match (support, of.object()) {
            (FieldSupport::Acts, None) => {}
            (FieldSupport::Acts, Some(of_value)) => match of.shape {
                Shape::One => fields(field, of_value, warnings),
                Shape::List(_) => object.items(name).for_each(|element| fields(element, of_value, warnings)),
                Shape::Map => {}
            },
            (FieldSupport::Rejects(_, values) | FieldSupport::Warns(_, values), _) if is_one_of(values) => {}
            (FieldSupport::Rejects(why, _), _) => field.forbidden(format!("{NODLET} {why}")),
            (FieldSupport::Warns(why, _), _) => warnings.push(warning(&field.path, why)),
            (FieldSupport::Resources, _) => resources(field),
        }
    }
}

fn resources(amounts: Field<'_, '_>) {
    const WHY: &str = "has no resources but cpu, memory, ephemeral-storage, hugepages-<size> and devices (nodlet.dev/<name>)";
    for (name, amount) in amounts.entries() {
        let is_known = ["cpu", "memory", "ephemeral-storage"].contains(&name)
            || [DEVICE_DOMAIN, HUGE_PAGES].iter().any(|prefix| name.starts_with(prefix));
        if !is_known && !is_none(amount.value) {
            amount.forbidden(format!("{NODLET} {WHY}"));
        }
    }
}

/// Warns about unknown capability names, which neither add nor drop anything.
fn capabilities(container: Field<'_, '_>, warnings: &mut First<String>) {
    let context = container.child("securityContext");
    let capabilities = context.child("capabilities");
    for capability in ["add", "drop"].iter().flat_map(|list| capabilities.items(list)) {
        let name = capability.text();
        let upper = name.to_ascii_uppercase();
        let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
        if bare != "ALL" && !CAPABILITIES.contains(&bare) {
            let why = format!("has no effect: {name:?} is none of the capabilities that Linux has");
            warnings.push(format!("{}: {why}", capability.path));
        }
    }
}

/// Devices that every container may use.
const COMMON_DEVICES: [&str; 7] = ["null", "zero", "full", "random", "urandom", "tty", "net/tun"];

/// What is below `/dev` and no device.
const NO_DEVICES: [&str; 6] = ["shm", "mqueue", "pts", "log", "hugepages", "net"];

/// Warns about a device by hostPath in a container that is not privileged: opening it fails there.
fn devices(spec: Field<'_, '_>, warnings: &mut First<String>) {
    // The first container that mounts a volume and is not privileged.
    let mut denied: BTreeMap<&str, &str> = BTreeMap::new();
    for container in CONTAINERS.iter().flat_map(|field| list(spec.value, field)) {
        if container["securityContext"]["privileged"] != true {
            for mount in list(container, "volumeMounts") {
                denied.entry(text(mount, "name")).or_insert(text(container, "name"));
            }
        }
    }
    for volume in spec.items("volumes") {
        let source = volume.child("hostPath");
        let Some(file) = source.value["path"].as_str() else { continue };
        let below = file.strip_prefix("/dev").map(|rest| rest.trim_matches('/'));
        let is_device = match text(source.value, "type") {
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
        if let Some(name) = denied.get(text(volume.value, "name")) {
            warnings.push(format!(
                "{}: container {name:?} is not privileged, and opening the device {file} fails there (Operation not \
                 permitted): request a device of the board in resources (nodlet.dev/<name>), or set \
                 securityContext.privileged",
                source.path
            ));
        }
    }
}

/// Warns about fractional byte values, as Kubernetes' API does (`GetWarningsForPod`): `m` for thousandths
/// instead of `M`.
fn fractions(container: Field<'_, '_>, warnings: &mut First<String>) {
    let resources = container.child("resources");
    for list in ["limits", "requests"].map(|field| resources.child(field)) {
        for name in ["memory", "ephemeral-storage"] {
            let of = |list: &Value| list[name].as_str().map(str::to_owned);
            let Some(text) = of(list.value).or_else(|| of(&resources.value["limits"])) else { continue };
            if let (Ok(amount), Ok(text)) = (Quantity::parse(&text), Quantity::shown(&text, true))
                && !amount.is_whole()
            {
                let path = list.path.key(name);
                warnings
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
