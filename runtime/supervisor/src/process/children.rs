//! Reports of helpers, ends of children, and their consequences.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::unistd::Pid;

use super::{Process, Sandbox};
use crate::attempt::{Attempt, State};
use crate::enter::{ExecState, MAX_MOVES};
use crate::error::{self, StepError};
use crate::exit::{self, ExitRecord};
use crate::protocol::{self, Status, cut};
use crate::sandbox::{Answer, Namespaces};
use crate::sys::{self, Ended};
use crate::user::User;
use nodlet_core::time::Instant;
use nodlet_host::launch::SandboxConfig;

impl Process {
    /// Handles every child that has ended. Each end is handled before the child is reaped, so that a
    /// container's record is written while its process can still be found. Each known child is checked
    /// separately, so that a child that has to wait does not hide others.
    pub(super) fn reap(&mut self) {
        // A helper that ended may have named a child that ended before it, for which no further signal comes.
        let mut again = true;
        while std::mem::take(&mut again) {
            for pid in self.known_children() {
                if let Some(ended) = sys::ended(pid) {
                    // Read what a helper reported before it, or its child, ended.
                    self.check_helpers();
                    if self.child_ended(pid, ended) {
                        sys::reap(pid);
                        self.helpers.retain(|helper| *helper != pid);
                        again = true;
                    }
                }
            }
        }
        // The other children are libcontainer's, or are yet to be named by their helper.
        while !self.is_naming()
            && let Some(pid) = sys::any_ended()
            && !self.known_children().contains(&pid)
        {
            sys::reap(pid);
        }
    }

    fn check_helpers(&mut self) {
        for at in 0..self.attempts.len() {
            self.status(at);
        }
        for at in 0..self.execs.len() {
            self.exec_status(at);
        }
    }

    /// The children that belong to an attempt, an executed process or the sandbox. A helper is one of them until it is
    /// reaped: the end of an unknown child is not handled while a start is under way, which can take for ever.
    fn known_children(&self) -> Vec<Pid> {
        let mut known = self.helpers.clone();
        if let Sandbox::Ready { pause, .. } = &self.sandbox {
            known.extend(*pause);
        }
        for attempt in &self.attempts {
            match &attempt.state {
                State::Starting { init, .. } => known.extend(*init),
                State::Running { init, .. } => known.push(*init),
                State::Failing { init, .. } => known.extend(*init),
                State::Exited { .. } | State::Ended { .. } | State::Failed { .. } => {}
            }
        }
        for exec in &self.execs {
            match &exec.state {
                ExecState::Starting { pid, .. } => known.extend(*pid),
                ExecState::Running { pid, .. } => known.push(*pid),
                ExecState::Ended { .. } | ExecState::Failed { .. } => {}
            }
        }
        known
    }

    /// Whether a helper has yet to name a child: a process can end before its helper, or the process that
    /// forked it, reports its PID.
    fn is_naming(&self) -> bool {
        self.attempts.iter().any(|attempt| matches!(attempt.state, State::Starting { .. }))
            || self.execs.iter().any(|exec| matches!(exec.state, ExecState::Starting { pid: None, .. }))
    }

    /// Handles the end of a known child; `false` if it must not be reaped yet.
    fn child_ended(&mut self, pid: Pid, ended: Ended) -> bool {
        self.pause_ended(pid);
        if !self.exec_ended(pid, ended) {
            return false;
        }
        let owner = self.attempts.iter_mut().find(|attempt| match &attempt.state {
            State::Starting { helper, init, .. } => *helper == Some(pid) || *init == Some(pid),
            State::Running { init, .. } => *init == pid,
            State::Failing { init, .. } => *init == Some(pid),
            State::Exited { .. } | State::Ended { .. } | State::Failed { .. } => false,
        });
        let Some(attempt) = owner else { return true };
        match &mut attempt.state {
            State::Starting { helper, .. } if *helper == Some(pid) => {
                *helper = None;
                if ended != Ended::Exited(0) {
                    // The container's process would wait for ever for the request to execute.
                    attempt.fail(false, cut(
                            "create the container: the start helper was killed; where the memory limit is too \
                             small for a start, the kernel does that",
                        ));
                }
            }
            // A helper or a process of libcontainer still has the socket that reports the execution. That
            // process closes it soon, and this child is handled then.
            State::Starting { .. } => return false,
            State::Running { init, at, .. } => {
                let (init, at) = (*init, *at);
                attempt.drain(&mut self.buffer);
                record(&self.dir, attempt, ended, at);
                attempt.state = State::Exited { init, at };
            }
            State::Failing { init, .. } => {
                *init = None;
                if sys::has_executed(pid) {
                    // The process was executed before it was killed: this is a run, which must not be
                    // repeated.
                    let at = nodlet_host::clock::instant();
                    attempt.drain(&mut self.buffer);
                    record(&self.dir, attempt, ended, at);
                    attempt.state = State::Exited { init: pid, at };
                }
            }
            State::Exited { .. } | State::Ended { .. } | State::Failed { .. } => {}
        }
        true
    }

