//! The machine on which everything is measured, and whether it is quiet enough for measurements.

use std::fs;
use std::process::Command;

/// The load of other processes above which figures are unreliable.
const QUIET: f64 = 0.3;

pub(super) fn describe() {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let memory = read("/proc/meminfo");
    let memory: u64 = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    let cgroups = if fs::exists("/sys/fs/cgroup/cgroup.controllers").unwrap_or(false) {
        "v2"
    } else {
        "v1 with v2 beside it"
    };
    println!(
        "Linux {}, {cpus} × {}, {} MiB, cgroup {cgroups}; {}\n",
        read("/proc/sys/kernel/osrelease").trim(),
        model.map_or(std::env::consts::ARCH, |(_, model)| model),
        memory / 1024,
        ["crun", "conmon", "podman"].map(version).join(", ")
    );
}

/// The first line of a program's `--version`.
fn version(program: &str) -> String {
    let said =
        Command::new(program).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    match String::from_utf8_lossy(&said).lines().next() {
        Some(line) => line.to_owned(),
        None => format!("no {program}"),
    }
}

/// The load of other processes in the last minute, if it is too high for measurements.
pub(super) fn is_busy() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = text.split(' ').next()?.parse().ok()?;
    (load > QUIET).then_some(load)
}
