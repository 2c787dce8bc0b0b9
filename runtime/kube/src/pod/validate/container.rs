//! Containers: names, ports, environment, mounts, security context.

use crate::object::check::{invalid, one_of};
use crate::object::field::{Errors, FieldError, Path};
use crate::object::value::{flag, list, number, text};
use crate::object::{check, rules};
use nodlet_core::sorted::SortedSet;
use serde_json::{Value, json};

use super::port;
use nodlet_core::spec::{MAX_CONTAINERS, Quantity};

/// Field paths from which an environment variable may take its value; annotations and labels with `[…]` as
/// well.
const FIELD_PATHS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Field paths that Kubernetes knows but does not allow for variables.
const OTHER_FIELD_PATHS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "spec.restartPolicy", "spec.schedulerName", "status.phase"];

/// The fields of a security context in the order of Kubernetes' internal type.
const SECURITY_CONTEXT: [&str; 12] = [
    "Capabilities",
    "Privileged",
    "SELinuxOptions",
    "WindowsOptions",
    "RunAsUser",
    "RunAsGroup",
    "RunAsNonRoot",
    "ReadOnlyRootFilesystem",
    "AllowPrivilegeEscalation",
    "ProcMount",
    "SeccompProfile",
    "AppArmorProfile",
];

/// Checks all of `spec.containers`.
pub(super) fn all(spec: &Value, volumes: &SortedSet<&str>, path: &Path<'_>, errors: &mut Errors) {
    let containers = list(spec, "containers");
    if containers.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let count = count(spec);
    if count > MAX_CONTAINERS {
        // Kubernetes has no such bound, and no pod in practice has nearly as many containers.
        errors.push(FieldError::too_many(path, count, MAX_CONTAINERS));
        return;
    }
    let mut names = SortedSet::new();
    for (index, container) in containers.iter().enumerate() {
        let path = path.index(index);
        common(spec, container, volumes, &path, errors);
        let name = text(container, "name");
        if !names.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        super::lifecycle::lifecycle(spec, container, &path, errors);
        super::probe::all(container, &path, errors);
        super::lifecycle::restart_policy(container, &path, errors);
    }
    host_ports(containers, path, errors);
}

/// The number of containers and init containers, which share one list of indexes.
pub(super) fn count(spec: &Value) -> usize {
    list(spec, "containers").len() + list(spec, "initContainers").len()
}

/// Checks all of `spec.initContainers`.
pub(super) fn init(spec: &Value, volumes: &SortedSet<&str>, path: &Path<'_>, errors: &mut Errors) {
    if count(spec) > MAX_CONTAINERS {
        return;
    }
    let containers = list(spec, "initContainers");
    let mut names: SortedSet<&str> =
        list(spec, "containers").iter().map(|container| text(container, "name")).collect();
    for (index, container) in containers.iter().enumerate() {
        let at = path.index(index);
        common(spec, container, volumes, &at, errors);
        if container.get("restartPolicy").is_some() {
            super::lifecycle::restart_policy(container, &at, errors);
        } else if !list(container, "restartPolicyRules").is_empty() {
            let why = "must specify restartPolicy when restart rules are used";
            errors.push(FieldError::required(&at.child("restartPolicy"), why));
        }
        let name = text(container, "name");
        if names.contains(name) {
            errors.push(FieldError::duplicate(&at.child("name"), name));
        } else if !name.is_empty() {
            names.insert(name);
        }
        // Init containers run one by one, so each is checked alone. Kubernetes calls each of them the first.
        host_ports(std::slice::from_ref(container), path, errors);
        let sidecar = text(container, "restartPolicy") == "Always";
        if sidecar {
            super::lifecycle::lifecycle(spec, container, &at, errors);
            super::probe::all(container, &at, errors);
        } else {
            only_of_sidecars(container, &at, errors);
        }
    }
}

