//! The machine on which everything is measured, and whether it is quiet enough for measurements.

use std::fs;
use std::process::Command;

use nodlet_build::task::Outcome;

/// The load of other processes above which figures are unreliable.
const QUIET: f64 = 0.3;

/// The date, the machine and the programs that nodlet is compared with, in a line.
pub(super) fn describe() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cgroups = if fs::exists("/sys/fs/cgroup/cgroup.controllers").unwrap_or(false) {
        "v2"
    } else {
        "v1 with v2 beside it"
    };
    format!(
        "{}, Linux {}, {cpus} × {}, cgroup {cgroups}; {}",
        first_line("date", &["--utc", "+%Y-%m-%d"]).unwrap_or_default(),
        // Without the name that its builder has given it.
        read("/proc/sys/kernel/osrelease").trim().split('-').next().unwrap_or_default(),
        model.map_or(std::env::consts::ARCH, |(_, model)| model),
        ["crun", "conmon", "podman"].map(version).join(", ")
    )
}

/// The name and the version of a program.
fn version(program: &str) -> String {
    let line = first_line(program, &["--version"]).map(|line| line.replacen("version ", "", 1));
    line.unwrap_or_else(|| format!("no {program}"))
}

/// The first line of a command's output.
fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned)
}

/// Requires a machine without load of other processes.
///
/// # Errors
/// The machine is busy.
pub(super) fn require_quiet() -> Outcome {
    match is_busy() {
        Some(load) => {
            Err(format!("the machine is not quiet (load {load}): times would be no figures").into())
        }
        None => Ok(()),
    }
}

/// The load of other processes in the last minute, if it is too high for measurements.
pub(super) fn is_busy() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = text.split(' ').next()?.parse().ok()?;
    (load > QUIET).then_some(load)
}
