//! Attacks on the board and on other pods from inside a container: see `docs/security.md`.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nodlet_tests::{Device, TestPod, manifest};

/// The multicast address for the nearest bridge (LLDP), which bridges do not forward.
const NEAREST_BRIDGE: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e];

/// Sends an Ethernet frame from a pod.
#[track_caller]
fn send(pod: TestPod<'_>, frame: &[u8]) {
    let digits: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
    pod.exec("app", ["/bin/demo", "frame", &digits]).ok();
}

/// The receiver and the sender of a frame.
type Link = ([u8; 6], [u8; 6]);

fn ethernet(to: [u8; 6], from: [u8; 6], kind: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from, &kind.to_be_bytes(), payload].concat()
}

/// The checksum of headers of IP, ICMPv6 and UDP.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// An ICMPv6 router advertisement to all nodes. The router has lifetime 0, so that a host that accepts the
/// message loses no route. The prefix requests an address in 2001:db8:666::/64, which is reserved for
/// documentation.
fn router_advertisement(to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
    let source = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x58, 0xff, 0xfe, 0, 0x66, 0x66, 0x66];
    let all_nodes = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let header = [134, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // Option 3: /64, on-link and autonomous, valid and preferred for ten minutes.
    let prefix = [3, 4, 64, 0xc0, 0, 0, 2, 88, 0, 0, 2, 88, 0, 0, 0, 0];
    let network = [0x20, 1, 0xd, 0xb8, 6, 0x66, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut message = [&header[..], &prefix, &network].concat();
    let length = message.len() as u8;
    let pseudo = [&source[..], &all_nodes, &[0, 0, 0, length, 0, 0, 0, 58], &message].concat();
    message[2..4].copy_from_slice(&checksum(&pseudo));
    let ip = [&[0x60, 0, 0, 0, 0, length, 58, 255][..], &source, &all_nodes, &message].concat();
    ethernet(to, from, 0x86dd, &ip)
}

/// A UDP datagram from port 4711.
fn datagram(ethernet_of: Link, from: Ipv4Addr, to: (Ipv4Addr, u16), text: &str) -> Vec<u8> {
    let length = 28 + text.len() as u16;
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0].to_vec();
    ip[2..4].copy_from_slice(&length.to_be_bytes());
    ip.extend(from.octets());
    ip.extend(to.0.octets());
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    // Without a checksum, which UDP allows over IPv4.
    for number in [4711, to.1, length - 20, 0] {
        ip.extend(number.to_be_bytes());
    }
    ip.extend(text.as_bytes());
    ethernet(ethernet_of.0, ethernet_of.1, 0x0800, &ip)
}

/// An ICMP message of `kind` with `options` in the header of its packet.
fn icmp(ethernet_of: Link, (from, to): (Ipv4Addr, Ipv4Addr), options: &[u8], kind: u8) -> Vec<u8> {
    let header = 20 + options.len() as u8;
    // For a redirect: the better gateway, which is the sender, and the header of the redirected packet.
    let mut message =
        [&[kind, 1, 0, 0][..], &from.octets(), &[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]].concat();
    message.extend([to.octets(), [203, 0, 113, 5], [0, 1, 0, 1], [0, 8, 0, 0]].concat());
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum);
    let mut ip = [0x40 | (header / 4), 0, 0, header + message.len() as u8, 0, 0, 0, 0, 64, 1, 0, 0].to_vec();
    ip.extend([from.octets(), to.octets()].concat());
    ip.extend(options);
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    ip.extend(message);
    ethernet(ethernet_of.0, ethernet_of.1, 0x0800, &ip)
}

/// A counter of the host's ICMP, for example `InRedirects`.
fn icmp_count(name: &str) -> u64 {
    let table = fs::read_to_string("/proc/net/snmp").expect("/proc is mounted");
    let mut lines = table.lines().filter(|line| line.starts_with("Icmp: ")).map(str::split_whitespace);
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let (_, value) = names.zip(values).find(|(found, _)| *found == name).expect("the kernel counts it");
    value.parse().expect("a number")
}

/// An ARP request by which the owner of `target` learns that `sender` has the address `hardware`.
fn arp_request(ethernet_of: Link, hardware: [u8; 6], sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let fixed = [0, 1, 8, 0, 6, 4, 0, 1];
    let payload = [&fixed[..], &hardware, &sender.octets(), &[0; 6], &target.octets()].concat();
    ethernet(ethernet_of.0, ethernet_of.1, 0x0806, &payload)
}