fn only_of_sidecars(container: &Value, path: &Path<'_>, errors: &mut Errors) {
    for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
        if container.get(field).is_some() {
            let why = "may not be set for init containers without restartPolicy=Always";
            errors.push(FieldError::forbidden(&path.child(field), why));
        }
    }
    let resizes = path.child("resizePolicy");
    for (index, policy) in list(container, "resizePolicy").iter().enumerate() {
        if text(policy, "restartPolicy") == "RestartContainer" {
            let resize = resizes.index(index);
            errors.push(FieldError::invalid(
                &resize.child("restartPolicy"),
                "RestartContainer",
                "must not be set to 'RestartContainer' for non-sidecar initContainers",
            ));
        }
    }
}

pub(super) fn common(
    spec: &Value,
    container: &Value,
    volumes: &SortedSet<&str>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let name = text(container, "name");
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    } else {
        invalid(&path.child("name"), name, rules::dns_label(name), errors);
    }
    if text(container, "image").is_empty() {
        errors.push(FieldError::required(&path.child("image"), ""));
    }
    one_of(
        &path.child("terminationMessagePolicy"),
        text(container, "terminationMessagePolicy"),
        &["File", "FallbackToLogsOnError"],
        errors,
    );
    ports(list(container, "ports"), &path.child("ports"), errors);
    env(list(container, "env"), &path.child("env"), errors);
    env_from(list(container, "envFrom"), &path.child("envFrom"), errors);
    mounts(container, volumes, &path.child("volumeMounts"), errors);
    devices(container, volumes, &path.child("volumeDevices"), errors);
    one_of(
        &path.child("imagePullPolicy"),
        text(container, "imagePullPolicy"),
        &["Always", "IfNotPresent", "Never"],
        errors,
    );
    super::resources::requirements(&container["resources"], &path.child("resources"), errors);
    super::resources::resize_policy(
        list(container, "resizePolicy"),
        text(spec, "restartPolicy") == "Never",
        &path.child("resizePolicy"),
        errors,
    );
    security_context(spec, &container["securityContext"], &path.child("securityContext"), errors);
}

fn ports(ports: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let mut names = SortedSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = path.index(index);
        let name = text(port, "name");
        if !name.is_empty() {
            let details = rules::port_name(name);
            if !details.is_empty() {
                invalid(&path.child("name"), name, details, errors);
            } else if !names.insert(name) {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
        }
        match number(port, "containerPort") {
            0 => errors.push(FieldError::required(&path.child("containerPort"), "")),
            value => port::number(value, &path.child("containerPort"), errors),
        }
        match number(port, "hostPort") {
            0 => {}
            value => port::number(value, &path.child("hostPort"), errors),
        }
        one_of(&path.child("protocol"), text(port, "protocol"), &["SCTP", "TCP", "UDP"], errors);
    }
}

/// Checks that no two ports of the host are equal over all containers.
fn host_ports(containers: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let mut taken = SortedSet::new();
    for (index, container) in containers.iter().enumerate() {
        let path = path.index(index);
        let path = path.child("ports");
        for (index, port) in list(container, "ports").iter().enumerate() {
            let host_port = number(port, "hostPort");
            let path = path.index(index);
            if host_port != 0 {
                let place = format!("{}/{}/{host_port}", text(port, "protocol"), text(port, "hostIP"));
                if taken.contains(&place) {
                    errors.push(FieldError::duplicate(&path.child("hostPort"), &place));
                }
                taken.insert(place);
            }
        }
    }
}

