//! What befalls a world besides its fates: agents that die, power that is cut.

use std::collections::BTreeMap;

use super::order::Order;
use super::{Happening, Sim, WorldSandbox, secs, started_for};
use crate::node::*;
use crate::spec::Uid;
use crate::time::{Moment, Timestamp};

impl Sim {
    /// The supervisor of a pod dies.
    pub(crate) fn lose_sandbox(&mut self, uid: &Uid) {
        let Some(index) = self.node.index_of(uid) else { return };
        let pod = self.of(uid);
        if pod.sandbox != WorldSandbox::Made {
            return;
        }
        let is_being_made = |happening: &Happening| match happening {
            Happening::SandboxMade(of, _) | Happening::SandboxGone(of, _) => of == uid,
            _ => false,
        };
        if self.queue.values().any(is_being_made) {
            return;
        }
        let pod = self.of(uid);
        pod.sandbox = WorldSandbox::Remains;
        pod.alive.clear();
        pod.order = Order::default();
        self.note_log(&format!("{uid} loses its sandbox"));
        self.queue.retain(|_, happening| {
            !matches!(happening, Happening::Executed(of, _, _) | Happening::Ended(of, _, _, _) if of == uid)
        });
        self.tell_of(index, PodObservation::SandboxLost);
    }

    /// The agent is killed and starts again; nothing else is disturbed.
    pub(crate) fn restart_agent(&mut self) {
        self.note_log("agent starts anew");
        let pending = std::mem::take(&mut self.queue);
        let mut survive = BTreeMap::new();
        for (key, happening) in pending {
            match happening {
                // A supervisor finishes what it was told to start, or was never told.
                Happening::Executed(uid, index, attempt) => {
                    if self.chance.percent(50) {
                        self.happen(Happening::Executed(uid, index, attempt));
                    } else {
                        let world = self.of(&uid);
                        world.alive.remove(&attempt);
                        world.begun[usize::from(attempt.container.0)].pop();
                    }
                }
                Happening::SandboxMade(uid, _) => {
                    let made = self.chance.percent(50);
                    let now = self.now;
                    self.of(&uid).made_at = now;
                    self.of(&uid).sandbox = if made { WorldSandbox::Made } else { WorldSandbox::None };
                }
                Happening::SandboxGone(uid, _) => {
                    let gone = self.chance.percent(50);
                    self.of(&uid).sandbox = if gone { WorldSandbox::None } else { WorldSandbox::Remains };
                    self.of(&uid).order = Order::default();
                }
                Happening::Written(uid, _, _, record) => {
                    if self.chance.percent(50) {
                        self.of(&uid).record = Some(record);
                    }
                }
                Happening::Erased(uid, _) => {
                    if self.chance.percent(50) {
                        self.erase(&uid);
                    }
                }
                Happening::Ended(..) => drop(survive.insert(key, happening)),
                Happening::Told(_) | Happening::ToldOf(..) => {}
            }
        }
        // What `happen` queued for the old agent is lost with it, but ends are not.
        self.queue.retain(|_, happening| matches!(happening, Happening::Ended(..)));
        self.queue.extend(survive);
        self.begin_agent(true);
    }

    /// Power is cut and comes back.
    pub(crate) fn reboot(&mut self) {
        self.note_log("power is cut");
        self.queue.clear();
        for pod in &mut self.pods {
            pod.alive.clear();
            pod.over.clear();
            pod.sandbox = WorldSandbox::None;
            pod.order = Order::default();
            if let Some(record) = &mut pod.record {
                of_an_earlier_boot(record);
            }
        }
        self.begin_agent(false);
    }

