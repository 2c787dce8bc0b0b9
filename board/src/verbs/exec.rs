//! `nodlet exec`: runs a command in a running container as if it ran here: with this terminal, this input and
//! the command's exit code.

use std::process::ExitCode;

use lexopt::Parser;
use serde_json::Value;

use crate::arguments::{Context, next_flag_before_command};
use crate::client::session::{self, Ended, Stdio};
use crate::client::{Client, encode};
use crate::error::VerbError;
use crate::verb::{Outcome, Verb};
use crate::verbs::containers::{self, Session};

pub(crate) const VERB: Verb = Verb { name: "exec", summary: "Run a command in a container", run };

#[derive(Debug, Default, PartialEq, Eq)]
struct Exec {
    session: Session,
    command: Vec<String>,
}

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let Exec { mut session, command } = Exec::parse(&mut context, &mut parser)?;
    let client = Client::new(&context)?;
    if session.container.is_none() {
        session.container = containers::default(&context, &client, &session.pod)?;
    }
    session.tty = session.tty && session::check_terminal();
    let mut target = session.target(&context, "exec", session.tty);
    command.iter().for_each(|argument| target.push_str(&format!("&command={}", encode(argument))));
    let Session { stdin, tty, .. } = session;
    match session::run(&client, &target, &Stdio { stdin, tty, redraw: false, detach_keys: Vec::new() })? {
        Ended::Status(status) => outcome(&status),
        Ended::Detached => Err(VerbError::new("the command was lost")),
    }
}

impl Exec {
    fn parse(context: &mut Context, parser: &mut Parser) -> Result<Exec, VerbError> {
        let mut exec = Exec::default();
        let mut values: Vec<String> = Vec::new();
        while let Some(flag) = next_flag_before_command(parser, &mut values, &mut exec.command)? {
            exec.session.flag(&flag, context, parser)?;
        }
        let mut values = values.into_iter();
        let pod = values
            .next()
            .ok_or_else(|| context.wrong_use("pod, type/name or --filename must be specified"))?;
        exec.session.pod = containers::pod_name(&pod)?;
        if values.next().is_some() {
            return Err(VerbError::new(format!(
                "exec [POD] [COMMAND] is not supported anymore. Use exec [POD] -- [COMMAND] instead: nodlet exec {pod} -- COMMAND"
            )));
        }
        if exec.command.is_empty() {
            return Err(context.wrong_use("you must specify at least one command for the container"));
        }
        Ok(exec)
    }
}

/// Returns the command's exit code as the exit code of `nodlet exec`.
fn outcome(status: &Value) -> Outcome {
    if status["status"] == "Success" {
        return Ok(ExitCode::SUCCESS);
    }
    let causes = status["details"]["causes"].as_array();
    let code = causes
        .into_iter()
        .flatten()
        .find(|cause| cause["reason"] == "ExitCode")
        .and_then(|cause| cause["message"].as_str()?.parse::<u8>().ok());
    match code {
        Some(code) => {
            eprintln!("command terminated with exit code {code}");
            Ok(ExitCode::from(code))
        }
        None => Err(VerbError::new(status["message"].as_str().unwrap_or("the command was lost"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::check;

    #[test]
    fn arguments_of_exec() {
        let web = || Session { pod: "web".into(), ..Session::default() };
        let exec = |session: Session, command: &[&str]| Exec {
            session,
            command: command.iter().map(|&word| word.into()).collect(),
        };
        let accepted = [
            ("web -- date", exec(web(), &["date"])),
            (
                "-it web -- sh -c true",
                exec(Session { stdin: true, tty: true, ..web() }, &["sh", "-c", "true"]),
            ),
            (
                "pod/web -c app -- ls -- -l",
                exec(Session { container: Some("app".into()), ..web() }, &["ls", "--", "-l"]),
            ),
            ("web -- --help", exec(web(), &["--help"])),
        ];
        let rejected = [
            ("", "pod, type/name or --filename must be specified"),
            ("-- date", "pod, type/name or --filename must be specified"),
            ("web", "you must specify at least one command for the container"),
            ("web --", "you must specify at least one command for the container"),
            ("web date", "exec [POD] [COMMAND] is not supported anymore"),
            ("web -x -- date", "unknown flag: -x"),
        ];
        check(VERB.name, Exec::parse, accepted, &rejected);
    }

    #[test]
    fn exec_returns_the_exit_code_of_the_command() {
        assert_eq!(outcome(&json!({"status": "Success"})).ok(), Some(ExitCode::SUCCESS));
        let failed = json!({"status": "Failure", "reason": "NonZeroExitCode",
                            "details": {"causes": [{"reason": "ExitCode", "message": "42"}]}});
        assert_eq!(outcome(&failed).ok(), Some(ExitCode::from(42)));
        let lost = outcome(&json!({"status": "Failure", "message": "no such file"})).expect_err("no code");
        assert_eq!(lost.to_string(), "error: no such file");
    }
}
