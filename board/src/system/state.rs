//! The choice of the nodlet that runs the agent, as a state machine without files or clocks.
//!
//! ```text
//!             install                 begin (at most STARTS times)
//!   settled ───────────▶ on trial ──────────────┐
//!      ▲                  │   ▲                 │
//!      ├────── keep ──────┤   └─────────────────┘
//!      └───── go_back ────┘   begin, once more than STARTS times
//! ```
//!
//! When settled, the agent is the update that was kept, or else the image's own nodlet. Each change is saved
//! before it takes effect ([`super::update_files`]), so that a power cut at any moment leaves one of these states.
//! Read next: `trial.rs`, which calls [`State::begin`] at each start of the agent.

use serde::{Deserialize, Serialize};

/// How often an update on trial is started: once for the installation, and again after a crash, a reboot or a
/// power cut. After that the previous nodlet returns.
pub(crate) const STARTS: u32 = 3;

/// A nodlet on the data partition, in a file named by its digest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Program {
    /// SHA-256 of the program, in hex.
    pub(crate) digest: String,
    pub(crate) version: String,
}

/// An update on trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Trial {
    pub(crate) program: Program,
    /// How often the update was started.
    pub(crate) starts: u32,
    /// The health before the update, with which that during the trial is compared.
    pub(crate) before: Before,
}

/// The health of a board when an update was installed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Before {
    /// Pods that were ready: `NAMESPACE/NAME`.
    pub(crate) ready: Vec<String>,
    /// The seconds that the slowest of these pods needed from its start until it was ready.
    pub(crate) slowest_start: u64,
    /// The boot; in a later one, the pods start anew.
    pub(crate) boot: String,
}

/// The result of the last update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Last {
    pub(crate) version: String,
    /// Why the update does not run any more; `None` if it was kept.
    pub(crate) returned: Option<String>,
}

/// The record of updates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// Digest of the image's own nodlet when the update was installed.
    pub(crate) image: String,
    pub(crate) kept: Option<Program>,
    pub(crate) trial: Option<Trial>,
    pub(crate) last: Option<Last>,
}

/// The program from which the agent is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Image,
    Kept(Program),
    Trial(Program),
}

impl State {
    /// Puts a received and verified update on trial.
    pub(crate) fn install(&mut self, image: String, program: Program, before: Before) {
        self.image = image;
        self.trial = Some(Trial { program, starts: 0, before });
    }

    /// Chooses the program at a start of the agent. `image` is the digest of the image's own nodlet. If it
    /// differs from the one over which the update was installed, the device image is newer, and its nodlet
    /// replaces the update.
    pub(crate) fn begin(&mut self, image: &str) -> Choice {
        if (self.kept.is_some() || self.trial.is_some()) && self.image != image {
            self.give_up("the device image was replaced by one with another nodlet");
        }
        if let Some(trial) = &mut self.trial {
            if trial.starts < STARTS {
                trial.starts += 1;
                return Choice::Trial(trial.program.clone());
            }
            self.go_back(&format!("its agent ended, or the board did, {STARTS} times during the trial"));
        }
        self.settled()
    }

    /// The program that runs without the update on trial.
    pub(crate) fn settled(&self) -> Choice {
        self.kept.clone().map_or(Choice::Image, Choice::Kept)
    }

    /// Keeps the update on trial, which was healthy for long enough.
    pub(crate) fn keep(&mut self) {
        if let Some(trial) = self.trial.take() {
            self.last = Some(Last { version: trial.program.version.clone(), returned: None });
            self.kept = Some(trial.program);
        }
    }

    /// Ends the trial, so that the previous program returns.
    pub(crate) fn go_back(&mut self, why: &str) {
        if let Some(trial) = self.trial.take() {
            self.last = Some(Last { version: trial.program.version, returned: Some(why.to_owned()) });
        }
    }

