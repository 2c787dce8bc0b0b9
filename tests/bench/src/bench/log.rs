//! Measures the cost of logging: processor time of the process that reads a container's output and writes the
//! file in CRI format, for each megabyte of output. For both runtimes this is the process that supervises the
//! container, and the log is rotated at 10 MiB. The container's own time does not count.

use std::fs;
use std::time::Duration;

use nodlet_build::task::TaskError;

use super::cpu::used_by;
use super::crun::Crun;
use super::race::{Contestant, race};
use super::report::{self, Rows, Target};
use super::scratch::{Scratch, milliseconds, wait};
use super::{Bench, board};

/// The megabytes of output in a round, in lines of 100 bytes.
const MEGABYTES: usize = 64;

pub(super) fn log(bench: &Bench) -> Rows {
    let scratch = &bench.scratch;
    let rounds = bench.rounds(8);
    let device = board::awake();
    let name = scratch.name("log");
    device.write_manifest("log.yaml", &board::pod(scratch, &name, &steps(&name, rounds), ""));
    device.pod(&name).wait_ready();
    let writers = device.own_processes();
    let crun = Crun::new(scratch).and_then(|crun| {
        let name = scratch.name("log");
        let conmon = crun.run_below_conmon(&crun.prepare(&steps(&name, rounds))?)?;
        Ok((crun, name, conmon))
    });

    let ours = |round: usize| Ok([written(scratch, &name, round, &writers)?]);
    let by_conmon = |(_, name, conmon): &(Crun<'_>, String, u32), round: usize| {
        Ok([written(scratch, name, round, &[*conmon])?])
    };
    let mut all = [Contestant::new("nodlet", ours), Contestant::if_possible("conmon", &crun, by_conmon)];
    race(rounds, &mut all)?;
    report::comparisons("log, lines of 100 bytes: CPU of each MB", "ms", &all, 0, &[Some(Target(0.7))])
}

/// The steps that write this much output in each round, on request.
fn steps(name: &str, rounds: usize) -> String {
    let bytes = MEGABYTES * 1_000_000;
    let round = |round: usize| {
        format!("wait /shared/{name}-{round} then spam {bytes} then touch /shared/{name}-{round}-done then ")
    };
    (0..rounds).map(round).collect::<String>() + "sleep"
}

/// The milliseconds of processor time that these processes use for each megabyte.
fn written(scratch: &Scratch, name: &str, round: usize, writers: &[u32]) -> Result<f64, TaskError> {
    let used = || writers.iter().map(|pid| used_by(*pid)).sum::<Result<Duration, TaskError>>();
    let before = used()?;
    let go = scratch.shared().join(format!("{name}-{round}"));
    fs::write(&go, "")?;
    let done = scratch.shared().join(format!("{name}-{round}-done"));
    wait("the output", Duration::from_millis(5), || done.exists().then_some(()))?;
    // The rest of the output is still in the pipe.
    let mut last = used()?;
    wait("the log to be written", Duration::from_millis(50), || {
        let now = used().ok()?;
        let settled = now == last;
        last = now;
        settled.then_some(())
    })?;
    Ok(milliseconds(last - before) / MEGABYTES as f64)
}
