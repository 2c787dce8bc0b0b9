use std::fs;
use std::path::Path;
use std::rc::Rc;

use super::*;
use crate::netlink::netfilter;
use crate::netlink::nftables::GETRULE;
use crate::netlink::tests::in_new_namespace;
use nodlet_kube::manifest::{self, Validation};

fn pod(uid: &str, spec: &str) -> Pod {
    pod_with(uid, "", spec)
}

/// A pod with a container; `fields` are further fields of the container.
pub(super) fn pod_with(uid: &str, fields: &str, spec: &str) -> Pod {
    let yaml = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, uid: {uid}}}\nspec: {{containers: [{{name: c, image: i{fields}}}]{spec}}}"
    );
    let mut manifests = manifest::parse("p.yaml", yaml.as_bytes(), Validation::Strict, "node").unwrap();
    Rc::unwrap_or_clone(manifests.remove(0).pod)
}

fn network(cidr: &str) -> Network {
    Network::new(&Paths::new(Path::new("/tmp/no-such-root")), Some(cidr), true).unwrap()
}

#[test]
fn an_invalid_pod_range_is_rejected_with_a_valid_suggestion() {
    for (text, expected) in [
        ("10.85.0.0/24", "10.85.0.0/24"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("192.168.7.248/29", "192.168.7.248/29"),
        ("10.86.3.7", "it is an address and not a range: write 10.86.3.0/24"),
        ("", "it is not an IPv4 range such as 10.85.0.0/24"),
        ("fd00::/64", "it is not an IPv4 range such as 10.85.0.0/24"),
        ("10.85.0.0/x", "it is not an IPv4 range such as 10.85.0.0/24"),
        ("10.85.0.0/30", "it must have from /8 to /29"),
        ("8.0.0.0/7", "it must have from /8 to /29"),
        ("10.85.0.9/24", "its first address is 10.85.0.0: write 10.85.0.0/24"),
        ("127.0.0.0/8", "hosts cannot have these addresses; take a private range such as 10.85.0.0/24"),
        ("224.0.0.0/24", "hosts cannot have these addresses; take a private range such as 10.85.0.0/24"),
        ("0.0.0.0/8", "hosts cannot have these addresses; take a private range such as 10.85.0.0/24"),
    ] {
        let found = Range::parse(text).map_or_else(|wrong| wrong, |range| range.to_string());
        assert_eq!(found, expected, "{text:?}");
    }
}

#[test]
fn a_second_range_is_one_of_ipv6() {
    for (text, expected) in [
        ("10.85.0.0/24", "none"),
        ("10.85.0.0/24,fd00:10:85::/64", "fd00:10:85::/64"),
        ("10.85.0.0/24,fd00:10:85::/108", "an IPv6 range must have from /16 to /104"),
        ("10.85.0.0/24,fd00:10:85::1/64", "its first address is fd00:10:85::: write fd00:10:85::/64"),
        ("10.85.0.0/24,10.86.0.0/24", "the second one is not an IPv6 range such as fd00:10:85::/64"),
        ("10.85.0.0/24,fd00:10:85::", "the second one is not an IPv6 range such as fd00:10:85::/64"),
        (
            "10.85.0.0/24,fe80::/64",
            "hosts cannot have these addresses; take a private range such as fd00:10:85::/64",
        ),
        ("fd00:10:85::/64,10.85.0.0/24", "it is not an IPv4 range such as 10.85.0.0/24"),
    ] {
        let found = Range::parse_all(text).map(|(_, ipv6)| ipv6);
        let found = found.map_or_else(
            |wrong| wrong,
            |ipv6| ipv6.map_or("none".to_owned(), |range| format!("{}/{}", range.base, range.prefix)),
        );
        assert_eq!(found, expected, "{text:?}");
    }
    let mut network = network("10.0.0.0/8,fd00:10:85::/104");
    network.allocate(&pod("a", "")).unwrap();
    assert_eq!(network.ipv6_of(&"a".into()), Some("fd00:10:85::2".parse().unwrap()));
    let link = network.config(&"a".into(), Ipv4Addr::new(10, 0, 0, 2)).ipv6.unwrap();
    assert_eq!((link.gateway, link.prefix), ("fd00:10:85::1".parse().unwrap(), 104));
    network.release(&"a".into()).unwrap();
    assert_eq!(network.ipv6_of(&"a".into()), None);
}

#[test]
fn the_flag_comes_before_the_file_and_the_file_before_the_default() {
    let root = tempfile::tempdir().expect("a scratch directory");
    let paths = Paths::new(root.path());
    let range = |cidr| Network::new(&paths, cidr, true).map(|network| network.range.to_string());
    assert_eq!(range(None).unwrap(), "10.85.0.0/24");
    fs::create_dir_all(paths.pod_cidr().parent().unwrap()).unwrap();
    fs::write(paths.pod_cidr(), "10.99.0.0/16\n").unwrap();
    assert_eq!(range(None).unwrap(), "10.99.0.0/16");
    assert_eq!(range(Some("10.98.0.0/16")).unwrap(), "10.98.0.0/16");
    for (text, wrong) in [
        ("banana", "it is not an IPv4 range such as 10.85.0.0/24"),
        ("10.98.0.0", "it is an address and not a range: write 10.98.0.0/24"),
        ("banana/24", "it is not an IPv4 range such as 10.85.0.0/24"),
        ("10.98.0.0/x", "it is not an IPv4 range such as 10.85.0.0/24"),
        ("10.98.0.0/16,banana", "the second one is not an IPv6 range such as fd00:10:85::/64"),
    ] {
        let expected = format!("read the range of the pods' addresses from --pod-cidr: {text:?}: {wrong}");
        assert_eq!(range(Some(text)).unwrap_err().to_string(), expected);
    }
    fs::write(paths.pod_cidr(), "many").unwrap();
    assert!(range(None).unwrap_err().to_string().contains("etc/nodlet/pod-cidr"));
    // Nobody waits for the other end of a pipe.
    fs::remove_file(paths.pod_cidr()).unwrap();
    nix::unistd::mkfifo(&paths.pod_cidr(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let refused = crate::error::causes(&range(None).unwrap_err());
    assert!(refused.contains("it is not a regular file"), "{refused}");
}

#[test]
fn pods_get_the_lowest_free_address_until_there_is_none() {
    let mut network = network("10.1.2.0/29");
    let given =
        |network: &mut Network, uid: &str| network.allocate(&pod(uid, "")).map(|ip| ip.unwrap().octets()[3]);
    assert_eq!(network.allocate(&pod("h", ", hostNetwork: true")).unwrap(), None);
    network.adopt(&pod("old", ""), Ipv4Addr::new(10, 1, 2, 3), None);
    let first: Vec<u8> =
        ["a", "b", "a", "c", "d"].iter().map(|uid| given(&mut network, uid).unwrap()).collect();
    assert_eq!(first, [2, 4, 2, 5, 6]);
    let error = given(&mut network, "e").unwrap_err().to_string();
    assert!(
        error.contains("all of 10.1.2.0/29 are in use by 5 pods") && error.contains("--pod-cidr"),
        "{error}"
    );
    network.release(&"old".into()).unwrap();
    assert_eq!(given(&mut network, "e").unwrap(), 3);
    assert_eq!(network.address_of(&"old".into()), None);
}

#[test]
fn links_are_called_by_root_address_and_uid_in_fifteen_bytes() {
    let network = network("10.0.0.0/8");
    let link = |uid: &str, ip| network.config(&uid.into(), ip).host_link;
    let mut names: Vec<String> =
        (2..500u32).map(|host| link("u", Ipv4Addr::from_bits((10 << 24) + host * 30_011))).collect();
    assert!(names.iter().all(|name| name.len() == 15 && name.starts_with(&network.bridge)), "{names:?}");
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 498);
    let narrow = self::network("10.1.2.0/24");
    let link = |uid: &str| narrow.config(&uid.into(), Ipv4Addr::new(10, 1, 2, 3)).host_link;
    assert_ne!(link("gone"), link("new"));
    assert_eq!(link("new"), link("new"));
}

#[test]
fn ranges_overlap_where_they_share_an_address() {
    let range = Range::parse("10.85.0.0/24").unwrap();
    for (base, prefix, expected) in [
        ([10, 85, 0, 9], 32, true),
        ([10, 85, 0, 1], 24, true),
        ([10, 0, 0, 0], 8, true),
        ([0, 0, 0, 0], 0, true),
        ([10, 85, 1, 0], 24, false),
        ([10, 84, 255, 255], 32, false),
    ] {
        assert_eq!(range.overlaps(base.into(), prefix), expected, "{base:?}/{prefix}");
    }
}

/// The addresses of the bridge, sorted.
fn on_bridge(netlink: &mut Netlink, bridge: u32) -> Vec<String> {
    let addresses = netlink.all_addresses().unwrap();
    let ours = addresses.iter().filter(|(index, ..)| *index == bridge);
    let mut ours: Vec<String> = ours.map(|(_, address, prefix)| format!("{address}/{prefix}")).collect();
    ours.sort();
    ours
}

/// The ranges for which the table has rules.
fn in_table(network: &Network) -> Vec<String> {
    network.firewall.table.ranges.iter().map(|(base, prefix)| format!("{base}/{prefix}")).collect()
}

#[test]
fn the_bridge_is_made_once_and_goes_with_our_links_alone() {
    in_new_namespace(|| {
        let mut network = network("10.1.2.0/24");
        assert_eq!(network.host_ip(), Some(Ipv4Addr::LOCALHOST));
        network.ensure_bridge().unwrap();
        network.ensure_bridge().unwrap();
        assert_eq!(network.host_ip(), Some(Ipv4Addr::new(10, 1, 2, 1)));
        let mut netlink = Netlink::open().unwrap();
        let bridge = link_index(&network.bridge).unwrap();
        assert_eq!(netlink.addresses().unwrap(), [(bridge, Ipv4Addr::new(10, 1, 2, 1), 24)]);
        let link = network.config(&"u".into(), Ipv4Addr::new(10, 1, 2, 2)).host_link;
        let here = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        let (theirs, here) = (("theirs", [2, 0, 0, 0, 0, 9]), std::os::fd::AsRawFd::as_raw_fd(&here));
        netlink.add_veth(&link, bridge, theirs, here).unwrap();
        netlink.add_bridge("nlother").unwrap();

        // An agent with other pod ranges shares the bridge with the pods of the first ones, as long as there are any.
        let mut first = self::network("10.1.2.0/24,fd00:1::/64");
        first.ensure_bridge().unwrap();
        let mut other = self::network("10.9.2.0/24,fd00:9::/64");
        let addresses = netlink.all_addresses().unwrap();
        assert_eq!(other.earlier_ranges(Some(bridge), &addresses), first.ranges());
        assert_eq!(other.earlier_ranges(None, &addresses), []);
        let (old, old_ipv6) = (Ipv4Addr::new(10, 1, 2, 2), "fd00:1::2".parse().unwrap());
        other.adopt(&pod("old", ""), old, Some(old_ipv6));
        let made_with = netlink.hardware_address(bridge).unwrap();
        for _ in 0..2 {
            other.ensure_bridge().unwrap();
            let expected = ["10.1.2.1/24", "10.9.2.1/24", "fd00:1::1/64", "fd00:9::1/64"];
            assert_eq!(on_bridge(&mut netlink, bridge), expected);
        }
        assert_eq!(
            netlink.hardware_address(bridge).unwrap(),
            made_with,
            "the first pods have it in their entries"
        );
        // The next agent finds the earlier ranges at the bridge.
        let mut next = self::network("10.9.2.0/24,fd00:9::/64");
        next.adopt(&pod("old", ""), old, Some(old_ipv6));
        let _ = next.restore();
        assert_eq!(in_table(&next), ["10.9.2.0/24", "fd00:9::/64", "10.1.2.0/24", "fd00:1::/64"]);
        next.release(&"old".into()).unwrap();
        assert_eq!(on_bridge(&mut netlink, bridge), ["10.9.2.1/24", "fd00:9::1/64"]);
        assert_eq!(in_table(&next), ["10.9.2.0/24", "fd00:9::/64"]);

        // The ranges of one family alone change: its earlier range stays for its pod, and goes with it.
        let mut mixed = self::network("10.9.2.0/24,fd00:a::/64");
        mixed.adopt(&pod("old", ""), Ipv4Addr::new(10, 9, 2, 2), Some("fd00:9::2".parse().unwrap()));
        mixed.ensure_bridge().unwrap();
        assert_eq!(on_bridge(&mut netlink, bridge), ["10.9.2.1/24", "fd00:9::1/64", "fd00:a::1/64"]);
        mixed.release(&"old".into()).unwrap();
        assert_eq!(on_bridge(&mut netlink, bridge), ["10.9.2.1/24", "fd00:a::1/64"]);

        // New pods have no IPv6 addresses: the bridge accepts IPv6 until the last pod with such an address is gone.
        let refuses = |network: &Network| {
            let file = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", network.bridge);
            fs::read_to_string(file).unwrap().trim() == "1"
        };
        let mut single = self::network("10.9.2.0/24");
        single.adopt(&pod("old", ""), Ipv4Addr::new(10, 9, 2, 2), Some("fd00:a::2".parse().unwrap()));
        single.ensure_bridge().unwrap();
        assert_eq!(on_bridge(&mut netlink, bridge), ["10.9.2.1/24", "fd00:a::1/64"]);
        assert!(!refuses(&single));
        single.release(&"old".into()).unwrap();
        assert_eq!(on_bridge(&mut netlink, bridge), ["10.9.2.1/24"]);
        assert!(refuses(&single));
        // A wider range has the same gateway with another prefix.
        let mut wide = self::network("10.9.2.0/23,fd00:a::/48");
        wide.ensure_bridge().unwrap();
        assert_eq!(on_bridge(&mut netlink, bridge), ["10.9.2.1/23", "fd00:a::1/48"]);

        network.remove().unwrap();
        assert!([&*network.bridge, &link, "theirs"].iter().all(|name| link_index(name).is_err()));
        assert!(link_index("nlother").is_ok());
        network.remove().unwrap();
    });
}

#[test]
fn a_range_that_the_machine_uses_is_refused_by_name() {
    in_new_namespace(|| {
        let mut netlink = Netlink::open().unwrap();
        netlink.add_bridge("docker0").unwrap();
        let index = link_index("docker0").unwrap();
        netlink.add_address(index, Ipv4Addr::new(10, 85, 0, 1), 16, None).unwrap();
        netlink.set_up(index).unwrap();
        netlink.add_default_route(index, Ipv4Addr::new(10, 85, 0, 9)).unwrap();
        let mut network = network("10.85.0.0/24");
        let error = network.ensure_bridge().unwrap_err().to_string();
        assert!(
            error.contains("the address 10.85.0.1/16 on docker0") && error.contains("--pod-cidr"),
            "{error}"
        );
        assert!(link_index(&network.bridge).is_err());
        assert_eq!(network.host_ip(), Some(Ipv4Addr::new(10, 85, 0, 1)));
        self::network("10.86.0.0/24").ensure_bridge().unwrap();
    });
}

#[test]
fn an_address_has_one_hardware_address_of_its_own() {
    let [first, second] = [2, 3].map(|last| hardware_address(Ipv4Addr::new(10, 85, 0, last)));
    assert_eq!(first, hardware_address(Ipv4Addr::new(10, 85, 0, 2)));
    assert_ne!(first, second);
    // The address is that of one machine, not of a group, and locally administered.
    assert_eq!(first[0] & 0b11, 0b10);
}

#[test]
fn no_address_maps_to_the_user_ids_of_a_pod_with_an_earlier_range() {
    let mut network = network("10.78.0.0/24");
    let kept = pod("kept", "");
    network.adopt(&kept, Ipv4Addr::new(10, 77, 0, 2), None);
    let new = network.allocate(&pod("new", "")).unwrap();
    assert_eq!(new, Some(Ipv4Addr::new(10, 78, 0, 3)), "10.78.0.2 ends as 10.77.0.2");
    network.release(&kept.uid).unwrap();
    assert_eq!(network.allocate(&pod("next", "")).unwrap(), Some(Ipv4Addr::new(10, 78, 0, 2)));
}

#[test]
fn no_pod_gets_the_ipv6_address_of_a_pod_with_an_earlier_ipv4_range() {
    let mut network = network("10.9.2.0/24,fd00:1::/64");
    network.adopt(&pod("kept", ""), Ipv4Addr::new(10, 1, 3, 2), Some("fd00:1::2".parse().unwrap()));
    let new = network.allocate(&pod("new", "")).unwrap();
    assert_eq!(new, Some(Ipv4Addr::new(10, 9, 2, 3)));
    assert_eq!(network.ipv6_of(&"new".into()), Some("fd00:1::3".parse().unwrap()));
}

#[test]
fn the_rules_of_a_range_go_with_its_last_pod_and_come_back_when_a_cluster_is_left() {
    in_new_namespace(|| {
        // Without the rules for ranges, there would be none to see.
        let _ = fs::write("/proc/sys/net/bridge/bridge-nf-call-iptables", "0");
        let root = tempfile::tempdir().expect("a scratch directory");
        let paths = Paths::new(root.path());
        fs::create_dir_all(paths.forwarding().parent().unwrap()).unwrap();
        let mut network = Network::new(&paths, Some("10.1.2.0/24,fd00:1::/64"), true).unwrap();
        let mut netlink = Netlink::open().unwrap();
        let old = pod_with("old", ", ports: [{containerPort: 80, hostPort: 80}]", "");
        let new = pod_with("new", ", ports: [{containerPort: 80, hostPort: 81}]", "");
        let ip = network.allocate(&old).unwrap().unwrap();
        network.connect(&old, ip).unwrap();
        let bridge = link_index(&network.bridge).unwrap();
        let has_rules = || {
            let mut rules = Vec::new();
            let each = &mut |rule: netfilter::Object| {
                rules.extend_from_slice(rule.attributes);
                true
            };
            netfilter::list(GETRULE, each).unwrap();
            let ranges: [&[u8]; 4] = [
                &[10, 1, 2, 0],
                &[10, 244, 1, 0],
                &[0xfd, 0, 0, 1, 0, 0, 0, 0],
                &[0xfd, 0, 0, 9, 0, 0, 0, 0],
            ];
            ranges.map(|range| rules.windows(range.len()).any(|found| found == range))
        };
        assert_eq!(has_rules(), [true, false, true, false]);
        network.follow_cluster(Some("10.244.1.0/24,fd00:9::/64\n"), &[]).unwrap();
        let ip = network.allocate(&new).unwrap().unwrap();
        network.connect(&new, ip).unwrap();
        assert_eq!(has_rules(), [true; 4]);
        network.release(&old.uid).unwrap();
        assert_eq!(has_rules(), [false, true, false, true]);
        assert_eq!(on_bridge(&mut netlink, bridge), ["10.244.1.1/24", "fd00:9::1/64"]);
        // The last pod of the cluster outlives the membership.
        network.follow_cluster(None, &[]).unwrap();
        network.release(&new.uid).unwrap();
        assert_eq!(in_table(&network), ["10.1.2.0/24", "fd00:1::/64"]);
        assert_eq!(on_bridge(&mut netlink, bridge), [] as [&str; 0]);
        let ip = network.allocate(&old).unwrap().unwrap();
        network.connect(&old, ip).unwrap();
        assert_eq!(has_rules(), [true, false, true, false]);
        assert_eq!(on_bridge(&mut netlink, bridge), ["10.1.2.1/24", "fd00:1::1/64"]);
        // No pod has an address of them when the ranges change.
        network.release(&old.uid).unwrap();
        network.follow_cluster(Some("10.244.1.0/24,fd00:9::/64\n"), &[]).unwrap();
        assert_eq!(on_bridge(&mut netlink, bridge), [] as [&str; 0]);
        assert_eq!(has_rules(), [false, true, false, true]);
        network.remove().unwrap();
    });
}

/// A fault: the kernel refuses a change of the table, and takes the next one.
#[test]
fn a_pod_keeps_its_address_until_the_kernel_closes_its_ports_however_often_it_refuses() {
    in_new_namespace(|| {
        let root = tempfile::tempdir().expect("a scratch directory");
        let paths = Paths::new(root.path());
        std::fs::create_dir_all(paths.forwarding().parent().unwrap()).unwrap();
        let mut network = Network::new(&paths, Some("10.85.0.0/24"), true).unwrap();
        let (web, uid) = (pod_with("a", ", ports: [{containerPort: 80, hostPort: 80}]", ""), "a".into());
        let ip = network.allocate(&web).unwrap().unwrap();
        network.connect(&web, ip).unwrap();
        let name = network.firewall.table.name.clone();
        // The kernel takes no table with so long a name.
        network.firewall.table.name = "n".repeat(300);
        for _ in 0..2 {
            network.release(&uid).unwrap_err();
            assert_eq!(network.address_of(&uid), Some(ip));
        }
        network.firewall.table.name = name;
        network.release(&uid).unwrap();
        assert_eq!(network.address_of(&uid), None);
        // Ports that were never open keep no address.
        let ip = network.allocate(&web).unwrap().unwrap();
        network.firewall.table.name = "n".repeat(300);
        network.connect(&web, ip).unwrap_err();
        network.release(&uid).unwrap();
        assert_eq!(network.address_of(&uid), None);
    });
}

#[test]
fn a_cluster_replaces_the_range_for_new_pods_only_and_until_the_board_leaves() {
    let mut network = network("10.85.0.0/24");
    let given =
        |network: &mut Network, uid: &str| network.allocate(&pod(uid, "")).unwrap().unwrap().to_string();
    assert_eq!(given(&mut network, "a"), "10.85.0.2");
    // A cluster that assigns no range.
    network.read_cluster(Some("\n10.244.2.0/24 192.0.2.7\n"), &[]).unwrap();
    assert_eq!(given(&mut network, "b"), "10.85.0.3");
    network.read_cluster(Some("10.244.1.0/24,fd00:1::/64\n"), &[]).unwrap();
    // No two pods have the same user IDs, which follow from the host part.
    assert_eq!(given(&mut network, "c"), "10.244.1.2");
    assert_eq!(network.ipv6_of(&"c".into()), Some("fd00:1::2".parse().unwrap()));
    assert_eq!(given(&mut network, "a"), "10.85.0.2");
    for (ranges, why) in [
        ("10.244.9.0/30", "spec.podCIDRs of the Node"),
        ("fd00:9::/64", "not an IPv4 range"),
        ("10.244.9.0/24,10.244.8.0/24", "not an IPv6 range"),
    ] {
        let error = network.read_cluster(Some(&format!("{ranges}\n")), &[]).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains(ranges), "{error}");
        assert_eq!(network.range.to_string(), "10.244.1.0/24");
    }
    network.follow_cluster(None, &[]).unwrap();
    assert_eq!(given(&mut network, "d"), "10.85.0.4");
    assert_eq!(network.ipv6_of(&"d".into()), None);
}

#[test]
fn routes_lead_to_nodes_on_a_link_and_those_of_others_stay() {
    in_new_namespace(|| {
        let root = tempfile::tempdir().expect("a scratch directory");
        let paths = Paths::new(root.path());
        fs::create_dir_all(paths.run()).unwrap();
        let mut netlink = Netlink::open().unwrap();
        netlink.add_bridge("br0").unwrap();
        let index = link_index("br0").unwrap();
        netlink.add_address(index, Ipv4Addr::new(192, 0, 2, 1), 24, None).unwrap();
        netlink.set_up(index).unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        netlink.add_route((ip("10.244.4.0"), 24), ip("192.0.2.200")).unwrap();
        let shown = |netlink: &mut Netlink| {
            let found = netlink.routes().unwrap().into_iter().filter(|(_, base, _)| base.octets()[0] == 10);
            let mut found: Vec<u8> = found.map(|(_, base, _)| base.octets()[2]).collect();
            found.sort_unstable();
            found
        };
        let mut network = Network::new(&paths, None, true).unwrap();
        let text =
            "10.244.1.0/24\n10.244.2.0/24 192.0.2.2\n10.244.3.0/24 203.0.113.9\n10.244.4.0/24 192.0.2.4\n";
        for _ in 0..2 {
            network.follow_cluster(Some(text), &[]).unwrap();
            assert_eq!(shown(&mut netlink), [2, 4], "the third node is on no link");
        }
        assert_eq!(fs::read_to_string(paths.routes()).unwrap(), "10.244.2.0/24 192.0.2.2\n");
        // Another agent finds them, and removes what is no longer wanted.
        let mut network = Network::new(&paths, None, true).unwrap();
        network
            .follow_cluster(Some("10.244.1.0/24\n10.244.2.0/24 192.0.2.9\n10.244.5.0/24 192.0.2.5\n"), &[])
            .unwrap();
        assert_eq!(shown(&mut netlink), [2, 4, 5]);
        let lines = "10.244.2.0/24 192.0.2.9\n10.244.5.0/24 192.0.2.5\n";
        assert_eq!(fs::read_to_string(paths.routes()).unwrap(), lines);
        Network::without_range(&paths).remove().unwrap();
        assert_eq!(shown(&mut netlink), [4], "the owner's route stays");
    });
}
