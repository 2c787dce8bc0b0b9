use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nodlet_services::catalog::Entry;
use nodlet_services::service::{Service, ServiceType};

use super::serve::TCP_TIME;
use super::*;

mod floods;
mod servers;

const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const A: u16 = 1;

fn service(name: &str, address: Option<&str>, external_name: Option<&str>) -> Service {
    Service {
        namespace: "default".into(),
        name: name.into(),
        kind: if external_name.is_some() { ServiceType::ExternalName } else { ServiceType::ClusterIp },
        cluster_ips: address.iter().map(|address| address.parse().unwrap()).collect(),
        families: vec![nodlet_services::service::Family::V4],
        is_headless: false,
        ports: vec![nodlet_services::service::ServicePort {
            name: "".into(),
            protocol: nodlet_services::service::Protocol::Tcp,
            port: 80,
            target: nodlet_services::service::Target::Number(80),
            node_port: None,
            app_protocol: None,
        }],
        selector: BTreeMap::new(),
        affinity_seconds: None,
        internal_policy: Default::default(),
        external_policy: Default::default(),
        publishes_not_ready: false,
        health_check_port: None,
        external_ips: vec![],
        external_name: external_name.map(Into::into),
    }
}

fn catalog() -> Rc<Catalog> {
    let mut catalog = Catalog::default();
    catalog.namespaces.insert("default".into());
    for service in [service("web", Some("10.96.0.1"), None), service("out", None, Some("www.example"))] {
        let key = (service.namespace.clone(), service.name.clone());
        catalog.services.insert(key, Entry { service, slices: vec![] });
    }
    Rc::new(catalog)
}

/// Sockets at a free port, which is returned, too.
fn sockets() -> (Sockets, u16) {
    for _ in 0..100 {
        let port = UdpSocket::bind((HOME, 0)).unwrap().local_addr().unwrap().port();
        if let Ok(sockets) = Sockets::open_at(&[HOME], port, vec![]) {
            return (sockets, port);
        }
    }
    panic!("no port is free");
}

fn resolver(sockets: Sockets, upstreams: Vec<SocketAddr>) -> (Resolver, impl Future<Output = ()>) {
    resolver_for(vec![(IpAddr::from([127, 0, 3, 0]), 24)], sockets, upstreams)
}

fn resolver_for(
    pod_ranges: Vec<(IpAddr, u8)>,
    sockets: Sockets,
    upstreams: Vec<SocketAddr>,
) -> (Resolver, impl Future<Output = ()>) {
    let settings = Settings { domain: "cluster.local".into(), pod_ranges };
    let (resolver, run) = Resolver::begin(sockets, settings);
    resolver.update(catalog(), BTreeSet::new());
    // The board's own address is no other server: tests have one there.
    resolver.server.forwarder.borrow_mut().set_servers(upstreams);
    (resolver, run)
}

/// Serves while `client` runs on a thread of its own. Returns its result.
fn serve<T: Send + 'static>(upstreams: Vec<SocketAddr>, client: impl FnOnce(u16) -> T + Send + 'static) -> T {
    let (sockets, port) = sockets();
    let (_resolver, run) = resolver(sockets, upstreams);
    run_beside(run, move || client(port))
}

/// Runs `client` on a thread of its own while `run` is polled. Returns its result.
fn run_beside<T: Send + 'static>(
    run: impl Future<Output = ()>,
    client: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (done, is_done) = smol::channel::bounded(1);
    std::thread::spawn(move || done.send_blocking(client()));
    let client = async { is_done.recv().await.expect("the client succeeds") };
    let run = async {
        run.await;
        unreachable!("it never ends")
    };
    smol::block_on(LocalExecutor::new().run(smol::future::or(client, run)))
}

