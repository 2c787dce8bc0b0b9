use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use nodlet_services::service::TrafficPolicy;

use super::*;
use crate::netlink::Netlink;
use crate::netlink::nftables::expressions::lookups::{self, Choice};
use crate::netlink::nftables::expressions::{self as nft};
use crate::netlink::tests::in_new_namespace;
use crate::network::Network;
use crate::network::cluster::Cluster;
use crate::network::firewall::Forward;

mod machines;

use machines::{Board, Namespace, Port, ask, ask_udp, ends, path, port, set_bridge_nf};

const WAIT: Duration = Duration::from_secs(1);

const BOTH: [&str; 2] = ["10.96.0.1:80", "[fd00:10:96::1]:80"];
const PODS: [&str; 4] = ["10.85.0.2:8080", "10.85.0.3:8080", "[fd00:10:85::2]:8080", "[fd00:10:85::3]:8080"];

#[test]
fn connections_reach_the_endpoints_of_a_service_from_pods_the_board_and_other_machines() {
    in_new_namespace(|| reach_endpoints(Board::new(false)));
    in_new_namespace(|| reach_endpoints(Board::new(true)));
}

fn reach_endpoints(mut board: Board) {
    {
        assert_eq!(board.apply(Vec::new()), Changes::default());
        let web = Port {
            node_port: Some(30080),
            external: ends(&["192.0.2.1:81", "[2001:db8::1]:81"]),
            ..port("d/web:80/TCP", &BOTH, &PODS)
        };
        let far =
            Port { node_port: Some(30081), ..port("d/far:80/TCP", &["10.96.0.2:80"], &["192.0.2.9:8080"]) };
        board.apply(vec![far.clone(), web.clone()]);
        assert_eq!(board.network.services_warning(), None);
        let many = |ask: &dyn Fn() -> Result<String, io::ErrorKind>| {
            let mut answers: Vec<String> = (0..40).map(|_| ask().unwrap()).collect();
            answers.sort();
            answers.dedup();
            answers
        };
        // From a pod, also to itself: under the address of the bridge, and under its own if the bridge translates.
        for to in BOTH.into_iter().chain(["192.0.2.1:30080", "192.0.2.1:81", "[2001:db8::1]:30080"]) {
            let (gateway, own) = if to.starts_with('[') {
                ("fd00:10:85::1", "fd00:10:85::2")
            } else {
                ("10.85.0.1", "10.85.0.2")
            };
            let client = if board.bridge_nf { own } else { gateway };
            let expected = [format!("a {gateway}"), format!("b {client}")];
            assert_eq!(many(&|| board.pods[0].ask(to)), expected, "{to}");
        }
        // From another machine, whose address the pods see.
        for to in ["192.0.2.1:30080", "[2001:db8::1]:30080", "192.0.2.1:81", "[2001:db8::1]:81"] {
            let client = if to.starts_with('[') { "2001:db8::9" } else { "192.0.2.9" };
            assert_eq!(many(&|| board.lan.ask(to)), [format!("a {client}"), format!("b {client}")], "{to}");
        }
        // From the board, to which the engine makes the route.
        let mut netlink = Netlink::open().unwrap();
        netlink.add_route((IpAddr::from([10, 96, 0, 0]), 16), "192.0.2.77".parse().unwrap()).unwrap();
        assert_eq!(many(&|| ask(BOTH[0])), ["a 192.0.2.1", "b 192.0.2.1"]);
        assert_eq!(ask("10.96.0.2:80").as_deref(), Ok("lan 192.0.2.1"));
        assert_eq!(many(&|| ask("192.0.2.1:30080")), ["a 192.0.2.1", "b 192.0.2.1"]);
        assert_eq!(ask("127.0.0.1:30080"), Err(io::ErrorKind::ConnectionRefused), "not at loopback");
        // An endpoint on another machine.
        assert_eq!(board.pods[0].ask("10.96.0.2:80").as_deref(), Ok("lan 192.0.2.1"));
        if !board.bridge_nf {
            // With it, the bridge that is the uplink here would have to send frames back to their port.
            assert_eq!(board.lan.ask("192.0.2.1:30081").as_deref(), Ok("lan 192.0.2.1"));
        }
        // Other ports of its address are refused, and addresses without a Service lead nowhere.
        for to in ["10.96.0.1:81", "[fd00:10:96::1]:81"] {
            assert_eq!(board.pods[0].ask(to), Err(io::ErrorKind::ConnectionRefused), "{to}");
        }
        assert_eq!(ask("10.96.0.1:81"), Err(io::ErrorKind::ConnectionRefused));
        assert_eq!(board.pods[0].ask("10.96.0.99:80"), Err(io::ErrorKind::TimedOut));
        // Without endpoints.
        let local = [TrafficPolicy::Local; 2];
        let none =
            |has_usable, policies| Port { everywhere: Vec::new(), has_usable, policies, ..web.clone() };
        for policies in [web.policies, local] {
            board.apply(vec![far.clone(), none(false, policies)]);
            for to in [BOTH[0], BOTH[1], "192.0.2.1:30080", "192.0.2.1:81"] {
                assert_eq!(board.pods[0].ask(to), Err(io::ErrorKind::ConnectionRefused), "{to}");
            }
            assert_eq!(board.lan.ask("192.0.2.1:30080"), Err(io::ErrorKind::ConnectionRefused));
            assert_eq!(ask("192.0.2.1:30080"), Err(io::ErrorKind::ConnectionRefused));
        }
        // Without endpoints on this board.
        board.apply(vec![far.clone(), Port { policies: local, ..web.clone() }]);
        assert_eq!(board.lan.ask("192.0.2.1:30080"), Err(io::ErrorKind::TimedOut));
        assert_eq!(board.pods[0].ask(BOTH[0]), Err(io::ErrorKind::TimedOut));
        // One endpoint on this board, one elsewhere. What pods and the board send to external addresses gets to both.
        let both = ends(&["10.85.0.2:8080", "192.0.2.9:8080"]);
        let here = ends(&["10.85.0.2:8080"]);
        let two = Port { everywhere: both, here, cluster: ends(&BOTH[..1]), ..web };
        let kinds = [TrafficPolicy::Cluster, TrafficPolicy::Local];
        for [internal, external] in kinds.into_iter().flat_map(|one| kinds.map(|other| [one, other])) {
            let changes =
                board.apply(vec![far.clone(), Port { policies: [internal, external], ..two.clone() }]);
            assert!(!changes.is_whole);
            let all = vec!["a".to_owned(), "lan".to_owned()];
            let names = |ask: &dyn Fn() -> Result<String, io::ErrorKind>| {
                let answers = many(ask);
                answers.iter().map(|answer| answer.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
            };
            let of = |policy| if policy == TrafficPolicy::Local { &all[..1] } else { &all[..] };
            assert_eq!(names(&|| board.pods[1].ask(BOTH[0])), of(internal), "{internal:?} {external:?}");
            assert_eq!(names(&|| ask(BOTH[0])), of(internal), "{internal:?} {external:?}");
            for to in ["192.0.2.1:30080", "192.0.2.1:81"] {
                assert_eq!(names(&|| board.pods[1].ask(to)), all, "{to} {internal:?} {external:?}");
                assert_eq!(names(&|| ask(to)), all, "{to} {internal:?} {external:?}");
                if external == TrafficPolicy::Local {
                    assert_eq!(many(&|| board.lan.ask(to)), ["a 192.0.2.9"], "{to} {internal:?}");
                } else if !board.bridge_nf {
                    assert_eq!(names(&|| board.lan.ask(to)), all, "{to} {internal:?}");
                }
            }
        }
        board.apply(Vec::new());
        assert!(board.pods[0].ask(BOTH[0]).is_err());
        board.network.remove().unwrap();
    }
}

#[test]
fn queries_to_the_name_server_of_the_board_go_to_no_pod_and_no_service() {
    in_new_namespace(|| {
        let mut board = Board::new(false);
        let here = Namespace::present();
        here.serve("board", 53);
        // As Pi-hole: `hostPort: 53`, and node ports and external addresses that take the same port.
        for pod in ["10.85.0.2:8080", "[fd00:10:85::2]:8080"].map(|to| to.parse::<SocketAddr>().unwrap()) {
            let host: IpAddr = if pod.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
            let forward = |protocol| Forward { host, port: 53, protocol, to: (pod.ip(), pod.port()) };
            board
                .network
                .firewall
                .table
                .ports
                .insert(pod.ip().to_string().as_str().into(), [6, 17].map(forward).into());
        }
        board.network.install().unwrap();
        let asks = |board: &Board| {
            let pod = &board.pods[1];
            for (from, to) in [("0.0.0.0:0", "10.85.0.1:53"), ("[::]:0", "[fd00:10:85::1]:53")] {
                assert!(pod.ask(to).is_ok_and(|answer| answer.starts_with("board ")), "{to}");
                let socket = pod.run(|| UdpSocket::bind(from).unwrap());
                let answer = ask_udp(&socket, to);
                assert!(answer.as_ref().is_ok_and(|answer| answer.starts_with("board ")), "{to} {answer:?}");
            }
        };
        asks(&board);
        assert_eq!(board.lan.ask("192.0.2.1:53").as_deref(), Ok("a 192.0.2.9"));
        let with = |protocol| Port {
            protocol,
            node_port: Some(53),
            external: ends(&["10.85.0.1:53"]),
            ..port(&format!("d/dns:53/{protocol:?}"), &BOTH, &PODS)
        };
        board.apply(vec![with(Protocol::Tcp), with(Protocol::Udp)]);
        board.network.firewall.table.ports.remove(&"10.85.0.2".into());
        board.network.firewall.table.ports.remove(&"fd00:10:85::2".into());
        board.network.install().unwrap();
        assert!(board.lan.ask("192.0.2.1:53").is_ok_and(|answer| !answer.starts_with("board")));
        asks(&board);
    });
}

#[test]
fn a_host_port_comes_before_a_service_and_a_service_of_the_board_before_one_of_the_cluster() {
    in_new_namespace(|| {
        let mut board = Board::new(false);
        let at = |id: &str, node_port, cluster: &str, to: &str| {
            path(vec![Port { node_port: Some(node_port), ..port(id, &[cluster], &[to]) }])
        };
        let of_board = at("d/board:80/TCP", 30080, "10.96.0.1:80", PODS[1]);
        let of_cluster = at("d/cluster:80/TCP", 30080, "10.97.0.1:80", "192.0.2.9:8080");
        let forward = Forward {
            host: [0; 4].into(),
            port: 30080,
            protocol: 6,
            to: (PODS[0].parse::<SocketAddr>().unwrap().ip(), 8080),
        };
        let asks = |board: &Board| {
            [board.lan.ask("192.0.2.1:30080"), ask("192.0.2.1:30080"), board.pods[1].ask("192.0.2.1:30080")]
                .map(|answer| answer.unwrap_or_default().split(' ').next().unwrap_or_default().to_owned())
        };
        // Whichever table is made last.
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]] {
            for table in order {
                match table {
                    0 => {
                        board.network.firewall.table.ports.insert("a".into(), vec![forward.clone()]);
                        board.network.install().unwrap();
                    }
                    1 => drop(board.network.apply_services(&of_board, &[]).unwrap()),
                    _ => drop(board.network.apply_cluster_services(&of_cluster).unwrap()),
                }
            }
            assert_eq!(asks(&board), ["a", "a", "a"], "{order:?}");
            board.network.firewall.table.ports.remove(&"a".into());
            board.network.install().unwrap();
            assert_eq!(asks(&board), ["b", "b", "b"], "{order:?}");
            board.network.apply_services(&DataPath::default(), &[]).unwrap();
            assert_eq!(asks(&board)[1], "lan", "{order:?}");
            board.network.apply_cluster_services(&DataPath::default()).unwrap();
        }
    });
}