/// The frame with two tags of VLAN 0 (IEEE 802.1p), which means no VLAN: receivers remove both.
fn tagged(mut frame: Vec<u8>, tags: [u16; 2]) -> Vec<u8> {
    let tags: Vec<u8> = tags.into_iter().flat_map(|tag| [tag.to_be_bytes(), [0, 0]].concat()).collect();
    frame.splice(12..12, tags);
    frame
}

/// The EtherTypes of two VLAN tags.
const TAGS: [[u16; 2]; 4] = [[0x8100, 0x8100], [0x88a8, 0x8100], [0x8100, 0x88a8], [0x88a8, 0x88a8]];

fn address(pod: TestPod<'_>) -> Ipv4Addr {
    pod.ip().parse().expect("a pod has an IPv4 address")
}

/// The gateway of the pods' range, which is a /24.
fn gateway(pod: TestPod<'_>) -> Ipv4Addr {
    let [a, b, c, _] = address(pod).octets();
    Ipv4Addr::new(a, b, c, 1)
}

fn hardware_address(pod: TestPod<'_>) -> [u8; 6] {
    parse_hardware_address(&pod.demo("app", "cat /sys/class/net/eth0/address").ok())
}

fn parse_hardware_address(text: &str) -> [u8; 6] {
    let bytes = text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).expect("two digits"));
    bytes.collect::<Vec<_>>().try_into().expect("six bytes")
}

/// The bridge of a device, found by its address, and the host ends of its pods' links.
fn links(gateway: Ipv4Addr) -> (String, Vec<String>) {
    let mut addresses = nix::ifaddrs::getifaddrs().expect("the kernel lists them");
    let has = |address: &nix::ifaddrs::InterfaceAddress| {
        address.address.and_then(|address| Some(address.as_sockaddr_in()?.ip())) == Some(gateway)
    };
    let bridge = addresses.find(has).expect("the bridge is there").interface_name;
    let ports = fs::read_dir(format!("/sys/class/net/{bridge}/brif")).expect("it is a bridge");
    let ports = ports.map(|port| port.expect("it can be read").file_name().to_string_lossy().into_owned());
    let ports: Vec<String> = ports.collect();
    (bridge, ports)
}

fn hexadecimal(address: [u8; 6]) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

/// The hardware address of `address` in the text of /proc/net/arp.
fn neighbour(table: &str, address: Ipv4Addr) -> Option<String> {
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(&address.to_string()))?;
    line.split_whitespace().nth(3).map(str::to_owned)
}

/// Runs a pod that attacks, and its victim, which prints the datagrams that it receives.
fn two_pods(device: &Device) -> (TestPod<'_>, TestPod<'_>) {
    device.run_pod("attacker", "sleep");
    let victim = device.run_pod("victim", "datagrams 4000").wait_ready().wait_log("app", "bound");
    (device.pod("attacker").wait_ready(), victim)
}

#[test]
fn a_router_advertisement_of_a_pod_is_taken_by_neither_the_host_nor_another_pod() {
    let device = Device::start();
    let (attacker, victim) = two_pods(&device);
    let own = hardware_address(attacker);
    let socket = UdpSocket::bind((gateway(attacker), 0)).expect("the gateway is the host's");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("more than none");
    let port = socket.local_addr().expect("it is bound").port();
    for to in [[0x33, 0x33, 0, 0, 0, 1], [0xff; 6], NEAREST_BRIDGE] {
        send(attacker, &router_advertisement(to, own));
    }
    // Send these last: when they have arrived, the earlier frames have been processed.
    for to in [(gateway(attacker), port), (address(victim), 4000)] {
        send(attacker, &datagram(([0xff; 6], own), address(attacker), to, "last"));
    }
    socket.recv_from(&mut [0; 100]).expect("an honest datagram arrives");
    victim.wait_log("app", "says last");
    let host = fs::read_to_string("/proc/net/if_inet6").expect("this kernel has IPv6");
    let inside = victim.demo("app", "cat /proc/net/if_inet6").ok();
    for (who, addresses) in [("the host", host), ("another pod", inside)] {
        let is_taken = addresses.lines().any(|line| line.starts_with("20010db80666"));
        assert!(!is_taken, "{who} took an address: {addresses}");
    }
}

