//! `nodlet identity`: replaces the file that distinguishes this board from others with the same image.

use std::path::PathBuf;
use std::process::ExitCode;

use lexopt::Parser;

use crate::arguments::{Argument, Context, next};
use crate::boot::{read_short, require_our_init, short_text};
use crate::error::VerbError;
use crate::init::{FRAGMENT, judge_identity, replace_fragment};
use crate::verb::{Outcome, Verb};

pub(crate) const VERB: Verb =
    Verb { name: "identity", summary: "Replace the nodlet.conf of this board durably", run };

/// The error on a machine with another init, which has no identity of nodlet.
const ONLY_A_BOARD: &str = "only a board that nodlet's init booted has a nodlet.conf on its boot partition";

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let mut file = None;
    while let Some(argument) = next(&mut parser)? {
        match argument {
            Argument::Value(value) if file.is_none() => file = Some(PathBuf::from(value)),
            Argument::Value(value) => {
                return Err(context.wrong_use(format!("unexpected argument {value:?}")));
            }
            Argument::Flag(flag) => context.global(&flag, &mut parser)?,
        }
    }
    let file = file.ok_or_else(|| context.wrong_use("a FILE is needed, or - for standard input"))?;
    let shown = if file.as_os_str() == "-" { "STDIN".to_owned() } else { file.display().to_string() };
    let read = match shown.as_str() {
        "STDIN" => short_text(std::io::stdin().lock()),
        _ => read_short(&file).and_then(|text| text.ok_or_else(|| std::io::ErrorKind::NotFound.into())),
    };
    let text = read.map_err(|error| VerbError::new(format!("failed to read {shown}: {error}")))?;
    let summary = judge_identity(&text)
        .map_err(|why| VerbError::new(format!("{shown} is rejected: {why}; {FRAGMENT} stays as it is")))?;
    require_our_init(ONLY_A_BOARD)?;
    replace_fragment(&text).map_err(|error| {
        VerbError::new(format!("failed to replace {FRAGMENT}: {error}; the old file remains"))
    })?;
    println!("{FRAGMENT} is replaced: {summary}; the board applies it at the next boot");
    Ok(ExitCode::SUCCESS)
}
