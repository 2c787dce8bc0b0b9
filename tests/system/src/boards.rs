//! `cargo xtask boards`: boots the emulated boards of `board/profiles` with a pod in their image, and uses
//! them over SSH, as their owner would.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use nodlet_build::arguments::Arguments;
use nodlet_build::task::{Outcome, Task, TaskError, run as run_command, seed, work};
use nodlet_build::{cross, programs, targets};
use nodlet_dist::image::{self, Contents, DeviceImage};
use nodlet_dist::profile::{self, Profile, Qemu};
use nodlet_tests::image::{DEMO, Image};
use nodlet_tests::manifest;

mod board;
mod cluster;
pub(crate) mod demo;
mod disk;
mod monitor;
mod network;
pub(crate) mod peers;
mod push;
mod refused;
mod ssh;
mod update;
mod watchdog;

use board::{Board, LINK, Medium, PATIENCE, flash};

/// A step: its name, and its function, which tests an emulated board.
type Step = (&'static str, fn(&Profile, &Qemu) -> Outcome);

/// The steps for each emulated board. The first one builds everything that the others share.
const STEPS: &[Step] = &[
    ("ssh", try_ssh),
    // The longest step begins first.
    ("watchdog", watchdog::try_out),
    ("disk", try_disk),
    ("ten-pods", try_ten_pods),
    ("network", network::try_out),
    ("update", update::try_out),
    ("cluster", cluster::try_out),
    ("demo", demo::try_out),
];

/// The number of steps that run at a time: an emulated board uses one processor.
const AT_A_TIME: usize = 2;

/// The lock of builds and downloads: concurrent steps share the results.
static BUILDS: Mutex<()> = Mutex::new(());

/// Runs a build or download, exclusively.
fn alone<T>(build: impl FnOnce() -> Result<T, TaskError>) -> Result<T, TaskError> {
    // A step that panicked leaves nothing incomplete that cargo would not finish.
    let _guard = BUILDS.lock().unwrap_or_else(PoisonError::into_inner);
    build()
}

/// Builds the image of a board in a step's directory.
fn build(profile: &Profile, contents: &Contents, directory: &Path) -> Result<DeviceImage, TaskError> {
    alone(|| image::build(profile, contents, directory))
}

/// The task `cargo xtask boards`.
pub(crate) const TASK: Task = Task::new(
    "boards",
    "--check | --power-cuts STATES [MINUTES] | [--only ssh|watchdog|disk|ten-pods|network|update|cluster|demo]... [PROFILE]...",
    "boot the emulated boards of board/profiles, use them over SSH, and break them",
    run,
);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    match arguments {
        [option] if option == "--check" => return check(),
        [option, rest @ ..] if option == "--power-cuts" => return power_cuts(rest),
        _ => {}
    }
    let mut arguments = Arguments::new(&TASK, arguments);
    let only: Vec<String> = arguments.all("--only")?;
    let mut steps = only.iter().map(|name| step(name)).collect::<Result<Vec<_>, _>>()?;
    let names = arguments.names()?;
    if steps.is_empty() {
        steps.extend_from_slice(STEPS);
    }
    let of_all = names.is_empty();
    if of_all {
        cross::provide()?;
    }
    for name in if of_all { profile::known()? } else { names } {
        let profile = profile::get(&name)?;
        match &profile.qemu {
            Some(qemu) => try_out(&profile, qemu, &steps)?,
            // This board cannot be emulated. Check at least that what it names of its kernel exists.
            None if of_all => image::require_kernel(&profile)?,
            None => return Err(TaskError(format!("no emulator has the board {name}"))),
        }
    }
    Ok(())
}

fn step(name: &str) -> Result<Step, TaskError> {
    STEPS.iter().find(|(step, _)| *step == name).copied().ok_or_else(|| {
        let known: Vec<&str> = STEPS.iter().map(|(step, _)| *step).collect();
        TaskError(format!("unknown step {name:?}; there are {}", known.join(", ")))
    })
}

