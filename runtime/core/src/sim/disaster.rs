//! Disasters of a simulated world: agents that die, power cuts.

use std::collections::BTreeMap;

use super::order::Order;
use super::shell::Shown;
use super::{Happening, Sim, WorldSandbox, secs};
use crate::facts::*;
use crate::node::*;
use crate::spec::{RestartPolicy, Uid};

impl Sim {
    /// Kills the supervisor of a pod. Its processes die with it, unless something fails.
    pub(crate) fn lose_sandbox(&mut self, uid: &Uid) -> &mut Self {
        let processes = self.fails();
        self.lose_sandbox_with(uid, processes);
        self
    }

    /// Kills the supervisor of a pod, whose processes live on if `processes` is set.
    pub(crate) fn lose_sandbox_with(&mut self, uid: &Uid, processes: bool) -> &mut Self {
        let Some(index) = self.node.index_of(uid) else { return self };
        let pod = self.of(uid);
        if pod.sandbox != WorldSandbox::Exists {
            return self;
        }
        let is_being_made = |happening: &Happening| match happening {
            Happening::SandboxMade(of, _) | Happening::SandboxGone(of, _) => of == uid,
            _ => false,
        };
        if self.queue.values().any(is_being_made) {
            return self;
        }
        let now = self.now;
        let pod = self.of(uid);
        pod.sandbox = WorldSandbox::Remains;
        let lost: Vec<_> = pod.alive.keys().map(|attempt| (attempt.container, now)).collect();
        pod.ended_at.extend(lost);
        pod.orphans = processes && !pod.alive.is_empty();
        pod.alive.clear();
        pod.order = Order::default();
        pod.restarts.forget_all();
        self.note_log(&format!("{uid} loses its sandbox"));
        self.queue.retain(|_, happening| {
            !matches!(
                happening,
                Happening::Executed(of, ..) | Happening::Ended(of, ..) | Happening::GivenUp(of, _) if of == uid
            )
        });
        let processes = self.of(uid).orphans;
        self.observe_of(index, PodObservation::SandboxLost { processes });
        self
    }

    /// Kills and restarts the agent; nothing else is disturbed.
    pub(crate) fn restart_agent(&mut self) -> &mut Self {
        self.note_log("agent starts anew");
        let before = self.shown_statuses();
        let pending = std::mem::take(&mut self.queue);
        let mut survive = BTreeMap::new();
        for (key, happening) in pending {
            match happening {
                // A supervisor either finishes a requested start, or never received the request.
                Happening::Executed(uid, index, attempt) => {
                    if self.chance.percent(50) {
                        self.happen(Happening::Executed(uid, index, attempt));
                    } else {
                        self.forget_start(&uid, attempt);
                    }
                }
                // Before the next agent is here, the start has failed, or the kill has ended what was executed.
                Happening::GivenUp(uid, attempt) => match self.of(&uid).alive.get(&attempt) {
                    Some(process) if process.started.is_some() => {
                        survive.insert(key, Happening::Ended(uid, attempt, 137, false));
                    }
                    Some(_) | None => self.forget_start(&uid, attempt),
                },
                Happening::SandboxMade(uid, _) => {
                    let made = self.chance.percent(50);
                    let now = self.now;
                    self.of(&uid).made_at = now;
                    let pod = self.of(&uid);
                    pod.sandbox = if made { WorldSandbox::Exists } else { WorldSandbox::Remains };
                }
                Happening::SandboxGone(uid, _) => {
                    let gone = self.chance.percent(50);
                    let pod = self.of(&uid);
                    pod.sandbox = if gone { WorldSandbox::None } else { WorldSandbox::Remains };
                    pod.order = Order::default();
                    if gone {
                        pod.has_interface = false;
                        pod.orphans = false;
                        pod.finished.clear();
                        pod.shell.remove_directory();
                    }
                }
                Happening::Written(uid, _, _, record) => {
                    if self.chance.percent(50) {
                        self.write(&uid, &record);
                    }
                }
                Happening::Erased(uid, _) => {
                    if self.chance.percent(50) {
                        self.erase(&uid);
                    }
                }
                Happening::Ended(..) => drop(survive.insert(key, happening)),
                Happening::Observed(_) | Happening::ObservedOf(..) => {}
            }
        }
        // Events that `happen` queued for the old agent are lost with it, except the ends of runs.
        self.queue.retain(|_, happening| matches!(happening, Happening::Ended(..)));
        self.queue.extend(survive);
        self.begin_agent(Some(before));
        self
    }