#[test]
fn a_redirect_of_a_pod_does_not_reach_the_host() {
    const REDIRECT: u8 = 5;
    const ECHO: u8 = 8;
    let device = Device::start();
    let (attacker, _) = two_pods(&device);
    let (bridge, _) = links(gateway(attacker));
    let host = fs::read_to_string(format!("/sys/class/net/{bridge}/address")).expect("it is a link");
    let between = (parse_hardware_address(&host), hardware_address(attacker));
    let of_ip = (address(attacker), gateway(attacker));
    let (redirects, echoes) = (icmp_count("InRedirects"), icmp_count("InEchos"));
    for options in [&[][..], &[1, 1, 1, 0], &[1; 40]] {
        send(attacker, &icmp(between, of_ip, options, REDIRECT));
        send(attacker, &tagged(icmp(between, of_ip, options, REDIRECT), TAGS[0]));
    }
    // Send a packet that is no redirect last: it must arrive.
    send(attacker, &icmp(between, of_ip, &[1; 40], ECHO));
    device.wait_for("a ping", || icmp_count("InEchos") > echoes);
    assert_eq!(icmp_count("InRedirects"), redirects, "the host was sent a redirect");
}

#[test]
fn the_hosts_side_of_the_pods_network_takes_nothing_but_packets() {
    let device = Device::start();
    let (attacker, _) = two_pods(&device);
    let (bridge, ports) = links(gateway(attacker));
    assert_eq!(ports.len(), 2, "{ports:?}");
    for link in ports.iter().chain([&bridge]) {
        for (name, expected) in [
            ("ipv6/conf/LINK/disable_ipv6", "1"),
            ("ipv6/conf/LINK/accept_ra", "0"),
            ("ipv6/conf/LINK/autoconf", "0"),
            ("ipv6/conf/LINK/accept_redirects", "0"),
            ("ipv4/conf/LINK/accept_redirects", "0"),
            ("ipv4/conf/LINK/send_redirects", "0"),
            ("ipv4/conf/LINK/accept_source_route", "0"),
            ("ipv4/conf/LINK/rp_filter", "1"),
            ("ipv4/conf/LINK/arp_ignore", if *link == bridge { "1" } else { "8" }),
        ] {
            let path = Path::new("/proc/sys/net").join(name.replace("LINK", link));
            let value = fs::read_to_string(&path).expect("this kernel has it");
            assert_eq!(value.trim(), expected, "{}", path.display());
        }
    }
    // The bridge is configured with each pod's port, and does not learn it from the pods' frames.
    for port in &ports {
        for flag in ["learning", "unicast_flood"] {
            let path = format!("/sys/class/net/{port}/brport/{flag}");
            assert_eq!(fs::read_to_string(&path).expect("it is a port").trim(), "0", "{path}");
        }
    }
}

/// Needs Linux 6.6.
#[test]
fn a_pod_cannot_send_as_another() {
    let device = Device::start();
    let (attacker, victim) = two_pods(&device);
    let third = device.run_pod("third", "sleep").wait_ready();
    let (own, of_victim, of_third) =
        (hardware_address(attacker), hardware_address(victim), hardware_address(third));
    let to = (address(victim), 4000);
    let honest = |text: &str| datagram((of_victim, own), address(attacker), to, text);
    send(attacker, &honest("first"));
    send(attacker, &datagram((of_victim, own), address(third), to, "as-third"));
    send(attacker, &datagram((of_victim, own), gateway(victim), to, "as-gateway"));
    send(attacker, &datagram((of_victim, of_third), address(attacker), to, "from-third"));
    send(attacker, &datagram((of_victim, of_third), address(third), to, "wholly-third"));
    for tags in TAGS {
        let text = format!("tagged-{tags:x?}");
        send(attacker, &tagged(datagram((of_victim, own), address(third), to, &text), tags));
    }
    send(attacker, &honest("last"));
    victim.wait_log("app", "says last");
    let expected: String =
        ["first", "last"].map(|text| format!("{} says {text}\n", address(attacker))).concat();
    assert_eq!(victim.logs("app").strip_prefix("bound\n"), Some(expected.as_str()));
}

