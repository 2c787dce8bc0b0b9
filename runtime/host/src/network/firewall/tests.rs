use super::*;
use std::net::Ipv4Addr;

use crate::netlink::messages;
use crate::netlink::tests::in_new_namespace;
use crate::network::tests::pod_with;

fn table() -> Table {
    Table {
        name: "nodlet-00000000".to_owned(),
        bridge: "nl00000000".to_owned(),
        masquerade: true,
        ranges: vec![("10.85.0.0".parse().unwrap(), 20), ("fd00::".parse().unwrap(), 60)],
        cluster: None,
        uplinks: vec!["eth0".to_owned()],
        bridges_translate: false,
        has_services: false,
        ports: SortedMap::new(),
    }
}

fn with_ports(mut table: Table) -> Table {
    let forward = |host: &str, (port, protocol), to: &str, target| Forward {
        host: host.parse().unwrap(),
        port,
        protocol,
        to: (to.parse().unwrap(), target),
    };
    let tcp = (8080, 6);
    table.ports.insert("a".into(), vec![forward("0.0.0.0", tcp, "10.85.0.2", 80)]);
    table.ports.insert("b".into(), vec![forward("192.168.7.1", (53, 17), "10.85.0.3", 5353)]);
    table.ports.insert("c".into(), vec![forward("::", tcp, "fd00::2", 80)]);
    table
}

/// What the table sends to the kernel, besides the table itself: `chain` or `rule`, and the attributes in hexadecimal
/// digits.
fn sent(table: &Table) -> Vec<String> {
    const NEWCHAIN: u16 = 0xa03;
    const NEWRULE: u16 = 0xa06;
    let bytes = nftables::encode(&table.name, 1, |batch| table.add_chains(batch));
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let lines = messages(&bytes).flatten().filter_map(|message| match message.message_type() {
        NEWCHAIN => Some(format!("chain {}", hex(&message.payload()[4..]))),
        NEWRULE => Some(format!("rule {}", hex(&message.payload()[4..]))),
        _ => None,
    });
    lines.collect()
}

/// `captured.txt` is what nft 1.0.6 of Debian 12 sent for the table of `captured.nft`.
#[test]
#[cfg(target_endian = "little")]
fn chains_and_rules_are_encoded_as_nft_encodes_them() {
    let of_kind = |lines: &[String], kind: &str| -> Vec<String> {
        lines.iter().filter(|line| line.starts_with(kind)).cloned().collect()
    };
    let captured: Vec<String> = include_str!("captured.txt").lines().map(str::to_owned).collect();
    let sent = sent(&with_ports(table()));
    for kind in ["chain", "rule"] {
        assert_eq!(of_kind(&sent, kind), of_kind(&captured, kind));
    }
}

#[test]
fn a_range_that_ends_within_a_byte_is_masked() {
    let base = "10.85.16.0".parse().unwrap();
    let found = nft::range(Side::Source, base, 20);
    let has = |bytes: &[u8]| found.windows(bytes.len()).any(|window| window == bytes);
    assert!(has(&[0xff, 0xff, 0xf0, 0]) && has(&[10, 85, 16, 0]));
}

#[test]
fn a_table_has_no_chain_that_no_pod_needs() {
    let count = |table: &Table| sent(table).iter().filter(|line| line.starts_with("chain")).count();
    assert_eq!(count(&table()), 2);
    assert_eq!(count(&Table { uplinks: Vec::new(), ..table() }), 1);
    assert_eq!(count(&with_ports(table())), 6);
    let mut one = with_ports(table());
    one.ports.remove(&"a".into());
    assert!(!one.serves_loopback());
    assert_eq!(count(&one), 5);
}

#[test]
fn servers_see_the_pods_of_a_bridge_that_translates_unless_they_connect_to_themselves() {
    let count = |table: &Table| sent(table).iter().filter(|line| line.starts_with("rule")).count();
    let before = with_ports(table());
    let after = Table { bridges_translate: true, ..with_ports(table()) };
    // A rule for each of three pods in place of one for each of two ranges.
    assert_eq!(count(&after), count(&before) + 1);
    let cluster =
        |bridges_translate| Table { cluster: Some(Cluster::default()), bridges_translate, ..table() };
    assert_eq!(count(&cluster(true)) + 2, count(&cluster(false)));
}

