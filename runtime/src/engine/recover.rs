//! Starting up is looking: at what a supervisor still holds, at what one left
//! behind, at the kernel's news channels. And the end of `nodlet down`, when
//! nothing of it may stay.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use serde::{Deserialize, Serialize};
use smol::Async;

use crate::cgroup::PodCgroup;
use crate::manifest::{self, Validation};
use crate::node::{Attempt, Found, FoundAttempt, FoundSandbox, Health, User};
use crate::paths::Paths;
use crate::sources::Wanted;
use crate::spec::ContainerIndex;
use crate::supervisor::ExitRecord;
use crate::supervisor::client::{
    self, StartedProcess, Supervisor, SupervisorError, SupervisorEvent, SupervisorState,
};
use crate::time::{Instant, Moment};
use crate::{container_config, volume};

use super::run::{self, Run};
use super::sandbox::Sandbox;
use super::{EngineError, News, Shell};

/// A pod that was found, for core and shell.
pub(super) struct FoundPod {
    pub(super) found: Found,
    pub(super) wanted: Rc<Wanted>,
    pub(super) created: Moment,
    pub(super) sandbox: Option<Sandbox>,
}

/// What is kept of a pod beside its supervisor, on tmpfs: enough for an agent
/// that finds it and no manifest of it.
#[derive(Serialize, Deserialize)]
struct OnTmpfs {
    source: PathBuf,
    created: Instant,
    ip: Option<Ipv4Addr>,
    object: serde_json::Value,
}

/// How long a supervisor may take to answer a new agent. It may wait for a slow card;
/// one that takes longer is dead to all who need it.
const GREETING: Duration = Duration::from_secs(20);

/// How long a process that an agent forked just before it was killed may hold that agent's
/// lock: until it executes a supervisor.
const HEIRS: Duration = Duration::from_secs(5);

/// Whether there is such a process.
fn lives(pid: i32) -> bool {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None) != Err(nix::Error::ESRCH)
}

/// Takes the root for this agent.
pub(super) fn take_root(paths: &Paths) -> Result<Flock<File>, EngineError> {
    for (directory, mode) in paths.directories() {
        make_directory(&directory, mode)
            .map_err(|source| EngineError::Prepare { path: directory, source })?;
    }
    let path = paths.agent_lock();
    let failed = |source| EngineError::Prepare { path: path.clone(), source };
    // Not through a link: what that leads to would be emptied.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path);
    let mut file = file.map_err(failed)?;
    let until = Instant::now() + HEIRS;
    let mut lock = loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => break lock,
            Err((mut held, nix::errno::Errno::EWOULDBLOCK)) => {
                let mut pid = String::new();
                let read = held.rewind().and_then(|()| held.read_to_string(&mut pid));
                let pid = read.ok().and_then(|_| pid.trim().parse().ok());
                if pid.is_none_or(lives) || Instant::now() > until {
                    return Err(EngineError::AlreadyRunning { pid, root: paths.root().to_owned() });
                }
                file = held;
                std::thread::sleep(Duration::from_millis(10));
            }
            Err((_, errno)) => return Err(failed(errno.into())),
        }
    };
    let written =
        lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{}", std::process::id()));
    written.map_err(failed)?;
    Ok(lock)
}

/// Makes a directory of ours with this mode. One that has it is left alone: setting it again
/// would write to flash.
fn make_directory(directory: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::create_dir_all(directory)?;
    let permissions = fs::metadata(directory)?.permissions();
    if permissions.mode() & 0o7777 == mode {
        return Ok(());
    }
    fs::set_permissions(directory, fs::Permissions::from_mode(mode))
}

/// Opens the API's socket in the place of one that an earlier agent left.
pub(super) fn listen(paths: &Paths) -> Result<Async<UnixListener>, EngineError> {
    crate::api::listen(paths.root())
        .map_err(|source| EngineError::Prepare { path: paths.api_socket(), source })
}

/// Writes down what a later agent must know of the pod.
pub(super) fn write_pod(shell: &Shell, wanted: &Wanted, ip: Option<Ipv4Addr>) -> io::Result<()> {
    let directory = shell.paths.run_pod(&wanted.pod.uid.0);
    fs::create_dir_all(&directory)?;
    let pod = OnTmpfs {
        source: wanted.source.clone(),
        created: Instant::now(),
        ip,
        object: serde_json::from_str(wanted.object.get())?,
    };
    let new = directory.join("pod.json.new");
    fs::write(&new, serde_json::to_vec(&pod)?)?;
    fs::rename(new, directory.join("pod.json"))
}

