//! `cargo xtask demo --board PROFILE`: boots an emulated board from its disk, pushes a pod to it over SSH,
//! cuts its power, and shows that the pod runs again. Needs neither root nor installed programs.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nodlet_build::programs;
use nodlet_build::task::{Outcome, Task, TaskError, run as run_command, with_progress};
use nodlet_build::toolchain::{built, cargo};
use nodlet_dist::profile::{self, Profile, Qemu};
use nodlet_tests::manifest;

use super::{Board, Medium, alone, build, demo_for, flash, prepare};

/// The flag with the longest time in which the pushed pod must become ready, on a board that is emulated by a busy
/// machine.
const PUSH_WAIT: &str = "--wait=30m";

/// Runs the demo as a reader would, on a board that supports it.
pub(super) fn try_out(profile: &Profile, qemu: &Qemu) -> Outcome {
    if profile.storage.is_some() && qemu.firmware.is_some() { show(&profile.name, false) } else { Ok(()) }
}

/// The task `demo-board`, which is `cargo xtask demo --board`.
pub(crate) const TASK: Task = Task::new(
    "demo-board",
    "PROFILE [--keep]",
    "show an emulated board that boots, runs a pod and loses its power; --keep leaves it running",
    |arguments| match arguments {
        [name] if !name.starts_with('-') => show(name, false),
        [name, keep] if !name.starts_with('-') && keep == "--keep" => show(name, true),
        _ => Err(TASK.misused()),
    },
);

/// Runs the demo; `keep` leaves the board running.
fn show(name: &str, keep: bool) -> Outcome {
    play(name, keep).map_err(|TaskError(why)| {
        TaskError(format!(
            "{why}\n\nThe demo of the board {name} has failed, for the reason above. What to do:\n\
             * run it again: what was built and fetched is kept, so that it begins sooner;\n\
             * if it waited in vain, end what else keeps this machine busy: the board is emulated;\n\
             * if a download failed, check the network, or set http_proxy and https_proxy."
        ))
    })
}

fn play(name: &str, keep: bool) -> Outcome {
    let profile = profile::get(name)?;
    let Some(qemu) =
        profile.qemu.as_ref().filter(|qemu| qemu.firmware.is_some() && profile.storage.is_some())
    else {
        return Err(TaskError(format!("no emulator boots a disk of the board {name}")));
    };
    programs::provide(&qemu.program, &qemu.package)?;
    programs::provide("ssh", "openssh-client")?;
    programs::provide("ssh-keygen", "openssh-client")?;
    say(
        "Building nodlet for this machine and for the board, and the board's disk (the first time ten minutes or more)",
    );
    alone(|| run_command(cargo()?.args(["build", "--package", "nodlet"])))?;
    let (directory, key, mut contents) = prepare(&profile, "demo")?;
    // The image has no pod yet: pods are pushed over SSH.
    let archive = contents.archives.pop().ok_or("there is a demo image")?;
    let image = with_progress("making the board's disk", || build(&profile, &contents, &directory))?;
    let medium = flash(&profile, qemu, &image, &directory)?.ok_or("a profile with [storage] has a disk")?;
    let pod = directory.join("hello.yaml");
    fs::write(&pod, manifest::pod("hello", "print hello then sleep"))?;
    demo_for(&profile)?.write_oci_archive(&archive)?;
    let show = Show { qemu, medium, directory, key, nodlet: built("debug", "nodlet")? };

    say("The board boots from its disk");
    let mut board = show.boot()?;
    say("A pod with its image is pushed to it over SSH");
    show.nodlet(
        &board,
        &["push", &archive.display().to_string(), &pod.display().to_string(), PUSH_WAIT],
        true,
    )?;
    show.nodlet(&board, &["get", "pods"], false)?;
    show.nodlet(&board, &["logs", "hello"], false)?;
    say("Its plug is pulled (kill -9 of the emulator), and put in again");
    drop(board);
    board = show.boot()?;
    board.wait_for("the pod to run again", |board| {
        Ok(board.output("nodlet get pods --no-headers")?.contains("1/1"))
    })?;
    show.nodlet(&board, &["get", "pods"], false)?;
    if keep {
        say("It goes on running until this is ended with Ctrl-C. In another terminal:");
        println!("export NODLET_SSH='{}'", show.ssh_command());
        println!("export NODLET_BOARD=root@127.0.0.1:{}", board.port);
        println!("alias nodlet={}", show.nodlet.display());
        println!(
            "nodlet push web.tar web.yaml --wait   # an image and a pod of yours; $NODLET_BOARD names the board"
        );
        println!("nodlet get pods -w");
        println!("nodlet exec -it hello -- demo tty   # a terminal in a container");
        println!("$NODLET_SSH -p {} root@127.0.0.1     # a shell on the board", board.port);
        board.emulator.wait()?;
        return Ok(());
    }
    say("The board is turned off");
    println!("$ ssh -p {} root@127.0.0.1 nodlet poweroff", board.port);
    board.ssh("nodlet poweroff", "")?;
    board.wait_until_down("powering off")?;
    println!(
        "\nWith --keep the board stays, for you to use. docs/boards.md builds an image with pods of your own."
    );
    Ok(())
}

