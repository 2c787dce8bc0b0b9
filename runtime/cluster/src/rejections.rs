//! Rejected pods of controllers: when the cluster learns of a rejection. A controller makes the next pod as soon as one
//! is `Failed`, and the scheduler, which does not know the reason, binds it to this node again. Pure.

use std::time::{Duration, Instant};

use nodlet_core::pod::REJECTED;
use nodlet_core::sorted::SortedMap;
use serde_json::Value;

/// The first and the longest round.
const ROUND: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// A controller without a rejection for this time after a round begins anew.
const QUIET: Duration = Duration::from_secs(600);

/// Controllers with rounds of their own. All further ones share one.
const MAX_CONTROLLERS: usize = 64;

/// The phase of a rejected pod that its controller does not replace yet.
pub(crate) const PENDING: &str = "Pending";

/// A time in which no further rejection of a controller's pods is reported.
#[derive(Clone, Copy, Debug)]
struct Round {
    until: Instant,
    length: Duration,
}

/// The rounds of all controllers, by UID.
#[derive(Debug, Default)]
pub struct Rejections {
    rounds: SortedMap<Box<str>, Round>,
}

impl Rejections {
    /// Until when the rejection of a pod of this controller is held back; `None`: it is reported now. `held`: the end of
    /// the round in which it was held back before. All that were held back in a round are reported at its end.
    pub fn hold(&mut self, controller: &str, held: Option<Instant>, now: Instant) -> Option<Instant> {
        if held.is_some_and(|until| now < until) {
            return held;
        }
        self.rounds.retain(|_, round| now < round.until + QUIET);
        let has_room = self.rounds.len() < MAX_CONTROLLERS;
        let key = if has_room || self.rounds.contains_key(controller) { controller } else { "" };
        let length = match self.rounds.get(key) {
            Some(round) if now < round.until => return held.is_none().then_some(round.until),
            Some(round) => (round.length * 2).min(ROUND.1),
            None => ROUND.0,
        };
        self.rounds.insert(key.into(), Round { until: now + length, length });
        None
    }
}

/// The UID of the controller that replaces a pod.
pub fn controller(pod: &Value) -> Option<&str> {
    let owners = pod["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|owner| owner["controller"] == true)?["uid"].as_str()
}

/// Whether this board rejected a pod, for a reason that the next one would meet, too. A node that is shutting down gets no
/// further pods, since it is not Ready.
pub fn is_rejected(local: &Value) -> bool {
    let status = &local["status"];
    let is_rejection = |message: &str| message.starts_with(REJECTED);
    status["phase"] == "Failed"
        && status["message"].as_str().is_some_and(is_rejection)
        && status["reason"] != "NodeShutdown"
}

/// A rejected pod as the cluster sees it until its rejection is reported: with reason and message, and a phase that makes
/// no controller replace it.
pub fn waiting(local: &Value) -> Value {
    let mut shown = local.clone();
    shown["status"]["phase"] = PENDING.into();
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_controller_that_makes_the_next_pod_at_once_makes_few() {
        let (start, mut rejections) = (Instant::now(), Rejections::default());
        let (mut reported, mut now, mut held) = (Vec::new(), start, None);
        while now < start + 3600 * SECOND {
            held = rejections.hold("a", held, now);
            match held {
                Some(until) => now = until,
                None => reported.push((now - start).as_secs()),
            }
        }
        assert_eq!(reported[..8], [0, 10, 30, 70, 150, 310, 610, 910]);
        assert_eq!(reported.len(), 16);
        // A quiet time begins anew: the round of the last report ends after 300 s.
        let later = start + Duration::from_secs(reported[15] + 300) + QUIET;
        assert_eq!(rejections.hold("a", None, later), None);
        assert_eq!(rejections.hold("a", None, later), Some(later + ROUND.0));
    }

    #[test]
    fn all_pods_of_a_round_are_reported_at_its_end_and_other_controllers_do_not_wait() {
        let (start, mut rejections) = (Instant::now(), Rejections::default());
        assert_eq!(rejections.hold("a", None, start), None);
        assert_eq!(rejections.hold("b", None, start), None);
        let end = Some(start + ROUND.0);
        for after in 0..3 {
            assert_eq!(rejections.hold("a", None, start + after * SECOND), end);
            assert_eq!(rejections.hold("a", end, start + after * SECOND), end);
        }
        let now = start + ROUND.0;
        for _ in 0..3 {
            assert_eq!(rejections.hold("a", end, now), None);
        }
        // The pods that replace them wait for the next round.
        assert_eq!(rejections.hold("a", None, now), Some(now + ROUND.0 * 2));
    }

    #[test]
    fn controllers_beyond_the_bound_share_one_round_and_quiet_ones_are_forgotten() {
        let (start, mut rejections) = (Instant::now(), Rejections::default());
        for controller in 0..MAX_CONTROLLERS {
            assert_eq!(rejections.hold(&controller.to_string(), None, start), None);
        }
        assert_eq!(rejections.hold("x", None, start), None);
        for controller in ["x", "y", "z"] {
            assert_eq!(rejections.hold(controller, None, start), Some(start + ROUND.0));
        }
        assert_eq!(rejections.rounds.len(), MAX_CONTROLLERS + 1);
        assert_eq!(rejections.hold("y", None, start + ROUND.0 + QUIET), None);
        assert_eq!(rejections.rounds.len(), 1);
    }

    #[test]
    fn rejections_and_controllers_are_told_from_others() {
        let pod = |phase: &str, reason: &str, message: &str| json!({ "status": { "phase": phase, "reason": reason, "message": message } });
        assert!(is_rejected(&pod(
            "Failed",
            "OutOfcpu",
            "Pod was rejected: Node didn't have enough resource"
        )));
        assert!(!is_rejected(&pod("Failed", "Evicted", "The node was low on resource: memory.")));
        assert!(!is_rejected(&pod("Failed", "NodeShutdown", "Pod was rejected: it is shutting down.")));
        assert!(!is_rejected(&pod("Running", "", "Pod was rejected: ")) && !is_rejected(&json!({})));
        let shown = waiting(&pod("Failed", "OutOfcpu", "Pod was rejected: why"));
        assert_eq!(shown, pod("Pending", "OutOfcpu", "Pod was rejected: why"));
        let owned = |owners: Value| json!({ "metadata": { "ownerReferences": owners } });
        let both = owned(json!([{ "uid": "owner" }, { "uid": "set", "controller": true }]));
        assert_eq!(controller(&both), Some("set"));
        assert_eq!(controller(&owned(json!([{ "uid": "owner", "controller": false }]))), None);
        assert_eq!(controller(&json!({})), None);
    }
}
