//! Tests updates of nodlet on an emulated board: one that works, some that do not, and some that the board
//! must reject. Meanwhile a pod counts, and no container may notice anything. Then an update whose trial a power cut
//! interrupts, on a board whose pods become ready slowly.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use nodlet_build::task::{Outcome, TaskError, run as run_command};
use nodlet_build::{cross, debian, elf, targets};
use nodlet_dist::profile::{Profile, Qemu, Update};
use nodlet_tests::manifest;
use serde_json::Value;

use super::push::User;
use super::{Board, Medium, alone, build, flash, prepare, text};

/// The version of this workspace, and so of the nodlet in the image.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The text that every nodlet contains before its version.
const MARK: &str = "\nthis program is nodlet v";

/// The reason with which a hanging update is given up.
const HANGS: &str = "its agent was not healthy";

pub(super) fn try_out(profile: &Profile, qemu: &Qemu) -> Outcome {
    let mut profile = profile.clone();
    let (directory, key, mut contents) = prepare(&profile, "update")?;
    let (owner, stranger) = (Signer::new(&directory, "owner")?, Signer::new(&directory, "stranger")?);
    profile.update =
        Update { keys: vec![owner.public_key.clone()], allow_unsigned: false, healthy_after: "10s".into() };
    let pod = directory.join("counter.yaml");
    fs::write(&pod, manifest::pod("counter", "print tick 0.2"))?;
    contents.pods.push(pod);
    let image = build(&profile, &contents, &directory)?;
    let nodlet = Program::read(&alone(|| cross::build(targets::get(&profile.target)?))?)?;

    let mut board = Board::boot(qemu, profile.memory_mib, &image, &directory, &key)?;
    let user = User::new(board.port, &key, &directory)?;
    board.wait_for("the counter", |board| Ok(board.ssh("nodlet logs counter", "")?.stdout.len() > 10))?;
    board.expect("nodlet healthcheck --pods --wait 2m", "", "")?;
    let before = life(&board)?;
    let newer = nodlet.with_version(1)?;
    reject(&board, &user, &nodlet, &newer, &owner, &stranger)?;

    let begun = Instant::now();
    install(&user, &owner.sign(&newer)?, 0, &format!("nodlet {} is kept", newer.version))?;
    let lasted = begun.elapsed();
    runs(&board, &newer.version, "kept")?;
    no_container_noticed(&board, &before)?;

    let broken = nodlet.with_version(2)?;
    let (crashes, hangs) =
        (broken.begins_with(Instruction::Illegal)?, broken.begins_with(Instruction::Loop)?);
    for (program, why) in [(crashes, "3 times during the trial"), (hangs, HANGS)] {
        let update = owner.sign(&program)?;
        std::thread::scope(|scope| {
            let trial = scope.spawn(|| install(&user, &update, 1, why));
            // The trial lasts long enough for another update to arrive.
            let second = if why == HANGS { reject_second(&mut board, &program.version) } else { Ok(()) };
            trial.join().map_err(|_| TaskError::from("the update's thread panicked"))?.and(second)
        })?;
        board.wait_for("the nodlet before", |board| Ok(runs(board, &newer.version, "kept").is_ok()))?;
        board.expect("nodlet healthcheck --pods --wait 2m", "", "")?;
        no_container_noticed(&board, &before)?;
    }

    board.expect("nodlet system rollback", "", &format!("nodlet {VERSION} runs next\n"))?;
    board.wait_for("the nodlet of the image", |board| Ok(runs(board, VERSION, "image").is_ok()))?;

    // A program that the flash has damaged is not executed.
    install(&user, &owner.sign(&newer)?, 0, "is kept")?;
    let damage = "cd /var/lib/nodlet/system && for f in [0-9a-f]*; do cp $f new && echo x >> new && mv new $f; done; \
                  busybox kill -9 $(cat /run/nodlet/agent.lock)";
    board.ssh(damage, "")?;
    board.wait_for("the nodlet of the image", |board| Ok(runs(board, VERSION, "image").is_ok()))?;
    let status = board.output("nodlet system")?;
    if !status.contains("given up: its file is damaged") {
        return Err(board.failed(&format!("`nodlet system` does not mention the damage: {status}")));
    }
    board.expect("nodlet healthcheck --pods --wait 2m", "", "")?;
    no_container_noticed(&board, &before)?;
    eprintln!(
        "{}: an update was tried out and kept after {lasted:.1?}, two broken ones returned, seven were rejected, \
         and no container noticed",
        profile.name
    );
    drop(board);
    match flash(&profile, qemu, &image, &directory)? {
        Some(medium) => cut_trial(&profile, qemu, &medium, (&directory, &key), &newer, &owner.sign(&newer)?),
        None => Ok(()),
    }
}

