//! The effects of a plan's actions, and events that happen by themselves.

use std::fmt::Write;

use super::node_world::ClaimNews;
use super::{
    Fate, Happening, Process, Sim, WorldSandbox, created, hooks, order, restarts, secs, stamp, started_for,
};
use crate::facts::*;
use crate::pod::PodState;
use crate::spec::*;
use crate::time::Moment;

impl Sim {
    /// Carries out an action. Panics if the action is one that must never happen.
    pub(super) fn perform(&mut self, index: PodIndex, action: Action) {
        let now = self.now;
        let Some(state) = self.node.pod(index) else {
            // The last events of a pod are emitted after it was dropped.
            let Action::Emit(event) = action else { panic!("{action:?} of a pod that is not here") };
            return self.record_event(&event);
        };
        let (pod, uid) = (state.pod().clone(), state.pod().uid.clone());
        let name = |container: ContainerIndex| pod.spec.container(container).name.clone();
        let grace = state.termination_grace();
        self.of(&uid).index = Some(index);
        self.of(&uid).order.notes_stop(now, grace);
        match action {
            Action::CreateSandbox => {
                self.note_log(&format!("{} create sandbox", pod.name));
                assert_eq!(self.of(&uid).sandbox, WorldSandbox::None, "{uid} has a sandbox already");
                assert!(self.of(&uid).is_still(), "{uid} begins anew, and runs");
                assert!(!pod.is_gated(), "{uid} is gated, and begins");
                self.of(&uid).volumes = true;
                self.check_room(&pod);
                for other in
                    self.pods.iter().filter(|other| other.pod.uid != uid && other.pod.name == pod.name)
                {
                    assert!(other.is_still(), "{uid} starts while {} lives", other.pod.uid);
                    assert_eq!(other.sandbox, WorldSandbox::None, "{uid} starts beside {}", other.pod.uid);
                }
                if pod.claims().next().is_some() {
                    self.claim_news.push(ClaimNews::Requested(index, pod.clone()))
                } else {
                    self.make_sandbox(&uid, index)
                }
            }
            Action::UpdateVolumes => self.update_volumes(&uid, index),
            Action::MeasureStorage(scope) => self.measure_storage(&uid, index, scope),
            Action::Resize { generation } => self.resize(&uid, index, generation),
            Action::CheckImage(attempt) => {
                self.begins_start(&uid, attempt.container);
                self.check_image(&uid, index, attempt);
            }
            Action::PullImage { attempt, image } => {
                self.begins_start(&uid, attempt.container);
                self.pull_image(index, attempt, &image);
            }
            Action::Start { attempt, fallback } => {
                let what = format!("{}#{} start", self.label(&pod, attempt.container), attempt.number);
                self.note(&what);
                self.check_start(&uid, attempt);
                self.begins_start(&uid, attempt.container);
                let fate = (self.fate)(&name(attempt.container), attempt.number);
                let image = self.image_to_start(&pod, attempt.container, fallback);
                let lacks_object = self.objects.lacks_variables(pod.spec.container(attempt.container));
                let lacks_device =
                    !lacks_object && image.is_ok() && self.lacks_device(&uid, attempt.container);
                let image = match fate {
                    _ if (lacks_object || lacks_device) && image.is_ok() => {
                        Err(StartFailureReason::ObjectNotFound)
                    }
                    Fate::FailsToStart(reason) => Err(reason),
                    Fate::NotAllowed => Err(StartFailureReason::ObjectNotFound),
                    Fate::HangsAtStart => image,
                    Fate::Runs | Fate::IgnoresTerm | Fate::Exits(..) | Fate::OutOfMemory(_) => image,
                };
                let world = self.of(&uid);
                if !matches!(image, Err(reason) if reason != StartFailureReason::RunContainerError) {
                    world.shell.write_facts(attempt);
                }
                match image {
                    Err(reason) => {
                        // Such a start is retried as soon as the image or object is added.
                        if let StartFailureReason::ErrImagePull
                        | StartFailureReason::ImageToPull
                        | StartFailureReason::ObjectNotFound = reason
                        {
                            self.of(&uid).restarts.forget(attempt.container);
                        }
                        let before_image = matches!(fate, Fate::NotAllowed);
                        let failure =
                            StartFailure { before_image, ..StartFailure::new(reason, "it cannot be") };
                        let created =
                            (reason == StartFailureReason::RunContainerError).then(|| created(attempt));
                        self.answer_of(index, PodObservation::StartFailed { attempt, failure, created });
                    }
                    Ok(image) => {
                        world.begun[usize::from(attempt.container.0)].push(attempt.number);
                        let was_outdated = world.outdated.remove(&attempt.container);
                        if *image != *pod.spec.container(attempt.container).image {
                            // The spec changed before this run, which ends as soon as the new image is there.
                            world.outdated.insert(attempt.container);
                        }
                        world.set_limits(&pod, attempt.container);
                        let hooks = hooks::Seen::default();
                        let hangs = matches!(fate, Fate::HangsAtStart);
                        let process = Process {
                            fate,
                            image,
                            started: None,
                            asked_to_end: None,
                            hooks,
                            succeeded: Vec::new(),
                            probe_failed: false,
                            was_outdated,
                        };
                        world.alive.insert(attempt, process);
                        if hangs {
                            self.after(secs(120), Happening::GivenUp(uid, attempt));
                        } else {
                            self.after_latency(Happening::Executed(uid, index, attempt));
                        }
                    }
                }
            }
            Action::Probe(attempt, kind) => {
                let asked = (index, attempt, kind);
                let twice = self.probes_in_flight.iter().any(|(before, _)| *before == asked);
                assert!(!twice, "asked twice: {asked:?}");
                self.probes_in_flight.push((asked, now));
                let Some(process) = self.of(&uid).alive.get(&attempt) else { return };
                let age = now.since(process.started.expect("only what runs is probed"));
                let result = (self.answer)(&name(attempt.container), kind, age);
                self.answer_of(index, PodObservation::Probed { attempt, kind, result });
            }
            Action::Hook(attempt, kind) => {
                let what = format!("{}#{} {kind:?}", self.label(&pod, attempt.container), attempt.number);
                self.note(&what);
                self.begin_hook(&uid, index, attempt, kind);
            }
            Action::Terminate(attempt) => {
                let what = format!("{}#{} Term", self.label(&pod, attempt.container), attempt.number);
                self.note(&what);
                self.check_no_end(&uid, attempt);
                self.check_end(&uid, attempt);
                self.check_hook(&uid, attempt);
                self.mark_resized_run(index, attempt);
                if let Some(process) = self.of(&uid).alive.get_mut(&attempt) {
                    process.asked_to_end.get_or_insert(now);
                }
                if self.fails() {
                    self.answer_of(index, PodObservation::StopFailed { attempt, message: "no".into() });
                    return;
                }
                if let Some(process) = self.of(&uid).alive.get_mut(&attempt) {
                    match process.fate {
                        Fate::IgnoresTerm => {}
                        Fate::Runs
                        | Fate::Exits(..)
                        | Fate::OutOfMemory(_)
                        | Fate::FailsToStart(_)
                        | Fate::HangsAtStart
                        | Fate::NotAllowed => {
                            self.after_latency(Happening::Ended(uid, attempt, 143, false));
                        }
                    }
                }
            }
            Action::Kill(attempt) => {
                let what = format!("{}#{} Kill", self.label(&pod, attempt.container), attempt.number);
                self.note(&what);
                self.check_no_end(&uid, attempt);
                if let Some(asked) =
                    self.of(&uid).alive.get(&attempt).and_then(|process| process.asked_to_end)
                {
                    assert!(now.since(asked) >= secs(1), "killed right after it was asked");
                }
                if let Some(process) = self.of(&uid).alive.get_mut(&attempt) {
                    process.hooks.killed = true;
                }
                if self.fails() {
                    self.answer_of(index, PodObservation::StopFailed { attempt, message: "no".into() });
                    return;
                }
                let is_starting =
                    self.of(&uid).alive.get(&attempt).is_some_and(|process| process.started.is_none());
                self.after_latency(if is_starting {
                    Happening::GivenUp(uid, attempt)
                } else {
                    Happening::Ended(uid, attempt, 137, false)
                });
            }
            Action::Discard(attempt) => {
                assert!(!self.of(&uid).alive.contains_key(&attempt), "a living run is discarded");
                // Discarding a run also discards the earlier runs that the supervisor remembers.
                let is_kept =
                    |known: Attempt| known.container != attempt.container || known.number >= attempt.number;
                self.of(&uid).finished.retain(|found| is_kept(found.attempt));
                self.note_log(&format!("{}#{} discard", self.label(&pod, attempt.container), attempt.number));
            }
            Action::RemoveSandbox => {
                self.note_log(&format!("{} remove sandbox", pod.name));
                assert!(self.of(&uid).alive.is_empty(), "the sandbox of {uid} goes before its processes");
                assert!(!self.of(&uid).updating, "the volumes of {uid} go while they are written");
                // Removing the supervisor also removes its knowledge of the exits.
                let state = self.node.pod(index);
                let needed =
                    !self.down && state.is_some_and(|pod| !pod.is_unwanted() && !pod.is_interrupted());
                let world = self.of(&uid);
                let known = world.record.as_ref().is_some_and(|record| record.phase.is_terminal());
                assert!(
                    !needed || known || world.sandbox == WorldSandbox::Remains,
                    "the exits of {uid} go before they are on flash"
                );
                if self.fails() {
                    self.of(&uid).sandbox = WorldSandbox::Remains;
                    self.answer_of(index, PodObservation::SandboxRemoveFailed { message: "busy".into() });
                } else {
                    self.after_latency(Happening::SandboxGone(uid, index));
                }
            }
            Action::RemoveVolumes { logs } => {
                let also = if logs { " and logs" } else { "" };
                self.note_log(&format!("{} remove volumes{also}", pod.name));
                assert!(self.node.pod(index).is_some_and(PodState::has_finished), "{uid} needs its volumes");
                let world = self.of(&uid);
                assert!(!std::mem::replace(&mut world.removing_volumes, true), "two removals at once");
                let seen = if self.fails() {
                    PodObservation::VolumesRemoveFailed { message: "busy".into() }
                } else {
                    PodObservation::VolumesRemoved
                };
                self.answer_of(index, seen);
            }
            Action::Save { record, generation } => {
                self.note_log(&format!("{} save {:?}", pod.name, record.phase));
                let fails = self.fails() || self.is_disk_full || self.is_read_only;
                let log = std::mem::take(&mut self.log);
                let world = self.of(&uid);
                assert!(!std::mem::replace(&mut world.save_in_flight, true), "two saves at once");
                world.saves += 1;
                world.wear.writes(now, &log);
                self.log = log;
                if fails {
                    self.answer_of(index, PodObservation::SaveFailed { message: "no space".into() });
                } else {
                    self.after_latency(Happening::Written(uid, index, generation, record));
                }
            }
            Action::Forget => {
                self.note_log(&format!("{} forget", pod.name));
                let world = self.of(&uid);
                assert!(!world.wanted || self.node.pod(index).is_some_and(PodState::is_unwanted));
                let world = self.of(&uid);
                assert!(world.is_still() && world.sandbox == WorldSandbox::None, "{uid} is not gone");
                assert!(!world.removing_volumes, "{uid} is removed twice at once");
                if self.fails() || self.is_read_only {
                    self.answer_of(index, PodObservation::ForgetFailed { message: "busy".into() });
                } else {
                    self.after_latency(Happening::Erased(uid, index));
                }
            }
            Action::Emit(event) => {
                if event.reason == "Preempting" {
                    self.check_preemption(&pod);
                }
                if event.reason == "Evicted" {
                    self.check_eviction(index, &event.message);
                }
                self.record_event(&event);
            }
        }
    }

