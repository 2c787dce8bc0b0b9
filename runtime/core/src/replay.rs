//! Tells the core again what it was told, and compares what it asks for: the same
//! facts at the same times must bring the same actions, on a board as in the lab.
//!
//! Reads what `nodlet ring -f -o json` writes. `cargo run -p nodlet-runtime
//! --example replay FILE` does it by hand; the tests do it with all that each of
//! their agents was told.

use std::fmt;
use std::rc::Rc;

use serde::Deserialize;
use serde_json::Value;

use crate::facts::{Plan, PodIndex};
use crate::node::{self, Asked, Entry, Known, Node};
use crate::spec::Pod;
use crate::time::Instant;

#[derive(Deserialize)]
struct Numbered {
    number: u64,
    at: Instant,
    entry: Entry,
}

/// What a replay went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Facts that the core was told.
    pub told: u64,
    /// Actions that it asked for, all of them as before.
    pub asked: u64,
}

/// Why a ring does not replay.
#[derive(Debug)]
pub enum ReplayError {
    /// A line is none of a ring.
    Line(u64, serde_json::Error),
    /// Entries before this one are lost: a replay begins with the agent.
    Lost(u64),
    /// The pod of this entry is not admitted, or was too large to be kept.
    Pod(u64, Box<dyn std::error::Error>),
    /// The core asked for something else.
    Different {
        /// The entry.
        number: u64,
        /// What it asked for when it was recorded.
        recorded: String,
        /// What it asks for now.
        replayed: String,
    },
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayError::Line(line, _) => write!(f, "read line {line}"),
            ReplayError::Lost(number) => {
                write!(f, "replay: entries before {number} are lost; a replay begins with the agent")
            }
            ReplayError::Pod(number, _) => write!(f, "admit the pod of entry {number}"),
            ReplayError::Different { number, recorded, replayed } => write!(
                f,
                "decide the same at entry {number}: it asked for {recorded}, and now asks for {replayed}"
            ),
        }
    }
}

impl std::error::Error for ReplayError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReplayError::Line(_, source) => Some(source),
            ReplayError::Pod(_, source) => Some(source.as_ref()),
            ReplayError::Lost(_) | ReplayError::Different { .. } => None,
        }
    }
}

/// Replays the lines of a ring from its first entry on. They may end anywhere: an
/// agent may have been killed there. `admit` returns the Pod of an object that was
/// admitted on the node of this name.
///
/// # Errors
/// The lines are no whole ring, or the core decides otherwise than it did.
pub fn replay<E: std::error::Error + 'static>(
    lines: &str,
    admit: impl Fn(Value, &str) -> Result<Rc<Pod>, E>,
) -> Result<Replayed, ReplayError> {
    let mut again = Again::default();
    let mut last = lines.lines().enumerate().peekable();
    while let Some((line, text)) = last.next() {
        let Numbered { number, at, entry } = match serde_json::from_str(text) {
            Ok(numbered) => numbered,
            // Cut off where the agent was killed.
            Err(error) if error.is_eof() && last.peek().is_none() => break,
            Err(error) => return Err(ReplayError::Line(line as u64 + 1, error)),
        };
        if number != line as u64 {
            return Err(ReplayError::Lost(number));
        }
        let pod = |known: &Known| {
            let object: Value = serde_json::from_str(known.object.get()).expect("a raw value is JSON");
            let node = object["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
            admit(object, &node).map_err(|error| ReplayError::Pod(number, Box::new(error)))
        };
        again.entry(number, at, entry, pod)?;
    }
    Ok(again.replayed)
}

/// A core that is told once more what another one was told. It is never asked what there is to
/// show, which the engine asks after each plan: that changes no decision.
#[derive(Default)]
pub(crate) struct Again {
    node: Node,
    replayed: Replayed,
    /// What it asked for last, as far as it was not compared yet.
    planned: std::vec::IntoIter<(PodIndex, Asked)>,
}

impl Again {
    /// Takes the next entry; `pod` gives the pod of one that tells of a whole one.
    pub(crate) fn entry(
        &mut self,
        number: u64,
        at: Instant,
        entry: Entry,
        pod: impl FnOnce(&Known) -> Result<Rc<Pod>, ReplayError>,
    ) -> Result<(), ReplayError> {
        let different =
            |recorded: String, replayed: String| Err(ReplayError::Different { number, recorded, replayed });
        match entry {
            Entry::Planned { actions, more, wake_at } => {
                let plan = self.node.plan(at);
                let asked: Vec<_> =
                    plan.actions.iter().map(|(pod, action)| (*pod, node::asked(action))).collect();
                let left = asked.get(usize::from(actions));
                if asked.len() != usize::from(actions) {
                    let replayed = left.or(asked.last()).map_or("nothing".to_owned(), print);
                    return different(
                        format!("{actions} actions"),
                        format!("{}, the last {replayed}", asked.len()),
                    );
                }
                if (more, wake_at) != (plan.more, plan.wake_at) {
                    return different(next(more, wake_at), next_of(&plan));
                }
                self.planned = asked.into_iter();
            }
            Entry::Asked(pod, recorded) => {
                let (recorded, now) = ((pod, recorded), self.planned.next());
                if now.as_ref() != Some(&recorded) {
                    let replayed = now.as_ref().map_or("nothing".to_owned(), print);
                    return different(print(&recorded), replayed);
                }
                self.replayed.asked += 1;
            }
            Entry::Observed(seen) => {
                let seen = seen.map(|known| pod(known), |()| Box::default())?;
                self.node.observe(at, seen);
                self.replayed.told += 1;
            }
        }
        Ok(())
    }
}

/// `RemoveSandbox of pod 1`; what a line for people leaves out is compared too.
fn print((pod, asked): &(PodIndex, Asked)) -> String {
    format!("{asked:?} of pod {}", pod.0)
}

fn next_of(plan: &Plan) -> String {
    next(plan.more, plan.wake_at)
}

/// When the core wants to be asked again.
fn next(more: bool, wake_at: Option<Instant>) -> String {
    match (more, wake_at) {
        (true, _) => "the next plan at once".to_owned(),
        (false, Some(at)) => format!("the next plan at {} ns", at.0),
        (false, None) => "the next plan when there is news".to_owned(),
    }
}
