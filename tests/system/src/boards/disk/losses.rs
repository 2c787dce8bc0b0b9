//! Power cuts on a medium that loses what was not flushed: one session of a board is recorded, and for states that its
//! medium may be in after a cut, the board boots with everything that was acknowledged, and each thing old or new.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nodlet_build::task::{Outcome, TaskError};
use nodlet_build::{cross, targets};
use nodlet_dist::image::DeviceImage;
use nodlet_dist::profile::{Profile, Qemu};
use nodlet_tests::honest::{ABSENT, Export, Medium, Record};
use nodlet_tests::{Seed, manifest};

use super::super::update::{self, Instruction, Program};
use super::super::{Board, alone, default_name, demo_for, flash, text};
use super::power_cuts::{IMAGE, POD, Pushed};
use super::{Tried, User, boot_files, first_identity, wait_for_log, write_identity};

/// Bytes of output for which a log is rotated, and those of one of its lines.
const SPAM: usize = 1_500_000;
const LINE: usize = 100;

/// The host key that the board made at its first boot; the name of the file with its digest.
const FIRST_KEY: &str = "first-key";

/// The size of a data partition that fills a medium of twice the size.
const GROWN: &str = "grown";

/// The state of the data partition after a power cut during its creation, in use, and during a factory reset.
const REASONS: [&str; 3] = ["Created", "Ready", "Reset"];

/// Records a session of a board, and boots this many states of its medium, or those for which there is time.
pub(in super::super) fn try_out(
    profile: &Profile,
    qemu: &Qemu,
    image: &DeviceImage,
    (directory, key): (&Path, &Path),
    (states, seed, minutes): (u64, u64, Option<u64>),
) -> Outcome {
    eprintln!("files of the boot partition");
    boot_files::try_out(profile, qemu, image, (directory, key), seed)?;
    eprintln!("a session of the board");
    let flashed = flash(profile, qemu, image, directory)?
        .ok_or("the board's profile has no disk or no firmware that boots it")?;
    let recorded = Medium::new(&flashed.file, &directory.join("current"))?;
    let export = Export::new(recorded.clone(), &directory.join("nbd"))?;
    let medium = flashed.at(export.url());
    Session { profile, tried: Tried { qemu, medium: &medium, directory, key }, medium: &recorded }.run()?;
    drop(export);

    let state = flashed.at(directory.join("state"));
    let tried = Tried { qemu, medium: &state, directory, key };
    boot_states(profile, &tried, &recorded.record(&flashed.file), (states, seed, minutes))?;
    eprintln!("growth with the medium");
    let states = states.div_ceil(GROWING);
    let record = record_growth(profile, qemu, image, (directory, key))?;
    boot_states(profile, &tried, &record, (states, seed, minutes))
}

/// One in so many states is one in which the data partition grows.
const GROWING: u64 = 6;

/// Boots this many states after a power cut, or those for which there is time.
fn boot_states(
    profile: &Profile,
    tried: &Tried<'_>,
    record: &Record,
    (states, seed, minutes): (u64, u64, Option<u64>),
) -> Outcome {
    eprintln!("  {} writes and {} flushes", record.writes(), record.flushes());
    let cuts = record.cuts(&mut Seed::new(seed), usize::try_from(states)?);
    let (begun, all) = (Instant::now(), cuts.len());
    for (number, cut) in cuts.into_iter().enumerate() {
        if minutes.is_some_and(|minutes| begun.elapsed() > Duration::from_secs(minutes * 60)) {
            eprintln!("  {number} of {all} states in {minutes:?} minutes");
            break;
        }
        let described = record.describe(&cut);
        eprintln!("  state {number}: {described}");
        record.write(&cut, &tried.medium.file)?;
        check(profile, tried, record, &cut)
            .map_err(|TaskError(why)| TaskError(format!("{why}\nafter the {described}")))?;
    }
    Ok(())
}

/// Records the boot in which the data partition grows, because its medium was copied to one of twice the size.
fn record_growth(
    profile: &Profile,
    qemu: &Qemu,
    image: &DeviceImage,
    (directory, key): (&Path, &Path),
) -> Result<Record, TaskError> {
    let flashed = flash(profile, qemu, image, directory)?.ok_or("the board's profile has no disk")?;
    let (mut board, _monitor) =
        Tried { qemu, medium: &flashed, directory, key }.boot_as("", &[], &["Created"], false)?;
    board.expect("nodlet apply -f -", &manifest::pod("web", "print v1 then sleep"), "pod/web created\n")?;
    wait_for_log(&mut board, "web", "v1\n")?;
    fs::write(directory.join(FIRST_KEY), host_key(&board)?)?;
    board.turn_off()?;
    flashed.resize(fs::metadata(&flashed.file)?.len() * 2)?;

    let recorded = Medium::new(&flashed.file, &directory.join("current"))?;
    let export = Export::new(recorded.clone(), &directory.join("nbd"))?;
    for (thing, value) in [("pod/web", "v1"), ("pod/baked", "baked"), ("key/", FIRST_KEY)] {
        recorded.during(thing, value, || ());
    }
    let medium = flashed.at(export.url());
    let tried = Tried { qemu, medium: &medium, directory, key };
    let (mut board, _monitor) =
        recorded.during("size/", GROWN, || tried.boot_as(",discard=unmap", &[], &["Ready"], false))?;
    let size = observe(profile, &mut board, directory, "size/")?;
    if size != GROWN {
        return Err(board.failed(&format!("the data partition is {size}")));
    }
    board.turn_off()?;
    drop(export);
    Ok(recorded.record(&flashed.file))
}