/// All pods that an earlier agent of this boot left, alive or not.
pub(super) async fn look(shell: &Rc<Shell>) -> Vec<FoundPod> {
    let mut found = Vec::new();
    let entries = fs::read_dir(shell.paths.run_pods()).into_iter().flatten().flatten();
    let (directories, strays): (Vec<_>, Vec<_>) =
        entries.map(|entry| entry.path()).partition(|path| path.is_dir() && !path.is_symlink());
    for stray in strays {
        log::warn!("{} is no directory of a pod; removing it", stray.display());
        if let Err(error) = fs::remove_file(&stray) {
            log::error!("failed to remove {}: {error}", stray.display());
        }
    }
    // All at once: a supervisor that is slow to answer holds up nobody but itself.
    let looks: Vec<_> = directories
        .into_iter()
        .map(|directory| {
            let shell = shell.clone();
            let executor = shell.clone();
            executor.executor.spawn(async move { (look_at(&shell, &directory).await, directory) })
        })
        .collect();
    for look in looks {
        let (looked, directory) = look.await;
        match looked {
            Ok(pod) => found.push(pod),
            Err(message) => {
                log::error!("{}: {message}; ending what is left of it", directory.display());
                let uid = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
                shell.end_unreadable(&uid, &directory).await;
            }
        }
    }
    // Cgroups whose pod has no directory: the agent died between the two, or somebody removed it.
    let is_found = |uid: &str| found.iter().any(|pod: &FoundPod| *pod.wanted.pod.uid.0 == *uid);
    for uid in shell.cgroups.supervised() {
        match shell.cgroups.supervisor(&uid) {
            Ok(cgroup) if !is_found(&uid) => shell.empty(&uid, &[cgroup]).await,
            Ok(_) => {}
            Err(error) => log::error!("failed to look for the supervisor of {uid}: {error}"),
        }
    }
    for (uid, cgroup) in shell.cgroups.pods() {
        if !is_found(&uid) {
            shell.empty(&uid, &[cgroup]).await;
        }
    }
    if let Err(error) = client::remove_free_locks(&shell.paths.locks(), None) {
        log::error!("failed to remove locks of pods that are gone: {error}");
    }
    found
}

async fn look_at(shell: &Rc<Shell>, directory: &Path) -> Result<FoundPod, String> {
    let bytes = fs::read(directory.join("pod.json")).map_err(|error| format!("pod.json: {error}"))?;
    let mut on_tmpfs: OnTmpfs =
        serde_json::from_slice(&bytes).map_err(|error| format!("pod.json: {error}"))?;
    // It runs here, whatever the node was called when it was admitted.
    on_tmpfs.object["spec"]["nodeName"] = shell.config.node_name.as_str().into();
    let manifest = manifest::admit(on_tmpfs.object, Validation::Ignore, &shell.config.node_name)
        .map_err(|error| format!("pod.json: {error}"))?;
    let wanted = Rc::new(Wanted::new(manifest, &on_tmpfs.source));
    let uid = wanted.pod.uid.0.clone();
    let mut record = shell.records.load(&uid);
    if let Some(grace) = read_deletion(directory)
        && record.as_ref().is_none_or(|record| !record.phase.is_terminal())
    {
        record.get_or_insert_default().deletion_grace_period_seconds = Some(grace);
    }
    let created = Moment::ThisBoot(on_tmpfs.created);
    let created = record.as_ref().and_then(|record| record.start_time).unwrap_or(created);
    let cgroup = shell.cgroups.pod(&wanted.pod).map_err(|error| error.to_string())?;
    if let Some(ip) = on_tmpfs.ip {
        shell.network.borrow_mut().adopt(&wanted.pod.uid, ip);
    }
    let living = match Supervisor::connect(directory) {
        Ok(Some(supervisor)) => {
            let late = async {
                smol::Timer::after(GREETING).await;
                Err(SupervisorError::Receive(io::ErrorKind::TimedOut.into()))
            };
            match smol::future::or(greet(&supervisor), late).await {
                Ok(state) => Some((supervisor, state)),
                Err(error) => {
                    log::error!(
                        "the supervisor of {uid} does not answer: {}; killing it",
                        crate::error::chain(&error)
                    );
                    None
                }
            }
        }
        Ok(None) => None,
        Err(error) => return Err(error.to_string()),
    };
    let (mut attempts, mut ready, mut sandbox) = (Vec::new(), None, None);
    if let Some((supervisor, state)) = living {
        let known = Known::of(finish_starts(&supervisor, &cgroup, state).await);
        for (container, number) in &known.failed {
            // It is planned again, with the same number.
            if let Err(error) = supervisor.forget(container, *number) {
                log::warn!("{uid}: {}", crate::error::chain(&error));
            }
        }
        ready = known.ready_at;
        let volumes = volume::known(&volume::Request::new(&wanted.pod, &shell.paths));
        let mut made = Sandbox::new(supervisor, cgroup, on_tmpfs.ip, volumes);
        attempts = adopt_runs(shell, &wanted, &made, known.runs);
        for (digest, mount) in known.layers {
            let mount = Rc::new(mount);
            shell.layers.borrow_mut().put(&digest, &mount);
            made.layers.push(mount);
        }
        sandbox = Some(made);
    }
    if ready.is_none() {
        // The agent died while it was being made, or the supervisor did: what is
        // left of it goes, and the core begins again.
        sandbox = None;
        shell.remove_remains(&wanted).await;
        attempts = lost_runs(shell, &wanted, directory, on_tmpfs.created);
    }
    let found = Found {
        pod: wanted.pod.clone(),
        record,
        sandbox: sandbox.as_ref().zip(ready).map(|(sandbox, at)| FoundSandbox { ip: sandbox.ip, at }),
        attempts,
    };
    Ok(FoundPod { found, wanted, created, sandbox })
}

