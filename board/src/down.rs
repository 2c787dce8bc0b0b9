//! `nodlet down`: ends every pod and the agent, and leaves nothing behind.

use std::process::ExitCode;

use lexopt::Parser;

use crate::arguments::{Context, Flag};
use crate::client::Client;
use crate::{Outcome, Verb};

pub(crate) const VERB: Verb = Verb {
    name: "down",
    summary: "Stop all pods and the agent",
    help: "\
Stop all pods in order and then the agent. No process, mount, cgroup or link
stays; manifests do, so that the pods start again with the next agent.

Usage: nodlet down [flags]

Examples:
  # Before the machine is switched off
  nodlet down

Flags:
      --root DIR   of the agent of this root
",
    run,
};

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    while let Some(argument) = parser.next()? {
        if let lexopt::Arg::Value(value) = argument {
            return Err(context.wrong_use(format!("unexpected argument {value:?}")));
        }
        let flag = Flag::from(argument);
        context.global(&flag, &mut parser)?;
    }
    Client::new(&context.root).request("POST", "/shutdown", "application/json", None)?;
    Ok(ExitCode::SUCCESS)
}
