//! `nodlet debug`: adds a container with tools to a running pod whose own containers lack them.

use std::io::Read;
use std::process::ExitCode;

use lexopt::{Parser, ValueExt};
use serde_json::{Value, json};

use crate::arguments::{Context, next_flag_before_command, switch};
use crate::client::{Client, WatchFlow, encode, session};
use crate::error::VerbError;
use crate::output::escaped;
use crate::verb::{Outcome, Verb};
use crate::verbs::attach::{self, DETACH_KEYS};
use crate::verbs::containers::{self, Session};

pub(crate) const VERB: Verb =
    Verb { name: "debug", summary: "Add a container with tools to a running pod", run };

#[derive(Debug, Default, PartialEq, Eq)]
struct Debug {
    session: Session,
    image: String,
    target: Option<String>,
    pull_policy: Option<String>,
    profile: Option<String>,
    attach: bool,
    arguments_only: bool,
    command: Vec<String>,
}

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let debug = Debug::parse(&mut context, &mut parser)?;
    let client = Client::new(&context)?;
    if let Some(target) = &debug.target {
        println!("Targeting container {target:?}.");
    }
    let mut session = debug.session.clone();
    let name = match &session.container {
        Some(name) => name.clone(),
        None => {
            let name = format!("debugger-{}", suffix()?);
            println!("Defaulting debug container name to {name}.");
            name
        }
    };
    let pod = context.pod(&session.pod);
    let patch = json!({ "spec": { "ephemeralContainers": [debug.new_container(&name)?] } });
    client.json("PATCH", &format!("{pod}/ephemeralcontainers?fieldValidation=Strict"), Some(&patch))?;
    if !debug.attach {
        return Ok(ExitCode::SUCCESS);
    }
    // Without input, the log has the complete output. Earlier output is replayed to an attached client only
    // if the container has input.
    let log = format!("{pod}/log?follow=true&container={}", encode(&name));
    let show_log = || client.request("GET", &log, "*/*", None)?.print();
    if wait(&context, &client, &session.pod, &name)? == DebugState::Ended || !session.stdin {
        return show_log();
    }
    session.container = Some(name);
    let detach_keys = session::parse_keys(DETACH_KEYS).unwrap_or_default();
    attach::attach(&context, &client, session, detach_keys).or_else(|failure| {
        // The container may have ended in the meantime.
        let pod = &debug.session.pod;
        eprintln!("warning: couldn't attach to pod/{pod}, falling back to streaming logs: {failure}");
        show_log()
    })
}

/// Whether the debug container runs, so that it can be attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DebugState {
    Runs,
    Ended,
}

/// Waits until the new container has started or ended. Prints the reasons for which it is waiting.
fn wait(context: &Context, client: &Client, pod: &str, container: &str) -> Result<DebugState, VerbError> {
    let target = format!(
        "/api/v1/namespaces/{}/pods?watch=true&fieldSelector={}",
        encode(&context.namespace),
        encode(&format!("metadata.name={pod}"))
    );
    let (mut debug_state, mut warned_of) = (None, String::new());
    loop {
        client.watch(&target, "application/json", |kind, object| {
            if kind == "DELETED" {
                return Err(VerbError::new(format!("pods {pod:?} not found")));
            }
            let statuses = object["status"]["ephemeralContainerStatuses"].as_array();
            let status = statuses.into_iter().flatten().find(|status| status["name"] == container);
            let state = status.map_or(&Value::Null, |status| &status["state"]);
            if state["running"].is_object() {
                debug_state = Some(DebugState::Runs);
            } else if state["terminated"]["reason"] == "StartError" {
                let why = state["terminated"]["message"].as_str().unwrap_or("no reason is known");
                return Err(VerbError::new(format!("container {container} did not start: {why}")));
            } else if state["terminated"].is_object() {
                debug_state = Some(DebugState::Ended);
            } else if let Some(why) = state["waiting"]["message"].as_str()
                && why != warned_of
            {
                eprintln!("Warning: container {container}: {}", escaped(why));
                warned_of = why.to_owned();
            }
            Ok(if debug_state.is_some() { WatchFlow::Stop } else { WatchFlow::Continue })
        })?;
        if let Some(debug_state) = debug_state {
            return Ok(debug_state);
        }
    }
}

/// A random suffix of five letters and digits from Kubernetes' alphabet, which cannot form a word.
fn suffix() -> Result<String, VerbError> {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut bytes = [0; 5];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
    read.map_err(|error| VerbError::new(format!("failed to read /dev/urandom: {error}")))?;
    Ok(bytes.iter().map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect())
}

