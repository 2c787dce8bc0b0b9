//! The certificate of the kubelet's server: what of it the board keeps, and when another one is requested. Pure.

use std::time::{Duration, Instant};

use nodlet_kube::base64;
use nodlet_wire::tls::der::Certificate;
use nodlet_wire::tls::{ClientKey, pem};
use serde_json::{Value, json};

use crate::backoff::Backoff;
use crate::credentials::{Secret, rotation};

/// A certificate of the kubelet's server that the cluster has signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// The names and addresses for which it was requested.
    pub names: Vec<String>,
    /// The certificates (DER), the server's own first.
    pub certificates: Vec<Vec<u8>>,
    /// The key.
    pub key: Secret,
}

/// The names and addresses of a Node, for which its certificate is.
pub fn names(node: &Value) -> Vec<String> {
    let addresses = node["status"]["addresses"].as_array().into_iter().flatten();
    let mut names: Vec<String> =
        addresses.filter_map(|address| address["address"].as_str().map(str::to_owned)).collect();
    names.sort();
    names.dedup();
    names
}

impl Serving {
    /// The content of the file.
    pub fn to_json(&self) -> String {
        let object = json!({
            "names": self.names,
            "certificate": pem::encode_all(&self.certificates),
            "key": base64::encode(&self.key.0),
        });
        format!("{object:#}\n")
    }

    /// Reads the content of the file; `None` if it is of no use.
    pub fn from_json(text: &str) -> Option<Serving> {
        let object: Value = serde_json::from_str(text).ok()?;
        let names = object["names"].as_array()?.iter().filter_map(|name| name.as_str().map(str::to_owned));
        let certificates = pem::certificates(object["certificate"].as_str()?.as_bytes());
        let certificates = certificates.collect::<Result<Vec<_>, _>>().ok()?;
        Certificate::parse(certificates.first()?)?;
        let key = base64::decode(object["key"].as_str()?.as_bytes()).ok()?;
        ClientKey::from_bytes(&key)?;
        Some(Serving { names: names.collect(), certificates, key: Secret(key) })
    }

    /// When the certificate begins and ends to be valid, in seconds since 1970.
    pub fn validity(&self) -> Option<(i64, i64)> {
        let certificate = Certificate::parse(self.certificates.first()?)?;
        Some((certificate.not_before, certificate.not_after))
    }
}

/// The longest time between two requests for a certificate.
const LONGEST: Duration = Duration::from_secs(5 * 60);

/// The next step of the renewal of the certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Request a certificate.
    Request,
    /// Wait until then, or until the clock is set.
    Until(Instant),
    /// Wait until the clock shows this many seconds since 1970, or is set.
    Clock(i64),
    /// Wait until the server has a name: without one it needs no certificate, and would get one of a client.
    Name,
}

/// Decides when a certificate of the kubelet's server is requested. Times by the wall clock are in seconds since 1970.
#[derive(Debug)]
pub struct Renewal {
    /// When the certificate is to be replaced; `None` if none is signed for the present names.
    due: Option<i64>,
    has_names: bool,
    /// No request is made before.
    not_before: Option<Instant>,
    backoff: Backoff,
}

impl Renewal {
    /// There is no certificate.
    pub fn new() -> Renewal {
        Renewal { due: None, has_names: false, not_before: None, backoff: Backoff::up_to(LONGEST) }
    }

    /// Records the certificate that the board has kept: it is for these names. `random` is any number, as below.
    pub fn restore(&mut self, serving: &Serving, random: u16) {
        self.has_names = !serving.names.is_empty();
        self.due = serving.validity().map(|validity| rotation(validity, random));
    }

    /// Records that the server has other names.
    pub fn renamed(&mut self, names: &[String]) {
        (self.has_names, self.due) = (!names.is_empty(), None);
    }

