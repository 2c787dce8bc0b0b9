use domain::base::iana::Rtype;

use super::*;
use crate::dns::message::Query;
use crate::dns::message::tests::{query, response};

const A: &[(u8, Rtype, u32, &[u8])] = &[(0, Rtype::A, 60, &[192, 0, 2, 1])];

/// A forwarder whose clients are names; IDs are always 7.
struct Bench {
    forwarder: Forwarder<&'static str>,
    now: Duration,
}

fn bench(servers: &[&str]) -> Bench {
    let mut forwarder = Forwarder::new(WAITING);
    forwarder
        .set_servers(servers.iter().map(|server| SocketAddr::new(server.parse().unwrap(), 53)).collect());
    Bench { forwarder, now: Duration::from_secs(100) }
}

fn show(actions: &[Action<&'static str>]) -> String {
    let action = |action: &Action<&'static str>| match action {
        Action::Send { flight, server, transport, .. } => {
            format!("{} to {} by {transport:?}", flight.0, server.ip())
        }
        Action::Deliver { clients, response, .. } => match response {
            None => format!("fail {}", clients.join(" ")),
            Some(response) if response.is_failure() => format!("pass on failure to {}", clients.join(" ")),
            Some(response) if response.is_truncated() => format!("pass on a part to {}", clients.join(" ")),
            Some(_) => format!("answer {}", clients.join(" ")),
        },
        Action::Fail(client) => format!("fail {client}"),
    };
    actions.iter().map(action).collect::<Vec<_>>().join(", ")
}

impl Bench {
    fn ask(&mut self, name: &str, client: &'static str) -> String {
        self.ask_from(name, client, 2)
    }

    fn ask_from(&mut self, name: &str, client: &'static str, source: u8) -> String {
        let query = Query::read(&query(name, Rtype::A, None)).unwrap();
        let asked = self.forwarder.ask(self.now, &query, IpAddr::from([10, 88, 0, source]), client, 7);
        let refused = asked.refused.map(|(refusal, client)| format!("{client}: {refusal:?}"));
        [show(&asked.actions), refused.unwrap_or_default()].join("; ").trim_matches([';', ' ']).to_owned()
    }

    fn received(&mut self, flight: u64, name: &str, rcode: u8) -> String {
        show(&self.forwarder.received(FlightId(flight), 7, &response(name, Rtype::A, rcode, A), 7))
    }

    fn timed_out(&mut self, flight: u64) -> String {
        show(&self.forwarder.timed_out(self.now, FlightId(flight), 7, 7))
    }

    fn unreachable(&mut self, flight: u64) -> String {
        show(&self.forwarder.unreachable(self.now, FlightId(flight), 7, 7))
    }
}

#[test]
fn a_query_goes_to_the_first_server_and_its_answer_to_all_who_asked() {
    let mut bench = bench(&["192.0.2.1", "192.0.2.2"]);
    assert_eq!(bench.ask("a.example", "one"), "1 to 192.0.2.1 by Udp");
    assert_eq!(bench.ask("A.example", "two"), "");
    assert_eq!(bench.ask("b.example", "three"), "2 to 192.0.2.1 by Udp");
    assert_eq!(bench.received(1, "b.example", 0), "", "not what was asked");
    assert_eq!(bench.received(1, "a.example", 0), "answer one two");
    assert_eq!(bench.received(1, "a.example", 0), "", "again");
    assert_eq!(bench.received(2, "b.example", 3), "answer three");
}

#[test]
fn the_next_server_is_asked_after_a_while_and_an_earlier_answer_still_counts() {
    let mut bench = bench(&["192.0.2.1", "192.0.2.2"]);
    bench.ask("a.example", "one");
    assert_eq!(bench.timed_out(1), "1 to 192.0.2.2 by Udp");
    assert_eq!(bench.timed_out(1), "1 to 192.0.2.1 by Udp");
    assert_eq!(bench.received(1, "a.example", 0), "answer one");
    bench.ask("b.example", "two");
    assert_eq!([bench.timed_out(2), bench.timed_out(2), bench.timed_out(2)][2], "fail two");
}

#[test]
fn a_server_that_fails_or_refuses_is_passed_on_when_no_other_knows_more() {
    let mut bench = bench(&["192.0.2.1", "192.0.2.2"]);
    bench.ask("a.example", "one");
    assert_eq!(bench.received(1, "a.example", 2), "1 to 192.0.2.2 by Udp");
    assert_eq!(bench.received(1, "a.example", 0), "answer one");
    bench.ask("b.example", "two");
    assert_eq!(bench.received(2, "b.example", 5), "2 to 192.0.2.2 by Udp");
    assert_eq!(bench.received(2, "b.example", 2), "pass on failure to two");
    bench.ask("c.example", "three");
    assert_eq!(bench.received(3, "c.example", 2), "3 to 192.0.2.2 by Udp");
    assert_eq!(bench.unreachable(3), "pass on failure to three");
}

