//! `nodlet agent` and `nodlet down`: the process that runs the engine. Read next: `agent/flags.rs`.

mod console;
mod flags;
mod limits;
mod running;
mod services;
mod shutdown;

use std::fs;
use std::process::ExitCode;

use lexopt::Parser;
use nix::sys::signal::Signal;
use nodlet_host::error::chain;
use nodlet_host::paths::Paths;
use nodlet_runtime::engine::{Config, Engine, EngineError};

use crate::arguments::Context;
use crate::error::VerbError;
use crate::verb::{Outcome, Verb};
use console::Console;
pub(crate) use flags::host_name;
use flags::{Options, config};
pub(crate) use running::{end_agent, executable};
pub(crate) use shutdown::flags_of as shutdown_flags;

pub(crate) const VERB: Verb = Verb { name: "agent", summary: "Run the pods of this machine", run };

/// The verb `nodlet down`.
pub(crate) const DOWN: Verb = Verb { name: "down", summary: "Stop all pods and the agent", run: down };

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let options = Options::parse(&mut context, &mut parser)?;
    begin(options.quiet)?;
    set_oom_score();
    start(config(&context.root, options, false)?)
}

fn down(mut context: Context, mut parser: Parser) -> Outcome {
    let mut options = Options::default();
    while let Some(flag) = context.next_flag(&mut parser)? {
        match flag.as_str() {
            flag if options.shutdown.take(flag, &mut parser)? => {}
            flag => context.global(flag, &mut parser)?,
        }
    }
    begin(false)?;
    let config = config(&context.root, options, true)?;
    end_agent(&Paths::new(&config.root))?;
    let done = start(config)?;
    println!(
        "all pods have ended; images, manifests and records stay, logs and emptyDirs are removed: the next agent \
         starts the pods again, except those that have finished and those of restartPolicy Never that had started"
    );
    Ok(done)
}

fn begin(quiet: bool) -> Result<(), VerbError> {
    if !nix::unistd::geteuid().is_root() {
        let why =
            "the agent must run as root, because namespaces, mounts and cgroups require it: run it with sudo";
        return Err(VerbError::new(why));
    }
    reset_inherited_state().map_err(|error| VerbError::new(format!("failed to begin: {error}")))?;
    log::set_max_level(if quiet { log::LevelFilter::Warn } else { log::LevelFilter::Info });
    log::set_logger(&Console).map_err(|error| VerbError::new(error.to_string()))
}

/// Resets inherited state, so that the agent behaves the same whether a shell, a script or a service manager
/// starts it.
fn reset_inherited_state() -> nix::Result<()> {
    use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
    // The agent needs exactly this mask: files get the mode they are created with, but are never group- or
    // world-writable.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    // This program has opened no descriptors yet except the standard three.
    nodlet_kernel::process::close_range(3, u32::MAX)?;
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    // SIGHUP and SIGINT stay ignored if the caller ignores them, which may be intended.
    nodlet_kernel::signal::reset(Signal::SIGTERM as i32)
}

/// Sets the OOM score that the kubelet uses: when the machine is out of memory, the kernel kills agent and
/// supervisors last. Containers have scores of their own.
fn set_oom_score() {
    if let Err(error) = fs::write("/proc/self/oom_score_adj", "-999") {
        log::debug!("failed to lower oom_score_adj: {error}");
    }
}

fn start(config: Config) -> Outcome {
    // The caller's directory may be on a file system that somebody wants to unmount.
    nix::unistd::chdir("/")
        .map_err(|errno| VerbError::new(format!("failed to change directory: {errno}")))?;
    let explain = |error: EngineError| VerbError::new(format!("failed to {}", chain(&error)));
    Engine::start(config).map_err(explain)?.run().map_err(explain)?;
    Ok(ExitCode::SUCCESS)
}
