//! What nodlet costs, held against its budgets (`budgets.rs`): the bytes of the
//! binaries for 64-bit ARM and x86-64 boards, the memory of an agent and of a pod, the system calls of a pod's start
//! and of an exec probe, and the context switches of an idle board. None of them
//! is a time: they are the same on a busy machine, so that `check` can hold to them.
//!
//! Measured is the binary for boards of this machine's kind, which is built for it. `cargo xtask gates
//! --write` makes what it measures the new ledger.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use nodlet_tests::{Calls, Counted, Device, Share, manifest, switches};

use crate::budgets::{Budgets, MEASURED_ON};
use crate::{Failure, Outcome, cargo, cross, layout, misused, run as run_command, setup};

/// How often a thing is counted; see [`least`].
const ROUNDS: usize = 5;

/// The same for probes: on a busy machine the loop is woken once for each piece of news, on another
/// once for several, and it takes a while until a probe is as it is there.
const PROBES: usize = 20;

/// Pods whose memory is taken together: what rounding does to one of them is lost.
const PODS: u64 = 10;

/// So long without a system call or a context switch, and what was begun is over.
const QUIET: Duration = Duration::from_millis(250);

/// How long nothing may happen on an idle board. What ticks more often than once in
/// a few seconds is seen; `cargo xtask bench` looks for minutes.
const IDLE: Duration = Duration::from_secs(20);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (mut write, mut binary) = (false, None);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--write" => write = true,
            "--binary" => binary = Some(rest.next().ok_or("--binary wants a path")?),
            _ => return Err(misused("gates")),
        }
    }
    setup::require_root()?;
    run_command(cargo()?.args(["build", "--package", "nodlet-tests", "--bin", "demo"]))?;
    let ours = cross::host()?;
    let mut budgets = Budgets::read()?;
    let built = binary.is_none();
    let program = match binary {
        // From where cargo was called, which is where a relative path is meant from.
        Some(path) => fs::canonicalize(path).map_err(|error| format!("failed to find {path}: {error}"))?,
        None => {
            for other in boards().filter(|target| target.triple != ours.triple) {
                budgets.measured(other.triple, fs::metadata(cross::build(other)?)?.len())?;
            }
            cross::build(ours)?
        }
    };
    budgets.measured(ours.triple, fs::metadata(&program)?.len())?;
    if ours.triple == MEASURED_ON {
        if built {
            budgets.measured("stale-layout", layout::stale(ours)?)?;
        }
        measure(&mut budgets, &program)?;
    } else {
        println!("memory, system calls and wake-ups have budgets for {MEASURED_ON} alone");
    }
    if write { budgets.write() } else { budgets.require_kept("cargo xtask gates") }
}

/// What depends on the machine that runs it.
fn measure(budgets: &mut Budgets, program: &Path) -> Outcome {
    // SAFETY: this program has one thread so far; nobody else reads the environment.
    unsafe { std::env::set_var("NODLET", program) };
    let measured = [memory, start, probe, idle].iter().try_for_each(|measure| measure(budgets));
    // SAFETY: the threads that followed something have ended with it.
    unsafe { std::env::remove_var("NODLET") };
    measured
}

/// For `check`.
pub(crate) fn check() -> Outcome {
    run(&[])
}

/// Refuses, with the way on, where this could not run.
pub(crate) fn require() -> Outcome {
    setup::require_root()?;
    boards().try_for_each(cross::complete)
}

/// The boards whose binary is built here: those that rustup has all for. `cargo xtask sizes --compare`
/// builds the others as well, which takes packages of Debian and minutes more.
fn boards() -> impl Iterator<Item = &'static cross::Target> {
    cross::TARGETS.iter().filter(|target| target.debian.is_none())
}

