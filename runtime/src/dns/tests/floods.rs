//! Many queries at once, of one pod and of several.

use std::collections::BTreeMap;

use nodlet_services::service::{Conditions, Endpoint, EndpointSlice, Family};

use super::servers::{address, is_hole, scripted};
use super::*;

/// Serves pods with any address of the loopback link, of whom at most `bound` wait at a time.
fn serve_pods<T: Send + 'static>(
    bound: usize,
    upstreams: Vec<SocketAddr>,
    client: impl FnOnce(u16) -> T + Send + 'static,
) -> T {
    let (sockets, port) = sockets();
    let (resolver, run) = resolver_for(vec![(HOME, 8)], sockets, vec![]);
    let mut forwarder = Forwarder::new(bound);
    forwarder.set_servers(upstreams);
    resolver.server.forwarder.replace(forwarder);
    run_beside(run, move || client(port))
}

fn pod(number: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 1, number).into()
}

#[test]
fn a_pod_may_have_hundreds_of_queries_on_their_way() {
    const QUERIES: usize = 300;
    // Each is answered when all of them have come.
    let mut names = BTreeSet::new();
    let (server, asked) = scripted(move |query| {
        names.insert(query[12..].to_vec());
        (names.len() >= QUERIES).then(|| address(query, 1))
    });
    serve_pods(QUERIES, vec![server], |port| {
        // Few for each socket, so that its buffer has room for the answers.
        let clients: Vec<_> = (0..QUERIES / 30).map(|_| client(pod(1))).collect();
        for (number, socket) in clients.iter().enumerate() {
            for id in 0..30 {
                send(socket, port, &query(id, &format!("n{number}-{id}.example"), A));
            }
        }
        let mut ids = BTreeSet::new();
        for (number, socket) in clients.iter().enumerate() {
            for _ in 0..30 {
                let mut bytes = [0; 512];
                let length = socket.recv(&mut bytes).unwrap();
                assert_eq!(seen(&bytes[..length]), (0, false, 1, [192, 0, 2, 1]));
                ids.insert((number, bytes[1]));
            }
        }
        assert_eq!(ids.len(), QUERIES);
    });
    println!("{} messages for {QUERIES} queries", asked.load(Ordering::SeqCst));
}

#[test]
fn a_pod_with_all_queries_on_their_way_loses_one_to_each_other_pod() {
    const BOUND: usize = 40;
    let (server, _) = scripted(|query| (!is_hole(query)).then(|| address(query, 1)));
    serve_pods(BOUND, vec![server], |port| {
        let flood = client(pod(1));
        for id in 0..BOUND as u16 {
            send(&flood, port, &query(id, &format!("n{id}.hole.example"), A));
        }
        let other = client(pod(2));
        send(&other, port, &query(1, "www.example", A));
        assert_eq!(receive(&other).3, [192, 0, 2, 1]);
        // The first one has failed for it, long before its time was over.
        let mut bytes = [0; 512];
        flood.recv(&mut bytes).unwrap();
        assert_eq!((&bytes[..2], bytes[3] & 15), (&[0, 0][..], 2));
        let mut next = |name: &str, id: u16| {
            send(&flood, port, &query(id, name, A));
            let length = flood.recv(&mut bytes).unwrap();
            (bytes[1], seen(&bytes[..length]).0)
        };
        // It has what is free, and its own queries displace none.
        assert_eq!(next("own.example", 100), (100, 0));
        send(&flood, port, &query(101, "more.hole.example", A));
        assert_eq!(next("www.other.example", 102), (102, 2));
    });
}

#[test]
fn other_tasks_of_the_agent_have_their_turns_during_a_flood() {
    const TURNS: usize = 2_000;
    let (sockets, port) = sockets();
    let (_resolver, run) = resolver_for(vec![(HOME, 8)], sockets, vec![]);
    let turns = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = turns.clone();
    // As on the agent's thread, where each task has its turn when it is woken.
    let run = smol::future::or(run, async move {
        loop {
            counted.fetch_add(1, Ordering::SeqCst);
            smol::future::yield_now().await;
        }
    });
    let (seen, flooded) = run_beside(run, move || {
        let begun = Instant::now();
        let flood = client(pod(1));
        let query = query(1, "web.default.svc.cluster.local", A);
        let mut flooded = 0;
        while turns.load(Ordering::SeqCst) < TURNS && begun.elapsed() < Duration::from_secs(20) {
            for _ in 0..100 {
                send(&flood, port, &query);
            }
            flooded += 100;
        }
        (turns.load(Ordering::SeqCst), flooded)
    });
    println!("{seen} turns during {flooded} queries");
    assert!(seen >= TURNS, "{seen} turns during {flooded} queries");
}

#[test]
fn the_addresses_of_a_headless_service_take_turns() {
    let mut catalog = Catalog::default();
    catalog.namespaces.insert("default".into());
    let service = Service { is_headless: true, ..service("pods", None, None) };
    let endpoint = |last: u8| Endpoint {
        addresses: vec![IpAddr::from([10, 85, 0, last])],
        conditions: Conditions { ready: true, serving: true, terminating: false },
        hostname: None,
        node: None,
        pod: None,
    };
    let slice = EndpointSlice {
        namespace: "default".into(),
        name: "pods-1".into(),
        service: "pods".into(),
        family: Some(Family::V4),
        ports: vec![],
        endpoints: (1..=4).map(endpoint).collect(),
    };
    let key = (service.namespace.clone(), service.name.clone());
    catalog.services.insert(key, Entry { service, slices: vec![slice] });
    let (sockets, port) = sockets();
    let (resolver, run) = resolver(sockets, vec![]);
    resolver.update(Rc::new(catalog), BTreeSet::new());
    run_beside(run, move || {
        let socket = client(HOME);
        let mut firsts = BTreeMap::new();
        for id in 0..40 {
            send(&socket, port, &query(id, "pods.default.svc.cluster.local", A));
            let mut bytes = [0; 512];
            let length = socket.recv(&mut bytes).unwrap();
            assert_eq!(seen(&bytes[..length]).2, 4, "all of them");
            let question = query(id, "pods.default.svc.cluster.local", A).len();
            *firsts.entry(bytes[question + 15]).or_insert(0) += 1;
        }
        assert_eq!(firsts, (1..=4).map(|last| (last, 10)).collect());
    });
}
