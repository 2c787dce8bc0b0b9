//! Other name servers that fail, are silent or are replaced.

use super::*;

/// The address of other name servers: that of the name server itself is no upstream.
const AWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));

/// A name server that answers each query with what `answer` makes of it. Ends with the test.
pub(super) fn scripted(
    mut answer: impl FnMut(&[u8]) -> Option<Vec<u8>> + Send + 'static,
) -> (SocketAddr, std::sync::Arc<AtomicUsize>) {
    let socket = UdpSocket::bind((AWAY, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    let count = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    thread::spawn(move || {
        let mut bytes = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            counted.fetch_add(1, Ordering::SeqCst);
            if let Some(answer) = answer(&bytes[..length]) {
                socket.send_to(&answer, from).unwrap();
            }
        }
    });
    (address, count)
}

/// The answer to a query with an address that ends in `last`.
pub(super) fn address(query: &[u8], last: u8) -> Vec<u8> {
    let mut bytes = [query, &[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, last]].concat();
    (bytes[2], bytes[3], bytes[7]) = (bytes[2] | 0x80, 0, 1);
    bytes
}

/// Whether a query is the probe of a silent server: for the name servers of the root.
fn is_probe(query: &[u8]) -> bool {
    query[12..] == [0, 0, 2, 0, 1]
}

/// Whether a query is for a name below `hole.example`.
pub(super) fn is_hole(query: &[u8]) -> bool {
    query.windows(13).any(|part| part == b"\x04hole\x07example")
}

#[test]
fn names_without_an_answer_take_the_board_offline_only_if_the_root_has_none_either() {
    let holes = |port: u16| {
        let waiting: Vec<_> =
            (0..3).map(|n| thread::spawn(move || ask(port, &format!("n{n}.hole.example"), A).0)).collect();
        assert!(waiting.into_iter().all(|waiting| waiting.join().unwrap() == 2));
    };
    // Nobody answers for some names. The probe is answered, and no query fails for them.
    let probes = std::sync::Arc::new(AtomicUsize::new(0));
    let probed = probes.clone();
    let (server, _) = scripted(move |query| {
        probed.fetch_add(usize::from(is_probe(query)), Ordering::SeqCst);
        if is_probe(query) {
            let mut answer = query.to_vec();
            answer[2] |= 0x80;
            Some(answer)
        } else {
            (!is_hole(query)).then(|| address(query, 1))
        }
    });
    serve(vec![server], move |port| {
        holes(port);
        assert_eq!(ask(port, "www.example", A), (0, false, 1, [192, 0, 2, 1]));
        assert!(probes.load(Ordering::SeqCst) > 0, "a probe was sent");
    });
    // The root has no answer either.
    let (server, _) = scripted(move |query| (!is_probe(query) && !is_hole(query)).then(|| address(query, 1)));
    serve(vec![server], move |port| {
        holes(port);
        // Until the probe's time is over, such a name takes the time of its attempts.
        let is_at_once = |number: &u32| {
            let begun = Instant::now();
            assert_eq!(ask(port, &format!("m{number}.hole.example"), A).0, 2);
            begun.elapsed() < nodlet_services::dns::upstream::PATIENCE / 2
        };
        assert!((0..5).any(|number| is_at_once(&number)), "it is offline");
        assert_eq!(ask(port, "www.example", A).0, 2, "until the next try");
    });
}

#[test]
fn a_server_that_fails_with_a_header_alone_is_followed_by_the_next() {
    for rcode in [1, 2, 4, 5] {
        let (bare, asked) =
            scripted(move |query| Some(vec![query[0], query[1], 0x81, 0x80 | rcode, 0, 0, 0, 0, 0, 0, 0, 0]));
        let (good, _) = scripted(|query| Some(address(query, 7)));
        serve(vec![bare, good], move |port| {
            let begun = Instant::now();
            assert_eq!(ask(port, "www.example", A), (0, false, 1, [192, 0, 2, 7]), "{rcode}");
            assert!(begun.elapsed() < nodlet_services::dns::upstream::PATIENCE, "{rcode}");
        });
        assert_eq!(asked.load(Ordering::SeqCst), 1, "{rcode}");
        serve(vec![bare], |port| assert_eq!(ask(port, "www.example", A).0, 2));
    }
}

#[test]
fn a_late_answer_of_an_earlier_server_is_for_its_client_alone() {
    let (release, is_released) = std::sync::mpsc::channel::<()>();
    let (began, has_begun) = std::sync::mpsc::channel::<()>();
    let (earlier, _) = scripted(move |query| {
        let _ = began.send(());
        let _ = is_released.recv_timeout(Duration::from_secs(20));
        Some(address(query, 1))
    });
    let (present, _) = scripted(|query| Some(address(query, 2)));
    let (sockets, port) = sockets();
    let (resolver, run) = resolver(sockets, vec![earlier]);
    let (switch, switches) = smol::channel::bounded(1);
    let (switched, is_switched) = std::sync::mpsc::channel();
    let run = smol::future::or(run, async move {
        let servers = switches.recv().await.unwrap();
        resolver.set_upstreams(servers);
        switched.send(()).unwrap();
        std::future::pending().await
    });
    run_beside(run, move || {
        let early = client(HOME);
        send(&early, port, &query(9, "www.example", A));
        has_begun.recv().unwrap();
        switch.send_blocking(vec![present]).unwrap();
        is_switched.recv().unwrap();
        // A client that asks now does not wait for the earlier server.
        assert_eq!(ask(port, "other.example", A).3, [192, 0, 2, 2]);
        let before = Instant::now();
        release.send(()).unwrap();
        // Whichever answers first.
        let answered = receive(&early);
        assert!(answered.0 == 0 && before.elapsed() < Duration::from_secs(10), "{answered:?}");
        assert_eq!(ask(port, "www.example", A).3, [192, 0, 2, 2], "the earlier answer was not kept");
    });
}

#[test]
fn a_long_query_on_its_way_is_forwarded_again_by_the_next_agent() {
    let (began, has_begun) = smol::channel::bounded(16);
    let (silent, _) = scripted(move |_| {
        let _ = began.try_send(());
        None
    });
    let (good, _) = scripted(|query| {
        Some(address(&query[..query.len() - 11], 3)).map(|mut answer| {
            // Without the OPT record of the query.
            answer[11] = 0;
            answer
        })
    });
    let (sockets, port) = sockets();
    let held = sockets.descriptors().unwrap();
    let name = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
    let mut long = query(9, &name, A);
    // An OPT record with padding.
    long.extend([&[0, 0, 41, 16, 0, 0, 0, 0, 0, 1, 148, 0, 12, 1, 144][..], &[0; 400]].concat());
    long[11] = 1;
    assert!(long.len() > 600);
    let pod = client(HOME);
    send(&pod, port, &long);
    let (first, run) = resolver(sockets, vec![silent]);
    smol::block_on(LocalExecutor::new().run(smol::future::or(run, async {
        has_begun.recv().await.unwrap();
    })));
    drop(first);
    let next = Sockets::open_at(&[HOME], port, held).unwrap();
    let (_next, run) = resolver(next, vec![good]);
    let answer = run_beside(run, move || receive(&pod));
    assert_eq!((answer.0, answer.2), (0, 1), "{answer:?}");
}

#[test]
fn sockets_that_could_not_be_used_keep_their_queries_for_the_next_attempt() {
    let (sockets, port) = sockets();
    let held = sockets.descriptors().unwrap();
    drop(sockets);
    let pod = client(HOME);
    send(&pod, port, &query(9, "web.default.svc.cluster.local", A));
    let copies = || held.iter().map(|fd| fd.try_clone().unwrap()).collect::<Vec<_>>();
    let other = UdpSocket::bind((AWAY, port)).unwrap();
    let failed = Sockets::open_at(&[HOME, AWAY], port, copies()).err().expect("the port is taken");
    assert_eq!(failed.kind(), std::io::ErrorKind::AddrInUse);
    drop(other);
    let sockets = Sockets::open_at(&[HOME, AWAY], port, copies()).unwrap();
    assert_eq!(sockets.count(), 2);
    let (_resolver, run) = resolver(sockets, vec![]);
    assert_eq!(run_beside(run, move || receive(&pod)).3, [10, 96, 0, 1]);
}

#[test]
fn an_address_that_is_not_on_the_board_is_left_out() {
    let gone: IpAddr = "192.0.2.77".parse().unwrap();
    let (sockets, port) = sockets();
    drop(sockets);
    let sockets = Sockets::open_at(&[gone, HOME], port, vec![]).unwrap();
    assert_eq!(sockets.addresses(), [HOME]);
    let error = Sockets::open_at(&[gone], port, vec![]).err().expect("nothing is left");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrNotAvailable);
}

#[test]
fn a_query_that_is_repeated_after_its_failure_is_led_to_tcp() {
    serve(vec![], |port| {
        let musl = client(HOME);
        send(&musl, port, &query(9, "www.example", A));
        assert_eq!(receive(&musl), (2, false, 0, [0, 1, 0, 1]));
        send(&musl, port, &query(9, "www.example", A));
        assert_eq!(receive(&musl), (0, true, 0, [0, 1, 0, 1]), "truncated");
        let mut stream = TcpStream::connect((HOME, port)).unwrap();
        assert_eq!(ask_by_tcp(&mut stream, "www.example", A).0, 2);
        // As glibc and Go ask again: from another port, or with another ID.
        assert_eq!(ask(port, "www.example", A).0, 2);
        send(&musl, port, &query(10, "www.example", A));
        assert_eq!(receive(&musl).0, 2);
    });
}
