//! Timelines of a client and a server in simulated time, and messages of a hostile server.

use std::fmt::Write as _;

use super::*;

const HARDWARE: [u8; 6] = [2, 0, 0, 0, 0, 7];
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 1);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 50);

fn secs(seconds: u64) -> Time {
    Time::from_secs(seconds)
}

/// A server's response in bytes: kind, transaction, address, and the options after the message type.
fn answer(kind: u8, transaction: u32, address: Ipv4Addr, options: &[(u8, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; 240];
    bytes[..4].copy_from_slice(&[2, 1, 6, 0]);
    bytes[4..8].copy_from_slice(&transaction.to_be_bytes());
    bytes[16..20].copy_from_slice(&address.octets());
    bytes[28..34].copy_from_slice(&HARDWARE);
    bytes[236..].copy_from_slice(&[0x63, 0x82, 0x53, 0x63]);
    bytes.extend([53, 1, kind, 54, 4]);
    bytes.extend(SERVER.octets());
    for (kind, data) in options {
        bytes.extend([*kind, u8::try_from(data.len()).unwrap()]);
        bytes.extend(*data);
    }
    bytes.push(255);
    bytes
}

/// The behaviour of the simulated server.
#[derive(Clone, Copy)]
enum Server {
    Silent,
    /// Grants leases of this many seconds.
    Grants(u32),
    /// Offers, and rejects every request.
    Refuses,
    /// Rejects requests for addresses that it does not know, as after a move to another network.
    RefusesOldAddresses,
}

struct Sim {
    client: Client,
    now: Time,
    server: Server,
    trace: String,
}

impl Sim {
    fn new(server: Server) -> Sim {
        let client = Client::new(HARDWARE, "board", 7);
        Sim { client, now: Time::ZERO, server, trace: String::new() }
    }

    fn carrier(&mut self, up: bool) {
        writeln!(self.trace, "{:5}s carrier {}", self.now.as_secs(), if up { "on" } else { "off" }).unwrap();
        let before = self.client.lease().map(|lease| lease.address);
        self.client.carrier(self.now, up);
        self.note(before);
    }

    /// Records a lease that came or went.
    fn note(&mut self, before: Option<Ipv4Addr>) {
        let after = self.client.lease().map(|lease| lease.address);
        let at = self.now.as_secs();
        match (before, after) {
            (None, Some(address)) => writeln!(self.trace, "{at:5}s has {address}").unwrap(),
            (Some(_), None) => writeln!(self.trace, "{at:5}s has nothing").unwrap(),
            (Some(old), Some(new)) if old != new => writeln!(self.trace, "{at:5}s has {new}").unwrap(),
            _ => {}
        }
    }

    fn run_until(&mut self, end: Time) {
        for _ in 0..10_000 {
            match self.client.wake_at() {
                Some(at) if at <= end => self.now = self.now.max(at),
                _ => {
                    self.now = end;
                    return;
                }
            }
            self.turn();
        }
        panic!("the client spins:\n{}", self.trace);
    }

    fn turn(&mut self) {
        let before = self.client.lease().map(|lease| lease.address);
        let message = self.client.poll(self.now);
        self.note(before);
        let Some(Message { to, bytes }) = message else { return };
        let state = match self.client.state() {
            State::Selecting => "discover",
            State::Requesting { .. } => "request",
            State::Rebooting => "request again",
            State::Renewing => "renew",
            State::Rebinding => "rebind",
            State::Off | State::Bound => panic!("nothing is sent in {:?}", self.client.state()),
        };
        assert_eq!(to.is_some(), state == "renew");
        writeln!(self.trace, "{:5}s {state}", self.now.as_secs()).unwrap();
        let kind = bytes[242];
        let transaction = u32::from_be_bytes(bytes[4..8].try_into().unwrap());
        let lease =
            |seconds: u32| [(51, seconds.to_be_bytes()), (1, [255, 255, 255, 0]), (3, SERVER.octets())];
        let reply = match (self.server, kind) {
            (Server::Silent, _) => return,
            (Server::Grants(seconds), _) => {
                let options = lease(seconds);
                let options: Vec<(u8, &[u8])> =
                    options.iter().map(|(kind, data)| (*kind, &data[..])).collect();
                answer(if kind == 1 { 2 } else { 5 }, transaction, ADDRESS, &options)
            }
            (Server::RefusesOldAddresses | Server::Refuses, 1) => {
                answer(2, transaction, Ipv4Addr::new(10, 0, 0, 9), &[])
            }
            (Server::RefusesOldAddresses, _) if state == "request" => {
                answer(5, transaction, Ipv4Addr::new(10, 0, 0, 9), &[(51, &[0, 0, 14, 16])])
            }
            (Server::RefusesOldAddresses | Server::Refuses, _) => {
                answer(6, transaction, Ipv4Addr::UNSPECIFIED, &[])
            }
        };
        let before = self.client.lease().map(|lease| lease.address);
        self.client.receive(self.now, &reply);
        self.note(before);
    }
}

/// A client with a lease of `seconds`.
fn bound(seconds: u32) -> Sim {
    let mut sim = Sim::new(Server::Grants(seconds));
    sim.carrier(true);
    sim.run_until(secs(1));
    assert_eq!(sim.client.state(), State::Bound, "{}", sim.trace);
    sim.trace.clear();
    sim
}

#[test]
fn a_lease_is_had_at_once_and_renewed_when_half_of_it_is_over() {
    let mut sim = Sim::new(Server::Grants(3600));
    sim.run_until(secs(100));
    sim.carrier(true);
    sim.run_until(secs(4000));
    assert_eq!(
        sim.trace,
        "  100s carrier on\n  100s discover\n  100s request\n  100s has 192.168.1.50\n 1900s renew\n 3700s renew\n"
    );
    let lease = sim.client.lease().unwrap();
    assert_eq!((lease.prefix, lease.gateway, lease.expires), (24, Some(SERVER), Some(secs(3700 + 3600))));
}

#[test]
fn without_a_server_the_delays_grow_to_a_minute_and_differ_from_board_to_board() {
    let mut sim = Sim::new(Server::Silent);
    sim.carrier(true);
    sim.run_until(secs(3600));
    let times: Vec<u64> =
        sim.trace.lines().filter_map(|line| line.trim().strip_suffix("s discover")?.parse().ok()).collect();
    for (delay, expected) in times.windows(2).map(|two| two[1] - two[0]).zip([4, 8, 16, 32, 64, 64, 64]) {
        assert!(delay.abs_diff(expected) <= 2, "{times:?}");
    }
    assert!((55..65).contains(&times.len()), "{times:?}");
    let second = |seed: u64| {
        let mut client = Client::new(HARDWARE, "", seed);
        client.carrier(secs(0), true);
        assert!(client.poll(secs(0)).is_some());
        client.wake_at().unwrap()
    };
    assert_ne!(second(1), second(2));
}

#[test]
fn a_lease_is_renewed_then_rebound_and_the_address_is_removed_when_it_expires() {
    let mut sim = bound(3600);
    sim.server = Server::Silent;
    sim.run_until(secs(3605));
    assert_eq!(
        sim.trace,
        " 1800s renew\n 2475s renew\n 2812s renew\n 2981s renew\n 3065s renew\n 3125s renew\n 3150s rebind\n \
         3375s rebind\n 3487s rebind\n 3547s rebind\n 3600s has nothing\n 3600s discover\n 3604s discover\n"
    );
}

#[test]
fn an_address_survives_a_cable_unplugged_for_a_minute() {
    let mut sim = bound(3600);
    sim.carrier(false);
    sim.run_until(secs(60));
    sim.carrier(true);
    sim.run_until(secs(61));
    assert_eq!(sim.trace, "    1s carrier off\n   60s carrier on\n   60s request again\n");
    assert_eq!(sim.client.state(), State::Bound);
}

#[test]
fn a_cable_that_is_out_for_weeks_costs_nothing_and_begins_anew() {
    let mut sim = bound(3600);
    sim.carrier(false);
    sim.run_until(secs(1_814_400));
    assert_eq!(sim.client.wake_at(), None);
    sim.carrier(true);
    sim.run_until(secs(1_814_401));
    assert_eq!(
        sim.trace,
        "    1s carrier off\n 3600s has nothing\n1814400s carrier on\n1814400s discover\n1814400s request\n\
         1814400s has 192.168.1.50\n"
    );
}

#[test]
fn a_board_in_another_network_gets_another_address() {
    let mut sim = bound(3600);
    sim.carrier(false);
    sim.server = Server::RefusesOldAddresses;
    sim.run_until(secs(60));
    sim.carrier(true);
    sim.run_until(secs(61));
    assert_eq!(
        sim.trace,
        "    1s carrier off\n   60s carrier on\n   60s request again\n   60s has nothing\n   60s discover\n   \
         60s request\n   60s has 10.0.0.9\n"
    );
    assert_eq!(sim.client.lease().unwrap().prefix, 8, "of its class, as the server names none");
}

#[test]
fn an_unconfirmed_lease_is_kept_while_the_client_sends_discover() {
    let mut sim = bound(3600);
    sim.carrier(false);
    sim.server = Server::Silent;
    sim.run_until(secs(60));
    sim.carrier(true);
    sim.run_until(secs(100));
    let trace: Vec<&str> = sim.trace.lines().map(|line| line.split_once("s ").unwrap().1).collect();
    assert_eq!(
        trace[..6],
        ["carrier off", "carrier on", "request again", "request again", "request again", "discover"]
    );
    assert!(sim.client.lease().is_some());
    sim.server = Server::Grants(600);
    sim.run_until(secs(200));
    assert_eq!(sim.client.state(), State::Bound);
}

#[test]
fn requests_to_a_server_that_offers_and_refuses_slow_down() {
    let mut sim = Sim::new(Server::Refuses);
    sim.carrier(true);
    sim.run_until(secs(600));
    let discovers = sim.trace.matches("discover").count();
    assert!((5..20).contains(&discovers), "{}", sim.trace);
}

#[test]
fn valid_lease_times_of_a_server_are_used_and_invalid_ones_corrected() {
    for (lease, renew, rebind, expected) in [
        (1000u32, 100u32, 900u32, (100, 900, 1000)),
        (1000, 900, 100, (50, 100, 1000)),
        (1000, 0, 0, (500, 875, 1000)),
        (1000, 2000, 3000, (500, 875, 1000)),
        // A lease this short would keep the board busy.
        (1, 0, 0, (15, 26, 30)),
        (u32::MAX - 1, 0, 0, (2_147_483_647, 3_758_096_382, 4_294_967_294)),
    ] {
        let mut client = Client::new(HARDWARE, "", 7);
        client.carrier(secs(0), true);
        client.poll(secs(0)).unwrap();
        client.receive(secs(0), &answer(2, client.transaction, ADDRESS, &[]));
        client.poll(secs(0)).unwrap();
        let times = [(51, lease.to_be_bytes()), (58, renew.to_be_bytes()), (59, rebind.to_be_bytes())];
        let options: Vec<(u8, &[u8])> = times.iter().map(|(kind, data)| (*kind, &data[..])).collect();
        client.receive(secs(0), &answer(5, client.transaction, ADDRESS, &options));
        let bound = client.lease().unwrap();
        let seconds = |time: Option<Time>| time.unwrap().as_secs();
        let found = (seconds(bound.renew), seconds(bound.rebind), seconds(bound.expires));
        if renew > rebind {
            // The renewal time is then half of the lease or the rebinding time, whichever is earlier.
            assert_eq!((found.0 <= found.1, found.1, found.2), (true, expected.1, expected.2));
        } else {
            assert_eq!(found, expected, "{lease} {renew} {rebind}");
        }
    }
}

#[test]
fn a_lease_for_ever_is_never_renewed() {
    let sim = bound(u32::MAX);
    assert_eq!(sim.client.wake_at(), None);
}

#[test]
fn options_are_read_and_what_no_host_can_have_is_left_out() {
    let options: &[(u8, &[u8])] = &[
        (51, &[0, 0, 14, 16]),
        (1, &[255, 255, 240, 0]),
        (3, &[192, 168, 1, 1, 192, 168, 1, 2]),
        (6, &[0, 0, 0, 0, 9, 9, 9, 9, 8, 8, 8, 8, 7, 7, 7, 7, 6, 6, 6, 6]),
        (15, b"example.com\0"),
        (42, &[10, 0, 0, 1, 224, 0, 0, 1, 10, 0, 0, 2]),
        (121, &[0]),
    ];
    let reply = wire::read(&answer(5, 9, ADDRESS, options), 9, HARDWARE).unwrap();
    assert_eq!((reply.prefix, reply.router, reply.lease), (Some(20), Some(SERVER), Some(3600)));
    let addresses =
        |bytes: &[[u8; 4]]| bytes.iter().map(|octets| Ipv4Addr::from(*octets)).collect::<Vec<_>>();
    assert_eq!(reply.dns, addresses(&[[9; 4], [8; 4], [7; 4]]));
    assert_eq!(reply.ntp, addresses(&[[10, 0, 0, 1], [10, 0, 0, 2]]));
    assert_eq!(reply.domain.as_deref(), Some("example.com"));
    for wrong in [&b"a\nnameserver 6.6.6.6"[..], b"", b"a b", b"\xff"] {
        let reply = wire::read(&answer(5, 9, ADDRESS, &[(15, wrong), (1, &[255, 0, 255, 0])]), 9, HARDWARE);
        let reply = reply.unwrap();
        assert_eq!((reply.domain, reply.prefix), (None, None));
    }
    for address in [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 5], [255, 255, 255, 255]] {
        assert_eq!(wire::read(&answer(5, 9, address.into(), &[]), 9, HARDWARE).unwrap().address, None);
    }
    assert_eq!(wire::read(&answer(5, 8, ADDRESS, options), 9, HARDWARE), None);
    assert_eq!(wire::read(&answer(5, 9, ADDRESS, options), 9, [3; 6]), None);
}

