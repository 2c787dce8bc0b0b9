//! Reports to the agent: the part of the supervisor's state that the agent does not know.
//!
//! One report at a time is derived from the state ([`Process::next`]). A report that the socket does not
//! accept now is sent when it does; this includes the answer to a greeting.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::{Process, Sandbox};
use crate::attempt::{Attempt, Reported, State};
use crate::enter::{Exec, ExecState};
use crate::protocol::{self, Report, ReportedUser, VERSION, cut};
use crate::saved::Saved;
use crate::sys::inherited;
use crate::user::User;

/// The connected agent, and what it knows.
pub(super) struct Agent {
    socket: OwnedFd,
    greeting: Greeting,
    sandbox_reported: bool,
    /// The answer to the agent's latest request, which is stored nowhere else. Until the socket accepts it,
    /// no further request is read, so there is never more than one.
    answer: Option<(Report, Vec<OwnedFd>)>,
}

/// The progress of the answer to the agent's greeting.
enum Greeting {
    /// The agent has not greeted, or with another version: nothing is reported.
    Missing,
    /// `Hello` is next; if the versions are equal, the whole state follows.
    Hello { equal: bool },
    /// These layers are next, the last one first; then the state of everything, and `HelloEnd`.
    Layers(Vec<String>),
    /// The agent knows the whole state, and gets changes.
    Done,
}

/// The agent requested the replacement of the supervisor, and is connected to the next binary.
impl Saved for Agent {
    type Form = RawFd;

    fn save(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    fn restore(socket: RawFd) -> Agent {
        Agent { greeting: Greeting::Hello { equal: false }, ..Agent::new(inherited(socket)) }
    }
}

impl Agent {
    pub(super) fn new(socket: OwnedFd) -> Agent {
        Agent { socket, greeting: Greeting::Missing, sandbox_reported: false, answer: None }
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
        self.sandbox_reported = false;
    }
}

/// The part of the agent's knowledge that a report updates when it is sent.
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
        (agent.greeting, agent.sandbox_reported) = (Greeting::Hello { equal }, false);
        if equal {
            for attempt in &mut self.attempts {
                attempt.reported = Reported::default();
            }
            for exec in &mut self.execs {
                (exec.started_reported, exec.ended_reported) = (false, false);
            }
        }
    }

    /// Answers a request of the agent.
    pub(super) fn answer(&mut self, report: Report, descriptor: Option<OwnedFd>) {
        self.answer_with(report, descriptor.into_iter().collect());
    }

    /// Answers a request of the agent with any number of descriptors.
    pub(super) fn answer_with(&mut self, report: Report, descriptors: Vec<OwnedFd>) {
        if let Some(agent) = &mut self.agent {
            agent.answer = Some((report, descriptors));
        }
    }

    pub(super) fn has_report(&self) -> bool {
        self.next().is_some()
    }

    /// Sends the agent all reports that it does not know, as far as the socket accepts them.
    pub(super) fn send_reports(&mut self) {
        while let Some((report, item)) = self.next() {
            if !self.send_report(&report, &item) {
                return;
            }
            self.mark_reported(item);
        }
    }

    /// The next report to the agent.
    fn next(&self) -> Option<(Report, Item)> {
        let agent = self.agent.as_ref()?;
        if let Some((report, _)) = &agent.answer {
            return Some((report.clone(), Item::Answer));
        }
        let is_first = match &agent.greeting {
            Greeting::Missing => return None,
            Greeting::Hello { equal } => {
                let pid = std::process::id() as i32;
                return Some((Report::Hello { version: VERSION, pid }, Item::Hello { equal: *equal }));
            }
            Greeting::Layers(names) => {
                if let Some(name) = names.last() {
                    return Some((Report::Layer { name: cut(name) }, Item::Layer));
                }
                true
            }
            Greeting::Done => false,
        };
        if let (false, Some(report)) = (agent.sandbox_reported, sandbox_report(&self.sandbox)) {
            return Some((report, Item::Sandbox));
        }
        let of_attempts =
            self.attempts.iter().enumerate().find_map(|(at, attempt)| attempt_report(at, attempt));
        let of_execs = || self.execs.iter().enumerate().find_map(|(at, exec)| exec_report(at, exec));
        if let Some(next) = of_attempts.or_else(of_execs) {
            return Some(next);
        }
        if !is_first {
            return None;
        }
        let starting =
            self.attempts.iter().position(|attempt| is_starting(attempt) && !attempt.reported.starting);
        Some(match starting {
            Some(at) => {
                let attempt = &self.attempts[at];
                let (container, number) = (attempt.container.clone(), attempt.number);
                (Report::Starting { container, number }, Item::Starting(at))
            }
            None => (Report::HelloEnd, Item::End),
        })
    }

    /// Sends one frame with its descriptor; `false` if the agent cannot accept it now.
    fn send_report(&mut self, report: &Report, item: &Item) -> bool {
        let Some(agent) = &self.agent else { return false };
        let descriptors: Vec<BorrowedFd> = match item {
            Item::Answer => {
                let kept = agent.answer.iter().flat_map(|(_, descriptors)| descriptors);
                kept.map(AsFd::as_fd).collect()
            }
            Item::Layer => match &agent.greeting {
                Greeting::Layers(names) => one(names.last().and_then(|name| self.layers.get(name))),
                Greeting::Missing | Greeting::Hello { .. } | Greeting::Done => vec![],
            },
            Item::Started(at) => one(self.attempts[*at].running().map(|(_, pidfd)| pidfd)),
            Item::ExecStarted(at) => one(self.execs[*at].terminal()),
            Item::Hello { .. }
            | Item::Sandbox
            | Item::Ended(_)
            | Item::ExecEnded(_)
            | Item::Starting(_)
            | Item::End => vec![],
        };
        match protocol::send(agent.socket(), report, &descriptors) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(_) => {
                self.agent = None;
                false
            }
        }
    }

    /// Records that the agent knows the content of this report.
    fn mark_reported(&mut self, item: Item) {
        let Some(agent) = &mut self.agent else { return };
        match item {
            Item::Answer => agent.answer = None,
            Item::Hello { equal: true } => {
                agent.greeting = Greeting::Layers(self.layers.keys().cloned().collect());
            }
            Item::Hello { equal: false } => agent.greeting = Greeting::Missing,
            Item::Layer => {
                if let Greeting::Layers(names) = &mut agent.greeting {
                    names.pop();
                }
            }
            Item::Sandbox => agent.sandbox_reported = true,
            Item::Started(at) => self.attempts[at].reported.started = true,
            Item::Ended(at) => self.attempts[at].reported.ended = true,
            Item::ExecStarted(at) => {
                let exec = &mut self.execs[at];
                exec.started_reported = true;
                if let ExecState::Running { terminal, .. } | ExecState::Ended { terminal, .. } =
                    &mut exec.state
                {
                    // The terminal belongs to the agent now: another copy would keep it from hanging up.
                    *terminal = None;
                }
            }
            Item::ExecEnded(at) => self.execs[at].ended_reported = true,
            Item::Starting(at) => self.attempts[at].reported.starting = true,
            Item::End => agent.greeting = Greeting::Done,
        }
    }
}