#[test]
fn a_pod_cannot_redirect_what_others_send_by_arp() {
    let device = Device::start();
    let (attacker, victim) = two_pods(&device);
    let third = device.run_pod("third", "sleep").wait_ready();
    let (own, of_victim) = (hardware_address(attacker), hardware_address(victim));
    for claimed in [gateway(victim), address(third)] {
        send(attacker, &arp_request((of_victim, own), own, claimed, address(victim)));
    }
    send(attacker, &arp_request(([0xff; 6], own), own, address(third), gateway(victim)));
    for tags in TAGS {
        let claims = arp_request((of_victim, own), own, address(third), address(victim));
        send(attacker, &tagged(claims, tags));
        send(attacker, &tagged(arp_request(([0xff; 6], own), own, address(third), gateway(victim)), tags));
    }
    // Send these last: when they have arrived, the earlier frames have been processed.
    let seen_by_victim = || victim.demo("app", "cat /proc/net/arp").ok();
    let seen_by_host = || fs::read_to_string("/proc/net/arp").expect("/proc is mounted");
    for to in [address(victim), gateway(victim)] {
        send(attacker, &arp_request(([0xff; 6], own), own, address(attacker), to));
    }
    let own = Some(hexadecimal(own));
    device.wait_for("the attacker to be known", || {
        neighbour(&seen_by_victim(), address(attacker)) == own
            && neighbour(&seen_by_host(), address(attacker)) == own
    });
    let (inside, host) = (seen_by_victim(), seen_by_host());
    assert_ne!(neighbour(&inside, gateway(victim)), own, "the gateway of another pod: {inside}");
    assert_ne!(neighbour(&inside, address(third)), own, "a third pod, to another: {inside}");
    assert_ne!(neighbour(&host, address(third)), own, "a third pod, to the host: {host}");
}

/// The cgroup of the device's only pod, in the hierarchy with this controller.
fn pod_cgroup(device: &Device, controller: &str) -> PathBuf {
    let uid = device.pod("bomb").uid();
    let own = format!("/sys/fs/cgroup/{controller}/");
    let cgroups = device.cgroups();
    let is_v1 = Path::new(&own).exists();
    let found = cgroups.iter().find(|path| {
        path.ends_with(format!("pod{uid}"))
            && path.to_string_lossy().contains("/kubepods")
            && path.starts_with(&own) == is_v1
    });
    found.unwrap_or_else(|| panic!("no cgroup of the pod in {cgroups:?}")).clone()
}

#[test]
fn a_pod_that_is_killed_does_not_wait_for_its_cpu_limit() {
    let device = Device::start();
    let container = manifest::container("app", "bomb 1000 then sleep", "resources: {limits: {cpu: 20m}}");
    device
        .run_pod_of("bomb", &[container], "terminationGracePeriodSeconds: 1")
        .wait_log("app", "1000 children");
    let since = Instant::now();
    device.remove_manifest("bomb.yaml");
    // The grace period, and the time that two busy cores need to end this many processes.
    device.wait_within(Duration::from_secs(15), "the end of the pod", || device.pods().is_empty());
    eprintln!("gone after {:?}", since.elapsed());
}

#[test]
fn a_pod_has_a_share_of_the_processes_of_the_machine_and_others_start_beside_it() {
    let device = Device::start();
    device.run_pod_with("bomb", "sleep", "terminationGracePeriodSeconds: 1").wait_ready();
    let limit = fs::read_to_string(pod_cgroup(&device, "pids").join("pids.max")).expect("it is there");
    let limit: u64 = limit.trim().parse().expect("a number of processes");
    let read = |path: &str| {
        fs::read_to_string(path).expect("/proc is mounted").trim().parse::<u64>().expect("a number")
    };
    let machine = read("/proc/sys/kernel/pid_max").min(read("/proc/sys/kernel/threads-max"));
    assert!(limit <= machine * 15 / 100, "{limit} of {machine}");

    device.run_pod_with("again", "exhaust", "terminationGracePeriodSeconds: 1").wait_log("app", "full after");
    device.run_pod("other", "sleep").wait_ready();
    device.pod("other").demo("app", "print here").ok();
    device.remove_manifest("again.yaml");
    device.wait_within(Duration::from_secs(15), "the end of the pod", || {
        !device.pods().contains(&"again".to_owned())
    });
    assert!(device.pod("other").is_ready());
}
