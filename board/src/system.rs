//! `nodlet system` and `nodlet healthcheck`: updates of nodlet itself, on boards whose init is nodlet.
//!
//! The image's own nodlet is the fallback. An update is on the data partition ([`update_files`]). It is received
//! and verified ([`receive`]), tried ([`trial`]), and kept or given up; [`state`] is the state machine.
//! Process 1 and the command line always use the image's nodlet. Read next: `state.rs`.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use lexopt::{Parser, ValueExt};
use nodlet_host::paths::Paths;
use serde_json::json;

use crate::arguments::duration::duration;
use crate::arguments::{Context, next_flag, switch};
use crate::boot::{config, require_our_init, safe_mode};
use crate::client::Client;
use crate::client::watch::Watch;
use crate::error::VerbError;
use crate::verb::{Outcome, Verb};
use crate::{agent, output};

mod health;
mod receive;
mod state;
mod trial;
mod update_files;

use health::Pods;
use receive::VERSION;
pub(crate) use receive::{COMMENT, SIGNATURE_BYTES};
use state::{Before, Choice, Program, STARTS, State};
pub(crate) use trial::{agent_program, give_up_trial};
use update_files::UpdateFiles;

/// The path of the image's own nodlet.
const IMAGE: &str = "/usr/bin/nodlet";

/// The verb `nodlet system`.
pub(crate) const VERB: Verb =
    Verb { name: "system", summary: "Show or update the nodlet that runs this board", run };

/// The verb `nodlet healthcheck`.
pub(crate) const HEALTHCHECK: Verb =
    Verb { name: "healthcheck", summary: "Exit with code 0 if the agent is healthy", run: healthcheck };

fn healthcheck(mut context: Context, mut parser: Parser) -> Outcome {
    let (mut pods, mut within) = (Pods::Any, Duration::ZERO);
    while let Some(flag) = context.next_flag(&mut parser)? {
        match flag.as_str() {
            "--pods" => {
                pods = if switch(&mut parser)? { Pods::All } else { Pods::Any };
            }
            "--wait" => {
                within = duration(&mut parser, "--wait")?.unwrap_or_default();
            }
            other => context.global(other, &mut parser)?,
        }
    }
    let end = Instant::now() + within;
    let client = Client::local(&context.root);
    loop {
        let restart = client.watch_restart();
        match health::check(&context.root, &pods) {
            Ok(()) => return Ok(ExitCode::SUCCESS),
            Err(failure) if Instant::now() >= end => return Err(failure),
            // There is no agent. A new one creates its socket, which the watch reports.
            Err(failure) if failure.is_disconnected() => drop(restart.wait_for_agent(end)),
            Err(_) => health::wait_for_pods(&client, end),
        }
    }
}

/// The parsed command line of `nodlet system`.
#[derive(Default)]
struct Options {
    words: Vec<String>,
    allow_downgrade: bool,
    json: bool,
    signature: Option<PathBuf>,
    wait: bool,
}

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let mut options = Options::default();
    while let Some(flag) = next_flag(&mut parser, &mut options.words)? {
        match flag.as_str() {
            "--allow-downgrade" => options.allow_downgrade = switch(&mut parser)?,
            "--signature" => options.signature = Some(parser.value()?.into()),
            "--wait" => options.wait = switch(&mut parser)?,
            "-o" | "--output" => options.json = is_json(&mut parser)?,
            other => context.global(other, &mut parser)?,
        }
    }
    require_our_init(HERE_OTHERS_UPDATE)?;
    let files = UpdateFiles::new(&context.root);
    let words: Vec<&str> = options.words.iter().map(String::as_str).collect();
    match words[..] {
        [] | ["status"] => status(&context, &files, options.json),
        ["install", file] => {
            let version = install(&context, &files, file, &options)?;
            // The trial begins with the next start of the agent, which in safe mode only happens after a user
            // leaves it.
            if options.wait && safe_mode::is_safe().is_none() {
                return wait(&files, &version);
            }
            Ok(ExitCode::SUCCESS)
        }
        ["rollback"] => roll_back(&context, &files),
        ["install"] => Err(context.wrong_use("no file to install: name a FILE, or - for the standard input")),
        _ => Err(context.wrong_use(format!("unexpected argument {:?}", words[words.len() - 1]))),
    }
}

fn is_json(parser: &mut Parser) -> Result<bool, VerbError> {
    match parser.value()?.string()?.as_str() {
        "json" => Ok(true),
        _ => Err(VerbError::new("--output must be 'json'")),
    }
}