    /// Ends the pod's sandbox if its pause process ended. Without the first process of a shared PID namespace
    /// no process can be started in it, and the kernel has killed those that ran there. The pod restarts, as
    /// under a kubelet.
    fn pause_ended(&mut self, ended: Pid) {
        if let Sandbox::Ready { pause, .. } = &mut self.sandbox
            && *pause == Some(ended)
        {
            *pause = None;
            self.ending = true;
            self.write_end_reason("the pause process of the pod ended");
        }
    }

    /// Handles the end of a child that may be an executed process; `false` if it must wait.
    fn exec_ended(&mut self, child: Pid, ended: Ended) -> bool {
        for exec in &mut self.execs {
            match &mut exec.state {
                ExecState::Starting { helper, .. } if *helper == Some(child) => {
                    *helper = None;
                    if ended != Ended::Exited(0) {
                        exec.fail(cut("exec: its helper was killed"));
                    }
                }
                // The helper still has the socket. It ends soon, and this child is handled then.
                ExecState::Starting { pid, .. } if *pid == Some(child) => return false,
                ExecState::Running { pid, terminal } if *pid == child => {
                    let code = ended.code();
                    exec.state = ExecState::Ended { pid: child, code, terminal: terminal.take() };
                }
                ExecState::Starting { .. }
                | ExecState::Running { .. }
                | ExecState::Ended { .. }
                | ExecState::Failed { .. } => {}
            }
        }
        true
    }

    /// Reads the answer of the sandbox helper.
    pub(super) fn sandbox_answered(&mut self) {
        let Sandbox::Making { answer, config } = &self.sandbox else { return };
        let result = match protocol::receive::<Answer>(answer.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(Some((Answer::Namespaces { pause }, descriptors))) => namespaces(config, descriptors)
                .map(|namespaces| (namespaces, pause.map(Pid::from_raw)))
                .ok_or_else(|| cut("make namespaces: descriptors are missing")),
            Ok(Some((Answer::Failed { message }, _))) => Err(message),
            Ok(None) => Err(cut("make namespaces: the sandbox helper died")),
            Err(error) => Err(error::message(&StepError::new("receive from the sandbox helper", error))),
        };
        let result = match result {
            Ok((_, Some(pause))) if !sys::is_child(pause) => Err(cut("start the pause process: it ended")),
            result => result,
        };
        if result.is_err() && config.share_process_namespace {
            // The helper may have died after it had forked the pause process.
            let _ = sys::kill_leaf(&config.pause_cgroup.unified);
        }
        let host_link = config.network.as_ref().map(|network| network.host_link.clone());
        let interfaces = config.network.as_ref().is_some_and(|network| !network.interfaces.is_empty());
        self.sandbox = match result {
            Ok((namespaces, pause)) => Sandbox::Ready {
                namespaces: Box::new(namespaces),
                at: nodlet_host::clock::instant(),
                pause,
                host_link,
                interfaces,
            },
            Err(message) => Sandbox::Failed { message },
        };
    }

    /// Reads the reports of a start helper, or of the process that it made. A process in the same PID
    /// namespace with CAP_SYS_PTRACE can send reports in the name of the process that is about to be executed
    /// there: from that one, only an error is accepted.
    pub(super) fn status(&mut self, at: usize) {
        let attempt = &mut self.attempts[at];
        while let State::Starting { helper, status, init, reporter, .. } = &mut attempt.state {
            let received = match protocol::receive_from::<Status>(status.as_fd()) {
                Ok(Some(received)) => received,
                Ok(None) => {
                    // Every copy of the socket is closed: the process was executed, or all of its holders are
                    // dead.
                    let pidfd = init.and_then(|init| Some((init, sys::pidfd_open(init).ok()?)));
                    match pidfd {
                        // The result of the child is read when the child is reaped.
                        Some((init, _)) if sys::ended(init).is_some() => {
                            attempt.fail(false, cut("create the container: its process was killed"));
                        }
                        Some((init, pidfd)) => {
                            attempt.state = State::Running {
                                init,
                                pidfd: Some(pidfd),
                                at: nodlet_host::clock::instant(),
                            };
                        }
                        None => attempt.fail(false, cut("create the container: the start helper died")),
                    }
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    let failed = StepError::new("receive from the start helper", error);
                    return attempt.fail(false, error::message(&failed));
                }
            };
            let is_from = |whom: &Option<Pid>| whom.is_some() && received.sender == *whom;
            let (from_helper, from_reporter) = (is_from(helper), is_from(reporter));
            match received.frame {
                // The agent's own memory had that for all containers, as long as they run.
                Status::Config if from_helper => {
                    if let Some(copy) = received.descriptors.into_iter().next() {
                        attempt.config = copy;
                    }
                }
                Status::User { uid, gid, groups, home } if from_helper => {
                    attempt.user = User { uid, gid, groups, home: home.as_str().to_owned() };
                }
                // libcontainer's process, then the one that it forked in a shared PID namespace.
                Status::Created { pid } if from_helper || from_reporter => {
                    let pid = Pid::from_raw(pid);
                    if !sys::is_child(pid) {
                        return attempt.fail(
                            false,
                            cut("create the container: its process is not a child of the supervisor"),
                        );
                    }
                    *init = Some(pid);
                    *reporter = from_helper.then_some(pid);
                    if from_reporter {
                        // The process is known now, whatever follows. If it is gone, its end will be handled.
                        let _ = protocol::signal_continue(status.as_fd());
                    }
                }
                Status::Terminal { stdin } if from_reporter => {
                    let master = received.descriptors.into_iter().next();
                    let set = master.map(|master| attempt.set_terminal(master, stdin));
                    if !matches!(set, Some(Ok(()))) {
                        return attempt.fail(false, cut("create the container: its terminal is missing"));
                    }
                }
                Status::Failed { run, message } => return attempt.fail(run, message),
                Status::Config | Status::User { .. } | Status::Created { .. } | Status::Terminal { .. } => {
                    return attempt.fail(
                        false,
                        cut(
                            "create the container: its process was reported by another than the start helper",
                        ),
                    );
                }
            }
        }
    }

