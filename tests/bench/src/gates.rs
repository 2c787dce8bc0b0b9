//! Measures what nodlet costs, and compares it with its budgets (`nodlet_build::budgets`): the size of the binaries for
//! 64-bit ARM and x86-64 boards, the memory of an agent and of a pod, the system calls of a pod's start and
//! of an exec probe, and the context switches of an idle board. None of these is a time: they are the same on
//! a busy machine, so that `check` can enforce them.
//!
//! Everything but sizes is measured with the binary for boards with this machine's processor. `cargo xtask
//! gates --write` writes the measurements as the new budgets.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use nodlet_build::arguments::Arguments;
use nodlet_build::budgets::{Budgets, MEASURED_ON};
use nodlet_build::task::{Outcome, Task, TaskError, target_dir};
use nodlet_build::{cross, requirements, targets, toolchain};
use nodlet_tests::{Calls, Counted, Device, Share, manifest, switches};

/// The number of repetitions of a count; see [`least`].
const ROUNDS: usize = 5;

/// The number of repetitions for probes. On a busy machine the loop wakes up once for each event, on another
/// once for several, and it takes a while until a busy machine has a quiet probe.
const PROBES: usize = 20;

/// Agents whose probes are counted.
const PROBED_AGENTS: usize = 3;

/// The number of pods whose memory is measured together, so that rounding does not matter.
const PODS: u64 = 10;

/// The time without a system call or a context switch after which everything that was started has settled.
const QUIET: Duration = Duration::from_millis(250);

/// The number of Services whose memory is measured.
const SERVICES: usize = 10;

/// How long an idle board is observed. This notices anything that happens more often than once in a few
/// seconds; `cargo xtask bench` observes for minutes.
const IDLE: Duration = Duration::from_secs(20);

/// The task `cargo xtask gates`.
pub(crate) const TASK: Task = Task::new(
    "gates",
    "[--write] [--binary PATH]",
    "check bytes, memory, system calls and wake-ups against xtask/budgets.toml",
    run,
);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let mut arguments = Arguments::new(&TASK, arguments);
    let write = arguments.has("--write");
    let binary: Option<String> = arguments.one("--binary")?;
    arguments.end()?;
    requirements::require_root()?;
    toolchain::programs()?;
    let ours = targets::host()?;
    let mut budgets = Budgets::read()?;
    let program = match binary {
        // A relative path refers to the directory in which cargo was called.
        Some(path) => fs::canonicalize(&path).map_err(|error| format!("failed to find {path}: {error}"))?,
        None => {
            for other in boards().filter(|target| target.triple != ours.triple) {
                budgets.measured(other.triple, fs::metadata(cross::build(other)?)?.len())?;
            }
            cross::build(ours)?
        }
    };
    budgets.measured(ours.triple, fs::metadata(&program)?.len())?;
    if ours.triple == MEASURED_ON {
        measure(&mut budgets, &program)?;
    } else {
        println!("memory, system calls and wake-ups have budgets for {MEASURED_ON} alone");
    }
    if write { budgets.write() } else { budgets.require_kept("run `cargo xtask gates --write`") }
}

/// Runs the measurements that depend on the machine.
fn measure(budgets: &mut Budgets, program: &Path) -> Outcome {
    let copy = target_dir().join("gates-nodlet");
    copy_by_pages(program, &copy)
        .map_err(|error| format!("failed to copy {}: {error}", program.display()))?;
    // SAFETY: this program has one thread so far; nobody else reads the environment.
    unsafe { std::env::set_var("NODLET", copy) };
    let measured = [memory, services, start, probe, idle].iter().try_for_each(|measure| measure(budgets));
    // SAFETY: the threads that followed processes have ended.
    unsafe { std::env::remove_var("NODLET") };
    measured
}

/// Writes an executable copy page by page. A kernel from 6.18 on maps a whole folio of the page cache, and a folio is as
/// large as the write that filled it: the copy has folios of one page, whatever the linker wrote.
fn copy_by_pages(program: &Path, copy: &Path) -> io::Result<()> {
    const PAGE: usize = 4096;
    let content = fs::read(program)?;
    // A file that exists would keep the folios that it has.
    match fs::remove_file(copy) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(copy)?;
    content.chunks(PAGE).try_for_each(|page| file.write_all(page))
}

/// The targets whose binary is built here: those for which rustup has everything. `cargo xtask sizes
/// --compare` builds the others as well, which needs packages of Debian and some more minutes.
fn boards() -> impl Iterator<Item = &'static targets::Target> {
    targets::TARGETS.iter().filter(|target| target.musl.is_none())
}

/// Measures the memory of nodlet's processes, without those in containers: the agent alone, what further pods
/// add, and everything together. The first pod is separate, because it makes the agent load code that an
/// agent without pods never runs.
fn memory(budgets: &mut Budgets) -> Outcome {
    let device = Device::start_unwatched();
    let alone = settled_share(&device);
    budgets.measured("agent-pss", alone.all)?;
    budgets.measured("agent-pss-anon", alone.anon)?;
    sleepers(&device, 1);
    let first = settled_share(&device);
    sleepers(&device, PODS);
    let all = settled_share(&device);
    budgets.measured("pod-pss", all.all.saturating_sub(first.all) / (PODS - 1))?;
    budgets.measured("pod-pss-anon", all.anon.saturating_sub(first.anon) / (PODS - 1))?;
    budgets.measured("all-pss", all.all)
}

