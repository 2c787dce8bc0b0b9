//! Measures the start of one pod: from the rename of its manifest to the first instruction of its container,
//! compared with `crun run` and `podman run` of the same program.

use nodlet_build::task::Outcome;

use super::boot::{by_crun, by_podman, steps};
use super::crun::Crun;
use super::podman::Podman;
use super::race::{Contestant, race};
use super::report::{self, Rows, Target};
use super::scratch::{drop_caches, milliseconds};
use super::{Bench, board};

pub(super) fn warm(bench: &Bench) -> Rows {
    start(bench, "1 pod, warm: manifest → first instruction", 20, Target(0.9), || Ok(()))
}

/// Measures a start without page cache. Running processes keep their mapped pages: the agent, as on a board.
pub(super) fn cold(bench: &Bench) -> Rows {
    start(bench, "1 pod, page cache dropped: manifest → first instruction", 10, Target(0.5), drop_caches)
}

fn start(bench: &Bench, what: &str, rounds: usize, target: Target, before: fn() -> Outcome) -> Rows {
    let scratch = &bench.scratch;
    let device = board::awake();
    let crun = Crun::new(scratch);
    let podman = Podman::new(scratch);

    let ours = |_: usize| {
        let name = scratch.name("start");
        let manifest = board::pod(scratch, &name, &steps(&name), "");
        let begun = board::rename(&device, &name, &manifest, before)?;
        let started = scratch.clock(&name)?;
        board::remove(&device, &name);
        Ok([milliseconds(started.saturating_sub(begun))])
    };
    let mut all = [
        Contestant::new("nodlet", ours),
        Contestant::if_possible("`crun run`", &crun, |crun, _| by_crun(crun, scratch, 1, before)),
        Contestant::if_possible("`podman run`", &podman, |podman, _| by_podman(podman, scratch, 1, before)),
    ];
    race(bench.rounds(rounds), &mut all)?;
    report::comparisons(what, "ms", &all, 0, &[Some(target), None])
}
