//! Measures the processor time of a probe, of all processes involved. For nodlet, that is the time charged to
//! the agent's cgroup and to the device's own, in which supervisors and containers run. For others, it is
//! that of the cgroup in which `crun exec` or `podman exec` started. All probes execute the same program,
//! which leaves a mark, so that they can be counted.

use std::fs;
use std::process::Command;
use std::time::Duration;

use nodlet_build::task::{TaskError, output};
use nodlet_tests::Device;

use super::cpu::Account;
use super::crun::Crun;
use super::podman::Podman;
use super::race::{Contestant, race};
use super::report::{self, Rows, Target};
use super::scratch::{milliseconds, wait};
use super::{Bench, board};

/// The number of pods, each with a probe every second.
const PODS: usize = 10;

/// The number of probes in a round, and of executions by crun.
const PROBES: usize = 30;

/// The number of executions by podman, which takes ten times as long for each.
const BY_PODMAN: usize = 5;

pub(super) fn exec(bench: &Bench) -> Rows {
    let scratch = &bench.scratch;
    let agent = Account::open(scratch, "agent")?;
    let device = board::charged(&agent)?;
    let marks: Vec<String> = (0..PODS).map(|_| scratch.name("probed")).collect();
    for mark in &marks {
        let probe = format!(
            "livenessProbe: {{exec: {{command: [/bin/demo, append, /shared/{mark}, x]}}, periodSeconds: 1, timeoutSeconds: 60}}"
        );
        device.write_manifest(&format!("{mark}.yaml"), &board::pod(scratch, mark, "sleep", &probe));
    }
    let files: Vec<_> = marks.iter().map(|mark| scratch.shared().join(mark)).collect();
    // A mark is a line with one letter.
    let count = || files.iter().map(|file| fs::metadata(file).map_or(0, |meta| meta.len() / 2)).sum();
    device.wait_for("all to be probed", || files.iter().all(|file| file.exists()));

    let ours = |_: usize| Ok([probed(&device, &agent, &count)?.0]);
    let crun = Crun::new(scratch).and_then(|crun| {
        let id = crun.prepare("sleep")?;
        crun.run(&id)?;
        Ok((crun, id, Account::open(scratch, "crun")?))
    });
    let by_crun = |(crun, id, account): &(Crun<'_>, String, Account), _: usize| {
        executed(account, PROBES, || crun.exec(id, &["append", "/shared/by-crun", "x"]))
    };
    let podman = Podman::new(scratch).and_then(|podman| {
        podman.run("probed", "sleep")?;
        Ok((podman, Account::open(scratch, "podman")?))
    });
    let by_podman = |(podman, account): &(Podman<'_>, Account), _: usize| {
        executed(account, BY_PODMAN, || podman.exec("probed", &["append", "/shared/by-podman", "x"]))
    };
    let mut all = [
        Contestant::new("nodlet", ours),
        Contestant::if_possible("`crun exec`", &crun, by_crun),
        Contestant::if_possible("`podman exec`", &podman, by_podman),
    ];
    race(bench.rounds(10), &mut all)?;
    report::comparisons("exec probe, CPU of all involved", "ms", &all, 0, &[Some(Target(0.2)), None])
}

/// Measures HTTP probes. There is nothing to compare with: neither crun nor podman has such a probe.
pub(super) fn http(bench: &Bench) -> Rows {
    let scratch = &bench.scratch;
    let account = Account::open(scratch, "agent")?;
    let device = board::charged(&account)?;
    let names: Vec<String> = (0..PODS).map(|_| scratch.name("probed")).collect();
    for name in &names {
        let probe =
            "livenessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, timeoutSeconds: 60}";
        device.write_manifest(&format!("{name}.yaml"), &board::pod(scratch, name, "serve 8080 /srv", probe));
    }
    for name in &names {
        device.pod(name).wait_ready();
    }
    // The server writes a line for each request to the log, which is in a directory with the pod's name and
    // uid.
    let logs: Vec<_> = names
        .iter()
        .map(|name| {
            device.path(&format!("/var/log/pods/default_{name}_{}/app/0.log", device.pod(name).uid()))
        })
        .collect();
    let count = || {
        let lines = |text: String| text.lines().filter(|line| line.contains("GET /healthz")).count() as u64;
        logs.iter().map(|log| fs::read_to_string(log).map_or(0, lines)).sum()
    };
    let (mut all, mut agent) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds(10) {
        let (of_all, of_agent) = probed(&device, &account, &count)?;
        all.push(of_all);
        agent.push(of_agent);
    }
    let of_all = "http probe, CPU of all involved: the server too, and its line in the log";
    Ok(vec![
        report::figure("http probe, CPU of the agent", "ms", &agent, None),
        report::figure(of_all, "ms", &all, None),
    ])
}

/// Milliseconds of each probe: of all processes, and of the agent alone.
fn probed(device: &Device, agent: &Account, count: &dyn Fn() -> u64) -> Result<(f64, f64), TaskError> {
    let used = || -> Result<(Duration, Duration), TaskError> {
        let of_agent = agent.used()?;
        Ok((of_agent + board::used(device)?, of_agent))
    };
    // Begins just after a probe has left its mark, and ends just after another has.
    let reached = |goal: u64| {
        wait("the probes", Duration::from_millis(5), || {
            let now = count();
            (now >= goal).then_some(now)
        })
    };
    let first = reached(count() + 1)?;
    let before = used()?;
    let last = reached(first + PROBES as u64)?;
    let after = used()?;
    let each = |time: Duration| milliseconds(time) / (last - first) as f64;
    Ok((each(after.0 - before.0), each(after.1 - before.1)))
}

fn executed(account: &Account, times: usize, command: impl Fn() -> Command) -> Result<[f64; 1], TaskError> {
    let before = account.used()?;
    for _ in 0..times {
        let mut command = command();
        account.charge(&mut command)?;
        output(&mut command)?;
    }
    Ok([milliseconds(account.used()? - before) / times as f64])
}
