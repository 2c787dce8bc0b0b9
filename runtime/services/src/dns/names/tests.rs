use super::*;
use crate::service::{Conditions, EndpointPort, EndpointSlice, Family, ServicePort, Target as TargetPort};

fn service(namespace: &str, name: &str, cluster_ips: &[&str], ports: &[(&str, Protocol, u16)]) -> Service {
    let port = |(name, protocol, port): &(&str, Protocol, u16)| ServicePort {
        name: (*name).into(),
        protocol: *protocol,
        port: *port,
        target: TargetPort::Number(*port),
        node_port: None,
        app_protocol: None,
    };
    Service {
        namespace: namespace.into(),
        name: name.into(),
        kind: ServiceType::ClusterIp,
        cluster_ips: cluster_ips.iter().map(|address| address.parse().unwrap()).collect(),
        families: vec![Family::V4],
        is_headless: cluster_ips.is_empty(),
        ports: ports.iter().map(port).collect(),
        selector: Default::default(),
        affinity_seconds: None,
        internal_policy: Default::default(),
        external_policy: Default::default(),
        publishes_not_ready: false,
        health_check_port: None,
        external_ips: vec![],
        external_name: None,
    }
}

fn external(name: &str, to: &str) -> Service {
    let service = service("default", name, &[], &[]);
    Service { kind: ServiceType::ExternalName, is_headless: false, external_name: Some(to.into()), ..service }
}

/// Endpoints are an address, a host name or an empty text, and whether they are ready.
fn slice(
    service: &Service,
    ports: &[(&str, Protocol, u16)],
    endpoints: &[(&str, &str, bool)],
) -> EndpointSlice {
    let port = |(name, protocol, port): &(&str, Protocol, u16)| EndpointPort {
        name: (*name).into(),
        protocol: *protocol,
        port: Some(*port),
        app_protocol: None,
    };
    let endpoint = |(address, hostname, ready): &(&str, &str, bool)| Endpoint {
        addresses: vec![address.parse().unwrap()],
        conditions: Conditions { ready: *ready, serving: *ready, terminating: false },
        hostname: (!hostname.is_empty()).then(|| (*hostname).into()),
        node: None,
        pod: None,
    };
    EndpointSlice {
        namespace: service.namespace.clone(),
        name: format!("{}-1", service.name).into(),
        service: service.name.clone(),
        family: Some(Family::V4),
        ports: ports.iter().map(port).collect(),
        endpoints: endpoints.iter().map(endpoint).collect(),
    }
}

fn zone() -> Zone {
    const HTTP: (&str, Protocol, u16) = ("http", Protocol::Tcp, 80);
    const DNS: (&str, Protocol, u16) = ("dns", Protocol::Udp, 53);
    let web = service("default", "web", &["10.96.0.1", "fd00::1"], &[HTTP, DNS]);
    let four = service("default", "four", &["10.96.0.2"], &[HTTP]);
    let db = service("shop", "db", &[], &[HTTP]);
    let bare = service("shop", "bare", &[], &[]);
    let none = service("shop", "none", &[], &[HTTP]);
    let slices = vec![
        (web.clone(), slice(&web, &[HTTP], &[("10.88.0.5", "", true)])),
        (
            db.clone(),
            slice(
                &db,
                &[HTTP],
                &[
                    ("10.88.0.7", "db-0", true),
                    ("10.88.0.8", "", true),
                    ("10.88.0.9", "", false),
                    ("fd01::", "", true),
                ],
            ),
        ),
        (bare.clone(), slice(&bare, &[], &[("10.88.0.7", "", true)])),
        (none.clone(), slice(&none, &[HTTP], &[("10.88.0.9", "", false)])),
    ];
    let mut catalog = Catalog::default();
    catalog.namespaces.extend(["default".into(), "shop".into(), "empty".into()]);
    let alone = [
        four,
        external("out", "www.Example.com."),
        external("in", "web.default.svc.cluster.local"),
        external("four-in", "four.default.svc.cluster.local"),
        external("twice", "out.default.svc.cluster.local"),
        external("loop", "loop.default.svc.cluster.local"),
        external("gone", "nothing.default.svc.cluster.local"),
        external("address", "192.0.2.1"),
        external("searched", "web.default.svc.cluster.local.lan"),
    ];
    let alone = alone.into_iter().map(|service| (service, vec![]));
    let all = slices.into_iter().map(|(service, slice)| (service, vec![slice])).chain(alone);
    for (service, slices) in all {
        let key = (service.namespace.clone(), service.name.clone());
        catalog.services.insert(key, Entry { service, slices });
    }
    let mut zone = Zone::new("Cluster.local.", vec!["10.88.0.1".parse().unwrap()]);
    let pods = [("10.88.0.5", "default"), ("fd01::5", "default"), ("10.88.0.7", "shop")];
    let pods = pods.map(|(address, namespace)| (address.parse().unwrap(), namespace.into()));
    zone.update(Rc::new(catalog), BTreeSet::from(pods));
    zone
}

