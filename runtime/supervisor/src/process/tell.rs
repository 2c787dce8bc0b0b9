//! News for the agent: the part of the supervisor's state that the agent does not know.
//!
//! One piece of news at a time is derived from the state ([`Process::next`]). News that the socket does not
//! accept now is sent when it does; this includes the answer to a greeting.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Process, Sandbox};
use crate::attempt::{Attempt, State, Told};
use crate::enter::{Exec, ExecState};
use crate::protocol::{self, News, VERSION, cut};

/// The connected agent, and what it knows.
pub(super) struct Agent {
    socket: OwnedFd,
    greeting: Greeting,
    sandbox_told: bool,
    /// The answer to the agent's latest request, which is stored nowhere else. Until the socket accepts it,
    /// no further request is read, so there is never more than one.
    answer: Option<(News, Option<OwnedFd>)>,
}

/// The progress of the answer to the agent's greeting.
enum Greeting {
    /// The agent has not greeted, or with another version: nothing is reported.
    Strange,
    /// `Hello` is next; if the versions are equal, the whole state follows.
    Hello { equal: bool },
    /// These layers are next, the last one first; then the state of everything, and `HelloEnd`.
    Layers(Vec<String>),
    /// The agent knows the whole state, and gets changes.
    Over,
}

impl Agent {
    pub(super) fn new(socket: OwnedFd) -> Agent {
        Agent { socket, greeting: Greeting::Strange, sandbox_told: false, answer: None }
    }

    /// The agent that requested the replacement of the supervisor by this binary.
    pub(super) fn taken_over(socket: OwnedFd) -> Agent {
        Agent { greeting: Greeting::Hello { equal: false }, ..Agent::new(socket) }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn may_ask(&self) -> bool {
        self.answer.is_none()
    }

    pub(super) fn forget_answer(&mut self) {
        self.answer = None;
    }

    /// Records that the agent's knowledge of the sandbox is out of date.
    pub(super) fn expect_sandbox(&mut self) {
        self.sandbox_told = false;
    }
}

/// The part of the agent's knowledge that a piece of news updates when it is sent.
enum Item {
    Answer,
    Hello { equal: bool },
    Layer,
    Sandbox,
    Started(usize),
    Ended(usize),
    ExecStarted(usize),
    ExecEnded(usize),
    Starting(usize),
    End,
}

impl Process {
    /// Resets what the agent knows, so that it is sent the whole state.
    pub(super) fn greet(&mut self, version: u32) {
        let Some(agent) = &mut self.agent else { return };
        let equal = version == VERSION;
        (agent.greeting, agent.sandbox_told) = (Greeting::Hello { equal }, false);
        if equal {
            for attempt in &mut self.attempts {
                attempt.told = Told::default();
            }
            for exec in &mut self.execs {
                (exec.started_told, exec.ended_told) = (false, false);
            }
        }
    }

    /// Answers a request of the agent.
    pub(super) fn answer(&mut self, news: News, descriptor: Option<OwnedFd>) {
        if let Some(agent) = &mut self.agent {
            agent.answer = Some((news, descriptor));
        }
    }

    pub(super) fn has_news(&self) -> bool {
        self.next().is_some()
    }

    /// Sends the agent all news that it does not know, as far as the socket accepts it.
    pub(super) fn tell(&mut self) {
        while let Some((news, item)) = self.next() {
            if !self.say(&news, &item) {
                return;
            }
            self.note(item);
        }
    }

    /// The next news for the agent.
    fn next(&self) -> Option<(News, Item)> {
        let agent = self.agent.as_ref()?;
        if let Some((news, _)) = &agent.answer {
            return Some((news.clone(), Item::Answer));
        }
        let is_first = match &agent.greeting {
            Greeting::Strange => return None,
            Greeting::Hello { equal } => {
                let pid = std::process::id() as i32;
                return Some((News::Hello { version: VERSION, pid }, Item::Hello { equal: *equal }));
            }
            Greeting::Layers(names) => {
                if let Some(name) = names.last() {
                    return Some((News::Layer { name: cut(name) }, Item::Layer));
                }
                true
            }
            Greeting::Over => false,
        };
        if let (false, Some(news)) = (agent.sandbox_told, news_of_sandbox(&self.sandbox)) {
            return Some((news, Item::Sandbox));
        }
        let of_attempts = self.attempts.iter().enumerate().find_map(|(at, attempt)| news_of(at, attempt));
        let of_execs = || self.execs.iter().enumerate().find_map(|(at, exec)| news_of_exec(at, exec));
        if let Some(next) = of_attempts.or_else(of_execs) {
            return Some(next);
        }
        if !is_first {
            return None;
        }
        let starting =
            self.attempts.iter().position(|attempt| is_starting(attempt) && !attempt.told.starting);
        Some(match starting {
            Some(at) => {
                let attempt = &self.attempts[at];
                let (container, number) = (attempt.container.clone(), attempt.number);
                (News::Starting { container, number }, Item::Starting(at))
            }
            None => (News::HelloEnd, Item::End),
        })
    }

