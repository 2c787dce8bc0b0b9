//! Validates a defaulted Pod, and reports all errors with Kubernetes' messages and in its order.
//!
//! Fields below one that nodlet rejects as a whole ([`crate::schema::verdict`]) are not validated. Maps are validated
//! in the order of their keys; Kubernetes' order is random.

pub(crate) mod affinity;
mod container;
mod ephemeral;
mod gates;
mod lifecycle;
mod port;
mod probe;
mod projection;
pub(crate) mod resources;

use crate::object::rules;
use nodlet_core::sorted::SortedSet;
use serde_json::Value;

use super::claim;
use crate::object::check::{descending, id, invalid, labels, no_back_steps, not_negative, one_of, supported};
use crate::object::field::{Errors, FieldError, Path, quoted};
use crate::object::value::{flag, list, map, number, optional_number, text};
use nodlet_core::spec::container::HUGE_PAGES;
use nodlet_core::spec::{Quantity, sysctl};

/// Maximum size of the keys and values of all annotations in bytes.
const ANNOTATIONS: usize = 256 * 1024;

/// The values of `pullPolicy`, in the order of printing.
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];

/// Maximum size of a file's name in bytes (`NAME_MAX`).
const FILE_NAME: usize = 255;

/// Length of a UID as Kubernetes generates it, which is assumed for shorter or missing ones.
const UID: usize = 36;

pub(crate) use ephemeral::only_added;
pub(crate) use resources::of_containers;

/// Rejects ephemeral containers in a new pod: they are added to existing pods, through a subresource.
pub(super) fn no_ephemeral(pod: &Value, errors: &mut Errors) {
    if !list(&pod["spec"], "ephemeralContainers").is_empty() {
        let path = Path::root("spec");
        errors.push(FieldError::forbidden(&path.child("ephemeralContainers"), "cannot be set on create"));
    }
}

/// Returns all errors of a Pod.
pub(super) fn pod(pod: &Value) -> Errors {
    let mut errors = Errors::default();
    metadata(&pod["metadata"], &Path::root("metadata"), &mut errors);
    annotations(pod, &mut errors);
    spec(&pod["spec"], &Path::root("spec"), &mut errors);
    for field in ["containers", "initContainers"] {
        images(list(&pod["spec"], field), &Path::root("spec").child(field), &mut errors);
    }
    errors
}

fn images(containers: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for (index, container) in containers.iter().enumerate() {
        let image = text(container, "image");
        if image.trim() != image {
            let path = path.index(index);
            errors.push(FieldError::invalid(
                &path.child("image"),
                image,
                "must not have leading or trailing whitespace",
            ));
        }
    }
}

fn metadata(meta: &Value, path: &Path<'_>, errors: &mut Errors) {
    let name = text(meta, "name");
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), "name or generateName is required"));
    } else {
        invalid(&path.child("name"), name, rules::dns_subdomain(name), errors);
    }
    let namespace = text(meta, "namespace");
    invalid(&path.child("namespace"), namespace, rules::dns_label(namespace), errors);
    let uid = text(meta, "uid").len().max(UID);
    let room = FILE_NAME.saturating_sub(namespace.len() + uid + 2);
    if name.len() > room && rules::dns_subdomain(name).is_empty() {
        let why = format!(
            "must have no more than {room} characters in this namespace: the directory of the pod's logs is \
             named NAMESPACE_NAME_UID"
        );
        invalid(&path.child("name"), name, vec![why], errors);
    }
    let generation = number(meta, "generation");
    if generation < 0 {
        errors.push(not_negative(&path.child("generation"), generation));
    }
    labels(&meta["labels"], &path.child("labels"), errors);
    let path_of = path.child("annotations");
    let mut size = 0;
    for (key, value) in map(&meta["annotations"]) {
        invalid(&path_of, key, rules::qualified_name(&key.to_lowercase()), errors);
        size += key.len() + value.as_str().unwrap_or_default().len();
    }
    if size > ANNOTATIONS {
        errors.push(FieldError::too_long(&path_of, ANNOTATIONS));
    }
    for owner in list(meta, "ownerReferences") {
        // Kubernetes leaves the index out of these paths.
        owner_reference(owner, &path.child("ownerReferences"), errors);
    }
    let finalizers = || list(meta, "finalizers").iter().filter_map(Value::as_str);
    for finalizer in finalizers() {
        invalid(&path.child("finalizers"), finalizer, rules::qualified_name(finalizer), errors);
    }
    for (index, finalizer) in finalizers().enumerate() {
        if !finalizer.contains('/') && !["kubernetes", "orphan", "foregroundDeletion"].contains(&finalizer) {
            let path = path.child("finalizers");
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(&path.index(index), finalizer, detail));
        }
    }
    // Kubernetes makes uids itself. Ours may come from a file, and name directories.
    let uid = text(meta, "uid");
    if !uid.is_empty() {
        invalid(&path.child("uid"), uid, rules::dns_label(uid), errors);
    }
}