/// The seconds after its start at which a pod is first asked whether it is ready: more than `healthy-after`, and more
/// than the 45 seconds after which an update is given up for pods that were ready and are not.
const SLOW: u64 = 60;

/// Cuts the power while an update is on trial, on a board with a pod that becomes ready slowly and one that never was
/// ready. The update is kept: the health is compared with that before the update.
fn cut_trial(
    profile: &Profile,
    qemu: &Qemu,
    medium: &Medium,
    (directory, key): (&Path, &Path),
    newer: &Program,
    update: &Signed,
) -> Outcome {
    let mut board = medium.boot(qemu, directory, key)?;
    let user = User::new(board.port, key, directory)?;
    board.wait_for("the agent", |board| Ok(board.ssh("nodlet healthcheck", "")?.status.success()))?;
    for (name, probe) in [
        ("slow", format!("{{initialDelaySeconds: {SLOW}, exec: {{command: [/bin/demo, print, ready]}}}}")),
        ("never", "{exec: {command: [/bin/demo, exit, '1']}}".to_owned()),
    ] {
        let container =
            manifest::container("app", "print up then sleep", &format!("readinessProbe: {probe}"));
        let pod = manifest::pod_of(name, &[container], "");
        board.expect("nodlet apply -f -", &pod, &format!("pod/{name} created\n"))?;
    }
    let is_ready = |board: &Board, name: &str| -> Result<bool, TaskError> {
        let pod = board.json(&format!("nodlet get pod {name} -o json"))?;
        Ok(pod["status"]["containerStatuses"][0]["ready"] == true)
    };
    for pod in ["counter", "slow"] {
        board.wait_for(&format!("the pod {pod} to be ready"), |board| is_ready(board, pod))?;
    }

    let status = |board: &Board| -> Result<Value, TaskError> {
        let status = board.ssh("nodlet system -o json", "")?.stdout;
        Ok(serde_json::from_slice(&status).unwrap_or_default())
    };
    let on_trial = |board: &Board, starts: u64| -> Result<bool, TaskError> {
        let status = status(board)?;
        let (running, trial) = (&status["running"], &status["trial"]);
        Ok(running["from"] == "trial"
            && running["version"] == newer.version.as_str()
            && trial["starts"] == starts)
    };
    let mut push = user.command(&["push", "--system", &write(&user, update)?]).spawn()?;
    let cut = board.wait_for("trial of an update", |board| match push.try_wait()? {
        Some(status) => Err(board.failed(&format!("the update ended before the power was cut: {status}"))),
        None => on_trial(board, 1),
    });
    // The power is cut.
    drop(board);
    let _ = push.kill();
    push.wait()?;
    cut?;

    let mut board = medium.boot(qemu, directory, key)?;
    board.wait_for("the agent after the power cut", |board| Ok(status(board)?["running"].is_object()))?;
    if !on_trial(&board, 2)? || is_ready(&board, "slow")? {
        let status = status(&board)?;
        return Err(board.failed(&format!("no trial goes on before the slow pod is ready: {status}")));
    }
    let begun = Instant::now();
    board.wait_for("end of a trial", |board| {
        let status = status(board)?;
        Ok(status["running"].is_object() && status["trial"].is_null())
    })?;
    runs(&board, &newer.version, "kept")?;
    if !is_ready(&board, "slow")? || is_ready(&board, "never")? {
        return Err(board.failed("the slow pod is not ready, or the one that never is"));
    }
    eprintln!(
        "{}: after a power cut during its trial, an update was kept after {:.0?}, when the slow pod was ready",
        profile.name,
        begun.elapsed()
    );
    Ok(())
}