#[test]
fn a_message_that_is_cut_or_changed_anywhere_is_survived() {
    let options: &[(u8, &[u8])] = &[
        (51, &[0, 0, 14, 16]),
        (1, &[255, 255, 255, 0]),
        (3, &SERVER.octets()),
        (6, &[9, 9, 9, 9, 8, 8, 8, 8]),
        (15, b"example.com"),
        (42, &[10, 0, 0, 1]),
        (58, &[0, 0, 1, 0]),
    ];
    let right = answer(5, 9, ADDRESS, options);
    for length in 0..right.len() {
        let _ = wire::read(&right[..length], 9, HARDWARE);
    }
    let mut random = Random::new(1);
    for _ in 0..200_000 {
        let mut bytes = right.clone();
        for _ in 0..1 + random.next() % 4 {
            let place = random.next() as usize % bytes.len();
            bytes[place] = random.next() as u8;
        }
        bytes.truncate(bytes.len() - random.next() as usize % 16);
        if let Some(reply) = wire::read(&bytes, 9, HARDWARE) {
            assert!(
                reply.dns.len() <= 3
                    && reply.ntp.len() <= 4
                    && reply.prefix.is_none_or(|prefix| prefix <= 32)
            );
        }
    }
}

#[test]
fn whatever_a_hostile_server_sends_the_client_neither_spins_nor_keeps_a_lease_that_is_over() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut client = Client::new(HARDWARE, "board", seed);
        let mut now = Time::ZERO;
        let mut messages = 0;
        while now < secs(4000) {
            match random.next() % 8 {
                0 => client.carrier(now, !random.next().is_multiple_of(4)),
                1 | 2 => now += Duration::from_millis(random.next() % 4000),
                3 => now = now.max(client.wake_at().unwrap_or(now)) + Duration::from_millis(1),
                _ => {
                    let lease = (random.next() as u32 % 100).to_be_bytes();
                    let address = if !random.next().is_multiple_of(4) {
                        ADDRESS
                    } else {
                        Ipv4Addr::from(random.next() as u32)
                    };
                    let kind = [2, 5, 6][random.next() as usize % 3];
                    client.receive(now, &answer(kind, client.transaction, address, &[(51, &lease)]));
                }
            }
            let mut at_once = 0;
            while client.poll(now).is_some() {
                at_once += 1;
                assert!(at_once < 3, "seed {seed}: the client spins");
            }
            messages += at_once;
            let expires = client.lease().and_then(|lease| lease.expires);
            assert!(expires.is_none_or(|expires| expires > now), "seed {seed}: the lease is over");
            if client.state() == State::Bound {
                assert!(client.lease().is_some(), "seed {seed}");
            }
        }
        assert!(messages > 0);
    }
}

#[test]
fn a_broadcast_is_a_packet_that_begins_with_the_right_headers() {
    let bytes = wire::broadcast(&[7; 300]);
    assert_eq!(bytes.len(), 328);
    assert_eq!((bytes[0], bytes[9], &bytes[12..20]), (0x45, 17, &[0, 0, 0, 0, 255, 255, 255, 255][..]));
    assert_eq!(bytes[20..26], [0, 68, 0, 67, 1, 52]);
    let sum = bytes[..20].chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum::<u32>();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum of the IP header");
}