fn owner_reference(owner: &Value, path: &Path<'_>, errors: &mut Errors) {
    for field in ["apiVersion", "kind", "name", "uid"] {
        if text(owner, field).is_empty() {
            let detail =
                if field == "apiVersion" { "version must not be empty" } else { "must not be empty" };
            errors.push(FieldError::invalid(&path.child(field), "", detail));
        }
    }
}

/// The prefix of annotations that name a container and its AppArmor profile.
pub(crate) const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
/// The annotation that names the seccomp profile of a pod.
pub(super) const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
/// The prefix of annotations that name a container and its seccomp profile.
pub(super) const SECCOMP_OF_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
/// The annotation of a mirror pod.
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";

/// `ValidatePodSpecificAnnotations`.
fn annotations(pod: &Value, errors: &mut Errors) {
    const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
    let path = Path::root("metadata");
    let path = path.child("annotations");
    let annotations = &pod["metadata"]["annotations"];
    if let Some(cost) = annotations[COST].as_str()
        && cost.parse::<i32>().is_err()
    {
        errors.push(FieldError::invalid(&path.key(COST), cost, "must be a 32bit integer"));
    }
    for (key, profile) in map(annotations) {
        let profile = profile.as_str().unwrap_or_default();
        if key == SECCOMP_OF_POD || key.starts_with(SECCOMP_OF_CONTAINER) {
            seccomp_annotation(profile, &path.child(key), errors);
        }
        if let Some(container) = key.strip_prefix(APPARMOR) {
            let fields = ["initContainers", "containers", "ephemeralContainers"];
            let mut all = fields.into_iter().flat_map(|field| list(&pod["spec"], field));
            if !all.any(|known| text(known, "name") == container) {
                errors.push(FieldError::invalid(&path.key(key), container, "container not found"));
            }
            if !["", "runtime/default", "unconfined"].contains(&profile) && !profile.starts_with("localhost/")
            {
                let detail = format!("invalid AppArmor profile name: {}", quoted(profile));
                errors.push(FieldError::invalid(&path.key(key), profile, detail));
            }
        }
    }
}

/// `ValidateSeccompProfile`.
fn seccomp_annotation(profile: &str, path: &Path<'_>, errors: &mut Errors) {
    if ["runtime/default", "docker/default", "unconfined"].contains(&profile) {
        return;
    }
    match profile.strip_prefix("localhost/") {
        Some(file) if file.starts_with('/') => {
            errors.push(FieldError::invalid(path, file, "must be a relative path"));
        }
        Some(file) if file.split('/').any(|part| part == "..") => {
            errors.push(FieldError::invalid(path, file, "must not contain '..'"));
        }
        Some(_) => {}
        None => errors.push(FieldError::invalid(path, profile, "must be a valid seccomp profile")),
    }
}

