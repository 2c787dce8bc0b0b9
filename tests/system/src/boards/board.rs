//! A board under QEMU: boots it, and runs commands on it over SSH.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nodlet_build::debian;
use nodlet_build::task::{Outcome, Signal, TaskError, end_with_us};
use nodlet_dist::image::{self, DeviceImage};
use nodlet_dist::profile::{Profile, Qemu};
use nodlet_tests::Namespace;

use super::{alone, text};

/// How long a condition is waited for while the board's console shows nothing new: an emulated board is some
/// twenty times slower than a real one, and this machine may be busy.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);

/// How long a condition is waited for in all: an agent that fails again and again writes to the console for ever.
const LONGEST: Duration = Duration::from_secs(40 * 60);

/// The lines of a console that an error shows; the file has all.
const CONSOLE_LINES: usize = 40;

/// A medium with the image of a board, and the firmware that boots from it.
pub(super) struct Medium {
    pub(super) file: PathBuf,
    /// The emulator's arguments for the firmware.
    firmware: [OsString; 2],
    memory_mib: u32,
}

/// Writes the disk of an image to a medium of the size in the profile. Returns `None` for a board whose
/// profile has no disk or no firmware.
pub(super) fn flash(
    profile: &Profile,
    qemu: &Qemu,
    image: &DeviceImage,
    directory: &Path,
) -> Result<Option<Medium>, TaskError> {
    let (Some(disk), Some(storage), Some(firmware)) = (&image.disk, &profile.storage, &qemu.firmware) else {
        return Ok(None);
    };
    let loader = alone(|| debian::package(&firmware.package, &profile.debian))?.join(&firmware.file);
    let medium = Medium {
        file: directory.join("medium"),
        firmware: [OsString::from(&firmware.option), loader.into()],
        memory_mib: profile.memory_mib.max(image::LEAST_DISK_MEMORY_MIB),
    };
    fs::copy(disk, &medium.file)?;
    medium.resize(storage.medium_mib << 20)?;
    Ok(Some(medium))
}

impl Medium {
    /// The medium in another place: a file, or what the emulator takes for one.
    pub(super) fn at(&self, place: impl Into<PathBuf>) -> Medium {
        Medium { file: place.into(), firmware: self.firmware.clone(), memory_mib: self.memory_mib }
    }

    pub(super) fn resize(&self, bytes: u64) -> io::Result<()> {
        File::options().write(true).open(&self.file)?.set_len(bytes)
    }

    pub(super) fn boot(&self, qemu: &Qemu, directory: &Path, key: &Path) -> Result<Board, TaskError> {
        self.boot_with(qemu, directory, key, "", &[])
    }

    /// Boots from the medium, with more options of the emulator's drive, each after a comma, and more
    /// arguments of the emulator.
    pub(super) fn boot_with(
        &self,
        qemu: &Qemu,
        directory: &Path,
        key: &Path,
        options: &str,
        arguments: &[String],
    ) -> Result<Board, TaskError> {
        let mut drive = OsString::from("if=virtio,format=raw,cache=writeback,file=");
        drive.push(&self.file);
        drive.push(options);
        let [name, file] = &self.firmware;
        let medium = [name.clone(), file.clone(), "-drive".into(), drive];
        let medium: Vec<OsString> = medium.into_iter().chain(arguments.iter().map(OsString::from)).collect();
        Board::boot_from(qemu, self.memory_mib, &medium, directory, key, Some(LINK), None)
    }
}

/// The emulator's name of a board's network link.
pub(super) const LINK: &str = "net0";

/// A running board.
pub(super) struct Board {
    pub(super) emulator: Child,
    pub(super) begun: Instant,
    /// The directory with the files of the step.
    pub(super) directory: PathBuf,
    pub(super) console: PathBuf,
    pub(super) key: PathBuf,
    pub(super) port: u16,
    /// The network namespace in which the emulator runs, if not this one.
    network: Option<Namespace>,
}

