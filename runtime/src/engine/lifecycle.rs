//! Runs probes and lifecycle hooks of containers. The core (`pod/probe.rs`, `pod/hook.rs`) decides what follows from
//! their results, and how long it waits for hooks, which have no timeout here.
//!
//! A hook ends with its run at the latest: its processes are killed with the run, and no answer is waited for.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use smol::Async;

use crate::prober::{self, shown_command};
use nodlet_core::facts::{Attempt, Event, PodIndex, ProbeResult};
use nodlet_core::spec::{Container, Hook, HookKind, Pod, ProbeAction, ProbeKind};
use nodlet_registry::Wanted;

use super::Shell;
use super::exec::{CommandEnd, CommandKind, ExecError};
use super::pods::Pods;

/// The failure of a hook. It is displayed in the words of a kubelet, which has the text of the cause in the middle.
#[derive(thiserror::Error)]
pub(super) enum HookError {
    #[error("there is no such hook")]
    Missing,
    #[error(
        "{hook} for Container {container:?} in Pod {pod:?} failed - error: {cause}{}",
        .output.as_ref().map(|output| format!(", message: {:?}", String::from_utf8_lossy(output))).unwrap_or_default()
    )]
    Failed {
        /// The hook, as a kubelet names it.
        hook: String,
        container: String,
        /// `web_default(uid)`, as a kubelet prints a pod.
        pod: String,
        cause: String,
        /// The output of the command.
        output: Option<Vec<u8>>,
        /// The error of a command that could not be run, or was not followed to its end.
        source: Option<ExecError>,
    },
}

/// The text: the derived code would be linked without being used.
impl fmt::Debug for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Runs a probe once; returns after the probe's timeout at the latest.
pub(super) async fn probe(
    shell: Rc<Shell>,
    pod: PodIndex,
    wanted: Rc<Wanted>,
    attempt: Attempt,
    kind: ProbeKind,
) -> ProbeResult {
    let container = wanted.pod.spec.container(attempt.container);
    let Some(probe) = container.probe(kind) else {
        return ProbeResult::Error("there is no such probe".into());
    };
    let exec = async |command: &[String]| {
        let kind = CommandKind::Probe(probe.timeout);
        let ended = shell.execs.run(pod, (container, attempt.number), command, kind).await;
        let code = ended.and_then(|ended| Ok(ended.code?.map(|code| (code, ended.output))));
        code.map_err(|error| error.message())
    };
    prober::probe(container, probe, || address(&shell, pod), exec).await
}

/// The address to ask if a probe or hook names no host.
fn address(shell: &Shell, pod: PodIndex) -> IpAddr {
    let of_pod = shell.pods.sandbox(pod).and_then(|sandbox| sandbox.ip);
    let ip = of_pod.or_else(|| shell.machine.network.borrow().host_ip());
    IpAddr::V4(ip.unwrap_or(Ipv4Addr::LOCALHOST))
}

/// Runs a hook.
///
/// # Errors
/// The hook failed.
pub(super) async fn hook(
    shell: Rc<Shell>,
    pod: PodIndex,
    wanted: Rc<Wanted>,
    attempt: Attempt,
    kind: HookKind,
) -> Result<(), HookError> {
    let shell = &shell;
    let container = wanted.pod.spec.container(attempt.container);
    let hook = container.lifecycle.hook(kind).ok_or(HookError::Missing)?;
    let failed = |hook, cause, output, source| {
        let (container, pod) = (container.name.clone(), full_name(&wanted.pod));
        HookError::Failed { hook, container, pod, cause, output, source }
    };
    match hook {
        Hook::Asks(ProbeAction::Exec(command)) => {
            let ended = exec(shell, pod, attempt.number, container, command).await;
            ended.map_err(|CommandFailure { cause, output, source }| {
                failed(format!("Exec lifecycle hook ([{}])", command.join(" ")), cause, Some(output), source)
            })
        }
        Hook::Asks(ProbeAction::HttpGet { secure, host, port, path, headers }) => {
            let get = prober::HttpGet { secure: *secure, host: host.as_deref(), port, path, headers };
            let asked = prober::hook(address(shell, pod), &container.ports, &get);
            let gone = async {
                exited(&shell.pods, pod, attempt.number, container).await;
                Err("the container is gone".to_owned())
            };
            let answer = smol::future::or(asked, gone).await;
            let open =
                answer.map_err(|words| failed(format!("HTTP lifecycle hook ({path})"), words, None, None))?;
            if let Some(host) = open {
                let message = format!(
                    "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
                )
                .into();
                let event =
                    Event { warning: true, reason: "LifecycleHTTPFallback".into(), message, container: None };
                shell.publication.emit(&wanted, &event);
            }
            Ok(())
        }
        // None is asked for: there is no such hook, or the core knows how it ends.
        Hook::Asks(ProbeAction::TcpSocket { .. } | ProbeAction::Grpc { .. }) | Hook::Sleeps(_) => Ok(()),
    }
}

