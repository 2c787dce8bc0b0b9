//! The `/etc/resolv.conf` of pods: what a kubelet computes from the pod, the machine's file and the DNS of the cluster,
//! without the name servers of the machine that a pod cannot reach.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::path::Path;

use nodlet_core::spec::pod::{DnsConfig, DnsPolicy};
use nodlet_core::spec::{Pod, PodSpec};
use nodlet_kernel::own_file;

/// Maximum number of name servers of a resolver (`MAXNS`), which validation and the kubelet use, too.
const NAMESERVERS: usize = 3;

/// File with the machine's name servers and search domains, unless the agent is started with another one.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";

/// File with the upstream name servers of systemd-resolved.
const RESOLVED: &str = "/run/systemd/resolve/resolv.conf";

/// The most bytes that are read of a file of the machine.
const MOST_BYTES: u64 = 64 * 1024;

/// Maximum number of search domains, as with a kubelet.
const SEARCHES: usize = 32;

/// Maximum length of one search domain, as with a kubelet.
const DOMAIN: usize = 253;

/// Maximum length of all search domains, with the spaces between them.
const SEARCH_LINE: usize = 2048;

/// The DNS of a pod with the policy `ClusterFirst`: that of the cluster, which is the kubelet's `--cluster-dns` and
/// `--cluster-domain`, or that of the board.
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

/// The configuration of the machine's resolver.
pub(super) struct NodeDns {
    /// Text of the machine's file; `None` without such a file in the configuration (`--resolv-conf ""`).
    file: Option<String>,
    /// The upstream configuration of systemd-resolved, if `file` names only its stub.
    resolved: Option<String>,
}

impl NodeDns {
    /// Reads the files. Call this on the storage thread. A missing file counts as an empty one.
    pub(super) fn read(file: Option<&Path>) -> NodeDns {
        let file = file.map(|file| read(file).unwrap_or_default());
        let is_stub = file.as_deref().is_some_and(is_stub);
        NodeDns { file, resolved: is_stub.then(|| read(Path::new(RESOLVED)).ok()).flatten() }
    }

    /// Returns the text for the pod, which reaches the stub of systemd-resolved only in the machine's network.
    pub(super) fn of(&self, pod: &Pod) -> Option<&str> {
        let resolved = self.resolved.as_deref().filter(|_| !pod.spec.host_network);
        resolved.or(self.file.as_deref())
    }
}

impl NodeDns {
    /// The addresses of the name servers of the machine's file, as the machine itself reaches them: those of its loopback,
    /// too, such as that of systemd-resolved. One of a link-local address has the link with it.
    pub(super) fn name_servers(&self) -> Vec<SocketAddr> {
        let text = self.file.as_deref().unwrap_or_default();
        let servers = parse_resolv_conf(text).nameservers;
        servers.iter().filter_map(|server| socket_address(server)).collect()
    }
}

/// The port 53 of an address, with which the name or the index of a link may be.
fn socket_address(server: &str) -> Option<SocketAddr> {
    const PORT: u16 = 53;
    let Some((address, link)) = server.split_once('%') else {
        return Some(SocketAddr::new(server.parse().ok()?, PORT));
    };
    let index = link.parse().or_else(|_| nix::net::if_::if_nametoindex(link)).ok()?;
    Some(SocketAddrV6::new(address.parse().ok()?, PORT, 0, index).into())
}

/// Reads a file of the machine, which may be a link. Name servers beyond the first [`MOST_BYTES`] are ignored.
fn read(file: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    own_file::open_linked(file)?.take(MOST_BYTES).read_to_end(&mut text)?;
    String::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Returns the files of the machine from which the resolv.conf of pods is currently computed.
pub(crate) fn sources(file: &Path) -> Vec<&Path> {
    let stub = read(file).is_ok_and(|node| is_stub(&node));
    std::iter::once(file).chain(stub.then_some(Path::new(RESOLVED))).collect()
}

/// Returns why pods get no name server from the file of `--resolv-conf`, with what would change that; `None` if they get
/// one. The machine's own [`RESOLV_CONF`] may be without name servers as long as the machine has no network.
pub(crate) fn problem(file: &Path) -> Option<String> {
    let path = file.display();
    let text = match read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Some(format!("{path} does not exist: pods get no name servers from it until it does"));
        }
        Err(error) => {
            return Some(format!("failed to read {path}: {error}: pods get no name servers from it"));
        }
        Ok(text) => text,
    };
    let names_one = |text: &str| {
        parse_resolv_conf(text).nameservers.iter().any(|server| why_unreachable(server).is_none())
    };
    let is_usable = names_one(&text)
        || (is_stub(&text) && read(Path::new(RESOLVED)).is_ok_and(|text| names_one(&text)))
        || file == Path::new(RESOLV_CONF);
    (!is_usable).then(|| {
        format!(
            "{path} names no name server that a pod can reach: add one, such as `nameserver 192.0.2.53`, or pods need \
             dnsConfig.nameservers"
        )
    })
}

