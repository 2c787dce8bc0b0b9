//! The observations that the simulated engine reports to the core, and their replay to another core.

use super::Sim;
use crate::facts::*;
use crate::node::*;
use crate::replay::Replayer;

impl Sim {
    /// Reports an observation at once.
    pub(super) fn observe(&mut self, seen: Observation) {
        match &seen {
            Observation::Wanted { pod, .. } => self.recorded_pods.push(pod.clone()),
            Observation::Found(found) => self.recorded_pods.push(found.pod.clone()),
            _ => {}
        }
        let goes_by_itself = match &seen {
            Observation::Of(
                _,
                PodObservation::ClientConditions { .. } | PodObservation::SandboxLost { .. },
            ) => false,
            Observation::Of(..) => true,
            _ => false,
        };
        if !goes_by_itself {
            self.pods.iter_mut().for_each(|world| world.wear.forget());
        }
        self.ring.observed(self.now, &self.node, &seen, None);
        self.keep_recorded();
        self.node.observe(self.now, seen);
    }

    /// Keeps all lines of the ring, which itself keeps only the latest.
    pub(super) fn keep_recorded(&mut self) {
        let next = self.recorded.last().map_or(0, |(number, ..)| number + 1);
        let new = self.ring.since(next).map(|(number, line)| (number, line.at, line.entry.clone()));
        self.recorded.extend(new);
    }

    /// Replays this agent's observations to another core, which must plan the same actions.
    pub(crate) fn replay(&mut self) -> &mut Self {
        self.ring = Ring::default();
        let (mut replayer, mut pods) =
            (Replayer::default(), std::mem::take(&mut self.recorded_pods).into_iter());
        for (number, at, entry) in std::mem::take(&mut self.recorded) {
            // As `nodlet ring -o json` prints it.
            let text = serde_json::to_string(&entry).expect("an entry is JSON");
            let entry = serde_json::from_str(&text).expect(&text);
            let recorded =
                replayer.entry(number, at, entry, |_| Ok(pods.next().expect("one for each entry")));
            recorded.unwrap_or_else(|error| panic!("{error}\n{}", self.log));
        }
        self
    }
}