    /// Makes the sandbox of a pod that has its claims.
    pub(super) fn make_sandbox(&mut self, uid: &Uid, index: PodIndex) {
        self.forget_device_starts_of(uid);
        let made = if self.fails() { Err(SandboxFailure::Sandbox) } else { self.find_interface(uid) };
        let made = made.and_then(|()| self.write_volumes(uid));
        if let Err(reason) = made {
            // As in the engine, the volumes that could be written exist.
            let remains = match reason {
                // Looked up before anything else.
                SandboxFailure::DeviceNotFound | SandboxFailure::SetAside => false,
                SandboxFailure::Sandbox => self.chance.percent(self.weather.remains),
                SandboxFailure::Mount | SandboxFailure::ObjectNotFound => true,
            };
            if remains {
                self.of(uid).sandbox = WorldSandbox::Remains;
            }
            let message = "no such device".into();
            self.answer_of(index, PodObservation::SandboxFailed { reason, remains, message });
        } else {
            let now = self.now;
            self.take_interface(uid);
            self.of(uid).sandbox = WorldSandbox::Exists;
            self.of(uid).restarts.sandbox_made();
            self.of(uid).shell.make_directory(now);
            self.after_latency(Happening::SandboxMade(uid.clone(), index));
        }
    }

    fn record_event(&mut self, event: &Event) {
        let kind = if event.warning { "Warning" } else { "Normal" };
        assert_eq!(event.warning, restarts::is_warning(event), "the type of {event:?}");
        let _ = writeln!(self.log, "{} {kind} {}", stamp(self.now), event.reason);
        self.events.push(format!("{}: {}", event.reason, event.message));
    }

