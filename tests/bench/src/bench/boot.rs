//! Measures a boot: from the start of the agent, with manifests and images already in place, until the last
//! pod executes its first instruction. Compared with `crun run` and `podman run` of as many containers, one
//! after another, as in a script.

use std::time::Duration;

use nodlet_build::task::{Outcome, TaskError};

use super::crun::Crun;
use super::podman::Podman;
use super::race::{Contestant, race};
use super::report::{self, Rows, Target};
use super::scratch::{Scratch, drop_caches, milliseconds, now};
use super::{Bench, board};

pub(super) fn one(bench: &Bench) -> Rows {
    warm_and_cold(bench, 1, 10)
}

pub(super) fn twenty(bench: &Bench) -> Rows {
    warm_and_cold(bench, 20, 6)
}

pub(super) fn hundred(bench: &Bench) -> Rows {
    warm_and_cold(bench, 100, 6)
}

fn warm_and_cold(bench: &Bench, pods: usize, rounds: usize) -> Rows {
    let mut rows =
        boot(bench, &format!("boot with {pods}, warm: start of agent → all run"), pods, rounds, || Ok(()))?;
    let what = format!("boot with {pods}, page cache dropped: start of agent → all run");
    rows.extend(boot(bench, &what, pods, rounds, drop_caches)?);
    Ok(rows)
}

fn boot(bench: &Bench, what: &str, pods: usize, rounds: usize, before: fn() -> Outcome) -> Rows {
    let scratch = &bench.scratch;
    let crun = Crun::new(scratch);
    let podman = if pods > 20 {
        Err(TaskError(format!("{pods} times what it takes for 20 says nothing more")))
    } else {
        Podman::new(scratch)
    };
    let ours = |_: usize| {
        let names = names(scratch, pods);
        let mut device = board::asleep_on_a_new_disk();
        for name in &names {
            device.write_manifest(&format!("{name}.yaml"), &board::pod(scratch, name, &steps(name), ""));
        }
        before()?;
        let begun = now()?;
        device.launch_agent();
        since(scratch, begun, &names)
    };
    let (crun_name, podman_name) = (format!("{pods} × `crun run`"), format!("{pods} × `podman run`"));
    let mut all = [
        Contestant::new("nodlet", ours),
        Contestant::if_possible(&crun_name, &crun, |crun, _| by_crun(crun, scratch, pods, before)),
        Contestant::if_possible(&podman_name, &podman, |podman, _| by_podman(podman, scratch, pods, before)),
    ];
    race(bench.rounds(rounds), &mut all)?;
    report::comparisons(
        what,
        "ms",
        &all,
        0,
        &[(pods > 1).then_some(Target(if pods < 100 { 0.6 } else { 0.5 })), None],
    )
}

/// Measures `crun run` of so many containers, one after another.
pub(super) fn by_crun(
    crun: &Crun<'_>,
    scratch: &Scratch,
    pods: usize,
    before: fn() -> Outcome,
) -> Result<[f64; 1], TaskError> {
    let names = names(scratch, pods);
    let ids: Vec<String> = names.iter().map(|name| crun.prepare(&steps(name))).collect::<Result<_, _>>()?;
    before()?;
    let begun = now()?;
    ids.iter().try_for_each(|id| crun.run(id))?;
    let figures = since(scratch, begun, &names)?;
    crun.delete_all()?;
    Ok(figures)
}

/// Measures `podman run` of so many containers, one after another.
pub(super) fn by_podman(
    podman: &Podman<'_>,
    scratch: &Scratch,
    pods: usize,
    before: fn() -> Outcome,
) -> Result<[f64; 1], TaskError> {
    let names = names(scratch, pods);
    before()?;
    let begun = now()?;
    names.iter().try_for_each(|name| podman.run(name, &steps(name)))?;
    let figures = since(scratch, begun, &names)?;
    podman.remove_all()?;
    Ok(figures)
}

/// The steps of a container that records its start time and keeps running.
pub(super) fn steps(clock: &str) -> String {
    format!("clock /shared/{clock} then sleep")
}

fn names(scratch: &Scratch, pods: usize) -> Vec<String> {
    (0..pods).map(|_| scratch.name("boot")).collect()
}

/// The milliseconds until the last of these containers executed its first instruction.
fn since(scratch: &Scratch, begun: Duration, names: &[String]) -> Result<[f64; 1], TaskError> {
    let last = names
        .iter()
        .try_fold(Duration::ZERO, |last, name| Ok::<_, TaskError>(last.max(scratch.clock(name)?)))?;
    Ok([milliseconds(last.saturating_sub(begun))])
}