fn show(answer: &Answer) -> String {
    let record = |record: &Record| {
        let data = match &record.data {
            Data::Address(address) => address.to_string(),
            Data::Cname(name) => format!("CNAME {name}"),
            Data::Ns(name) => format!("NS {name}"),
            Data::Ptr(name) => format!("PTR {name}"),
            Data::Soa { server, .. } => format!("SOA {server}"),
            Data::Srv { weight, port, target } => format!("SRV {weight} {port} {target}"),
            Data::Txt(text) => format!("TXT {text}"),
        };
        record.owner.as_ref().map_or(data.clone(), |owner| format!("{owner} {data}"))
    };
    let all = |records: &[Record]| records.iter().map(record).collect::<Vec<_>>().join(", ");
    match answer {
        Answer::Records { answer, additional } if additional.is_empty() => all(answer),
        Answer::Records { answer, additional } => format!("{} + {}", all(answer), all(additional)),
        Answer::Follow { chain, target } => format!("{}, then {target}", all(chain)),
        Answer::NoData(_) => "no data".to_owned(),
        Answer::NotExisting(Some(_)) => "no name".to_owned(),
        Answer::NotExisting(None) => "no name here".to_owned(),
        Answer::Forward => "forward".to_owned(),
    }
}

fn ask(zone: &Zone, name: &str, kind: Type) -> String {
    let labels: Vec<&[u8]> = name.split('.').filter(|label| !label.is_empty()).map(str::as_bytes).collect();
    show(&zone.answer(&labels, kind))
}