    fn check_start(&mut self, uid: &Uid, attempt: Attempt) {
        let now = self.now;
        let world = self.pods.iter_mut().find(|world| world.pod.uid == *uid).expect("a pod of this world");
        world.check_restart(now, attempt.container, &self.log);
        let pod = world.pod.clone();
        assert_eq!(
            world.sandbox,
            WorldSandbox::Exists,
            "{uid} starts {attempt:?} without a sandbox\n{}",
            self.log
        );
        assert!(!world.orphans, "{uid} starts {attempt:?} while processes of a lost sandbox live");
        assert!(world.shown_terminal.is_none(), "{uid} starts {attempt:?} though it is over");
        for (other, process) in &world.alive {
            assert!(other.container != attempt.container, "{uid}: {attempt:?} starts while {other:?} lives");
            assert!(process.started.is_some(), "{uid}: {attempt:?} starts before {other:?} has");
            assert!(!process.hooks.is_starting(), "{uid}: {attempt:?} starts in the midst of {other:?}");
        }
        world.check_order(attempt.container);
        let is_ephemeral = pod.spec.role(attempt.container) == Role::Ephemeral;
        if pod.spec.restart_policy == RestartPolicy::Never || is_ephemeral {
            let place = usize::from(attempt.container.0);
            let recorded = world.record.as_ref().and_then(|record| record.containers.get(place));
            let may_restart =
                pod.spec.container(attempt.container).restart.is_some() || world.restarts.has_restarted_all();
            let may_restart = may_restart && !is_ephemeral
                || world.outdated.contains(&attempt.container)
                || pod.spec.role(attempt.container) == Role::Sidecar;
            assert!(
                recorded.is_some_and(|recorded| may_restart || recorded.attempts > attempt.number),
                "{uid}: {attempt:?} starts, and its record is not on flash\n{}",
                self.log
            );
            assert!(
                may_restart || world.begun[place].is_empty(),
                "{uid}: {attempt:?} is a further run of a container that runs once\n{}",
                self.log
            );
        }
    }