/// Returns the text of `/etc/resolv.conf`, and messages about omitted name servers and search domains (kubelet: the
/// event `DNSConfigForming`). Without a DNS of the cluster, `ClusterFirst` uses the node's configuration; without that
/// one (`node`), the pod's own loopback, as with a kubelet.
pub(super) fn resolv_conf(pod: &Pod, node: Option<&str>, dns: &ClusterDns) -> (String, Vec<String>) {
    let spec = &pod.spec;
    let node = node.map(parse_resolv_conf);
    let mut unreachable = Vec::new();
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
            let searches = node.unwrap_or_default().searches;
            merge(cluster, &DnsConfig { searches, ..DnsConfig::default() })
        }
        DnsPolicy::ClusterFirst | DnsPolicy::ClusterFirstWithHostNet | DnsPolicy::Default => match node {
            None => DnsConfig {
                nameservers: vec![Ipv4Addr::LOCALHOST.to_string()],
                searches: vec![".".to_owned()],
                options: Vec::new(),
            },
            Some(node) if spec.host_network => node,
            Some(mut node) => {
                node.nameservers.retain(|server| match why_unreachable(server) {
                    None => true,
                    Some(why) => {
                        unreachable.push(format!("{server} ({why})"));
                        false
                    }
                });
                node
            }
        },
    };
    let mut config = merge(base, &spec.dns_config);
    let mut left_out = Vec::new();
    if !unreachable.is_empty() {
        let applied = match &*config.nameservers {
            [] => "no nameserver is left: name one in dnsConfig.nameservers of the pod, or in a file for nodlet agent \
                   --resolv-conf"
                .to_owned(),
            servers => {
                let applied = servers.iter().take(NAMESERVERS).map(String::as_str).collect::<Vec<_>>();
                format!("the applied nameserver line is: {}", applied.join(" "))
            }
        };
        left_out.push(format!(
            "Nameservers of the node that the pod cannot reach have been omitted: {}; {applied}",
            unreachable.join(", ")
        ));
    }
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

/// Why a pod in a network of its own cannot reach a name server of the machine; `None` if it may reach it.
fn why_unreachable(server: &str) -> Option<&'static str> {
    let address = server.split_once('%').map_or(server, |(address, _)| address);
    match address.parse().map(|address: IpAddr| address.to_canonical()) {
        Err(_) => Some("not an IP address"),
        Ok(address) if is_own(address) => Some("loopback of the machine"),
        Ok(IpAddr::V6(address)) if address.is_unicast_link_local() => Some("link-local"),
        Ok(_) => None,
    }
}

/// Whether an address leads to the machine itself, such as that of the stub of systemd-resolved.
fn is_own(address: IpAddr) -> bool {
    address.is_loopback() || address.is_unspecified()
}