/// Boots a state, and compares what the board has with what was acknowledged.
fn check(profile: &Profile, tried: &Tried<'_>, record: &Record, cut: &nodlet_tests::honest::Cut) -> Outcome {
    let (mut board, _) = tried.boot_as("", &[], &REASONS, false)?;
    for (thing, allowed) in record.allowed(cut) {
        let found = observe(profile, &mut board, tried.directory, thing)?;
        if !allowed.contains(&*found) {
            return Err(board.failed(&format!("{thing} is {found}, not one of {allowed:?}")));
        }
    }
    board.turn_off()
}

/// The session of a board whose medium is recorded.
struct Session<'a> {
    profile: &'a Profile,
    tried: Tried<'a>,
    medium: &'a Arc<Medium>,
}

impl Session<'_> {
    /// Does everything that writes to the medium.
    fn run(&self) -> Outcome {
        let Session { profile, tried, medium } = self;
        let boot = |reasons: &[&str]| tried.boot_as(",discard=unmap", &[], reasons, false);
        let first = || medium.during("pod/baked", "baked", || boot(&["Created"]));
        let (mut board, _monitor) = medium.during("key/", FIRST_KEY, first)?;
        fs::write(tried.directory.join(FIRST_KEY), host_key(&board)?)?;
        let user = User::new(board.port, tried.key, tried.directory)?;

        for value in ["v1", "v2"] {
            self.apply(&mut board, "web", value, &format!("print {value} then sleep"))?;
        }
        medium.during("pod/web", ABSENT, || done(&board, "nodlet delete pod web"))?;
        let identity = first_identity(tried.key)?;
        medium
            .during("name/", "gate-17", || write_identity(&board, &format!("name = gate-17\n{identity}")))?;
        self.apply(&mut board, "web", "v3", "print v3 then sleep")?;

        let pushed = Pushed::write(demo_for(profile)?, tried.directory)?;
        medium.during("push/", "image,pod", || pushed.push(&user))?;
        medium.during("push/", "image", || done(&board, &format!("nodlet delete pod {POD}")))?;
        medium.during("push/", ABSENT, || done(&board, &format!("nodlet image rm {IMAGE}")))?;

        medium.during("log/", "whole", || {
            let pod = manifest::pod("spam", &format!("spam {SPAM} then sleep"));
            board.expect("nodlet apply -f -", &pod, "pod/spam created\n")?;
            wait_for_end(&mut board).map(drop)
        })?;
        board.expect("ls /var/log/pods/default_spam_*/app | grep -c '^0.log.'; sync", "", "1\n")?;
        medium.during("log/", ABSENT, || done(&board, "nodlet delete pod spam"))?;

        let program = Program::read(&alone(|| cross::build(targets::get(&profile.target)?))?)?;
        let newer = program.with_version(1)?;
        let bad = program.with_version(2)?.begins_with(Instruction::Illegal)?;
        medium.during("program/", &newer.version, || {
            update::install(&user, &newer.unsigned(), 0, &format!("nodlet {} is kept", newer.version))
        })?;
        medium.during("program/", &newer.version, || {
            update::install(&user, &bad.unsigned(), 1, "3 times during the trial")?;
            board.wait_for("the nodlet before", |board| {
                Ok(update::runs(board, &newer.version, "kept").is_ok())
            })
        })?;
        medium.during("program/", ABSENT, || done(&board, "nodlet system rollback"))?;
        board.wait_for("the nodlet of the image", |board| {
            Ok(update::runs(board, update::VERSION, "image").is_ok())
        })?;

        let reset = || {
            // The connection may end before the verb's answer.
            board.ssh("nodlet factory-reset", "")?;
            board.wait_until_down("rebooting")
        };
        medium.during("pod/web", ABSENT, || medium.during("key/", ABSENT, reset))?;
        boot(&["Reset"])?.0.turn_off()
    }

    /// Applies a pod, and waits until it runs.
    fn apply(&self, board: &mut Board, name: &str, value: &str, steps: &str) -> Outcome {
        let pod = manifest::pod(name, steps);
        self.medium.during(&format!("pod/{name}"), value, || {
            let applied = board.ssh("nodlet apply -f -", &pod)?;
            if applied.status.success() {
                return Ok(());
            }
            Err(board.failed(&format!("{name} was not applied: {}", text(&applied.stderr))))
        })?;
        wait_for_log(board, name, &format!("{value}\n"))
    }
}

