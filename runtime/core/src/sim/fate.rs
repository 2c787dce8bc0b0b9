//! Fates of runs, probes and hooks in the simulated world, and the disturbances of its engine.

use std::time::Duration;

use crate::facts::*;
use crate::spec::*;

/// The fate of a run.
#[derive(Clone, Debug)]
pub(crate) enum Fate {
    /// The run continues until it is asked to end, then exits with 143.
    Runs,
    /// The run continues until it is killed.
    IgnoresTerm,
    /// The run exits with this code after this time.
    Exits(i32, Duration),
    /// The run is killed for its memory after this time.
    OutOfMemory(Duration),
    /// The start fails without a process.
    FailsToStart(StartFailureReason),
    /// The start hangs until it is killed, and the supervisor gives it up at last.
    HangsAtStart,
    /// The start fails before its image is looked for, as long as the operator does not allow what an annotation requests.
    NotAllowed,
}

/// The fate of a hook.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HookFate {
    /// The hook succeeds after this time.
    Succeeds(Duration),
    /// The hook fails after this time.
    Fails(Duration),
    /// The hook ends with its run, and fails.
    Hangs,
}

/// Disturbances of the engine: none in timelines, random ones in seeds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    /// Maximum time until an answer.
    pub(crate) latency: Duration,
    /// Percentage of operations that fail, of those that may fail.
    pub(crate) failures: u64,
    /// Percentage of failed creations of a sandbox that leave remains, of those that need not.
    pub(crate) remains: u64,
    /// Percentage of reports that are repeated.
    pub(crate) repeats: u64,
}

/// Pseudo-random numbers, which are the same for the same seed.
#[derive(Clone, Debug)]
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }

    pub(crate) fn percent(&mut self, of_a_hundred: u64) -> bool {
        self.below(100) < of_a_hundred
    }
}

/// The fate of a run of a container, by the container's name and the run's number.
pub(super) type Fates = dyn FnMut(&str, u32) -> Fate;

/// The result of a probe of a container, by the time since the start of the run.
pub(super) type Answers = dyn FnMut(&str, ProbeKind, Duration) -> ProbeResult;

/// The fate of a hook of a container, by the container's name and the run's number.
pub(super) type HookFates = dyn FnMut(&str, HookKind, u32) -> HookFate;