/// The failure of a command, with its output.
struct CommandFailure {
    cause: String,
    output: Vec<u8>,
    source: Option<ExecError>,
}

impl CommandFailure {
    /// The failure of a command that ended with this code and these errors, without its output.
    fn exited(command: &str, code: i32, errors: &[u8]) -> CommandFailure {
        let errors = String::from_utf8_lossy(errors);
        let cause = format!("command '{command}' exited with {code}: {errors}");
        CommandFailure { cause, output: Vec::new(), source: None }
    }
}

impl From<ExecError> for CommandFailure {
    fn from(error: ExecError) -> Self {
        CommandFailure { cause: error.message(), output: Vec::new(), source: Some(error) }
    }
}

/// Runs a command in a container until it ends.
async fn exec(
    shell: &Shell,
    pod: PodIndex,
    number: u32,
    container: &Container,
    command: &[String],
) -> Result<(), CommandFailure> {
    let run = shell.execs.run(pod, (container, number), command, CommandKind::Hook);
    let CommandEnd { code, mut output, mut errors } = run.await?;
    let failure = match code {
        Ok(Some(0) | None) => return Ok(()),
        Ok(Some(code)) => CommandFailure::exited(&shown_command(container, command), code, &errors),
        Err(error) => error.into(),
    };
    output.append(&mut errors);
    Err(CommandFailure { output, ..failure })
}

/// Waits until the first process of the run has ended.
async fn exited(pods: &Pods, pod: PodIndex, number: u32, container: &Container) {
    let process: Option<OwnedFd> = pods.sandbox(pod).and_then(|sandbox| {
        let runs = sandbox.runs.borrow();
        runs.get(&(container.name.clone(), number))?.process.as_ref()?.try_clone().ok()
    });
    if let Some(Ok(process)) = process.map(Async::new) {
        // One that cannot be waited for counts as gone: what asks is not to wait for ever.
        let _ = process.readable().await;
    }
}

/// `web_default(uid)`, as a kubelet prints a pod.
fn full_name(pod: &Pod) -> String {
    format!("{}_{}({})", pod.name, pod.namespace, pod.uid)
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    fn failed(hook: &str, failure: CommandFailure, output: Option<&[u8]>) -> HookError {
        let CommandFailure { cause, source, .. } = failure;
        let (hook, container) = (hook.to_owned(), "app".to_owned());
        let (pod, output) = ("web_default(1-2)".to_owned(), output.map(<[u8]>::to_vec));
        HookError::Failed { hook, container, pod, cause, output, source }
    }

    #[test]
    fn failures_have_the_text_of_a_kubelet_and_their_cause() {
        let exited = CommandFailure::exited("sh -c x", 127, b"x: not found");
        let error = failed("Exec lifecycle hook ([sh -c x])", exited, Some(b"x: not found"));
        assert_eq!(
            error.to_string(),
            "Exec lifecycle hook ([sh -c x]) for Container \"app\" in Pod \"web_default(1-2)\" failed - error: \
             command 'sh -c x' exited with 127: x: not found, message: \"x: not found\""
        );
        assert!(error.source().is_none());
        let error = failed("Exec lifecycle hook ([true])", ExecError::Gone.into(), Some(b""));
        assert!(
            error.to_string().ends_with(" failed - error: the container is gone, message: \"\""),
            "{error}"
        );
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("the container is gone"));
        let cause = "dial tcp 10.0.0.1:80: connect: connection refused".to_owned();
        let refused = CommandFailure { cause, output: Vec::new(), source: None };
        assert_eq!(
            failed("HTTP lifecycle hook (/stop)", refused, None).to_string(),
            "HTTP lifecycle hook (/stop) for Container \"app\" in Pod \"web_default(1-2)\" failed - error: dial tcp \
             10.0.0.1:80: connect: connection refused"
        );
    }
}