fn query(id: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = [&id.to_be_bytes()[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend_from_slice(label.as_bytes());
    }
    [&bytes[..], &[0], &kind.to_be_bytes(), &[0, 1]].concat()
}

/// Code, whether it is truncated, number of answers, and the last four bytes.
type Seen = (u8, bool, u8, [u8; 4]);

fn seen(bytes: &[u8]) -> Seen {
    (bytes[3] & 15, bytes[2] & 2 != 0, bytes[7], bytes[bytes.len() - 4..].try_into().unwrap())
}

/// Sends a query, each with an ID of its own: the kernel may give a port again, and a query that repeats one with the same
/// port and ID is answered otherwise (`nodlet_services::dns::repeats`).
fn ask(port: u16, name: &str, kind: u16) -> Seen {
    static NEXT: AtomicU16 = AtomicU16::new(9);
    let socket = client(HOME);
    send(&socket, port, &query(NEXT.fetch_add(1, Ordering::Relaxed), name, kind));
    receive(&socket)
}

/// A socket of a client with this address.
fn client(address: IpAddr) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

fn send(socket: &UdpSocket, port: u16, query: &[u8]) {
    socket.send_to(query, (HOME, port)).unwrap();
}

fn receive(socket: &UdpSocket) -> Seen {
    let mut bytes = [0; 2048];
    let length = socket.recv(&mut bytes).unwrap();
    seen(&bytes[..length])
}

fn ask_by_tcp(stream: &mut TcpStream, name: &str, kind: u16) -> Seen {
    let query = query(9, name, kind);
    stream.write_all(&[&[0, query.len() as u8][..], &query].concat()).unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut bytes = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut bytes).unwrap();
    seen(&bytes)
}

/// Answers with this many addresses whose last byte is the number of the query, or with none, and does so by TCP,
/// too. By UDP more than 20 are a truncated answer. Returns its address and the number of queries that came.
fn upstream(addresses: usize) -> (SocketAddr, std::sync::Arc<AtomicUsize>) {
    let socket = UdpSocket::bind((HOME, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    let listener = TcpListener::bind(address).unwrap();
    let count = std::sync::Arc::new(AtomicUsize::new(0));
    let answer = |query: &[u8], addresses: usize, number: usize| {
        let mut bytes = query.to_vec();
        bytes[2] |= 0x80;
        bytes[3] = if addresses == 0 { 3 } else { 0 };
        bytes[7] = addresses as u8;
        for _ in 0..addresses {
            bytes.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, number as u8]);
        }
        bytes
    };
    let counted = count.clone();
    thread::spawn(move || {
        let mut bytes = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
            let mut bytes = answer(&bytes[..length], if addresses > 20 { 1 } else { addresses }, number);
            if addresses > 20 {
                bytes[2] |= 2;
            }
            socket.send_to(&bytes, from).unwrap();
        }
    });
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut query).unwrap();
            let bytes = answer(&query, addresses, 77);
            stream.write_all(&[&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat()).unwrap();
        }
    });
    (address, count)
}

#[test]
fn names_of_the_board_are_answered_by_udp_and_tcp() {
    serve(vec![], |port| {
        let web = (0, false, 1, [10, 96, 0, 1]);
        assert_eq!(ask(port, "web.default.svc.cluster.local", A), web);
        let mut stream = TcpStream::connect((HOME, port)).unwrap();
        for _ in 0..3 {
            assert_eq!(ask_by_tcp(&mut stream, "web.default.svc.cluster.local", A), web);
        }
        assert_eq!(ask(port, "web.default.svc.cluster.local", 28).2, 0);
        assert_eq!(ask(port, "web.default.svc.cluster.local", 28).0, 0, "it exists");
        assert_eq!(ask(port, "none.default.svc.cluster.local", A).0, 3);
        assert_eq!(ask(port, "web.default.svc.cluster.local.lan", A).0, 3, "never forwarded");
        assert_eq!(ask(port, "www.example", A).0, 2, "no server");
    });
}

#[test]
fn other_names_are_forwarded_kept_and_followed() {
    let (server, count) = upstream(1);
    serve(vec![server], move |port| {
        assert_eq!(ask(port, "www.example", A), (0, false, 1, [192, 0, 2, 1]));
        assert_eq!(ask(port, "WWW.example", A), (0, false, 1, [192, 0, 2, 1]));
        assert_eq!(count.load(Ordering::SeqCst), 1, "it was kept");
        assert_eq!(ask(port, "out.default.svc.cluster.local", A), (0, false, 2, [192, 0, 2, 1]));
        assert_eq!(ask(port, "other.example", A), (0, false, 1, [192, 0, 2, 2]));
    });
}

