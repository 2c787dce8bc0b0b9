//! Runs hooks, as probes are run, but without a timeout. The core (`pod/hook.rs`) decides what follows from their
//! results, and how long it waits for them.
//!
//! A hook ends with its run at the latest: its processes are killed with the run, and no answer is waited for.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use smol::Async;

use crate::prober;
use nodlet_core::facts::{Attempt, Event, PodIndex};
use nodlet_core::spec::{Container, Hook, HookKind, Pod, ProbeAction};
use nodlet_host::launch::ExecConfig;
use nodlet_registry::Wanted;

use super::Shell;
use super::exec::{ExecError, Output, address};
use super::pods::Pods;

/// Runs a hook.
///
/// # Errors
/// The message that a kubelet reports for this failure.
pub(super) async fn run(
    shell: Rc<Shell>,
    pod: PodIndex,
    wanted: Rc<Wanted>,
    attempt: Attempt,
    kind: HookKind,
) -> Result<(), String> {
    let shell = &shell;
    let container = wanted.pod.spec.container(attempt.container);
    let hook = container.lifecycle.hook(kind).ok_or("there is no such hook")?;
    let failed = |what: String, error: &str| {
        let (name, pod) = (&container.name, full_name(&wanted.pod));
        format!("{what} for Container {name:?} in Pod {pod:?} failed - error: {error}")
    };
    match hook {
        Hook::Asks(ProbeAction::Exec(command)) => {
            let what = || format!("Exec lifecycle hook ([{}])", command.join(" "));
            let ended = exec(shell, pod, attempt.number, container, command).await;
            ended.map_err(|Unwell { error, output }| {
                failed(what(), &error) + &format!(", message: {:?}", String::from_utf8_lossy(&output))
            })
        }
        Hook::Asks(ProbeAction::HttpGet { secure, host, port, path, headers }) => {
            let get = prober::HttpGet { secure: *secure, host: host.as_deref(), port, path, headers };
            let asked = prober::hook(address(&shell.pods, &shell.machine, pod), &container.ports, &get);
            let gone = async {
                over(&shell.pods, pod, attempt.number, container).await;
                Err("the container is gone".to_owned())
            };
            let answer = smol::future::or(asked, gone).await;
            let open = answer.map_err(|error| failed(format!("HTTP lifecycle hook ({path})"), &error))?;
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
struct Unwell {
    error: String,
    output: Vec<u8>,
}

impl From<String> for Unwell {
    fn from(error: String) -> Self {
        Unwell { error, output: Vec::new() }
    }
}

impl From<ExecError> for Unwell {
    fn from(error: ExecError) -> Self {
        Unwell::from(error.message())
    }
}

/// Runs a command in a container until it ends.
async fn exec(
    shell: &Rc<Shell>,
    pod: PodIndex,
    number: u32,
    container: &Container,
    command: &[String],
) -> Result<(), Unwell> {
    let args = crate::container_config::probe_command(container, command)?;
    let pipe = || nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(ExecError::MakePipe);
    let ((output, to_output), (errors, to_errors)) = (pipe()?, pipe()?);
    // Before there is a process that nobody would end.
    let (mut output, mut errors) = (Output::new(output)?, Output::new(errors)?);
    let config = ExecConfig { args: args.clone(), tty: false, size: None, devices: None };
    let stdio = [None, Some(to_output.as_fd()), Some(to_errors.as_fd())];
    let exec = shell.execs.exec(&shell.pods, pod, &container.name, number, &config, stdio)?;
    drop((to_output, to_errors));
    let ended = {
        let ended = exec.ended();
        let read = smol::future::or(output.read(), errors.read());
        smol::future::or(read, ended).await
    };
    let (mut output, mut errors) = (output.all(), errors.all());
    let error = match ended {
        Ok(Some(0) | None) => return Ok(()),
        Ok(Some(code)) => {
            let errors = String::from_utf8_lossy(&errors);
            format!("command '{}' exited with {code}: {errors}", args.join(" "))
        }
        Err(error) => error.message(),
    };
    output.append(&mut errors);
    Err(Unwell { error, output })
}

/// Waits until the first process of the run has ended.
async fn over(pods: &Pods, pod: PodIndex, number: u32, container: &Container) {
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