fn env(variables: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for (index, variable) in variables.iter().enumerate() {
        let path = path.index(index);
        let name = text(variable, "name");
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            invalid(&path.child("name"), name, rules::env_name(name), errors);
        }
        let Some(source) = variable.get("valueFrom") else { continue };
        let path = path.child("valueFrom");
        let sources = source.as_object().map_or(0, serde_json::Map::len);
        if let Some(field) = source.get("fieldRef") {
            field_ref(field, &FIELD_PATHS, &path.child("fieldRef"), errors);
        }
        if let Some(field) = source.get("resourceFieldRef") {
            resource_field_ref(field, false, &path.child("resourceFieldRef"), errors);
        }
        for reference in ["configMapKeyRef", "secretKeyRef"] {
            if let Some(key) = source.get(reference) {
                key_selector(key, &path.child(reference), errors);
            }
        }
        if let Some(file) = source.get("fileKeyRef") {
            let path = path.child("fileKeyRef");
            let (key, volume, place) = (text(file, "key"), text(file, "volumeName"), text(file, "path"));
            for (field, value, details) in [
                ("key", key, rules::env_name(key)),
                ("volumeName", volume, rules::dns_label(volume)),
                ("path", place, Vec::new()),
            ] {
                match value {
                    "" => errors.push(FieldError::required(&path.child(field), "")),
                    value => invalid(&path.child(field), value, details, errors),
                }
            }
            check::no_back_steps(place, &path.child("path"), errors);
        }
        if sources == 0 {
            errors.push(FieldError::invalid(
                &path,
                "",
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
            ));
        } else if !text(variable, "value").is_empty() {
            errors.push(FieldError::invalid(&path, "", "may not be specified when `value` is not empty"));
        } else if sources > 1 {
            errors.push(FieldError::invalid(
                &path,
                "",
                "may not have more than one field specified at a time",
            ));
        }
    }
}

/// `ValidateEnvFrom`.
fn env_from(sources: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for (index, source) in sources.iter().enumerate() {
        let at = path.index(index);
        let prefix = text(source, "prefix");
        if !prefix.is_empty() {
            invalid(&at.child("prefix"), prefix, rules::env_name(prefix), errors);
        }
        let references: Vec<&str> =
            ["configMapRef", "secretRef"].into_iter().filter(|name| source.get(name).is_some()).collect();
        for reference in &references {
            let path = at.child(reference);
            match text(&source[*reference], "name") {
                "" => errors.push(FieldError::required(&path.child("name"), "")),
                name => invalid(&path.child("name"), name, rules::dns_subdomain(name), errors),
            }
        }
        match references.len() {
            0 => errors.push(FieldError::invalid(
                path,
                "",
                "must specify one of: `configMapRef` or `secretRef`",
            )),
            1 => {}
            _ => errors.push(FieldError::invalid(
                path,
                "",
                "may not have more than one field specified at a time",
            )),
        }
    }
}

/// `validateConfigMapKeySelector` and `validateSecretKeySelector`, which are equal.
fn key_selector(selector: &Value, path: &Path<'_>, errors: &mut Errors) {
    let name = text(selector, "name");
    invalid(&path.child("name"), name, rules::dns_subdomain(name), errors);
    match text(selector, "key") {
        "" => errors.push(FieldError::required(&path.child("key"), "")),
        key => invalid(&path.child("key"), key, rules::config_map_key(key), errors),
    }
}

