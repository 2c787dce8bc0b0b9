//! What helpers say, how children end, and what follows from it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::{Process, Sandbox};
use crate::supervisor::attempt::{Attempt, State, User};
use crate::supervisor::config::SandboxConfig;
use crate::supervisor::enter::{Exec, ExecState};
use crate::supervisor::exit::{self, ExitRecord};
use crate::supervisor::protocol::{self, cut};
use crate::supervisor::sandbox::{Made, Namespaces};
use crate::supervisor::start::Status;
use crate::supervisor::sys;
use crate::time::Instant;

impl Process {
    /// Looks at every child that has ended. Each is seen before it is reaped, so
    /// that a container's record is written while its process can still be found.
    pub(super) fn reap(&mut self) {
        loop {
            let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
            let status = match waitid(Id::All, flags) {
                Ok(WaitStatus::StillAlive) | Err(_) => return,
                Ok(status) => status,
            };
            let Some(pid) = status.pid() else { return };
            // What a helper said before it ended, or before its child did.
            for at in 0..self.attempts.len() {
                self.status(at);
            }
            for at in 0..self.execs.len() {
                self.exec_status(at);
            }
            self.pause_ended(pid);
            if self.is_unnamed(pid) || !self.exec_ended(pid, &status) {
                return;
            }
            let owner = self.attempts.iter_mut().find(|attempt| match &attempt.state {
                State::Starting { helper, init, .. } => *helper == Some(pid) || *init == Some(pid),
                State::Running { init, .. } => *init == pid,
                State::Failing { init, .. } => *init == Some(pid),
                State::Exited { .. } | State::Over { .. } | State::Failed { .. } => false,
            });
            if let Some(attempt) = owner {
                let failed = !matches!(status, WaitStatus::Exited(_, 0));
                match &mut attempt.state {
                    State::Starting { helper, .. } if *helper == Some(pid) => {
                        *helper = None;
                        if failed {
                            // Its container waits for ever to be told to execute.
                            attempt.fail(false, cut("create the container: the start helper was killed"));
                        }
                    }
                    // A helper, or libcontainer's, still holds the socket that says
                    // that it was executed: it closes at once, and this child is next then.
                    State::Starting { .. } => return,
                    State::Running { init, at, .. } => {
                        let (init, at) = (*init, *at);
                        attempt.drain(&mut self.buffer);
                        record(&self.dir, attempt, status, at);
                        attempt.state = State::Exited { init, at };
                    }
                    State::Failing { init, .. } => {
                        *init = None;
                        if sys::has_executed(pid) {
                            // It had begun before it was killed: a run that nobody may begin again.
                            let at = Instant::now();
                            attempt.drain(&mut self.buffer);
                            record(&self.dir, attempt, status, at);
                            attempt.state = State::Exited { init: pid, at };
                        }
                    }
                    State::Exited { .. } | State::Over { .. } | State::Failed { .. } => {}
                }
            }
            let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG);
        }
    }

    /// Without the first process of a shared PID namespace nothing can be started in it, and the
    /// kernel has killed all that ran there. The pod begins again, as under a kubelet.
    fn pause_ended(&mut self, ended: Pid) {
        if let Sandbox::Ready { pause, .. } = &mut self.sandbox
            && *pause == Some(ended)
        {
            *pause = None;
            self.ending = true;
            self.leave_word("the pause process of the pod ended");
        }
    }

    /// Whether a child that has ended may be one that its helper has yet to name: an executed
    /// process can be over sooner than the helper gets to say what it is called. It is known, or
    /// the helper dead, the next time that a helper is heard.
    fn is_unnamed(&self, ended: Pid) -> bool {
        let of_attempt = |attempt: &Attempt| match &attempt.state {
            State::Starting { helper, init, .. } => *helper == Some(ended) || *init == Some(ended),
            State::Running { init, .. } => *init == ended,
            State::Failing { init, .. } => *init == Some(ended),
            State::Exited { .. } | State::Over { .. } | State::Failed { .. } => false,
        };
        let of_exec = |exec: &Exec| match &exec.state {
            ExecState::Starting { helper, pid, .. } => *helper == Some(ended) || *pid == Some(ended),
            ExecState::Running { pid, .. } => *pid == ended,
            // It was reaped: who has its number now is another.
            ExecState::Ended { .. } | ExecState::Failed { .. } => false,
        };
        let naming = |exec: &Exec| matches!(exec.state, ExecState::Starting { pid: None, .. });
        self.execs.iter().any(naming)
            && !self.attempts.iter().any(of_attempt)
            && !self.execs.iter().any(of_exec)
    }

    /// A child ended that may be an executed process; `false` if it must wait.
    pub(super) fn exec_ended(&mut self, ended: Pid, status: &WaitStatus) -> bool {
        for exec in &mut self.execs {
            match &mut exec.state {
                ExecState::Starting { helper, .. } if *helper == Some(ended) => {
                    *helper = None;
                    if !matches!(status, WaitStatus::Exited(_, 0)) {
                        exec.fail(cut("exec: its helper was killed"));
                    }
                }
                // Its helper still holds the socket: it ends at once, and this child is next then.
                ExecState::Starting { pid, .. } if *pid == Some(ended) => return false,
                ExecState::Running { pid, terminal } if *pid == ended => {
                    let code = match status {
                        WaitStatus::Exited(_, code) => *code,
                        WaitStatus::Signaled(_, signal, _) => 128 + *signal as i32,
                        // Not asked for.
                        _ => 255,
                    };
                    exec.state = ExecState::Ended { pid: ended, code, terminal: terminal.take() };
                }
                ExecState::Starting { .. }
                | ExecState::Running { .. }
                | ExecState::Ended { .. }
                | ExecState::Failed { .. } => {}
            }
        }
        true
    }

    /// Hears the sandbox helper.
    pub(super) fn sandbox_answered(&mut self) {
        let Sandbox::Making { answer, config } = &self.sandbox else { return };
        let made = match protocol::receive::<Made>(answer.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(Some((Made::Namespaces { pause }, descriptors))) => namespaces(config, descriptors)
                .map(|namespaces| (namespaces, pause.map(Pid::from_raw)))
                .ok_or_else(|| cut("make namespaces: descriptors are missing")),
            Ok(Some((Made::Failed { message }, _))) => Err(message),
            Ok(None) => Err(cut("make namespaces: the sandbox helper died")),
            Err(error) => Err(cut(&format!("hear the sandbox helper: {error}"))),
        };
        let made = match made {
            Ok((_, Some(pause))) if !sys::is_child(pause) => Err(cut("start the pause process: it ended")),
            made => made,
        };
        if made.is_err() && config.share_process_namespace {
            // What the helper has left, if it died after it had forked that.
            let _ = sys::kill_cgroup(&config.pause_cgroup.unified);
        }
        let host_link = config.network.as_ref().map(|network| network.host_link.clone());
        self.sandbox = match made {
            Ok((namespaces, pause)) => {
                Sandbox::Ready { namespaces: Box::new(namespaces), at: Instant::now(), pause, host_link }
            }
            Err(message) => Sandbox::Failed { message },
        };
    }

    /// Hears a start helper, or the process it made.
    pub(super) fn status(&mut self, at: usize) {
        let attempt = &mut self.attempts[at];
        while let State::Starting { status, init, .. } = &mut attempt.state {
            match protocol::receive::<Status>(status.as_fd()) {
                Ok(Some((Status::User { uid, gid, groups, home }, _))) => {
                    attempt.user = User { uid, gid, groups, home: home.as_str().to_owned() };
                }
                Ok(Some((Status::Created { pid }, _))) => *init = Some(Pid::from_raw(pid)),
                Ok(Some((Status::Terminal { stdin }, descriptors))) => {
                    let master = descriptors.into_iter().next();
                    let set = master.map(|master| attempt.set_terminal(master, stdin));
                    if !matches!(set, Some(Ok(()))) {
                        attempt.fail(false, cut("create the container: its terminal is missing"));
                    }
                }
                Ok(Some((Status::Failed { run, message }, _))) => attempt.fail(run, message),
                Ok(None) => {
                    // Every copy is closed: the process was executed, or all of them are dead.
                    let pidfd = init.and_then(|init| Some((init, sys::pidfd_open(init).ok()?)));
                    match pidfd {
                        Some((init, pidfd)) => {
                            attempt.state = State::Running { init, pidfd, at: Instant::now() }
                        }
                        None => attempt.fail(false, cut("create the container: the start helper died")),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => attempt.fail(false, cut(&format!("hear the start helper: {error}"))),
            }
        }
    }

    /// Hears an exec helper, or the process it made.
    pub(super) fn exec_status(&mut self, at: usize) {
        let exec = &mut self.execs[at];
        while let ExecState::Starting { status, pid, terminal, .. } = &mut exec.state {
            match protocol::receive::<Status>(status.as_fd()) {
                Ok(Some((Status::Created { pid: created }, descriptors))) => {
                    *pid = Some(Pid::from_raw(created));
                    *terminal = descriptors.into_iter().next();
                }
                Ok(Some((Status::Failed { message, .. }, _))) => exec.fail(message),
                Ok(Some((Status::User { .. } | Status::Terminal { .. }, _))) => {}
                Ok(None) => match *pid {
                    Some(pid) => exec.state = ExecState::Running { pid, terminal: terminal.take() },
                    None => exec.fail(cut("exec: its helper died")),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => exec.fail(cut(&format!("exec: hear its helper: {error}"))),
            }
        }
    }

    /// Ends attempts whose last process is gone, and gives up starts that hang.
    pub(super) fn settle(&mut self) {
        let now = Instant::now();
        for attempt in &mut self.attempts {
            if let State::Starting { deadline, .. } = &attempt.state
                && *deadline <= now
            {
                attempt.fail(false, cut("create the container: it took longer than two minutes"));
            }
            if attempt.is_emptying() {
                // With a PID namespace of its own, nobody outlives the first process.
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
            if sys::is_populated(&exec.cgroup, &mut exec.events) {
                // What a process leaves behind is the container's from then on, as under containerd.
                if matches!(exec.state, ExecState::Ended { .. }) && exec.moves > 0 {
                    exec.moves -= 1;
                    sys::empty_into_parent(&exec.cgroup);
                }
                if sys::is_populated(&exec.cgroup, &mut exec.events) {
                    return true;
                }
            }
            let _ = fs::remove_dir(&exec.cgroup);
            exec.events = None;
            !exec.ended_told
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
        host_pid: config.host_pid,
        host_ipc: config.host_ipc,
    })
}

/// Writes the exit record of an attempt whose first process has ended.
fn record(dir: &Path, attempt: &Attempt, status: WaitStatus, started_at: Instant) {
    let (code, signal) = match status {
        WaitStatus::Exited(_, code) => (code, None),
        WaitStatus::Signaled(_, signal, _) => (128 + signal as i32, Some(signal as i32)),
        // Not asked for.
        _ => (255, None),
    };
    let message = exit::termination_message(attempt.termination_message.as_ref(), code, &attempt.log);
    let record = ExitRecord { code, signal, started_at, finished_at: Instant::now(), message };
    // On tmpfs; the agent calls an exit without a record unknown.
    let _ = record.write(dir, &attempt.container, attempt.number);
}
