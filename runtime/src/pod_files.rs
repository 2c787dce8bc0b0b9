//! The files that every container of a pod gets: `/etc/hosts`, `/etc/resolv.conf` and `/etc/hostname`. Pure functions
//! compute the texts. The files are in the pod's directory on disk, as with a kubelet: containers can write to them,
//! and must not fill the memory of `/run`.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nodlet_core::spec::pod::{DnsConfig, DnsPolicy};
use nodlet_core::spec::{Pod, PodSpec};

/// Maximum length of a pod's host name in Kubernetes.
const HOSTNAME: usize = 63;

/// Maximum number of name servers of a resolver (`MAXNS`), which validation and the kubelet use, too.
const NAMESERVERS: usize = 3;

/// Name of the pod's `/etc/hosts` in the pod's directory.
pub(crate) const ETC_HOSTS: &str = "etc-hosts";

/// Name of the pod's `/etc/hostname` in the pod's directory.
pub(crate) const ETC_HOSTNAME: &str = "hostname";

/// Name of the pod's `/etc/resolv.conf` in the pod's directory.
pub(crate) const ETC_RESOLV_CONF: &str = "resolv.conf";

/// File with the machine's name servers and search domains.
pub(crate) const RESOLV_CONF: &str = "/etc/resolv.conf";

/// File with the upstream name servers of systemd-resolved.
const RESOLVED: &str = "/run/systemd/resolve/resolv.conf";

/// Maximum number of search domains, as with a kubelet.
const SEARCHES: usize = 32;

/// Maximum length of one search domain, as with a kubelet.
const DOMAIN: usize = 253;

/// Maximum length of all search domains, with the spaces between them.
const SEARCH_LINE: usize = 2048;

/// The DNS of the cluster: the kubelet's `--cluster-dns` and `--cluster-domain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDns {
    /// Addresses of name servers; empty if the cluster has none.
    pub servers: Vec<String>,
    /// The domain of the cluster's names.
    pub domain: String,
}

impl Default for ClusterDns {
    fn default() -> Self {
        ClusterDns { servers: Vec::new(), domain: "cluster.local".to_owned() }
    }
}

/// Whether a pod's resolver uses the DNS of the cluster (kubelet: `getPodDNSType`).
pub(crate) fn wants_cluster_dns(spec: &PodSpec) -> bool {
    match spec.dns_policy {
        DnsPolicy::ClusterFirst => !spec.host_network,
        DnsPolicy::ClusterFirstWithHostNet => true,
        DnsPolicy::Default | DnsPolicy::None => false,
    }
}

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
        let mut text = String::from(
            "# Kubernetes-managed hosts file.\n\
             127.0.0.1\tlocalhost\n\
             ::1\tlocalhost ip6-localhost ip6-loopback\n\
             fe00::0\tip6-localnet\n\
             fe00::0\tip6-mcastprefix\n\
             fe00::1\tip6-allnodes\n\
             fe00::2\tip6-allrouters\n",
        );
        for ip in ip.map(IpAddr::V4).into_iter().chain(ipv6.map(IpAddr::V6)) {
            let host = hostname(pod, host_name);
            match domain(pod, dns) {
                // Writing into a String does not fail.
                Some(domain) => drop(writeln!(text, "{ip}\t{host}.{domain}\t{host}")),
                None => drop(writeln!(text, "{ip}\t{host}")),
            }
        }
        text
    };
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

