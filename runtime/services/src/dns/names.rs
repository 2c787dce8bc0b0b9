//! The answers to names of Services and pods: the rules of CoreDNS' `plugin/kubernetes` (`kubernetes.go`, `handler.go`,
//! `reverse.go`) and `plugin/backend_lookup.go`. A name that exists is never denied (NXDOMAIN) for a type that it
//! lacks.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use crate::catalog::{Catalog, Entry};
use crate::service::{Endpoint, Protocol, Service, ServiceType};

/// Time in seconds for which an answer may be kept (CoreDNS: `ttl 5`).
pub(super) const TTL: u32 = 5;

/// The version of the specification of these names, at `dns-version` below the domain, with its time to live.
const SCHEMA: (&str, u32) = ("1.1.0", 28_800);

/// Names of type ExternalName that are followed in one answer at most (CoreDNS: `maxCnameChainLength`).
const CHAIN: usize = 10;

/// The names that end here, with what they are computed from.
#[derive(Clone, Debug)]
pub struct Zone {
    /// The labels of the cluster's domain, in lower case.
    domain: Vec<Box<str>>,
    /// The addresses of the name server itself.
    servers: Vec<IpAddr>,
    catalog: Rc<Catalog>,
    /// Addresses of pods, each with the pod's namespace.
    pods: BTreeSet<(IpAddr, Box<str>)>,
    /// Changes with each update.
    serial: u32,
}

/// The types of records with a meaning here; others are [`Type::Other`].
#[expect(missing_docs, reason = "they have the names of the DNS")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    A,
    Aaaa,
    Cname,
    Ns,
    Ptr,
    Soa,
    Srv,
    Txt,
    Other,
}

/// A record of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The name of the record, with dots and without the last one; `None` is the name of the question.
    pub owner: Option<Box<str>>,
    /// Time to live in seconds.
    pub ttl: u32,
    /// The data.
    pub data: Data,
}

/// The data of a record. Names have dots between their labels and none after the last one.
#[expect(missing_docs, reason = "they have the names of the DNS")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    Address(IpAddr),
    Cname(Box<str>),
    Ns(Box<str>),
    Ptr(Box<str>),
    Soa { server: Box<str>, mailbox: Box<str>, serial: u32 },
    Srv { weight: u16, port: u16, target: Box<str> },
    Txt(&'static str),
}

/// The answer to a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// These records and those beside them (`additional`).
    Records {
        /// The records of the question.
        answer: Vec<Record>,
        /// Addresses of the names in them.
        additional: Vec<Record>,
    },
    /// The records begin with these of type CNAME; those of the last one's target follow from another name server.
    Follow {
        /// The records of type CNAME.
        chain: Vec<Record>,
        /// The name that the last one leads to.
        target: Box<str>,
    },
    /// The name exists, but not with this type.
    NoData(Record),
    /// The name does not exist. Without a record: it is not of the domain, and ends here all the same.
    NotExisting(Option<Record>),
    /// The name is another name server's.
    Forward,
}

/// What a name means below `svc` or `pod` (CoreDNS: `recordRequest`).
struct Request<'a> {
    namespace: &'a [u8],
    name: &'a [u8],
    endpoint: Option<&'a [u8]>,
    /// Port and protocol; an empty one is any.
    port: Option<(&'a [u8], &'a [u8])>,
}

/// An address with the port and the host name of an endpoint, or of a Service.
struct Target {
    address: IpAddr,
    /// `None` without a declared port.
    port: Option<u16>,
    host: Option<Box<str>>,
}

/// What a name below `svc` or `pod` has.
enum Content {
    Targets(Vec<Target>),
    Alias(Box<str>),
    /// It exists, as a part of other names.
    Nothing,
}

impl Zone {
    /// The names below `domain`, of which there are none yet. `servers` are the addresses of the name server itself.
    pub fn new(domain: &str, servers: Vec<IpAddr>) -> Zone {
        let labels = domain.split('.').filter(|label| !label.is_empty());
        Zone {
            domain: labels.map(|label| label.to_ascii_lowercase().into()).collect(),
            servers,
            catalog: Rc::default(),
            pods: BTreeSet::new(),
            serial: 0,
        }
    }

    /// Replaces what the names are computed from: the Services, and the addresses of all pods, each with its namespace.
    pub fn update(&mut self, catalog: Rc<Catalog>, pods: BTreeSet<(IpAddr, Box<str>)>) {
        (self.catalog, self.pods, self.serial) = (catalog, pods, self.serial.wrapping_add(1));
    }