#[test]
fn a_kube_proxy_beside_the_board_hides_no_client_of_its_services() {
    in_new_namespace(|| {
        let mut board = Board::new(false);
        // As kube-proxy's `masquerading` in its chain `nat-postrouting`.
        let mut other = Nft::open().unwrap();
        let added = other.change("kube-proxy", |batch| {
            batch.add_table();
            batch.add_chain("nat-postrouting", Some(("nat", (4, 100))));
            batch.add_rule("nat-postrouting", &[lookups::has_mark(0x4000), nft::masquerade()]);
        });
        added.unwrap();
        let web = Port { node_port: Some(30080), ..port("d/web:80/TCP", &BOTH, &[PODS[0]]) };
        board.apply(vec![web]);
        assert_eq!(board.lan.ask("192.0.2.1:30080").as_deref(), Ok("a 192.0.2.9"));
    });
}

#[test]
fn br_netfilter_that_is_loaded_while_there_are_services_is_noticed_with_the_next_change_of_links_or_services()
{
    in_new_namespace(|| {
        let mut board = Board::new(false);
        let web = |to| port("d/web:80/TCP", &BOTH, &[to]);
        board.apply(vec![web(PODS[0])]);
        let client = |board: &Board| board.pods[1].ask(BOTH[0]).unwrap();
        assert_eq!(client(&board), "a 10.85.0.1");
        set_bridge_nf(true);
        board.network.follow_links().unwrap();
        assert_eq!(client(&board), "a 10.85.0.3", "the bridge translates");
        set_bridge_nf(false);
        board.apply(vec![Port { node_port: Some(30080), ..web(PODS[0]) }]);
        assert_eq!(client(&board), "a 10.85.0.1");
    });
}

