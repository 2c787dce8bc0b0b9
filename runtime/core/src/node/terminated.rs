//! Chooses the finished pods to remove when there are too many (`gcTerminated` of the pod garbage collector).

use super::Node;
use crate::facts::{PodIndex, PodPhase};
use crate::pod::PodState;
use crate::time::Moment;

impl Node {
    /// The finished pods that exceed the `kept` newest, of those that `may_go` allows to remove: evicted pods
    /// first, then the oldest.
    pub fn terminated_beyond(&self, kept: usize, may_go: impl Fn(&PodState) -> bool) -> Vec<PodIndex> {
        let is_finished = |pod: &&PodState| pod.has_terminal_phase() && !pod.is_unwanted();
        let mut over: Vec<&PodState> = self.pods().filter(is_finished).filter(|pod| may_go(pod)).collect();
        let beyond = over.len().saturating_sub(kept);
        if beyond == 0 {
            return Vec::new();
        }
        over.sort_by_key(|pod| (!was_evicted(pod), age_of(pod.start_time()), pod.pod().name.clone()));
        over.truncate(beyond);
        over.into_iter().map(PodState::index).collect()
    }
}

fn was_evicted(pod: &PodState) -> bool {
    let reason = pod.shown_terminal_phase().and_then(|terminal| terminal.reason.as_deref());
    pod.phase() == PodPhase::Failed && reason == Some("Evicted")
}

/// Sort key, oldest first: a time before this boot is older than any time since.
fn age_of(since: Moment) -> (bool, i64) {
    match since {
        Moment::Earlier(timestamp) => (false, timestamp.0),
        Moment::ThisBoot(instant) => (true, i64::try_from(instant.0).unwrap_or(i64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use crate::facts::*;
    use crate::node::*;
    use crate::sim::*;
    use crate::spec::RestartPolicy;
    use crate::time::{Moment, Timestamp};

    fn ended_record(reason: Option<&str>, start: Moment) -> Option<Box<Record>> {
        Some(Box::new(Record {
            phase: PodPhase::Failed,
            reason: reason.map(str::to_owned),
            start_time: Some(start),
            containers: vec![ContainerRecord {
                name: "app".into(),
                attempts: 1,
                ..ContainerRecord::default()
            }],
            ..Record::default()
        }))
    }

    #[test]
    fn evicted_pods_go_first_and_then_the_oldest() {
        let mut node = Node::new();
        let this_boot = |seconds| Moment::ThisBoot(at(seconds));
        for (name, reason, start) in [
            ("new", None, Some(this_boot(50))),
            ("evicted", Some("Evicted"), Some(this_boot(60))),
            ("before", None, Some(Moment::Earlier(Timestamp(9_000_000_000_000)))),
            ("old", None, Some(this_boot(10))),
            ("file", None, Some(this_boot(1))),
            ("runs", None, None),
        ] {
            let pod = std::rc::Rc::new(pod(RestartPolicy::Never).uid(name).named(name));
            let record = start.and_then(|start| ended_record(reason, start));
            node.observe(at(100), Observation::Wanted { pod, record, status: None });
        }
        let beyond = |node: &Node, kept| -> Vec<String> {
            let indexes = node.terminated_beyond(kept, |pod| &*pod.pod().name != "file");
            let name = |index| node.pod(index).expect("it is here").pod().name.to_string();
            indexes.into_iter().map(name).collect()
        };
        assert_eq!(beyond(&node, 4), [""; 0]);
        assert_eq!(beyond(&node, 3), ["evicted"]);
        assert_eq!(beyond(&node, 1), ["evicted", "before", "old"]);
        assert_eq!(beyond(&node, 0), ["evicted", "before", "old", "new"]);
        // A pod that is being removed does not count.
        node.observe(at(101), Observation::Unwanted { uid: "evicted".into(), grace: None });
        assert_eq!(beyond(&node, 2), ["before"]);
    }
}