    /// Removes the state that the agent leaves to the next one, as if it were of an earlier version.
    pub(crate) fn forget_handovers(&mut self) -> &mut Self {
        self.pods.iter_mut().for_each(|pod| pod.shell.forget_handover());
        self
    }

    /// Cuts the power and boots again.
    pub(crate) fn reboot(&mut self) -> &mut Self {
        self.note_log("power is cut");
        self.queue.clear();
        for pod in &mut self.pods {
            pod.alive.clear();
            pod.orphans = false;
            pod.has_interface = false;
            pod.finished.clear();
            pod.sandbox = WorldSandbox::None;
            pod.order = Order::default();
            pod.restarts.forget_shown();
            pod.shell = super::shell::PodFiles::default();
        }
        self.boots += 1;
        self.boot_id = format!("boot-{}", self.boots);
        for pod in &mut self.pods {
            pod.record = pod
                .record
                .as_ref()
                .map(|_| crate::record_file::parse(&pod.flash, &self.boot_id).expect("a record"));
            // A pod of which nothing reached flash is admitted as a new one, and may be rejected: another pod may have
            // taken its room, and nobody knows the amounts that it had before it was resized. A container that runs
            // once is recorded before it runs.
            let may_run_again = pod.pod.spec.restart_policy != RestartPolicy::Never;
            if pod.record.is_none() && (pod.is_resized || may_run_again) {
                pod.begun.iter_mut().for_each(Vec::clear);
            }
        }
        self.begin_agent(None);
        self
    }

    /// Starts an agent. `before` are the statuses that the killed agent showed; `None` after a power cut.
    fn begin_agent(&mut self, before: Option<Vec<Shown>>) {
        self.replay();
        self.claim_news.clear();
        self.node = Node::new();
        self.observe_node();
        self.down = false;
        self.probes_in_flight.clear();
        self.forget_device_starts();
        let slack = self.slack();
        for place in 0..self.pods.len() {
            let pod = &mut self.pods[place];
            pod.index = None;
            pod.save_in_flight = false;
            (pod.updating, pod.removing_volumes) = (false, false);
            pod.gone_by = None;
            pod.restarts.forget_all();
            pod.order.forget_stop();
            pod.order.forget_failed_hooks();
            if pod.shown_terminal.is_some()
                && !pod.record.as_ref().is_some_and(|record| record.phase.is_terminal())
            {
                // The record could not be written, and the pod was being removed.
                pod.shown_terminal = None;
            }
            if !pod.wanted {
                // The pod is removed as an orphan, or with the whole requested grace period.
                let grace = pod.pod.spec.termination_grace_period.max(secs(40)) + pod.last_window();
                pod.gone_by = Some(self.now + grace + slack);
            }
            if pod.sandbox == WorldSandbox::None {
                // Nothing reports the pod any more, unless a source does.
                pod.gone_by = None;
                if !pod.wanted {
                    self.sweep(place);
                }
                continue;
            }
            // The agent kills what it finds without a supervisor.
            let fails = self.fails();
            self.pods[place].orphans &= fails;
            let found = self.find(place);
            self.observe(Observation::Found(Box::new(found)));
        }
        // The pods that the node has admitted before come first, as in the engine.
        let wanted = self.pods.iter().filter(|pod| pod.wanted);
        let mut wanted: Vec<_> =
            wanted.map(|pod| (pod.pod.clone(), pod.record.clone(), pod.shell.read_status())).collect();
        wanted.sort_by_key(|(_, record, _)| {
            record.as_ref().is_none_or(|record| !record.is_admission_decided())
        });
        for (pod, record, status) in wanted {
            self.observe(Observation::Wanted { pod, record, status });
        }
        self.observe(Observation::SourcesSeen);
        if let Some(before) = before {
            self.compare_shown(&before);
        }
        self.settle();
    }
}