/// `validateContainerResourceFieldSelector`.
pub(super) fn resource_field_ref(field: &Value, in_volume: bool, path: &Path<'_>, errors: &mut Errors) {
    const RESOURCES: [&str; 6] = [
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    const BINARY: [&str; 13] =
        ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
    let resource = text(field, "resource");
    let is_huge_pages =
        resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-");
    if in_volume && text(field, "containerName").is_empty() {
        errors.push(FieldError::required(&path.child("containerName"), ""));
    } else if resource.is_empty() {
        errors.push(FieldError::required(&path.child("resource"), ""));
    } else if !RESOURCES.contains(&resource) && !is_huge_pages {
        errors.push(FieldError::not_supported(&path.child("resource"), resource, &RESOURCES));
    }
    let divisor = text(field, "divisor");
    if Quantity::parse(divisor).is_ok_and(|divisor| divisor.is_zero()) {
        return;
    }
    let (allowed, list, what): (&[&str], _, _) = match resource {
        "limits.cpu" | "requests.cpu" => (&["1m", "1"], "1m and 1", "cpu"),
        "limits.memory" | "requests.memory" => (&BINARY, BINARY_DIVISORS, "memory"),
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => {
            (&BINARY, BINARY_DIVISORS, "local ephemeral storage")
        }
        _ if is_huge_pages => (&BINARY, BINARY_DIVISORS, "hugepages"),
        _ => return,
    };
    if !allowed.contains(&divisor) {
        let detail = format!("only divisor's values {list} are supported with the {what} resource");
        errors.push(FieldError::invalid(&path.child("divisor"), resource, detail));
    }
}

/// The divisors of byte quantities, as errors list them.
const BINARY_DIVISORS: &str = "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei";

/// `validateObjectFieldSelector`, which allows `paths` and the subscripts of labels and annotations.
pub(super) fn field_ref(field: &Value, paths: &[&str], path: &Path<'_>, errors: &mut Errors) {
    let (version, label) = (text(field, "apiVersion"), text(field, "fieldPath"));
    if label.is_empty() {
        errors.push(FieldError::required(&path.child("fieldPath"), ""));
        return;
    }
    let no = |reason: String, errors: &mut Errors| {
        errors.push(FieldError::invalid(
            &path.child("fieldPath"),
            label,
            format!("error converting fieldPath: {reason}"),
        ));
    };
    if version != "v1" {
        return no(format!("unsupported pod version: {version}"), errors);
    }
    match subscript(label) {
        Some(("metadata.annotations", key)) => {
            invalid(path, &key.to_ascii_lowercase(), rules::qualified_name(&key.to_ascii_lowercase()), errors)
        }
        Some(("metadata.labels", key)) => invalid(path, key, rules::qualified_name(key), errors),
        Some(_) => no(format!("field label does not support subscript: {label}"), errors),
        // Clients before 1.0 sent `spec.host`.
        None if paths.contains(&label) => {}
        // Clients before 1.0 sent this name.
        None if label == "spec.host" && paths.contains(&"spec.nodeName") => {}
        None if FIELD_PATHS.contains(&label) || OTHER_FIELD_PATHS.contains(&label) => {
            errors.push(FieldError::not_supported(&path.child("fieldPath"), label, paths));
        }
        None => no(format!("field label not supported: {label}"), errors),
    }
}

/// `path` and `key` of `path['key']`.
pub(crate) fn subscript(label: &str) -> Option<(&str, &str)> {
    let (path, key) = label.strip_suffix("']")?.split_once("['")?;
    (!path.is_empty()).then_some((path, key))
}

/// Names in `/dev` that every container has of its own.
const OWN_DEVICES: [&str; 16] = [
    "console", "core", "fd", "full", "kcore", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr",
    "stdin", "stdout", "tty", "zero",
];

/// `ValidateVolumeDevices`. Whether a volume is one of a claim is checked at the start of the container.
/// Stands for the error of a name that is not found.
const NOT_FOUND: &str = "not found";

fn devices(container: &Value, volumes: &SortedSet<&str>, path: &Path<'_>, errors: &mut Errors) {
    let (mut names, mut places) = (SortedSet::new(), SortedSet::new());
    let mounts = list(container, "volumeMounts");
    for (index, device) in list(container, "volumeDevices").iter().enumerate() {
        let at = path.index(index);
        let (name, place) = (text(device, "name"), text(device, "devicePath"));
        let mut refuse = |field: &str, value: &str, why: &str| {
            errors.push(match why {
                "" => FieldError::required(&at.child(field), ""),
                NOT_FOUND => FieldError::not_found(&at.child(field), value),
                why => FieldError::invalid(&at.child(field), value, why),
            });
        };
        if name.is_empty() {
            refuse("name", name, "");
        } else if !names.insert(name) {
            refuse("name", name, "must be unique");
        }
        if !volumes.contains(name) {
            refuse("name", name, NOT_FOUND);
        }
        if place.is_empty() {
            refuse("devicePath", place, "");
        }
        if !places.insert(place) {
            refuse("devicePath", place, "must be unique");
        }
        if place.split('/').any(|part| part == "..") {
            refuse("devicePath", place, "can not contain backsteps ('..')");
        } else if !place.is_empty() {
            let own = place.strip_prefix("/dev/").unwrap_or_default();
            let is_name = !own.is_empty() && !own.contains('/') && own != ".";
            if !is_name || own == "urandom" || OWN_DEVICES.contains(&own) {
                let why = "nodlet makes devices directly in /dev, under names that no container has already";
                refuse("devicePath", place, why);
            }
        }
        if mounts.iter().any(|mount| text(mount, "name") == name) {
            refuse("name", name, "must not already exist in volumeMounts");
        }
        if mounts.iter().any(|mount| text(mount, "mountPath") == place) {
            refuse("devicePath", place, "must not already exist as a path in volumeMounts");
        }
    }
}

fn mounts(container: &Value, volumes: &SortedSet<&str>, path: &Path<'_>, errors: &mut Errors) {
    let privileged = container["securityContext"]["privileged"] == json!(true);
    let mut places = SortedSet::new();
    for (index, mount) in list(container, "volumeMounts").iter().enumerate() {
        let at = path.index(index);
        let (name, place) = (text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            errors.push(FieldError::required(&at.child("name"), ""));
        }
        if !volumes.contains(name) {
            errors.push(FieldError::not_found(&at.child("name"), name));
        }
        if place.is_empty() {
            errors.push(FieldError::required(&at.child("mountPath"), ""));
        }
        if !places.insert(place) {
            errors.push(FieldError::invalid(&at.child("mountPath"), place, "must be unique"));
        }
        let sub_path = text(mount, "subPath");
        // Kubernetes omits the index in these paths.
        check::descending(sub_path, &path.child("subPath"), errors);
        let expression = text(mount, "subPathExpr");
        if !expression.is_empty() && !sub_path.is_empty() {
            let detail = "subPathExpr and subPath are mutually exclusive";
            errors.push(FieldError::invalid(&at.child("subPathExpr"), expression, detail));
        }
        check::descending(expression, &path.child("subPathExpr"), errors);
        if let Some(propagation) = mount["mountPropagation"].as_str() {
            let kinds = ["Bidirectional", "HostToContainer", "None"];
            if !kinds.contains(&propagation) {
                errors.push(FieldError::not_supported(&path.child("mountPropagation"), propagation, &kinds));
            }
            if propagation == "Bidirectional" && !privileged {
                errors.push(FieldError::forbidden(
                    &path.child("mountPropagation"),
                    "Bidirectional mount propagation is available only to privileged containers",
                ));
            }
        }
        recursive_read_only(mount, &path.child("recursiveReadOnly"), errors);
    }
}

fn recursive_read_only(mount: &Value, path: &Path<'_>, errors: &mut Errors) {
    match mount["recursiveReadOnly"].as_str() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if !flag(mount, "readOnly") {
                errors.push(FieldError::forbidden(path, "may only be specified when readOnly is true"));
            }
            if !matches!(mount["mountPropagation"].as_str(), None | Some("None")) {
                errors.push(FieldError::forbidden(
                    path,
                    "may only be specified when mountPropagation is None or not specified",
                ));
            }
        }
        Some(other) => {
            errors.push(FieldError::not_supported(path, other, &["Disabled", "Enabled", "IfPossible"]))
        }
    }
}

