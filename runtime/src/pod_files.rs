//! The files that every container of a pod gets: `/etc/hosts`, `/etc/resolv.conf` and `/etc/hostname`. Pure functions
//! compute the texts. The files are in the pod's directory on disk, as with a kubelet: containers can write to them,
//! and must not fill the memory of `/run`.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nodlet_core::spec::Pod;
use nodlet_kernel::own_file;

mod resolv_conf;

use self::resolv_conf::NodeDns;
pub use self::resolv_conf::{ClusterDns, RESOLV_CONF};
pub(crate) use self::resolv_conf::{
    problem as resolv_conf_problem, sources as resolv_conf_sources, wants_cluster_dns,
};

/// Maximum length of a pod's host name in Kubernetes.
const HOSTNAME: usize = 63;

/// Name of the pod's `/etc/hosts` in the pod's directory.
pub(crate) const ETC_HOSTS: &str = "etc-hosts";

/// Name of the pod's `/etc/hostname` in the pod's directory.
pub(crate) const ETC_HOSTNAME: &str = "hostname";

/// Name of the pod's `/etc/resolv.conf` in the pod's directory.
pub(crate) const ETC_RESOLV_CONF: &str = "resolv.conf";

/// Returns the host name of a pod: `hostname` or the pod's name, cut to 63 bytes and trimmed (kubelet:
/// `GeneratePodHostNameAndDomain`). A pod with `hostNetwork` is in the machine's UTS namespace, and has the host
/// name of the machine, which may differ from the node's name.
pub(crate) fn hostname(pod: &Pod, host_name: &str) -> String {
    if pod.spec.host_network {
        return host_name.to_owned();
    }
    let spec = &pod.spec;
    let name = spec.hostname_override.as_deref().or(spec.hostname.as_deref()).unwrap_or(&pod.name);
    let cut = &name[..name.len().min(HOSTNAME)];
    cut.trim_end_matches(['-', '.']).to_owned()
}

/// Returns the host name that the kernel has for a pod: with `setHostnameAsFQDN`, the domain follows (kubelet:
/// `GetNodenameForKernel`).
///
/// # Errors
/// If the name is longer than the kernel accepts; the message is the kubelet's.
pub(crate) fn kernel_name(pod: &Pod, host_name: &str, dns: &ClusterDns) -> Result<String, String> {
    const MAX: usize = 64;
    let short = hostname(pod, host_name);
    let domain = domain(pod, dns).filter(|_| pod.spec.hostname_as_fqdn && !pod.spec.host_network);
    let Some(domain) = domain else { return Ok(short) };
    let full = format!("{short}.{domain}");
    if full.len() > MAX {
        return Err(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long ({MAX} characters is \
             the max, {} characters requested)",
            full.len()
        ));
    }
    Ok(full)
}

/// Returns the current host name of the machine.
///
/// # Errors
/// The system call failed.
pub(crate) fn host_name() -> io::Result<String> {
    Ok(nix::unistd::gethostname()?.to_string_lossy().into_owned())
}

/// The addresses of a pod with a network of its own.
type Addresses = (Option<Ipv4Addr>, Option<Ipv6Addr>);

/// Returns the text of `/etc/hosts` (kubelet: `managedHostsFileContent`).
pub(crate) fn hosts(
    pod: &Pod,
    (ip, ipv6): Addresses,
    host_name: &str,
    node_hosts: &str,
    dns: &ClusterDns,
) -> String {
    let mut text = if pod.spec.host_network {
        format!("# Kubernetes-managed hosts file (host network).\n{node_hosts}")
    } else {
        "# Kubernetes-managed hosts file.\n\
         127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\n\
         fe00::0\tip6-mcastprefix\n\
         fe00::1\tip6-allnodes\n\
         fe00::2\tip6-allrouters\n"
            .to_owned()
    };
    let own = ip.map(IpAddr::V4).into_iter().chain(ipv6.map(IpAddr::V6));
    for ip in own.filter(|_| !pod.spec.host_network) {
        let host = hostname(pod, host_name);
        let full = domain(pod, dns).map(|domain| format!("{host}.{domain}\t")).unwrap_or_default();
        // Writing into a String does not fail.
        let _ = writeln!(text, "{ip}\t{full}{host}");
    }
    if !pod.spec.host_aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
        for alias in &pod.spec.host_aliases {
            let _ = writeln!(text, "{}\t{}", alias.ip, alias.hostnames.join("\t"));
        }
    }
    text
}

