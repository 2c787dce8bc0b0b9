//! Names of kernel parameters (`sysctls`), and which of them a pod may set.

/// The longest name.
pub const MAX_NAME: usize = 253;

/// The kernel's namespaces that have parameters of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// The IPC namespace.
    Ipc,
    /// The network namespace.
    Net,
}

/// The parameters that every pod may set: they are namespaced, and have no influence on other pods (kubelet:
/// `safeSysctls`). Every kernel on which nodlet runs has them.
const SAFE: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Whether a name is well-formed (Kubernetes: `IsValidSysctlName`); with `pattern`, it may end with `*`.
pub fn is_valid(name: &str, pattern: bool) -> bool {
    let name = if pattern { name.strip_suffix('*').unwrap_or(name) } else { name };
    let name = if pattern { name.strip_suffix(['.', '/']).unwrap_or(name) } else { name };
    let edge =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let segment = |segment: &str| {
        let bytes = segment.as_bytes();
        let inner = |byte: &u8| edge(Some(byte)) || [b'-', b'_'].contains(byte);
        edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(inner)
    };
    name.len() <= MAX_NAME && name.split(['.', '/']).all(segment)
}

/// The name with dots as separators (Kubernetes: `NormalizeName`): `net/ipv4/conf/eno2.100` is
/// `net.ipv4.conf.eno2/100`.
fn normalize(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name.as_bytes()[at] == b'/' => swap(name),
        Some(_) | None => name.to_owned(),
    }
}

/// The path of a parameter below `/proc/sys`.
pub fn path(name: &str) -> String {
    swap(&normalize(name))
}

fn swap(name: &str) -> String {
    let swap = |character| match character {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    name.chars().map(swap).collect()
}

/// The namespace of a parameter, or of all parameters of a pattern; `None` if it is not known to be namespaced
/// (Kubernetes: `GetNamespace`).
pub fn namespace(name: &str) -> Option<Namespace> {
    const IPC: &[&str] =
        &["sem", "shmall", "shmmax", "shmmni", "shm_rmid_forced", "shm", "msgmax", "msgmnb", "msgmni", "msg"];
    let name = normalize(name);
    let name = name.split('*').next().unwrap_or_default();
    if name.starts_with("net.") {
        Some(Namespace::Net)
    } else if name.starts_with("fs.mqueue.")
        || name.strip_prefix("kernel.").is_some_and(|name| IPC.contains(&name))
    {
        Some(Namespace::Ipc)
    } else {
        None
    }
}

/// Checks whether a pod may set a parameter (kubelet: `validateSysctl`). `allowed` is what the node allows
/// besides the safe ones.
pub(crate) fn check(
    name: &str,
    allowed: &[String],
    host_network: bool,
    host_ipc: bool,
) -> Result<(), String> {
    let name = normalize(name);
    let matches = |pattern: &String| match normalize(pattern).strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => normalize(pattern) == name,
    };
    if !SAFE.contains(&name.as_str()) && !allowed.iter().any(matches) {
        return Err(format!("\"{name}\" not allowlisted"));
    }
    match namespace(&name) {
        Some(Namespace::Net) if host_network => Err(format!("\"{name}\" not allowed with host Net enabled")),
        Some(Namespace::Ipc) if host_ipc => Err(format!("\"{name}\" not allowed with host IPC enabled")),
        Some(Namespace::Net | Namespace::Ipc) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_kubernetes() {
        for (name, pattern, valid) in [
            ("net.ipv4.tcp_rmem", false, true),
            ("net/ipv4/conf/eno2.100/rp_filter", false, true),
            ("a", false, true),
            ("", false, false),
            ("net..x", false, false),
            ("net.../x", false, false),
            ("../x", false, false),
            ("Net.x", false, false),
            ("net.-x", false, false),
            ("net.*", false, false),
            ("net.*", true, true),
            ("kernel.msg*", true, true),
            ("*", true, false),
        ] {
            assert_eq!(is_valid(name, pattern), valid, "{name}");
        }
        assert!(!is_valid(&"a".repeat(254), false));
        assert_eq!(path("net.ipv4.conf.eno2/100.rp_filter"), "net/ipv4/conf/eno2.100/rp_filter");
        assert_eq!(path("net/ipv4/conf/eno2.100/rp_filter"), "net/ipv4/conf/eno2.100/rp_filter");
    }

    #[test]
    fn only_safe_and_allowed_parameters_can_be_set() {
        let allowed = ["kernel.msg*".to_owned(), "net/core/somaxconn".to_owned()];
        let check = |name, net, ipc| check(name, &allowed, net, ipc).err();
        assert_eq!(check("net.ipv4.tcp_syncookies", false, false), None);
        assert_eq!(check("kernel/shm_rmid_forced", false, false), None);
        assert_eq!(check("kernel.msgmax", false, false), None);
        assert_eq!(check("net.core.somaxconn", false, false), None);
        let expected = Some("\"kernel.shmmax\" not allowlisted");
        assert_eq!(check("kernel.shmmax", false, false).as_deref(), expected);
        let expected = Some("\"vm.swappiness\" not allowlisted");
        assert_eq!(check("vm.swappiness", false, false).as_deref(), expected);
        let expected = Some("\"kernel.msgmax\" not allowed with host IPC enabled");
        assert_eq!(check("kernel.msgmax", false, true).as_deref(), expected);
        let expected = Some("\"net.core.somaxconn\" not allowed with host Net enabled");
        assert_eq!(check("net.core.somaxconn", true, false).as_deref(), expected);
        let expected = [Some(Namespace::Net), Some(Namespace::Ipc), None];
        assert_eq!([namespace("net.*"), namespace("kernel.msg*"), namespace("kernel.*")], expected);
    }
}
