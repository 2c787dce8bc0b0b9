//! Measures an idle board: context switches of all of nodlet's threads, with ten sleeping pods; and, in the
//! same minutes, those of conmon with ten containers.

use std::fs;
use std::time::{Duration, Instant};

use nodlet_build::task::TaskError;

use super::crun::Crun;
use super::report::{self, Rows};
use super::{Bench, board};

const PODS: usize = 10;

/// The time without activity after which everything that was started has settled.
const SETTLED: Duration = Duration::from_secs(15);

pub(super) fn idle(bench: &Bench) -> Rows {
    let minutes = bench.minutes;
    let device = board::awake();
    board::sleepers(&device, PODS);
    let crun = Crun::new(&bench.scratch);
    let conmons = crun.as_ref().map_err(|TaskError(why)| TaskError(why.clone())).and_then(conmons);
    // The records of new pods are written once, a few seconds after their start; then the board is idle.
    device.wait_for("the pods' records", || device.records().len() == PODS);
    let ours = device.own_processes();
    let mut settled = (switches(&ours)?, Instant::now());
    device.wait_for("the agent to settle", || {
        let now = switches(&ours).unwrap_or_default();
        if now != settled.0 {
            settled = (now, Instant::now());
        }
        settled.1.elapsed() > SETTLED
    });
    let before = switches(&ours)?;
    let theirs_before = conmons.as_ref().map_or(Ok(0), |conmons| switches(conmons))?;
    // The agent must not get requests meanwhile, so this waits for a fixed time.
    let until = Instant::now() + Duration::from_secs(minutes * 60);
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
    if ours != device.own_processes() {
        return Err("a process of nodlet came or went while it was idle".into());
    }
    let after = switches(&ours)?;
    let what = format!("context switches in {minutes} idle minutes, 10 pods");
    let theirs = match conmons {
        Ok(conmons) => (switches(&conmons)? - theirs_before).to_string(),
        Err(TaskError(why)) => format!("not measured: {why}"),
    };
    Ok(vec![
        report::figure(&what, "", &[(after - before) as f64], Some(0.0)),
        report::other("the same meanwhile, 10 containers", "conmon", &theirs),
    ])
}

fn conmons(crun: &Crun<'_>) -> Result<Vec<u32>, TaskError> {
    (0..PODS).map(|_| crun.run_below_conmon(&crun.prepare("sleep")?)).collect()
}

fn switches(processes: &[u32]) -> Result<u64, TaskError> {
    let mut sum = 0;
    for pid in processes {
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            let status = fs::read_to_string(task?.path().join("status"))?;
            let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
            sum += counts.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum::<u64>();
        }
    }
    Ok(sum)
}