fn one(descriptor: Option<&OwnedFd>) -> Vec<BorrowedFd<'_>> {
    descriptor.map(AsFd::as_fd).into_iter().collect()
}

/// Whether the attempt's start is under way, or is being ended.
fn is_starting(attempt: &Attempt) -> bool {
    match &attempt.state {
        State::Starting { .. } | State::Failing { .. } => true,
        State::Running { .. } | State::Exited { .. } | State::Ended { .. } | State::Failed { .. } => false,
    }
}

fn sandbox_report(sandbox: &Sandbox) -> Option<Report> {
    match sandbox {
        Sandbox::Ready { at, .. } => Some(Report::SandboxReady { at: *at }),
        Sandbox::Failed { message } => Some(Report::SandboxFailed { message: message.clone() }),
        Sandbox::Absent | Sandbox::Making { .. } => None,
    }
}

/// The next report of an attempt that the agent does not know.
fn attempt_report(at: usize, attempt: &Attempt) -> Option<(Report, Item)> {
    let (container, number, reported) = (attempt.container.clone(), attempt.number, attempt.reported);
    match &attempt.state {
        State::Starting { .. } | State::Failing { .. } => None,
        State::Running { init, at: since, .. }
        | State::Exited { init, at: since }
        | State::Ended { init, at: since }
            if !reported.started =>
        {
            let report = Report::Started {
                container,
                number,
                pid: init.as_raw(),
                at: *since,
                uid: attempt.user.uid,
                gid: attempt.user.gid,
                groups: attempt.user.groups.clone(),
            };
            Some((report, Item::Started(at)))
        }
        State::Running { .. } | State::Exited { .. } => None,
        State::Ended { .. } => {
            (!reported.ended).then_some((Report::Exited { container, number }, Item::Ended(at)))
        }
        State::Failed { run, message } => {
            let (run, message) = (*run, message.clone());
            let User { uid, gid, groups, .. } = &attempt.user;
            let user = run.then(|| ReportedUser { uid: *uid, gid: *gid, groups: groups.clone() });
            (!reported.ended)
                .then_some((Report::StartFailed { container, number, run, message, user }, Item::Ended(at)))
        }
    }
}

/// The next report of an executed process that the agent does not know.
fn exec_report(at: usize, exec: &Exec) -> Option<(Report, Item)> {
    let id = exec.id;
    match &exec.state {
        ExecState::Starting { .. } => None,
        ExecState::Running { pid, .. } | ExecState::Ended { pid, .. } if !exec.started_reported => {
            Some((Report::ExecStarted { id, pid: pid.as_raw() }, Item::ExecStarted(at)))
        }
        ExecState::Running { .. } => None,
        ExecState::Ended { code, .. } => {
            (!exec.ended_reported).then_some((Report::ExecExited { id, code: *code }, Item::ExecEnded(at)))
        }
        ExecState::Failed { message } => {
            let message = message.clone();
            (!exec.ended_reported).then_some((Report::ExecFailed { id, message }, Item::ExecEnded(at)))
        }
    }
}
