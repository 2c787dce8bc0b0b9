//! Checks of the board itself: root's privileges, clock, watchdog, memory, and a running agent.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nodlet_core::time::Timestamp;

use super::facts::Machine;
use super::report::Finding;
use crate::client;

/// 2024-01-01: a clock that shows an earlier time has never been set.
const SET: Duration = Duration::from_secs(1_704_067_200);

/// Memory of an agent without pods, and of all nodlet processes for each pod (docs/benchmarks.md).
const AGENT_KIB: u64 = 3 * 1024;
const POD_KIB: u64 = 250;
/// Pods for which a board should have memory, and the least that the program of each needs.
const PODS_FEW: u64 = 10;
const PROGRAM_KIB: u64 = 1024;

/// How long an agent may take to respond.
const PATIENCE: Duration = Duration::from_secs(5);

/// The file that a kernel has which accounts swap in cgroup v1.
const SWAP_LIMIT: &str = "/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes";

/// All checks of the board.
pub(super) fn findings(machine: &Machine) -> Vec<(&'static str, Finding)> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let meminfo = text("/proc/meminfo");
    let is_counted =
        super::cgroups::v1_mount(&machine.mounts, "memory").is_none() || Path::new(SWAP_LIMIT).exists();
    let mut findings = vec![
        ("clock", judge_clock(now)),
        ("real-time clock", judge_real_time_clock(&names_in(Path::new("/sys/class/rtc")))),
        ("watchdog", watchdog(machine.is_root)),
        ("memory", judge_memory(&meminfo)),
        ("swap", judge_swap(kib(&meminfo, "SwapTotal").unwrap_or(0), is_counted)),
        ("agent", agent(&nodlet_runtime::api::socket_path(&machine.root))),
    ];
    if machine.is_root {
        findings.insert(0, ("privileges", judge_privileges(&text("/proc/self/status"))));
    }
    findings
}

/// The capabilities without which no pod starts. Numbers are those of Linux: `linux/capability.h`.
const CAPABILITIES: &[(&str, u32)] = &[
    ("CAP_CHOWN", 0),
    ("CAP_DAC_OVERRIDE", 1),
    ("CAP_KILL", 5),
    ("CAP_SETGID", 6),
    ("CAP_SETUID", 7),
    ("CAP_SETPCAP", 8),
    ("CAP_NET_ADMIN", 12),
    ("CAP_SYS_ADMIN", 21),
    ("CAP_MKNOD", 27),
];

/// Checks whether root has the capabilities that pods need, which it lacks in most containers. The input is
/// the text of proc_pid_status(5).
fn judge_privileges(status: &str) -> Finding {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(effective) = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()) else {
        return Finding::unknown("/proc/self/status does not show it");
    };
    let lacking: Vec<&str> =
        CAPABILITIES.iter().filter(|(_, bit)| effective >> bit & 1 == 0).map(|(name, _)| *name).collect();
    if lacking.is_empty() {
        return Finding::ok("all that nodlet needs");
    }
    Finding::missing(format!("without {}", lacking.join(", ")))
        .because("No pod starts.", "Run nodlet outside of a container, or grant these capabilities.")
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn judge_clock(now: Duration) -> Finding {
    if now < SET {
        return Finding::warning("before 2024: it was never set").because(
            "Pods run; times shown are wrong until the clock is set, and corrected then.",
            "Set it, or let an NTP client do so.",
        );
    }
    let nanos = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
    Finding::ok(Timestamp(nanos).to_string())
}

fn judge_real_time_clock(clocks: &[String]) -> Finding {
    if clocks.is_empty() {
        return Finding::warning("none").because(
            "Pods run; after a power cut, times shown are wrong until the network sets the clock.",
            "Add a battery-backed clock and its driver, if pods need the time without a network.",
        );
    }
    Finding::ok(clocks.join(", "))
}

fn watchdog(is_root: bool) -> Finding {
    let class = Path::new("/sys/class/watchdog");
    let devices: Vec<Watchdog> = names_in(class)
        .into_iter()
        .map(|name| {
            let read = |file: &str| {
                let text = fs::read_to_string(class.join(&name).join(file));
                text.map(|text| text.trim().to_owned()).unwrap_or_default()
            };
            Watchdog { identity: read("identity"), state: read("state"), name }
        })
        .collect();
    judge_watchdog(&devices, holder().as_deref(), is_root)
}