#[test]
fn a_truncated_answer_is_fetched_by_tcp() {
    let (server, _) = upstream(100);
    serve(vec![server], move |port| {
        let (code, is_truncated, count, _) = ask(port, "www.example", A);
        assert_eq!((code, is_truncated), (0, true));
        assert!(count > 20, "as many as fit");
        let mut stream = TcpStream::connect((HOME, port)).unwrap();
        assert_eq!(ask_by_tcp(&mut stream, "www.example", A), (0, false, 100, [192, 0, 2, 77]));
    });
}

#[test]
fn a_board_that_is_offline_says_so_at_once() {
    // Nobody listens at the first; nothing answers at the second.
    let silent = UdpSocket::bind((HOME, 0)).unwrap();
    let closed = UdpSocket::bind((HOME, 0)).unwrap().local_addr().unwrap();
    let servers = vec![silent.local_addr().unwrap()];
    serve(vec![closed], |port| {
        let begun = Instant::now();
        assert_eq!(ask(port, "www.example", A).0, 2);
        assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    });
    serve(servers, |port| {
        let waiting: Vec<_> =
            (0..3).map(|n| thread::spawn(move || ask(port, &format!("n{n}.example"), A).0)).collect();
        assert!(waiting.into_iter().all(|waiting| waiting.join().unwrap() == 2));
        let mut times: Vec<_> = (0..50)
            .map(|_| {
                let begun = Instant::now();
                assert_eq!(ask(port, "late.example", A).0, 2);
                begun.elapsed()
            })
            .collect();
        times.sort();
        println!("a name while offline: median {:?}, longest {:?}", times[25], times[49]);
        assert!(times[25] < Duration::from_millis(5), "{times:?}");
    });
    drop(silent);
}

#[test]
fn only_pods_and_the_board_are_answered() {
    let in_range =
        |address: &str, range: &str, length| is_in(address.parse().unwrap(), range.parse().unwrap(), length);
    for (address, range, length, expected) in [
        ("10.88.0.5", "10.88.0.0", 16, true),
        ("10.89.0.5", "10.88.0.0", 16, false),
        ("10.89.0.5", "0.0.0.0", 0, true),
        ("10.88.0.5", "10.88.0.5", 32, true),
        ("10.88.0.4", "10.88.0.5", 32, false),
        ("fd01::5", "fd01::", 64, true),
        ("fd02::5", "fd01::", 64, false),
        ("fd01::5", "10.88.0.0", 0, false),
    ] {
        assert_eq!(in_range(address, range, length), expected, "{address} {range}/{length}");
    }
    serve(vec![], |port| {
        let stranger = UdpSocket::bind("127.0.0.2:0").unwrap();
        stranger.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        stranger.send_to(&query(1, "web.default.svc.cluster.local", A), (HOME, port)).unwrap();
        assert_eq!(ask(port, "web.default.svc.cluster.local", A).0, 0, "the next is answered");
        assert!(stranger.recv(&mut [0; 512]).is_err(), "no answer to a stranger");
    });
}

/// Connects to the name server from an address of this machine.
fn connect_from(address: [u8; 4], port: u16) -> TcpStream {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    let [a, b, c, d] = address;
    bind(socket.as_raw_fd(), &SockaddrIn::new(a, b, c, d, 0)).unwrap();
    connect(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, port)).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

#[test]
fn one_client_cannot_keep_others_from_tcp() {
    serve(vec![], |port| {
        let mut first = connect_from([127, 0, 0, 1], port);
        assert_eq!(ask_by_tcp(&mut first, "web.default.svc.cluster.local", A).0, 0);
        // More than there can be of all pods together. Those beyond the share of one pod are closed at once.
        let mut held: Vec<_> = (0..40).map(|_| connect_from([127, 0, 0, 1], port)).collect();
        held[39].set_read_timeout(Some(TCP_TIME / 2)).unwrap();
        let closed = held[39].read(&mut [0]);
        assert!(closed.is_ok_and(|length| length == 0), "it is closed");
        for other in 1..=3 {
            let mut other = connect_from([127, 0, 3, other], port);
            assert_eq!(ask_by_tcp(&mut other, "web.default.svc.cluster.local", A).0, 0);
        }
        assert_eq!(ask_by_tcp(&mut first, "web.default.svc.cluster.local", A).0, 0, "it is not closed");
        drop(held);
    });
}