/// Waits for what an earlier agent was starting, so that it is not asked for twice. No pod is
/// looked after before all are found, so a start that takes longer than [`GREETING`] is ended,
/// and begun again.
async fn finish_starts(
    supervisor: &Supervisor,
    cgroup: &PodCgroup,
    mut state: SupervisorState,
) -> SupervisorState {
    if !hear_starts(supervisor, &mut state).await {
        for (container, number) in &state.starting {
            log::error!("the start of {container}#{number} takes too long; killing it");
            // Its helper is in there.
            if let Err(error) = cgroup.known_leaf(container, *number).kill() {
                log::error!("failed to kill the start of {container}#{number}: {error}");
            }
        }
        hear_starts(supervisor, &mut state).await;
    }
    state
}

/// Hears how starts end that are under way; `false` if some have not within [`GREETING`].
async fn hear_starts(supervisor: &Supervisor, state: &mut SupervisorState) -> bool {
    let hear = async {
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
        true
    };
    let late = async {
        smol::Timer::after(GREETING).await;
        false
    };
    smol::future::or(hear, late).await
}

/// Greets a supervisor, brought up to date first if it runs another binary than we do: nothing
/// else need know two versions. One that cannot take over stays what it is, if we understand it.
async fn greet(supervisor: &Supervisor) -> Result<SupervisorState, SupervisorError> {
    let ours = File::open("/proc/self/exe").map_err(SupervisorError::Execute)?;
    let theirs = match supervisor.hello().await {
        Ok(state) if runs_on(state.pid, &ours) => return Ok(state),
        Ok(state) => Some(state),
        Err(SupervisorError::Version { .. }) => None,
        Err(error) => return Err(error),
    };
    match (supervisor.reexec(ours.as_fd()).await, theirs) {
        (Ok(()), _) => supervisor.hello().await,
        (Err(error @ SupervisorError::Reexec { .. }), Some(state)) => {
            log::error!("failed to {}; it goes on as it was", crate::error::chain(&error));
            Ok(state)
        }
        (Err(error), _) => Err(error),
    }
}

/// Whether a process executes this very file.
fn runs_on(pid: i32, binary: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    fs::metadata(format!("/proc/{pid}/exe")).ok().zip(binary.metadata().ok()).is_some_and(|(a, b)| same(a, b))
}

/// What a supervisor has told, by run.
#[derive(Default)]
struct Known {
    ready_at: Option<Instant>,
    runs: BTreeMap<(String, u32), KnownRun>,
    /// Starts that failed while no agent looked.
    failed: Vec<(String, u32)>,
    layers: Vec<(String, OwnedFd)>,
}

struct KnownRun {
    process: StartedProcess,
    /// Over, with its record if there is one.
    exit: Option<Option<ExitRecord>>,
}

