//! Clients that repeat a query which has just failed. The C library musl does so at once after `SERVFAIL`, in the same
//! words from the same port, and after that waits for its whole time of 5 s, whatever error it gets by UDP; by TCP, one
//! error ends its query (`res_msend.c`). So a repeated query is answered as truncated, which leads it there. Other
//! resolvers (glibc, Go) use another port or ID for each query, and never get such an answer.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

/// Failures that are remembered.
const FAILURES: usize = 256;

/// Time after which the same port and ID are another query.
const SOON: Duration = Duration::from_secs(1);

/// The latest failures, each with its client and the ID of the query.
#[derive(Debug, Default)]
pub struct Repeats(VecDeque<(Duration, SocketAddr, u16)>);

impl Repeats {
    /// Records that the query of a client with this ID fails now. Returns whether the same one has just failed before.
    pub fn fail(&mut self, now: Duration, client: SocketAddr, id: u16) -> bool {
        while self.0.front().is_some_and(|(at, ..)| now.saturating_sub(*at) > SOON) {
            self.0.pop_front();
        }
        let is_repeated = self.0.iter().any(|(_, of, known)| *of == client && *known == id);
        if !is_repeated {
            if self.0.len() == FAILURES {
                self.0.pop_front();
            }
            self.0.push_back((now, client, id));
        }
        is_repeated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_repeated_if_its_client_its_id_and_its_time_are_the_same() {
        let mut repeats = Repeats::default();
        let client = |port| SocketAddr::from(([10, 88, 0, 2], port));
        let now = Duration::from_secs(100);
        assert!(!repeats.fail(now, client(1000), 7));
        assert!(!repeats.fail(now, client(1000), 8), "another ID");
        assert!(!repeats.fail(now, client(1001), 7), "another port");
        assert!(repeats.fail(now + SOON, client(1000), 7));
        assert!(repeats.fail(now + SOON, client(1000), 8));
        assert!(!repeats.fail(now + SOON * 2, client(1000), 7), "long ago");
    }

    #[test]
    fn a_flood_of_failures_is_forgotten() {
        let mut repeats = Repeats::default();
        let client = SocketAddr::from(([10, 88, 0, 2], 1000));
        for id in 0..10_000 {
            assert!(!repeats.fail(Duration::ZERO, client, id));
            assert!(repeats.0.len() <= FAILURES);
        }
        assert!(repeats.fail(Duration::ZERO, client, 9_999));
        assert!(!repeats.fail(Duration::ZERO, client, 0), "displaced");
    }
}
