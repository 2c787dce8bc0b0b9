//! An SNTP client (RFC 4330) as a state machine that knows no clock and no socket. The crate sntpc validates
//! messages; this module decides which server to ask, when, and how to correct the clock.
//!
//! Until a server has responded, requests are repeated with a back-off from 4 s to 1024 s, each to the next
//! server. After that, the same server is asked every 1024 s. There is one pending request at a time.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sntpc::{NtpContext, NtpTimestampGenerator, NtpUdpSocket, SendRequestResult};

use super::random::Random;
use super::time::Time;

/// The delay between two requests to a server that responds.
pub(super) const POLL: Duration = Duration::from_secs(1024);

/// The timeout of a request; also the first delay of the back-off.
const PATIENCE: Duration = Duration::from_secs(4);

/// The longest accepted round trip: a later response is too inaccurate.
const LONGEST_ROUND_TRIP: Duration = Duration::from_secs(2);

/// The least offset for which the clock is stepped instead of slewed. The kernel slews half a millisecond a
/// second.
const STEP: Duration = Duration::from_millis(400);

/// The UDP port of NTP.
pub(super) const PORT: u16 = 123;

/// How to correct the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Correction {
    /// Add this many microseconds at once.
    Step(i64),
    /// Run the clock faster or slower until this many microseconds are made up for.
    Slew(i64),
}

/// The SNTP client of the board.
pub(super) struct Client {
    random: Random,
    servers: Vec<String>,
    /// The index of the server to ask.
    current: usize,
    /// Number of consecutive requests without a usable response.
    failures: u32,
    /// When the next request is due, or the pending one times out.
    next: Option<Time>,
    /// Whether a request is pending.
    waits: bool,
}

impl Client {
    pub(super) fn new(seed: u64) -> Client {
        Client {
            random: Random::new(seed),
            servers: Vec::new(),
            current: 0,
            failures: 0,
            next: None,
            waits: false,
        }
    }

    /// Sets the servers to ask, as addresses or names. An unchanged list has no effect.
    pub(super) fn set_servers(&mut self, now: Time, servers: Vec<String>) {
        if self.servers == servers {
            return;
        }
        *self = Client { servers, ..Client::new(self.random.next()) };
        self.next = (!self.servers.is_empty()).then_some(now);
    }

    /// Reports that the network came up: if no server has responded yet, a request becomes due now.
    pub(super) fn network_is_up(&mut self, now: Time) {
        if self.failures > 0 && !self.waits {
            self.failures = 1;
            self.next = Some(now);
        }
    }

    /// Whether a request is pending.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        self.next
    }

    /// The server to send a request to now, if one is due. Also ends a request that has timed out.
    pub(super) fn poll(&mut self, now: Time) -> Option<&str> {
        if self.next.is_none_or(|next| next > now) {
            return None;
        }
        if self.waits {
            self.failed(now);
            return None;
        }
        self.waits = true;
        self.next = Some(now + PATIENCE);
        self.servers.get(self.current).map(String::as_str)
    }

    /// Reports that the request got no usable response: the next server is asked after a delay.
    pub(super) fn failed(&mut self, now: Time) {
        self.waits = false;
        self.failures = self.failures.saturating_add(1);
        self.current = (self.current + 1) % self.servers.len().max(1);
        let delay = (PATIENCE * (1 << (self.failures - 1).min(8))).min(POLL);
        self.next = Some(now + delay + self.jitter(delay));
    }

    /// Processes the server's response. Returns the correction of the clock.
    pub(super) fn handle_response(&mut self, now: Time, answer: &Answer) -> Correction {
        self.waits = false;
        self.failures = 0;
        self.next = Some(now + POLL + self.jitter(POLL));
        if answer.offset.unsigned_abs() >= STEP.as_micros() as u64 {
            Correction::Step(answer.offset)
        } else {
            Correction::Slew(answer.offset)
        }
    }

    /// A random delay of up to a sixteenth, so that boards that are switched on together do not send requests
    /// together.
    fn jitter(&mut self, delay: Duration) -> Duration {
        Duration::from_millis(self.random.next() % (delay.as_millis() as u64 / 16 + 1))
    }
}

/// A time of the wall clock: seconds and microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WallTime {
    pub(super) seconds: u64,
    pub(super) micros: u32,
}

/// A request that was sent, for matching the response.
pub(super) struct Sent(SendRequestResult);

/// The contents of a valid response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// Offset of the server's clock from this board's, in microseconds.
    pub(super) offset: i64,
    pub(super) stratum: u8,
}