/// The emulator's arguments for an image in RAM, and more.
fn in_ram(image: &DeviceImage, arguments: &[String]) -> Result<Vec<OsString>, TaskError> {
    let ram = image.ram.as_ref().ok_or("the image does not fit into the board's memory")?;
    let command_line = OsString::from(fs::read_to_string(&ram.command_line)?.trim());
    let medium: [OsString; 6] = [
        "-kernel".into(),
        ram.kernel.clone().into(),
        "-initrd".into(),
        ram.initramfs.clone().into(),
        "-append".into(),
        command_line,
    ];
    Ok(medium.into_iter().chain(arguments.iter().map(OsString::from)).collect())
}

impl Board {
    pub(super) fn boot(
        qemu: &Qemu,
        memory_mib: u32,
        image: &DeviceImage,
        directory: &Path,
        key: &Path,
    ) -> Result<Board, TaskError> {
        Board::boot_with(qemu, memory_mib, image, directory, key, Some(LINK), &[])
    }

    /// Boots an image in RAM, with a network link of this name in the emulator, if any, and more arguments of
    /// the emulator.
    pub(super) fn boot_with(
        qemu: &Qemu,
        memory_mib: u32,
        image: &DeviceImage,
        directory: &Path,
        key: &Path,
        link: Option<&str>,
        arguments: &[String],
    ) -> Result<Board, TaskError> {
        Board::boot_from(qemu, memory_mib, &in_ram(image, arguments)?, directory, key, link, None)
    }

    /// Boots an image in RAM, whose network link leads into a network namespace of this machine.
    pub(super) fn boot_in(
        network: &Namespace,
        qemu: &Qemu,
        memory_mib: u32,
        image: &DeviceImage,
        directory: &Path,
        key: &Path,
        arguments: &[String],
    ) -> Result<Board, TaskError> {
        let medium = in_ram(image, arguments)?;
        Board::boot_from(qemu, memory_mib, &medium, directory, key, Some(LINK), Some(network))
    }

    /// The time from the kernel's entry to the start of the youngest process with this name. The kernel
    /// counts in hundredths of a second.
    pub(super) fn began(&self, name: &str) -> Result<Duration, TaskError> {
        let find =
            format!("for p in /proc/[0-9]*; do [ \"$(cat $p/comm)\" = {name} ] && cat $p/stat; done; true");
        let found = self.output(&find)?;
        // The second field of a line is the name in parentheses, and the 22nd is the start time.
        let ticks = |line: &str| line.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse::<u64>().ok();
        let youngest = found.lines().filter_map(ticks).max();
        let ticks = youngest.ok_or_else(|| self.failed(&format!("no process {name}: {found:?}")))?;
        Ok(Duration::from_millis(ticks * 10))
    }