/// A watchdog device, which restarts the board unless a process writes to it.
#[derive(Debug, Default)]
struct Watchdog {
    name: String,
    identity: String,
    /// `active` or `inactive`; empty if the kernel does not report it (CONFIG_WATCHDOG_SYSFS).
    state: String,
}

/// A process that has a watchdog open, among those that this user may inspect.
fn holder() -> Option<String> {
    for pid in
        names_in(Path::new("/proc")).into_iter().filter(|name| name.bytes().all(|b| b.is_ascii_digit()))
    {
        let process = Path::new("/proc").join(&pid);
        for entry in fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
            let target = fs::read_link(entry.path()).unwrap_or_default();
            if target.to_string_lossy().starts_with("/dev/watchdog") {
                let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
                return Some(format!("{} (process {pid})", name.trim()));
            }
        }
    }
    None
}

fn judge_watchdog(devices: &[Watchdog], holder: Option<&str>, is_root: bool) -> Finding {
    if devices.is_empty() {
        return Finding::warning("none").because(
            "Pods run; a board that hangs is not restarted.",
            "Load the driver of the board's watchdog, if it has one (CONFIG_WATCHDOG).",
        );
    }
    let names: Vec<String> = devices
        .iter()
        .map(|device| match device.identity.as_str() {
            "" => device.name.clone(),
            identity => format!("{} ({identity})", device.name),
        })
        .collect();
    let names = names.join(", ");
    if let Some(holder) = holder {
        return Finding::ok(format!("{names}, kept by {holder}"));
    }
    if devices.iter().any(|device| device.state == "active") {
        return Finding::ok(format!("{names}, active"));
    }
    if !is_root && devices.iter().any(|device| device.state.is_empty()) {
        return Finding::unknown(format!("{names}; only root can determine which process opened it"));
    }
    Finding::warning(format!("{names}, which no process keeps open")).because(
        "Pods run; a board that hangs is not restarted.",
        "With systemd set RuntimeWatchdogSec=20s in /etc/systemd/system.conf; with nodlet's init set [watchdog] in \
         the board's profile; otherwise let a watchdog daemon run.",
    )
}

/// Reads a value of /proc/meminfo, in KiB.
fn kib(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

fn judge_memory(meminfo: &str) -> Finding {
    let (Some(total), Some(available)) = (kib(meminfo, "MemTotal"), kib(meminfo, "MemAvailable")) else {
        return Finding::unknown("/proc/meminfo lacks MemTotal or MemAvailable");
    };
    let found = format!("{} MiB, of which {} MiB available", total / 1024, available / 1024);
    if available < AGENT_KIB + PODS_FEW * (POD_KIB + PROGRAM_KIB) {
        return Finding::warning(found).because(
            format!(
                "The agent takes some {} MiB and nodlet {POD_KIB} KiB for each pod, besides the memory of its containers: there is \
                 not enough for {PODS_FEW} pods of 1 MiB.",
                AGENT_KIB / 1024
            ),
            "End other programs, or run fewer pods.",
        );
    }
    Finding::ok(found)
}

/// Checks whether containers with a memory limit can be kept from swapping: nodlet prevents it only if the
/// kernel accounts swap.
fn judge_swap(total: u64, is_counted: bool) -> Finding {
    match (total, is_counted) {
        (0, _) => Finding::ok("none"),
        (total, true) => Finding::ok(format!("{} MiB", total / 1024)),
        (total, false) => {
            Finding::warning(format!("{} MiB, not counted by cgroups", total / 1024))
                .because(
                    "Pods run; a container that reaches its memory limit swaps instead of being ended, which wears out a card.",
                    "Add swapaccount=1 to the kernel's command line, or turn swap off (swapoff -a).",
                )
        }
    }
}

/// Checks whether an agent responds.
fn agent(socket: &Path) -> Finding {
    let shown = socket.display();
    let silent = |found: String| {
        Finding::warning(found).because(
            "Pods continue; changes have no effect, and no probe is made.",
            "Check the agent's log, and restart it: containers continue.",
        )
    };
    match ask(socket) {
        Ok(200) => Finding::ok(format!("answers on {shown}")),
        Ok(code) => silent(format!("answers with HTTP status {code} on {shown}")),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => match crate::boot::safe_mode::is_safe() {
                Some(reason) => Finding::warning(reason).because(
                    "The board is in safe mode: no pod starts.",
                    "Remove the cause, then leave safe mode with nodlet safe-mode --leave.",
                ),
                None => Finding::ok("none runs here"),
            },
            io::ErrorKind::PermissionDenied => {
                Finding::unknown(format!("only root and the group nodlet may open {shown}"))
            }
            io::ErrorKind::ConnectionRefused => {
                silent(format!("it has ended: no process listens on {shown}"))
            }
            _ => silent(format!("does not answer on {shown}: {error}")),
        },
    }
}