/// Pushes updates that the board must reject without leaving anything behind.
fn reject(
    board: &Board,
    user: &User,
    nodlet: &Program,
    newer: &Program,
    owner: &Signer,
    stranger: &Signer,
) -> Outcome {
    let other = nodlet.with_version(3)?;
    let of_other = Signed { program: newer.bytes.clone(), ..owner.sign(&other)? };
    let mut cut = owner.sign(newer)?;
    // The last kilobyte belongs to no segment.
    cut.program.truncate(cut.program.len() - 10_000);
    for (update, why) in [
        (newer.unsigned(), "it is not signed"),
        (stranger.sign(newer)?, "a key that the board's profile does not name"),
        (of_other, "the signature is of other content"),
        (cut, "the file is incomplete"),
        (owner.sign(&newer.for_another_processor())?, "and this board is"),
        (
            owner.sign(&nodlet.with_version_text(&VERSION.replace(|c: char| c.is_ascii_digit(), "0"))?)?,
            "older than",
        ),
    ] {
        install(user, &update, 1, why)?;
        runs(board, VERSION, "image")?;
        board.expect("ls /var/lib/nodlet/system", "", "changes\n")?;
    }
    Ok(())
}

/// Requires that a second update is rejected while this one is on trial, and that the trial continues.
fn reject_second(board: &mut Board, version: &str) -> Outcome {
    let on_trial = |board: &Board| -> Result<bool, TaskError> {
        let status = board.output("nodlet system -o json")?;
        let json: Value = serde_json::from_str(&status).unwrap_or_default();
        Ok(json["trial"]["version"] == version)
    };
    board.wait_for("trial of an update", |board| on_trial(board))?;
    let second = board.ssh("nodlet system install /proc/1/exe", "")?;
    let said = text(&second.stderr);
    if second.status.code() == Some(1) && said.contains(" is on trial") && on_trial(board)? {
        return Ok(());
    }
    Err(board.failed(&format!("during a trial a second update ended with {}: {said}", second.status)))
}

/// Pushes an update, and requires this exit code and these words.
pub(super) fn install(user: &User, update: &Signed, code: i32, words: &str) -> Outcome {
    let output = user.nodlet(&["push", "--system", &write(user, update)?])?;
    let said = text(&output.stdout) + &text(&output.stderr);
    if output.status.code() == Some(code) && said.contains(words) {
        return Ok(());
    }
    Err(TaskError(format!("the update ended with {}, not {code} and {words:?}: {said}", output.status)))
}

/// Writes an update and its signature, if any, to files. Returns the path of the program.
fn write(user: &User, update: &Signed) -> Result<String, TaskError> {
    let file = user.directory().join("nodlet-update");
    fs::write(&file, &update.program)?;
    let signature = file.with_extension("minisig");
    if update.signature.is_empty() {
        drop(fs::remove_file(&signature))
    } else {
        fs::write(&signature, &update.signature)?
    }
    Ok(file.display().to_string())
}

/// Requires that the agent has this version and comes from there.
pub(super) fn runs(board: &Board, version: &str, from: &str) -> Outcome {
    let status = board.output("nodlet system -o json")?;
    let json: Value = serde_json::from_str(&status).unwrap_or_default();
    if json["running"]["version"] == version && json["running"]["from"] == from && json["trial"].is_null() {
        return Ok(());
    }
    Err(board.failed(&format!("nodlet {version} of {from} does not run: {status}")))
}

