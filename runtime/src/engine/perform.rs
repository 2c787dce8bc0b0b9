//! Performs the actions of the core: one match, with one arm for each action.

use std::io::ErrorKind;

use nodlet_core::facts::{Action, Attempt, PodIndex, PodObservation, StartFailureReason};
use nodlet_host::error::{causes, chain};
use nodlet_host::usage::Unit;
use nodlet_registry::Handled;

use super::images::pull;
use super::volumes::VolumeFailure;
use super::{Engine, lifecycle, run, sandbox, stop, this_node};

impl Engine {
    /// Carries out an action. Its result has a type of its own, and is converted to an observation only here. What a
    /// supervisor reports by itself becomes an observation where it is received, in `run` and `sandbox`. Three actions
    /// are no futures, because they wait for nothing: `Terminate` and `Kill` queue a request for the supervisor, and
    /// `Resize` writes cgroups. `Discard` has no result: later actions remove the same files.
    pub(super) fn perform(&mut self, pod: PodIndex, action: Action) {
        use PodObservation as Seen;
        let shell = &self.shell;
        // Actions of a removed pod are ignored.
        let Some(wanted) = shell.pods.allocated(pod, self.node.pod(pod)) else { return };
        let shared = || shell.clone();
        match action {
            Action::CreateSandbox => {
                let (shell, objects) = (shared(), self.registry.config_objects(&wanted.pod));
                let claims = self.take_claims(pod, &wanted);
                let handled = Handled::pod(&wanted);
                let made = sandbox::create(shell.clone(), pod, wanted, objects, claims);
                let made = async move {
                    shell.handling.handle(handled, made, sandbox::CreateFailure::set_aside).await
                };
                self.shell.tasks.answer(pod, made, |made| match made {
                    Ok(sandbox::CreatedSandbox { ip, at }) => Some(Seen::SandboxReady { ip, at }),
                    Err(sandbox::CreateFailure { reason, remains, message }) => {
                        Some(Seen::SandboxFailed { reason, remains, message: message.into() })
                    }
                });
            }
            Action::UpdateVolumes => {
                let objects = self.registry.config_objects(&wanted.pod);
                let allocatable = this_node::info(&shell.config, &shell.machine).allocatable;
                let shell = shared();
                let updated = async move {
                    let updated = shell.volumes.write_files(&wanted, objects, &allocatable);
                    shell.handling.handle(Handled::pod(&wanted), updated, VolumeFailure::set_aside).await
                };
                self.shell.tasks.answer(pod, updated, |updated| match updated {
                    Ok(()) => Some(Seen::VolumesUpdated),
                    Err(VolumeFailure { reason, message }) => {
                        Some(Seen::VolumesUpdateFailed { reason, message: message.into() })
                    }
                });
            }
            Action::MeasureStorage(scope) => {
                let shared = shared();
                let measured = async move { shared.volumes.measure(&wanted, scope, Unit::Bytes).await };
                shell.tasks.answer(pod, measured, |usage| Some(Seen::StorageMeasured(Box::new(usage))));
            }
            Action::Resize { generation } => {
                // Which amounts are in effect is stored before that changes.
                let saved = self.write_status(pod, &wanted).map_err(run::ResizeError::Save);
                let resized = saved.and_then(|()| run::resize(shell, pod, &wanted));
                let failure = resized.err().map(|error| error.message().into());
                shell.tasks.answer(pod, async move { failure }, move |failure| {
                    Some(Seen::Resized { generation, failure })
                });
            }
            Action::Start { attempt, fallback } => {
                let objects = self.registry.config_objects(&wanted.pod);
                let (handled, shared_shell) = (Handled::pod(&wanted), shared());
                let started = run::start(shared(), pod, wanted, attempt, fallback, objects);
                let refuse = |why| run::failure(StartFailureReason::ObjectNotFound, why);
                let started = async move { shared_shell.handling.handle(handled, started, refuse).await };
                // The supervisor reports the start.
                shell.tasks.answer(pod, started, move |asked| {
                    asked.err().map(|failure| Seen::StartFailed { attempt, failure, created: None })
                });
            }
            Action::CheckImage(attempt) => {
                shell.tasks.answer(pod, run::check_image(shared(), wanted, attempt), move |checked| {
                    Some(Seen::ImageChecked { attempt, failure: checked.err() })
                });
            }
            Action::PullImage { attempt, image } => {
                let secrets = pull::secrets(&wanted, &self.registry.config_objects(&wanted.pod));
                let pulls = shell.pulls.clone();
                let pulled = async move { pulls.pull(pod, &image, &secrets).await };
                shell.tasks.answer(pod, pulled, move |pulled| {
                    let result = pulled.map_err(|error| causes(&error).into());
                    Some(Seen::ImagePulled { attempt, result })
                });
            }
            Action::Probe(attempt, kind) => {
                shell.tasks.answer(
                    pod,
                    lifecycle::probe(shared(), pod, wanted, attempt, kind),
                    move |result| Some(Seen::Probed { attempt, kind, result }),
                );
            }
            Action::Hook(attempt, kind) => {
                shell.tasks.answer(
                    pod,
                    lifecycle::hook(shared(), pod, wanted, attempt, kind),
                    move |ended| {
                        // Its text contains that of its cause.
                        let failure = ended.err().map(|error| error.to_string().into());
                        Some(Seen::Hooked { attempt, kind, failure })
                    },
                );
            }
            Action::Terminate(attempt) => {
                let asked = stop::terminate(&shell.pods, pod, attempt);
                shell.tasks.answer(pod, std::future::ready(asked), move |asked| stop_failed(attempt, asked));
            }
            Action::Kill(attempt) => {
                let asked = stop::kill(&shell.pods, pod, attempt);
                shell.tasks.answer(pod, std::future::ready(asked), move |asked| stop_failed(attempt, asked));
            }
            Action::Discard(attempt) => {
                let parts = (&*shell.tasks, &shell.stores.storage, &shell.paths);
                stop::discard(parts, shell.pods.sandbox(pod).as_deref(), &wanted, attempt);
            }
            Action::RemoveSandbox => {
                shell.tasks.answer(pod, sandbox::remove(shared(), pod, wanted), |removed| match removed {
                    Ok(()) => Some(Seen::SandboxRemoved),
                    Err(error) => Some(Seen::SandboxRemoveFailed { message: error.message().into() }),
                });
            }
            Action::RemoveVolumes { logs } => {
                let freed = shell.clone();
                shell.tasks.answer(pod, shell.volumes.remove(&wanted, logs), move |removed| {
                    freed.stores.replenish();
                    match removed {
                        Ok(()) => Some(Seen::VolumesRemoved),
                        Err(error) => Some(Seen::VolumesRemoveFailed { message: causes(&error).into() }),
                    }
                });
            }
            Action::Save { record, generation } => {
                let files = shell.paths.pod(&wanted.pod.uid.0);
                let saved = shell.stores.save(&wanted, &record, shell.machine.anchor(), files);
                let shell = shell.clone();
                shell.clone().tasks.answer(pod, saved, move |saved| {
                    let unwritten =
                        saved.as_ref().err().map(|error| format!("failed to write its record: {error}"));
                    shell.stores.unwritten.note(&wanted, unwritten);
                    // A full file system has the condition DiskPressure.
                    let broken = saved.as_ref().err().filter(|error| error.kind() != ErrorKind::StorageFull);
                    let broken = broken.map(|error| format!("failed to write a record: {error}"));
                    shell.show_records_disk(|disk, now| disk.written(now, broken));
                    match saved {
                        Ok(()) => Some(Seen::Saved { generation }),
                        Err(error) => Some(Seen::SaveFailed { message: error.to_string().into() }),
                    }
                });
            }
            Action::Forget => {
                let freed = shell.clone();
                shell.tasks.answer(pod, sandbox::forget(shared(), wanted.clone()), move |forgotten| {
                    freed.stores.unwritten.note(&wanted, forgotten.as_ref().err().map(|error| causes(error)));
                    freed.stores.replenish();
                    match forgotten {
                        Ok(()) => Some(Seen::Forgotten),
                        Err(error) => Some(Seen::ForgetFailed { message: causes(&error).into() }),
                    }
                });
            }
            Action::Emit(event) => shell.publication.emit(&wanted, &event),
        }
    }
}

/// The observation if a signal or kill could not be delivered. Its success needs none: the run ends.
fn stop_failed(attempt: Attempt, asked: Result<(), stop::StopError>) -> Option<PodObservation> {
    let message = chain(&asked.err()?).into();
    Some(PodObservation::StopFailed { attempt, message })
}
