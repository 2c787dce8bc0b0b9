//! `nodlet safe-mode`: shows whether and why a board runs without agent and pods, and leaves that mode.

use std::process::ExitCode;

use lexopt::Parser;

use crate::arguments::Context;
use crate::boot::{crash_count, safe_mode};
use crate::error::VerbError;
use crate::verb::{Outcome, Verb};
use crate::verbs::power;

pub(crate) const VERB: Verb =
    Verb { name: "safe-mode", summary: "Show whether the board is in safe mode, or leave it", run };

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let mut leave = false;
    while let Some(flag) = context.next_flag(&mut parser)? {
        match flag.as_str() {
            "--leave" => leave = true,
            flag => context.global(flag, &mut parser)?,
        }
    }
    let Some(why) = safe_mode::is_safe() else {
        println!("this board is not in safe mode");
        return Ok(ExitCode::SUCCESS);
    };
    if !leave {
        println!("{why}");
        return Ok(ExitCode::SUCCESS);
    }
    crash_count::remove()
        .map_err(|error| VerbError::new(format!("failed to clear the failures: {error}")))?;
    if safe_mode::is_requested_by_kernel() {
        return Err(VerbError::new(format!(
            "the failures are cleared, but the kernel argument {0} remains: boot without {0}",
            safe_mode::ARGUMENT
        )));
    }
    power::reboot()
}
