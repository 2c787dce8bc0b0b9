//! `cargo xtask boards`: boots the emulated boards of `board/profiles` with a pod in their image, and
//! uses them as their owner would, over SSH.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nodlet_tests::image::Image;
use nodlet_tests::manifest;

use crate::image::{self, Contents, DeviceImage};
use crate::profile::{self, Profile, Qemu};
use crate::{
    Failure, Outcome, check, cross, debian, demo_image, guest, line_of, misused, programs,
    run as run_command, work,
};

pub(crate) mod demo;
mod disk;
mod network;
pub(crate) mod peers;
mod push;
mod refused;
mod update;
mod watchdog;

/// An emulated board is some twenty times slower than a real one, and this machine may be busy.
const PATIENCE: Duration = Duration::from_secs(300);

/// A step: its name, and what it does with an emulated board.
type Step = (&'static str, fn(&Profile, &Qemu) -> Outcome);

/// What is tried out on each emulated board. The first builds all that the others share.
const STEPS: &[Step] = &[
    ("ssh", try_ssh),
    // The longest begins first.
    ("watchdog", watchdog::try_out),
    ("disk", try_disk),
    ("ten-pods", try_ten_pods),
    ("network", network::try_out),
    ("update", update::try_out),
    ("demo", demo::try_out),
];

/// Steps that run at a time: an emulated board takes one processor.
const AT_A_TIME: usize = 2;

/// Held by what builds or fetches: steps that run at a time share what is built.
static BUILDS: Mutex<()> = Mutex::new(());

/// Builds or fetches, while no other step does.
fn alone<T>(build: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // A step that panicked has left nothing half done that cargo does not finish.
    let _guard = BUILDS.lock().unwrap_or_else(PoisonError::into_inner);
    build()
}

/// Builds the image of a board in the directory of a step.
fn build(profile: &Profile, contents: &Contents, directory: &Path) -> Result<DeviceImage, Failure> {
    alone(|| image::build(profile, contents, directory))
}

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let mut names = Vec::new();
    let mut steps = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--only" => steps.push(step(words.next().ok_or_else(|| misused("boards"))?)?),
            option if option.starts_with('-') => return Err(misused("boards")),
            name => names.push(name.to_owned()),
        }
    }
    if steps.is_empty() {
        steps.extend_from_slice(STEPS);
    }
    let of_all = names.is_empty();
    for name in if of_all { profile::known()? } else { names } {
        let profile = profile::get(&name)?;
        match &profile.qemu {
            Some(qemu) => try_out(&profile, qemu, &steps)?,
            None if of_all => {}
            None => return Err(Failure(format!("no emulator has the board {name}"))),
        }
    }
    Ok(())
}

fn step(name: &str) -> Result<Step, Failure> {
    STEPS.iter().find(|(step, _)| *step == name).copied().ok_or_else(|| {
        let known: Vec<&str> = STEPS.iter().map(|(step, _)| *step).collect();
        Failure(format!("there is no step {name:?}; there are {}", known.join(", ")))
    })
}

/// Every step on the emulated board with this machine's processor, as a step of the check; with every
/// fourth commit some of the guests' tests with another processor besides, which the commit chooses.
pub(crate) fn check() -> Outcome {
    let host = cross::host()?.triple;
    for name in profile::known()? {
        let profile = profile::get(&name)?;
        if let (true, Some(qemu)) = (profile.target == host, &profile.qemu) {
            try_out(&profile, qemu, STEPS)?;
            let number = check::number();
            return if number.is_multiple_of(4) { guest::foreign(number / 4) } else { Ok(()) };
        }
    }
    Err(Failure(format!("no profile in board/profiles is for {host} and QEMU")))
}