    /// Boots with these arguments of the emulator.
    fn boot_from(
        qemu: &Qemu,
        memory_mib: u32,
        medium: &[OsString],
        directory: &Path,
        key: &Path,
        link: Option<&str>,
        network: Option<&Namespace>,
    ) -> Result<Board, TaskError> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let console = directory.join("console.log");
        // The output of an earlier board must not be read before the emulator opens the file.
        fs::write(&console, "")?;
        let mut emulator = Command::new(&qemu.program);
        emulator
            .args(["-accel", "tcg", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            .args(&qemu.arguments)
            .args(["-m", &memory_mib.to_string(), "-device", "virtio-rng-pci"])
            .args(["-serial", &format!("file:{}", console.display())])
            .args(medium)
            .stdin(Stdio::null());
        // `-nic` is not used, because not every machine makes a network card of it.
        match link {
            Some(link) => emulator
                .args(["-netdev", &format!("user,id={link},hostfwd=tcp:127.0.0.1:{port}-:22")])
                .args(["-device", &format!("virtio-net-pci,netdev={link},mac=52:54:00:12:34:56")]),
            None => emulator.args(["-nic", "none"]),
        };
        if let Some(network) = network {
            network.give_to(&mut emulator);
        }
        end_with_us(&mut emulator, Signal::SIGKILL);
        let emulator = emulator.spawn().map_err(|error| {
            format!("failed to run {}: {error}; Debian's package {} has it", qemu.program, qemu.package)
        })?;
        Ok(Board {
            emulator,
            begun: Instant::now(),
            directory: directory.to_owned(),
            console,
            key: key.to_owned(),
            port,
            network: network.cloned(),
        })
    }

    /// Runs a command on the board.
    pub(super) fn ssh(&self, command: &str, input: impl AsRef<[u8]>) -> Result<Output, TaskError> {
        let mut ssh = Command::new("ssh");
        if let Some(network) = &self.network {
            network.give_to(&mut ssh);
        }
        let mut ssh = ssh
            .args([
                "-q",
                "-F",
                "none",
                "-o",
                "StrictHostKeyChecking=no",
                "-o",
                "UserKnownHostsFile=/dev/null",
            ])
            // A board that is reset during a connection does not close it.
            .args(["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=2"])
            .args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-p", &self.port.to_string(), "-i"])
            .arg(&self.key)
            .args(["root@127.0.0.1", command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = ssh.stdin.take() {
            // A board that is not up yet accepts no input.
            let _ = std::io::Write::write_all(&mut stdin, input.as_ref());
        }
        Ok(ssh.wait_with_output()?)
    }

    /// The output of a command on the board, whatever its exit code.
    pub(super) fn output(&self, command: &str) -> Result<String, TaskError> {
        Ok(text(&self.ssh(command, "")?.stdout))
    }

    /// The number in a line of a file on the board, in KiB.
    pub(super) fn kib(&self, file: &str, line: &str) -> Result<u64, TaskError> {
        let output = self.output(&format!("cat {file}"))?;
        let found = output.lines().find_map(|found| found.strip_prefix(line)?.split_whitespace().next());
        found
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| self.failed(&format!("{file} has no line {line}: {output:?}")))
    }

    /// Runs a command on the board and compares its output.
    pub(super) fn expect(&self, command: &str, input: &str, expected: &str) -> Outcome {
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

    pub(super) fn wait_for(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&mut Board) -> Result<bool, TaskError>,
    ) -> Outcome {
        let mut wait = Wait::new(Instant::now());
        while !condition(self)? {
            if let Some(why) = wait.timed_out(Instant::now(), news(&self.console()?)) {
                return Err(self.failed(&format!("no {what}: {why}")));
            }
            if let Some(status) = self.emulator.try_wait()? {
                return Err(self.failed(&format!("no {what}: the emulator ended, {status}")));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// The board's console output so far.
    pub(super) fn console(&self) -> Result<String, TaskError> {
        Ok(text(&fs::read(&self.console)?))
    }

    /// Runs a command that prints JSON.
    pub(super) fn json(&self, command: &str) -> Result<serde_json::Value, TaskError> {
        let output = self.ssh(command, "")?;
        serde_json::from_slice(&output.stdout).map_err(|error| {
            self.failed(&format!("`{command}` wrote no JSON: {error}; {}", text(&output.stderr)))
        })
    }

    /// The board's clock, in seconds since 1970.
    pub(super) fn date(&self) -> Result<u64, TaskError> {
        let date = self.output("busybox date -u +%s")?;
        date.trim().parse().map_err(|_| self.failed(&format!("the board's date is {date:?}")))
    }

    /// Waits until the emulator has ended, and requires that process 1 caused it: a board that panics, or
    /// that its watchdog resets, goes down as well.
    pub(super) fn wait_until_down(&mut self, said: &str) -> Outcome {
        self.wait_for("the board to go down", |board| Ok(board.emulator.try_wait()?.is_some()))?;
        let console = self.console()?;
        if console.contains(&format!("nodlet init: {said}")) && !console.contains("Kernel panic") {
            return Ok(());
        }
        Err(self.failed(&format!("the board went down, and process 1 did not report `{said}`")))
    }

    /// Cuts the power.
    pub(super) fn turn_off(&mut self) -> Outcome {
        self.emulator.kill()?;
        self.emulator.wait()?;
        Ok(())
    }

    /// The process ID of the emulator.
    pub(super) fn emulator_id(&self) -> u32 {
        self.emulator.id()
    }

    /// Requires that process 1 has written these words to the console.
    pub(super) fn require_said(&self, words: &str) -> Outcome {
        let console = self.console()?;
        let said = console.lines().any(|line| line.contains("nodlet init: ") && line.contains(words));
        if said { Ok(()) } else { Err(self.failed(&format!("process 1 did not report `{words}`"))) }
    }

    /// An error with the end of the console. The reason comes last, where a terminal shows it.
    pub(super) fn failed(&self, why: &str) -> TaskError {
        let said = text(&fs::read(&self.console).unwrap_or_default());
        let lines: Vec<&str> = said.lines().collect();
        let end = lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n");
        let all = self.console.display();
        TaskError(format!("the end of the board's console ({all} has all of it):\n{end}\n\n{why}"))
    }
}

/// The wait for a condition, which ends when the board makes no progress any more.
struct Wait {
    begun: Instant,
    /// The number of [`news`] on the console, and when it was seen first.
    console: (usize, Instant),
}

impl Wait {
    fn new(now: Instant) -> Wait {
        Wait { begun: now, console: (0, now) }
    }

    /// Why the wait is over, if it is, given the number of [`news`] on the console.
    fn timed_out(&mut self, now: Instant, console: usize) -> Option<String> {
        if self.console.0 != console {
            self.console = (console, now);
        }
        if now - self.console.1 > PATIENCE {
            return Some(format!("the console has shown nothing new for {PATIENCE:?}"));
        }
        (now - self.begun > LONGEST)
            .then(|| format!("not in {LONGEST:?}, and the console still shows new lines"))
    }
}

/// The number of lines on the console that show progress. Those of the SSH server do not: a condition that asks the board
/// over SSH makes one with each attempt.
fn news(console: &str) -> usize {
    let is_of_ssh = |line: &str| {
        let process = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
        process.is_some_and(|(process, _)| process.parse::<u32>().is_ok())
    };
    console.lines().filter(|line| !is_of_ssh(line)).count()
}

impl Drop for Board {
    fn drop(&mut self) {
        let _ = self.emulator.kill();
        let _ = self.emulator.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_lasts_as_long_as_the_console_shows_new_lines_but_not_for_ever() {
        let begun = Instant::now();
        let at = |seconds: usize| begun + Duration::from_secs(seconds as u64);
        let mut wait = Wait::new(begun);
        // A slow board, which writes a line every four minutes.
        assert!((1..6).all(|line| wait.timed_out(at(line * 240), line).is_none()));
        assert_eq!(wait.timed_out(at(5 * 240 + 300), 5), None);
        let why = wait.timed_out(at(5 * 240 + 301), 5).expect("it is over");
        assert_eq!(why, "the console has shown nothing new for 300s");
        let mut wait = Wait::new(begun);
        let over = (1..10_000).find(|second| wait.timed_out(at(*second), *second).is_some());
        assert_eq!(over, Some(LONGEST.as_secs() as usize + 1));
    }

    #[test]
    fn attempts_to_log_in_are_no_progress_of_a_board() {
        let console = "[    3.366749] EXT4-fs (vda4): mounted\nnodlet init: eth0: carrier on\n";
        let attempts = "[826] Nov 29 04:19:46 Child connection from 10.0.2.2:57388\n\
                        [826] Nov 29 04:19:47 Exit before auth from <10.0.2.2:57388>: (user 'root', 0 fails)\n";
        assert_eq!(news(console), 2);
        assert_eq!(news(&format!("{console}{attempts}")), 2);
    }
}
