//! Containers: names, ports, environment, mounts, security context.

use std::collections::BTreeSet;

use nodlet_core::sorted::SortedSet;
use nodlet_core::spec::{MAX_CONTAINERS, Quantity};
use serde_json::{Map, Value};

use super::{lifecycle, port, probe, resources, security};
use crate::object::check::Field;
use crate::object::rules;
use crate::object::value::{flag, list, text};

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

/// The values of `imagePullPolicy`, in the order of printing.
pub(super) const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];

/// The error of an object with two fields of which it may have one.
const SEVERAL_FIELDS: &str = "may not have more than one field specified at a time";

/// Checks all of `spec.containers`.
pub(super) fn all(spec: Field<'_, '_>, volumes: &SortedSet<&str>) {
    let containers = spec.child("containers");
    if list(spec.value, "containers").is_empty() {
        return containers.required("");
    }
    let count = count(spec.value);
    if count > MAX_CONTAINERS {
        // Kubernetes has no such bound, and no pod in practice has nearly as many containers.
        return containers.too_many(count, MAX_CONTAINERS);
    }
    let mut names = SortedSet::new();
    for container in spec.items("containers") {
        common(spec, container, volumes);
        container.child("name").unique(&mut names);
        lifecycle::lifecycle(spec, container);
        probe::all(container);
        lifecycle::restart_policy(container);
    }
    host_ports(spec.items("containers"));
}

/// The number of containers and init containers, which share one list of indexes.
pub(super) fn count(spec: &Value) -> usize {
    list(spec, "containers").len() + list(spec, "initContainers").len()
}

/// Checks all of `spec.initContainers`.
pub(super) fn init(spec: Field<'_, '_>, volumes: &SortedSet<&str>) {
    if count(spec.value) > MAX_CONTAINERS {
        return;
    }
    let regular = list(spec.value, "containers").iter();
    let mut names: SortedSet<&str> = regular.map(|container| text(container, "name")).collect();
    for container in spec.items("initContainers") {
        common(spec, container, volumes);
        let (name, restart) = (container.child("name"), container.child("restartPolicy"));
        if !restart.value.is_null() {
            lifecycle::restart_policy(container);
        } else if !list(container.value, "restartPolicyRules").is_empty() {
            restart.required("must specify restartPolicy when restart rules are used");
        }
        if !name.text().is_empty() || names.contains("") {
            name.unique(&mut names);
        }
        // Init containers run one by one, so each is checked alone. Kubernetes calls each of them the first.
        host_ports([spec.item("initContainers", 0).with(container.value)]);
        if restart.text() == "Always" {
            lifecycle::lifecycle(spec, container);
            probe::all(container);
        } else {
            only_of_sidecars(container);
        }
    }
}

fn only_of_sidecars(container: Field<'_, '_>) {
    let fields = ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"];
    for field in fields.into_iter().filter_map(|field| container.get(field)) {
        field.forbidden("may not be set for init containers without restartPolicy=Always");
    }
    for policy in container.items("resizePolicy") {
        let restart = policy.child("restartPolicy");
        if restart.text() == "RestartContainer" {
            restart.invalid("must not be set to 'RestartContainer' for non-sidecar initContainers");
        }
    }
}

pub(super) fn common(spec: Field<'_, '_>, container: Field<'_, '_>, volumes: &SortedSet<&str>) {
    container.child("name").check_required(rules::dns_label);
    container.child("image").require();
    container.child("terminationMessagePolicy").one_of(&["File", "FallbackToLogsOnError"]);
    ports(container);
    env(container);
    env_from(container);
    mounts(container, volumes);
    devices(container, volumes);
    container.child("imagePullPolicy").one_of(&PULL_POLICIES);
    resources::requirements(container.child("resources"));
    resources::resize_policy(container, text(spec.value, "restartPolicy") == "Never");
    security_context(spec, container.child("securityContext"));
}

fn ports(container: Field<'_, '_>) {
    let mut names = SortedSet::new();
    for port in container.items("ports") {
        let (name, number) = (port.child("name"), port.child("containerPort"));
        if !name.text().is_empty() && name.check(rules::port_name) {
            name.unique(&mut names);
        }
        if number.number() == 0 {
            number.required("");
        } else {
            port::check(number);
        }
        if port.child("hostPort").number() != 0 {
            port::check(port.child("hostPort"));
        }
        port.child("protocol").one_of(&["SCTP", "TCP", "UDP"]);
    }
}

/// Checks that no two ports of the host are equal over all containers.
fn host_ports<'v, 'p>(containers: impl IntoIterator<Item = Field<'v, 'p>>) {
    let mut taken = SortedSet::new();
    for container in containers {
        for port in container.items("ports") {
            let host_port = port.child("hostPort");
            let of = |field| text(port.value, field);
            let place = format!("{}/{}/{}", of("protocol"), of("hostIP"), host_port.number());
            if host_port.number() != 0 && !taken.insert(place.clone()) {
                host_port.duplicate_of(&place);
            }
        }
    }
}

