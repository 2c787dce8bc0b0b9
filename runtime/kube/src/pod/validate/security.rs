//! Security contexts, sysctls, seccomp and AppArmor profiles, and user namespaces.

use std::collections::BTreeSet;

use nodlet_core::spec::sysctl::{self, Namespace};
use serde_json::Value;

use crate::object::check::Field;
use crate::object::value::{flag, list};

pub(super) fn security_context(spec: Field<'_, '_>) {
    let context = spec.child("securityContext");
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        context.child(field).id();
    }
    context.items("supplementalGroups").for_each(|group| group.id());
    if flag(spec.value, "shareProcessNamespace") && flag(spec.value, "hostPID") {
        // Kubernetes' own path.
        let shares = context.child("shareProcessNamespace");
        shares.with(&true.into()).invalid("ShareProcessNamespace and HostPID cannot both be enabled");
    }
    sysctls(spec, context);
    let supported = |field: &str, values: &[&str]| {
        if let Some(policy) = context.get(field) {
            policy.supported(values);
        }
    };
    supported("fsGroupChangePolicy", &["Always", "OnRootMismatch"]);
    seccomp_profile(context);
    app_armor_profile(context);
    supported("supplementalGroupsPolicy", &["Merge", "Strict"]);
    supported("seLinuxChangePolicy", &["Recursive"]);
}

/// Fields of the security context of a container that a Windows pod cannot have.
const NOT_WINDOWS: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

/// Fields of a pod and of its security context that a Windows pod cannot have, in Kubernetes' order.
const NOT_WINDOWS_POD: [&str; 15] = [
    "appArmorProfile",
    "seLinuxOptions",
    "hostUsers",
    "hostPID",
    "hostIPC",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "shareProcessNamespace",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
];

/// `validateWindows`.
pub(super) fn of_windows(spec: Field<'_, '_>) {
    const WHY: &str = "cannot be set for a windows pod";
    for field in NOT_WINDOWS_POD {
        let context = spec.child("securityContext");
        if let Some(field) = context.get(field).or_else(|| spec.get(field)) {
            field.forbidden(WHY);
        }
    }
    forbid_in_containers(spec, &NOT_WINDOWS, WHY);
}

/// `validateLinux`.
pub(super) fn of_linux(spec: Field<'_, '_>) {
    const WHY: &str = "windows options cannot be set for a linux pod";
    if let Some(options) = spec.child("securityContext").get("windowsOptions") {
        options.forbidden(WHY);
    }
    forbid_in_containers(spec, &["windowsOptions"], WHY);
}

fn forbid_in_containers(spec: Field<'_, '_>, fields: &[&str], why: &str) {
    for container in super::containers(&spec) {
        let context = container.child("securityContext");
        fields.iter().filter_map(|field| context.get(field)).for_each(|field| field.forbidden(why));
    }
}

/// `validateSysctls`.
fn sysctls(spec: Field<'_, '_>, context: Field<'_, '_>) {
    const NAME: &str = "must have at most 253 characters and match regex \
        ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
    let mut known = BTreeSet::new();
    for one in context.items("sysctls") {
        let name = one.child("name");
        let is_new = known.insert(name.text());
        if name.text().is_empty() {
            name.required("");
        } else if !sysctl::is_valid(name.text(), false) {
            name.invalid(NAME);
        } else if !is_new {
            name.duplicate();
        }
        let field = match sysctl::namespace(name.text()) {
            Some(Namespace::Net) => "hostNetwork",
            Some(Namespace::Ipc) => "hostIPC",
            None => continue,
        };
        if flag(spec.value, field) {
            name.invalid(format!("may not be specified when '{field}' is true"));
        }
    }
}

/// The types of profiles, in the order of printing.
const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

pub(super) fn seccomp_profile(context: Field<'_, '_>) {
    let Some(profile) = context.get("seccompProfile") else { return };
    let (kind, file) = (profile.child("type"), profile.child("localhostProfile"));
    match (kind.text(), file.value.is_null()) {
        ("", _) => kind.required("type is required when seccompProfile is set"),
        ("Localhost", true) => file.required("must be set when seccomp type is Localhost"),
        ("Localhost", false) => file.relative_path(),
        _ => kind.supported(&PROFILE_TYPES),
    }
    if kind.text() != "Localhost" && !file.value.is_null() {
        let printed = internal(profile.value, &["Type", "LocalhostProfile"]);
        file.invalid_printed(printed, "can only be set when seccomp type is Localhost");
    }
}

pub(super) fn app_armor_profile(context: Field<'_, '_>) {
    let Some(profile) = context.get("appArmorProfile") else { return };
    let (kind, file) = (profile.child("type"), profile.child("localhostProfile"));
    match kind.text() {
        "" => kind.required("type is required when appArmorProfile is set"),
        "Localhost" if file.text().is_empty() => {
            file.required("must be set when AppArmor type is Localhost");
        }
        "Localhost" => {
            if file.text().trim() != file.text() {
                file.invalid("must not be padded with whitespace");
            }
            if file.text().len() > 4095 {
                file.too_long(4095);
            }
        }
        "RuntimeDefault" | "Unconfined" if !file.value.is_null() => {
            file.invalid("can only be set when AppArmor type is Localhost");
        }
        _ => kind.supported(&PROFILE_TYPES),
    }
}

/// `validateHostUsers`.
pub(super) fn host_users(spec: Field<'_, '_>) {
    const WHY: &str = "when `hostUsers` is false";
    if spec.value["hostUsers"] != false {
        return;
    }
    // Kubernetes capitalises two of the names.
    for (field, name) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if flag(spec.value, field) {
            spec.child(name).forbidden(WHY);
        }
    }
    for container in super::containers(&spec) {
        if !list(container.value, "volumeDevices").is_empty() {
            container.child("volumeDevices").forbidden(WHY);
        }
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
            None if *field == "Type" => "\"\"".to_owned(),
            None => "null".to_owned(),
        };
        format!("\"{field}\":{value}")
    });
    format!("{{{}}}", printed.collect::<Vec<_>>().join(","))
}