/// Returns the domain of a pod with a `subdomain`.
fn domain(pod: &Pod, dns: &ClusterDns) -> Option<String> {
    let subdomain = pod.spec.subdomain.as_ref().filter(|_| pod.spec.hostname_override.is_none())?;
    Some(format!("{subdomain}.{}.svc.{}", pod.namespace, dns.domain))
}

/// The names of a pod's files.
const FILES: [&str; 3] = [ETC_HOSTS, ETC_RESOLV_CONF, ETC_HOSTNAME];

/// The texts of one pod's files, in the order of [`FILES`].
pub(crate) struct PodFiles([String; FILES.len()]);

/// The files of the machine from which the files of pods are made.
pub(crate) struct NodeFiles {
    hosts: String,
    dns: NodeDns,
}

impl NodeFiles {
    /// Reads the files, with the `resolv_conf` of the configuration. Call this on the storage thread. A missing file
    /// counts as an empty one.
    pub(crate) fn read(resolv_conf: Option<&Path>) -> NodeFiles {
        NodeFiles {
            hosts: fs::read_to_string("/etc/hosts").unwrap_or_default(),
            dns: NodeDns::read(resolv_conf),
        }
    }

    /// The machine's name servers, as the machine itself reaches them.
    pub(crate) fn name_servers(&self) -> Vec<SocketAddr> {
        self.dns.name_servers()
    }
}

/// Returns the texts of the three files, and messages about omitted name servers and search domains.
pub(crate) fn texts(
    pod: &Pod,
    ips: Addresses,
    host_name: &str,
    node: &NodeFiles,
    dns: &ClusterDns,
) -> (PodFiles, Vec<String>) {
    let hosts = hosts(pod, ips, host_name, &node.hosts, dns);
    let (resolv_conf, left_out) = resolv_conf::resolv_conf(pod, node.dns.of(pod), dns);
    let hostname = format!("{}\n", kernel_name(pod, host_name, dns).unwrap_or_default());
    (PodFiles([hosts, resolv_conf, hostname]), left_out)
}

impl PodFiles {
    /// Writes the changed files into `directory`, the pod's directory.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        own_file::make_directory(directory)?;
        FILES.iter().zip(&self.0).try_for_each(|(name, text)| put(&directory.join(name), text))
    }

    /// Returns the bytes on disk of the files in `directory`, which containers can write to.
    pub(crate) fn usage(directory: &Path) -> u64 {
        let size = |name| fs::symlink_metadata(directory.join(name)).map_or(0, |found| found.blocks() * 512);
        FILES.map(size).iter().sum()
    }

    /// Whether a file is missing, for example because another version of nodlet created the sandbox.
    pub(crate) fn are_missing(directory: &Path) -> bool {
        FILES.iter().any(|name| !directory.join(name).exists())
    }
}

/// Returns the current text of a pod's resolv.conf, and messages about what was omitted; `None` while the machine's
/// file is empty or missing, for example while it is replaced.
pub(crate) fn new_resolv_conf(
    pod: &Pod,
    node: &NodeFiles,
    dns: &ClusterDns,
) -> Option<(String, Vec<String>)> {
    let node = node.dns.of(pod);
    node.is_none_or(|node| !node.trim().is_empty()).then(|| resolv_conf::resolv_conf(pod, node, dns))
}