    /// Gives up the update in `choice`, which cannot run.
    pub(crate) fn reject(&mut self, choice: &Choice, why: &str) {
        match choice {
            Choice::Image => {}
            Choice::Trial(_) => self.go_back(why),
            Choice::Kept(program) => {
                self.last = Some(Last { version: program.version.clone(), returned: Some(why.to_owned()) });
                self.kept = None;
            }
        }
    }

    /// Gives up all updates, so that the image's own nodlet runs.
    pub(crate) fn give_up(&mut self, why: &str) {
        let kept = self.settled();
        self.reject(&kept, why);
        self.go_back(why);
    }

    /// Whether the program file with this digest is still needed.
    pub(crate) fn needs(&self, digest: &str) -> bool {
        let trial = self.trial.as_ref().map(|trial| &trial.program);
        trial.into_iter().chain(&self.kept).any(|program| program.digest == digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str) -> Program {
        Program { digest: name.into(), version: format!("1.{name}") }
    }

    fn with_trial(name: &str) -> State {
        let mut state = State::default();
        state.install(
            "image".into(),
            program(name),
            Before { ready: vec!["default/web".into()], ..Before::default() },
        );
        state
    }

    #[test]
    fn an_update_is_tried_and_kept() {
        let mut state = State::default();
        assert_eq!(state.begin("image"), Choice::Image);
        state.install("image".into(), program("a"), Before::default());
        assert_eq!(state.begin("image"), Choice::Trial(program("a")));
        state.keep();
        assert_eq!(state.last, Some(Last { version: "1.a".into(), returned: None }));
        for _ in 0..10 {
            assert_eq!(state.begin("image"), Choice::Kept(program("a")));
        }
    }

    #[test]
    fn the_nodlet_before_returns_after_too_many_starts() {
        let mut state = with_trial("a");
        for _ in 0..STARTS {
            assert_eq!(state.begin("image"), Choice::Trial(program("a")));
        }
        assert_eq!(state.begin("image"), Choice::Image);
        let why = state.last.clone().and_then(|last| last.returned).expect("it says why");
        assert!(why.contains("3 times"), "{why}");
        // The image's nodlet then stays.
        assert_eq!(state.begin("image"), Choice::Image);

        // An update installed over a kept one returns to the kept one.
        let mut state = with_trial("a");
        state.begin("image");
        state.keep();
        state.install("image".into(), program("b"), Before::default());
        assert_eq!(state.begin("image"), Choice::Trial(program("b")));
        assert!(state.needs("a") && state.needs("b") && !state.needs("c"));
        state.go_back("it hung");
        assert_eq!(state.begin("image"), Choice::Kept(program("a")));
        assert!(state.needs("a") && !state.needs("b"));
        assert_eq!(state.last, Some(Last { version: "1.b".into(), returned: Some("it hung".into()) }));
    }

    #[test]
    fn a_new_device_image_replaces_kept_and_tried_updates() {
        let mut state = with_trial("a");
        state.begin("image");
        state.keep();
        state.install("image".into(), program("b"), Before::default());
        assert_eq!(state.begin("another"), Choice::Image);
        assert!(!state.needs("a") && !state.needs("b"));
        let last = state.last.expect("it is known");
        assert!(last.version == "1.b" && last.returned.expect("it says why").contains("image was replaced"));
    }

    #[test]
    fn an_update_that_cannot_run_leaves_the_one_before() {
        let mut state = with_trial("a");
        let choice = state.begin("image");
        state.keep();
        state.install("image".into(), program("b"), Before::default());
        let tried = state.begin("image");
        state.reject(&tried, "its file is damaged");
        assert_eq!(state.begin("image"), Choice::Kept(program("a")));
        state.reject(&Choice::Kept(program("a")), "its file is damaged");
        assert_eq!(state.begin("image"), Choice::Image);
        state.reject(&Choice::Image, "never");
        assert_eq!(state.begin("image"), Choice::Image);
        assert_eq!(choice, Choice::Trial(program("a")));
    }
}