#[test]
fn a_kernel_without_numgen_spreads_by_a_hash_or_not_at_all_and_an_old_one_drops_what_it_cannot_refuse() {
    in_new_namespace(|| {
        let mut board = Board::new(false);
        let none = Port { has_usable: false, ..port("d/none:80/TCP", &["10.96.0.9:80"], &[]) };
        for (choice, affinity_seconds, expected, warning) in [
            (Choice::Hash, None, &["a", "b"][..], "by a hash of their addresses and ports"),
            (Choice::First, None, &["a"], "to its first endpoint"),
            (Choice::First, Some(60), &["a"], "to its first endpoint"),
        ] {
            board.apply(Vec::new());
            // As if the probe had found that.
            board.network.services.abilities = Some(Abilities { choice, rejects: false, is_reported: false });
            let web = Port { affinity_seconds, ..port("d/web:80/TCP", &BOTH, &PODS) };
            board.apply(vec![none.clone(), web]);
            for to in BOTH {
                let mut names: Vec<String> =
                    (0..60).map(|_| board.pods[1].ask(to).unwrap()[..1].to_owned()).collect();
                names.sort();
                names.dedup();
                assert_eq!(names, expected, "{choice:?} {to}");
            }
            assert_eq!(board.pods[0].ask("10.96.0.9:80"), Err(io::ErrorKind::TimedOut));
            let (reason, text) = board.network.services_warning().unwrap();
            assert_eq!(reason, "AddressTranslationFailed");
            assert!(text.contains(warning) && text.contains("CONFIG_NFT_NUMGEN"), "{text}");
            assert!(text.contains("wait until they time out"), "{text}");
        }
    });
}