impl Known {
    fn of(state: SupervisorState) -> Known {
        let mut known = Known { layers: state.layers, ..Known::default() };
        for event in state.events {
            match event {
                SupervisorEvent::SandboxReady { at } => known.ready_at = Some(at),
                SupervisorEvent::Started { container, number, process } => {
                    known.runs.insert((container, number), KnownRun { process, exit: None });
                }
                SupervisorEvent::Exited { container, number, exit } => {
                    if let Some(run) = known.runs.get_mut(&(container, number)) {
                        run.exit = Some(exit);
                    }
                }
                SupervisorEvent::StartFailed { container, number, .. } => {
                    known.failed.push((container, number))
                }
                // Processes that an earlier agent asked for have nobody who waits for them.
                SupervisorEvent::SandboxFailed { .. }
                | SupervisorEvent::ExecStarted { .. }
                | SupervisorEvent::ExecFailed { .. }
                | SupervisorEvent::ExecExited { .. } => {}
            }
        }
        known
    }
}

/// What the supervisor knows of its runs: those that live go to the shell, all to the core.
fn adopt_runs(
    shell: &Shell,
    wanted: &Wanted,
    sandbox: &Sandbox,
    runs: BTreeMap<(String, u32), KnownRun>,
) -> Vec<FoundAttempt> {
    let mut attempts = Vec::new();
    let healths = read_healths(&shell.paths.run_pod(&wanted.pod.uid.0));
    for ((name, number), known) in runs {
        let position = wanted.pod.spec.containers.iter().position(|container| container.name == name);
        let Some(index) = position.and_then(|index| u8::try_from(index).ok()) else { continue };
        let facts = run::read_facts(shell, wanted, &name, number);
        let at = known.process.at;
        let container = run::started_container(&facts, at, known.process.user);
        let leaf = sandbox.cgroup.known_leaf(&name, number);
        let exit = known.exit.map(|record| run::exit_of(record, at, run::oom_killed(&leaf)));
        let attempt = Attempt { container: ContainerIndex(index), number };
        if exit.is_none()
            && let Err(error) = leaf.kill_execs()
        {
            // Nobody waits for what an earlier agent had executed.
            log::error!("failed to kill what was executed in {name}#{number}: {error}");
        }
        if exit.is_some() {
            // Its end is told to the core here, and never again.
            if let Err(error) = leaf.remove() {
                log::error!("failed to remove the cgroup of {name}#{number}: {error}");
            }
        } else {
            let run = Run {
                leaf,
                process: known.process.pidfd,
                started: Some(container.clone()),
                image: facts,
                _layers: Vec::new(),
            };
            sandbox.runs.borrow_mut().insert((name, number), run);
        }
        let health = healths.get(usize::from(index)).copied().unwrap_or_default();
        attempts.push(FoundAttempt { attempt, container, exit, health });
    }
    attempts
}

/// The newest run of each container whose supervisor died while no agent looked: how
/// it ended is on record, or nobody knows.
fn lost_runs(shell: &Shell, wanted: &Wanted, directory: &Path, created: Instant) -> Vec<FoundAttempt> {
    let newest = |name: &str| {
        let numbers = names(&directory.join(run::FACTS));
        let of =
            |file: &String| file.strip_suffix(".json")?.strip_prefix(name)?.strip_prefix('_')?.parse().ok();
        numbers.iter().filter_map(of).max()
    };
    let lost = |index: ContainerIndex| {
        let name = &wanted.pod.spec.container(index).name;
        let number = newest(name)?;
        let exit = ExitRecord::read(directory, name, number).ok();
        let at = exit.as_ref().map_or(created, |exit| exit.started_at);
        let user = User::default();
        Some(FoundAttempt {
            attempt: Attempt { container: index, number },
            container: run::started_container(&run::read_facts(shell, wanted, name, number), at, user),
            exit: exit.map(|record| run::exit_of(Some(record), at, false)),
            health: Health::default(),
        })
    };
    wanted.pod.spec.container_indexes().filter_map(lost).collect()
}

/// The file of [`write_deletion`].
const DELETION: &str = "deletion.json";

/// Writes down that a pod is being deleted, with this grace.
///
/// # Errors
/// If the pod's run-time directory cannot be written.
pub(super) fn write_deletion(directory: &Path, grace: Duration) -> io::Result<()> {
    let new = directory.join("deletion.json.new");
    fs::write(&new, grace.as_secs().to_string())?;
    fs::rename(new, directory.join(DELETION))
}

/// The grace in seconds of a pod that an earlier agent was deleting.
fn read_deletion(directory: &Path) -> Option<u64> {
    fs::read_to_string(directory.join(DELETION)).ok()?.parse().ok()
}

