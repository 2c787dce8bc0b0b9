//! Tests a board whose agent fails or hangs, booted from its disk: crash loops must end in safe mode, and the
//! watchdog must reset a board whose agent or process 1 hangs.

use std::time::Duration;

use nodlet_build::budgets::Budgets;
use nodlet_build::task::{Outcome, TaskError};
use nodlet_dist::profile::{CrashLoop, Profile, Qemu, Update};
use serde_json::json;

use super::monitor::{self, Monitor};
use super::{Board, build, flash, prepare, text};

/// The watchdog's timeout in seconds: the least that an emulated board on a busy machine can meet.
const TIMEOUT: u32 = 30;

/// How long the wake-ups of an idle board are counted.
const IDLE: Duration = Duration::from_secs(120);

/// Boots the board with a broken agent, repairs it, and hangs the agent and process 1.
pub(super) fn try_out(profile: &Profile, qemu: &Qemu) -> Outcome {
    let mut profile = profile.clone();
    let (directory, key, mut contents) = prepare(&profile, "watchdog")?;
    // No pod runs.
    contents.archives.clear();
    let Some(watchdog) = &mut profile.watchdog else {
        eprintln!("{}: its profile names no watchdog: no hang is tried", profile.name);
        return Ok(());
    };
    watchdog.timeout = TIMEOUT;
    profile.crash_loop = Some(CrashLoop { after: 5, reboots: 2 });
    profile.update = Update { allow_unsigned: true, healthy_after: "25s".into(), ..Update::default() };
    let image = build(&profile, &contents, &directory)?;
    let Some(medium) = flash(&profile, qemu, &image, &directory)? else {
        eprintln!(
            "{}: its profile names no disk and firmware: no crash loop outlasts a reboot",
            profile.name
        );
        return Ok(());
    };
    let mut qemu = qemu.clone();
    // The board must reboot by itself, which is under test.
    qemu.arguments.extend(["-action", "reboot=reset"].map(str::to_owned));
    qemu.arguments.extend(monitor::arguments(&directory));
    let mut board = medium.boot(&qemu, &directory, &key)?;
    board.wait_for("an agent", |board| Ok(board.ssh("nodlet get pods", "")?.status.success()))?;
    let broken = std::time::Instant::now();
    // A file replaces a directory that the agent needs.
    board.expect(
        "cd /var/lib/nodlet && rm -rf images && echo broken >images && kill -KILL $(cat /run/nodlet/agent.lock)",
        "",
        "",
    )?;

    board.wait_for("safe mode after two crash loops", |board| {
        let said = board.ssh("nodlet safe-mode", "")?;
        Ok(text(&said.stdout).contains("since the agent kept failing in 2 boots in a row"))
    })?;
    let safe = broken.elapsed();
    let refused = board.ssh("nodlet get pods", "")?;
    if refused.status.success() || !text(&refused.stderr).contains("this board is in safe mode") {
        return Err(board.failed(&format!("in safe mode `get pods` said {:?}", text(&refused.stderr))));
    }
    board.expect("cat /var/lib/nodlet/init/crash-loops", "", "2\n")?;
    // The board may need an update, so it must be possible in safe mode.
    let installed = board.ssh("(cat /proc/1/exe; echo) | nodlet system install - --wait", "")?;
    if !installed.status.success() || !text(&installed.stdout).contains("this board is in safe mode") {
        return Err(board.failed(&format!("in safe mode an update was installed so: {installed:?}")));
    }
    board.expect("rm /var/lib/nodlet/images && nodlet safe-mode --leave", "", "")?;
    board.wait_for("an agent after safe mode was left", |board| {
        Ok(board.ssh("nodlet get pods", "")?.status.success())
    })?;
    board.expect("nodlet safe-mode", "", "this board is not in safe mode\n")?;
    board.wait_for("the update of safe mode to be kept", |board| {
        Ok(board.output("nodlet system")?.contains(", kept\n"))
    })?;
    let idle = wake_ups(&board)?;
    let mut budgets = Budgets::read()?;
    let share = board.kib("/proc/1/smaps_rollup", "Pss:")?;
    let anonymous = board.kib("/proc/1/smaps_rollup", "Anonymous:")?;
    // Many orphans and ending services: process 1 must reap and restart them with the memory it has.
    board.expect(
        "i=0; while [ $i -lt 200 ]; do (busybox true &) ; i=$((i+1)); done; kill -KILL $(cat /run/nodlet/agent.lock)",
        "",
        "",
    )?;
    board.wait_for("an agent after it was killed", |board| {
        Ok(board.ssh("nodlet get pods", "")?.status.success())
    })?;
    let later = board.kib("/proc/1/smaps_rollup", "Anonymous:")?;
    budgets.measured("init-anon", later)?;
    budgets.require_kept("change the figure in xtask/budgets.toml")?;
    if later > anonymous {
        return Err(board.failed(&format!("process 1 grew from {anonymous} to {later} KiB")));
    }

    recover_from_hang(&mut board)?;
    give_up_hung_update(&mut board)?;
    let turn_on = || medium.boot(&qemu, &directory, &key);
    let of_agent = reset_by(&mut board, "a hung agent", HANG, &turn_on)?;
    // The hang was counted before the reset.
    board.expect("cat /var/lib/nodlet/init/crash-loops", "", "1\n")?;
    let update = board.output("nodlet system")?;
    if !update.contains("given up: its agent kept failing until the board was rebooted\n") {
        return Err(board.failed(&format!("after a hung agent of an update: {update}")));
    }
    let freeze = "cd /sys/fs/cgroup && mkdir hung && echo 1 >hung/cgroup.procs && echo 1 >hung/cgroup.freeze";
    let of_init = reset_by(&mut board, "a hung process 1", freeze, &turn_on)?;

    board.ssh("nodlet poweroff", "")?;
    board.wait_until_down("powering off")?;
    eprintln!(
        "{}: safe mode after two crash loops, {safe:.0?} after the agent was broken; with a watchdog of \
         {TIMEOUT} s a hung agent's board answered again after {of_agent:.0?}, that of a hung process 1 after \
         {of_init:.0?}; in {IDLE:?} process 1, which took {share} KiB, woke up {} times, the \
         idle agent {} times",
        profile.name, idle.0, idle.1
    );
    Ok(())
}