    /// Sends one frame with its descriptor; `false` if the agent cannot accept it now.
    fn say(&mut self, news: &News, item: &Item) -> bool {
        let Some(agent) = &self.agent else { return false };
        let descriptor = match item {
            Item::Answer => agent.answer.as_ref().and_then(|(_, descriptor)| descriptor.as_ref()),
            Item::Layer => match &agent.greeting {
                Greeting::Layers(names) => names.last().and_then(|name| self.layers.get(name)),
                Greeting::Strange | Greeting::Hello { .. } | Greeting::Over => None,
            },
            Item::Started(at) => match &self.attempts[*at].state {
                State::Running { pidfd, .. } => Some(pidfd),
                State::Starting { .. }
                | State::Exited { .. }
                | State::Over { .. }
                | State::Failing { .. }
                | State::Failed { .. } => None,
            },
            Item::ExecStarted(at) => match &self.execs[*at].state {
                ExecState::Running { terminal, .. } | ExecState::Ended { terminal, .. } => terminal.as_ref(),
                ExecState::Starting { .. } | ExecState::Failed { .. } => None,
            },
            Item::Hello { .. }
            | Item::Sandbox
            | Item::Ended(_)
            | Item::ExecEnded(_)
            | Item::Starting(_)
            | Item::End => None,
        };
        let descriptors: Vec<BorrowedFd> = descriptor.iter().map(|fd| fd.as_fd()).collect();
        match protocol::send(agent.socket(), news, &descriptors) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(_) => {
                self.agent = None;
                false
            }
        }
    }

    /// Records that the agent knows this news.
    fn note(&mut self, item: Item) {
        let Some(agent) = &mut self.agent else { return };
        match item {
            Item::Answer => agent.answer = None,
            Item::Hello { equal: true } => {
                agent.greeting = Greeting::Layers(self.layers.keys().cloned().collect());
            }
            Item::Hello { equal: false } => agent.greeting = Greeting::Strange,
            Item::Layer => {
                if let Greeting::Layers(names) = &mut agent.greeting {
                    names.pop();
                }
            }
            Item::Sandbox => agent.sandbox_told = true,
            Item::Started(at) => self.attempts[at].told.started = true,
            Item::Ended(at) => self.attempts[at].told.ended = true,
            Item::ExecStarted(at) => {
                let exec = &mut self.execs[at];
                exec.started_told = true;
                if let ExecState::Running { terminal, .. } | ExecState::Ended { terminal, .. } =
                    &mut exec.state
                {
                    // The terminal belongs to the agent now: another copy would keep it from hanging up.
                    *terminal = None;
                }
            }
            Item::ExecEnded(at) => self.execs[at].ended_told = true,
            Item::Starting(at) => self.attempts[at].told.starting = true,
            Item::End => agent.greeting = Greeting::Over,
        }
    }
}

/// Whether the attempt's start is under way, or is being ended.
fn is_starting(attempt: &Attempt) -> bool {
    match &attempt.state {
        State::Starting { .. } | State::Failing { .. } => true,
        State::Running { .. } | State::Exited { .. } | State::Over { .. } | State::Failed { .. } => false,
    }
}

fn news_of_sandbox(sandbox: &Sandbox) -> Option<News> {
    match sandbox {
        Sandbox::Ready { at, .. } => Some(News::SandboxReady { at: *at }),
        Sandbox::Failed { message } => Some(News::SandboxFailed { message: message.clone() }),
        Sandbox::Absent | Sandbox::Making { .. } => None,
    }
}

/// The next news of an attempt that the agent does not know.
fn news_of(at: usize, attempt: &Attempt) -> Option<(News, Item)> {
    let (container, number, told) = (attempt.container.clone(), attempt.number, attempt.told);
    match &attempt.state {
        State::Starting { .. } | State::Failing { .. } => None,
        State::Running { init, at: since, .. }
        | State::Exited { init, at: since }
        | State::Over { init, at: since }
            if !told.started =>
        {
            let news = News::Started {
                container,
                number,
                pid: init.as_raw(),
                at: *since,
                uid: attempt.user.uid,
                gid: attempt.user.gid,
                groups: attempt.user.groups.clone(),
            };
            Some((news, Item::Started(at)))
        }
        State::Running { .. } | State::Exited { .. } => None,
        State::Over { .. } => (!told.ended).then_some((News::Exited { container, number }, Item::Ended(at))),
        State::Failed { run, message } => {
            let (run, message) = (*run, message.clone());
            (!told.ended).then_some((News::StartFailed { container, number, run, message }, Item::Ended(at)))
        }
    }
}

/// The next news of an executed process that the agent does not know.
fn news_of_exec(at: usize, exec: &Exec) -> Option<(News, Item)> {
    let id = exec.id;
    match &exec.state {
        ExecState::Starting { .. } => None,
        ExecState::Running { pid, .. } | ExecState::Ended { pid, .. } if !exec.started_told => {
            Some((News::ExecStarted { id, pid: pid.as_raw() }, Item::ExecStarted(at)))
        }
        ExecState::Running { .. } => None,
        ExecState::Ended { code, .. } => {
            (!exec.ended_told).then_some((News::ExecExited { id, code: *code }, Item::ExecEnded(at)))
        }
        ExecState::Failed { message } => {
            let message = message.clone();
            (!exec.ended_told).then_some((News::ExecFailed { id, message }, Item::ExecEnded(at)))
        }
    }
}