/// The properties that change if a container restarts: process, container ID, restarts and start time.
fn life(board: &Board) -> Result<String, TaskError> {
    let process = board.output("busybox pidof demo")?;
    let pod = board.output("nodlet get pod counter -o json")?;
    let pod: Value = serde_json::from_str(&pod).map_err(|_| board.failed("the counter's pod is no JSON"))?;
    let status = &pod["status"]["containerStatuses"][0];
    Ok(format!(
        "process {} {} {} {}",
        process.trim(),
        status["containerID"],
        status["restartCount"],
        status["state"]["running"]["startedAt"]
    ))
}

/// Requires that the counter continues without a gap, and never restarted.
fn no_container_noticed(board: &Board, before: &str) -> Outcome {
    let now = life(board)?;
    if now != before {
        return Err(board.failed(&format!("the counter was {before} and is {now}")));
    }
    let log = || board.output("nodlet logs counter");
    let first = log()?;
    for (number, line) in first.lines().enumerate() {
        if line != format!("tick {number}") {
            return Err(board.failed(&format!("line {number} of the counter is {line:?}")));
        }
    }
    let begun = Instant::now();
    while log()?.len() <= first.len() {
        if begun.elapsed() > super::PATIENCE {
            return Err(board.failed("the counter does not go on"));
        }
    }
    Ok(())
}

/// A nodlet program.
pub(super) struct Program {
    bytes: Vec<u8>,
    pub(super) version: String,
}

/// The first instruction of a broken program.
#[derive(Clone, Copy)]
pub(super) enum Instruction {
    Illegal,
    Loop,
}

impl Program {
    pub(super) fn read(path: &Path) -> Result<Program, TaskError> {
        Ok(Program { bytes: fs::read(path)?, version: VERSION.into() })
    }

    /// This program with a version that differs from nodlet's own only in the last digit, which is `digit`.
    pub(super) fn with_version(&self, digit: u8) -> Result<Program, TaskError> {
        let all_but_last = &VERSION[..VERSION.len() - 1];
        self.with_version_text(&format!("{all_but_last}{digit}"))
    }

