//! User, groups and capabilities of a container's process.

use nodlet_rootfs::ImageConfig;

use nodlet_core::facts::StartFailure;
use nodlet_core::spec::container::{CAPABILITIES, SecurityContext};
use nodlet_core::spec::{Container, Pod};

use super::config_error;

/// Default capabilities of a container, as in containerd and CRI-O.
const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// Returns the bounding set: the default capabilities (with `ALL`, all or none), plus added and minus dropped ones.
pub(super) fn capabilities(context: &SecurityContext) -> Vec<String> {
    let has = |list: &[String], wanted: &str| list.iter().any(|name| name.eq_ignore_ascii_case(wanted));
    let base: &[&str] = if context.privileged || has(&context.capabilities_add, "ALL") {
        &CAPABILITIES
    } else if has(&context.capabilities_drop, "ALL") {
        &[]
    } else {
        &DEFAULT
    };
    let bare = |name: &str| name.to_ascii_uppercase().trim_start_matches("CAP_").to_owned();
    let mut set: Vec<String> = base.iter().map(|name| (*name).to_owned()).collect();
    if !context.privileged {
        for name in context.capabilities_add.iter().map(|name| bare(name)).filter(|name| name != "ALL") {
            if CAPABILITIES.contains(&name.as_str()) && !set.contains(&name) {
                set.push(name);
            }
        }
        let dropped: Vec<String> = context.capabilities_drop.iter().map(|name| bare(name)).collect();
        // With ALL dropped, what is added by name stays.
        set.retain(|name| !dropped.contains(name));
    }
    set.iter().map(|name| format!("CAP_{name}")).collect()
}

/// Checks `runAsNonRoot` (kubelet: `verifyRunAsNonRoot`).
pub(super) fn check_non_root(
    pod: &Pod,
    container: &Container,
    image: &ImageConfig,
) -> Result<(), StartFailure> {
    let (of_pod, own) = (&pod.spec.security_context, &container.security_context);
    if own.run_as_non_root.or(of_pod.run_as_non_root) != Some(true) {
        return Ok(());
    }
    let why = match own.run_as_user.or(of_pod.run_as_user) {
        Some(0) => "container's runAsUser breaks non-root policy".to_owned(),
        Some(_) => return Ok(()),
        None => match image.user.split(':').next().unwrap_or_default() {
            "" => "container has runAsNonRoot and image will run as root".to_owned(),
            user => match user.parse::<u32>() {
                Ok(0) => "container has runAsNonRoot and image will run as root".to_owned(),
                Ok(_) => return Ok(()),
                Err(_) => format!(
                    "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root"
                ),
            },
        },
    };
    Err(config_error(format!(
        "{why} (pod: \"{}_{}({})\", container: {})",
        pod.name, pod.namespace, pod.uid, container.name
    )))
}