#[test]
fn names_are_answered_as_coredns_answers_them() {
    use Type::{A, Aaaa, Cname, Other, Ptr, Soa, Srv, Txt};
    let zone = zone();
    for (name, kind, expected) in [
        // Services with an address of the cluster.
        ("web.default.svc.cluster.local", A, "10.96.0.1"),
        ("web.default.svc.cluster.local", Aaaa, "fd00::1"),
        ("web.default.svc.cluster.local", Txt, "no data"),
        ("web.default.svc.cluster.local", Other, "no data"),
        ("web.default.svc.cluster.local", Cname, "no data"),
        ("four.default.svc.cluster.local", A, "10.96.0.2"),
        ("four.default.svc.cluster.local", Aaaa, "no data"),
        ("nothing.default.svc.cluster.local", A, "no name"),
        ("nothing.default.svc.cluster.local", Aaaa, "no name"),
        ("web.shop.svc.cluster.local", A, "no name"),
        ("web.nowhere.svc.cluster.local", A, "no name"),
        ("*.default.svc.cluster.local", A, "no name"),
        ("web.*.svc.cluster.local", A, "no name"),
        // Their ports.
        (
            "_http._tcp.web.default.svc.cluster.local",
            Srv,
            "SRV 50 80 web.default.svc.cluster.local + web.default.svc.cluster.local 10.96.0.1, \
             web.default.svc.cluster.local fd00::1",
        ),
        ("_http._tcp.web.default.svc.cluster.local", A, "10.96.0.1"),
        ("_http._udp.web.default.svc.cluster.local", Srv, "no name"),
        ("_web._tcp.web.default.svc.cluster.local", Srv, "no name"),
        (
            "four.default.svc.cluster.local",
            Srv,
            "SRV 100 80 four.default.svc.cluster.local + four.default.svc.cluster.local 10.96.0.2",
        ),
        // Their endpoints.
        ("10-88-0-5.web.default.svc.cluster.local", A, "10.88.0.5"),
        ("10-88-0-5.web.default.svc.cluster.local", Aaaa, "no data"),
        ("10-88-0-6.web.default.svc.cluster.local", A, "no name"),
        // Headless ones.
        ("db.shop.svc.cluster.local", A, "10.88.0.7, 10.88.0.8"),
        ("db.shop.svc.cluster.local", Aaaa, "fd01::"),
        ("db-0.db.shop.svc.cluster.local", A, "10.88.0.7"),
        ("10-88-0-7.db.shop.svc.cluster.local", A, "no name"),
        ("10-88-0-8.db.shop.svc.cluster.local", A, "10.88.0.8"),
        ("10-88-0-9.db.shop.svc.cluster.local", A, "no name"),
        ("fd01--0.db.shop.svc.cluster.local", Aaaa, "fd01::"),
        (
            "_http._tcp.db.shop.svc.cluster.local",
            Srv,
            "SRV 33 80 db-0.db.shop.svc.cluster.local, SRV 33 80 10-88-0-8.db.shop.svc.cluster.local, \
             SRV 33 80 fd01--0.db.shop.svc.cluster.local + db-0.db.shop.svc.cluster.local 10.88.0.7, \
             10-88-0-8.db.shop.svc.cluster.local 10.88.0.8, fd01--0.db.shop.svc.cluster.local fd01::",
        ),
        ("bare.shop.svc.cluster.local", A, "10.88.0.7"),
        ("bare.shop.svc.cluster.local", Srv, "no data"),
        ("none.shop.svc.cluster.local", A, "no name"),
        // Pods.
        ("10-88-0-5.default.pod.cluster.local", A, "10.88.0.5"),
        ("10-88-0-5.default.pod.cluster.local", Aaaa, "no data"),
        ("fd01--5.default.pod.cluster.local", Aaaa, "fd01::5"),
        ("10-88-0-5.shop.pod.cluster.local", A, "no name"),
        ("10-88-0-6.default.pod.cluster.local", A, "no name"),
        ("web.default.pod.cluster.local", A, "no name"),
        ("x.10-88-0-5.default.pod.cluster.local", A, "10.88.0.5"),
        // Parts of names.
        ("cluster.local", A, "no data"),
        ("cluster.local", Soa, "SOA ns.dns.cluster.local"),
        ("cluster.local", Type::Ns, "NS ns.dns.cluster.local + ns.dns.cluster.local 10.88.0.1"),
        ("svc.cluster.local", A, "no data"),
        ("pod.cluster.local", Txt, "no data"),
        ("shop.svc.cluster.local", A, "no data"),
        ("empty.pod.cluster.local", A, "no data"),
        ("nowhere.svc.cluster.local", A, "no name"),
        ("x.cluster.local", A, "no name"),
        ("a.b.c.web.default.svc.cluster.local", A, "no name"),
        ("ns.dns.cluster.local", A, "10.88.0.1"),
        ("ns.dns.cluster.local", Aaaa, "no data"),
        ("dns-version.cluster.local", Txt, "TXT 1.1.0"),
        ("dns-version.cluster.local", A, "no data"),
        // Addresses.
        ("1.0.96.10.in-addr.arpa", Ptr, "PTR web.default.svc.cluster.local"),
        ("8.0.88.10.in-addr.arpa", Ptr, "PTR 10-88-0-8.db.shop.svc.cluster.local"),
        (
            "7.0.88.10.in-addr.arpa",
            Ptr,
            "PTR 10-88-0-7.bare.shop.svc.cluster.local, PTR db-0.db.shop.svc.cluster.local",
        ),
        ("9.0.88.10.in-addr.arpa", Ptr, "forward"),
        ("0.88.10.in-addr.arpa", Ptr, "forward"),
        ("01.0.96.10.in-addr.arpa", Ptr, "forward"),
        (
            "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa",
            Ptr,
            "PTR web.default.svc.cluster.local",
        ),
        ("1.0.96.10.in-addr.arpa", A, "forward"),
        // Names elsewhere.
        ("www.example.com", A, "forward"),
        ("local", A, "forward"),
        ("", A, "forward"),
        ("mycluster.local", A, "forward"),
        ("web.default.svc.cluster.local.lan", A, "no name here"),
        ("web.default.svc.cluster.local.a.b", Aaaa, "no name here"),
        ("svc.cluster.local.lan", A, "no name here"),
        ("10-88-0-5.default.pod.cluster.local.lan", A, "no name here"),
        ("cluster.local.lan", A, "forward"),
        ("web.default.svc.lan", A, "forward"),
    ] {
        assert_eq!(ask(&zone, name, kind), expected, "{name} {kind:?}");
    }
}