    fn begin_agent(&mut self, same_boot: bool) {
        self.replay();
        // It lies beside the supervisor, in memory.
        let left_by = |pod: &PodState| {
            let redefined = pod.pod().spec.container_indexes().map(|index| pod.health(index).redefined);
            (pod.pod().uid.clone(), (pod.left_behind(), redefined.collect::<Vec<bool>>()))
        };
        let left: BTreeMap<Uid, (FoundStatus, Vec<bool>)> = match same_boot {
            true => self.node.pods().map(left_by).collect(),
            false => BTreeMap::new(),
        };
        self.node = Node::new();
        self.tell_node();
        self.down = false;
        self.probes_in_flight.clear();
        let slack = self.slack();
        for place in 0..self.pods.len() {
            let pod = &mut self.pods[place];
            pod.index = None;
            pod.save_in_flight = false;
            pod.gone_by = None;
            pod.order.forget_stop();
            pod.order.forget_failed_hooks();
            if pod.shown_terminal.is_some()
                && !pod.record.as_ref().is_some_and(|record| record.phase.is_terminal())
            {
                // Its record could not be written, and it was on its way out.
                pod.shown_terminal = None;
            }
            if !pod.wanted {
                // It goes as an orphan, or with the whole grace that was asked for.
                let grace = pod.pod.spec.termination_grace_period.max(secs(40)) + pod.last_window();
                pod.gone_by = Some(self.now + grace + slack);
            }
            if pod.sandbox == WorldSandbox::None && (pod.wanted || pod.record.is_none()) {
                pod.gone_by = None;
                continue;
            }
            assert!(same_boot || pod.sandbox == WorldSandbox::None);
            let (status, redefined) = left.get(&pod.pod.uid).cloned().unwrap_or_default();
            let is_redefined = |attempt: Attempt| {
                redefined.get(usize::from(attempt.container.0)).copied().unwrap_or_default()
            };
            let (order, spec) = (&pod.order, &pod.pod.spec);
            let is_superseded = |container| {
                spec.role(container) != crate::spec::Role::Ephemeral && order.is_superseded(container)
            };
            let over = pod.over.iter().cloned().map(|found| {
                let superseded = is_superseded(found.attempt.container);
                let redefined = is_redefined(found.attempt);
                FoundAttempt { health: Health { superseded, redefined, ..found.health }, ..found }
            });
            let over: Vec<_> = over.collect();
            let alive = pod.alive.iter_mut().map(|(attempt, process)| FoundAttempt {
                attempt: *attempt,
                container: started_for(process.started.expect("it runs"), *attempt, process.image.clone()),
                exit: None,
                health: Health {
                    superseded: is_superseded(attempt.container),
                    redefined: is_redefined(*attempt),
                    ..process.adopted()
                },
            });
            let alive: Vec<_> = alive.collect();
            let found = Found {
                pod: pod.pod.clone(),
                record: pod.record.clone(),
                sandbox: (pod.sandbox == WorldSandbox::Made)
                    .then_some(FoundSandbox { ip: None, at: pod.made_at }),
                attempts: over.into_iter().chain(alive).collect(),
                status,
            };
            self.tell(Observation::Found(found));
        }
        // Those first that the node has taken before, as the engine tells them.
        let wanted = self.pods.iter().filter(|pod| pod.wanted);
        let mut wanted: Vec<_> = wanted.map(|pod| (pod.pod.clone(), pod.record.clone())).collect();
        wanted.sort_by_key(|(_, record)| record.as_ref().is_none_or(|record| !record.was_judged()));
        for (pod, record) in wanted {
            self.tell(Observation::Wanted { pod, record });
        }
        self.tell(Observation::SourcesSeen);
        self.settle();
    }
}

fn of_an_earlier_boot(record: &mut Record) {
    let earlier = |moment: &mut Moment| {
        if let Moment::ThisBoot(at) = moment {
            *moment = Moment::Earlier(Timestamp(at.0 as i64));
        }
    };
    record.start_time.iter_mut().for_each(earlier);
    record.containers.iter_mut().filter_map(|container| container.decided.as_mut()).for_each(earlier);
    for exit in record.containers.iter_mut().filter_map(|container| container.last_exit.as_mut()) {
        earlier(&mut exit.started_at);
        earlier(&mut exit.finished_at);
    }
}