/// The command that hangs the agent.
const HANG: &str = "kill -STOP $(cat /run/nodlet/agent.lock)";

/// The command that prints the boot ID.
const BOOT: &str = "cat /proc/sys/kernel/random/boot_id";

/// Requires that a hang from which the agent recovers in time causes no reset, and is not counted.
fn recover_from_hang(board: &mut Board) -> Outcome {
    let boot = board.output(BOOT)?;
    board.expect(HANG, "", "")?;
    let files = |board: &Board| board.output("ls /var/lib/nodlet/init");
    board.wait_for("note of the hang", |board| Ok(files(board)?.contains("agent-hangs")))?;
    board.expect("kill -CONT $(cat /run/nodlet/agent.lock)", "", "")?;
    board.wait_for("end of the hang", |board| Ok(!files(board)?.contains("agent-hangs")))?;
    board.require_said("the agent does not hang any more")?;
    board.expect("ls /var/lib/nodlet/init | busybox grep crash-loops; true", "", "")?;
    board.expect(BOOT, "", &boot)
}

/// Requires that an update that hangs during its trial is given up before the watchdog resets the board.
fn give_up_hung_update(board: &mut Board) -> Outcome {
    let boot = board.output(BOOT)?;
    let installed = board.ssh("(cat /proc/1/exe; echo; echo) | nodlet system install -", "")?;
    if !installed.status.success() {
        return Err(board.failed(&format!("an update that is to hang is rejected: {installed:?}")));
    }
    board.wait_for("an agent on trial", |board| {
        let is_tried = board.output("nodlet system")?.contains(", start 1 of 3\n");
        Ok(is_tried && board.ssh("nodlet get pods", "")?.status.success())
    })?;
    board.expect(HANG, "", "")?;
    board.wait_for("return of the nodlet before", |board| {
        Ok(board.output("nodlet system")?.contains("given up: its agent hung\n"))
    })?;
    board.wait_for("an agent after the update", |board| {
        Ok(board.ssh("nodlet get pods", "")?.status.success())
    })?;
    board.expect(BOOT, "", &boot)
}

/// How long the firmware of a reset board may take until it writes to the console; it usually takes some 3 s.
const FIRMWARE: Duration = Duration::from_secs(120);

