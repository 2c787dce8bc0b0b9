//! Reports the events of a supervisor about the runs of its containers to the core, and the ends of runs that a
//! supervisor recorded and did not report.

use std::rc::Rc;

use nodlet_core::facts::{
    Attempt, Exit, PodIndex, PodObservation, RunIdentity, RunProcess, StartFailureReason, StartedContainer,
    User,
};
use nodlet_core::time::{Instant, Moment};
use nodlet_host::cgroup::Leaf;
use nodlet_host::error::chain;
use nodlet_supervisor::ExitRecord;
use nodlet_supervisor::client::{StartFailedAt, StartedProcess, SupervisorEvent};

use super::handles::{ImageFacts, Run, Sandbox, facts_path};
use super::run::{failure, read_facts, with_memory_limit};
use super::stop::forget;
use super::{Shell, log_name};

/// Reports an event of the supervisor to the core, or to the task that waits for it.
pub(super) async fn report_event(
    shell: &Rc<Shell>,
    pod: PodIndex,
    sandbox: &Rc<Sandbox>,
    event: SupervisorEvent,
) {
    let Some(wanted) = shell.pods.wanted(pod) else { return };
    let attempt = |container: &str, number: u32| {
        Some(Attempt { container: wanted.pod.spec.index_of(container)?, number })
    };
    match event {
        SupervisorEvent::Started { container, number, process } => {
            let Some(attempt) = attempt(&container, number) else { return };
            let started = {
                let mut runs = sandbox.runs.borrow_mut();
                // An earlier agent may have requested this run: then the supervisor had not started it yet when it
                // reported its state to this agent.
                let run = runs.entry((container.clone(), number)).or_insert_with(|| Run {
                    leaf: sandbox.cgroup.known_leaf(&container, number),
                    process: None,
                    started: None,
                    image: read_facts(&shell.paths, &wanted, &container, number),
                    _layers: Vec::new(),
                    turn: None,
                });
                let started = started_container(&run.image, process.at, process.user);
                run.process = process.pidfd;
                run.started = Some(started.clone());
                run.turn = None;
                started
            };
            log::info!("started {}", log_name(&wanted, attempt));
            // The devices may have changed while the container started.
            shell.devices.follow((pod, container, number), false);
            shell.tasks.report(pod, PodObservation::Started { attempt, container: Box::new(started) }).await;
        }
        SupervisorEvent::StartFailed { container, number, at, message, user } => {
            let Some(attempt) = attempt(&container, number) else { return };
            let run = sandbox.runs.borrow_mut().remove(&(container.clone(), number));
            // The process that starts the container is in its cgroup.
            let is_killed = run.as_ref().is_some_and(|run| oom_killed(&run.leaf));
            let message = with_memory_limit(message, is_killed, &wanted.pod, attempt.container);
            if let Some(run) = &run {
                let _ = run.leaf.remove();
            }
            forget(sandbox, &container, number);
            let created = run.filter(|_| at == StartFailedAt::Run).map(|run| created(&run.image, user));
            // Without a run, nothing needs the facts about its image.
            let _ = std::fs::remove_file(facts_path(&shell.paths, &wanted, &container, number));
            let (reason, message) = match at {
                StartFailedAt::Create => {
                    (StartFailureReason::CreateContainerError, format!("failed to {message}"))
                }
                StartFailedAt::Run => (StartFailureReason::RunContainerError, message),
            };
            log::warn!("failed to start {}: {message}", log_name(&wanted, attempt));
            let failure = failure(reason, message);
            shell.tasks.report(pod, PodObservation::StartFailed { attempt, failure, created }).await;
        }
        SupervisorEvent::Exited { container, number, exit } => {
            let Some(attempt) = attempt(&container, number) else { return };
            let key = (container, number);
            let oom_killed = sandbox.runs.borrow().get(&key).is_some_and(|run| oom_killed(&run.leaf));
            let started_at = sandbox.runs.borrow().get(&key).and_then(|run| Some(run.started.as_ref()?.at));
            let exit = exit_of(exit, started_at.unwrap_or_else(nodlet_host::clock::instant), oom_killed);
            let why = if oom_killed { " (OOMKilled)" } else { "" };
            log::info!("{} exited with {}{why}", log_name(&wanted, attempt), exit.code);
            shell.tasks.report(pod, PodObservation::Exited { attempt, exit: Box::new(exit) }).await;
        }
        SupervisorEvent::SandboxReady { .. } | SupervisorEvent::SandboxFailed { .. } => {}
        SupervisorEvent::ExecStarted { id, pid: _, terminal }
        | SupervisorEvent::Attached { id, terminal } => shell.execs.started(pod, id, terminal),
        SupervisorEvent::ExecFailed { id, message } | SupervisorEvent::AttachFailed { id, message } => {
            shell.execs.failed(pod, id, message)
        }
        SupervisorEvent::ExecExited { id, code } => shell.execs.exited(pod, id, code),
    }
}