impl Debug {
    fn parse(context: &mut Context, parser: &mut Parser) -> Result<Debug, VerbError> {
        let (mut debug, mut attach, mut pods) = (Debug::default(), None, Vec::new());
        while let Some(flag) = next_flag_before_command(parser, &mut pods, &mut debug.command)? {
            match flag.as_str() {
                "--arguments-only" => debug.arguments_only = switch(parser)?,
                "--attach" => attach = Some(switch(parser)?),
                "--image" => debug.image = parser.value()?.string()?,
                "--image-pull-policy" => debug.pull_policy = Some(parser.value()?.string()?),
                "--profile" => debug.profile = Some(parser.value()?.string()?),
                "--target" => debug.target = Some(parser.value()?.string()?),
                other => debug.session.flag(other, context, parser)?,
            }
        }
        debug.session.pod = match &pods[..] {
            [] => return Err(context.wrong_use("POD is required for debug")),
            [pod] => containers::pod_name(pod)?,
            _ => return Err(context.wrong_use("only one pod is accepted; put a command after --")),
        };
        if debug.image.is_empty() {
            return Err(context.wrong_use("you must specify --image"));
        }
        if debug.session.tty && !debug.session.stdin {
            return Err(context.wrong_use("-i/--stdin is required for containers with -t/--tty=true"));
        }
        debug.attach = attach.unwrap_or(debug.session.stdin);
        Ok(debug)
    }

    /// The container that `kubectl debug` would add, except for `stdinOnce`.
    fn new_container(&self, name: &str) -> Result<Value, VerbError> {
        let (stdin, tty) = (self.session.stdin, self.session.tty);
        let mut container = json!({
            "name": name, "image": self.image, "stdin": stdin, "tty": tty,
            "terminationMessagePolicy": "File",
        });
        if stdin && self.attach && !tty {
            // The end of this process's input closes the container's input. Without `stdinOnce`, as kubectl
            // does it, it would end the session, and later output would not be shown.
            container["stdinOnce"] = true.into();
        }
        if let Some(target) = &self.target {
            container["targetContainerName"] = target.as_str().into();
        }
        if let Some(policy) = &self.pull_policy {
            container["imagePullPolicy"] = policy.as_str().into();
        }
        if !self.command.is_empty() {
            let field = if self.arguments_only { "args" } else { "command" };
            container[field] = self.command.as_slice().into();
        }
        let may = match self.profile.as_deref() {
            None | Some("general") => json!({ "capabilities": { "add": ["SYS_PTRACE"] } }),
            Some("baseline") => Value::Null,
            Some("netadmin") => json!({ "capabilities": { "add": ["NET_ADMIN", "NET_RAW"] } }),
            Some("sysadmin") => json!({ "privileged": true }),
            Some("restricted") => json!({
                "runAsNonRoot": true, "allowPrivilegeEscalation": false,
                "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" },
            }),
            Some(other) => return Err(VerbError::new(format!("unknown profile: {other}"))),
        };
        if !may.is_null() {
            container["securityContext"] = may;
        }
        Ok(container)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check, parsed};

    #[test]
    fn arguments_of_debug() {
        let session = || Session { pod: "web".into(), ..Session::default() };
        let web = || Debug { session: session(), image: "busybox".into(), ..Debug::default() };
        let with = |stdin, tty| Debug { session: Session { stdin, tty, ..session() }, ..web() };
        let accepted = [
            ("web --image busybox", web()),
            ("pod/web -it --image=busybox", Debug { attach: true, ..with(true, true) }),
            ("web -i --attach=false --image busybox", with(true, false)),
            (
                "web --image busybox --target app -c debugger -- sh -c ls",
                Debug {
                    target: Some("app".into()),
                    session: Session { container: Some("debugger".into()), ..session() },
                    command: vec!["sh".into(), "-c".into(), "ls".into()],
                    ..web()
                },
            ),
        ];
        let rejected = [
            ("", "POD is required for debug"),
            ("web", "you must specify --image"),
            ("web sh --image busybox", "only one pod is accepted; put a command after --"),
            ("web -t --image busybox", "-i/--stdin is required for containers with -t/--tty=true"),
            ("node/board --image busybox", "nodes have no containers, only pods"),
        ];
        check(VERB.name, Debug::parse, accepted, &rejected);
    }

    #[test]
    fn a_debug_profile_sets_the_security_context_of_the_container() {
        let of = |line: &str| {
            let debug = parsed(VERB.name, Debug::parse, line).expect(line);
            debug.new_container("look").map_err(|failure| failure.to_string())
        };
        let general = of("web --image busybox --arguments-only -- -v").expect("it is right");
        assert_eq!(general["securityContext"], json!({ "capabilities": { "add": ["SYS_PTRACE"] } }));
        assert_eq!((&general["args"], general.get("command")), (&json!(["-v"]), None));
        for (flags, once) in [("-i", true), ("-it", false), ("-i --attach=false", false), ("--attach", false)]
        {
            let container = of(&format!("web --image busybox {flags}")).expect("it is right");
            assert_eq!(container["stdinOnce"] == true, once, "{flags}");
        }
        let sysadmin = of("web --image busybox --profile sysadmin").expect("it is right");
        assert_eq!(sysadmin["securityContext"], json!({ "privileged": true }));
        assert!(
            of("web --image busybox --profile baseline")
                .expect("it is right")
                .get("securityContext")
                .is_none()
        );
        assert_eq!(of("web --image busybox --profile all"), Err("error: unknown profile: all".into()));
    }
}