/// Hangs something, and waits until the watchdog has reset the board and it has booted. Returns how long that
/// took.
///
/// Occasionally the emulator does not leave the firmware after this reset: no part of nodlet has run yet, and
/// the console is empty. The emulator's state is then printed, and the board is turned off and on, as a
/// person at the board would do. A second silence is an error.
fn reset_by(
    board: &mut Board,
    what: &str,
    command: &str,
    turn_on: &dyn Fn() -> Result<Board, TaskError>,
) -> Result<Duration, TaskError> {
    let before = board.output(BOOT)?;
    let mut monitor = Monitor::connect(board)?;
    let hung = std::time::Instant::now();
    let done = board.ssh(command, "")?;
    if !done.status.success() || before.is_empty() {
        return Err(board.failed(&format!("{what} cannot be made: {}", text(&done.stderr))));
    }
    monitor.wait_for_event("WATCHDOG").map_err(|TaskError(why)| board.failed(&why))?;
    // Text that the board was still writing during the reset is not the firmware's.
    std::thread::sleep(Duration::from_millis(500));
    let (reset, written) = (std::time::Instant::now(), board.console()?.len());
    let mut is_silent = false;
    board.wait_for(&format!("boot after the reset by {what}"), |board| {
        let now = board.ssh(BOOT, "")?;
        let has_booted = now.status.success() && text(&now.stdout) != before;
        is_silent = !has_booted && reset.elapsed() > FIRMWARE && board.console()?.len() == written;
        Ok(has_booted || is_silent)
    })?;
    if is_silent {
        let state = state_of(board, &mut monitor).unwrap_or_else(|TaskError(why)| why);
        eprintln!("the firmware has written nothing since the reset by {what}; off and on again\n{state}");
        board.turn_off()?;
        *board = turn_on()?;
        board.wait_for(&format!("boot after the reset by {what}, off and on again"), |board| {
            let now = board.ssh(BOOT, "")?;
            Ok(now.status.success() && text(&now.stdout) != before)
        })?;
    }
    let took = hung.elapsed();
    board.wait_for("an agent after the reset", |board| {
        Ok(board.ssh("nodlet get pods", "")?.status.success())
    })?;
    Ok(took)
}

/// The emulator's report of the board's processor: five samples of its registers, and the time that its
/// thread runs meanwhile.
fn state_of(board: &Board, monitor: &mut Monitor) -> Result<String, TaskError> {
    let status = monitor.run("query-status", json!({}))?;
    let processors = monitor.run("query-cpus-fast", json!({}))?;
    let stat = format!("/proc/{}/task/{}/stat", board.emulator_id(), processors[0]["thread-id"]);
    let mut state = format!("QEMU: {status}\n");
    for _ in 0..5 {
        let registers = monitor.run("human-monitor-command", json!({"command-line": "info registers"}))?;
        let registers = registers.as_str().unwrap_or_default();
        let general = registers.lines().take(6).collect::<Vec<_>>().join("\n");
        let times = std::fs::read_to_string(&stat)?;
        let times: Vec<&str> = times.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        state += &format!("{general}\nits thread: {:?}\n", (times.first(), times.get(11), times.get(12)));
        std::thread::sleep(Duration::from_millis(500));
    }
    let timer = monitor.run("human-monitor-command", json!({"command-line": "info lapic"}))?;
    Ok(state + timer.as_str().unwrap_or_default())
}

/// How often process 1 and the agent's threads woke up while the board was idle. More than the watchdog's
/// period requires is an error.
fn wake_ups(board: &Board) -> Result<(u64, u64), TaskError> {
    let count = "for process in 1 $(cat /run/nodlet/agent.lock); do cat /proc/$process/task/*/status | \
                 busybox awk '/^voluntary/ {sum += $2} END {print sum}'; done";
    let seconds = IDLE.as_secs();
    let said = board.ssh(&format!("{count}; busybox sleep {seconds}; {count}"), "")?;
    let numbers: Vec<u64> = text(&said.stdout).lines().filter_map(|line| line.parse().ok()).collect();
    let [init, agent, init_later, agent_later] = numbers[..] else {
        return Err(board.failed(&format!("no counts of context switches: {:?}", text(&said.stdout))));
    };
    let (init, agent) = (init_later.saturating_sub(init), agent_later.saturating_sub(agent));
    // The processor wakes up once per turn. Within 10 ms of that, the thread of async-io, which handles the
    // timers while the loop works, checks up to seven times whether the loop is waiting again.
    let turns = seconds * 2 / u64::from(TIMEOUT);
    let (most, most_agent) = (turns + 8, 8 * turns + 16);
    if init > most || agent > most_agent {
        return Err(board.failed(&format!(
            "in {seconds} idle seconds process 1 woke up {init} times and the agent {agent} times, not {most} and \
             {most_agent} at most"
        )));
    }
    Ok((init, agent))
}