/// Reports the ends of runs that a supervisor recorded before it died, and did not report.
pub(super) async fn report_records(shell: &Rc<Shell>, pod: PodIndex, sandbox: &Rc<Sandbox>) {
    let Some(wanted) = shell.pods.wanted(pod) else { return };
    let directory = shell.paths.run_pod(&wanted.pod.uid.0);
    let known = || {
        let runs = sandbox.runs.borrow();
        runs.iter().map(|((name, number), run)| (name.clone(), *number, run.started.is_some())).collect()
    };
    let runs: Vec<(String, u32, bool)> = known();
    for (container, number, start_reported) in runs {
        let Some(record) = ExitRecord::read_in_time(&directory, &container, number).await else { continue };
        if !start_reported {
            let process =
                StartedProcess { pid: 0, pidfd: None, at: record.started_at, user: User::default() };
            let started = SupervisorEvent::Started { container: container.clone(), number, process };
            report_event(shell, pod, sandbox, started).await;
        }
        report_event(shell, pod, sandbox, SupervisorEvent::Exited { container, number, exit: Some(record) })
            .await;
    }
}

pub(super) fn oom_killed(leaf: &Leaf) -> bool {
    leaf.oom_kills().unwrap_or_else(|error| {
        log::warn!("failed to read an OOM counter: {}", chain(&error));
        0
    }) > 0
}

pub(super) fn started_container(image: &ImageFacts, at: Instant, user: User) -> StartedContainer {
    StartedContainer {
        at,
        id: image.container_id.as_str().into(),
        image: image.image.as_str().into(),
        image_id: image.image_id.as_str().into(),
        spec_image: image.spec_image.as_str().into(),
        user,
        stop_signal: image.stop_signal,
    }
}

/// What is reported of a run that was created and whose process could not be executed.
fn created(image: &ImageFacts, user: Option<User>) -> Box<RunIdentity> {
    Box::new(RunIdentity {
        id: image.container_id.as_str().into(),
        image: image.image.as_str().into(),
        image_id: image.image_id.as_str().into(),
        process: user.map(|user| RunProcess { user, stop_signal: image.stop_signal }),
    })
}

/// The exit of a run, as reported to the core. A run without an exit record was lost with its supervisor.
pub(super) fn exit_of(record: Option<ExitRecord>, started_at: Instant, oom_killed: bool) -> Exit {
    match record {
        Some(record) => Exit {
            code: record.code,
            oom_killed,
            unknown: false,
            message: record.message.into(),
            started_at: Moment::ThisBoot(record.started_at),
            finished_at: Moment::ThisBoot(record.finished_at),
        },
        None => Exit {
            code: 137,
            oom_killed,
            unknown: true,
            message: "The container could not be located when the pod was terminated".into(),
            started_at: Moment::ThisBoot(started_at),
            finished_at: Moment::ThisBoot(nodlet_host::clock::instant()),
        },
    }
}
