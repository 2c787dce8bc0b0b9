//! Judges the checks of an agent on trial: whether its update is kept, given up, or still on trial. Pure.

use std::time::{Duration, Instant};

use super::super::state::{Before, STARTS};
use crate::board_json::Rules;

/// The least time for which an agent must be unhealthy to count as hung.
const HUNG: Duration = Duration::from_secs(45);

/// The longest time for which the pods may start after a reboot, however long they needed before.
const LONGEST_START: Duration = Duration::from_secs(15 * 60);

/// For how long unready pods are no reason to give up the update: no time in the boot in which it was installed,
/// since the pods ran on; else twice what the slowest pod needed before the update.
pub(super) fn starting(before: &Before, boot: &str) -> Duration {
    if before.boot == boot {
        return Duration::ZERO;
    }
    Duration::from_secs(before.slowest_start.saturating_mul(2)).min(LONGEST_START)
}

/// The longest time of one start of a trial in which an update is neither kept nor given up.
fn longest_of_start(healthy_after: Duration, starting: Duration) -> Duration {
    (HUNG + healthy_after) * 4 + starting
}

/// How long all starts of a trial may take, without the reboots between them.
pub(in crate::system) fn longest(rules: &Rules) -> Duration {
    let healthy_after = Duration::from_secs(rules.healthy_after);
    (longest_of_start(healthy_after, LONGEST_START) + healthy_after) * STARTS
}

/// The result of one check.
#[derive(Debug)]
pub(super) enum Health {
    Good,
    /// The agent does not respond, or its loop does not turn.
    AgentFailed(String),
    /// The agent is well, and a pod that was ready before is not.
    PodsNotReady(String),
}

/// The state of the checks of an agent on trial.
pub(super) struct Watch {
    begun: Instant,
    healthy_after: Duration,
    /// For how long after the start pods may become ready.
    starting: Duration,
    /// Since when every check has succeeded.
    good_since: Option<Instant>,
    last_good: Instant,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Wait,
    Keep,
    GoBack(String),
}

impl Watch {
    pub(super) fn new(now: Instant, healthy_after: Duration, starting: Duration) -> Watch {
        Watch { begun: now, healthy_after, starting, good_since: None, last_good: now }
    }

    pub(super) fn observe(&mut self, now: Instant, health: Health) -> Decision {
        match health {
            Health::Good => {
                let since = *self.good_since.get_or_insert(now);
                self.last_good = now;
                if now - since >= self.healthy_after {
                    return Decision::Keep;
                }
            }
            Health::PodsNotReady(_) if now - self.begun < self.starting => {
                self.good_since = None;
                self.last_good = now;
            }
            Health::AgentFailed(why) | Health::PodsNotReady(why) => {
                self.good_since = None;
                if now - self.last_good >= HUNG.max(self.healthy_after) {
                    let why = why.trim_start_matches("error: ");
                    return Decision::GoBack(format!("its agent was not healthy: {why}"));
                }
            }
        }
        // An agent that is healthy only now and then is given up.
        if self.good_since.is_none()
            && now - self.begun >= longest_of_start(self.healthy_after, self.starting)
        {
            return Decision::GoBack("it was never healthy for long enough".into());
        }
        Decision::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The second at which the decision is reached, with one check a second, and the decision.
    fn judge_starting(
        healthy_after: u32,
        starting: u32,
        health: impl Fn(u32) -> Result<(), Health>,
    ) -> (u32, Decision) {
        let begun = Instant::now();
        let mut watch = Watch::new(begun, SECOND * healthy_after, SECOND * starting);
        let judged = (1..10_000).find_map(|second| {
            let health = health(second).err().unwrap_or(Health::Good);
            let decision = watch.observe(begun + SECOND * second, health);
            (decision != Decision::Wait).then_some((second, decision))
        });
        judged.expect("each trial ends")
    }

    fn judge(healthy_after: u32, health: impl Fn(u32) -> bool) -> (u32, Decision) {
        let hangs = || Health::AgentFailed("error: it hangs".to_owned());
        judge_starting(healthy_after, 0, |second| health(second).then_some(()).ok_or_else(hangs))
    }

    #[test]
    fn after_a_reboot_pods_have_twice_the_time_that_they_needed_before() {
        let before = Before { boot: "first".into(), slowest_start: 90, ..Before::default() };
        assert_eq!(starting(&before, "first"), Duration::ZERO);
        assert_eq!(starting(&before, "second"), SECOND * 180);
        let endless = Before { slowest_start: u64::MAX, ..before };
        assert_eq!(starting(&endless, "second"), LONGEST_START);

        let ready_after = |ready: u32| {
            move |second: u32| {
                if second > ready {
                    Ok(())
                } else {
                    Err(Health::PodsNotReady("error: pod default/web is not ready".to_owned()))
                }
            }
        };
        let unready = || Decision::GoBack("its agent was not healthy: pod default/web is not ready".into());
        // The pod needs longer than `healthy-after`.
        assert_eq!(judge_starting(60, 180, ready_after(100)), (161, Decision::Keep));
        assert_eq!(judge_starting(60, 0, ready_after(100)), (60, unready()));
        // The pod never becomes ready.
        assert_eq!(judge_starting(60, 180, ready_after(9999)), (239, unready()));
        // An agent that hangs is given up as soon as ever.
        let hangs = judge_starting(10, 180, |_| Err(Health::AgentFailed("it hangs".to_owned())));
        assert_eq!(hangs, (45, Decision::GoBack("its agent was not healthy: it hangs".into())));
        let flaps = judge_starting(60, 180, |second| {
            if second % 30 < 20 { Ok(()) } else { Err(Health::PodsNotReady("it is not ready".to_owned())) }
        });
        assert!(SECOND * flaps.0 <= longest_of_start(SECOND * 60, SECOND * 180) + SECOND * 30, "{flaps:?}");
    }

    #[test]
    fn a_healthy_agent_is_kept_and_one_that_hangs_is_not() {
        let hangs = || Decision::GoBack("its agent was not healthy: it hangs".into());
        assert_eq!(judge(60, |_| true), (61, Decision::Keep));
        assert_eq!(judge(60, |second| second > 20), (81, Decision::Keep));
        assert_eq!(judge(10, |_| false), (45, hangs()));
        assert_eq!(judge(60, |_| false), (60, hangs()));
        // The agent hangs after a while.
        assert_eq!(judge(60, |second| second < 40), (99, hangs()));
        // The agent recovers.
        assert_eq!(judge(60, |second| !(30..60).contains(&second)), (120, Decision::Keep));
        // The agent never stays healthy.
        let flaps = judge(60, |second| second % 30 < 20);
        assert!(flaps.0 >= 420 && flaps.1 == Decision::GoBack("it was never healthy for long enough".into()));
    }
}