/// The advice of `system` on a machine with another init, where nodlet is installed by a package.
const HERE_OTHERS_UPDATE: &str = "update nodlet here with its package manager, such as \
                                  apt, and restart it, for example with `systemctl restart nodlet`";

fn install(
    context: &Context,
    files: &UpdateFiles,
    file: &str,
    options: &Options,
) -> Result<String, VerbError> {
    let rejected = |why: String| VerbError::new(format!("the update is rejected: {why}"));
    let rules = config::update_rules().map_err(failed("read the board's rules of updates"))?;
    files.create().map_err(failed("make the directory of updates"))?;
    let lock = files.lock(Duration::ZERO).map_err(failed("lock the updates"))?;
    let Some(lock) = lock else {
        return Err(VerbError::new("another update is being installed or is on trial: see `nodlet system`"));
    };
    let mut state = read(files);
    if let Some(trial) = &state.trial {
        return Err(VerbError::new(format!(
            "nodlet {} is on trial: wait for its end, or run `nodlet system rollback`",
            trial.program.version
        )));
    }
    let boot = trial::boot_id();
    let before = match health::before(&context.root, boot.clone()) {
        Ok(before) => before,
        // The board may need an update to get a working agent.
        Err(failure) if failure.is_disconnected() => {
            eprintln!(
                "warning: the health of the pods before the update is unknown, because no agent is running"
            );
            Before { boot, ..Before::default() }
        }
        Err(failure) => return Err(failure),
    };

    let input: Box<dyn Read> = match file {
        "-" => Box::new(std::io::stdin().lock()),
        path => Box::new(
            File::open(path).map_err(|error| VerbError::new(format!("failed to open {path}: {error}")))?,
        ),
    };
    let mut stream = BufReader::new(input);
    let leading = receive::leading_signature(&mut stream).map_err(|error| rejected(error.to_string()))?;
    let beside = (file != "-").then(|| PathBuf::from(format!("{file}.minisig"))).filter(|path| path.exists());
    let signature = match options.signature.clone().or(beside) {
        Some(path) => Some(read_signature(&path)?),
        None => leading,
    };
    let signed = receive::signed(&rules, signature.as_deref()).map_err(rejected)?;
    let mut own = [0; 64];
    File::open("/proc/self/exe")
        .and_then(|mut own_file| own_file.read_exact(&mut own))
        .map_err(failed("read this program"))?;
    let mut new = files.new_program().map_err(failed("make a file for the update"))?;
    let received = receive::program(&mut stream, signed.as_ref(), &own, &mut new, receive::MOST_BYTES);
    let image = update_files::digest_of(Path::new(IMAGE)).map_err(failed("read the image's nodlet"))?;
    let received = received.and_then(|received| {
        let running = state.kept.as_ref().map_or(VERSION, |kept| &kept.version);
        if state.kept.as_ref().map_or(&image, |kept| &kept.digest) == &received.digest {
            Err(format!("nodlet {}, with the same content, is already running", received.version).into())
        } else if receive::is_older(&received.version, running) && !options.allow_downgrade {
            Err(format!(
                "it is nodlet {}, older than the running {running}: add --allow-downgrade to install it anyway",
                received.version
            )
            .into())
        } else {
            Ok(received)
        }
    });
    let received = match received {
        Ok(received) => received,
        Err(error) => {
            files.clean(&state);
            return Err(rejected(nodlet_host::error::causes(&error)));
        }
    };
    files.add_program(new, &received.digest).map_err(failed("put the update in its place"))?;
    let version = received.version.clone();
    state.install(image, Program { digest: received.digest, version: received.version }, before);
    files.write(&state).map_err(failed("save the record of updates"))?;
    files.clean(&state);
    drop(lock);
    let seconds = rules.healthy_after;
    match safe_mode::is_safe() {
        None => println!("nodlet {version} is installed and on trial for {seconds} s"),
        Some(_) => println!(
            "nodlet {version} is installed; this board is in safe mode: `nodlet safe-mode --leave` reboots it, \
             and the trial of {seconds} s begins then"
        ),
    }
    // Process 1 then starts the new agent.
    agent::end_agent(&Paths::new(&context.root))?;
    Ok(version)
}

/// Reads the record of updates. A damaged record counts as empty: no update is started from it, and the next
/// installation replaces it.
fn read(files: &UpdateFiles) -> State {
    files.read().unwrap_or_else(|error| {
        eprintln!("warning: the record of updates is damaged, the image's nodlet runs: {error}");
        State::default()
    })
}

