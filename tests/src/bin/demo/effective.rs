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
        "SigCgt",
        "Cpus_allowed",
        "Mems_allowed",
    ];
    let mut text = String::new();
    for line in fs::read_to_string("/proc/self/status")?.lines() {
        if STATUS.contains(&line.split(':').next().unwrap_or_default()) {
            writeln!(text, "{line}")?;
        }
    }
    for file in [
        "oom_score_adj",
        "uid_map",
        "gid_map",
        "setgroups",
        "loginuid",
        "attr/current",
        "personality",
        "timerslack_ns",
    ] {
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
    for (name, value) in scheduling()? {
        writeln!(text, "{name}: {value}")?;
    }
    for (name, option) in [
        ("securebits", libc::PR_GET_SECUREBITS),
        ("dumpable", libc::PR_GET_DUMPABLE),
        ("child subreaper", libc::PR_GET_CHILD_SUBREAPER),
        ("signal when the parent dies", libc::PR_GET_PDEATHSIG),
    ] {
        writeln!(text, "{name}: {}", process_option(option))?;
    }
    for descriptor in descriptors()? {
        writeln!(text, "descriptor: {descriptor}")?;
    }
    for (name, value) in std::env::vars_os() {
        writeln!(text, "variable: {name:?}={value:?}")?;
    }
    Ok(text)
}

/// The fields of /proc/self/stat that say how the process is scheduled, by the numbers of proc_pid_stat(5).
fn scheduling() -> Result<Vec<(&'static str, String)>, Failure> {
    const FIELDS: &[(&str, usize)] =
        &[("priority", 18), ("nice", 19), ("real-time priority", 40), ("scheduling policy", 41)];
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name of the program, field 2, may contain spaces.
    let (_, rest) = stat.rsplit_once(") ").ok_or("no name in /proc/self/stat")?;
    let values: Vec<&str> = rest.split_whitespace().collect();
    FIELDS
        .iter()
        .map(|(name, number)| Ok((*name, (*values.get(number - 3).ok_or("a short stat")?).to_owned())))
        .collect()
}

/// A number that prctl(2) returns, or stores.
fn process_option(option: libc::c_int) -> libc::c_int {
    let mut stored: libc::c_int = 0;
    // SAFETY: the calls that take a pointer store one int.
    let returned = unsafe { libc::prctl(option, &raw mut stored, 0, 0, 0) };
    if stored == 0 { returned } else { stored }
}

/// The open descriptors of the process, without that of the directory which lists them.
fn descriptors() -> Result<Vec<i32>, Failure> {
    let mut numbers: Vec<i32> = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    numbers.retain(|number| {
        // SAFETY: no pointers.
        unsafe { libc::fcntl(*number, libc::F_GETFD) >= 0 }
    });
    numbers.sort_unstable();
    Ok(numbers)
}