#[test]
fn other_machines_reach_no_address_of_the_cluster_but_pods_of_other_nodes_do() {
    in_new_namespace(|| {
        let mut board = Board::new(false);
        let web =
            Port { external: ends(&["192.0.2.1:81"]), ..port("d/web:80/TCP", &BOTH, &[PODS[0], PODS[2]]) };
        board.apply(vec![web.clone()]);
        // The other machine routes what it does not know to the board.
        for to in BOTH {
            assert_eq!(board.lan.ask(to), Err(io::ErrorKind::TimedOut), "{to}");
            assert!(board.pods[1].ask(to).is_ok_and(|answer| answer.starts_with("a ")), "{to}");
        }
        assert_eq!(board.lan.ask("192.0.2.1:81").as_deref(), Ok("a 192.0.2.9"));
        board.apply(Vec::new());
        board.network.apply_cluster_services(&path(vec![web])).unwrap();
        assert_eq!(board.lan.ask(BOTH[0]), Err(io::ErrorKind::TimedOut));
        let pods = vec![("192.0.2.0".parse().unwrap(), 24)];
        board.network.firewall.table.cluster = Some(Cluster { pods, ..Cluster::default() });
        board.network.install().unwrap();
        assert_eq!(board.lan.ask(BOTH[0]).as_deref(), Ok("a 192.0.2.9"));
    });
}

