//! `nodlet factory-reset`: resets a board that boots from a disk image and whose init is nodlet.

use lexopt::Parser;
use nix::sys::signal::Signal;

use crate::arguments::Context;
use crate::boot;
use crate::error::VerbError;
use crate::init::lost_by_reset;
use crate::init::partitions::{self, RESET_MARKER};
use crate::verb::{Outcome, Verb};
use crate::verbs::power;

pub(crate) const VERB: Verb =
    Verb { name: "factory-reset", summary: "Recreate the data partition of the board, and reboot", run };

/// The error on a machine with another init, whose data partition nodlet must not empty.
const ONLY_A_BOARD: &str = "only a board that nodlet's init booted has a data partition of nodlet to reset";

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    context.no_arguments(&mut parser)?;
    boot::require_our_init(ONLY_A_BOARD)?;
    if let Some(why) = lost_by_reset() {
        return Err(VerbError::new(format!("{why}; nothing was reset")));
    }
    partitions::leave_marker().map_err(|error| {
        VerbError::new(format!(
            "failed to leave {RESET_MARKER} for the next boot: {error}; nothing was reset"
        ))
    })?;
    power::signal_init(Signal::SIGTERM)
}