/// Makes the bytes of a request.
pub(super) fn request(now: WallTime) -> Option<([u8; 48], Sent)> {
    let buffer = Buffer(std::cell::Cell::new([0; 48]), 48);
    let sent = at_once(sntpc::sntp_send_request(NOBODY, &buffer, NtpContext { timestamp_gen: now }))?.ok()?;
    Some((buffer.0.get(), Sent(sent)))
}

/// Parses a response received at `now`. A time before `earliest`, in seconds, is rejected.
///
/// # Errors
/// Why the response cannot be used.
pub(super) fn read(bytes: &[u8], sent: Sent, now: WallTime, earliest: u64) -> Result<Answer, String> {
    let mut copy = [0; 48];
    let length = bytes.len().min(copy.len());
    copy[..length].copy_from_slice(&bytes[..length]);
    let buffer = Buffer(std::cell::Cell::new(copy), length);
    let context = NtpContext { timestamp_gen: now };
    let result = at_once(sntpc::sntp_process_response(NOBODY, &buffer, context, sent.0))
        .ok_or_else(|| "no answer".to_owned())?
        .map_err(|error| format!("{error:?}"))?;
    if result.roundtrip > LONGEST_ROUND_TRIP.as_micros() as u64 {
        return Err(format!("the response took {} ms", result.roundtrip / 1000));
    }
    // Far off, the computed offset belongs to another NTP era and does not match the time in the response.
    let corrected = i128::from(now.seconds) * 1_000_000 + i128::from(now.micros) + i128::from(result.offset);
    if result.seconds < earliest || corrected < i128::from(earliest) * 1_000_000 {
        return Err("the time is earlier than that of this image".to_owned());
    }
    Ok(Answer { offset: result.offset, stratum: result.stratum })
}

/// A placeholder address: the socket is connected to the server, so it receives from nobody else.
const NOBODY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), PORT);

/// The datagram that sntpc writes or reads.
struct Buffer(std::cell::Cell<[u8; 48]>, usize);

impl NtpUdpSocket for Buffer {
    async fn send_to(&self, bytes: &[u8], _: SocketAddr) -> sntpc::Result<usize> {
        self.0.set(bytes.try_into().map_err(|_| sntpc::Error::IncorrectPayload)?);
        Ok(bytes.len())
    }

    async fn recv_from(&self, bytes: &mut [u8]) -> sntpc::Result<(usize, SocketAddr)> {
        bytes.copy_from_slice(&self.0.get());
        Ok((self.1, NOBODY))
    }
}

impl NtpTimestampGenerator for WallTime {
    fn init(&mut self) {}

    fn timestamp_sec(&self) -> u64 {
        self.seconds
    }

    fn timestamp_subsec_micros(&self) -> u32 {
        self.micros
    }
}