fn spec(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    huge_pages_media(spec, &path.child("volumes"), errors);
    let volumes = volumes(list(spec, "volumes"), &path.child("volumes"), errors);
    container::all(spec, &volumes, &path.child("containers"), errors);
    container::init(spec, &volumes, &path.child("initContainers"), errors);
    ephemeral::all(spec, &volumes, &path.child("ephemeralContainers"), errors);
    resources::of_pod(spec, path, errors);
    file_key_volumes(spec, path, errors);
    host_network(spec, path, errors);
    one_of(
        &path.child("restartPolicy"),
        text(spec, "restartPolicy"),
        &["Always", "OnFailure", "Never"],
        errors,
    );
    one_of(
        &path.child("dnsPolicy"),
        text(spec, "dnsPolicy"),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        errors,
    );
    labels(&spec["nodeSelector"], &path.child("nodeSelector"), errors);
    security_context(spec, &path.child("securityContext"), errors);
    affinity::node(&spec["affinity"]["nodeAffinity"], &path.child("affinity"), errors);
    dns_config(spec, &path.child("dnsConfig"), errors);
    host_users(spec, path, errors);
    for (field, rule) in [
        ("serviceAccountName", rules::dns_subdomain as fn(&str) -> Vec<String>),
        ("nodeName", rules::dns_subdomain),
    ] {
        let value = text(spec, field);
        if !value.is_empty() {
            invalid(&path.child(field), value, rule(value), errors);
        }
    }
    if let Some(seconds) = optional_number(spec, "activeDeadlineSeconds")
        && let Some(error) = rules::range(seconds, 1, i64::from(i32::MAX))
    {
        errors.push(FieldError::invalid_value(&path.child("activeDeadlineSeconds"), &seconds.into(), error));
    }
    for field in ["hostname", "subdomain"] {
        let value = text(spec, field);
        if !value.is_empty() {
            invalid(&path.child(field), value, rules::dns_label(value), errors);
        }
    }
    hostname_override(spec, path, errors);
    gates::all(spec, path, errors);
    tolerations(list(spec, "tolerations"), &path.child("tolerations"), errors);
    host_aliases(list(spec, "hostAliases"), &path.child("hostAliases"), errors);
    let class = text(spec, "priorityClassName");
    if !class.is_empty() {
        invalid(&path.child("priorityClassName"), class, rules::dns_subdomain(class), errors);
    }
    let class = text(spec, "runtimeClassName");
    if !class.is_empty() {
        invalid(&path.child("runtimeClassName"), class, rules::dns_subdomain(class), errors);
    }
    resources::overhead(&spec["overhead"], &path.child("overhead"), errors);
    if spec.get("preemptionPolicy").is_some() {
        let policy = text(spec, "preemptionPolicy");
        one_of(&path.child("preemptionPolicy"), policy, &["PreemptLowerPriority", "Never"], errors);
    }
    if let Some(os) = spec.get("os") {
        let path = path.child("os");
        match text(os, "name") {
            "" => errors.push(FieldError::required(&path.child("name"), "")),
            "linux" | "windows" => {}
            other => errors.push(FieldError::not_supported(&path, other, &["linux", "windows"])),
        }
    }
}

/// Validates volumes, and returns the names of the valid ones.
fn volumes<'a>(volumes: &'a [Value], path: &Path<'_>, errors: &mut Errors) -> SortedSet<&'a str> {
    let mut names = SortedSet::new();
    for (index, volume) in volumes.iter().enumerate() {
        let path = path.index(index);
        let before = errors.len();
        volume_source(volume, &path, errors);
        let name = text(volume, "name");
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            invalid(&path.child("name"), name, rules::dns_label(name), errors);
        }
        if names.contains(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        if errors.len() == before {
            names.insert(name);
        }
    }
    names
}

