//! Everything that confines the calling process, as the kernel reports it: the step `effective`.

use std::fmt::Write;
use std::fs;

use crate::Failure;

/// Returns lines of names and values.
pub(crate) fn effective() -> Result<String, Failure> {
    const STATUS: &[&str] = &[
        "Uid",
        "Gid",
        "Groups",
        "Umask",
        "CapInh",
        "CapPrm",
        "CapEff",
        "CapBnd",
        "CapAmb",
        "NoNewPrivs",
        "Seccomp",
        "Seccomp_filters",
        "SigBlk",
        "SigIgn",
        "Cpus_allowed",
    ];
    let mut text = String::new();
    for line in fs::read_to_string("/proc/self/status")?.lines() {
        if STATUS.contains(&line.split(':').next().unwrap_or_default()) {
            writeln!(text, "{line}")?;
        }
    }
    for file in ["oom_score_adj", "uid_map", "gid_map", "setgroups", "loginuid", "attr/current"] {
        if let Ok(value) = fs::read_to_string(format!("/proc/self/{file}")) {
            writeln!(text, "{file}: {value:?}")?;
        }
    }
    for line in fs::read_to_string("/proc/self/limits")?.lines() {
        writeln!(text, "limit: {line}")?;
    }
    // An executed process has a cgroup of its own below the container's, which is the root of a cgroup namespace.
    for line in fs::read_to_string("/proc/self/cgroup")?.lines() {
        writeln!(text, "cgroup: {}", line.split("/exec-").next().unwrap_or_default().trim_end_matches('/'))?;
    }
    for name in ["cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"] {
        writeln!(text, "{name}: {}", fs::read_link(format!("/proc/self/ns/{name}"))?.display())?;
    }
    writeln!(text, "root: {}", fs::read_link("/proc/self/root")?.display())?;
    writeln!(text, "cwd: {}", std::env::current_dir()?.display())?;
    Ok(text)
}
