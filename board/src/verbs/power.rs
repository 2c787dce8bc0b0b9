//! `nodlet reboot` and `nodlet poweroff`: reboot or turn off a board whose init is nodlet.

use std::process::ExitCode;

use lexopt::Parser;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::arguments::Context;
use crate::boot::require_our_init;
use crate::error::VerbError;
use crate::verb::{Outcome, Verb};

/// The verb `nodlet reboot`.
pub(crate) const REBOOT: Verb = Verb {
    name: "reboot",
    summary: "End all pods and reboot the board",
    run: |context, parser| go_down(context, parser, Signal::SIGTERM),
};

/// The verb `nodlet poweroff`.
pub(crate) const POWEROFF: Verb = Verb {
    name: "poweroff",
    summary: "End all pods and turn the board off",
    run: |context, parser| go_down(context, parser, Signal::SIGUSR2),
};

fn go_down(mut context: Context, mut parser: Parser, signal: Signal) -> Outcome {
    context.no_arguments(&mut parser)?;
    require_our_init(USE_ITS_OWN)?;
    signal_init(signal)
}

/// The advice of `reboot` and `poweroff` on a machine with another init.
const USE_ITS_OWN: &str = "use the command of that init";

/// Requests process 1 to shut the board down or reboot it.
pub(crate) fn signal_init(signal: Signal) -> Outcome {
    kill(Pid::from_raw(1), signal)
        .map_err(|error| VerbError::new(format!("failed to signal process 1: {}", error.desc())))?;
    Ok(ExitCode::SUCCESS)
}

/// Ends all pods and reboots a board whose init is nodlet.
pub(crate) fn reboot() -> Outcome {
    signal_init(Signal::SIGTERM)
}
