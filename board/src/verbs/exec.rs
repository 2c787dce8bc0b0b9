//! `nodlet exec`: runs a command in a running container as if it ran here: with this terminal, this input and
//! the command's exit code.

use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;

use lexopt::{Parser, ValueExt};
use nix::sys::termios::tcgetattr;
use serde_json::Value;

use crate::arguments::{Context, next_flag_before_command, switch};
use crate::client::session::{self, Ended, Stdio};
use crate::client::{Client, encode};
use crate::error::VerbError;
use crate::verb::{Outcome, Verb};
use crate::verbs::containers;

pub(crate) const VERB: Verb = Verb { name: "exec", summary: "Run a command in a container", run };

#[derive(Debug, Default, PartialEq, Eq)]
struct Exec {
    pod: String,
    container: Option<String>,
    stdin: bool,
    tty: bool,
    command: Vec<String>,
}

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let mut exec = Exec::parse(&mut context, &mut parser)?;
    let client = Client::new(&context)?;
    if exec.container.is_none() {
        exec.container = containers::default(&context, &client, &exec.pod)?;
    }
    if exec.tty && tcgetattr(io::stdin().as_fd()).is_err() {
        eprintln!("Unable to use a TTY - input is not a terminal or the right kind of file");
        exec.tty = false;
    }
    let stdio = Stdio { stdin: exec.stdin, tty: exec.tty, redraw: false, detach_keys: Vec::new() };
    match session::run(&client, &exec.target(&context), &stdio)? {
        Ended::Status(status) => outcome(&status),
        Ended::Detached => Err(VerbError::new("the command was lost")),
    }
}

impl Exec {
    fn parse(context: &mut Context, parser: &mut Parser) -> Result<Exec, VerbError> {
        let mut exec = Exec::default();
        let mut values: Vec<String> = Vec::new();
        while let Some(flag) = next_flag_before_command(parser, &mut values, &mut exec.command)? {
            match flag.as_str() {
                "-c" | "--container" => exec.container = Some(parser.value()?.string()?),
                "-i" => exec.stdin = true,
                "-t" => exec.tty = true,
                "--stdin" => exec.stdin = switch(parser)?,
                "--tty" => exec.tty = switch(parser)?,
                other => context.namespaced(other, parser)?,
            }
        }
        let mut values = values.into_iter();
        let pod = values
            .next()
            .ok_or_else(|| context.wrong_use("pod, type/name or --filename must be specified"))?;
        exec.pod = containers::pod_name(&pod)?;
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

    fn target(&self, context: &Context) -> String {
        let mut target = format!(
            "/api/v1/namespaces/{}/pods/{}/exec?stdin={}&stdout=true&stderr={}&tty={}",
            encode(&context.namespace),
            encode(&self.pod),
            self.stdin,
            !self.tty,
            self.tty
        );
        if let Some(container) = &self.container {
            target.push_str(&format!("&container={}", encode(container)));
        }
        for argument in &self.command {
            target.push_str(&format!("&command={}", encode(argument)));
        }
        target
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

    fn parse(line: &str) -> Result<Exec, String> {
        let mut context = Context::new();
        context.verb = VERB.name;
        let mut parser = Parser::from_args(line.split_whitespace());
        Exec::parse(&mut context, &mut parser).map_err(|failure| failure.to_string())
    }

    #[test]
    fn arguments_of_exec() {
        let sh = |command: &[&str]| Exec {
            pod: "web".into(),
            command: command.iter().map(|&word| word.into()).collect(),
            ..Exec::default()
        };
        for (line, expected) in [
            ("web -- date", sh(&["date"])),
            ("-it web -- sh -c true", Exec { stdin: true, tty: true, ..sh(&["sh", "-c", "true"]) }),
            ("pod/web -c app -- ls -- -l", Exec { container: Some("app".into()), ..sh(&["ls", "--", "-l"]) }),
            ("web -- --help", sh(&["--help"])),
        ] {
            assert_eq!(parse(line), Ok(expected), "{line}");
        }
        for (line, expected) in [
            ("", "error: pod, type/name or --filename must be specified"),
            ("-- date", "error: pod, type/name or --filename must be specified"),
            ("web", "error: you must specify at least one command for the container"),
            ("web --", "error: you must specify at least one command for the container"),
            ("web date", "error: exec [POD] [COMMAND] is not supported anymore"),
            ("web -x -- date", "error: unknown flag: -x"),
        ] {
            let refused = parse(line).expect_err(line);
            assert!(refused.starts_with(expected), "{line}: {refused}");
        }
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