#[test]
fn a_client_stays_with_its_endpoint_until_that_is_gone() {
    in_new_namespace(|| {
        let mut board = Board::new(false);
        let with = |to: &[&str]| Port { affinity_seconds: Some(60), ..port("d/web:80/TCP", &BOTH, to) };
        board.apply(vec![with(&PODS)]);
        for to in BOTH {
            let first = board.pods[0].ask(to).unwrap();
            for _ in 0..20 {
                assert_eq!(board.pods[0].ask(to).as_ref(), Ok(&first));
            }
            let gone = if first.starts_with('a') { "2]:" } else { "3]:" };
            let gone4 = if first.starts_with('a') { "0.2:" } else { "0.3:" };
            let rest: Vec<&str> =
                PODS.into_iter().filter(|pod| !pod.contains(gone) && !pod.contains(gone4)).collect();
            let changes = board.apply(vec![with(&rest)]);
            assert!(!changes.is_whole);
            let second = board.pods[0].ask(to).unwrap();
            assert_ne!(second, first);
            board.apply(vec![with(&PODS)]);
            for _ in 0..20 {
                assert_eq!(board.pods[0].ask(to).as_ref(), Ok(&second));
            }
            // Without affinity, and with it again.
            board.apply(vec![port("d/web:80/TCP", &BOTH, &PODS)]);
            board.apply(vec![with(&PODS)]);
        }
    });
}

#[test]
fn a_sender_of_udp_leaves_an_endpoint_that_is_gone_and_finds_a_service_that_is_new() {
    in_new_namespace(|| {
        let mut board = Board::new(false);
        let with = |cluster: &str, to: &[&str]| Port {
            protocol: Protocol::Udp,
            node_port: Some(30053),
            ..port("d/dns:53/UDP", &[cluster], to)
        };
        let other = port("d/web:80/TCP", &["10.96.0.9:80"], &PODS);
        board.apply(vec![other.clone()]);
        let bind = |pod: &Namespace| pod.run(|| UdpSocket::bind("0.0.0.0:4000").unwrap());
        let (pod, lan) = (bind(&board.pods[0]), bind(&board.lan));
        assert!(ask_udp(&pod, "10.96.0.1:53").is_err());
        assert!(ask_udp(&lan, "192.0.2.1:30053").is_err());
        for (to, expected) in [(PODS[0], "a"), (PODS[1], "b"), (PODS[0], "a")] {
            board.apply(vec![with("10.96.0.1:53", &[to]), other.clone()]);
            assert_eq!(ask_udp(&pod, "10.96.0.1:53"), Ok(format!("{expected} 10.85.0.1")));
            assert_eq!(ask_udp(&lan, "192.0.2.1:30053"), Ok(format!("{expected} 192.0.2.9")));
        }
        board.apply(vec![with("10.96.0.2:53", &[PODS[1]]), other.clone()]);
        assert!(ask_udp(&pod, "10.96.0.1:53").is_err(), "the Service has another address");
        assert_eq!(ask_udp(&pod, "10.96.0.2:53"), Ok("b 10.85.0.1".to_owned()));
        board.apply(vec![other]);
        assert!(ask_udp(&pod, "10.96.0.2:53").is_err());
        // The last Service is gone.
        board.apply(vec![with("10.96.0.2:53", &[PODS[1]])]);
        assert_eq!(ask_udp(&pod, "10.96.0.2:53"), Ok("b 10.85.0.1".to_owned()));
        board.apply(Vec::new());
        assert!(ask_udp(&pod, "10.96.0.2:53").is_err());
    });
}