struct Show<'a> {
    qemu: &'a Qemu,
    medium: Medium,
    directory: PathBuf,
    key: PathBuf,
    nodlet: PathBuf,
}

impl Show<'_> {
    /// Boots the board, shows its console until it responds over SSH, and returns it.
    fn boot(&self) -> Result<Board, TaskError> {
        let console = self.directory.join("console.log");
        let mut board = self.medium.boot(self.qemu, &self.directory, &self.key)?;
        let is_up = Arc::new(AtomicBool::new(false));
        let follower = {
            let is_up = is_up.clone();
            thread::spawn(move || follow(&console, &is_up))
        };
        let up = board.wait_for("answer of the board over SSH", |board| {
            Ok(board.ssh("nodlet get pods", "")?.status.success())
        });
        is_up.store(true, Ordering::Relaxed);
        // The thread returns no result.
        let _ = follower.join();
        up?;
        println!("The board answers {:.1?} after it was turned on.", board.begun.elapsed());
        Ok(board)
    }

    fn ssh_command(&self) -> String {
        format!(
            "ssh -q -F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -i {}",
            self.key.display()
        )
    }

    /// Runs a verb on the board as the reader would.
    fn nodlet(&self, board: &Board, words: &[&str], is_push: bool) -> Outcome {
        let mut command = Command::new(&self.nodlet);
        let target = format!("root@127.0.0.1:{}", board.port);
        match (is_push, words.split_first()) {
            (true, Some((verb, files))) => {
                println!("$ nodlet {verb} {target} {}", files.join(" "));
                command.arg(verb).arg(target).args(files)
            }
            _ => {
                println!("$ nodlet --board {target} {}", words.join(" "));
                command.args(["--board", &target]).args(words)
            }
        };
        let status = command.env("NODLET_SSH", self.ssh_command()).status()?;
        if status.success() {
            Ok(())
        } else {
            Err(TaskError(format!("nodlet {}: {status}", words.join(" "))))
        }
    }
}

/// Prints the lines of a console as they arrive, until `is_up`.
fn follow(console: &Path, is_up: &AtomicBool) {
    let Ok(file) = File::open(console) else { return };
    let mut lines = BufReader::new(file);
    let mut line = Vec::new();
    while !is_up.load(Ordering::Relaxed) {
        match lines.read_until(b'\n', &mut line) {
            // An incomplete line is printed once it is complete.
            Ok(_) if line.ends_with(b"\n") => {
                println!("  | {}", printable(&line));
                line.clear();
            }
            Ok(_) => thread::sleep(Duration::from_millis(50)),
            Err(_) => return,
        }
    }
}

/// Removes control sequences: firmware moves the cursor and clears the screen.
fn printable(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut shown = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            // Skip to the end of an ECMA-48 sequence.
            '\u{1b}' => drop(letters.by_ref().find(|end| end.is_ascii_alphabetic())),
            _ if letter.is_control() => {}
            _ => shown.push(letter),
        }
    }
    shown
}

fn say(what: &str) {
    if std::io::stdout().is_terminal() {
        println!("\n\u{1b}[1m{what}\u{1b}[0m");
    } else {
        println!("\n{what}");
    }
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn a_console_cannot_move_the_cursor_of_the_terminal() {
        assert_eq!(printable(b"\x1b[2J\x1b[01;01HBdsDxe: loading\r\n"), "BdsDxe: loading");
        assert_eq!(printable(b"plain\n"), "plain");
        assert_eq!(printable(b"cut \x1b["), "cut ");
    }
}