fn volume_source(volume: &Value, path: &Path<'_>, errors: &mut Errors) {
    // The order in which Kubernetes looks at the sources that nodlet has.
    let mut sources =
        map(volume).map(|(source, _)| source.as_str()).filter(|source| *source != "name").collect::<Vec<_>>();
    sources.sort_by_key(|source| match *source {
        "emptyDir" => 0,
        "hostPath" => 1,
        "secret" => 2,
        "downwardAPI" => 3,
        "persistentVolumeClaim" => 4,
        "configMap" => 5,
        "projected" => 6,
        "ephemeral" => 7,
        "image" => 8,
        _ => 9,
    });
    for (index, source) in sources.iter().enumerate() {
        let path = path.child(source);
        let value = &volume[*source];
        match *source {
            "emptyDir" => size_limit(value, &path.child("sizeLimit"), errors),
            _ if index > 0 => {
                errors.push(FieldError::forbidden(&path, "may not specify more than 1 volume type"))
            }
            "hostPath" => host_path(value, &path, errors),
            "secret" => projection::object(value, "secretName", &path, errors),
            "configMap" => projection::object(value, "name", &path, errors),
            "downwardAPI" => projection::downward_api(value, &path, errors),
            "projected" => projection::projected(value, &path, errors),
            "persistentVolumeClaim" if text(value, "claimName").is_empty() => {
                errors.push(FieldError::required(&path.child("claimName"), ""));
            }
            "image" => {
                if text(value, "reference").is_empty() {
                    errors.push(FieldError::required(&path.child("reference"), ""));
                }
                one_of(&path.child("pullPolicy"), text(value, "pullPolicy"), &PULL_POLICIES, errors);
            }
            "ephemeral" => match value.get("volumeClaimTemplate").filter(|template| !template.is_null()) {
                None => errors.push(FieldError::required(&path.child("volumeClaimTemplate"), "")),
                Some(template) => {
                    claim::claim_template(template, &path.child("volumeClaimTemplate"), errors);
                }
            },
            _ => {}
        }
    }
}

/// `validateFileKeyRefVolumes`: the agent reads files of emptyDir volumes on disk.
fn file_key_volumes(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        for (index, container) in list(spec, field).iter().enumerate() {
            for (place, variable) in list(container, "env").iter().enumerate() {
                let reference = &variable["valueFrom"]["fileKeyRef"];
                let name = text(reference, "volumeName");
                if name.is_empty() {
                    continue;
                }
                let path = path.child(field);
                let path = path.index(index);
                let path = path.child("env");
                let path = path.index(place);
                let path = path.child("valueFrom");
                let path = path.child("fileKeyRef");
                let path = path.child("volumeName");
                match list(spec, "volumes").iter().find(|volume| volume["name"] == name) {
                    None => errors.push(FieldError::not_found(&path, name)),
                    Some(volume) if volume.get("emptyDir").is_none() => errors.push(FieldError::invalid(
                        &path,
                        name,
                        "referenced volume must be of type emptyDir",
                    )),
                    Some(volume) if !text(&volume["emptyDir"], "medium").is_empty() => {
                        let detail = "nodlet reads no files of an emptyDir in memory; leave medium out";
                        errors.push(FieldError::forbidden(&path, detail));
                    }
                    Some(_) => {}
                }
            }
        }
    }
}

/// The `medium` of an emptyDir in huge pages; `-` and the size of the pages may follow.
pub(super) const HUGE_PAGES_MEDIUM: &str = "HugePages";

/// Checks `medium` of each emptyDir, which Kubernetes does only when it mounts the volume (`getPageSizeMountOption`).
fn huge_pages_media(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (index, volume) in list(spec, "volumes").iter().enumerate() {
        let medium = text(&volume["emptyDir"], "medium");
        if ["", "Memory"].contains(&medium) {
            continue;
        }
        let path = path.index(index);
        let path = path.child("emptyDir");
        let path = path.child("medium");
        let size = match medium.strip_prefix(HUGE_PAGES_MEDIUM) {
            Some("") => None,
            Some(size) if size.starts_with('-') => Some(&size[1..]),
            _ => {
                let media = ["", "HugePages", "HugePages-<size>", "Memory"];
                errors.push(FieldError::not_supported(&path, medium, &media));
                continue;
            }
        };
        let containers = list(spec, "containers").iter().chain(list(spec, "initContainers"));
        let all = containers.map(|container| &container["resources"]).chain(spec.get("resources"));
        let names = all.flat_map(|resources| map(&resources["limits"])).map(|(name, _)| name);
        let sizes: SortedSet<&str> = names.filter_map(|name| name.strip_prefix(HUGE_PAGES)).collect();
        if size.is_some_and(|size| !sizes.contains(size)) || sizes.is_empty() {
            let detail = "hugePages storage requested, but there is no resource request for huge pages";
            errors.push(FieldError::invalid(&path, medium, detail));
        } else if size.is_none() && sizes.len() > 1 {
            let detail = "can't be used if container requests multiple huge page sizes";
            errors.push(FieldError::invalid(&path, medium, detail));
        }
    }
}

