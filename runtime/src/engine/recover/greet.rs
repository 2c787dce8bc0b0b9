//! Connects to the supervisors that an earlier agent left, and brings them up to date.

use std::cell::RefCell;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use nodlet_host::cgroup::PodCgroup;
use nodlet_host::error::chain;
use nodlet_supervisor::client::{Supervisor, SupervisorError, SupervisorEvent, SupervisorState};
use nodlet_wire::timeout::within;

use super::GREETING;
use crate::engine::run::Layers;

/// How long the request to execute this agent's binary is repeated while a supervisor is starting something.
const STARTING: Duration = Duration::from_secs(5);

/// Time between two requests to a supervisor that is busy.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// Waits for runs that an earlier agent was starting, so that they are not started twice. No pod is managed before
/// all are found, so a start that takes longer than [`GREETING`] is killed, and repeated later.
pub(super) async fn finish_starts(
    supervisor: &Supervisor,
    cgroup: &PodCgroup,
    mut state: SupervisorState,
) -> SupervisorState {
    if !await_starts(supervisor, &mut state).await {
        for (container, number) in &state.starting {
            log::error!("the start of {container}#{number} takes too long; killing it");
            // Its helper is in there.
            if let Err(error) = cgroup.known_leaf(container, *number).kill() {
                log::error!("failed to kill the start of {container}#{number}: {}", chain(&error));
            }
        }
        await_starts(supervisor, &mut state).await;
    }
    state
}

/// Waits for the starts that are under way. Returns `false` if some have not ended within [`GREETING`].
async fn await_starts(supervisor: &Supervisor, state: &mut SupervisorState) -> bool {
    let ended = async {
        while !state.starting.is_empty() {
            // One that dies meanwhile is noticed by whoever listens next.
            let Ok(event) = supervisor.next().await else { break };
            if let SupervisorEvent::Started { container, number, .. }
            | SupervisorEvent::StartFailed { container, number, .. } = &event
            {
                state.starting.retain(|(of, started)| of != container || started != number);
            }
            state.events.push(event);
        }
    };
    within(GREETING, ended).await.is_some()
}

/// Connects to the pod's supervisor, and returns it with its state; `None` if it is dead.
pub(super) async fn find_supervisor(
    known: &RefCell<Layers>,
    directory: &Path,
    ours: &File,
) -> Result<Option<(Supervisor, SupervisorState, MountedLayers)>, SupervisorError> {
    let found = loop {
        match Supervisor::connect(directory) {
            // Agents that died since have left their connections to it.
            Err(SupervisorError::Occupied) => smol::Timer::after(ASK_AGAIN).await,
            other => break other?,
        };
    };
    let Some(supervisor) = found else { return Ok(None) };
    let (state, layers) = greet(known, &supervisor, ours).await?;
    Ok(Some((supervisor, state, layers)))
}

/// The mounted image layers of a pod's runs.
type MountedLayers = Vec<Rc<OwnedFd>>;

async fn hello(
    known: &RefCell<Layers>,
    supervisor: &Supervisor,
) -> Result<(SupervisorState, MountedLayers), SupervisorError> {
    let mut layers = Vec::new();
    let mut keep = |name: &str, mount: OwnedFd| layers.push(known.borrow_mut().share(name, mount));
    let state = supervisor.hello_with(&mut keep).await?;
    Ok((state, layers))
}

/// Greets a supervisor. If it runs another binary than this agent, it executes this agent's binary first, so that
/// only this function has to support two versions. If that fails, the supervisor continues with its binary, if this
/// agent supports its protocol.
async fn greet(
    layers: &RefCell<Layers>,
    supervisor: &Supervisor,
    ours: &File,
) -> Result<(SupervisorState, MountedLayers), SupervisorError> {
    let mut theirs = match hello(layers, supervisor).await {
        Ok(state) if runs_on(state.0.pid, ours) => {
            supervisor.set_current();
            return Ok(state);
        }
        Ok(state) => Some(state),
        Err(SupervisorError::Version { .. }) => None,
        Err(error) => return Err(error),
    };
    let begun = nodlet_host::clock::instant();
    loop {
        theirs = match (supervisor.reexec(ours.as_fd()).await, theirs) {
            (Ok(()), _) => return hello(layers, supervisor).await,
            // A start is over soon, or is given up; one that we understand need not wait for it.
            (Err(SupervisorError::Busy), theirs)
                if theirs.is_none() || nodlet_host::clock::instant() < begun + STARTING =>
            {
                smol::Timer::after(ASK_AGAIN).await;
                theirs
            }
            // The results of starts that ended meanwhile are reported as news.
            (Err(error @ (SupervisorError::Busy | SupervisorError::Reexec { .. })), Some(state)) => {
                log::error!("failed to {}; the supervisor keeps its binary", chain(&error));
                return Ok(state);
            }
            (Err(error), _) => return Err(error),
        };
    }
}

/// Whether a process executes this file.
fn runs_on(pid: i32, binary: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    fs::metadata(format!("/proc/{pid}/exe")).ok().zip(binary.metadata().ok()).is_some_and(|(a, b)| same(a, b))
}