fn security_context(spec: &Value, context: &Value, path: &Path<'_>, errors: &mut Errors) {
    check::id(context, "runAsUser", path, errors);
    check::id(context, "runAsGroup", path, errors);
    match context["procMount"].as_str() {
        None | Some("Default") => {}
        Some("Unmasked") if spec["hostUsers"] == json!(false) => {}
        Some("Unmasked") => errors.push(FieldError::invalid(
            &path.child("procMount"),
            "Unmasked",
            "`hostUsers` must be false to use `Unmasked`",
        )),
        Some(other) => {
            errors.push(FieldError::not_supported(&path.child("procMount"), other, &["Default", "Unmasked"]))
        }
    }
    super::security::seccomp_profile(context, path, errors);
    if context["allowPrivilegeEscalation"] == json!(false) {
        if context["privileged"] == json!(true) {
            errors.push(FieldError::invalid_printed(
                path,
                super::security::internal(context, &SECURITY_CONTEXT),
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            ));
        }
        if list(&context["capabilities"], "add").iter().any(|name| name == "CAP_SYS_ADMIN") {
            errors.push(FieldError::invalid_printed(
                path,
                super::security::internal(context, &SECURITY_CONTEXT),
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            ));
        }
    }
    super::security::app_armor_profile(context, path, errors);
}