    /// Returns the answer to the name of these `labels` in lower case, without the root.
    pub fn answer(&self, labels: &[&[u8]], kind: Type) -> Answer {
        let Some(below) = self.below_domain(labels) else {
            if kind == Type::Ptr
                && let Some(records) = reverse_address(labels).map(|address| self.reverse(address))
                && !records.is_empty()
            {
                return Answer::Records { answer: records, additional: vec![] };
            }
            return if self.is_searched(labels) { Answer::NotExisting(None) } else { Answer::Forward };
        };
        match below {
            [] => match kind {
                Type::Soa => Answer::records(vec![self.soa(None)]),
                Type::Ns => self.name_servers(),
                _ => self.no_data(),
            },
            [b"dns-version"] if kind == Type::Txt => {
                Answer::records(vec![Record { owner: None, ttl: SCHEMA.1, data: Data::Txt(SCHEMA.0) }])
            }
            [b"dns-version"] => self.no_data(),
            [b"ns", b"dns"] => self.addresses(self.servers.iter().copied(), kind),
            _ => match self.content(below) {
                None => self.not_existing(),
                Some(Content::Nothing) => self.no_data(),
                Some(Content::Targets(targets)) if kind == Type::Srv => self.srv(below, targets),
                Some(Content::Targets(targets)) => {
                    self.addresses(targets.iter().map(|target| target.address), kind)
                }
                Some(Content::Alias(target)) => self.alias(target, kind),
            },
        }
    }