/// Measures what Services add to the memory of a board with a pod, to which they lead.
fn services(budgets: &mut Budgets) -> Outcome {
    let device = Device::start_unwatched();
    let pod = manifest::with_metadata(&manifest::pod("web", "sleep"), "labels: {app: web}");
    device.write_pod("web", &pod).wait_ready();
    let are_there = |count: usize| {
        let list = device.get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices");
        let items = list.as_ref().ok().and_then(|list| list["items"].as_array());
        items.is_some_and(|items| items.iter().filter(|one| one["endpoints"][0].is_object()).count() == count)
    };
    // Requests have a cost of their own.
    device.wait_for("the API", || are_there(0));
    let before = settled_share(&device);
    for number in 0..SERVICES {
        let service = format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: web-{number}}}, \
              spec: {{selector: {{app: web}}, ports: [{{port: 80, targetPort: 8080}}]}}}}"
        );
        device.write_manifest(&format!("web-{number}.yaml"), &service);
    }
    device.wait_for("the Services", || are_there(SERVICES));
    let after = settled_share(&device);
    budgets.measured("services-pss-anon", after.anon.saturating_sub(before.anon))
}

/// Counts the system calls from a manifest's rename until everything about the running pod is recorded.
fn start(budgets: &mut Budgets) -> Outcome {
    let device = Device::start_unwatched();
    let mut counts = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("start-{round}");
        let calls = Calls::count(&device);
        let before = settled(&device, &calls);
        device.write_manifest(&format!("{name}.yaml"), &manifest::pod(&name, "sleep"));
        device.wait_for("the pod's record", || device.records().len() == round + 1);
        let after = settled(&device, &calls);
        let executed = after.executed.len() - before.executed.len();
        if executed != 1 {
            return Err(TaskError(format!(
                "one container was started, and {executed} programs were executed"
            )));
        }
        counts.push(after.sum() - before.sum());
    }
    budgets.measured("pod-start-calls", least(counts.into_iter())?)
}

/// Counts the system calls from one exec probe to the next, at the same point of each, which is everything
/// that belongs to one.
fn probe(budgets: &mut Budgets) -> Outcome {
    let probe =
        "livenessProbe: {exec: {command: [/bin/demo, exit, \"0\"]}, periodSeconds: 1, timeoutSeconds: 60}";
    let pod = manifest::pod_of("probed", &[manifest::container("app", "sleep", probe)], "");
    let mut counts = Vec::new();
    // How often the agent's threads wait for each other differs from agent to agent.
    for _ in 0..PROBED_AGENTS {
        let device = Device::start_unwatched();
        device.write_manifest("probed.yaml", &pod);
        device.wait_for("the pod's record", || device.records().len() == 1);
        let calls = Calls::count(&device);
        device.wait_for("probes", || calls.so_far().executed.len() > PROBES);
        let executed = calls.so_far().executed;
        counts.extend(executed.windows(2).map(|two| two[1] - two[0]));
    }
    budgets.measured("exec-probe-calls", least(counts.into_iter())?)
}

/// Counts the context switches of all of nodlet's threads while pods are idle.
fn idle(budgets: &mut Budgets) -> Outcome {
    let device = Device::start_unwatched();
    sleepers(&device, PODS);
    let mut before = switches(&device);
    device.wait_for("the agent to settle", || {
        sleep(QUIET);
        let earlier = std::mem::replace(&mut before, switches(&device));
        before == earlier
    });
    // The agent must not get requests meanwhile. This waits for a fixed time, because activity during that
    // time is measured.
    sleep(IDLE);
    budgets.measured("idle-switches", switches(&device).saturating_sub(before))
}

/// Starts this many idle pods, and waits until all of them are recorded.
fn sleepers(device: &Device, pods: u64) {
    for number in 0..pods {
        let name = format!("pod-{number}");
        device.write_manifest(&format!("{name}.yaml"), &manifest::pod(&name, "sleep"));
    }
    device.wait_for("the pods' records", || device.records().len() == pods as usize);
}

/// The memory after a while in which it did not change: a pod is recorded before its supervisor and the agent have
/// executed all that belongs to its start, and what they execute first after a measurement would count for later pods.
fn settled_share(device: &Device) -> Share {
    let share = || Share::of(&device.own_processes());
    let mut settled = share();
    device.wait_for("memory that does not change", || {
        sleep(QUIET);
        let earlier = std::mem::replace(&mut settled, share());
        settled == earlier
    });
    settled
}

/// The counts after a while without system calls.
fn settled(device: &Device, calls: &Calls) -> Counted {
    let mut counted = calls.so_far();
    device.wait_for("an end of system calls", || {
        sleep(QUIET);
        let earlier = std::mem::replace(&mut counted, calls.so_far());
        counted == earlier
    });
    counted
}

/// The least of several counts: a busy machine can only increase a count.
fn least(counts: impl Iterator<Item = u64>) -> Result<u64, TaskError> {
    counts.min().ok_or_else(|| TaskError("nothing was counted".into()))
}