fn env(container: Field<'_, '_>) {
    for variable in container.items("env") {
        variable.child("name").check_required(rules::env_name);
        let Some(source) = variable.get("valueFrom") else { continue };
        if let Some(field) = source.get("fieldRef") {
            field_ref(field, &FIELD_PATHS);
        }
        if let Some(field) = source.get("resourceFieldRef") {
            resource_field_ref(field, false);
        }
        let references = ["configMapKeyRef", "secretKeyRef"];
        references.into_iter().filter_map(|reference| source.get(reference)).for_each(key_selector);
        if let Some(file) = source.get("fileKeyRef") {
            file.child("key").check_required(rules::env_name);
            file.child("volumeName").check_required(rules::dns_label);
            file.child("path").require();
            file.child("path").no_back_steps();
        }
        match source.value.as_object().map_or(0, Map::len) {
            0 => source.invalid_text(
                "",
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
            ),
            _ if !text(variable.value, "value").is_empty() => {
                source.invalid_text("", "may not be specified when `value` is not empty");
            }
            1 => {}
            _ => source.invalid_text("", SEVERAL_FIELDS),
        }
    }
}

/// `ValidateEnvFrom`.
fn env_from(container: Field<'_, '_>) {
    let sources = container.child("envFrom");
    for source in container.items("envFrom") {
        source.child("prefix").check_optional(rules::env_name);
        let references: Vec<_> =
            ["configMapRef", "secretRef"].into_iter().filter_map(|name| source.get(name)).collect();
        for reference in &references {
            reference.child("name").check_required(rules::dns_subdomain);
        }
        match references.len() {
            0 => sources.invalid_text("", "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => sources.invalid_text("", SEVERAL_FIELDS),
        }
    }
}

/// `validateConfigMapKeySelector` and `validateSecretKeySelector`, which are equal.
fn key_selector(selector: Field<'_, '_>) {
    selector.child("name").check(rules::dns_subdomain);
    selector.child("key").check_required(rules::config_map_key);
}

/// `validateContainerResourceFieldSelector`.
pub(super) fn resource_field_ref(field: Field<'_, '_>, in_volume: bool) {
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
    let (resource, divisor) = (field.child("resource"), field.child("divisor"));
    let is_huge_pages =
        ["limits.hugepages-", "requests.hugepages-"].iter().any(|prefix| resource.text().starts_with(prefix));
    if in_volume && text(field.value, "containerName").is_empty() {
        field.child("containerName").required("");
    } else if resource.text().is_empty() {
        resource.required("");
    } else if !is_huge_pages {
        resource.supported(&RESOURCES);
    }
    if Quantity::parse(divisor.text()).is_ok_and(|divisor| divisor.is_zero()) {
        return;
    }
    let (allowed, list, what): (&[&str], _, _) = match resource.text() {
        "limits.cpu" | "requests.cpu" => (&["1m", "1"], "1m and 1".to_owned(), "cpu"),
        "limits.memory" | "requests.memory" => (&BINARY, BINARY.join(", "), "memory"),
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => {
            (&BINARY, BINARY.join(", "), "local ephemeral storage")
        }
        _ if is_huge_pages => (&BINARY, BINARY.join(", "), "hugepages"),
        _ => return,
    };
    if !allowed.contains(&divisor.text()) {
        let detail = format!("only divisor's values {list} are supported with the {what} resource");
        divisor.invalid_text(resource.text(), detail);
    }
}

/// `validateObjectFieldSelector`, which allows `paths` and the subscripts of labels and annotations.
pub(super) fn field_ref(field: Field<'_, '_>, paths: &[&str]) {
    let (version, path) = (text(field.value, "apiVersion"), field.child("fieldPath"));
    let label = path.text();
    if label.is_empty() {
        return path.required("");
    }
    let fail = |reason: String| path.invalid(format!("error converting fieldPath: {reason}"));
    if version != "v1" {
        return fail(format!("unsupported pod version: {version}"));
    }
    match subscript(label) {
        Some(("metadata.annotations", key)) => {
            field.check_text(&key.to_ascii_lowercase(), rules::qualified_name);
        }
        Some(("metadata.labels", key)) => drop(field.check_text(key, rules::qualified_name)),
        Some(_) => fail(format!("field label does not support subscript: {label}")),
        None if paths.contains(&label) => {}
        // Clients before 1.0 sent this name.
        None if label == "spec.host" && paths.contains(&"spec.nodeName") => {}
        None if FIELD_PATHS.contains(&label) || OTHER_FIELD_PATHS.contains(&label) => {
            path.not_supported(paths);
        }
        None => fail(format!("field label not supported: {label}")),
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
fn devices(container: Field<'_, '_>, volumes: &SortedSet<&str>) {
    let (mut names, mut places) = (SortedSet::new(), SortedSet::new());
    let of_mounts = |field| -> BTreeSet<&str> {
        list(container.value, "volumeMounts").iter().map(|mount| text(mount, field)).collect()
    };
    let (mounted, mount_paths) = (of_mounts("name"), of_mounts("mountPath"));
    for device in container.items("volumeDevices") {
        let (name, place) = (device.child("name"), device.child("devicePath"));
        if name.text().is_empty() {
            name.required("");
        } else if !names.insert(name.text()) {
            name.invalid("must be unique");
        }
        if !volumes.contains(name.text()) {
            name.not_found();
        }
        place.require();
        if !places.insert(place.text()) {
            place.invalid("must be unique");
        }
        if place.text().split('/').any(|part| part == "..") {
            place.invalid("can not contain backsteps ('..')");
        } else if !place.text().is_empty() {
            let own = place.text().strip_prefix("/dev/").unwrap_or_default();
            let is_name = !own.is_empty() && !own.contains('/') && own != ".";
            if !is_name || own == "urandom" || OWN_DEVICES.contains(&own) {
                let why = "nodlet makes devices directly in /dev, under names that no container has already";
                place.invalid(why);
            }
        }
        if mounted.contains(name.text()) {
            name.invalid("must not already exist in volumeMounts");
        }
        if mount_paths.contains(place.text()) {
            place.invalid("must not already exist as a path in volumeMounts");
        }
    }
}

fn mounts(container: Field<'_, '_>, volumes: &SortedSet<&str>) {
    let mut places = SortedSet::new();
    // Kubernetes omits the index in some paths.
    let all = container.child("volumeMounts");
    for mount in container.items("volumeMounts") {
        let (name, place) = (mount.child("name"), mount.child("mountPath"));
        name.require();
        if !volumes.contains(name.text()) {
            name.not_found();
        }
        place.require();
        if !places.insert(place.text()) {
            place.invalid("must be unique");
        }
        let (sub_path, expression) = (mount.child("subPath"), mount.child("subPathExpr"));
        all.child("subPath").with(sub_path.value).relative_path();
        if !expression.text().is_empty() && !sub_path.text().is_empty() {
            expression.invalid("subPathExpr and subPath are mutually exclusive");
        }
        all.child("subPathExpr").with(expression.value).relative_path();
        if let Some(value) = mount.value.get("mountPropagation") {
            let propagation = all.child("mountPropagation");
            let propagation = propagation.with(value);
            propagation.supported(&["Bidirectional", "HostToContainer", "None"]);
            let is_privileged = container.value["securityContext"]["privileged"] == true;
            if propagation.text() == "Bidirectional" && !is_privileged {
                let why = "Bidirectional mount propagation is available only to privileged containers";
                propagation.forbidden(why);
            }
        }
        recursive_read_only(mount.value, all.child("recursiveReadOnly"));
    }
}

fn recursive_read_only(mount: &Value, field: Field<'_, '_>) {
    match mount["recursiveReadOnly"].as_str() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if !flag(mount, "readOnly") {
                field.forbidden("may only be specified when readOnly is true");
            }
            if !matches!(mount["mountPropagation"].as_str(), None | Some("None")) {
                field.forbidden("may only be specified when mountPropagation is None or not specified");
            }
        }
        Some(_) => {
            field.with(&mount["recursiveReadOnly"]).not_supported(&["Disabled", "Enabled", "IfPossible"]);
        }
    }
}

fn security_context(spec: Field<'_, '_>, context: Field<'_, '_>) {
    context.child("runAsUser").id();
    context.child("runAsGroup").id();
    let proc_mount = context.child("procMount");
    match proc_mount.value.as_str() {
        None | Some("Default") => {}
        Some("Unmasked") if spec.value["hostUsers"] == false => {}
        Some("Unmasked") => proc_mount.invalid("`hostUsers` must be false to use `Unmasked`"),
        Some(_) => proc_mount.not_supported(&["Default", "Unmasked"]),
    }
    security::seccomp_profile(context);
    if context.value["allowPrivilegeEscalation"] == false {
        let invalid = |what: &str| {
            let detail = format!("cannot set `allowPrivilegeEscalation` to false and {what}");
            context.invalid_printed(security::internal(context.value, &SECURITY_CONTEXT), detail);
        };
        if context.value["privileged"] == true {
            invalid("`privileged` to true");
        }
        if list(&context.value["capabilities"], "add").iter().any(|name| name == "CAP_SYS_ADMIN") {
            invalid("`capabilities.Add` CAP_SYS_ADMIN");
        }
    }
    security::app_armor_profile(context);
}