    /// The labels before the domain; `None` if the name is not in it.
    fn below_domain<'a, 'b>(&self, labels: &'a [&'b [u8]]) -> Option<&'a [&'b [u8]]> {
        let at = labels.len().checked_sub(self.domain.len())?;
        self.is_domain(&labels[at..]).then_some(&labels[..at])
    }

    fn is_domain(&self, labels: &[&[u8]]) -> bool {
        labels.iter().copied().eq(self.domain.iter().map(|label| label.as_bytes()))
    }

    /// Whether a resolver made this name of one of the domain and of a domain of its search list. No other name server
    /// knows it, and none shall read it.
    fn is_searched(&self, labels: &[&[u8]]) -> bool {
        let length = self.domain.len() + 1;
        labels.windows(length).any(|part| matches!(part[0], b"svc" | b"pod") && self.is_domain(&part[1..]))
    }

    /// What the name of these labels before the domain has; `None` if it does not exist.
    fn content(&self, below: &[&[u8]]) -> Option<Content> {
        let (area, rest) = below.split_last()?;
        let is_pod = match *area {
            b"pod" => true,
            b"svc" => false,
            _ => return None,
        };
        let Some((namespace, rest)) = rest.split_last() else { return Some(Content::Nothing) };
        if !str::from_utf8(namespace).is_ok_and(|namespace| self.catalog.namespaces.contains(namespace)) {
            return None;
        }
        let Some((name, rest)) = rest.split_last() else { return Some(Content::Nothing) };
        let mut request = Request { namespace, name, endpoint: None, port: None };
        match rest {
            [] => {}
            [endpoint] => request.endpoint = Some(endpoint),
            [port, protocol] => request.port = Some((without_underscore(port), without_underscore(protocol))),
            _ => return None,
        }
        if is_pod { self.pod(&request) } else { self.service(&request) }
    }

    /// The address of a pod. CoreDNS ignores labels before it, and so does this; its SRV record has the port 0.
    fn pod(&self, request: &Request) -> Option<Content> {
        let address = dashed_address(str::from_utf8(request.name).ok()?)?;
        let namespace = str::from_utf8(request.namespace).ok()?;
        let is_there = self.pods.contains(&(address, namespace.into()));
        is_there.then(|| Content::Targets(vec![Target { address, port: Some(0), host: None }]))
    }

    fn service(&self, request: &Request) -> Option<Content> {
        let text = |label| str::from_utf8(label).ok().map(Box::from);
        let entry = self.catalog.services.get(&(text(request.namespace)?, text(request.name)?))?;
        let Entry { service, slices: _ } = entry;
        if service.kind == ServiceType::ExternalName {
            let name = service.external_name.as_deref()?;
            // A text of digits and dots is a name to some, and an address to CoreDNS.
            let is_name = name.parse::<IpAddr>().is_err();
            let is_whole = request.endpoint.is_none() && request.port.is_none();
            let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
            return (is_name && is_whole).then(|| Content::Alias(name.into()));
        }
        let targets = if service.is_headless || request.endpoint.is_some() {
            endpoints(entry, request)
        } else {
            cluster_addresses(service, request)
        };
        (!targets.is_empty()).then_some(Content::Targets(targets))
    }

    fn addresses(&self, addresses: impl Iterator<Item = IpAddr>, kind: Type) -> Answer {
        let mut seen = BTreeSet::new();
        let records: Vec<_> = addresses
            .filter(|address| match kind {
                Type::A => address.is_ipv4(),
                Type::Aaaa => address.is_ipv6(),
                _ => false,
            })
            .filter(|address| seen.insert(*address))
            .map(|address| Record { owner: None, ttl: TTL, data: Data::Address(address) })
            .collect();
        if records.is_empty() { self.no_data() } else { Answer::records(records) }
    }

    /// Records with equal weights, and the addresses of their targets beside them.
    fn srv(&self, below: &[&[u8]], targets: Vec<Target>) -> Answer {
        // Whatever is before `SERVICE.NAMESPACE.svc` or `IP.NAMESPACE.pod` is no part of the target.
        let owner = &below[below.len().saturating_sub(3)..];
        let owner = self
            .below(&owner.iter().map(|label| String::from_utf8_lossy(label)).collect::<Vec<_>>().join("."));
        let weight = u16::try_from(100 / targets.len().max(1)).unwrap_or(1).max(1);
        let (mut answer, mut additional) = (Vec::new(), Vec::new());
        let (mut ports, mut seen) = (BTreeSet::new(), BTreeSet::new());
        for Target { address, port, host } in targets {
            let Some(port) = port else { continue };
            let target: Box<str> = match host {
                Some(host) => format!("{host}.{owner}").into(),
                None => owner.clone(),
            };
            if ports.insert((target.clone(), port)) {
                let data = Data::Srv { weight, port, target: target.clone() };
                answer.push(Record { owner: None, ttl: TTL, data });
            }
            if seen.insert((target.clone(), address)) {
                additional.push(Record { owner: Some(target), ttl: TTL, data: Data::Address(address) });
            }
        }
        if answer.is_empty() { self.no_data() } else { Answer::Records { answer, additional } }
    }

    /// The name of a Service of type ExternalName, which is followed for addresses.
    fn alias(&self, target: Box<str>, kind: Type) -> Answer {
        let cname = |owner, target: &str| Record { owner, ttl: TTL, data: Data::Cname(target.into()) };
        let mut chain = vec![cname(None, &target)];
        match kind {
            Type::A | Type::Aaaa => {}
            Type::Cname => return Answer::records(chain),
            _ => return self.no_data(),
        }
        let mut target = target;
        while chain.len() <= CHAIN {
            let labels: Vec<&[u8]> = target.split('.').map(str::as_bytes).collect();
            let Some(below) = self.below_domain(&labels) else {
                let is_ours = self.is_searched(&labels);
                return if is_ours { self.no_data() } else { Answer::Follow { chain, target } };
            };
            let addresses = match self.content(below) {
                Some(Content::Targets(targets)) => {
                    self.addresses(targets.iter().map(|target| target.address), kind)
                }
                Some(Content::Alias(next)) => {
                    chain.push(cname(Some(target), &next));
                    target = next;
                    continue;
                }
                Some(Content::Nothing) | None => return self.no_data(),
            };
            let Answer::Records { answer, additional } = addresses else { return self.no_data() };
            chain.extend(answer.into_iter().map(|record| Record { owner: Some(target.clone()), ..record }));
            return Answer::Records { answer: chain, additional };
        }
        self.no_data()
    }

    /// The names of an address: those of the Services with this address of the cluster, otherwise those of endpoints.
    fn reverse(&self, address: IpAddr) -> Vec<Record> {
        let ptr = |name| Record { owner: None, ttl: TTL, data: Data::Ptr(name) };
        if let Some(Service { namespace, name, .. }) = self.catalog.of_cluster_ip(address) {
            return vec![ptr(self.below(&format!("{name}.{namespace}.svc")))];
        }
        let mut names = BTreeSet::new();
        for ((namespace, name), entry) in &self.catalog.services {
            for endpoint in entry.slices.iter().flat_map(|slice| &slice.endpoints) {
                if endpoint.conditions.ready && endpoint.addresses.contains(&address) {
                    names.insert(
                        self.below(&format!("{}.{name}.{namespace}.svc", host_name(endpoint, address))),
                    );
                }
            }
        }
        names.into_iter().map(ptr).collect()
    }

    fn name_servers(&self) -> Answer {
        let name = self.below("ns.dns");
        let address =
            |address: &IpAddr| Record { owner: Some(name.clone()), ttl: TTL, data: Data::Address(*address) };
        let additional = self.servers.iter().map(address).collect();
        Answer::Records {
            answer: vec![Record { owner: None, ttl: TTL, data: Data::Ns(name.clone()) }],
            additional,
        }
    }

    fn below(&self, name: &str) -> Box<str> {
        let labels: Vec<&str> =
            std::iter::once(name).chain(self.domain.iter().map(|label| &**label)).collect();
        labels.join(".").into()
    }

    fn soa(&self, owner: Option<Box<str>>) -> Record {
        let (server, mailbox) = (self.below("ns.dns"), self.below("hostmaster"));
        Record { owner, ttl: TTL, data: Data::Soa { server, mailbox, serial: self.serial } }
    }

    fn domain_soa(&self) -> Record {
        self.soa(Some(self.domain.join(".").into()))
    }

    fn no_data(&self) -> Answer {
        Answer::NoData(self.domain_soa())
    }

    fn not_existing(&self) -> Answer {
        Answer::NotExisting(Some(self.domain_soa()))
    }
}