/// Not a test by itself: the next test runs and kills it in processes of its own.
#[test]
fn an_agent_that_is_to_be_killed() {
    let Ok(path) = std::env::var("NODLET_TEST_DNS") else { return };
    let stream = UnixStream::connect(path).unwrap();
    let mut bytes = [0; 64];
    let received =
        nodlet_kernel::socket::receive::<16>(stream.as_fd(), &mut bytes, MsgFlags::empty()).unwrap();
    let text = std::str::from_utf8(&bytes[..received.length]).unwrap();
    let (port, upstream) = text.split_once(' ').unwrap();
    let sockets = Sockets::open_at(&[HOME], port.parse().unwrap(), received.descriptors).unwrap();
    let (_resolver, run) = resolver(sockets, vec![upstream.parse().unwrap()]);
    smol::block_on(LocalExecutor::new().run(run));
}

#[test]
fn no_query_is_lost_by_a_hundred_kills_during_ten_thousand() {
    const KILLS: usize = 100;
    const CLIENTS: usize = 8;
    const QUERIES: usize = 10_000;
    let (sockets, port) = sockets();
    // What supervisors do: they have duplicates, and give them to the next agent.
    let held = sockets.descriptors().unwrap();
    drop(sockets);
    let (server, forwarded) = upstream(0);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("held");
    let listener = UnixListener::bind(&path).unwrap();
    let start = || -> Child {
        let mut agent = Command::new(std::env::current_exe().unwrap());
        agent.args(["--exact", "dns::tests::an_agent_that_is_to_be_killed"]).env("NODLET_TEST_DNS", &path);
        let agent = agent.stdout(std::process::Stdio::null()).spawn().unwrap();
        let (stream, _) = listener.accept().unwrap();
        let raw: Vec<_> = held.iter().map(AsRawFd::as_raw_fd).collect();
        let text = format!("{port} {server}");
        let parts = [std::io::IoSlice::new(text.as_bytes())];
        sendmsg::<()>(
            stream.as_raw_fd(),
            &parts,
            &[ControlMessage::ScmRights(&raw)],
            MsgFlags::empty(),
            None,
        )
        .unwrap();
        agent
    };
    let answered = std::sync::Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let answered = answered.clone();
            thread::spawn(move || {
                let socket = UdpSocket::bind((HOME, 0)).unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                let (mut lost, mut longest) = (0, Duration::ZERO);
                for number in 0..QUERIES / CLIENTS {
                    let id = number as u16;
                    let (name, code) = if number % 4 == 0 {
                        (format!("c{client}-{number}.example"), 3)
                    } else {
                        ("web.default.svc.cluster.local".to_owned(), 0)
                    };
                    let begun = Instant::now();
                    // Each is sent once.
                    socket.send_to(&query(id, &name, A), (HOME, port)).unwrap();
                    let mut bytes = [0; 512];
                    lost += loop {
                        match socket.recv(&mut bytes) {
                            // A second answer to an earlier query, as a resolver sees it.
                            Ok(_) if bytes[..2] != id.to_be_bytes() => {}
                            Ok(length) => break usize::from(seen(&bytes[..length]).0 != code),
                            Err(_) => break 1,
                        }
                    };
                    longest = longest.max(begun.elapsed());
                    answered.fetch_add(1, Ordering::SeqCst);
                }
                (lost, longest)
            })
        })
        .collect();
    let mut agent = start();
    for kill in 1..=KILLS {
        let threshold = kill * QUERIES / KILLS - QUERIES / KILLS / 2;
        while answered.load(Ordering::SeqCst) < threshold {
            thread::sleep(Duration::from_micros(50));
        }
        agent.kill().unwrap();
        agent.wait().unwrap();
        agent = start();
    }
    let ended: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    agent.kill().unwrap();
    agent.wait().unwrap();
    let longest = ended.iter().map(|(_, longest)| *longest).max();
    let forwarded = forwarded.load(Ordering::SeqCst);
    println!("{KILLS} kills, {QUERIES} queries, {forwarded} forwarded, the longest took {longest:?}");
    assert_eq!(ended.iter().map(|(lost, _)| lost).sum::<usize>(), 0, "{ended:?}");
}