#[test]
fn a_connection_stays_with_its_endpoint_whatever_changes() {
    in_new_namespace(|| {
        let mut board = Board::new(false);
        let listener = board.pods[0].run(|| TcpListener::bind("0.0.0.0:9000").unwrap());
        let with = |to: &[&str]| port("d/chat:80/TCP", &["10.96.0.1:80"], to);
        board.apply(vec![with(&["10.85.0.2:9000"])]);
        let mut client = board.pods[1].run(|| TcpStream::connect("10.96.0.1:80").unwrap());
        let (mut server, _) = listener.accept().unwrap();
        client.set_read_timeout(Some(WAIT)).unwrap();
        let mut passes = |what: &str| {
            server.write_all(b"x").unwrap();
            client.read_exact(&mut [0]).unwrap_or_else(|error| panic!("{what}: {error}"));
        };
        passes("at first");
        board.apply(vec![with(&[PODS[1]])]);
        passes("the endpoint takes no new connections");
        assert_eq!(board.pods[1].ask("10.96.0.1:80").as_deref(), Ok("b 10.85.0.1"));
        board.network.repair().unwrap();
        passes("the table is sent again");
        board.apply(Vec::new());
        passes("the Service is gone");
    });
}

/// The time of the processor that this thread has had, in hundredths of a second.
fn ticks() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields = text.rsplit_once(')').unwrap().1.split_ascii_whitespace();
    fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

fn many(count: usize) -> Vec<Port> {
    let one = |number: usize| {
        let cluster = format!("10.96.{}.{}:80", number / 250 + 1, number % 250);
        let to = [format!("10.85.0.{}:8080", number % 200 + 2), format!("10.85.0.{}:8080", number % 199 + 3)];
        port(&format!("d/web{number:05}:80/TCP"), &[&cluster], &[&to[0], &to[1]])
    };
    (0..count).map(one).collect()
}

/// The table as `nft` lists it, without the numbers of chains; `None` without `nft`.
fn listed(network: &Network) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    let hash = network.bridge().trim_start_matches("nl");
    for name in [format!("nodlet-services-{hash}"), format!("nodlet-services-{hash}-b")] {
        let output =
            std::process::Command::new("nft").args(["list", "table", "inet", &name]).output().ok()?;
        lines.extend(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned));
    }
    Some(lines)
}

/// Deletes the table as another program does.
fn delete_table(network: &Network) {
    let mut other = Nft::open().unwrap();
    for name in network.services.names() {
        remove_table(&mut other, name).unwrap();
    }
}

#[test]
fn a_change_after_somebody_else_has_deleted_the_table_sends_all() {
    in_new_namespace(|| {
        let mut board = Board::new(false);
        let web = |to| port("d/web:80/TCP", &["10.96.0.1:80"], &[to]);
        board.apply(vec![web(PODS[0])]);
        delete_table(&board.network);
        assert!(board.apply(vec![web(PODS[1])]).is_whole);
        assert_eq!(board.pods[0].ask("10.96.0.1:80").as_deref(), Ok("b 10.85.0.1"));
        // The kernel refused even that.
        let state = board.network.services.state.take().unwrap();
        board.network.services.refused = Some((path(vec![web(PODS[0])]), state.frame));
        delete_table(&board.network);
        board.network.repair().unwrap();
        assert_eq!(board.pods[0].ask("10.96.0.1:80").as_deref(), Ok("a 10.85.0.1"));
    });
}