#[test]
fn a_failure_without_its_question_is_the_servers() {
    for rcode in [1, 2, 4, 5] {
        let mut bench = bench(&["192.0.2.1", "192.0.2.2"]);
        bench.ask("a.example", "one");
        let bare = |rcode: u8| [0, 7, 0x81, 0x80 | rcode, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut received = |bytes: &[u8]| show(&bench.forwarder.received(FlightId(1), 7, bytes, 7));
        assert_eq!(received(&bare(0)), "", "no failure");
        assert_eq!(received(&bare(rcode)), "1 to 192.0.2.2 by Udp", "{rcode}");
        assert_eq!(received(&bare(rcode)), "pass on failure to one", "{rcode}");
    }
}

#[test]
fn a_truncated_answer_is_asked_for_by_tcp_and_passed_on_if_that_fails() {
    for fails in [false, true] {
        let mut bench = bench(&["192.0.2.1"]);
        bench.ask("a.example", "one");
        let mut truncated = response("a.example", Rtype::A, 0, A);
        truncated[2] |= 2;
        let actions = bench.forwarder.received(FlightId(1), 7, &truncated, 7);
        assert_eq!(show(&actions), "1 to 192.0.2.1 by Tcp");
        if fails {
            assert_eq!(bench.unreachable(1), "pass on a part to one");
        } else {
            assert_eq!(bench.received(1, "a.example", 0), "answer one");
        }
    }
}

#[test]
fn without_a_server_or_a_route_a_query_fails_at_once() {
    assert_eq!(bench(&[]).ask("a.example", "one"), "one: NoServer");
    let mut bench = bench(&["192.0.2.1", "192.0.2.2"]);
    bench.ask("a.example", "one");
    assert_eq!(bench.unreachable(1), "1 to 192.0.2.2 by Udp");
    assert_eq!(bench.unreachable(1), "1 to 192.0.2.1 by Udp");
    assert_eq!(bench.unreachable(1), "fail one");
    bench.ask("b.example", "two");
    bench.forwarder.set_servers(vec![]);
    assert_eq!(bench.timed_out(2), "fail two", "the servers are gone meanwhile");
}

#[test]
fn after_three_queries_without_an_answer_all_fail_at_once_and_one_is_tried_each_ten_seconds() {
    let mut bench = bench(&["192.0.2.1"]);
    for name in ["a.example", "b.example", "c.example", "d.example"] {
        bench.ask(name, "early");
    }
    for flight in 1..=3 {
        assert!(
            [bench.timed_out(flight), bench.timed_out(flight)].iter().all(|sent| sent.ends_with("by Udp"))
        );
    }
    assert_eq!([bench.timed_out(1), bench.timed_out(2)], ["fail early", "fail early"]);
    assert_eq!(bench.timed_out(3), "fail early, 5 to 192.0.2.1 by Udp", "a probe");
    assert_eq!([bench.timed_out(5), bench.timed_out(5)], ["5 to 192.0.2.1 by Udp"; 2]);
    assert_eq!(bench.timed_out(5), "fail , fail early", "also the one that still waits");
    assert_eq!(bench.ask("e.example", "late"), "late: Offline");
    bench.now += Duration::from_millis(9_999);
    assert_eq!(bench.ask("e.example", "late"), "late: Offline");
    bench.now += Duration::from_millis(1);
    assert_eq!(bench.ask("e.example", "try"), "6 to 192.0.2.1 by Udp, 7 to 192.0.2.1 by Udp; try: Offline");
    assert_eq!(bench.ask("f.example", "late"), "late: Offline");
    assert_eq!(bench.received(6, "e.example", 2), "pass on failure to ");
    assert_eq!(bench.ask("f.example", "online"), "8 to 192.0.2.1 by Udp", "any answer ends it");
    assert_eq!(bench.received(8, "f.example", 0), "answer online");
}

#[test]
fn an_answer_or_another_server_ends_the_count_of_unanswered_queries() {
    let mut bench = bench(&["192.0.2.1"]);
    for flight in 1..=2 {
        bench.ask("a.example", "one");
        for _ in 0..ATTEMPTS {
            bench.timed_out(flight);
        }
    }
    bench.ask("a.example", "one");
    bench.received(3, "a.example", 0);
    bench.ask("a.example", "one");
    for _ in 0..ATTEMPTS {
        bench.timed_out(4);
    }
    assert_eq!(bench.ask("b.example", "two"), "5 to 192.0.2.1 by Udp");
    for flight in 5..=7 {
        bench.ask("b.example", "two");
        for _ in 0..ATTEMPTS {
            bench.timed_out(flight);
        }
    }
    for _ in 0..ATTEMPTS {
        bench.timed_out(8);
    }
    assert_eq!(bench.ask("c.example", "two"), "two: Offline");
    bench.forwarder.set_servers(vec!["192.0.2.9:53".parse().unwrap()]);
    assert!(bench.ask("c.example", "two").ends_with("to 192.0.2.9 by Udp"));
}

#[test]
fn a_pod_may_have_all_clients_that_wait_until_others_need_them() {
    let mut bench = bench(&["192.0.2.1"]);
    for number in 0..WAITING {
        assert!(bench.ask_from(&format!("n{number}.example"), "flood", 2).ends_with("by Udp"), "{number}");
    }
    assert_eq!(bench.ask_from("x.example", "flood", 2), "flood: TooMany");
    for number in 0..WAITING / 2 {
        let asked = bench.ask_from(&format!("m{number}.example"), "other", 3);
        assert!(asked.starts_with("fail flood, ") && asked.ends_with("by Udp"), "{number}: {asked}");
    }
    assert_eq!(bench.ask_from("y.example", "other", 3), "other: TooMany", "both have as many");
    assert_eq!(bench.ask_from("z.example", "third", 4), "fail other, 1537 to 192.0.2.1 by Udp", "the oldest");
    assert_eq!((bench.forwarder.clients, bench.forwarder.flights.len()), (WAITING, WAITING));
    // What is answered is free again, for whoever asks next.
    for number in 1..=100 {
        let flight = (WAITING + 1 + number) as u64;
        assert_eq!(bench.received(flight, &format!("m{number}.example"), 0), "answer other");
    }
    for number in 0..100 {
        assert!(bench.ask_from(&format!("o{number}.example"), "flood", 2).ends_with("by Udp"), "{number}");
    }
    assert!(
        bench.ask_from("p.example", "other", 3).starts_with("fail flood, "),
        "the shares are equal again"
    );
}

#[test]
fn clients_of_one_query_have_the_same_bound_and_lose_it_one_by_one() {
    let mut bench = bench(&["192.0.2.1"]);
    for number in 0..WAITING {
        let asked = bench.ask_from("a.example", if number == 0 { "first" } else { "flood" }, 2);
        assert_eq!(asked.ends_with("by Udp"), number == 0, "{asked}");
    }
    assert_eq!(bench.ask_from("a.example", "flood", 2), "flood: TooMany");
    assert_eq!(bench.ask_from("a.example", "other", 3), "fail first");
    assert_eq!(bench.ask_from("b.example", "third", 4), "fail flood, 2 to 192.0.2.1 by Udp");
    assert_eq!(bench.forwarder.clients, WAITING);
    let answered = bench.received(1, "a.example", 0);
    assert_eq!(answered, format!("answer {}other", "flood ".repeat(WAITING - 2)));
    assert_eq!(bench.received(2, "b.example", 0), "answer third");
    assert_eq!((bench.forwarder.clients, bench.forwarder.waiting.len()), (0, 0));
    assert!(bench.forwarder.flights.is_empty() && bench.forwarder.by_key.is_empty());
}

#[test]
fn a_smaller_bound_holds() {
    let mut bench = bench(&["192.0.2.1"]);
    bench.forwarder.bound = Forwarder::<()>::new(0).bound;
    assert!(bench.ask("a.example", "one").ends_with("by Udp"));
    assert_eq!(bench.ask("b.example", "one"), "one: TooMany");
    assert_eq!(bench.ask_from("c.example", "two", 3), "two: TooMany", "both would have one");
    assert_eq!(Forwarder::<()>::new(usize::MAX).bound, WAITING);
}

/// Random clients of a few pods, answers, silence and changes of the servers.
#[test]
fn whatever_happens_the_counts_are_right_and_every_client_has_one_end() {
    for seed in 0..200u64 {
        let mut bench = bench(&["192.0.2.1", "192.0.2.2"]);
        bench.forwarder.bound = 20;
        let (mut state, mut begun, mut ended) = (seed, 0, 0);
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let clients_in = |text: &str| text.matches("client").count();
        for _ in 0..500 {
            let flights: Vec<FlightId> = bench.forwarder.flights.keys().copied().collect();
            let flight = flights.get(random(flights.len().max(1) as u64) as usize).copied();
            let name = flight.map(|flight| bench.forwarder.flights[&flight].query.clone());
            let shown = match (random(10), flight) {
                (0..6, _) => {
                    begun += 1;
                    let pods = random(4) + 1;
                    let source = random(pods) as u8 + 2;
                    bench.ask_from(&format!("n{}.example", random(30)), "client", source)
                }
                (6, Some(flight)) => {
                    let mut answer = name.expect("there is one").forwarded(7);
                    answer[2] |= 0x80;
                    show(&bench.forwarder.received(flight, 7, &answer, 7))
                }
                (7, Some(flight)) => bench.timed_out(flight.0),
                (8, Some(flight)) => bench.unreachable(flight.0),
                (9, _) if random(8) == 0 => {
                    let server = format!("192.0.2.{}:53", random(5) + 1).parse().unwrap();
                    bench.forwarder.set_servers(vec![server]);
                    String::new()
                }
                _ => {
                    bench.now += Duration::from_secs(random(12));
                    String::new()
                }
            };
            ended += clients_in(&shown);
            let forwarder = &bench.forwarder;
            let of_flights: usize = forwarder.flights.values().map(|flight| flight.clients.len()).sum();
            assert_eq!(forwarder.clients, of_flights, "seed {seed}");
            assert_eq!(forwarder.waiting.values().sum::<usize>(), of_flights, "seed {seed}");
            assert_eq!(begun - ended, of_flights, "seed {seed}");
            assert!(forwarder.clients <= forwarder.bound, "seed {seed}");
            let can_be_joined = |(key, flight): (&Key, &FlightId)| {
                forwarder.flights.get(flight).is_some_and(|one| one.key == *key)
            };
            assert!(forwarder.by_key.iter().all(can_be_joined), "seed {seed}");
        }
        assert!(ended > 100, "seed {seed}: {ended} of {begun}");
    }
}

#[test]
fn an_answer_of_earlier_servers_is_for_those_who_asked_them_alone() {
    let mut bench = bench(&["192.0.2.1"]);
    for name in ["a.example", "b.example", "c.example"] {
        bench.ask(name, "early");
    }
    bench.forwarder.set_servers(vec!["192.0.2.9:53".parse().unwrap()]);
    assert_eq!(bench.ask("a.example", "late"), "4 to 192.0.2.9 by Udp", "a query of its own");
    let answer = response("a.example", Rtype::A, 0, A);
    for (flight, client, is_kept) in [(1, "early", false), (4, "late", true)] {
        match &bench.forwarder.received(FlightId(flight), 7, &answer, 7)[..] {
            [Action::Deliver { clients, key, response: Some(_), .. }] => {
                assert_eq!((&clients[..], key.is_some()), (&[client][..], is_kept));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bench.timed_out(2), "2 to 192.0.2.9 by Udp", "it continues with the new ones");
    // The silence of the earlier ones is not that of the new ones.
    for flight in [2, 3] {
        for _ in 0..ATTEMPTS {
            bench.timed_out(flight);
        }
    }
    assert_eq!(bench.forwarder.unanswered, 0);
    assert!(bench.forwarder.flights.is_empty());
}

#[test]
fn an_answer_of_earlier_servers_does_not_bring_the_board_online() {
    let mut bench = bench(&["192.0.2.1"]);
    bench.ask("early.example", "early");
    bench.forwarder.set_servers(vec!["192.0.2.9:53".parse().unwrap()]);
    for flight in 2..=4 {
        bench.ask("a.example", "one");
        for _ in 0..ATTEMPTS {
            bench.timed_out(flight);
        }
    }
    bench.received(1, "early.example", 0);
    for _ in 0..ATTEMPTS {
        bench.timed_out(5);
    }
    assert_eq!(bench.ask("b.example", "two"), "two: Offline");
}

#[test]
fn a_pod_that_asks_for_names_without_an_answer_does_not_take_the_board_offline() {
    let mut bench = bench(&["192.0.2.1"]);
    for flight in 1..=UNANSWERED.into() {
        bench.ask("hole.example", "hostile");
        for _ in 0..ATTEMPTS {
            bench.timed_out(flight);
        }
    }
    assert_eq!(bench.ask("a.example", "one"), "5 to 192.0.2.1 by Udp", "a probe is under way");
    let mut answer = PROBE.to_vec();
    (answer[1], answer[2]) = (7, 0x81);
    assert_eq!(show(&bench.forwarder.received(FlightId(4), 7, &answer, 7)), "answer ");
    assert_eq!(bench.ask("b.example", "two"), "6 to 192.0.2.1 by Udp");
    assert_eq!(bench.forwarder.unanswered, 0);
}

#[test]
fn a_query_that_cannot_be_sent_does_not_count_as_unanswered() {
    let mut bench = bench(&["192.0.2.1"]);
    for flight in 1..=10 {
        assert!(bench.ask("a.example", "one").ends_with("by Udp"));
        for _ in 0..ATTEMPTS {
            bench.unreachable(flight);
        }
    }
    assert_eq!(bench.forwarder.unanswered, 0);
    assert!(bench.ask("b.example", "two").ends_with("by Udp"));
}