fn size_limit(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    let size = Quantity::parse(text(source, "sizeLimit"));
    if size.is_ok_and(|size| size.is_negative()) {
        errors.push(FieldError::forbidden(path, "SizeLimit field must be a valid resource quantity"));
    }
}

/// Checks a `hostPath` volume source.
pub(crate) fn host_path(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    const TYPES: [&str; 8] =
        ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    let host = text(source, "path");
    if host.is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
        return;
    }
    no_back_steps(host, &path.child("path"), errors);
    let kind = text(source, "type");
    if !TYPES.contains(&kind) {
        errors.push(FieldError::not_supported(&path.child("type"), kind, &TYPES));
    }
}

fn host_network(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    if !flag(spec, "hostNetwork") {
        return;
    }
    let path = path.child("containers");
    for (index, container) in list(spec, "containers").iter().enumerate() {
        let path = path.index(index);
        let path = path.child("ports");
        for (index, port) in list(container, "ports").iter().enumerate() {
            let host_port = number(port, "hostPort");
            if host_port != number(port, "containerPort") {
                let path = path.index(index);
                errors.push(FieldError::invalid_value(
                    &path.child("hostPort"),
                    &host_port.into(),
                    "must match `containerPort` when `hostNetwork` is true",
                ));
            }
        }
    }
}

/// `validateHostUsers`.
fn host_users(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    const WHY: &str = "when `hostUsers` is false";
    if spec["hostUsers"] != Value::Bool(false) {
        return;
    }
    // Kubernetes capitalises two of the names.
    for (field, name) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if flag(spec, field) {
            errors.push(FieldError::forbidden(&path.child(name), WHY));
        }
    }
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        let path = path.child(field);
        for (index, container) in list(spec, field).iter().enumerate() {
            if !list(container, "volumeDevices").is_empty() {
                errors.push(FieldError::forbidden(&path.index(index).child("volumeDevices"), WHY));
            }
        }
    }
}

fn security_context(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let context = &spec["securityContext"];
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        id(context, field, path, errors);
    }
    for (index, group) in list(context, "supplementalGroups").iter().enumerate() {
        if let Some(error) = group.as_i64().and_then(|group| rules::range(group, 0, i64::from(i32::MAX))) {
            let path = path.child("supplementalGroups");
            errors.push(FieldError::invalid_value(&path.index(index), group, error));
        }
    }
    if flag(spec, "shareProcessNamespace") && flag(spec, "hostPID") {
        errors.push(FieldError::invalid_value(
            &path.child("shareProcessNamespace"),
            &Value::Bool(true),
            "ShareProcessNamespace and HostPID cannot both be enabled",
        ));
    }
    sysctls(spec, path, errors);
    if context.get("fsGroupChangePolicy").is_some() {
        supported(context, "fsGroupChangePolicy", path, &["Always", "OnRootMismatch"], errors);
    }
    seccomp_profile(context, path, errors);
    app_armor_profile(context, path, errors);
    if context.get("supplementalGroupsPolicy").is_some() {
        supported(context, "supplementalGroupsPolicy", path, &["Merge", "Strict"], errors);
    }
    if context.get("seLinuxChangePolicy").is_some() {
        supported(context, "seLinuxChangePolicy", path, &["Recursive"], errors);
    }
}

/// `validateSysctls`.
fn sysctls(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    const NAME: &str = "must have at most 253 characters and match regex \
        ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
    let all = list(&spec["securityContext"], "sysctls");
    let path = path.child("sysctls");
    for (index, one) in all.iter().enumerate() {
        let path = path.index(index);
        let path = path.child("name");
        let name = text(one, "name");
        if name.is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else if !sysctl::is_valid(name, false) {
            errors.push(FieldError::invalid(&path, name, NAME));
        } else if all[..index].iter().any(|earlier| text(earlier, "name") == name) {
            errors.push(FieldError::duplicate(&path, name));
        }
        match sysctl::namespace(name) {
            Some(sysctl::Namespace::Net) if flag(spec, "hostNetwork") => {
                let why = "may not be specified when 'hostNetwork' is true";
                errors.push(FieldError::invalid(&path, name, why));
            }
            Some(sysctl::Namespace::Ipc) if flag(spec, "hostIPC") => {
                errors.push(FieldError::invalid(&path, name, "may not be specified when 'hostIPC' is true"));
            }
            Some(sysctl::Namespace::Net | sysctl::Namespace::Ipc) | None => {}
        }
    }
}