/// The steps of the check; `cargo xtask long boards` runs all of them, on all boards.
const OF_CHECK: &[&str] = &["ssh", "watchdog", "disk", "update"];

/// Boots the emulated board with this machine's processor, as a step of the check.
fn check() -> Outcome {
    cross::provide()?;
    let steps: Vec<Step> = STEPS.iter().filter(|(name, _)| OF_CHECK.contains(name)).copied().collect();
    let (profile, qemu) = of_this_machine()?;
    try_out(&profile, &qemu, &steps)
}

/// The emulated board with this machine's processor.
fn of_this_machine() -> Result<(Profile, Qemu), TaskError> {
    let host = targets::host()?.triple;
    for name in profile::known()? {
        let profile = profile::get(&name)?;
        if let (true, Some(qemu)) = (profile.target == host, &profile.qemu) {
            let qemu = qemu.clone();
            return Ok((profile, qemu));
        }
    }
    Err(TaskError(format!("no profile in board/profiles is for {host} and QEMU")))
}

/// Cuts the power of the emulated board with this machine's processor, on a medium that loses what was not flushed, and
/// boots so many states of the medium, chosen by `$NODLET_SEED`, or those for which the minutes suffice.
fn power_cuts(arguments: &[String]) -> Outcome {
    let (states, minutes) = match arguments {
        [states] => (states.parse(), None),
        [states, minutes] => (states.parse(), Some(minutes.parse().map_err(|_| TASK.misused())?)),
        _ => return Err(TASK.misused()),
    };
    let (states, seed) = (states.map_err(|_| TASK.misused())?, seed()?);
    cross::provide()?;
    let (profile, qemu) = of_this_machine()?;
    provide(&qemu)?;
    let profile = &Profile { update: disk::update_rules(), ..profile };
    let (directory, key, contents) = prepare_with_identity(profile, "power-cuts")?;
    let image = build(profile, &contents, &directory)?;
    let tried = disk::losses::try_out(profile, &qemu, &image, (&directory, &key), (states, seed, minutes));
    // What a failure left can be booted again.
    if tried.is_ok() {
        disk::losses::clean(&directory);
    }
    tried
}

/// Installs the emulator, and the programs for SSH.
fn provide(qemu: &Qemu) -> Outcome {
    programs::provide(&qemu.program, &qemu.package)?;
    ["ssh", "ssh-keygen", "ssh-keyscan", "scp"]
        .into_iter()
        .try_for_each(|program| programs::provide(program, "openssh-client"))
}