/// Asks the agent for its version. Returns the HTTP status.
fn ask(socket: &Path) -> io::Result<u16> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(client::exchange(stream, "GET", "/version", "*/*", None)?.code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::doctor::report::Verdict;

    #[test]
    fn root_without_its_powers_is_reported() {
        let judged = |digits: &str| judge_privileges(&format!("Name: x\nCapPrm:\t0\nCapEff:\t{digits}\n"));
        assert_eq!(judged("000001ffffffffff").verdict, Verdict::Ok);
        let check = judged("000001ffffdfffff");
        assert_eq!((check.verdict, check.text.as_str()), (Verdict::Missing, "without CAP_SYS_ADMIN"));
        assert_eq!(judged("garbage").verdict, Verdict::Unknown);
    }

    #[test]
    fn a_clock_that_was_never_set_is_warned_about() {
        assert_eq!(judge_clock(Duration::from_secs(60)).verdict, Verdict::Warning);
        assert_eq!(judge_clock(SET - Duration::from_secs(1)).verdict, Verdict::Warning);
        assert_eq!(judge_clock(SET).text, "2024-01-01T00:00:00Z");
        assert_eq!(judge_real_time_clock(&[]).verdict, Verdict::Warning);
        assert_eq!(judge_real_time_clock(&["rtc0".to_owned()]).verdict, Verdict::Ok);
    }

    #[test]
    fn a_missing_or_unused_watchdog_is_a_warning() {
        let device = |state: &str| {
            vec![Watchdog {
                name: "watchdog0".to_owned(),
                identity: "iTCO".to_owned(),
                state: state.to_owned(),
            }]
        };
        for (devices, holder, is_root, expected) in [
            (Vec::new(), None, true, Verdict::Warning),
            (device("inactive"), None, true, Verdict::Warning),
            (device("inactive"), None, false, Verdict::Warning),
            (device("active"), None, false, Verdict::Ok),
            (device(""), None, false, Verdict::Unknown),
            (device(""), None, true, Verdict::Warning),
            (device(""), Some("systemd (process 1)"), true, Verdict::Ok),
        ] {
            let check = judge_watchdog(&devices, holder, is_root);
            assert_eq!(check.verdict, expected, "{devices:?} {holder:?} {is_root}");
        }
    }

    #[test]
    fn little_memory_and_swap_that_is_not_counted_are_warned_about() {
        let text =
            |available: u64| format!("MemTotal:  100000 kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n");
        assert_eq!(judge_memory(&text(90_000)).verdict, Verdict::Ok);
        assert_eq!(judge_memory(&text(9_000)).verdict, Verdict::Warning);
        assert_eq!(judge_memory("").verdict, Verdict::Unknown);
        assert_eq!(judge_swap(0, false).verdict, Verdict::Ok);
        assert_eq!(judge_swap(1024, true).verdict, Verdict::Ok);
        assert_eq!(judge_swap(1024, false).verdict, Verdict::Warning);
    }

    #[test]
    fn a_socket_without_a_listening_agent_is_a_warning() {
        let path = std::env::temp_dir().join(format!("nodlet-doctor-test-{}.sock", std::process::id()));
        assert_eq!(agent(&path).text, "none runs here");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let check = agent(&path);
        fs::remove_file(&path).unwrap();
        assert_eq!(check.verdict, Verdict::Warning, "{check:?}");
    }
}