impl Answer {
    fn records(answer: Vec<Record>) -> Answer {
        Answer::Records { answer, additional: vec![] }
    }
}

/// The ready endpoints of the requested port, or of the requested host name.
fn endpoints(entry: &Entry, request: &Request) -> Vec<Target> {
    let mut targets = Vec::new();
    for slice in &entry.slices {
        // Without ports there is one without number that has no name.
        let none = [(&b""[..], "", None)];
        let ports: Vec<_> = match &*slice.ports {
            [] => none.to_vec(),
            ports => {
                ports.iter().map(|port| (port.name.as_bytes(), protocol(port.protocol), port.port)).collect()
            }
        };
        for endpoint in slice.endpoints.iter().filter(|endpoint| endpoint.conditions.ready) {
            for address in &endpoint.addresses {
                let host = host_name(endpoint, *address);
                if request.endpoint.is_some_and(|asked| !asked.eq_ignore_ascii_case(host.as_bytes())) {
                    continue;
                }
                for (name, protocol, port) in &ports {
                    if request.is_port(name, protocol) {
                        targets.push(Target { address: *address, port: *port, host: Some(host.clone()) });
                    }
                }
            }
        }
    }
    targets
}

/// The addresses of the cluster with each requested port.
fn cluster_addresses(service: &Service, request: &Request) -> Vec<Target> {
    let ports = service.ports.iter();
    let ports = ports.filter(|port| request.is_port(port.name.as_bytes(), protocol(port.protocol)));
    let targets = ports.flat_map(|port| {
        let target = |address: &IpAddr| Target { address: *address, port: Some(port.port), host: None };
        service.cluster_ips.iter().map(target)
    });
    targets.collect()
}

impl Request<'_> {
    /// Whether a port is the requested one (CoreDNS: `matchPortAndProtocol`).
    fn is_port(&self, name: &[u8], protocol: &str) -> bool {
        self.port.is_none_or(|(asked, of)| {
            (asked.is_empty() || asked.eq_ignore_ascii_case(name))
                && (of.is_empty() || of.eq_ignore_ascii_case(protocol.as_bytes()))
        })
    }
}

fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

fn without_underscore(label: &[u8]) -> &[u8] {
    label.strip_prefix(b"_").unwrap_or(label)
}

/// The label of an endpoint's address below its Service (CoreDNS: `endpointHostname`).
fn host_name(endpoint: &Endpoint, address: IpAddr) -> Box<str> {
    match (&endpoint.hostname, address) {
        (Some(name), _) if !name.is_empty() => name.clone(),
        (_, IpAddr::V4(address)) => address.to_string().replace('.', "-").into(),
        (_, IpAddr::V6(address)) => {
            let dashed = address.to_string().replace(':', "-");
            if dashed.ends_with('-') { format!("{dashed}0").into() } else { dashed.into() }
        }
    }
}

/// The address of a pod's label, as CoreDNS' `findPods` reads it.
fn dashed_address(label: &str) -> Option<IpAddr> {
    let is_v4 = label.matches('-').count() == 3 && !label.contains("--");
    let text = label.replace('-', if is_v4 { "." } else { ":" });
    if is_v4 {
        text.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
    } else {
        text.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
    }
}

/// The address of a name of `in-addr.arpa` or `ip6.arpa`; `None` if it is none, or not the whole of one.
fn reverse_address(labels: &[&[u8]]) -> Option<IpAddr> {
    match labels {
        [numbers @ .., b"in-addr", b"arpa"] => {
            let [a, b, c, d] = numbers else { return None };
            let text = [d, c, b, a].map(|label| str::from_utf8(label).ok());
            let [Some(a), Some(b), Some(c), Some(d)] = text else { return None };
            format!("{a}.{b}.{c}.{d}").parse().ok().map(IpAddr::V4)
        }
        [digits @ .., b"ip6", b"arpa"] if digits.len() == 32 => {
            let digit = |label: &&[u8]| match label {
                [digit] => char::from(*digit).to_digit(16),
                _ => None,
            };
            let number =
                digits.iter().rev().try_fold(0u128, |sum, label| Some(sum << 4 | u128::from(digit(label)?)));
            number.map(|number| IpAddr::V6(number.into()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