/// Returns the text of `/etc/resolv.conf`, and messages about omitted name servers and search domains (kubelet: the
/// event `DNSConfigForming`). Without a DNS of the cluster, `ClusterFirst` uses the node's configuration.
pub(crate) fn resolv_conf(pod: &Pod, node: &str, dns: &ClusterDns) -> (String, Vec<String>) {
    let spec = &pod.spec;
    let base = match spec.dns_policy {
        DnsPolicy::None => DnsConfig::default(),
        _ if wants_cluster_dns(spec) && !dns.servers.is_empty() => {
            let domain = &dns.domain;
            let first = [format!("{}.svc.{domain}", pod.namespace), format!("svc.{domain}"), domain.clone()];
            let cluster = DnsConfig {
                nameservers: dns.servers.clone(),
                searches: first.into(),
                options: vec!["ndots:5".to_owned()],
            };
            let searches = parse_resolv_conf(node).searches;
            merge(cluster, &DnsConfig { searches, ..DnsConfig::default() })
        }
        DnsPolicy::ClusterFirst | DnsPolicy::ClusterFirstWithHostNet | DnsPolicy::Default => {
            parse_resolv_conf(node)
        }
    };
    let mut config = merge(base, &spec.dns_config);
    let mut left_out = Vec::new();
    if config.nameservers.len() > NAMESERVERS {
        config.nameservers.truncate(NAMESERVERS);
        left_out.push(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
            config.nameservers.join(" ")
        ));
    }
    let searches = config.searches.len();
    config.searches.truncate(SEARCHES);
    // Some resolvers abort at such a domain.
    config.searches.retain(|domain| domain.len() <= DOMAIN);
    while config.searches.join(" ").len() > SEARCH_LINE {
        config.searches.pop();
    }
    if config.searches.len() < searches {
        left_out.push(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
            config.searches.join(" ")
        ));
    }
    let mut text = String::new();
    if !config.searches.is_empty() {
        let _ = writeln!(text, "search {}", config.searches.join(" "));
    }
    for nameserver in &config.nameservers {
        let _ = writeln!(text, "nameserver {nameserver}");
    }
    if !config.options.is_empty() {
        let _ = writeln!(text, "options {}", config.options.join(" "));
    }
    (text, left_out)
}

/// Reads a resolv.conf as the kubelet does: the last `search` wins, options add up.
fn parse_resolv_conf(text: &str) -> DnsConfig {
    let mut config = DnsConfig::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => config.nameservers.extend(words.next().map(str::to_owned)),
            Some("search") => {
                let words = words.filter(|word| *word != ".");
                config.searches =
                    words.map(|word| word.strip_suffix('.').unwrap_or(word).to_owned()).collect();
            }
            Some("options") => {
                for option in words {
                    set_option(&mut config.options, option);
                }
            }
            Some(_) | None => {}
        }
    }
    config
}

/// Adds an option, or replaces the existing one with the same name.
fn set_option(options: &mut Vec<String>, option: &str) {
    let name = |option: &str| option.split(':').next().unwrap_or_default().to_owned();
    match options.iter_mut().find(|known| name(known) == name(option)) {
        Some(known) => option.clone_into(known),
        None => options.push(option.to_owned()),
    }
}

/// Adds `dnsConfig` to the configuration of the policy (kubelet: `appendDNSConfig`).
fn merge(mut base: DnsConfig, with: &DnsConfig) -> DnsConfig {
    let add = |known: &mut Vec<String>, more: &[String]| {
        for value in more {
            if !known.contains(value) {
                known.push(value.clone());
            }
        }
    };
    add(&mut base.nameservers, &with.nameservers);
    add(&mut base.searches, &with.searches);
    for option in &with.options {
        set_option(&mut base.options, option);
    }
    base
}

/// The texts of one pod's files.
pub(crate) struct PodFiles {
    hosts: String,
    resolv_conf: String,
    hostname: String,
}

/// The files of the machine from which the files of pods are made.
pub(crate) struct NodeFiles {
    hosts: String,
    resolv_conf: String,
    /// The upstream configuration of systemd-resolved, if `resolv_conf` names only its stub.
    resolved: Option<String>,
}

impl NodeFiles {
    /// Reads the files. Call this on the storage thread. A missing file counts as an empty one.
    pub(crate) fn read() -> NodeFiles {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let resolv_conf = read(RESOLV_CONF);
        let resolved = is_stub(&resolv_conf).then(|| fs::read_to_string(RESOLVED).ok()).flatten();
        NodeFiles { hosts: read("/etc/hosts"), resolv_conf, resolved }
    }

    /// Returns the machine's resolv.conf with name servers that the pod can reach.
    fn resolv_conf(&self, pod: &Pod) -> &str {
        self.resolved.as_ref().filter(|_| !pod.spec.host_network).unwrap_or(&self.resolv_conf)
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
    let (resolv_conf, left_out) = resolv_conf(pod, node.resolv_conf(pod), dns);
    let hostname = format!("{}\n", kernel_name(pod, host_name, dns).unwrap_or_default());
    (PodFiles { hosts, resolv_conf, hostname }, left_out)
}

impl PodFiles {
    /// Writes the changed files into `directory`, the pod's directory.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        put(&directory.join(ETC_HOSTS), &self.hosts)?;
        put(&directory.join(ETC_RESOLV_CONF), &self.resolv_conf)?;
        put(&directory.join(ETC_HOSTNAME), &self.hostname)
    }

