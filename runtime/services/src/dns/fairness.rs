//! Which queries are answered while more of them come than can be: one pod's flood must not starve others.
//!
//! As long as the socket's buffer is emptied from time to time, all are. From one such moment to the next, a client
//! gets [`BURST`] answers, which is more than the buffer has room for, and then at most one more than all others
//! together.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Answers for one client from one moment at which no query waits to the next.
const BURST: u32 = 2048;

/// Clients that are counted at a time. Others count as one.
const CLIENTS: usize = 256;

/// Counts of answers since no query waited.
#[derive(Debug, Default)]
pub struct Fairness {
    clients: BTreeMap<IpAddr, u32>,
    others: u32,
    all: u64,
}

impl Fairness {
    /// Whether the next query of this client is answered; otherwise it is dropped.
    pub fn admits(&mut self, client: IpAddr) -> bool {
        let is_full = self.clients.len() >= CLIENTS;
        let count = match self.clients.get_mut(&client) {
            Some(count) => count,
            None if is_full => &mut self.others,
            None => self.clients.entry(client).or_default(),
        };
        let others = self.all - u64::from(*count);
        let is_admitted = *count < BURST || u64::from(*count) <= others;
        if is_admitted {
            *count = count.saturating_add(1);
            self.all += 1;
        }
        is_admitted
    }

    /// No query waits any more.
    pub fn reset(&mut self) {
        if self.all > 0 {
            *self = Fairness::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    #[test]
    fn a_flood_is_cut_while_others_are_answered_and_ends_when_no_query_waits() {
        let mut fairness = Fairness::default();
        let answered = (0..100_000).filter(|_| fairness.admits(client(1))).count();
        assert_eq!(answered, BURST as usize);
        assert!((0..1000).all(|_| fairness.admits(client(2))), "others are answered");
        assert!(!fairness.admits(client(1)), "more than all others together");
        fairness.reset();
        assert!(fairness.admits(client(1)));
    }

    #[test]
    fn two_floods_share() {
        let mut fairness = Fairness::default();
        let mut answered = [0u32; 2];
        for _ in 0..100_000 {
            for number in [0, 1] {
                answered[usize::from(number)] += u32::from(fairness.admits(client(number)));
            }
        }
        assert!(answered[0].abs_diff(answered[1]) <= 1, "{answered:?}");
        assert!(answered[0] > 90_000, "neither starves the other: {answered:?}");
    }

    #[test]
    fn clients_beyond_the_count_share_one_burst() {
        let mut fairness = Fairness::default();
        let others =
            (0..100_000u32).filter(|number| fairness.admits(IpAddr::from((1 << 24 | number).to_be_bytes())));
        assert_eq!(others.count(), CLIENTS + BURST as usize);
    }
}