#[test]
fn a_change_sends_what_differs_and_the_whole_table_is_never_half_there() {
    in_new_namespace(|| {
        let mut board = Board::new(false);
        board.apply(many(1));
        for count in [1, 100, 5000] {
            board.apply(Vec::new());
            let mut ports = many(count);
            let watch = board.network.watch().unwrap().unwrap();
            let begin = (Instant::now(), ticks());
            let whole = board.apply(ports.clone());
            let whole_time = (begin.0.elapsed(), ticks() - begin.1);
            assert!(whole.is_whole);
            let news = watch.read_tables();
            assert!(!news.is_foreign && !news.is_incomplete, "these are changes of nodlet's own");
            assert!(whole.batches <= whole.bytes / sending::BATCH_BYTES + 1);
            let last = ports.len() - 1;
            ports[last].everywhere = ends(&[PODS[1]]);
            let begin = Instant::now();
            let one = board.apply(ports.clone());
            let one_time = begin.elapsed();
            assert!(!one.is_whole && one.batches == 1 && one.bytes < 1500, "{one:?}");
            let to = ports[last].cluster[0].to_string();
            assert_eq!(board.pods[0].ask(&to).as_deref(), Ok("b 10.85.0.1"));
            let ask = |to: &'static str| {
                let begin = Instant::now();
                for _ in 0..200 {
                    board.pods[0].ask(to).unwrap();
                }
                begin.elapsed() / 200
            };
            let (direct, through) = (ask(PODS[1]), ask(Box::leak(to.clone().into_boxed_str())));
            // Nothing has changed.
            assert_eq!(board.apply(ports.clone()), Changes::default());
            // One more and one less.
            ports.push(port("z/new:80/TCP", &["10.96.200.200:80"], &[PODS[0]]));
            let more = board.apply(ports.clone());
            assert!(!more.is_whole && more.bytes < 1500, "{more:?}");
            assert_eq!(board.pods[0].ask("10.96.200.200:80").as_deref(), Ok("a 10.85.0.1"));
            ports.pop();
            let less = board.apply(ports.clone());
            assert!(!less.is_whole && less.bytes < 1500, "{less:?}");
            assert!(board.pods[0].ask("10.96.200.200:80").is_err());
            println!(
                "{count} Services: {whole_time:?} ticks {whole:?}; one change {one_time:?} {} B, another {} B, gone {} B; a \
                 connection {direct:?} direct, {through:?} through the Service",
                one.bytes, more.bytes, less.bytes
            );
            // Somebody else deletes the table, whichever name it has.
            if let Some(lines) = listed(&board.network) {
                let elements = lines.iter().filter(|line| line.contains(": goto c")).count();
                assert!(lines.iter().filter(|line| line.contains("hook prerouting")).count() == 1);
                assert!(elements > 0);
            }
            delete_table(&board.network);
            assert!(watch.read_tables().is_foreign);
            assert!(board.pods[0].ask(&to).is_err());
            board.network.repair().unwrap();
            assert_eq!(board.pods[0].ask(&to).as_deref(), Ok("b 10.85.0.1"));
        }
    });
}