/// The digest of the board's SSH host key, which must stay: clients know it.
fn host_key(board: &Board) -> Result<String, TaskError> {
    let digest = board.output("busybox sha256sum </var/lib/nodlet/ssh/host_key")?;
    if digest.is_empty() { Err(board.failed("the board has no SSH host key")) } else { Ok(digest) }
}

/// Runs a command that must succeed.
fn done(board: &Board, command: &str) -> Outcome {
    let output = board.ssh(command, "")?;
    if output.status.success() {
        Ok(())
    } else {
        Err(board.failed(&format!("`{command}`: {}", text(&output.stderr))))
    }
}

/// Waits for the last line of the long log, and returns the log.
fn wait_for_end(board: &mut Board) -> Result<String, TaskError> {
    let last = format!("{:0>12} ", SPAM / LINE - 1);
    let mut log = String::new();
    board.wait_for("the last line of a long log", |board| {
        log = board.output("nodlet logs spam")?;
        Ok(log.contains(&last))
    })?;
    Ok(log)
}

/// The present value of a thing; a text that no operation has as its value, if it is damaged.
fn observe(profile: &Profile, board: &mut Board, directory: &Path, thing: &str) -> Result<String, TaskError> {
    let (kind, name) = thing.split_once('/').ok_or("a thing has a kind and a name")?;
    let pods = board.output("nodlet get pods -o name")?;
    let has_pod = |name: &str| pods.lines().any(|line| line == format!("pod/{name}"));
    let absent = || Ok(ABSENT.to_owned());
    match kind {
        // Its log is its value.
        "pod" if has_pod(name) => {
            let mut log = String::new();
            board.wait_for("the first line of a pod", |board| {
                log = board.output(&format!("nodlet logs {name}"))?;
                Ok(log.ends_with('\n'))
            })?;
            Ok(log.trim_end().to_owned())
        }
        "pod" => absent(),
        "name" => {
            let name = board.output("cat /proc/sys/kernel/hostname")?.trim().to_owned();
            if name == default_name(profile) { absent() } else { Ok(name) }
        }
        "key" => {
            let is_first = host_key(board)? == fs::read_to_string(directory.join(FIRST_KEY))?;
            if is_first { Ok(FIRST_KEY.to_owned()) } else { absent() }
        }
        "size" => {
            let least = profile.storage.as_ref().map_or(0, |storage| storage.medium_mib) * 1024;
            let free = board.output("df -k /var | tail -n 1")?;
            let kib = free.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
            if kib.is_some_and(|kib| kib >= least) { Ok(GROWN.to_owned()) } else { absent() }
        }
        "push" => {
            board.wait_for("the record of an interrupted push to go", |board| {
                Ok(board.ssh("[ ! -e /var/lib/nodlet/push/redo.json ]", "")?.status.success())
            })?;
            let pods = board.output("nodlet get pods -o name")?;
            let has_pod = pods.contains(&format!("pod/{POD}\n"));
            let has_image = board.output("nodlet image ls")?.contains(IMAGE);
            if has_pod {
                wait_for_log(board, POD, "pushed\n")?;
                board.expect(&format!("nodlet exec {POD} -- /bin/demo cat /srv/pushed"), "", "whole\n")?;
            }
            Ok(match (has_image, has_pod) {
                (true, true) => "image,pod",
                (true, false) => "image",
                (false, true) => "pod",
                (false, false) => ABSENT,
            }
            .to_owned())
        }
        "log" if has_pod("spam") => {
            let log = wait_for_end(board)?;
            let first = SPAM / LINE - log.lines().count();
            let is_whole = log.lines().enumerate().all(|(number, line)| {
                line.len() == LINE - 1 && line.starts_with(&format!("{:0>12} ", first + number))
            });
            Ok(if is_whole { "whole" } else { "damaged" }.to_owned())
        }
        "log" => absent(),
        "program" => {
            let mut status = serde_json::Value::Null;
            board.wait_for("end of a trial", |board| {
                status = serde_json::from_slice(&board.ssh("nodlet system -o json", "")?.stdout)
                    .unwrap_or_default();
                Ok(status["running"].is_object() && status["trial"].is_null())
            })?;
            let version = status["running"]["version"].as_str().unwrap_or_default();
            if status["running"]["from"] == "image" { absent() } else { Ok(version.to_owned()) }
        }
        _ => Err(TaskError(format!("no thing is a {kind}"))),
    }
}

/// Removes what is large.
pub(in super::super) fn clean(directory: &Path) {
    for name in ["medium", "current", "state"] {
        let _ = fs::remove_file(directory.join(name));
    }
}