    /// Records a new certificate, at this time by the wall clock.
    pub fn signed(&mut self, serving: &Serving, now: Instant, clock: i64, random: u16) {
        self.restore(serving, random);
        match self.due {
            Some(due) if clock < due => (self.backoff, self.not_before) = (Backoff::up_to(LONGEST), None),
            // One that is due at once is as good as none, and must not be requested without a pause.
            Some(_) | None => self.failed(now, random),
        }
    }

    /// Records that a request failed, or that nobody approved it.
    pub fn failed(&mut self, now: Instant, random: u16) {
        self.not_before = Some(now + self.backoff.failed(random));
    }

    /// Records that the clock was set: with a wrong clock, no connection to the cluster succeeds.
    pub fn clock_was_set(&mut self) {
        (self.backoff, self.not_before) = (Backoff::up_to(LONGEST), None);
    }

    /// Returns the step that is due at this time.
    pub fn next(&self, now: Instant, clock: i64) -> Next {
        match (self.has_names, self.due, self.not_before) {
            (false, _, _) => Next::Name,
            (true, Some(due), _) if clock < due => Next::Clock(due),
            (true, _, Some(at)) if now < at => Next::Until(at),
            (true, _, _) => Next::Request,
        }
    }
}

impl Default for Renewal {
    fn default() -> Self {
        Renewal::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Now, by the wall clock.
    const TODAY: i64 = 1_800_000_000;

    const DAY: i64 = 24 * 60 * 60;

    fn after(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// A certificate that is valid from now for this time.
    fn certificate(seconds: i64) -> Serving {
        let key = ClientKey::generate().expect("a key");
        let names = vec!["192.0.2.1".to_owned()];
        let certificate = key.self_signed("board", &names);
        // Its validity are an UTCTime, with a year of two digits, and a GeneralizedTime.
        let at = certificate.windows(2).position(|two| two == [0x17, 13]).expect("UTCTime");
        let mut changed = certificate.clone();
        let text = |seconds: i64| {
            let text = nodlet_core::time::Timestamp(seconds * 1_000_000_000).to_string();
            let digits: String = text.chars().filter(char::is_ascii_digit).take(14).collect();
            digits + "Z"
        };
        changed[at + 2..at + 15].copy_from_slice(&text(TODAY).as_bytes()[2..]);
        changed[at + 17..at + 32].copy_from_slice(text(TODAY + seconds).as_bytes());
        let serving = Serving { names, certificates: vec![changed], key: Secret(Vec::new()) };
        assert_eq!(serving.validity(), Some((TODAY, TODAY + seconds)));
        serving
    }

    #[test]
    fn a_certificate_is_requested_at_70_to_90_percent_of_its_life() {
        let (mut renewal, now) = (Renewal::new(), Instant::now());
        assert_eq!(renewal.next(now, TODAY), Next::Name, "the server has no name yet");
        renewal.renamed(&["192.0.2.1".to_owned()]);
        assert_eq!(renewal.next(now, TODAY), Next::Request);
        for (random, due) in [(0, 70), (u16::MAX / 2, 79), (u16::MAX, 90)] {
            renewal.signed(&certificate(100 * DAY), now, TODAY, random);
            let Next::Clock(at) = renewal.next(now, TODAY) else { panic!("it is signed") };
            assert_eq!((at - TODAY) / DAY, due);
            assert_eq!(renewal.next(now, at - 1), Next::Clock(at));
            assert_eq!(renewal.next(now, at), Next::Request);
        }
        // Another agent finds it.
        let mut renewal = Renewal::new();
        renewal.restore(&certificate(100 * DAY), 0);
        assert_eq!(renewal.next(now, TODAY), Next::Clock(TODAY + 70 * DAY));
        renewal.renamed(&["192.0.2.2".to_owned()]);
        assert_eq!(renewal.next(now, TODAY), Next::Request, "the address has changed");
        renewal.renamed(&[]);
        assert_eq!(renewal.next(now, TODAY), Next::Name);
    }

    #[test]
    fn requests_that_fail_back_off_up_to_minutes_until_one_succeeds() {
        let (mut renewal, start) = (Renewal::new(), Instant::now());
        renewal.renamed(&["192.0.2.1".to_owned()]);
        let (mut now, mut waits) = (start, Vec::new());
        for _ in 0..11 {
            assert_eq!(renewal.next(now, TODAY), Next::Request);
            renewal.failed(now, 0);
            let Next::Until(at) = renewal.next(now, TODAY) else { panic!("it waits") };
            waits.push((at - now).as_secs_f64());
            // Another address is no reason to ask a cluster that fails.
            renewal.renamed(&["192.0.2.2".to_owned()]);
            assert_eq!(renewal.next(at - after(0.001), TODAY), Next::Until(at));
            now = at;
        }
        assert_eq!(waits, [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 300.0, 300.0]);
        renewal.signed(&certificate(100), now, TODAY, 0);
        assert_eq!(renewal.next(now, TODAY + 70), Next::Request);
        renewal.failed(now, 0);
        assert_eq!(
            renewal.next(now, TODAY + 70),
            Next::Until(now + after(0.8)),
            "as after the first failure"
        );
    }

    #[test]
    fn certificates_that_are_due_at_once_are_not_requested_without_a_pause() {
        let (mut renewal, mut now) = (Renewal::new(), Instant::now());
        renewal.renamed(&["192.0.2.1".to_owned()]);
        // The clock is ahead of that of the cluster.
        let mut requests = 0;
        let end = now + after(3600.0);
        while now < end {
            match renewal.next(now, TODAY + DAY) {
                Next::Request => {
                    requests += 1;
                    renewal.signed(&certificate(3600), now, TODAY + DAY, u16::MAX);
                }
                Next::Until(at) => now = at,
                other => panic!("{other:?}"),
            }
        }
        assert!((10..25).contains(&requests), "{requests} requests in an hour");
    }

    #[test]
    fn a_clock_of_1970_delays_the_request_until_it_is_set() {
        let now = Instant::now();
        // With a certificate, which was signed before the reboot.
        let mut renewal = Renewal::new();
        renewal.restore(&certificate(DAY), 0);
        assert_eq!(renewal.next(now, 60), Next::Clock(TODAY + DAY / 10 * 7));
        renewal.clock_was_set();
        assert_eq!(renewal.next(now, TODAY + DAY), Next::Request);
        // Without one: the connection fails, until the clock is set.
        let mut renewal = Renewal::new();
        renewal.renamed(&["192.0.2.1".to_owned()]);
        for _ in 0..9 {
            renewal.failed(now, 0);
        }
        assert_eq!(renewal.next(now, 60), Next::Until(now + after(204.8)));
        renewal.clock_was_set();
        assert_eq!(renewal.next(now, TODAY), Next::Request);
    }

    #[test]
    fn the_file_is_read_as_it_was_written() {
        let key = ClientKey::generate().expect("a key");
        let names = names(&json!({ "status": { "addresses": [
            { "type": "InternalIP", "address": "192.0.2.1" }, { "type": "Hostname", "address": "board" },
            { "type": "ExternalIP", "address": "192.0.2.1" },
        ] } }));
        assert_eq!(names, ["192.0.2.1", "board"]);
        let serving = Serving {
            certificates: vec![key.self_signed("board", &names)],
            names,
            key: Secret(key.to_bytes().to_vec()),
        };
        let text = serving.to_json();
        assert_eq!(Serving::from_json(&text), Some(serving.clone()));
        assert_eq!(serving.validity(), Some((0, 253_402_300_799)));
        for (field, other) in [("names", json!(1)), ("certificate", json!("")), ("key", json!("c2VjcmV0"))] {
            let mut wrong: Value = serde_json::from_str(&text).expect("JSON");
            wrong[field] = other;
            assert_eq!(Serving::from_json(&wrong.to_string()), None, "{field}");
        }
    }
}