/// Whether the text names the machine's own addresses, and no name server that a pod can reach.
fn is_stub(node: &str) -> bool {
    let nameservers = parse_resolv_conf(node).nameservers;
    let own = |server: &String| server.parse().is_ok_and(|address: IpAddr| is_own(address.to_canonical()));
    nameservers.iter().any(own) && nameservers.iter().all(|server| why_unreachable(server).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: &str) -> std::rc::Rc<Pod> {
        crate::testing::pod("name: web", "", spec)
    }

    #[test]
    fn resolv_conf_is_the_nodes_with_the_pods_wishes_over_it() {
        let none = ClusterDns::default();
        let node = "# c\nnameserver 1.1.1.1\nsearch old\nsearch a.example. b.\noptions ndots:2 rotate\n";
        let own = "dnsPolicy: Default, dnsConfig: {searches: [c], options: [{name: ndots, value: '5'}, {name: edns0}]}";
        for (spec, expected) in [
            ("", "search a.example b\nnameserver 1.1.1.1\noptions ndots:2 rotate\n"),
            (own, "search a.example b c\nnameserver 1.1.1.1\noptions ndots:5 rotate edns0\n"),
            ("dnsPolicy: None, dnsConfig: {nameservers: [9.9.9.9]}", "nameserver 9.9.9.9\n"),
        ] {
            let made = resolv_conf(&pod(spec), Some(node), &none);
            assert_eq!(made, (expected.to_owned(), vec![]), "{spec}");
        }
    }

    #[test]
    fn pods_of_a_cluster_resolve_its_names_first_as_a_kubelet_configures_them() {
        let node = "nameserver 1.1.1.1\nsearch lan. . svc.example.org\noptions rotate\n";
        let dns = ClusterDns { servers: vec!["10.96.0.10".to_owned()], domain: "example.org".to_owned() };
        let first = "default.svc.example.org svc.example.org example.org";
        let nodes = "search lan svc.example.org\nnameserver 1.1.1.1\noptions rotate\n".to_owned();
        let cluster = format!("search {first} lan\nnameserver 10.96.0.10\noptions ndots:5\n");
        let both =
            format!("search {first} lan a\nnameserver 10.96.0.10\nnameserver 9.9.9.9\noptions ndots:2\n");
        let config =
            "dnsConfig: {nameservers: [9.9.9.9], searches: [a], options: [{name: ndots, value: '2'}]}";
        for (spec, expected) in [
            ("", cluster.clone()),
            ("dnsPolicy: ClusterFirst, hostNetwork: true", nodes.clone()),
            ("dnsPolicy: ClusterFirstWithHostNet, hostNetwork: true", cluster),
            ("dnsPolicy: Default", nodes),
            (config, both),
            (
                &format!("dnsPolicy: None, {config}"),
                "search a\nnameserver 9.9.9.9\noptions ndots:2\n".to_owned(),
            ),
        ] {
            assert_eq!(resolv_conf(&pod(spec), Some(node), &dns), (expected, vec![]), "{spec}");
        }
        let long = format!("search {} b\n", "a".repeat(254));
        let (text, left_out) = resolv_conf(&pod("dnsPolicy: Default"), Some(&long), &dns);
        assert_eq!((&*text, left_out.len()), ("search b\n", 1));
    }

    #[test]
    fn entries_that_do_not_fit_into_resolv_conf_are_reported() {
        let spec = "dnsConfig: {nameservers: [1.0.0.1, 1.0.0.2, 1.0.0.3]}";
        let (text, left_out) = resolv_conf(&pod(spec), Some("nameserver 9.9.9.9\n"), &ClusterDns::default());
        assert_eq!(text, "nameserver 9.9.9.9\nnameserver 1.0.0.1\nnameserver 1.0.0.2\n");
        let expected = "Nameserver limits were exceeded, some nameservers have been omitted, \
                        the applied nameserver line is: 9.9.9.9 1.0.0.1 1.0.0.2";
        assert_eq!(left_out, [expected]);
        for (count, length, kept) in [(32, 9, 32), (33, 9, 32), (20, 120, 16)] {
            let domain = |number: usize| format!("{number:0length$}");
            let node = format!("search {}\n", (0..count).map(domain).collect::<Vec<_>>().join(" "));
            let (text, left_out) = resolv_conf(&pod(""), Some(&node), &ClusterDns::default());
            assert_eq!(text.split_whitespace().skip(1).count(), kept, "{count} of {length}");
            assert_eq!(left_out.len(), usize::from(kept < count), "{count} of {length}");
        }
    }

    #[test]
    fn nameservers_of_the_node_that_a_pod_cannot_reach_are_omitted_with_a_message() {
        const NODE: &str = "nameserver fe80::1%eth0\nnameserver 127.0.0.1\nnameserver ::1\nnameserver 0.0.0.0\n\
                            nameserver fe80::2\nnameserver ::ffff:127.0.0.1\nnameserver dns.lan\nsearch lan\n";
        const OMITTED: &str = "Nameservers of the node that the pod cannot reach have been omitted: fe80::1%eth0 \
                               (link-local), 127.0.0.1 (loopback of the machine), ::1 (loopback of the machine), \
                               0.0.0.0 (loopback of the machine), fe80::2 (link-local), ::ffff:127.0.0.1 (loopback of \
                               the machine), dns.lan (not an IP address); ";
        const NONE: &str = "no nameserver is left: name one in dnsConfig.nameservers of the pod, or in a file for nodlet \
                            agent --resolv-conf";
        let none = ClusterDns::default();
        let cluster = ClusterDns { servers: vec!["10.96.0.10".to_owned()], ..ClusterDns::default() };
        let good = format!("{NODE}nameserver 169.254.20.10\nnameserver 2001:db8::1\n");
        let applied = |line: &str| Some(format!("the applied nameserver line is: {line}"));
        let two = "search lan\nnameserver 169.254.20.10\nnameserver 2001:db8::1\n";
        let of_cluster = "search default.svc.cluster.local svc.cluster.local cluster.local lan\n\
                          nameserver 10.96.0.10\noptions ndots:5\n";
        // A pod may have a resolver of its own at its loopback.
        let (own, only) =
            ("dnsConfig: {nameservers: [127.0.0.1]}", "dnsPolicy: None, dnsConfig: {nameservers: ['::1']}");
        for (spec, node, dns, expected, message) in [
            ("", NODE, &none, "search lan\n", Some(NONE.to_owned())),
            ("dnsPolicy: Default", &good, &none, two, applied("169.254.20.10 2001:db8::1")),
            (own, NODE, &none, "search lan\nnameserver 127.0.0.1\n", applied("127.0.0.1")),
            (only, NODE, &none, "nameserver ::1\n", None),
            ("", NODE, &cluster, of_cluster, None),
        ] {
            let message = message.map(|applied| format!("{OMITTED}{applied}"));
            let made = resolv_conf(&pod(spec), Some(node), dns);
            assert_eq!(made, (expected.to_owned(), message.into_iter().collect()), "{spec}");
        }
        let machines = pod("hostNetwork: true");
        let (text, left_out) =
            resolv_conf(&machines, Some("nameserver fe80::1%eth0\nnameserver 127.0.0.1\n"), &none);
        assert_eq!((&*text, &*left_out), ("nameserver fe80::1%eth0\nnameserver 127.0.0.1\n", &[][..]));
    }

    #[test]
    fn without_a_file_of_the_node_pods_ask_their_own_loopback_as_with_a_kubelet() {
        let none = ClusterDns::default();
        for (spec, expected) in [
            ("", "search .\nnameserver 127.0.0.1\n"),
            ("hostNetwork: true", "search .\nnameserver 127.0.0.1\n"),
            ("dnsConfig: {nameservers: [9.9.9.9]}", "search .\nnameserver 127.0.0.1\nnameserver 9.9.9.9\n"),
            ("dnsPolicy: None, dnsConfig: {nameservers: [9.9.9.9]}", "nameserver 9.9.9.9\n"),
        ] {
            let made = resolv_conf(&pod(spec), NodeDns::read(None).of(&pod(spec)), &none);
            assert_eq!(made, (expected.to_owned(), vec![]), "{spec}");
        }
    }

    #[test]
    fn a_file_without_a_name_server_that_pods_can_reach_is_a_problem() {
        let directory = tempfile::tempdir().expect("a directory");
        let (directory, file) = (directory.path(), directory.path().join("resolv.conf"));
        let names_none = "names no name server that a pod can reach: add one";
        for (text, expected) in [
            ("nameserver 9.9.9.9\n", None),
            ("nameserver 127.0.0.1\nnameserver 9.9.9.9\n", None),
            ("", Some(names_none)),
            ("search lan\n", Some(names_none)),
            ("nameserver fe80::1%eth0\n", Some(names_none)),
            ("nameserver dns.lan\n", Some(names_none)),
        ] {
            std::fs::write(&file, text).expect("written");
            let expected = expected.map(|expected| format!("{} {expected}", file.display()));
            let problem = problem(&file);
            let shown = problem.as_ref().and_then(|problem| problem.get(..expected.as_ref()?.len()));
            assert_eq!((problem.is_some(), shown), (expected.is_some(), expected.as_deref()), "{text:?}");
        }
        let absent = directory.join("absent");
        let expected =
            format!("{} does not exist: pods get no name servers from it until it does", absent.display());
        assert_eq!(problem(&absent), Some(expected));
        let problem = problem(directory).expect("it is a directory");
        assert!(problem.starts_with(&format!("failed to read {}: ", directory.display())), "{problem}");
    }

    #[test]
    fn the_servers_of_systemd_resolved_replace_a_stub_at_the_nodes_loopback() {
        for (text, expected) in [
            ("nameserver 127.0.0.53\noptions edns0\n", true),
            ("nameserver ::1\nnameserver 127.0.0.1\n", true),
            ("nameserver 127.0.0.53\nnameserver 1.1.1.1\n", false),
            ("nameserver 127.0.0.53\nnameserver fe80::1%eth0\n", true),
            ("nameserver fe80::1%eth0\n", false),
            ("nameserver 1.1.1.1\n", false),
            ("search x\n", false),
            ("", false),
        ] {
            assert_eq!(is_stub(text), expected, "{text:?}");
        }
    }
}