    /// Returns the bytes on disk of the files in `directory`, which containers can write to.
    pub(crate) fn usage(directory: &Path) -> u64 {
        let size = |name| fs::symlink_metadata(directory.join(name)).map_or(0, |found| found.blocks() * 512);
        [ETC_HOSTS, ETC_RESOLV_CONF, ETC_HOSTNAME].map(size).iter().sum()
    }

    /// Whether a file is missing, for example because another version of nodlet created the sandbox.
    pub(crate) fn are_missing(directory: &Path) -> bool {
        [ETC_HOSTS, ETC_RESOLV_CONF, ETC_HOSTNAME].iter().any(|name| !directory.join(name).exists())
    }
}

/// Returns the files of the machine from which the resolv.conf of pods is currently computed.
pub(crate) fn resolv_conf_sources() -> Vec<&'static Path> {
    let stub = fs::read_to_string(RESOLV_CONF).is_ok_and(|node| is_stub(&node));
    let others = stub.then_some(Path::new(RESOLVED));
    std::iter::once(Path::new(RESOLV_CONF)).chain(others).collect()
}

/// Returns the current text of a pod's resolv.conf; `None` while the machine's file is empty or missing, for example
/// while it is replaced.
pub(crate) fn new_resolv_conf(pod: &Pod, node: &NodeFiles, dns: &ClusterDns) -> Option<String> {
    let node = node.resolv_conf(pod);
    (!node.trim().is_empty()).then(|| resolv_conf(pod, node, dns).0)
}

/// Writes `text` into the existing resolv.conf in `directory`, the pod's directory. The file is not replaced, because
/// containers have it mounted. Returns `false` if the file is unchanged or missing.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn renew_resolv_conf(directory: &Path, text: &str) -> io::Result<bool> {
    let path = directory.join(ETC_RESOLV_CONF);
    if !path.exists() || contains(&path, text) {
        return Ok(false);
    }
    // The file must never be empty: a resolver that reads it then would fall back to localhost.
    let mut file = fs::OpenOptions::new().write(true).open(&path)?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)?;
    Ok(true)
}

/// Whether all name servers have loopback addresses, such as the stub of systemd-resolved. They do not respond on the
/// loopback interface of a pod.
fn is_stub(node: &str) -> bool {
    let nameservers = parse_resolv_conf(node).nameservers;
    let own = |nameserver: &String| nameserver.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    !nameservers.is_empty() && nameservers.iter().all(own)
}

