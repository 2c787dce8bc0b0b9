//! nodlet as a service of the systemd of this machine, for tests that run in a guest of their own.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The timeout of operations that usually take moments.
const DEADLINE: Duration = Duration::from_secs(180);

/// Runs a command, whose arguments are split at spaces, until it ends. Returns its output.
///
/// # Panics
/// If the command fails.
#[track_caller]
pub fn run(line: &str) -> String {
    let (ok, said) = try_run(line);
    assert!(ok, "{line} failed:\n{said}\n{}", journal());
    said
}

/// Runs a command that may fail. Returns whether it succeeded, and its output.
///
/// # Panics
/// If there is no such program.
pub fn try_run(line: &str) -> (bool, String) {
    let words: Vec<&str> = line.split(' ').collect();
    let mut command = Command::new(words[0]);
    // An administrator's PATH, because dpkg needs programs in sbin.
    command
        .args(&words[1..])
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null());
    let output = command.output().unwrap_or_else(|error| panic!("{line}: {error}"));
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.success(), text.concat())
}

/// The latest entries of the journal, for the message of a failed test.
pub fn journal() -> String {
    try_run("journalctl --no-pager --lines=60 --output=short-monotonic").1
}

/// Waits for a condition.
///
/// # Panics
/// If the condition does not hold in time.
#[track_caller]
pub fn wait_for(condition: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < until, "waited in vain for {condition}\n{}", journal());
        thread::sleep(Duration::from_millis(200));
    }
}

/// The current value of a property of nodlet's unit.
pub fn property(name: &str) -> String {
    run(&format!("systemctl show --property={name} --value nodlet.service")).trim().to_owned()
}

/// A pod as `nodlet get` shows it; null if there is none.
pub fn pod(name: &str) -> Value {
    let (_, text) = try_run(&format!("nodlet get pod {name} -o json"));
    serde_json::from_str(&text).unwrap_or_default()
}

/// Whether the pod is ready.
pub fn is_ready(name: &str) -> bool {
    let conditions = pod(name)["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}