#[test]
fn pods_of_a_cluster_reach_each_other_without_translation() {
    let range = |text: &str, prefix| (text.parse::<IpAddr>().unwrap(), prefix);
    let peer = |base, gateway: &str| Peer { range: base, gateway: gateway.parse().unwrap() };
    let (of_two, of_two_ipv6) = (range("10.244.2.0", 24), range("fd00:2::", 64));
    let cluster = Cluster {
        own: vec![range("10.244.1.0", 24), range("fd00:1::", 64)],
        pods: vec![range("10.244.0.0", 16), of_two, of_two_ipv6],
        peers: vec![peer(of_two, "192.0.2.2"), peer(of_two_ipv6, "2001:db8::2")],
    };
    let table = Table { cluster: Some(cluster.clone()), ..self::table() };
    // The rules that accept: both chains for each range, and one for the address of each node.
    let count = |kind: &str| sent(&table).iter().filter(|line| line.starts_with(kind)).count();
    assert_eq!(count("chain"), 4);
    // from-cluster 5, to-cluster 3, forward 2, postrouting 2 + 1 + 2.
    assert_eq!(count("rule"), 15);
    let drops_all = [nft::links(nft::OIFNAME, false, BRIDGES.as_bytes()), nft::drop_packet()].concat();
    let bytes = nftables::encode(&table.name, 1, |batch| table.add_chains(batch));
    let has = |found: &[u8]| bytes.windows(found.len()).any(|window| window == found);
    assert!(!has(&drops_all), "kube-proxy sends packets of a node port to other nodes");
    in_new_namespace(move || {
        let mut firewall = Firewall::new("00000000", "nl00000000", true, &[]);
        firewall.table = with_ports(Table { cluster: Some(cluster), ..self::table() });
        firewall.apply().unwrap();
        firewall.apply().unwrap();
    });
}

#[test]
fn the_kernel_accepts_the_table_repeatedly_and_removes_it() {
    in_new_namespace(|| {
        let mut firewall = Firewall::new("00000000", "nl00000000", true, &[]);
        firewall.remove().unwrap();
        firewall.table.uplinks = vec!["eth0".to_owned()];
        firewall.apply().unwrap();
        let watch = firewall.watch(&[]).unwrap();
        firewall.table = with_ports(table());
        firewall.apply().unwrap();
        firewall.apply().unwrap();
        assert!(!watch.read_tables().is_foreign, "these are changes of its own");
        // Somebody else, who has another socket.
        let mut other = Firewall::new("00000000", "nl00000000", true, &[]);
        other.remove().unwrap();
        assert!(watch.read_tables().is_foreign);
        assert!(!watch.read_tables().is_foreign);
        let mut foreign = Firewall::new("ffffffff", "nlffffffff", true, &[]);
        foreign.apply().unwrap();
        assert!(!watch.read_tables().is_foreign, "another agent has a table of its own");
        // As many ports as a busy board may have, in one change.
        let forward = |port: u16| Forward {
            host: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            port,
            protocol: 6,
            to: (IpAddr::V4(Ipv4Addr::new(10, 85, 0, 2)), port),
        };
        firewall.table.ports.insert("many".into(), (1..=2000).map(forward).collect());
        // More news than the socket holds, first of nodlet's own changes only.
        for _ in 0..2 {
            firewall.apply().unwrap();
            let news = watch.read_tables();
            assert!(!news.is_foreign && !news.is_incomplete);
        }
        firewall.apply().unwrap();
        other.remove().unwrap();
        firewall.apply().unwrap();
        let news = watch.read_tables();
        assert!(!news.is_foreign && news.is_incomplete, "{news:?}");
        firewall.apply().unwrap();
        assert!(!watch.read_tables().is_incomplete);
        firewall.remove().unwrap();
        firewall.remove().unwrap();
    });
}

#[test]
fn host_ports_are_read_with_their_addresses_and_refused_by_name() {
    let here = [IpAddr::V4(Ipv4Addr::new(10, 85, 0, 2))];
    let of = |ports: &str| {
        let pod = pod_with("u", &format!(", ports: [{ports}]"), "");
        forwards(&pod, &here).map(|found| {
            let shown = found.iter().map(|one| {
                format!("{} {} {} -> {}:{}", one.protocol, one.host, one.port, one.to.0, one.to.1)
            });
            shown.collect::<Vec<_>>().join(", ")
        })
    };
    for (ports, expected) in [
        ("{containerPort: 80}", Ok("")),
        ("{containerPort: 80, hostPort: 8080}", Ok("6 0.0.0.0 8080 -> 10.85.0.2:80")),
        (
            "{containerPort: 53, hostPort: 53, protocol: UDP, hostIP: 192.168.7.1}",
            Ok("17 192.168.7.1 53 -> 10.85.0.2:53"),
        ),
        (
            "{containerPort: 1, hostPort: 1, protocol: SCTP}, {containerPort: 2, hostPort: 2, hostIP: 127.0.0.1}",
            Ok("132 0.0.0.0 1 -> 10.85.0.2:1, 6 127.0.0.1 2 -> 10.85.0.2:2"),
        ),
        (
            "{containerPort: 1, hostPort: 1, hostIP: 'fd00::1'}",
            Err(
                "forward hostPort 1 (TCP) of container c: hostIP fd00::1: the pod has no address of this family",
            ),
        ),
        (
            "{containerPort: 1, hostPort: 1, hostIP: '::1'}",
            Err(
                "forward hostPort 1 (TCP) of container c: hostIP ::1: Linux routes nothing from there to a pod; use 127.0.0.1",
            ),
        ),
        (
            "{containerPort: 1, hostPort: 1, hostIP: board}",
            Err("forward hostPort 1 (TCP) of container c: board: hostIP must be an IP address"),
        ),
    ] {
        assert_eq!(of(ports).as_deref().map_err(String::as_str), expected, "{ports}");
    }
}
