//! `nodlet attach`: connects this terminal to the process of a running container.

use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;

use lexopt::{Parser, ValueExt};
use nix::sys::termios::tcgetattr;
use serde_json::Value;

use crate::arguments::{Context, next_flag, switch};
use crate::client::session::{self, Ended, Stdio};
use crate::client::{Client, encode};
use crate::error::VerbError;
use crate::verb::{Outcome, Verb};
use crate::verbs::containers;

/// The default detach keys of Docker and kubectl.
pub(crate) const DETACH_KEYS: &str = "ctrl-p,ctrl-q";

pub(crate) const VERB: Verb = Verb { name: "attach", summary: "Attach to a running container", run };

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Attach {
    pub(crate) pod: String,
    pub(crate) container: Option<String>,
    pub(crate) stdin: bool,
    pub(crate) tty: bool,
    pub(crate) detach_keys: Vec<u8>,
}

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let arguments = Attach::parse(&mut context, &mut parser)?;
    let client = Client::new(&context)?;
    attach(&context, &client, &arguments)
}

/// Attaches until the process ends, the agent closes the stream or the user types the detach keys.
pub(crate) fn attach(context: &Context, client: &Client, attach: &Attach) -> Outcome {
    let container = match &attach.container {
        Some(container) => Some(container.clone()),
        None => containers::default(context, client, &attach.pod)?,
    };
    let path = format!("/api/v1/namespaces/{}/pods/{}", encode(&context.namespace), encode(&attach.pod));
    let object = client.json("GET", &path, None)?;
    let spec = spec(&object, container.as_deref());
    let has_terminal = spec["tty"] == true;
    let mut tty = attach.tty;
    if tty && !has_terminal {
        let name = spec["name"].as_str().unwrap_or_default();
        eprintln!("error: Unable to use a TTY - container {name} did not allocate one");
        tty = false;
    }
    if tty && tcgetattr(io::stdin().as_fd()).is_err() {
        eprintln!("Unable to use a TTY - input is not a terminal or the right kind of file");
        tty = false;
    }
    let mut target = format!(
        "{path}/attach?stdin={}&stdout=true&stderr={}&tty={has_terminal}",
        attach.stdin, !has_terminal
    );
    if let Some(container) = &container {
        target.push_str(&format!("&container={}", encode(container)));
    }
    if tty {
        eprintln!(
            "All commands and output from this session will be recorded in container logs, including credentials \
             and sensitive information passed through the command prompt."
        );
        eprintln!("If you don't see a command prompt, try pressing enter.");
    }
    let detach_keys = if tty { attach.detach_keys.clone() } else { Vec::new() };
    match session::run(client, &target, &Stdio { stdin: attach.stdin, tty, redraw: true, detach_keys })? {
        Ended::Status(status) if status["status"] == "Success" => Ok(ExitCode::SUCCESS),
        Ended::Status(status) => {
            Err(VerbError::new(status["message"].as_str().unwrap_or("the container was lost")))
        }
        Ended::Detached => {
            let which = attach.container.as_ref().map_or(String::new(), |name| format!(" -c {name}"));
            eprintln!("\nSession ended, resume with `nodlet attach {}{which} -it`", attach.pod);
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The entry of the container in the pod's spec.
fn spec<'a>(pod: &'a Value, container: Option<&str>) -> &'a Value {
    let all = ["containers", "initContainers", "ephemeralContainers"];
    let mut all = all.iter().flat_map(|field| pod["spec"][field].as_array().into_iter().flatten());
    all.find(|entry| container.is_none_or(|name| entry["name"] == name)).unwrap_or(&Value::Null)
}

impl Attach {
    fn parse(context: &mut Context, parser: &mut Parser) -> Result<Attach, VerbError> {
        let (mut container, mut stdin, mut tty, mut pods) = (None, false, false, Vec::new());
        let mut keys = DETACH_KEYS.to_owned();
        while let Some(flag) = next_flag(parser, &mut pods)? {
            match flag.as_str() {
                "-c" | "--container" => container = Some(parser.value()?.string()?),
                "-i" => stdin = true,
                "-t" => tty = true,
                "--detach-keys" => keys = parser.value()?.string()?,
                "--stdin" => stdin = switch(parser)?,
                "--tty" => tty = switch(parser)?,
                other => context.namespaced(other, parser)?,
            }
        }
        let pod = match &pods[..] {
            [] => return Err(context.wrong_use("at least 1 argument is required for attach: a pod")),
            [pod] => containers::pod_name(pod)?,
            _ => return Err(context.wrong_use("attach accepts only one pod: use exec to run a command")),
        };
        let detach_keys = session::parse_keys(&keys).ok_or_else(|| {
            context.wrong_use(format!(
                "invalid detach keys {keys:?}: must be keys like a or ctrl-p, separated by commas"
            ))
        })?;
        Ok(Attach { pod, container, stdin, tty, detach_keys })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Attach, String> {
        let mut context = Context::new();
        context.verb = VERB.name;
        let mut parser = Parser::from_args(line.split_whitespace());
        Attach::parse(&mut context, &mut parser).map_err(|failure| failure.to_string())
    }

    #[test]
    fn arguments_of_attach() {
        let web = || Attach {
            pod: "web".into(),
            container: None,
            stdin: false,
            tty: false,
            detach_keys: vec![0x10, 0x11],
        };
        for (line, expected) in [
            ("web", web()),
            ("pod/web -it", Attach { stdin: true, tty: true, ..web() }),
            (
                "web -c app --detach-keys=x",
                Attach { container: Some("app".into()), detach_keys: vec![b'x'], ..web() },
            ),
        ] {
            assert_eq!(parse(line), Ok(expected), "{line}");
        }
        for (line, expected) in [
            ("", "error: at least 1 argument is required for attach"),
            ("web date", "error: attach accepts only one pod"),
            ("web --detach-keys ctrl-p,", "error: invalid detach keys \"ctrl-p,\""),
        ] {
            let refused = parse(line).expect_err(line);
            assert!(refused.starts_with(expected), "{line}: {refused}");
        }
    }
}
