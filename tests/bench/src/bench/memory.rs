//! Measures memory as PSS, in which a shared page counts in shares: the agent alone, what a pod adds to all
//! processes of nodlet, and a conmon.

use std::fs;

use nodlet_build::task::TaskError;

use super::crun::Crun;
use super::race::{Contestant, race};
use super::report::{self, Rows, Target};
use super::{Bench, board};

/// The number of pods, and of containers below a conmon: enough that shared pages are shared by many.
const MANY: usize = 20;

pub(super) fn memory(bench: &Bench) -> Rows {
    let crun = Crun::new(&bench.scratch);
    let ours = |_: usize| {
        let device = board::awake();
        let alone = sum(&device.own_processes(), "Pss:")?;
        let unbacked = sum(&device.own_processes(), "Pss_Anon:")?;
        board::sleepers(&device, MANY);
        let all = sum(&device.own_processes(), "Pss:")?;
        let agent = sum(&[device.agent_pid()], "Pss:")?;
        Ok([(all - alone) / MANY as f64, alone, unbacked, agent])
    };
    let by_conmon = |crun: &Crun<'_>, _: usize| {
        let mut conmons = Vec::new();
        for _ in 0..MANY {
            conmons.push(crun.run_below_conmon(&crun.prepare("sleep")?)?);
        }
        let all = sum(&conmons, "Pss:")?;
        crun.delete_all()?;
        Ok([all / MANY as f64, f64::NAN, f64::NAN, f64::NAN])
    };
    let mut all =
        [Contestant::new("nodlet", ours), Contestant::if_possible("each of 20 conmon", &crun, by_conmon)];
    // Rounds hardly differ.
    race(bench.rounds(2), &mut all)?;
    let figures = |kind: usize| all[0].figures(kind);
    let mut rows = vec![
        report::figure("agent idle, no pods, PSS", "KiB", &figures(1)?, None),
        report::figure("of which no file backs", "KiB", &figures(2)?, Some(400.0)),
        report::figure("agent with 20 pods, PSS", "KiB", &figures(3)?, None),
        report::figure("each of 20 pods adds, PSS of all our processes", "KiB", &figures(0)?, Some(150.0)),
    ];
    rows.extend(report::comparisons("the same against conmon", "KiB", &all, 0, &[None::<Target>])?);
    Ok(rows)
}

/// A sum over these processes, in KiB, of a line that the kernel totals over all mappings.
fn sum(processes: &[u32], field: &str) -> Result<f64, TaskError> {
    let mut sum = 0.0;
    for pid in processes {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        let line = line.ok_or_else(|| format!("smaps_rollup has no {field}"))?;
        let number = line.split_whitespace().next().ok_or_else(|| format!("{field} has no number"))?;
        sum += number.parse::<f64>()?;
    }
    Ok(sum)
}
