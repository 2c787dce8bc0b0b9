//! What the agent is told: whatever it does not know of the supervisor's state.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::unistd::Pid;

use super::{Process, Sandbox};
use crate::supervisor::attempt::{Attempt, State, Told};
use crate::supervisor::enter::{Exec, ExecState};
use crate::supervisor::protocol::{self, News, VERSION, cut};
use crate::time::Instant;

impl Process {
    /// Forgets what the last agent was told, so that this one is told all.
    pub(super) fn greet(&mut self, version: u32) {
        let pid = std::process::id() as i32;
        if let Some(agent) = &mut self.agent {
            (agent.greeted, agent.sandbox_told) = (version == VERSION, false);
        }
        if !self.say(&News::Hello { version: VERSION, pid }, &[]) || version != VERSION {
            return;
        }
        for attempt in &mut self.attempts {
            attempt.told = Told::default();
        }
        for exec in &mut self.execs {
            (exec.started_told, exec.ended_told) = (false, false);
        }
        let layers: Vec<String> = self.layers.keys().cloned().collect();
        for name in layers {
            let layer = self.layers[&name].try_clone();
            if let Ok(layer) = layer {
                self.say(&News::Layer { name: cut(&name) }, &[layer.as_fd()]);
            }
        }
        self.tell();
        let starting = |attempt: &&Attempt| match &attempt.state {
            State::Starting { .. } | State::Failing { .. } => true,
            State::Running { .. } | State::Exited { .. } | State::Over { .. } | State::Failed { .. } => false,
        };
        let starting: Vec<News> = self.attempts.iter().filter(starting).map(News::starting).collect();
        for news in starting {
            self.say(&news, &[]);
        }
        self.say(&News::HelloEnd, &[]);
    }

    /// Sends one frame; `false` if the agent cannot take it now.
    pub(super) fn say(&mut self, news: &News, descriptors: &[BorrowedFd]) -> bool {
        let Some(agent) = &self.agent else { return false };
        match protocol::send(agent.socket.as_fd(), news, descriptors) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(_) => {
                self.agent = None;
                false
            }
        }
    }

    pub(super) fn has_news(&self) -> bool {
        let sandbox = match &self.sandbox {
            Sandbox::Ready { .. } | Sandbox::Failed { .. } => {
                self.agent.as_ref().is_some_and(|a| !a.sandbox_told)
            }
            Sandbox::Absent | Sandbox::Making { .. } => false,
        };
        sandbox
            || self.attempts.iter().any(|attempt| news_of(attempt).is_some())
            || self.execs.iter().any(|exec| news_of_exec(exec).is_some())
    }

    /// Tells the agent what it does not know, as far as it takes it.
    pub(super) fn tell(&mut self) {
        if !self.agent.as_ref().is_some_and(|agent| agent.greeted) {
            return;
        }
        if self.agent.as_ref().is_some_and(|agent| !agent.sandbox_told) {
            let news = match &self.sandbox {
                Sandbox::Ready { at, .. } => Some(News::SandboxReady { at: *at }),
                Sandbox::Failed { message } => Some(News::SandboxFailed { message: message.clone() }),
                Sandbox::Absent | Sandbox::Making { .. } => None,
            };
            if let Some(news) = news {
                if !self.say(&news, &[]) {
                    return;
                }
                if let Some(agent) = &mut self.agent {
                    agent.sandbox_told = true;
                }
            }
        }
        for at in 0..self.attempts.len() {
            while let Some(news) = news_of(&self.attempts[at]) {
                let pidfd = match (&news, &self.attempts[at].state) {
                    (News::Started { .. }, State::Running { pidfd, .. }) => pidfd.try_clone().ok(),
                    _ => None,
                };
                let descriptors: Vec<BorrowedFd> = pidfd.iter().map(|fd| fd.as_fd()).collect();
                if !self.say(&news, &descriptors) {
                    return;
                }
                let told = &mut self.attempts[at].told;
                match news {
                    News::Started { .. } => told.started = true,
                    _ => told.ended = true,
                }
            }
        }
        self.tell_of_execs();
    }

    /// Tells of executed processes.
    pub(super) fn tell_of_execs(&mut self) {
        for at in 0..self.execs.len() {
            while let Some(news) = news_of_exec(&self.execs[at]) {
                let terminal = match &self.execs[at].state {
                    ExecState::Running { terminal: Some(terminal), .. } => terminal.try_clone().ok(),
                    _ => None,
                };
                let descriptors: Vec<BorrowedFd> = terminal.iter().map(|fd| fd.as_fd()).collect();
                if !self.say(&news, &descriptors) {
                    return;
                }
                let exec = &mut self.execs[at];
                match news {
                    News::ExecStarted { .. } => exec.started_told = true,
                    _ => exec.ended_told = true,
                }
                if let ExecState::Running { terminal, .. } = &mut exec.state {
                    // It is the agent's now: whoever has a copy keeps the terminal from hanging up.
                    *terminal = None;
                }
            }
        }
    }
}

impl News {
    fn starting(attempt: &Attempt) -> News {
        News::Starting { container: attempt.container.clone(), number: attempt.number }
    }
}

/// The next thing that the agent does not know of an attempt.
fn news_of(attempt: &Attempt) -> Option<News> {
    let (container, number) = (attempt.container.clone(), attempt.number);
    let started = |init: &Pid, at: &Instant| News::Started {
        container: container.clone(),
        number,
        pid: init.as_raw(),
        at: *at,
        uid: attempt.user.uid,
        gid: attempt.user.gid,
        groups: attempt.user.groups.clone(),
    };
    match &attempt.state {
        State::Starting { .. } | State::Failing { .. } => None,
        State::Running { init, at, .. } | State::Exited { init, at } => {
            (!attempt.told.started).then(|| started(init, at))
        }
        State::Over { init, at } if !attempt.told.started => Some(started(init, at)),
        State::Over { .. } => (!attempt.told.ended).then_some(News::Exited { container, number }),
        State::Failed { run, message } => {
            let message = message.clone();
            (!attempt.told.ended).then_some(News::StartFailed { container, number, run: *run, message })
        }
    }
}

/// The next thing that the agent does not know of an executed process.
fn news_of_exec(exec: &Exec) -> Option<News> {
    let id = exec.id;
    match &exec.state {
        ExecState::Starting { .. } => None,
        ExecState::Running { pid, .. } | ExecState::Ended { pid, .. } if !exec.started_told => {
            Some(News::ExecStarted { id, pid: pid.as_raw() })
        }
        ExecState::Running { .. } => None,
        ExecState::Ended { code, .. } => (!exec.ended_told).then_some(News::ExecExited { id, code: *code }),
        ExecState::Failed { message } => {
            (!exec.ended_told).then(|| News::ExecFailed { id, message: message.clone() })
        }
    }
}