    fn with_version_text(&self, version: &str) -> Result<Program, TaskError> {
        let known = format!("{MARK}{VERSION}\n");
        let mut places =
            self.bytes.windows(known.len()).enumerate().filter(|(_, at)| *at == known.as_bytes());
        let (Some((place, _)), None) = (places.next(), places.next()) else {
            return Err("the program has not exactly one mark with its version".into());
        };
        let mut bytes = self.bytes.clone();
        let new = format!("{MARK}{version}\n");
        bytes[place..place + known.len()].copy_from_slice(new.as_bytes());
        Ok(Program { bytes, version: version.to_owned() })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The program as an update without a signature.
    pub(super) fn unsigned(&self) -> Signed {
        Signed { program: self.bytes.clone(), signature: Vec::new() }
    }

    fn for_another_processor(&self) -> Program {
        let mut bytes = self.bytes.clone();
        let other = if u64::from(bytes[18]) == elf::EM_X86_64 { elf::EM_AARCH64 } else { elf::EM_X86_64 };
        bytes[18] = other as u8;
        Program { bytes, version: self.version.clone() }
    }

    /// This program with another first instruction: one that crashes, or one that loops.
    pub(super) fn begins_with(&self, instruction: Instruction) -> Result<Program, TaskError> {
        let code: [&[u8]; 2] = match elf::read(&self.bytes)?.machine {
            elf::EM_X86_64 => [&[0x0f, 0x0b], &[0xeb, 0xfe]],
            elf::EM_AARCH64 => [&[0, 0, 0, 0], &[0, 0, 0, 0x14]],
            elf::EM_RISCV => [&[0, 0, 0, 0], &[0x6f, 0, 0, 0]],
            elf::EM_ARM if self.entry()?.1 => [&[0xff, 0xde], &[0xfe, 0xe7]],
            elf::EM_ARM => [&[0xf0, 0, 0xf0, 0xe7], &[0xfe, 0xff, 0xff, 0xea]],
            other => return Err(TaskError(format!("nobody knows instructions of ELF machine {other}"))),
        };
        let code = match instruction {
            Instruction::Illegal => code[0],
            Instruction::Loop => code[1],
        };
        let mut bytes = self.bytes.clone();
        let place = self.entry()?.0;
        bytes[place..place + code.len()].copy_from_slice(code);
        Ok(Program { bytes, version: self.version.clone() })
    }

    /// The file offset of the first instruction, and whether its address is odd, as in Thumb code.
    fn entry(&self) -> Result<(usize, bool), TaskError> {
        const PT_LOAD: u64 = 1;
        let number = |at: usize, length: usize| {
            self.bytes[at..at + length].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let wide = self.bytes[4] == 2;
        let word = if wide { 8 } else { 4 };
        let entry = number(24, word);
        let (start, size, count) = if wide {
            (number(32, 8), number(54, 2), number(56, 2))
        } else {
            (number(28, 4), number(42, 2), number(44, 2))
        };
        for index in 0..count {
            let header = usize::try_from(start + index * size)?;
            // The type comes first, then offset and address, which in 64 bits follow the flags.
            let fields = header + word;
            let (offset, address) = (number(fields, word), number(fields + word, word));
            let length = number(header + if wide { 32 } else { 16 }, word);
            let address_of = entry & !u64::from(!wide);
            if number(header, 4) == PT_LOAD && (address..address + length).contains(&address_of) {
                return Ok((usize::try_from(address_of - address + offset)?, entry % 2 == 1));
            }
        }
        Err("no segment has the program's first instruction".into())
    }
}

/// A program with its signature, which may be empty.
pub(super) struct Signed {
    program: Vec<u8>,
    signature: Vec<u8>,
}

/// A pair of keys, and Debian's minisign, which signs with it.
struct Signer {
    secret_key: PathBuf,
    public_key: String,
}

impl Signer {
    fn new(directory: &Path, name: &str) -> Result<Signer, TaskError> {
        let (public, secret) = (directory.join(format!("{name}.pub")), directory.join(format!("{name}.key")));
        run_command(minisign()?.args(["-G", "-f", "-W", "-p"]).arg(&public).arg("-s").arg(&secret))?;
        let text = fs::read_to_string(&public)?;
        let key = text.lines().nth(1).ok_or("minisign writes a key to the second line")?;
        Ok(Signer { secret_key: secret, public_key: key.to_owned() })
    }

    fn sign(&self, program: &Program) -> Result<Signed, TaskError> {
        let file = self.secret_key.with_extension("program");
        fs::write(&file, &program.bytes)?;
        run_command(minisign()?.arg("-S").arg("-s").arg(&self.secret_key).arg("-m").arg(&file))?;
        let signature = fs::read(self.secret_key.with_extension("program.minisig"))?;
        Ok(Signed { program: program.bytes.clone(), signature })
    }
}

/// Debian's minisign with Debian's C library, whatever this machine has.
fn minisign() -> Result<Command, TaskError> {
    let (processor, libraries) = match targets::host()?.triple.split_once('-') {
        Some(("x86_64", _)) => ("amd64", "usr/lib/x86_64-linux-gnu"),
        _ => ("arm64", "usr/lib/aarch64-linux-gnu"),
    };
    let libc = debian::package("libc6", processor)?.join(libraries);
    let sodium = debian::package("libsodium23", processor)?.join(libraries);
    let mut command = Command::new(debian::only(&libc, "ld-linux")?);
    command
        .arg("--library-path")
        .arg(format!("{}:{}", libc.display(), sodium.display()))
        .arg(debian::package("minisign", processor)?.join("usr/bin/minisign"))
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null());
    Ok(command)
}