#[test]
fn an_external_name_is_followed_in_one_answer() {
    use Type::{A, Aaaa, Cname, Srv, Txt};
    let zone = zone();
    for (name, kind, expected) in [
        ("out", A, "CNAME www.example.com, then www.example.com"),
        ("out", Aaaa, "CNAME www.example.com, then www.example.com"),
        ("out", Cname, "CNAME www.example.com"),
        ("out", Txt, "no data"),
        ("out", Srv, "no data"),
        ("in", A, "CNAME web.default.svc.cluster.local, web.default.svc.cluster.local 10.96.0.1"),
        ("four-in", Aaaa, "no data"),
        (
            "twice",
            A,
            "CNAME out.default.svc.cluster.local, out.default.svc.cluster.local CNAME www.example.com, then \
             www.example.com",
        ),
        ("loop", A, "no data"),
        ("gone", A, "no data"),
        ("address", A, "no name"),
        ("address", Cname, "no name"),
        ("searched", A, "no data"),
        ("x.out", A, "no name"),
        ("_http._tcp.out", Srv, "no name"),
    ] {
        let name = format!("{name}.default.svc.cluster.local");
        assert_eq!(ask(&zone, &name, kind), expected, "{name} {kind:?}");
    }
}

#[test]
fn a_pod_of_another_namespace_shows_nothing_but_what_dns_has_for_all() {
    // The names of Services are no secret in Kubernetes; the addresses of pods have names of their namespace only.
    let zone = zone();
    assert_eq!(ask(&zone, "10-88-0-7.shop.pod.cluster.local", Type::A), "10.88.0.7");
    assert_eq!(ask(&zone, "10-88-0-7.default.pod.cluster.local", Type::A), "no name");
}

#[test]
fn a_negative_answer_has_the_record_of_the_domain_whose_serial_changes_with_an_update() {
    let mut zone = zone();
    let serial = |zone: &Zone| match zone.answer(&[b"x", b"cluster", b"local"], Type::A) {
        Answer::NotExisting(Some(Record {
            owner,
            ttl: TTL,
            data: Data::Soa { server, mailbox, serial },
        })) => {
            assert_eq!(owner.as_deref(), Some("cluster.local"));
            assert_eq!((&*server, &*mailbox), ("ns.dns.cluster.local", "hostmaster.cluster.local"));
            serial
        }
        other => panic!("{other:?}"),
    };
    let before = serial(&zone);
    zone.update(Rc::default(), BTreeSet::new());
    assert_eq!(serial(&zone), before + 1);
}