/// Whether the contents of a file equal `text`. Reads no more than necessary, however much a container has written
/// into the file.
fn contains(path: &Path, text: &str) -> bool {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        // A container may append to the file meanwhile.
        fs::File::open(path)?.take(text.len() as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().is_ok_and(|before| before == text.as_bytes())
}

/// Writes a file if its contents differ. The file is world-readable whatever the umask is, since any user of a
/// container may read it.
fn put(path: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if contains(path, text) {
        return Ok(());
    }
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodlet_kube::manifest::{self, Validation};

    fn pod(name: &str, spec: &str) -> std::rc::Rc<Pod> {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: i}}], {spec}}}\n"
        );
        let parsed = manifest::parse("p.yaml", text.as_bytes(), Validation::Strict, "node");
        parsed.unwrap_or_else(|error| panic!("{error}")).remove(0).pod
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
        let text = hosts(
            &pod("web", "hostAliases: [{ip: 1.2.3.4, hostnames: [a, b]}]"),
            (ip, None),
            "node",
            "",
            &dns,
        );
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
        let text =
            hosts(&pod("web", "hostNetwork: true"), (None, None), "node", "127.0.0.1 localhost\n", &dns);
        assert_eq!(text, "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n");
    }

    #[test]
    fn resolv_conf_is_the_nodes_with_the_pods_wishes_over_it() {
        let none = ClusterDns::default();
        let node = "# c\nnameserver 1.1.1.1\nsearch old\nsearch a.example. b.\noptions ndots:2 rotate\n";
        for (spec, expected) in [
            ("", "search a.example b\nnameserver 1.1.1.1\noptions ndots:2 rotate\n"),
            (
                "dnsPolicy: Default, dnsConfig: {searches: [c], options: [{name: ndots, value: '5'}, {name: edns0}]}",
                "search a.example b c\nnameserver 1.1.1.1\noptions ndots:5 rotate edns0\n",
            ),
            ("dnsPolicy: None, dnsConfig: {nameservers: [9.9.9.9]}", "nameserver 9.9.9.9\n"),
        ] {
            assert_eq!(resolv_conf(&pod("web", spec), node, &none), (expected.to_owned(), vec![]), "{spec}");
        }
    }

    #[test]
    fn pods_of_a_cluster_resolve_its_names_first_as_a_kubelet_configures_them() {
        let node = "nameserver 1.1.1.1\nsearch lan. . svc.example.org\noptions rotate\n";
        let dns = ClusterDns { servers: vec!["10.96.0.10".to_owned()], domain: "example.org".to_owned() };
        let first = "default.svc.example.org svc.example.org example.org";
        let nodes = "search lan svc.example.org\nnameserver 1.1.1.1\noptions rotate\n".to_owned();
        let cluster = format!("search {first} lan\nnameserver 10.96.0.10\noptions ndots:5\n");
        let config =
            "dnsConfig: {nameservers: [9.9.9.9], searches: [a], options: [{name: ndots, value: '2'}]}";
        for (spec, expected) in [
            ("", cluster.clone()),
            ("dnsPolicy: ClusterFirst, hostNetwork: true", nodes.clone()),
            ("dnsPolicy: ClusterFirstWithHostNet, hostNetwork: true", cluster),
            ("dnsPolicy: Default", nodes),
            (
                config,
                format!("search {first} lan a\nnameserver 10.96.0.10\nnameserver 9.9.9.9\noptions ndots:2\n"),
            ),
            (
                &format!("dnsPolicy: None, {config}"),
                "search a\nnameserver 9.9.9.9\noptions ndots:2\n".to_owned(),
            ),
        ] {
            assert_eq!(resolv_conf(&pod("web", spec), node, &dns), (expected, vec![]), "{spec}");
        }
        let text = hosts(&pod("web", "subdomain: sub"), (None, None), "node", "", &dns);
        assert!(!text.contains("cluster.local"), "{text}");
        let long = format!("search {} b\n", "a".repeat(254));
        let (text, left_out) = resolv_conf(&pod("web", "dnsPolicy: Default"), &long, &dns);
        assert_eq!((&*text, left_out.len()), ("search b\n", 1));
    }

    #[test]
    fn entries_that_do_not_fit_into_resolv_conf_are_reported() {
        let spec = "dnsConfig: {nameservers: [1.0.0.1, 1.0.0.2, 1.0.0.3]}";
        let (text, left_out) = resolv_conf(&pod("web", spec), "nameserver 9.9.9.9\n", &ClusterDns::default());
        assert_eq!(text, "nameserver 9.9.9.9\nnameserver 1.0.0.1\nnameserver 1.0.0.2\n");
        let expected = "Nameserver limits were exceeded, some nameservers have been omitted, \
                        the applied nameserver line is: 9.9.9.9 1.0.0.1 1.0.0.2";
        assert_eq!(left_out, [expected]);
        for (count, length, kept) in [(32, 9, 32), (33, 9, 32), (20, 120, 16)] {
            let domain = |number: usize| format!("{number:0length$}");
            let node = format!("search {}\n", (0..count).map(domain).collect::<Vec<_>>().join(" "));
            let (text, left_out) = resolv_conf(&pod("web", ""), &node, &ClusterDns::default());
            assert_eq!(text.split_whitespace().skip(1).count(), kept, "{count} of {length}");
            assert_eq!(left_out.len(), usize::from(kept < count), "{count} of {length}");
        }
    }

    #[test]
    fn nameservers_on_the_nodes_loopback_are_no_use_to_a_pod() {
        for (text, expected) in [
            ("nameserver 127.0.0.53\noptions edns0\n", true),
            ("nameserver ::1\nnameserver 127.0.0.1\n", true),
            ("nameserver 127.0.0.53\nnameserver 1.1.1.1\n", false),
            ("nameserver 1.1.1.1\n", false),
            ("search x\n", false),
            ("", false),
        ] {
            assert_eq!(is_stub(text), expected, "{text:?}");
        }
    }
}
