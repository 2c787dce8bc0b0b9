//! `nodlet attach`: connects this terminal to the process of a running container.

use std::process::ExitCode;

use lexopt::{Parser, ValueExt};
use serde_json::Value;

use crate::arguments::{Context, next_flag};
use crate::client::Client;
use crate::client::session::{self, Ended, Stdio};
use crate::error::VerbError;
use crate::verb::{Outcome, Verb};
use crate::verbs::containers::{self, Session};

/// The default detach keys of Docker and kubectl.
pub(crate) const DETACH_KEYS: &str = "ctrl-p,ctrl-q";

pub(crate) const VERB: Verb = Verb { name: "attach", summary: "Attach to a running container", run };

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let (session, detach_keys) = parse(&mut context, &mut parser)?;
    let client = Client::new(&context)?;
    attach(&context, &client, session, detach_keys)
}

/// Attaches until the process ends, the agent closes the stream or the user types the detach keys.
pub(crate) fn attach(
    context: &Context,
    client: &Client,
    mut session: Session,
    mut detach_keys: Vec<u8>,
) -> Outcome {
    let which = session.container.as_ref().map(|name| format!(" -c {name}")).unwrap_or_default();
    if session.container.is_none() {
        session.container = containers::default(context, client, &session.pod)?;
    }
    let object = client.json("GET", &context.pod(&session.pod), None)?;
    let spec = spec(&object, session.container.as_deref());
    let has_terminal = spec["tty"] == true;
    if session.tty && !has_terminal {
        let name = spec["name"].as_str().unwrap_or_default();
        eprintln!("error: Unable to use a TTY - container {name} did not allocate one");
        session.tty = false;
    }
    session.tty = session.tty && session::check_terminal();
    let target = session.target(context, "attach", has_terminal);
    let Session { pod, stdin, tty, .. } = session;
    if tty {
        eprintln!(
            "All commands and output from this session will be recorded in container logs, including credentials \
             and sensitive information passed through the command prompt."
        );
        eprintln!("If you don't see a command prompt, try pressing enter.");
    }
    if !tty {
        detach_keys.clear();
    }
    match session::run(client, &target, &Stdio { stdin, tty, redraw: true, detach_keys })? {
        Ended::Status(status) if status["status"] == "Success" => Ok(ExitCode::SUCCESS),
        Ended::Status(status) => {
            Err(VerbError::new(status["message"].as_str().unwrap_or("the container was lost")))
        }
        Ended::Detached => {
            eprintln!("\nSession ended, resume with `nodlet attach {pod}{which} -it`");
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

fn parse(context: &mut Context, parser: &mut Parser) -> Result<(Session, Vec<u8>), VerbError> {
    let (mut session, mut keys, mut pods) = (Session::default(), DETACH_KEYS.to_owned(), Vec::new());
    while let Some(flag) = next_flag(parser, &mut pods)? {
        match flag.as_str() {
            "--detach-keys" => keys = parser.value()?.string()?,
            other => session.flag(other, context, parser)?,
        }
    }
    session.pod = match &pods[..] {
        [] => return Err(context.wrong_use("at least 1 argument is required for attach: a pod")),
        [pod] => containers::pod_name(pod)?,
        _ => return Err(context.wrong_use("attach accepts only one pod: use exec to run a command")),
    };
    let detach_keys = session::parse_keys(&keys).ok_or_else(|| {
        context.wrong_use(format!(
            "invalid detach keys {keys:?}: must be keys like a or ctrl-p, separated by commas"
        ))
    })?;
    Ok((session, detach_keys))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check;

    #[test]
    fn arguments_of_attach() {
        let web = || Session { pod: "web".into(), ..Session::default() };
        let keys = || vec![0x10, 0x11];
        let accepted = [
            ("web", (web(), keys())),
            ("pod/web -it", (Session { stdin: true, tty: true, ..web() }, keys())),
            (
                "web -c app --detach-keys=x",
                (Session { container: Some("app".into()), ..web() }, b"x".to_vec()),
            ),
        ];
        let rejected = [
            ("", "at least 1 argument is required for attach"),
            ("web date", "attach accepts only one pod"),
            ("web --detach-keys ctrl-p,", "invalid detach keys \"ctrl-p,\""),
        ];
        check(VERB.name, parse, accepted, &rejected);
    }
}