    /// Ends a start that was killed, or that the supervisor gives up: its process is not executed any more. If it was
    /// executed before, the kill ends it.
    fn give_up(&mut self, uid: &Uid, attempt: Attempt) {
        let pod = self.of(uid).pod.clone();
        match self.of(uid).alive.get(&attempt) {
            None => return,
            Some(process) if process.started.is_some() => {
                return self.happen(Happening::Ended(uid.clone(), attempt, 137, false));
            }
            Some(_) => {}
        }
        self.note(&format!("{}#{} is given up", self.label(&pod, attempt.container), attempt.number));
        self.forget_start(uid, attempt);
        if let Some(index) = self.node.index_of(uid) {
            let failure = StartFailure::new(StartFailureReason::CreateContainerError, "it was killed");
            self.observe_of(index, PodObservation::StartFailed { attempt, failure, created: None });
        }
    }

    /// Forgets a start whose process was not executed, and is not executed later.
    pub(super) fn forget_start(&mut self, uid: &Uid, attempt: Attempt) {
        let world = self.of(uid);
        let Some(process) = world.alive.remove(&attempt) else { return };
        if process.was_outdated {
            world.outdated.insert(attempt.container);
        }
        world.begun[usize::from(attempt.container.0)].pop();
        self.queue.retain(|_, happening| {
            !matches!(happening, Happening::Executed(of, _, other) | Happening::GivenUp(of, other)
                if of == uid && *other == attempt)
        });
    }