    /// Reads the reports of an exec helper, or of the process that it made; from the latter, only an error is
    /// accepted.
    pub(super) fn exec_status(&mut self, at: usize) {
        let exec = &mut self.execs[at];
        while let ExecState::Starting { helper, status, pid, terminal } = &mut exec.state {
            let received = match protocol::receive_from::<Status>(status.as_fd()) {
                Ok(Some(received)) => received,
                Ok(None) => {
                    match *pid {
                        Some(pid) => exec.state = ExecState::Running { pid, terminal: terminal.take() },
                        None => exec.fail(cut("exec: its helper died")),
                    }
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    let failed = StepError::new("exec: receive from its helper", error);
                    return exec.fail(error::message(&failed));
                }
            };
            let from_helper = helper.is_some() && received.sender == *helper;
            match received.frame {
                Status::Created { pid: created } if from_helper && sys::is_child(Pid::from_raw(created)) => {
                    *pid = Some(Pid::from_raw(created));
                    *terminal = received.descriptors.into_iter().next();
                }
                Status::Failed { message, .. } => return exec.fail(message),
                Status::Config | Status::Created { .. } | Status::User { .. } | Status::Terminal { .. } => {
                    return exec.fail(cut("exec: the process was reported by another than its helper"));
                }
            }
        }
    }

    /// Completes attempts whose last process has ended, and gives up starts that hang.
    pub(super) fn settle(&mut self) {
        let now = nodlet_host::clock::instant();
        for attempt in &mut self.attempts {
            if let State::Starting { deadline, .. } = &attempt.state
                && *deadline <= now
            {
                attempt.fail(false, cut("create the container: it took longer than two minutes"));
            }
            if attempt.is_emptying() {
                // With a PID namespace of its own, no process outlives the first one.
                if attempt.is_populated() {
                    attempt.kill();
                }
                if !attempt.is_populated() {
                    attempt.end(&mut self.buffer);
                }
            }
        }
        self.execs.retain_mut(|exec| {
            if !exec.has_ended() {
                return true;
            }
            if exec.removed {
                return !exec.ended_reported;
            }
            if sys::is_populated(&exec.cgroup, &mut exec.events) {
                // Remaining descendants of an executed process belong to the container from then on, as under
                // containerd.
                if matches!(exec.state, ExecState::Ended { .. }) && exec.moves < MAX_MOVES {
                    exec.moves += 1;
                    sys::empty_into_parent(&exec.cgroup);
                }
                if sys::is_populated(&exec.cgroup, &mut exec.events) {
                    return true;
                }
            }
            let _ = fs::remove_dir(&exec.cgroup);
            exec.events = None;
            exec.removed = true;
            !exec.ended_reported
        });
        let attempts = &self.attempts;
        self.layers.retain(|name, _| attempts.iter().any(|attempt| attempt.layers.contains(name)));
    }
}

fn namespaces(config: &SandboxConfig, descriptors: Vec<OwnedFd>) -> Option<Namespaces> {
    let mut descriptors = descriptors.into_iter();
    let mnt = descriptors.next()?;
    let mut next = |wanted: bool| -> Option<Option<OwnedFd>> {
        if wanted { descriptors.next().map(Some) } else { Some(None) }
    };
    Some(Namespaces {
        mnt,
        net: next(config.network.is_some())?,
        ipc: next(!config.host_ipc)?,
        uts: next(config.network.is_some())?,
        pid: next(config.share_process_namespace)?,
        user: next(config.first_id.is_some())?,
        host_pid: config.host_pid,
        host_ipc: config.host_ipc,
    })
}

/// Writes the exit record of an attempt whose first process has ended.
fn record(dir: &Path, attempt: &Attempt, ended: Ended, started_at: Instant) {
    let (code, signal) = (ended.code(), ended.signal());
    let message = exit::termination_message(attempt.termination_message.as_ref(), code, &attempt.log);
    let record = ExitRecord { code, signal, started_at, finished_at: nodlet_host::clock::instant(), message };
    // On tmpfs; the agent reports an exit without a record as unknown.
    let _ = record.write(dir, &attempt.container, attempt.number);
}