/// Writes `text` into the existing resolv.conf in `directory`, the pod's directory. The file is not replaced, because
/// containers have it mounted. Returns `false` if the file is unchanged or missing.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn renew_resolv_conf(directory: &Path, text: &str) -> io::Result<bool> {
    let path = directory.join(ETC_RESOLV_CONF);
    if !path.exists() {
        return Ok(false);
    }
    own_file::make_directory(directory)?;
    if contains(&path, text) {
        return Ok(false);
    }
    // The file must never be empty: a resolver that reads it then would fall back to localhost.
    let mut file = own_file::open_with(&path, fs::OpenOptions::new().write(true))?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)?;
    Ok(true)
}

/// Whether the contents of a file equal `text`. Reads no more than necessary, however much a container has written
/// into the file.
fn contains(path: &Path, text: &str) -> bool {
    let mut bytes = Vec::new();
    // A container may append to the file meanwhile.
    let read = own_file::open(path).and_then(|file| file.take(text.len() as u64 + 1).read_to_end(&mut bytes));
    read.is_ok() && bytes == text.as_bytes()
}

/// Writes a file if its contents differ. The file is world-readable whatever the umask is, since any user of a
/// container may read it.
fn put(path: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if contains(path, text) {
        return Ok(());
    }
    let failed = |error: &io::Error| format!("failed to write {}: {error}", path.display());
    own_file::write(path, text).map_err(|error| io::Error::new(error.kind(), failed(&error)))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, spec: &str) -> std::rc::Rc<Pod> {
        crate::testing::pod(&format!("name: {name}"), "", spec)
    }

    #[test]
    fn a_pod_is_called_by_its_name_cut_to_what_a_label_holds() {
        let long = format!("{}-.x", "a".repeat(61));
        for (name, spec, expected) in [
            ("web", "", "web".to_owned()),
            ("web", "hostname: other", "other".into()),
            (&long[..63], "", "a".repeat(61)),
            ("web", "hostNetwork: true", "node".into()),
        ] {
            let name = name.trim_end_matches(['.', '-']);
            assert_eq!(hostname(&pod(name, spec), "node"), expected, "{name} {spec}");
        }
    }

    #[test]
    fn hosts_is_the_file_that_a_kubelet_writes() {
        let (ip, dns) = (Some(Ipv4Addr::new(10, 85, 0, 7)), ClusterDns::default());
        let aliases = pod("web", "hostAliases: [{ip: 1.2.3.4, hostnames: [a, b]}]");
        let text = hosts(&aliases, (ip, None), "node", "", &dns);
        assert_eq!(
            text,
            "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
             fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n\
             10.85.0.7\tweb\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n"
        );
        for (spec, expected) in [
            ("subdomain: sub", "web"),
            ("subdomain: sub, setHostnameAsFQDN: true", "web.sub.default.svc.cluster.local"),
            ("setHostnameAsFQDN: true", "web"),
            ("subdomain: sub, hostnameOverride: a.b", "a.b"),
        ] {
            assert_eq!(kernel_name(&pod("web", spec), "node", &dns).as_deref(), Ok(expected), "{spec}");
        }
        let long = format!("subdomain: {}, setHostnameAsFQDN: true", "s".repeat(40));
        let error = kernel_name(&pod("web", &long), "node", &dns).unwrap_err();
        assert!(error.ends_with("(64 characters is the max, 70 characters requested)"), "{error}");
        let text = hosts(&pod("web", "subdomain: sub"), (ip, None), "node", "", &dns);
        assert!(text.ends_with("10.85.0.7\tweb.sub.default.svc.cluster.local\tweb\n"), "{text}");
        let example = ClusterDns { domain: "example.org".to_owned(), ..ClusterDns::default() };
        let text = hosts(&pod("web", "subdomain: sub"), (None, None), "node", "", &example);
        assert!(!text.contains("cluster.local"), "{text}");
        let own = "127.0.0.1 localhost\n";
        let text = hosts(&pod("web", "hostNetwork: true"), (None, None), "node", own, &dns);
        assert_eq!(text, "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n");
    }
}