/// `validateHostnameOverride`.
fn hostname_override(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(name) = spec.get("hostnameOverride").and_then(Value::as_str) else { return };
    let path = path.child("hostnameOverride");
    for field in ["setHostnameAsFQDN", "hostNetwork"] {
        if flag(spec, field) {
            errors.push(FieldError::forbidden(&path, format!("may not be specified when {field} is true")));
        }
    }
    if name.len() > 64 {
        errors.push(FieldError::too_long(&path, 64));
    }
    invalid(&path, name, rules::dns_subdomain(name), errors);
}

pub(super) fn seccomp_profile(context: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(profile) = context.get("seccompProfile") else { return };
    let path = path.child("seccompProfile");
    match text(profile, "type") {
        "" => errors
            .push(FieldError::required(&path.child("type"), "type is required when seccompProfile is set")),
        "Localhost" => match profile["localhostProfile"].as_str() {
            None => errors.push(FieldError::required(
                &path.child("localhostProfile"),
                "must be set when seccomp type is Localhost",
            )),
            Some(file) => descending(file, &path.child("localhostProfile"), errors),
        },
        kind => {
            if !["RuntimeDefault", "Unconfined"].contains(&kind) {
                let kinds = ["Localhost", "RuntimeDefault", "Unconfined"];
                errors.push(FieldError::not_supported(&path.child("type"), kind, &kinds));
            }
            if profile.get("localhostProfile").is_some() {
                errors.push(FieldError::invalid_printed(
                    &path.child("localhostProfile"),
                    internal(profile, &["Type", "LocalhostProfile"]),
                    "can only be set when seccomp type is Localhost",
                ));
            }
        }
    }
}

pub(super) fn app_armor_profile(context: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(profile) = context.get("appArmorProfile") else { return };
    let path = path.child("appArmorProfile");
    let file = profile["localhostProfile"].as_str();
    match (text(profile, "type"), file) {
        ("", _) => errors
            .push(FieldError::required(&path.child("type"), "type is required when appArmorProfile is set")),
        ("Localhost", None | Some("")) => errors.push(FieldError::required(
            &path.child("localhostProfile"),
            "must be set when AppArmor type is Localhost",
        )),
        ("Localhost", Some(file)) => {
            if file.trim() != file {
                errors.push(FieldError::invalid(
                    &path.child("localhostProfile"),
                    file,
                    "must not be padded with whitespace",
                ));
            }
            if file.len() > 4095 {
                errors.push(FieldError::too_long(&path.child("localhostProfile"), 4095));
            }
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("RuntimeDefault" | "Unconfined", Some(file)) => errors.push(FieldError::invalid(
            &path.child("localhostProfile"),
            file,
            "can only be set when AppArmor type is Localhost",
        )),
        (kind, _) => errors.push(FieldError::not_supported(
            &path.child("type"),
            kind,
            &["Localhost", "RuntimeDefault", "Unconfined"],
        )),
    }
}

/// Formats an object as Kubernetes prints its internal form: all fields in the order of the type, capitalized, with
/// null for unset fields.
pub(super) fn internal(object: &Value, fields: &[&str]) -> String {
    let printed = fields.iter().map(|field| {
        let mut name = field.replacen("SEL", "seL", 1);
        name[..1].make_ascii_lowercase();
        let value = match object.get(&name) {
            Some(capabilities) if *field == "Capabilities" => internal(capabilities, &["Add", "Drop"]),
            Some(profile) if field.ends_with("Profile") && profile.is_object() => {
                internal(profile, &["Type", "LocalhostProfile"])
            }
            Some(value) => value.to_string(),
            None => "null".to_owned(),
        };
        format!("\"{field}\":{value}")
    });
    format!("{{{}}}", printed.collect::<Vec<_>>().join(","))
}

fn dns_config(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let config = spec.get("dnsConfig");
    let nameservers = config.map_or(&[][..], |config| list(config, "nameservers"));
    if text(spec, "dnsPolicy") == "None" {
        if config.is_none() {
            errors.push(FieldError::required(path, "must provide `dnsConfig` when `dnsPolicy` is None"));
            return;
        }
        if nameservers.is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.push(FieldError::required(&path.child("nameservers"), detail));
            return;
        }
    }
    let Some(config) = config else { return };
    if nameservers.len() > 3 {
        let path = path.child("nameservers");
        errors.push(FieldError::invalid_value(
            &path,
            &config["nameservers"],
            "must not have more than 3 nameservers",
        ));
    }
    for (index, server) in nameservers.iter().enumerate() {
        let path = path.child("nameservers");
        let server = server.as_str().unwrap_or_default();
        invalid(&path.index(index), server, rules::ip(server), errors);
    }
    let searches = list(config, "searches");
    if searches.len() > 32 {
        let path = path.child("searches");
        errors.push(FieldError::invalid_value(
            &path,
            &config["searches"],
            "must not have more than 32 search paths",
        ));
    }
    let length = searches
        .iter()
        .filter_map(Value::as_str)
        .map(|search| search.len() + 1)
        .sum::<usize>()
        .saturating_sub(1);
    if length > 2048 {
        errors.push(FieldError::invalid_value(
            &path.child("searches"),
            &config["searches"],
            "must not have more than 2048 characters (including spaces) in the search list",
        ));
    }
    for (index, search) in searches.iter().filter_map(Value::as_str).enumerate() {
        if search != "." {
            let search = search.strip_suffix('.').unwrap_or(search);
            let path = path.child("searches");
            invalid(&path.index(index), search, rules::dns_subdomain_with_underscore(search), errors);
        }
    }
    for (index, option) in list(config, "options").iter().enumerate() {
        if text(option, "name").is_empty() {
            let path = path.child("options");
            errors.push(FieldError::required(&path.index(index), "must not be empty"));
        }
    }
}

