//! When the conditions of the Node took their present status, over the agents of one boot. Pure.

use nodlet_core::time::Instant;
use serde::{Deserialize, Serialize};

/// A condition: its type, whether it is true, and since when.
type Condition = (String, bool, Instant);

/// The conditions of the Node, as they were published last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transitions {
    /// The boot whose times these are.
    boot_id: String,
    conditions: Vec<Condition>,
}

impl Transitions {
    /// What an earlier agent left, if that was in this boot.
    pub fn of_boot(boot_id: &str, left: Option<Transitions>) -> Transitions {
        let none = || Transitions { boot_id: boot_id.to_owned(), conditions: Vec::new() };
        left.filter(|left| left.boot_id == boot_id).unwrap_or_else(none)
    }

    /// Since when a condition has this status: `since`, unless it was published with it before.
    pub fn since(&mut self, kind: &str, is_true: bool, since: Instant) -> Instant {
        match self.conditions.iter_mut().find(|(known, ..)| known == kind) {
            Some((_, was_true, known)) if *was_true == is_true => return *known,
            Some((_, was_true, known)) => (*was_true, *known) = (is_true, since),
            None => self.conditions.push((kind.to_owned(), is_true, since)),
        }
        since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_keeps_its_time_under_the_next_agent_of_the_boot_until_it_changes() {
        let mut first = Transitions::of_boot("boot", None);
        assert_eq!(first.since("Ready", true, Instant(1)), Instant(1));
        assert_eq!(first.since("MemoryPressure", false, Instant(1)), Instant(1));
        let left = serde_json::to_vec(&first).expect("JSON");
        let left: Transitions = serde_json::from_slice(&left).expect("the same");
        let mut next = Transitions::of_boot("boot", Some(left.clone()));
        assert_eq!(next.since("Ready", true, Instant(5)), Instant(1));
        assert_eq!(next.since("MemoryPressure", true, Instant(6)), Instant(6));
        assert_eq!(next.since("MemoryPressure", false, Instant(9)), Instant(9));
        assert_eq!(next.since("Ready", true, Instant(9)), Instant(1));
        let mut after_reboot = Transitions::of_boot("another", Some(left));
        assert_eq!(after_reboot.since("Ready", true, Instant(3)), Instant(3));
    }
}