/// The result of a future that never waits.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: WallTime = WallTime { seconds: 1_800_000_000, micros: 250_000 };
    const EARLIEST: u64 = 1_700_000_000;

    /// A valid response to a request, from a server whose clock is `offset` seconds ahead.
    fn answer(request: &[u8; 48], offset: i64) -> [u8; 48] {
        let mut bytes = [0; 48];
        bytes[..4].copy_from_slice(&[0x24, 2, 6, 0xec]);
        bytes[24..32].copy_from_slice(&request[40..48]);
        let seconds = (NOW.seconds as i64 + offset + 2_208_988_800) as u32;
        for place in [32, 40] {
            bytes[place..place + 4].copy_from_slice(&seconds.to_be_bytes());
            bytes[place + 4..place + 8].copy_from_slice(&0x4000_0000u32.to_be_bytes());
        }
        bytes
    }

    fn read_changed(change: impl FnOnce(&mut [u8; 48])) -> Result<Answer, String> {
        let (bytes, sent) = request(NOW).unwrap();
        let mut bytes = answer(&bytes, 3600);
        change(&mut bytes);
        read(&bytes, sent, NOW, EARLIEST)
    }

    #[test]
    fn a_response_yields_the_offset_of_the_clock() {
        let right = read_changed(|_| {}).unwrap();
        assert!(right.offset.abs_diff(3_600_000_000) < 10, "{right:?}");
        assert_eq!(right.stratum, 2);
        // A board in 1970 and its server in 2027 are about as far apart as NTP's seconds can represent.
        let begin = WallTime { seconds: 5, micros: 0 };
        let (bytes, sent) = request(begin).unwrap();
        let far = read(&answer(&bytes, 0), sent, begin, EARLIEST).unwrap();
        assert!(far.offset.abs_diff((1_800_000_000 - 5) * 1_000_000 + 250_000) < 10, "{far:?}");
    }

    #[test]
    fn an_implausible_time_response_is_rejected() {
        for (what, changed) in [
            ("IncorrectOriginTimestamp", read_changed(|bytes| bytes[24] ^= 1)),
            ("IncorrectMode", read_changed(|bytes| bytes[0] = 0x23)),
            ("UnsynchronizedClock", read_changed(|bytes| bytes[0] |= 0xc0)),
            ("KissOfDeath", read_changed(|bytes| bytes[1] = 0)),
            ("IncorrectStratumHeaders", read_changed(|bytes| bytes[1] = 16)),
            ("ExcessiveRootDistance", read_changed(|bytes| bytes[8] = 1)),
            ("InvalidTimestamp", read_changed(|bytes| bytes[40..].fill(0))),
            ("earlier than that of this image", {
                let (bytes, sent) = request(NOW).unwrap();
                read(&answer(&bytes, -200_000_000), sent, NOW, EARLIEST)
            }),
            // The year 2100, which in NTP's 32 bits of seconds is nearer to the past.
            ("earlier than that of this image", {
                let (bytes, sent) = request(NOW).unwrap();
                read(&answer(&bytes, 2_302_444_800), sent, NOW, EARLIEST)
            }),
            ("the response took 3000 ms", {
                let (bytes, sent) = request(NOW).unwrap();
                let later = WallTime { seconds: NOW.seconds + 3, ..NOW };
                read(&answer(&bytes, 0), sent, later, EARLIEST)
            }),
        ] {
            let Err(why) = changed else { panic!("{what} is accepted") };
            assert!(why.contains(what), "{why}, not {what}");
        }
        for length in 0..48 {
            let (bytes, sent) = request(NOW).unwrap();
            assert!(read(&answer(&bytes, 0)[..length], sent, NOW, EARLIEST).is_err(), "{length}");
        }
    }

    #[test]
    fn a_small_offset_is_slewed_and_a_large_one_stepped() {
        let mut client = Client::new(1);
        client.set_servers(Time::ZERO, vec!["a".to_owned()]);
        for (offset, expected) in [
            (399_999, Correction::Slew(399_999)),
            (-399_999, Correction::Slew(-399_999)),
            (400_000, Correction::Step(400_000)),
            (i64::MIN, Correction::Step(i64::MIN)),
        ] {
            assert_eq!(client.handle_response(Time::ZERO, &Answer { offset, stratum: 1 }), expected);
        }
    }

    /// The times and servers of a client's requests within two hours; `answers` decides which server
    /// responds.
    fn requests(servers: &[&str], answers: fn(&str) -> bool) -> Vec<(u64, String)> {
        let mut client = Client::new(1);
        client.set_servers(Time::ZERO, servers.iter().map(|server| (*server).to_owned()).collect());
        let mut found = Vec::new();
        while let Some(now) = client.wake_at().filter(|now| *now < Duration::from_secs(7200)) {
            let Some(server) = client.poll(now).map(str::to_owned) else { continue };
            if answers(&server) {
                client.handle_response(now, &Answer { offset: 0, stratum: 1 });
            }
            found.push((now.as_secs(), server));
        }
        found
    }

    #[test]
    fn a_responsive_time_server_is_polled_every_seventeen_minutes() {
        let found = requests(&["a", "b"], |_| true);
        assert!(found.iter().all(|(_, server)| server == "a"), "{found:?}");
        assert_eq!(found.len(), 7, "{found:?}");
    }

    #[test]
    fn after_a_silent_time_server_the_next_is_polled_and_retries_slow_down() {
        let found = requests(&["a", "b"], |server| server == "b");
        assert_eq!(found[..2].iter().map(|(_, server)| server.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(found[1].0 < 10 && found[2..].iter().all(|(_, server)| server == "b"), "{found:?}");
        let found = requests(&["a"], |_| false);
        assert!((10..20).contains(&found.len()), "{found:?}");
    }

    #[test]
    fn a_network_that_comes_up_is_used_at_once() {
        let mut client = Client::new(1);
        assert_eq!(client.wake_at(), None);
        client.set_servers(Time::ZERO, vec!["a".to_owned()]);
        let mut now = Time::ZERO;
        while now < Duration::from_secs(3600) {
            client.poll(now);
            now = client.wake_at().unwrap();
        }
        client.failed(now);
        assert!(client.wake_at().unwrap() > now + Duration::from_secs(1000));
        client.network_is_up(now);
        assert_eq!(client.poll(now), Some("a"));
        client.handle_response(now, &Answer { offset: 0, stratum: 1 });
        client.network_is_up(now);
        assert!(client.wake_at().unwrap() >= now + POLL);
        client.set_servers(now, Vec::new());
        assert_eq!(client.wake_at(), None);
    }
}
