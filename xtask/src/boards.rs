//! `cargo xtask boards`: boots the emulated boards of `board/profiles` with a pod in their image, and
//! uses them as their owner would, over SSH.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nodlet_tests::image::Image;
use nodlet_tests::manifest;

use crate::image::{self, Contents, DeviceImage};
use crate::profile::{self, Profile, Qemu};
use crate::{Failure, Outcome, cross, demo_image, line_of, misused, run as run_command, work};

mod disk;
mod push;
mod update;
mod watchdog;

/// An emulated board is some twenty times slower than a real one, and this machine may be busy.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    if arguments.iter().any(|argument| argument.starts_with('-')) {
        return Err(misused("boards"));
    }
    let names = if arguments.is_empty() { profile::known()? } else { arguments.to_vec() };
    for name in names {
        let profile = profile::get(&name)?;
        match &profile.qemu {
            Some(qemu) => try_out(&profile, qemu)?,
            None if arguments.is_empty() => {}
            None => return Err(Failure(format!("no emulator has the board {name}"))),
        }
    }
    Ok(())
}

/// The emulated board with this machine's processor, as a step of the check.
pub(crate) fn check() -> Outcome {
    let host = cross::host()?.triple;
    for name in profile::known()? {
        let profile = profile::get(&name)?;
        if let (true, Some(qemu)) = (profile.target == host, &profile.qemu) {
            return try_out(&profile, qemu);
        }
    }
    Err(Failure(format!("no profile in board/profiles is for {host} and QEMU")))
}

/// All that is tried out on an emulated board.
fn try_out(profile: &Profile, qemu: &Qemu) -> Outcome {
    let directory = work(&format!("boards/{}/test", profile.name))?;
    let key = directory.join("key");
    let _ = fs::remove_file(&key);
    run_command(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key))?;
    let archive = directory.join("demo.oci.tar");
    demo_for(profile)?.write_oci_archive(&archive)?;
    let pod = directory.join("baked.yaml");
    fs::write(&pod, manifest::pod("baked", "print baked then sleep"))?;
    let config = directory.join("nodlet.conf");
    fs::write(&config, "# Made for this test.\nname = gate-17\nlabel = site=hall-3\n")?;
    let mut contents = Contents {
        pods: vec![pod],
        archives: vec![archive],
        ssh_keys: vec![key.with_extension("pub")],
        config: Some(config),
        firmware: None,
    };
    let image = image::build(profile, &contents)?;
    use_over_ssh(profile, Board::boot(qemu, profile.memory_mib, &image, &directory, &key)?, &directory)?;
    if let (Some(disk), Some(firmware)) = (&image.disk, &qemu.firmware) {
        let first = fs::read(disk)?;
        image::build(profile, &contents)?;
        if fs::read(disk)? != first {
            return Err(Failure(format!("{}: two images of the same contents differ", profile.name)));
        }
        disk::try_out(profile, qemu, firmware, disk, &directory, &key)?;
    }
    if let Some(memory_mib) = qemu.ten_pods_mib {
        let small = Profile { memory_mib, ..profile.clone() };
        contents.config = None;
        contents.pods.clear();
        for number in 0..10 {
            let pod = directory.join(format!("small-{number}.yaml"));
            fs::write(&pod, manifest::pod(&format!("small-{number}"), "print small then sleep"))?;
            contents.pods.push(pod);
        }
        let image = image::build(&small, &contents)?;
        run_ten_pods(&small, Board::boot(qemu, memory_mib, &image, &directory, &key)?)?;
    }
    update::try_out(&profile.name)?;
    watchdog::try_out(profile, qemu)
}

/// Reads what the pod of the image writes, gives the board another pod, and turns it off.
fn use_over_ssh(profile: &Profile, mut board: Board, directory: &Path) -> Outcome {
    board.wait_for("the pod of the image to run", |board| {
        let pods = board.ssh("nodlet get pods", "")?;
        Ok(pods.status.success() && text(&pods.stdout).contains("Running"))
    })?;
    let booted = board.begun.elapsed();
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
    board.wait_for("the board to go off", |board| Ok(board.emulator.try_wait()?.is_some()))?;
    eprintln!(
        "{}: pods ran and the board went off; the first was seen running after {booted:.1?}; of {} MiB, \
         {available} KiB were available; process 1 took {init} KiB",
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
    let booted = board.begun.elapsed();
    board.expect("cat /proc/sys/kernel/hostname", "", &format!("{}-525400123456\n", profile.name))?;
    let available = board.kib("/proc/meminfo", "MemAvailable:")?;
    board.ssh("nodlet poweroff", "")?;
    board.wait_for("the board to go off", |board| Ok(board.emulator.try_wait()?.is_some()))?;
    eprintln!(
        "{}: with {} MiB, ten pods of the image were seen running after {booted:.1?}, and {available} KiB \
         were available",
        profile.name, profile.memory_mib
    );
    Ok(())
}

/// The demo image for the board's processor.
fn demo_for(profile: &Profile) -> Result<Image, Failure> {
    let mut build = cross::cargo_for_triple(&profile.target)?;
    build.args(["build", "--quiet", "--package", "nodlet-tests", "--bin", "demo", "--message-format=json"]);
    let program = fs::read(executable(build)?)?;
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
        let medium: [&OsStr; 6] = [
            "-kernel".as_ref(),
            image.kernel.as_ref(),
            "-initrd".as_ref(),
            image.initramfs.as_ref(),
            "-append".as_ref(),
            &OsString::from(fs::read_to_string(&image.command_line)?.trim()),
        ];
        Board::boot_from(qemu, memory_mib, &medium, directory, key)
    }

    /// Boots what these arguments of the emulator name.
    fn boot_from(
        qemu: &Qemu,
        memory_mib: u32,
        medium: &[&OsStr],
        directory: &Path,
        key: &Path,
    ) -> Result<Board, Failure> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let console = directory.join("console.log");
        let mut emulator = Command::new(&qemu.program);
        emulator
            .args(["-accel", "tcg", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            .args(&qemu.arguments)
            .args(["-m", &memory_mib.to_string(), "-device", "virtio-rng-pci"])
            // Not `-nic`: not every machine makes a card of that.
            .args(["-netdev", &format!("user,id=net0,hostfwd=tcp:127.0.0.1:{port}-:22")])
            .args(["-device", "virtio-net-pci,netdev=net0,mac=52:54:00:12:34:56"])
            .args(["-serial", &format!("file:{}", console.display())])
            .args(medium)
            .stdin(Stdio::null());
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
