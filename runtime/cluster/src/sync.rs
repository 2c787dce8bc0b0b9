//! Periodic synchronisation: when a board that is mostly offline connects, and for how long. Pure.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::backoff::jitter;

/// The consequences of `--sync-every` for a board that joins a cluster, as a text for its user.
pub const MEANING: &str = "with --sync-every, the board connects only now and then: between, the cluster shows the Node \
    as NotReady, and deletes its pods after 300 s unless they tolerate node.kubernetes.io/unreachable:NoExecute without \
    tolerationSeconds";

/// A visit that had news lasts until this time has passed without further news, such as the status of a new pod.
const QUIET: Duration = Duration::from_secs(20);

/// The longest visit.
const LONGEST: Duration = Duration::from_secs(300);

/// The shortest and the longest back-off after failed attempts, without their random parts.
const RETRY: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(1800));

/// The flags `--sync-every` and `--sync-jitter` of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periodic {
    /// The time between the beginnings of two visits.
    pub every: Duration,
    /// At most this much is added to it, so that boards do not connect at the same moment.
    pub jitter: Duration,
}

impl Periodic {
    /// When the visit after one that began at `began` begins; `random` is any number.
    pub fn next(&self, began: Instant, random: u16) -> Instant {
        began + self.every + jitter(self.jitter, random)
    }

    /// The longest back-off between attempts: a quarter of the interval, within limits.
    pub(crate) fn longest_backoff(&self) -> Duration {
        (self.every / 4).clamp(RETRY.0, RETRY.1)
    }
}

/// One connection to the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Visit {
    began: Instant,
    /// The last news.
    news: Option<Instant>,
}

impl Visit {
    /// A visit without news yet.
    pub fn new(began: Instant) -> Visit {
        Visit { began, news: None }
    }

    /// Records that something was sent or taken, besides the state of the node.
    pub fn has_news(&mut self, now: Instant) {
        self.news = Some(now);
    }

    /// When the visit ends: at once without news.
    pub(crate) fn ends_at(&self) -> Instant {
        self.news.map_or(self.began, |news| news + QUIET).min(self.began + LONGEST)
    }
}

/// Whether a pod stays in the cluster however long its node is unreachable: it tolerates the taint
/// `node.kubernetes.io/unreachable` with the effect `NoExecute` without a limit of time.
pub fn stays_while_unreachable(pod: &Value) -> bool {
    const TAINT: &str = "node.kubernetes.io/unreachable";
    pod["spec"]["tolerations"].as_array().into_iter().flatten().any(|toleration| {
        let is_key = match toleration["key"].as_str() {
            None | Some("") => toleration["operator"] == "Exists",
            Some(key) => {
                key == TAINT
                    && (toleration["operator"] == "Exists"
                        || toleration["value"].as_str().unwrap_or_default().is_empty())
            }
        };
        let is_effect = matches!(toleration["effect"].as_str(), None | Some("" | "NoExecute"));
        is_key && is_effect && toleration["tolerationSeconds"].is_null()
    })
}

#[cfg(test)]
mod tests {
    use nodlet_fuzz::cases;
    use serde_json::json;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_board_connects_once_per_interval_at_a_random_moment_of_the_jitter() {
        let periodic = Periodic { every: 6 * HOUR, jitter: Duration::from_secs(600) };
        let start = Instant::now();
        assert_eq!(periodic.next(start, 0), start + 6 * HOUR);
        assert_eq!(periodic.next(start, u16::MAX), start + 6 * HOUR + Duration::from_secs(600));
        assert_eq!(periodic.longest_backoff(), HOUR / 2);
        let often = Periodic { every: Duration::from_secs(60), ..periodic };
        assert_eq!(often.longest_backoff(), Duration::from_secs(30));
        // A week of visits that take two minutes each: the interval is from beginning to beginning.
        let (mut now, mut visits) = (start, 0);
        while now < start + 24 * 7 * HOUR {
            visits += 1;
            now = periodic.next(now, 0);
        }
        assert_eq!(visits, 28);
    }

    #[test]
    fn a_visit_ends_at_once_without_news_and_otherwise_when_it_is_quiet_or_too_long() {
        let start = Instant::now();
        let mut visit = Visit::new(start);
        assert_eq!(visit.ends_at(), start);
        visit.has_news(start + Duration::from_secs(2));
        assert_eq!(visit.ends_at(), start + Duration::from_secs(22));
        let mut now = start;
        while now < visit.ends_at() {
            visit.has_news(now);
            now += Duration::from_secs(10);
        }
        assert_eq!(now, start + LONGEST);
    }

    #[test]
    fn only_a_toleration_without_a_limit_keeps_a_pod_of_an_unreachable_node() {
        for [tolerations, expected] in cases(
            r#"
                [] => false
                [{"operator": "Exists"}] => true
                [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}] => true
                [{"key": "node.kubernetes.io/unreachable"}] => true
                [{"key": "node.kubernetes.io/unreachable", "value": "x"}] => false
                [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]
                    => false
                [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoSchedule"}] => false
                [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}] => false
            "#,
        ) {
            let tolerations: Value = serde_json::from_str(tolerations).expect("JSON");
            let expected = expected == "true";

            let pod = json!({ "spec": { "tolerations": tolerations } });
            assert_eq!(stays_while_unreachable(&pod), expected, "{pod}");
        }
        assert!(!stays_while_unreachable(&json!({})));
    }
}