fn try_out(profile: &Profile, qemu: &Qemu, steps: &[Step]) -> Outcome {
    programs::provide(&qemu.program, &qemu.package)?;
    for program in ["ssh", "ssh-keygen", "scp"] {
        programs::provide(program, "openssh-client")?;
    }
    let run = |(name, step): &Step| {
        let begun = Instant::now();
        eprintln!("{}: {name}", profile.name);
        step(profile, qemu).map_err(|Failure(why)| Failure(format!("{name}: {why}")))?;
        eprintln!("{}: {name} took {:.0?}", profile.name, begun.elapsed());
        Ok::<(), Failure>(())
    };
    let Some((first, others)) = steps.split_first() else { return Ok(()) };
    run(first)?;
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME.min(others.len()) {
            scope.spawn(|| {
                while let Some(step) = others.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(Failure(why)) = run(step) {
                        // No further step begins; one that runs beside this is waited for.
                        next.store(others.len(), Ordering::Relaxed);
                        failures.lock().unwrap_or_else(PoisonError::into_inner).push(why);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failures.is_empty() { Ok(()) } else { Err(Failure(failures.join("\n"))) }
}

/// A directory for a step, a key of somebody who may log in, and contents with the demo image.
fn prepare(profile: &Profile, step: &str) -> Result<(PathBuf, PathBuf, Contents), Failure> {
    let directory = work(&format!("boards/{}/{step}", profile.name))?;
    let key = directory.join("key");
    let _ = fs::remove_file(&key);
    run_command(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key))?;
    let archive = directory.join("demo.oci.tar");
    demo_for(profile)?.write_oci_archive(&archive)?;
    let contents = Contents {
        archives: vec![archive],
        ssh_keys: vec![key.with_extension("pub")],
        ..Contents::default()
    };
    Ok((directory, key, contents))
}

/// A pod that says `baked` and goes on.
fn baked(directory: &Path) -> Result<PathBuf, Failure> {
    let pod = directory.join("baked.yaml");
    fs::write(&pod, manifest::pod("baked", "print baked then sleep"))?;
    Ok(pod)
}

fn try_ssh(profile: &Profile, qemu: &Qemu) -> Outcome {
    let (directory, key, mut contents) = prepare(profile, "ssh")?;
    contents.pods.push(baked(&directory)?);
    let config = directory.join("nodlet.conf");
    fs::write(&config, "# Made for this test.\nname = gate-17\nlabel = site=hall-3\n")?;
    contents.config = Some(config);
    let image = build(profile, &contents, &directory)?;
    refused::try_out(profile, &contents, &image, &directory)?;
    use_over_ssh(profile, Board::boot(qemu, profile.memory_mib, &image, &directory, &key)?, &directory)
}

fn try_disk(profile: &Profile, qemu: &Qemu) -> Outcome {
    let (directory, key, mut contents) = prepare(profile, "disk-test")?;
    contents.pods.push(baked(&directory)?);
    let image = build(profile, &contents, &directory)?;
    let (Some(disk), Some(firmware)) = (&image.disk, &qemu.firmware) else {
        eprintln!("{}: its profile names no disk and firmware: no disk is booted", profile.name);
        return Ok(());
    };
    let first = fs::read(disk)?;
    build(profile, &contents, &directory)?;
    if fs::read(disk)? != first {
        return Err(Failure(format!("{}: two images of the same contents differ", profile.name)));
    }
    disk::try_out(profile, qemu, firmware, disk, &directory, &key)
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

/// Reads what the pod of the image writes, gives the board another pod, and turns it off.
fn use_over_ssh(profile: &Profile, mut board: Board, directory: &Path) -> Outcome {
    board.wait_for("the pod of the image to run", |board| {
        let pods = board.ssh("nodlet get pods", "")?;
        Ok(pods.status.success() && text(&pods.stdout).contains("Running"))
    })?;
    let (began, had) = (board.began("demo")?, board.kib("/proc/meminfo", "MemAvailable:")?);
    board.wait_for("the log of the pod of the image", |board| {
        Ok(text(&board.ssh("nodlet logs baked", "")?.stdout) == "baked\n")
    })?;
    board.expect("cat /proc/sys/kernel/hostname", "", "gate-17\n")?;
    board.expect("nodlet get nodes -l site=hall-3 -o name", "", "node/gate-17\n")?;
    board.expect(
        "nodlet apply -f -",
        &manifest::pod("pushed", "print pushed then sleep"),
        "pod/pushed created\n",
    )?;
    board.wait_for("the pushed pod to write its log", |board| {
        Ok(text(&board.ssh("nodlet logs pushed", "")?.stdout) == "pushed\n")
    })?;
    board.expect("nodlet exec pushed -- /bin/demo cat /srv/index.html", "", "hello from the image\n")?;
    push::try_out(board.port, &board.key, demo_for(profile)?, directory)?;
    let available = board.kib("/proc/meminfo", "MemAvailable:")?;
    let init = board.kib("/proc/1/smaps_rollup", "Pss:")?;
    // Two pods run: that they end is part of going down.
    board.ssh("nodlet poweroff", "")?;
    board.wait_until_down("powering off")?;
    eprintln!(
        "{}: the pod of the image began {began:.1?} after the kernel's entry, and of {} MiB {had} KiB were \
         available; at the end {available} KiB; process 1 took {init} KiB",
        profile.name, profile.memory_mib
    );
    Ok(())
}

/// Ten pods of the image run on a board with little memory; it is called after its network card.
fn run_ten_pods(profile: &Profile, mut board: Board) -> Outcome {
    board.wait_for("ten running pods", |board| {
        let pods = text(&board.ssh("nodlet get pods --no-headers", "")?.stdout);
        Ok(pods.lines().filter(|line| line.contains("1/1") && line.contains("Running")).count() == 10)
    })?;
    let began = board.began("demo")?;
    board.expect(
        "cat /proc/sys/kernel/hostname",
        "",
        &format!("{}-525400123456\n", profile.name.replace('_', "-")),
    )?;
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

/// The demo image for the board's processor.
fn demo_for(profile: &Profile) -> Result<Image, Failure> {
    let mut build = alone(|| cross::cargo_for_triple(&profile.target))?;
    build.args(["rustc", "--quiet", "--package", "nodlet-tests", "--bin", "demo", "--message-format=json"]);
    // What is for debuggers is most of the program, and an image in RAM has no room for it.
    build.args(["--", "-Cstrip=symbols"]);
    let program = fs::read(alone(|| executable(build))?)?;
    let architecture = match profile.debian.as_str() {
        "armhf" => "arm",
        processor => processor,
    };
    Ok(Image::demo(demo_image::REFERENCE, &program).architecture(architecture))
}

/// The one program that a build by cargo makes and names in JSON.
fn executable(mut build: Command) -> Result<PathBuf, Failure> {
    eprintln!("$ {}", line_of(&build));
    let output = build.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(Failure(format!("{}: {}", line_of(&build), output.status)));
    }
    let program = text(&output.stdout).lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    Ok(program.ok_or("cargo names no program that it built")?)
}

/// A medium with the image of a board, and the firmware that boots it.
struct Medium {
    /// Arguments of the emulator.
    arguments: [OsString; 4],
    memory_mib: u32,
}

/// Writes the disk of an image to a medium as large as the profile says; `None` of a board whose profile
/// names no disk or no firmware.
fn flash(
    profile: &Profile,
    qemu: &Qemu,
    image: &DeviceImage,
    directory: &Path,
) -> Result<Option<Medium>, Failure> {
    let (Some(disk), Some(storage), Some(firmware)) = (&image.disk, &profile.storage, &qemu.firmware) else {
        return Ok(None);
    };
    let file = alone(|| debian::package(&firmware.package, &profile.debian))?.join(&firmware.file);
    let medium = directory.join("medium");
    fs::copy(disk, &medium)?;
    File::options().write(true).open(&medium)?.set_len(storage.medium_mib << 20)?;
    let mut drive = OsString::from("if=virtio,format=raw,cache=writethrough,file=");
    drive.push(&medium);
    Ok(Some(Medium {
        arguments: [OsString::from(&firmware.option), file.into(), "-drive".into(), drive],
        memory_mib: profile.memory_mib.max(image::LEAST_DISK_MEMORY_MIB),
    }))
}

impl Medium {
    fn boot(&self, qemu: &Qemu, directory: &Path, key: &Path) -> Result<Board, Failure> {
        let arguments = self.arguments.each_ref().map(OsString::as_os_str);
        Board::boot_from(qemu, self.memory_mib, &arguments, directory, key, Some(LINK))
    }
}

/// The network link of a board, as the emulator names it.
const LINK: &str = "net0";

/// A board that runs.
struct Board {
    emulator: Child,
    begun: Instant,
    console: PathBuf,
    key: PathBuf,
    port: u16,
}

impl Board {
    fn boot(
        qemu: &Qemu,
        memory_mib: u32,
        image: &DeviceImage,
        directory: &Path,
        key: &Path,
    ) -> Result<Board, Failure> {
        Board::boot_with(qemu, memory_mib, image, directory, key, Some(LINK), &[])
    }

    /// With a network link of this name in the emulator, if any, and more arguments of it.
    fn boot_with(
        qemu: &Qemu,
        memory_mib: u32,
        image: &DeviceImage,
        directory: &Path,
        key: &Path,
        link: Option<&str>,
        arguments: &[String],
    ) -> Result<Board, Failure> {
        let command_line = OsString::from(fs::read_to_string(&image.command_line)?.trim());
        let mut medium: Vec<&OsStr> = vec![
            "-kernel".as_ref(),
            image.kernel.as_ref(),
            "-initrd".as_ref(),
            image.initramfs.as_ref(),
            "-append".as_ref(),
            &command_line,
        ];
        medium.extend(arguments.iter().map(OsStr::new));
        Board::boot_from(qemu, memory_mib, &medium, directory, key, link)
    }

    /// How long after the kernel's entry the youngest process of this name began: the kernel counts from
    /// there, in hundredths of a second.
    fn began(&self, name: &str) -> Result<Duration, Failure> {
        let find =
            format!("for p in /proc/[0-9]*; do [ \"$(cat $p/comm)\" = {name} ] && cat $p/stat; done; true");
        let found = text(&self.ssh(&find, "")?.stdout);
        // The name, in brackets, is the second word of a line, and the time the 22nd.
        let ticks = |line: &str| line.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse::<u64>().ok();
        let youngest = found.lines().filter_map(ticks).max();
        let ticks = youngest.ok_or_else(|| self.failed(&format!("no process {name}: {found:?}")))?;
        Ok(Duration::from_millis(ticks * 10))
    }

    /// Boots what these arguments of the emulator name.
    fn boot_from(
        qemu: &Qemu,
        memory_mib: u32,
        medium: &[&OsStr],
        directory: &Path,
        key: &Path,
        link: Option<&str>,
    ) -> Result<Board, Failure> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let console = directory.join("console.log");
        let mut emulator = Command::new(&qemu.program);
        emulator
            .args(["-accel", "tcg", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            .args(&qemu.arguments)
            .args(["-m", &memory_mib.to_string(), "-device", "virtio-rng-pci"])
            .args(["-serial", &format!("file:{}", console.display())])
            .args(medium)
            .stdin(Stdio::null());
        // Not `-nic`: not every machine makes a card of that.
        match link {
            Some(link) => emulator
                .args(["-netdev", &format!("user,id={link},hostfwd=tcp:127.0.0.1:{port}-:22")])
                .args(["-device", &format!("virtio-net-pci,netdev={link},mac=52:54:00:12:34:56")]),
            None => emulator.args(["-nic", "none"]),
        };
        // SAFETY: one system call, which is async-signal-safe. A board must not outlive its test.
        unsafe {
            emulator.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?))
        };
        let emulator = emulator.spawn().map_err(|error| {
            format!("failed to run {}: {error}; Debian's package {} has it", qemu.program, qemu.package)
        })?;
        Ok(Board { emulator, begun: Instant::now(), console, key: key.to_owned(), port })
    }

    /// Runs a command line on the board.
    fn ssh(&self, command: &str, input: impl AsRef<[u8]>) -> Result<Output, Failure> {
        let mut ssh = Command::new("ssh")
            .args([
                "-q",
                "-F",
                "none",
                "-o",
                "StrictHostKeyChecking=no",
                "-o",
                "UserKnownHostsFile=/dev/null",
            ])
            .args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-p", &self.port.to_string(), "-i"])
            .arg(&self.key)
            .args(["root@127.0.0.1", command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = ssh.stdin.take() {
            // A board that is not up yet takes none.
            let _ = std::io::Write::write_all(&mut stdin, input.as_ref());
        }
        Ok(ssh.wait_with_output()?)
    }

    /// The number of a line of a file of the board, in KiB.
    fn kib(&self, file: &str, line: &str) -> Result<u64, Failure> {
        let output = text(&self.ssh(&format!("cat {file}"), "")?.stdout);
        let found = output.lines().find_map(|found| found.strip_prefix(line)?.split_whitespace().next());
        found
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| self.failed(&format!("{file} has no line {line}: {output:?}")))
    }

    /// Runs a command line on the board and compares what it writes.
    fn expect(&self, command: &str, input: &str, expected: &str) -> Outcome {
        let output = self.ssh(command, input)?;
        if output.status.success() && text(&output.stdout) == expected {
            return Ok(());
        }
        Err(self.failed(&format!(
            "`{command}` wrote {:?}, not {expected:?}; {}",
            text(&output.stdout),
            text(&output.stderr)
        )))
    }

    fn wait_for(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&mut Board) -> Result<bool, Failure>,
    ) -> Outcome {
        let end = Instant::now() + PATIENCE;
        while !condition(self)? {
            if Instant::now() > end {
                return Err(self.failed(&format!("no {what} in {PATIENCE:?}")));
            }
            if let Some(status) = self.emulator.try_wait()? {
                return Err(self.failed(&format!("no {what}: the emulator ended, {status}")));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// Waits until the emulator has ended, and requires that process 1 did that: a board that panics or
    /// that its watchdog resets goes down as well.
    fn wait_until_down(&mut self, said: &str) -> Outcome {
        self.wait_for("the board to go down", |board| Ok(board.emulator.try_wait()?.is_some()))?;
        let console = text(&fs::read(&self.console)?);
        if console.contains(&format!("nodlet init: {said}")) && !console.contains("Kernel panic") {
            return Ok(());
        }
        Err(self.failed(&format!("the board went down, and process 1 did not report `{said}`")))
    }

    /// Whether the console had this from process 1.
    fn require_said(&self, words: &str) -> Outcome {
        let console = text(&fs::read(&self.console)?);
        let said = console.lines().any(|line| line.contains("nodlet init: ") && line.contains(words));
        if said { Ok(()) } else { Err(self.failed(&format!("process 1 did not report `{words}`"))) }
    }

    fn failed(&self, why: &str) -> Failure {
        let said = fs::read(&self.console).unwrap_or_default();
        Failure(format!("{why}; the console said:\n{}", text(&said)))
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let _ = self.emulator.kill();
        let _ = self.emulator.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\r', "")
}