/// The agent alone, what pods add once there is one, and all together: our processes, none of
/// theirs. The first pod brings in what an agent without pods never runs.
fn memory(budgets: &mut Budgets) -> Outcome {
    let device = Device::start_unwatched();
    let share = || Share::of(&device.own_processes());
    let alone = share();
    budgets.measured("agent-pss", alone.all)?;
    budgets.measured("agent-pss-anon", alone.anon)?;
    sleepers(&device, 1);
    let first = share();
    sleepers(&device, PODS);
    let all = share();
    budgets.measured("pod-pss", all.all.saturating_sub(first.all) / (PODS - 1))?;
    budgets.measured("pod-pss-anon", all.anon.saturating_sub(first.anon) / (PODS - 1))?;
    budgets.measured("all-pss", all.all)
}

/// From a manifest's rename until all is written down about a pod that runs.
fn start(budgets: &mut Budgets) -> Outcome {
    let device = Device::start_unwatched();
    let mut counts = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("start-{round}");
        let calls = Calls::count(&device);
        let before = settled(&device, &calls);
        device.write_manifest(&format!("{name}.yaml"), &manifest::pod(&name, "sleep"));
        device.wait_for("the pod's record", || records(&device) == round + 1);
        let after = settled(&device, &calls);
        let executed = after.executed.len() - before.executed.len();
        if executed != 1 {
            return Err(Failure(format!("one container was started, and {executed} programs were executed")));
        }
        counts.push(after.sum() - before.sum());
    }
    budgets.measured("pod-start-calls", least(counts.into_iter())?)
}

/// From one exec probe to the next, at the same moment of each: so all that belongs to one.
fn probe(budgets: &mut Budgets) -> Outcome {
    let device = Device::start_unwatched();
    let probe =
        "livenessProbe: {exec: {command: [/bin/demo, exit, \"0\"]}, periodSeconds: 1, timeoutSeconds: 60}";
    let pod = manifest::pod_of("probed", &[manifest::container("app", "sleep", probe)], "");
    device.write_manifest("probed.yaml", &pod);
    device.wait_for("the pod's record", || records(&device) == 1);
    let calls = Calls::count(&device);
    device.wait_for("probes", || calls.so_far().executed.len() > PROBES);
    let executed = calls.so_far().executed;
    budgets.measured("exec-probe-calls", least(executed.windows(2).map(|two| two[1] - two[0]))?)
}

/// Context switches of all our threads while pods do nothing.
fn idle(budgets: &mut Budgets) -> Outcome {
    let device = Device::start_unwatched();
    sleepers(&device, PODS);
    let mut before = switches(&device);
    device.wait_for("the agent to settle", || {
        sleep(QUIET);
        let earlier = std::mem::replace(&mut before, switches(&device));
        before == earlier
    });
    // Nothing may be asked of the agent meanwhile: this is a wait for a time because
    // time is what is measured.
    sleep(IDLE);
    budgets.measured("idle-switches", switches(&device).saturating_sub(before))
}

/// So many pods that do nothing, all of them written down.
fn sleepers(device: &Device, pods: u64) {
    for number in 0..pods {
        let name = format!("pod-{number}");
        device.write_manifest(&format!("{name}.yaml"), &manifest::pod(&name, "sleep"));
    }
    device.wait_for("the pods' records", || records(device) == pods as usize);
}

/// Pods of which all is written down that there is to say: without asking the agent.
fn records(device: &Device) -> usize {
    fs::read_dir(device.path("/var/lib/nodlet/records")).map_or(0, Iterator::count)
}

/// What was counted when nothing was called for a while.
fn settled(device: &Device, calls: &Calls) -> Counted {
    let mut counted = calls.so_far();
    device.wait_for("an end of system calls", || {
        sleep(QUIET);
        let earlier = std::mem::replace(&mut counted, calls.so_far());
        counted == earlier
    });
    counted
}

/// Whatever else a busy machine does to a count, it makes it no smaller.
fn least(counts: impl Iterator<Item = u64>) -> Result<u64, Failure> {
    counts.min().ok_or_else(|| Failure("nothing was counted".into()))
}
