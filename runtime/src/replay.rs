//! Tells the core again what it was told, and compares what it asks for: the same
//! facts at the same times must bring the same actions, on a board as in the lab.
//!
//! Reads what `nodlet ring -f -o json` writes. `cargo run -p nodlet-runtime
//! --example replay FILE` does it by hand; the tests do it with all that each of
//! their agents was told.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use crate::manifest::{self, ManifestError, Validation};
use crate::node::{Asked, Entry, Found, FoundRun, FoundSandbox, Known, Node, Observation, PodIndex};
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
    Pod(u64, Box<ManifestError>),
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
            ReplayError::Line(line, error) => write!(f, "read line {line}: {error}"),
            ReplayError::Lost(number) => {
                write!(f, "replay: entries before {number} are lost; a replay begins with the agent")
            }
            ReplayError::Pod(number, error) => write!(f, "admit the pod of entry {number}: {error}"),
            ReplayError::Different { number, recorded, replayed } => write!(
                f,
                "decide the same at entry {number}: it asked for {recorded}, and now asks for {replayed}"
            ),
        }
    }
}

impl std::error::Error for ReplayError {}

/// Replays the lines of a ring from its first entry on. They may end anywhere: an
/// agent may have been killed there.
///
/// # Errors
/// The lines are no whole ring, or the core decides otherwise than it did.
pub fn replay(lines: &str) -> Result<Replayed, ReplayError> {
    let mut node = Node::new();
    let mut replayed = Replayed::default();
    let mut planned = Vec::new().into_iter();
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
        let different = |recorded: Option<&dyn fmt::Debug>, now: Option<(PodIndex, Asked)>| {
            let nothing = || "nothing".to_owned();
            Err(ReplayError::Different {
                number,
                recorded: recorded.map_or_else(nothing, |recorded| format!("{recorded:?}")),
                replayed: now.map_or_else(nothing, |now| format!("{now:?}")),
            })
        };
        match entry {
            Entry::Planned(actions) => {
                let plan = node.plan(at);
                let asked: Vec<_> =
                    plan.actions.iter().map(|(pod, action)| (*pod, Asked::of(action))).collect();
                if asked.len() < usize::from(actions) {
                    return different(Some(&format!("{actions} actions")), asked.last().cloned());
                }
                if let Some(more) = asked.get(usize::from(actions)) {
                    return different(None, Some(more.clone()));
                }
                planned = asked.into_iter();
                // As the engine does after each plan; it changes no decision.
                node.take_changed();
            }
            Entry::Asked(pod, recorded) => {
                let now = planned.next();
                if now.as_ref() != Some(&(pod, recorded.clone())) {
                    return different(Some(&(pod, recorded)), now);
                }
                replayed.asked += 1;
            }
            told => {
                let seen = observation(number, told)?;
                node.observe(at, seen);
                replayed.told += 1;
            }
        }
    }
    Ok(replayed)
}

/// What the core was told; the entry is none of what it asked for.
fn observation(number: u64, entry: Entry) -> Result<Observation, ReplayError> {
    let pod = |known: &Known| -> Result<std::rc::Rc<Pod>, ReplayError> {
        let object: Value = serde_json::from_str(known.object.get()).expect("a raw value is JSON");
        let node = object["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
        let admitted = manifest::admit(object, Validation::Ignore, &node);
        Ok(admitted.map_err(|error| ReplayError::Pod(number, Box::new(error)))?.pod)
    };
    Ok(match entry {
        Entry::Wanted(known) => Observation::Wanted { pod: pod(&known)?, record: known.record },
        Entry::Unwanted(uid, grace) => Observation::Unwanted { uid, grace },
        Entry::Found(found) => Observation::Found(Found {
            pod: pod(&found.pod)?,
            record: found.pod.record,
            sandbox: found.sandbox.map(|(ip, at)| FoundSandbox { ip, at }),
            attempts: found.attempts.iter().map(FoundRun::told).collect(),
        }),
        Entry::SourcesSeen => Observation::SourcesSeen,
        Entry::ImagesChanged => Observation::ImagesChanged,
        Entry::Shutdown => Observation::Shutdown,
        Entry::Seen(pod, seen) => Observation::Of(pod, seen.told()),
        Entry::Planned(_) | Entry::Asked(..) => unreachable!("what was asked for is no observation"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::PodObservation;
    use crate::told::{Format, Told};

    /// What an agent writes that is given one pod.
    fn recorded() -> String {
        let (mut node, told) = (Node::new(), Told::default());
        let yaml =
            b"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i}]}";
        let pods = manifest::parse("a.yaml", yaml, Validation::Strict, "board").expect("it is right");
        let object = serde_json::value::to_raw_value(&pods[0].object).expect("JSON").into();
        let observe = |node: &mut Node, at: u64, seen: Observation| {
            told.observed(Instant(at), node, &seen, Some(&object));
            node.observe(Instant(at), seen);
            let plan = node.plan(Instant(at));
            told.planned(Instant(at), &plan);
        };
        observe(&mut node, 1, Observation::Wanted { pod: pods[0].pod.clone(), record: None });
        observe(&mut node, 2, Observation::SourcesSeen);
        let ready = PodObservation::SandboxReady { ip: None, at: Instant(3) };
        observe(&mut node, 3, Observation::Of(PodIndex(1), ready));
        told.lines(0, usize::MAX, Format::Json).0
    }

    #[test]
    fn the_same_facts_bring_the_same_actions() {
        let lines = recorded();
        assert_eq!(replay(&lines).expect(&lines), Replayed { told: 3, asked: 2 });
        assert!(replay(&lines[..lines.len() - 9]).is_ok(), "an agent may be killed while it writes");
    }

    #[test]
    fn a_plan_that_asks_for_nothing_is_told_again_too() {
        let lines = recorded();
        // What there was to do came with the first plan; this one moves nothing but stages.
        assert_eq!(lines.matches("{\"Planned\":0}").count(), 1, "{lines}");
    }

    #[test]
    fn what_is_not_the_same_is_named() {
        let lines = recorded();
        let refused = |lines: &str| replay(lines).expect_err("it does not replay").to_string();
        let other = lines.replacen("CreateSandbox", "RemoveSandbox", 1);
        assert_eq!(
            refused(&other),
            "decide the same at entry 2: it asked for (PodIndex(1), RemoveSandbox), \
             and now asks for (PodIndex(1), CreateSandbox)"
        );
        let more = lines.replacen("{\"Planned\":1}", "{\"Planned\":0}", 1);
        assert!(refused(&more).contains("at entry 1: it asked for nothing, and now asks for"), "{more}");
        let (_, later) = lines.split_once('\n').expect("several lines");
        assert!(refused(later).starts_with("replay: entries before 1 are lost"), "{later}");
        assert!(refused("{}\n{}").starts_with("read line 1: missing field"));
        let large = lines.replacen("\"apiVersion\":\"v1\"", "\"apiVersion\":\"v2\"", 1);
        assert!(refused(&large).starts_with("admit the pod of entry 0:"), "{}", refused(&large));
    }
}
