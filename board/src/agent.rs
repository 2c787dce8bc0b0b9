//! `nodlet agent` and `nodlet down`: the engine, and its log on the console.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodlet_runtime::engine::{Config, Engine, EngineError};
use nodlet_runtime::error::chain;
use nodlet_runtime::paths::Paths;

/// Lines to standard error, which is the console or the journal.
struct Console;

impl log::Log for Console {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            // A console that is gone is no reason to end.
            let _ = writeln!(std::io::stderr(), "{:<5} {}", record.level(), record.args());
        }
    }

    fn flush(&self) {}
}

/// What the user said.
pub struct Options {
    /// `--root`.
    pub root: PathBuf,
    /// `--node-name`; the host's name in lower case by default.
    pub node_name: Option<String>,
    /// `--pod-cidr`.
    pub pod_cidr: Option<String>,
    /// `--stop-after`.
    pub stop_after: Option<u64>,
    /// `--quiet`: only warnings and errors.
    pub quiet: bool,
}

/// Runs the agent until SIGTERM.
///
/// # Errors
/// A sentence that says what is missing and what to do.
pub fn run(options: Options) -> Result<(), String> {
    begin(options.quiet)?;
    let config = config(options, false)?;
    start(config)
}

/// Ends the agent of this root, then stops every pod and removes what is left of them.
///
/// # Errors
/// A sentence that says what is in the way.
pub fn down(options: Options) -> Result<(), String> {
    begin(true)?;
    let root = options.root.clone();
    let config = config(options, true)?;
    end_agent(&Paths::new(&root))?;
    start(config)
}

fn begin(quiet: bool) -> Result<(), String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("pods need root: namespaces, mounts and cgroups are its own. Run it again as root (sudo nodlet ...)".into());
    }
    log::set_max_level(if quiet { log::LevelFilter::Warn } else { log::LevelFilter::Info });
    log::set_logger(&Console).map_err(|error| error.to_string())
}

fn start(config: Config) -> Result<(), String> {
    let engine = Engine::start(config).map_err(|error| explain(&error))?;
    engine.run().map_err(|error| explain(&error))
}

fn explain(error: &EngineError) -> String {
    format!("failed to {}", chain(error))
}

fn config(options: Options, down: bool) -> Result<Config, String> {
    let root = fs::canonicalize(&options.root)
        .map_err(|error| format!("--root {}: {error}; make the directory first", options.root.display()))?;
    let node_name = match options.node_name {
        Some(name) => name,
        None => host_name()?,
    };
    Ok(Config { root, node_name, pod_cidr: options.pod_cidr, stop_after: options.stop_after, down })
}

fn host_name() -> Result<String, String> {
    let name = nix::unistd::gethostname().map_err(|errno| format!("failed to read the host's name: {errno}"))?;
    Ok(name.to_string_lossy().to_lowercase())
}

/// How long an agent may take to end: it has nothing to wait for.
const AGENT_END: Duration = Duration::from_secs(10);

/// Ends the agent that holds this root, if there is one, and waits until it has.
fn end_agent(paths: &Paths) -> Result<(), String> {
    let Some(pid) = holder(&paths.agent_lock()) else { return Ok(()) };
    let process = pidfd(pid).map_err(|error| format!("failed to find the agent (pid {pid}): {error}"))?;
    let Some(process) = process else { return Ok(()) };
    kill(pid, Signal::SIGTERM).map_err(|errno| format!("failed to end the agent (pid {pid}): {errno}"))?;
    let mut poll = [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(&process), nix::poll::PollFlags::POLLIN)];
    let timeout = u16::try_from(AGENT_END.as_millis()).unwrap_or(u16::MAX);
    match nix::poll::poll(&mut poll, timeout) {
        Ok(0) => Err(format!("the agent (pid {pid}) does not end; kill it and try again")),
        Ok(_) => Ok(()),
        Err(errno) => Err(format!("failed to wait for the agent (pid {pid}): {errno}")),
    }
}

/// The process that holds the lock, as it wrote it there.
fn holder(lock: &Path) -> Option<Pid> {
    let file = fs::File::open(lock).ok()?;
    match nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockSharedNonblock) {
        Ok(_free) => None,
        Err(_) => Some(Pid::from_raw(fs::read_to_string(lock).ok()?.trim().parse().ok()?)),
    }
}

/// `None` if there is no such process any more.
fn pidfd(pid: Pid) -> std::io::Result<Option<std::os::fd::OwnedFd>> {
    use std::os::fd::FromRawFd;
    // SAFETY: pidfd_open takes two integers and returns a new descriptor or -1.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    if descriptor < 0 {
        let error = std::io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ESRCH) { Ok(None) } else { Err(error) };
    }
    // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
    Ok(Some(unsafe { std::os::fd::OwnedFd::from_raw_fd(descriptor as i32) }))
}
