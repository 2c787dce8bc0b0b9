//! Security contexts, sysctls, seccomp and AppArmor profiles, and user namespaces.

use serde_json::Value;

use crate::object::check::{descending, id, supported};
use crate::object::field::{Errors, FieldError, Path};
use crate::object::rules;
use crate::object::value::{flag, list, text};
use nodlet_core::spec::sysctl;

pub(super) fn security_context(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
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
pub(super) fn of_windows(spec: &Value, errors: &mut Errors) {
    const WHY: &str = "cannot be set for a windows pod";
    let path = Path::root("spec");
    for field in NOT_WINDOWS_POD {
        if spec["securityContext"].get(field).is_some() {
            errors.push(FieldError::forbidden(&path.child("securityContext").child(field), WHY));
        } else if spec.get(field).is_some() {
            errors.push(FieldError::forbidden(&path.child(field), WHY));
        }
    }
    forbid_in_containers(spec, &NOT_WINDOWS, WHY, errors);
}

/// `validateLinux`.
pub(super) fn of_linux(spec: &Value, errors: &mut Errors) {
    const WHY: &str = "windows options cannot be set for a linux pod";
    let field = "windowsOptions";
    if spec["securityContext"].get(field).is_some() {
        let path = Path::root("spec");
        errors.push(FieldError::forbidden(&path.child("securityContext").child(field), WHY));
    }
    forbid_in_containers(spec, &[field], WHY, errors);
}

fn forbid_in_containers(spec: &Value, fields: &[&str], why: &str, errors: &mut Errors) {
    let path = Path::root("spec");
    for containers in ["initContainers", "containers", "ephemeralContainers"] {
        for (index, container) in list(spec, containers).iter().enumerate() {
            for field in fields {
                if container["securityContext"].get(*field).is_some() {
                    let path = path.child(containers);
                    let path = path.index(index);
                    errors.push(FieldError::forbidden(&path.child("securityContext").child(field), why));
                }
            }
        }
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
        "RuntimeDefault" | "Unconfined" => {}
        kind => {
            let kinds = ["Localhost", "RuntimeDefault", "Unconfined"];
            errors.push(FieldError::not_supported(&path.child("type"), kind, &kinds));
        }
    }
    if text(profile, "type") != "Localhost" && profile.get("localhostProfile").is_some() {
        errors.push(FieldError::invalid_printed(
            &path.child("localhostProfile"),
            internal(profile, &["Type", "LocalhostProfile"]),
            "can only be set when seccomp type is Localhost",
        ));
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

/// `validateHostUsers`.
pub(super) fn host_users(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
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
