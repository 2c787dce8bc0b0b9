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
    let mut forwarder = Forwarder::default();
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
fn one_pod_cannot_take_all_queries_in_flight() {
    let mut bench = bench(&["192.0.2.1"]);
    for number in 0..IN_FLIGHT {
        assert!(bench.ask_from(&format!("n{number}.example"), "flood", 2).ends_with("by Udp"));
    }
    assert_eq!(bench.ask_from("x.example", "flood", 2), "flood: TooMany");
    for number in 0..IN_FLIGHT / 2 {
        let asked = bench.ask_from(&format!("m{number}.example"), "other", 3);
        assert!(number == IN_FLIGHT / 2 || asked.starts_with("fail flood, "), "{number}: {asked}");
    }
    assert_eq!(bench.ask_from("y.example", "other", 3), "other: TooMany", "both have as many");
    assert!(bench.ask_from("z.example", "third", 4).starts_with("fail "));
    assert_eq!(bench.forwarder.flights.len(), IN_FLIGHT);
    for _ in 0..WAITING_OF_ONE {
        assert_eq!(bench.ask_from("z.example", "third", 4), "");
    }
    assert_eq!(bench.ask_from("z.example", "third", 4), "third: TooMany");
    assert_eq!(bench.ask_from("z.example", "fourth", 5), "");
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