pub(crate) fn tolerations(tolerations: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for (index, toleration) in tolerations.iter().enumerate() {
        let path = path.index(index);
        let (key, operator, value, effect) = (
            text(toleration, "key"),
            text(toleration, "operator"),
            text(toleration, "value"),
            text(toleration, "effect"),
        );
        if !key.is_empty() {
            invalid(&path.child("key"), key, rules::qualified_name(key), errors);
        } else if operator != "Exists" {
            errors.push(FieldError::invalid(
                &path.child("operator"),
                operator,
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            ));
        }
        if toleration.get("tolerationSeconds").is_some() && effect != "NoExecute" {
            errors.push(FieldError::invalid(
                &path.child("effect"),
                effect,
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            ));
        }
        match operator {
            "Equal" | "" => {
                let details = rules::label_value(value);
                if !details.is_empty() {
                    errors.push(FieldError::invalid(&path.child("operator"), value, details.join(";")));
                }
            }
            "Exists" if !value.is_empty() => errors.push(FieldError::invalid(
                &path.child("operator"),
                value,
                "value must be empty when `operator` is 'Exists'",
            )),
            "Exists" => {}
            "Lt" | "Gt" => errors.push(FieldError::not_supported(
                &path.child("operator"),
                operator,
                &["Equal", "Exists", "Lt", "Gt"],
            )),
            _ => errors.push(FieldError::not_supported(
                &path.child("operator"),
                operator,
                &["Equal", "Exists"],
            )),
        }
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        if !effect.is_empty() && !effects.contains(&effect) {
            errors.push(FieldError::not_supported(&path.child("effect"), effect, &effects));
        }
    }
}

fn host_aliases(aliases: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for (index, alias) in aliases.iter().enumerate() {
        let path = path.index(index);
        let ip = text(alias, "ip");
        invalid(&path.child("ip"), ip, rules::ip(ip), errors);
        for (index, hostname) in list(alias, "hostnames").iter().filter_map(Value::as_str).enumerate() {
            let path = path.child("hostnames");
            invalid(&path.index(index), hostname, rules::dns_subdomain(hostname), errors);
        }
    }
}

#[cfg(test)]
mod tests;