/// What probes had found of each container when an earlier agent ended (`started`
/// and `ready` stay what they are, pod-semantics 5.3).
fn read_healths(directory: &Path) -> Vec<Health> {
    fs::read(directory.join(HEALTH))
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

/// The file of [`read_healths`].
const HEALTH: &str = "health.json";

/// Writes down what probes have found, for a later agent.
///
/// # Errors
/// If the pod's run-time directory cannot be written.
pub(super) fn write_healths(directory: &Path, healths: &[Health]) -> io::Result<()> {
    let new = directory.join("health.json.new");
    fs::write(&new, serde_json::to_vec(healths)?)?;
    fs::rename(new, directory.join(HEALTH))
}

/// Removes what pods of earlier boots left on disk that no source wants any more.
pub(super) fn sweep(shell: &Shell, wanted: &BTreeSet<String>) {
    let (paths, fault, images) = (shell.paths.clone(), shell.fault.clone(), shell.images.clone());
    let records = shell.records.clone();
    let wanted = wanted.clone();
    let swept = shell.storage.run(move || {
        // Half-written files of an agent that died: nobody reads names like these.
        for directory in [paths.records(), paths.applied_manifests()] {
            for name in
                names(&directory).iter().filter(|name| name.starts_with('.') && name.ends_with(".new"))
            {
                if let Err(error) = fs::remove_file(directory.join(name)) {
                    log::warn!("failed to remove {name} from {}: {error}", directory.display());
                }
            }
        }
        let mut uids: BTreeSet<String> = records.uids().into_iter().collect();
        uids.extend(names(&paths.pods()));
        for uid in uids.difference(&wanted) {
            let removed = volume::tear_down(&paths.pod(uid))
                .and_then(|()| crate::store::remove(&records.path_of(uid), &*fault))
                .and_then(|()| images.release(uid).map_err(io::Error::other));
            if let Err(error) = removed {
                log::error!("failed to remove what pod {uid} left: {error}");
            }
        }
        remove_logs(&paths, |uid| wanted.contains(uid));
    });
    shell.spawn(swept);
}

/// Removes the logs of all pods but those that `keep` names by uid.
fn remove_logs(paths: &Paths, keep: impl Fn(&str) -> bool) {
    for name in names(&paths.logs()) {
        // `<namespace>_<name>_<uid>`
        if let [namespace, pod, uid] = name.splitn(3, '_').collect::<Vec<_>>()[..]
            && !keep(uid)
            && let Err(error) = container_config::remove_logs(paths, namespace, pod, uid)
        {
            log::error!("failed to remove the logs of pod {uid}: {error}");
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Kills every process of the pod and waits until the last is gone.
pub(super) async fn kill_remains(cgroup: &PodCgroup) {
    loop {
        match cgroup.kill() {
            Ok(()) => {}
            Err(error) => log::error!("failed to kill what is left of a pod: {error}"),
        }
        let emptied = async {
            cgroup.emptied().await;
            true
        };
        let late = async {
            smol::Timer::after(Duration::from_secs(10)).await;
            false
        };
        if smol::future::or(emptied, late).await {
            return;
        }
        log::error!("processes of {} do not die; killing them again", cgroup.name());
    }
}

/// `MemTotal`; zero if the kernel does not say, which counts as very little.
pub(super) fn memory_of_the_machine() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// The signals that end an agent.
fn ends() -> SigSet {
    SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT])
}

/// Keeps the signals that end an agent for its loop. Before the first thread is made: one
/// that does not block them would die of them, and all others with it.
pub(super) fn block_ends() -> Result<(), EngineError> {
    let failed = |errno: nix::Error| EngineError::Kernel { what: "a signal mask", source: errno.into() };
    ends().thread_block().map_err(failed)
}

/// Tasks that turn the kernel's news into ours.
pub(super) fn watch(shell: &Rc<Shell>) -> Result<(), EngineError> {
    let failed = |what| move |source: io::Error| EngineError::Kernel { what, source };

    let signals = SignalFd::with_flags(&ends(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(|errno| failed("a signalfd")(errno.into()))?;
    watch_one(shell, duplicate(&signals).map_err(failed("a signalfd"))?, "signalfd", move || {
        matches!(signals.read_signal(), Ok(Some(_))).then_some(News::Terminate)
    })?;

    let images = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)
        .map_err(|errno| failed("inotify")(errno.into()))?;
    for path in shell.images.watch_paths() {
        fs::create_dir_all(&path).map_err(|source| EngineError::Prepare { path: path.clone(), source })?;
        images
            .add_watch(&path, AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CREATE)
            .map_err(|errno| EngineError::Prepare { path, source: errno.into() })?;
    }
    watch_one(shell, duplicate(&images).map_err(failed("inotify"))?, "inotify", move || {
        images.read_events().is_ok().then_some(News::ImagesChanged)
    })?;

    let sources = duplicate(&shell.sources.borrow().descriptor()).map_err(failed("inotify"))?;
    let task = readable(sources).map_err(failed("inotify"))?;
    let sender = shell.news.clone();
    shell.spawn(async move {
        // The loop reads the news themselves; here is only that there are some.
        while task.readable().await.is_ok() && sender.send(News::SourcesChanged).await.is_ok() {
            smol::future::yield_now().await;
        }
    });

    let clock = TimerFd::new(ClockId::CLOCK_REALTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)
        .map_err(|errno| failed("a timerfd")(errno.into()))?;
    arm(&clock).map_err(|errno| failed("a timerfd")(errno.into()))?;
    watch_one(shell, duplicate(&clock).map_err(failed("a timerfd"))?, "timerfd", move || {
        // ECANCELED: the clock was set. The timer itself is never due.
        let _ = clock.wait();
        let _ = arm(&clock);
        Some(News::ClockSet)
    })
}

/// Arms a timer that never comes due and is cancelled when the clock is set.
fn arm(clock: &TimerFd) -> nix::Result<()> {
    let never = nix::sys::time::TimeSpec::from_duration(Duration::from_secs(u64::from(u32::MAX) * 16));
    clock.set(
        Expiration::OneShot(never),
        TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET,
    )
}

fn duplicate(descriptor: &impl AsFd) -> io::Result<OwnedFd> {
    descriptor.as_fd().try_clone_to_owned()
}

fn readable(descriptor: OwnedFd) -> io::Result<Async<OwnedFd>> {
    Async::new_nonblocking(descriptor)
}

/// Tells the loop what `take` makes of the descriptor each time it is readable.
fn watch_one(
    shell: &Shell,
    descriptor: OwnedFd,
    what: &'static str,
    mut take: impl FnMut() -> Option<News> + 'static,
) -> Result<(), EngineError> {
    let descriptor = readable(descriptor).map_err(|source| EngineError::Kernel { what, source })?;
    let sender = shell.news.clone();
    shell.spawn(async move {
        while descriptor.readable().await.is_ok() {
            if let Some(news) = take()
                && sender.send(news).await.is_err()
            {
                return;
            }
        }
    });
    Ok(())
}

impl Shell {
    /// Ends what a pod has left, its supervisor too, and removes its cgroups.
    pub(super) async fn remove_remains(&self, wanted: &Wanted) {
        let uid = &wanted.pod.uid.0;
        let found = self.cgroups.supervisor(uid).and_then(|own| Ok([own, self.cgroups.pod(&wanted.pod)?]));
        match found {
            Ok(cgroups) => self.empty(uid, &cgroups).await,
            Err(error) => log::error!("failed to look for processes of {uid}: {error}"),
        }
    }

    async fn empty(&self, uid: &str, cgroups: &[PodCgroup]) {
        for cgroup in cgroups {
            kill_remains(cgroup).await;
            if let Err(error) = cgroup.remove() {
                log::error!("failed to remove a cgroup of {uid}: {error}");
            }
        }
    }

    /// A pod whose run-time files cannot be read: nobody can say what it is, so it ends.
    async fn end_unreadable(&self, uid: &str, directory: &Path) {
        let mut cgroups: Vec<PodCgroup> = self.cgroups.supervisor(uid).into_iter().collect();
        cgroups.extend(
            self.cgroups.pods().into_iter().filter(|(known, _)| known == uid).map(|(_, cgroup)| cgroup),
        );
        self.empty(uid, &cgroups).await;
        if let Err(error) = fs::remove_dir_all(directory) {
            log::error!("failed to remove {}: {error}", directory.display());
        }
    }

    /// The end of `nodlet down`: nothing of ours stays but images, manifests and settings.
    pub(super) async fn clean_up(&self) -> Result<(), EngineError> {
        self.network.borrow_mut().remove().map_err(EngineError::Network)?;
        self.cgroups.remove_all().map_err(EngineError::Cgroups)?;
        remove_logs(&self.paths, |_| false);
        for path in self.paths.removed_by_down() {
            let removed = match fs::symlink_metadata(&path) {
                Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(&path),
                Ok(_) => fs::remove_file(&path),
                Err(error) => Err(error),
            };
            match removed {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(EngineError::Prepare { path, source });
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}