/// Returns a converter to a failure that names the operation.
fn failed(what: &'static str) -> impl Fn(std::io::Error) -> VerbError {
    move |error| VerbError::new(format!("failed to {what}: {error}"))
}

fn read_signature(path: &Path) -> Result<String, VerbError> {
    let failed =
        |error: std::io::Error| VerbError::new(format!("failed to read {}: {error}", path.display()));
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(receive::SIGNATURE_BYTES as u64).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Waits until no update is on trial any more.
fn wait(files: &UpdateFiles, version: &str) -> Outcome {
    let end = Instant::now() + trial::longest(&config::update_rules()?);
    loop {
        let change = Watch::of(files.directory());
        let state = files.read()?;
        if state.trial.is_none() {
            let returned = state.last.and_then(|last| last.returned);
            return match returned {
                None => {
                    println!("nodlet {version} is kept");
                    Ok(ExitCode::SUCCESS)
                }
                Some(why) => Err(VerbError::new(format!(
                    "nodlet {version} was rolled back, and the version before it runs again: {why}"
                ))),
            };
        }
        if !change.wait(end) {
            return Err(VerbError::new(format!("nodlet {version} is still on trial: see `nodlet system`")));
        }
    }
}

fn roll_back(context: &Context, files: &UpdateFiles) -> Outcome {
    let none = || Err(VerbError::new("the image's own nodlet is running: there is no previous version"));
    if !files.directory().is_dir() {
        return none();
    }
    let lock = files.lock(Duration::ZERO).map_err(failed("lock the updates"))?;
    let changing = files.changing().map_err(failed("lock the record of updates"))?;
    let mut state = read(files);
    // The process that watches a trial has the lock. It ends with its agent, and then releases the lock.
    if lock.is_none() && state.trial.is_none() {
        return Err(VerbError::new(
            "an update is being installed: retry when it is installed, see `nodlet system`",
        ));
    }
    if state.kept.is_none() && state.trial.is_none() {
        return none();
    }
    let why = "requested by a user";
    match &state.trial {
        Some(_) => state.go_back(why),
        None => state.give_up(why),
    }
    files.write(&state)?;
    files.clean(&state);
    println!("nodlet {} runs next", version_of(&state.settled()));
    drop(changing);
    drop(lock);
    agent::end_agent(&Paths::new(&context.root))?;
    Ok(ExitCode::SUCCESS)
}

fn version_of(choice: &Choice) -> &str {
    match choice {
        Choice::Image => VERSION,
        Choice::Kept(program) | Choice::Trial(program) => &program.version,
    }
}

fn status(context: &Context, files: &UpdateFiles, as_json: bool) -> Outcome {
    let state = read(files);
    let running = agent::executable(&Paths::new(&context.root));
    // The running program is what the agent executes, whatever the record says.
    let (mut version, mut from) = ("unknown", "none");
    if let Some(path) = &running {
        let programs = state.trial.iter().map(|trial| &trial.program).chain(&state.kept);
        let mut of = programs.filter(|program| files.program(&program.digest) == *path);
        (version, from) = match of.next() {
            Some(program) if state.kept.as_ref() == Some(program) => (program.version.as_str(), "kept"),
            Some(program) => (program.version.as_str(), "trial"),
            None => (VERSION, "image"),
        };
    }
    if as_json {
        let status = json!({
            "image": VERSION,
            "running": running.is_some().then(|| json!({"version": version, "from": from})),
            "kept": state.kept.as_ref().map(|kept| &kept.version),
            "trial": state.trial.as_ref().map(|trial| json!({
                "version": trial.program.version, "starts": trial.starts, "ofStarts": STARTS})),
            "last": state.last.as_ref().map(|last| json!({
                "version": last.version, "outcome": if last.returned.is_none() { "kept" } else { "returned" },
                "reason": last.returned})),
        });
        println!("{}", output::json(&status));
        return Ok(ExitCode::SUCCESS);
    }
    match from {
        "none" => println!("Running:      no agent"),
        "kept" => println!("Running:      nodlet {version}, an update"),
        "trial" => println!("Running:      nodlet {version}, an update on trial"),
        _ => println!("Running:      nodlet {version}, of the image"),
    }
    println!("Image:        nodlet {VERSION}");
    if let Some(trial) = &state.trial {
        println!("On trial:     nodlet {}, start {} of {STARTS}", trial.program.version, trial.starts);
    }
    if let Some(last) = &state.last {
        match &last.returned {
            None => println!("Last update:  nodlet {}, kept", last.version),
            Some(why) => println!("Last update:  nodlet {}, given up: {why}", last.version),
        }
    }
    Ok(ExitCode::SUCCESS)
}