fn try_out(profile: &Profile, qemu: &Qemu, steps: &[Step]) -> Outcome {
    provide(qemu)?;
    let run = |(name, step): &Step| {
        let begun = Instant::now();
        eprintln!("{}: {name}", profile.name);
        step(profile, qemu).map_err(|TaskError(why)| TaskError(format!("{name}: {why}")))?;
        eprintln!("{}: {name} took {:.0?}", profile.name, begun.elapsed());
        Ok::<(), TaskError>(())
    };
    let Some((first, others)) = steps.split_first() else { return Ok(()) };
    run(first)?;
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME.min(others.len()) {
            scope.spawn(|| {
                while let Some(step) = others.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(TaskError(why)) = run(step) {
                        // No further step begins, but steps that are already running finish.
                        next.store(others.len(), Ordering::Relaxed);
                        failures.lock().unwrap_or_else(PoisonError::into_inner).push(why);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failures.is_empty() { Ok(()) } else { Err(TaskError(failures.join("\n"))) }
}

/// Creates a directory for a step, the SSH key of a user, and contents with the demo image.
fn prepare(profile: &Profile, step: &str) -> Result<(PathBuf, PathBuf, Contents), TaskError> {
    let directory = work(&format!("boards/{}/{step}", profile.name))?;
    let key = directory.join("key");
    make_key(&key)?;
    let archive = directory.join("demo.oci.tar");
    demo_for(profile)?.write_oci_archive(&archive)?;
    let contents = Contents {
        archives: vec![archive],
        ssh_keys: vec![key.with_extension("pub")],
        ..Contents::default()
    };
    Ok((directory, key, contents))
}

/// Generates a pair of SSH keys, and replaces existing ones.
fn make_key(key: &Path) -> Outcome {
    fs::create_dir_all(key.parent().ok_or("a key lies in a directory")?)?;
    let _ = fs::remove_file(key);
    run_command(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(key))
}

/// The text on the console when the pod `baked` of an image runs, and at no other time.
const STARTED: &str = "started default/baked/app#";

/// Writes the manifest of a pod that prints `baked` and keeps running.
fn baked(directory: &Path) -> Result<PathBuf, TaskError> {
    let pod = directory.join("baked.yaml");
    fs::write(&pod, manifest::pod("baked", "print baked then sleep"))?;
    Ok(pod)
}

fn try_ssh(profile: &Profile, qemu: &Qemu) -> Outcome {
    let (directory, key, mut contents) = prepare(profile, "ssh")?;
    contents.pods.push(baked(&directory)?);
    let config = directory.join("nodlet.conf");
    let member = push::member_key(&directory);
    make_key(&member)?;
    let member = fs::read_to_string(member.with_extension("pub"))?;
    let text =
        format!("# Made for this test.\nname = gate-17\nlabel = site=hall-3\npush-key = {member}end\n");
    fs::write(&config, text)?;
    contents.config = Some(config);
    let image = build(profile, &contents, &directory)?;
    refused::try_out(profile, &contents, &image, &directory)?;
    use_over_ssh(profile, Board::boot(qemu, profile.memory_mib, &image, &directory, &key)?, &directory)
}

/// Like [`prepare`], with the pod `baked`. The key belongs to the board's identity, not to the image.
fn prepare_with_identity(profile: &Profile, step: &str) -> Result<(PathBuf, PathBuf, Contents), TaskError> {
    let (directory, key, mut contents) = prepare(profile, step)?;
    contents.pods.push(baked(&directory)?);
    contents.ssh_keys.clear();
    let config = directory.join("nodlet.conf");
    fs::write(&config, disk::first_identity(&key)?)?;
    contents.config = Some(config);
    Ok((directory, key, contents))
}

fn try_disk(profile: &Profile, qemu: &Qemu) -> Outcome {
    let profile = &Profile { update: disk::update_rules(), ..profile.clone() };
    let (directory, key, contents) = prepare_with_identity(profile, "disk-test")?;
    let image = build(profile, &contents, &directory)?;
    if image.disk.is_none() {
        eprintln!("{}: its profile names no disk: none is booted", profile.name);
        return Ok(());
    }
    let files: Vec<&PathBuf> = image.files().collect();
    let read = || files.iter().map(fs::read).collect::<Result<Vec<_>, _>>();
    let first = read()?;
    build(profile, &contents, &directory)?;
    if let Some((file, _)) = files.iter().zip(first.iter().zip(read()?)).find(|(_, (old, new))| *old != new) {
        return Err(TaskError(format!("{}: two images of the same contents differ", file.display())));
    }
    disk::try_out(profile, qemu, &image, &directory, &key)
}

fn try_ten_pods(profile: &Profile, qemu: &Qemu) -> Outcome {
    let Some(memory_mib) = qemu.ten_pods_mib else { return Ok(()) };
    let (directory, key, mut contents) = prepare(profile, "ten-pods")?;
    let small = Profile { memory_mib, ..profile.clone() };
    for number in 0..10 {
        let pod = directory.join(format!("small-{number}.yaml"));
        fs::write(&pod, manifest::pod(&format!("small-{number}"), "print small then sleep"))?;
        contents.pods.push(pod);
    }
    let image = build(&small, &contents, &directory)?;
    run_ten_pods(&small, Board::boot(qemu, memory_mib, &image, &directory, &key)?)
}

/// Runs a pod as the stock manifest of node-exporter has it, which reads the board's root and all of its mounts, and
/// checks that a later mount of the board reaches it.
fn watch_mounts(board: &mut Board) -> Outcome {
    let container = manifest::container(
        "node-exporter",
        "print watching then wait /host/root/tmp/later/seen then print seen then sleep",
        "securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, runAsUser: 65534, \
           capabilities: {drop: [ALL], add: [SYS_TIME]}}\n\
         volumeMounts:\n\
         - {name: sys, mountPath: /host/sys, mountPropagation: HostToContainer, readOnly: true}\n\
         - {name: root, mountPath: /host/root, mountPropagation: HostToContainer, readOnly: true}",
    );
    let spec = "hostNetwork: true\nhostPID: true\n\
                volumes: [{name: sys, hostPath: {path: /sys}}, {name: root, hostPath: {path: /}}]";
    let pod = manifest::pod_of("node-exporter", &[container], spec);
    board.expect("nodlet apply -f -", &pod, "pod/node-exporter created\n")?;
    let has_log = |expected: &'static str| {
        move |board: &mut Board| Ok(board.output("nodlet logs node-exporter")? == expected)
    };
    board.wait_for("the pod that watches mounts to run", has_log("watching\n"))?;
    let mount = "mkdir /tmp/later && mount -t tmpfs later /tmp/later && touch /tmp/later/seen";
    board.expect(mount, "", "")?;
    board.wait_for("the later mount to reach the pod", has_log("watching\nseen\n"))?;
    board.expect("nodlet delete pod node-exporter >/dev/null && umount /tmp/later", "", "")
}

/// The directory of the agent in `/proc`, for the board's shell.
const AGENT: &str =
    "$(busybox dirname $(busybox grep -l '[a]gent' /proc/[0-9]*/cmdline | busybox head -n 1))";

/// Checks the limits of open files: process 1 has that of the kernel, the agent some for each pod, and containers, which
/// run the demo image, the default of `--default-ulimit`, which is above the limit of everything that started them.
fn check_limits_of_open_files(board: &Board, pod: &str) -> Outcome {
    let in_pod = |process: &str| format!("nodlet exec {pod} -- /bin/demo cat /proc/{process}/limits");
    for (what, command, expected) in [
        ("process 1", "cat /proc/1/limits".to_owned(), ["1024", "4096"]),
        ("the agent", format!("cat {AGENT}/limits"), ["65536", "65536"]),
        ("the first process of a container", in_pod("1"), ["1048576", "1048576"]),
        ("an executed process of a container", in_pod("self"), ["1048576", "1048576"]),
    ] {
        let output = board.ssh(&command, "")?;
        let limits = text(&output.stdout);
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap_or_default();
        let found: Vec<&str> = line.split_whitespace().take(2).collect();
        if found != expected {
            let why =
                format!("the soft and hard limit of open files of {what} is {found:?}, not {expected:?}");
            return Err(board.failed(&format!("{why}: {limits}{}", text(&output.stderr))));
        }
    }
    Ok(())
}

/// Reads the log of the image's pod, applies another pod, and turns the board off.
fn use_over_ssh(profile: &Profile, mut board: Board, directory: &Path) -> Outcome {
    board.wait_for("the pod of the image to run", |board| {
        let pods = board.ssh("nodlet get pods", "")?;
        Ok(pods.status.success() && text(&pods.stdout).contains("Running"))
    })?;
    let (began, had) = (board.began("demo")?, board.kib("/proc/meminfo", "MemAvailable:")?);
    board.wait_for("the log of the pod of the image", |board| {
        Ok(board.output("nodlet logs baked")? == "baked\n")
    })?;
    board.expect("cat /proc/sys/kernel/hostname", "", "gate-17\n")?;
    board.expect("nodlet get nodes -l site=hall-3 -o name", "", "node/gate-17\n")?;
    board.expect("cat /proc/sys/user/max_mnt_namespaces", "", "1048576\n")?;
    board.expect(
        "nodlet apply -f -",
        &manifest::pod("pushed", "print pushed then sleep"),
        "pod/pushed created\n",
    )?;
    board.wait_for("the pushed pod to write its log", |board| {
        Ok(board.output("nodlet logs pushed")? == "pushed\n")
    })?;
    board.expect("nodlet exec pushed -- /bin/demo cat /srv/index.html", "", "hello from the image\n")?;
    check_limits_of_open_files(&board, "pushed")?;
    watch_mounts(&mut board)?;
    push::try_out(profile, board.port, &board.key, directory)?;
    ssh::refuse_others(&board, directory)?;
    ssh::kill_services(&mut board)?;
    let available = board.kib("/proc/meminfo", "MemAvailable:")?;
    let init = board.kib("/proc/1/smaps_rollup", "Pss:")?;
    // Two pods run, and must end when the board goes down.
    board.ssh("nodlet poweroff", "")?;
    board.wait_until_down("powering off")?;
    eprintln!(
        "{}: the pod of the image began {began:.1?} after the kernel's entry, and of {} MiB {had} KiB were \
         available; at the end {available} KiB; process 1 took {init} KiB",
        profile.name, profile.memory_mib
    );
    Ok(())
}

/// Runs ten pods of the image on a board with little memory. The board is named after its network card.
fn run_ten_pods(profile: &Profile, mut board: Board) -> Outcome {
    board.wait_for("ten running pods", |board| {
        let pods = board.output("nodlet get pods --no-headers")?;
        Ok(pods.lines().filter(|line| line.contains("1/1") && line.contains("Running")).count() == 10)
    })?;
    let began = board.began("demo")?;
    board.expect("cat /proc/sys/kernel/hostname", "", &format!("{}\n", default_name(profile)))?;
    let available = board.kib("/proc/meminfo", "MemAvailable:")?;
    board.ssh("nodlet poweroff", "")?;
    board.wait_until_down("powering off")?;
    eprintln!(
        "{}: with {} MiB, the last of ten pods of the image began {began:.1?} after the kernel's entry, and \
         {available} KiB were available",
        profile.name, profile.memory_mib
    );
    Ok(())
}

/// The name of a board whose identity has none: made from its profile and its network card, because an
/// emulated board has no serial number.
fn default_name(profile: &Profile) -> String {
    format!("{}-525400123456", profile.name.replace('_', "-"))
}

/// The demo image for the board's processor.
fn demo_for(profile: &Profile) -> Result<Image, TaskError> {
    let mut build = alone(|| cross::cargo_for_triple(&profile.target))?;
    build.args(["rustc", "--quiet", "--package", "nodlet-tests", "--bin", "demo", "--message-format=json"]);
    // Debug information is most of the program, and an image in RAM has no space for it.
    build.args(["--", "-Cstrip=symbols"]);
    let program = fs::read(alone(|| executable(build))?)?;
    Ok(Image::demo(DEMO, &program).architecture(profile.architecture()))
}

/// Builds a single program with cargo.
fn executable(mut build: Command) -> Result<PathBuf, TaskError> {
    eprintln!("Building without further output, some minutes the first time");
    let built = cross::executables(&mut build)?.pop();
    Ok(built.ok_or("cargo names no program that it built")?.path)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\r', "")
}

#[cfg(test)]
mod tests {
    use super::{OF_CHECK, STEPS, TASK};

    #[test]
    fn the_steps_of_the_check_exist() {
        assert!(OF_CHECK.iter().all(|name| STEPS.iter().any(|(step, _)| step == name)));
    }

    #[test]
    fn the_usage_names_every_step() {
        let steps: Vec<&str> = STEPS.iter().map(|(step, _)| *step).collect();
        let usage = TASK.usage();
        assert!(usage.contains(&format!("[--only {}]...", steps.join("|"))), "{usage}");
    }
}