#[test]
fn a_large_table_replaces_the_one_in_effect_when_all_of_it_was_sent_whatever_comes_in_between() {
    in_new_namespace(|| {
        let mut board = Board::new(false);
        let web = |to| port("a/web:80/TCP", &["10.96.0.1:80"], &[to]);
        let sender = board.pods[1].run(|| UdpSocket::bind("0.0.0.0:4000").unwrap());
        let dns = |to| Port { protocol: Protocol::Udp, ..port("b/dns:53/UDP", &["10.96.0.2:53"], &[to]) };
        let large = |to| path([vec![web(to), dns(to)], many(1000)].concat());
        let name = |board: &Board| {
            let answers = [board.pods[1].ask("10.96.0.1:80").ok(), ask_udp(&sender, "10.96.0.2:53").ok()];
            answers.map(|answer| answer.and_then(|answer| answer.chars().next()).unwrap_or('-'))
        };
        board.apply(vec![web(PODS[0]), dns(PODS[0])]);
        assert_eq!(name(&board), ['a', 'a']);
        let mut changes = board.network.apply_services(&large(PODS[1]), &[]).unwrap();
        while changes.has_more {
            assert_eq!(name(&board), ['a', 'a'], "the table of before is in effect");
            changes = board.network.proceed_with_services().unwrap();
        }
        assert!(changes.batches > 3, "{changes:?}");
        assert_eq!(name(&board), ['b', 'b']);
        assert_eq!(board.network.proceed_with_services().unwrap(), Changes::default());
        // Another change comes first.
        let range = [("10.96.0.0".parse().unwrap(), 16)];
        assert!(board.network.apply_services(&large(PODS[0]), &range).unwrap().has_more);
        board.network.proceed_with_services().unwrap();
        board.apply(vec![web(PODS[0]), dns(PODS[0])]);
        assert_eq!(name(&board), ['a', 'a']);
        // The table has to be restored meanwhile: then all of it is sent at once.
        assert!(board.network.apply_services(&large(PODS[1]), &[]).unwrap().has_more);
        delete_table(&board.network);
        board.network.repair().unwrap();
        assert_eq!(name(&board), ['b', 'b']);
        assert!(board.network.apply_services(&large(PODS[0]), &range).unwrap().has_more);
        board.network.apply_services(&DataPath::default(), &[]).unwrap();
        assert_eq!(name(&board), ['-', '-']);
        assert_eq!(board.network.proceed_with_services().unwrap(), Changes::default());
    });
}

#[test]
fn two_services_with_one_address_are_no_failure_and_the_second_gets_it_when_the_first_is_gone() {
    in_new_namespace(|| {
        let mut board = Board::new(false);
        let first = port("d/a:80/TCP", &["10.96.0.1:80"], &[PODS[0]]);
        let second = port("d/b:80/TCP", &["10.96.0.1:80"], &[PODS[1]]);
        board.apply(vec![first.clone(), second.clone()]);
        assert_eq!(board.pods[0].ask("10.96.0.1:80").as_deref(), Ok("a 10.85.0.1"));
        // A change of another Service is sent alone, also if one Service has an address twice.
        let twice = ends(&["192.0.2.1:81", "192.0.2.1:81"]);
        let third = Port { external: twice, ..port("d/c:80/TCP", &["10.96.0.3:80"], &[PODS[0]]) };
        assert!(!board.apply(vec![first.clone(), second.clone(), third.clone()]).is_whole);
        assert!(!board.apply(vec![first, second.clone()]).is_whole);
        assert!(board.apply(vec![second.clone(), third]).is_whole);
        assert_eq!(board.lan.ask("192.0.2.1:81").as_deref(), Ok("a 192.0.2.9"));
        assert_eq!(board.pods[0].ask("10.96.0.1:80").as_deref(), Ok("b 10.85.0.1"));
        board.apply(vec![second]);
        assert_eq!(board.pods[0].ask("10.96.0.1:80").as_deref(), Ok("b 10.85.0.1"));
        // An address moves within one change.
        let moved = port("d/c:80/TCP", &["10.96.0.1:80"], &[PODS[0]]);
        board.apply(vec![moved]);
        assert_eq!(board.pods[0].ask("10.96.0.1:80").as_deref(), Ok("a 10.85.0.1"));
    });
}