    /// Lets a queued event happen.
    pub(super) fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Observed(seen) => {
                self.down |= matches!(seen, Observation::Shutdown(_));
                if let Observation::ShutdownCancelled = seen {
                    self.down = false;
                    // Pods restart with their record on flash, which has less than was shown if the SD card
                    // failed.
                    self.pods
                        .iter_mut()
                        .for_each(|world| world.restarts.resume(world.sandbox != WorldSandbox::None));
                }
                self.observe(seen);
            }
            Happening::ObservedOf(index, seen) => {
                if let PodObservation::Probed { attempt, kind, ref result } = seen {
                    if let Some(world) = self.pods.iter_mut().find(|world| world.index == Some(index)) {
                        world.order.probed(attempt, kind, result);
                        world.probed(attempt, kind, result);
                    }
                    self.probes_in_flight.retain(|(asked, _)| *asked != (index, attempt, kind));
                }
                if let PodObservation::Hooked { attempt, kind, ref failure } = seen {
                    self.record_reported_hook(index, attempt, kind, failure.is_some());
                }
                if let PodObservation::StartFailed { attempt, failure, .. } = &seen
                    && failure.reason == StartFailureReason::RunContainerError
                    && let Some(world) = self.pods.iter_mut().find(|world| world.index == Some(index))
                {
                    let exit = restarts::RunExit { code: 128, oom_killed: false, probe_failed: false };
                    world.restarts.ended(self.now, attempt.container, exit);
                }
                if let PodObservation::VolumesUpdated | PodObservation::VolumesUpdateFailed { .. } = seen
                    && let Some(world) = self.pods.iter_mut().find(|world| world.index == Some(index))
                {
                    world.updating = false;
                }
                if let PodObservation::VolumesRemoved | PodObservation::VolumesRemoveFailed { .. } = seen
                    && let Some(world) = self.pods.iter_mut().find(|world| world.index == Some(index))
                {
                    world.removing_volumes = false;
                    world.volumes &= seen != PodObservation::VolumesRemoved;
                }
                if let PodObservation::SaveFailed { .. } = seen
                    && let Some(world) = self.pods.iter_mut().find(|world| world.index == Some(index))
                {
                    world.save_in_flight = false;
                }
                let failed_start = match &seen {
                    PodObservation::StartFailed { attempt, .. } => Some(attempt.container),
                    _ => None,
                };
                let lacks_interface = matches!(
                    seen,
                    PodObservation::SandboxFailed { reason: SandboxFailure::DeviceNotFound, .. }
                );
                let is_without_sandbox = matches!(
                    seen,
                    PodObservation::SandboxFailed { remains: false, .. } | PodObservation::SandboxRemoved
                );
                self.observe(Observation::Of(index, seen));
                if let Some(container) = failed_start {
                    self.device_start_failed(index, container);
                }
                if lacks_interface {
                    self.retry_interface(index);
                }
                if is_without_sandbox
                    && let Some(world) = self.pods.iter().find(|world| world.index == Some(index))
                    && world.pod.claims().next().is_some()
                {
                    self.claim_news.push(ClaimNews::Released(index, world.pod.uid.clone()));
                }
            }
            Happening::Executed(uid, index, attempt) => {
                let now = self.now;
                let Some(process) = self.of(&uid).alive.get_mut(&attempt) else { return };
                process.started = Some(now);
                let (fate, image) = (process.fate.clone(), process.image.clone());
                self.of(&uid).order.executed(attempt);
                match fate {
                    Fate::Exits(code, after) => {
                        self.after(after, Happening::Ended(uid, attempt, code, false))
                    }
                    Fate::OutOfMemory(after) => self.after(after, Happening::Ended(uid, attempt, 137, true)),
                    Fate::Runs | Fate::IgnoresTerm | Fate::FailsToStart(_) | Fate::NotAllowed => {}
                    Fate::HangsAtStart => panic!("{uid}: {attempt:?} was executed, and its start hangs"),
                }
                let container = Box::new(started_for(now, attempt, image));
                self.observe_of(index, PodObservation::Started { attempt, container });
            }
            Happening::GivenUp(uid, attempt) => self.give_up(&uid, attempt),
            Happening::Ended(uid, attempt, code, oom_killed) => {
                let now = self.now;
                let pod = self.of(&uid).pod.clone();
                let index = self.node.index_of(&uid);
                let Some(process) = self.of(&uid).alive.remove(&attempt) else { return };
                let what = format!("{}#{} exits {code}", self.label(&pod, attempt.container), attempt.number);
                self.note(&what);
                // It may end by itself while a hook keeps the core from ending it.
                if let Some(index) = index {
                    self.mark_resized_run(index, attempt);
                }
                let world = self.of(&uid);
                world.order.ended(attempt, code, oom_killed);
                let probe_failed = process.probe_failed;
                let exit = restarts::RunExit { code, oom_killed, probe_failed };
                world.restarts.ended(now, attempt.container, exit);
                world.ended_at.insert(attempt.container, now);
                match process.asked_to_end {
                    Some(_) => world.stopped.insert(attempt.container),
                    None => world.stopped.remove(&attempt.container),
                };
                let rule = pod.spec.container(attempt.container).restart.as_ref();
                let rule = rule.and_then(|own| own.action(code));
                let by_itself = process.asked_to_end.is_none() && !process.hooks.is_ending();
                if by_itself && rule == Some(RestartAction::RestartAllContainers) {
                    self.forget_device_starts_of(&uid);
                    let world = self.of(&uid);
                    world.order.restarts_all();
                    world.restarts.restart_all();
                }
                let started_at = process.started.unwrap_or(now);
                if let Some(index) = index {
                    self.end_hooks(index, attempt, &process.hooks);
                }
                let exit = Exit {
                    code,
                    oom_killed,
                    unknown: false,
                    message: "".into(),
                    started_at: Moment::ThisBoot(started_at),
                    finished_at: Moment::ThisBoot(now),
                };
                self.of(&uid).finished.push(FoundAttempt {
                    attempt,
                    container: started_for(started_at, attempt, process.image.clone()),
                    exit: Some(exit.clone()),
                    health: Health::default(),
                });
                if let Some(index) = index {
                    self.observe_of(index, PodObservation::Exited { attempt, exit: Box::new(exit) });
                }
            }
            Happening::SandboxMade(uid, index) => {
                let ip = Some([10, 85, 0, 2].into());
                let now = self.now;
                self.of(&uid).made_at = now;
                self.observe_of(index, PodObservation::SandboxReady { ip, at: self.now });
            }
            Happening::SandboxGone(uid, index) => {
                let world = self.of(&uid);
                world.sandbox = WorldSandbox::None;
                world.orphans = false;
                world.order = order::Order::default();
                world.restarts.sandbox_gone();
                world.finished.clear();
                world.shell.remove_directory();
                self.return_interface(&uid);
                self.observe_of(index, PodObservation::SandboxRemoved);
            }
            Happening::Written(uid, index, generation, record) => {
                self.write(&uid, &record);
                self.of(&uid).save_in_flight = false;
                self.observe_of(index, PodObservation::Saved { generation });
            }
            Happening::Erased(uid, index) => {
                self.erase(&uid);
                self.observe_of(index, PodObservation::Forgotten);
            }
        }
    }
}
