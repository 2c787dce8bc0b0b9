//! The binary `nodlet`: agent and supervisor of pods, and the verbs of the command line.
//!
//! This file only leads from the arguments to a verb; `verbs` has a file for each. Verbs are clients of the
//! agent's API ([`client`]) and keep no state. Read next: `verbs/get.rs`, the simplest verb.

use std::process::ExitCode;

// First, so that its `println!` and `eprintln!` are those of all modules below.
#[macro_use]
mod output;

mod agent;
mod arguments;
mod board_json;
mod boot;
mod client;
mod error;
mod help;
mod init;
mod pidfd;
mod system;
#[cfg(test)]
mod testing;
mod verb;
mod verbs;

use arguments::{Argument, Context};
use error::VerbError;
use verb::Outcome;
use verbs::{VERBS, image, machine_verbs, push, version};

fn main() -> ExitCode {
    // This comes first, because process 1 would keep any change made here.
    if init::is_init() {
        init::run();
    }
    if std::env::args_os().nth(1).is_some_and(|verb| verb == "init") {
        eprintln!(
            "nodlet init is started by the kernel as process 1 of a device image, and does nothing here"
        );
        return ExitCode::FAILURE;
    }
    restrict_umask();
    wait_for_children();
    // The role that the agent executes for each pod; it is no verb. It must start before anything is
    // allocated.
    if std::env::args_os().nth(1).is_some_and(|verb| verb == "supervisor") {
        nodlet_supervisor::run(std::env::args_os().skip(2));
    }
    // The role that `image load` executes to read an archive; it is no verb either.
    if std::env::args_os().nth(1).is_some_and(|verb| verb == image::UNPACK) {
        return nodlet_rootfs::run_unpacker();
    }
    // The role that the agent executes for each push, with the connection as standard input; no verb either.
    if std::env::args_os().nth(1).is_some_and(|verb| verb == push::RECEIVE) {
        let mut arguments = std::env::args_os().skip(2);
        return push::receive(arguments.next().unwrap_or_default().as_ref(), arguments.next().as_deref());
    }
    // The role that the agent executes for each image that it pulls; no verb either.
    if std::env::args_os().nth(1).is_some_and(|verb| verb == nodlet_runtime::engine::PULL) {
        return image::pull::run_for_pod(std::env::args().skip(2));
    }
    match run() {
        Ok(code) => output::code(code),
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome {
    let mut parser = lexopt::Parser::from_env();
    let mut context = Context::new();
    while let Some(argument) = arguments::next(&mut parser)? {
        match argument {
            Argument::Value(name) => {
                let name = name.to_string_lossy();
                if name == "help" {
                    return print_help(&context, parser);
                }
                let verb =
                    VERBS.iter().find(|verb| verb.name == name).ok_or_else(|| unknown(&context, &name))?;
                context.verb = verb.name;
                if verb.name != agent::VERB.name {
                    reset_sigpipe();
                }
                if let Some(outcome) = machine_verbs::run_on_board(verb.name, &context, &mut parser) {
                    return outcome;
                }
                return match (verb.run)(context, parser) {
                    Err(failure) if failure.is_help() => {
                        reset_sigpipe();
                        println!("{}", help::of(verb.name));
                        Ok(ExitCode::SUCCESS)
                    }
                    outcome => outcome,
                };
            }
            Argument::Flag(flag) => match flag.as_str() {
                "-h" | "--help" => return print_help(&context, parser),
                "--version" => {
                    reset_sigpipe();
                    return (version::VERB.run)(context, parser);
                }
                flag => context.global(flag, &mut parser)?,
            },
        }
    }
    print_help(&context, parser)
}

/// Sets a umask such that only the owner can write to new files, whatever umask the caller has. Permissions
/// that the caller's umask denies stay denied. Agent and supervisors set their own umask.
fn restrict_umask() {
    use nix::sys::stat::{Mode, umask};
    // The umask cannot be read without setting it.
    let callers = umask(Mode::from_bits_truncate(0o077));
    umask(callers | Mode::from_bits_truncate(0o022));
}

/// Resets SIGCHLD: if the caller ignores it, waiting for children fails.
fn wait_for_children() {
    let _ = nodlet_kernel::signal::reset(libc::SIGCHLD);
}

/// Resets SIGPIPE, so that `nodlet get pods | head` ends silently, as other tools do. Not for the agent,
/// which must not end because a reader of its log has gone, or because a process has closed its input while a
/// client keeps writing.
fn reset_sigpipe() {
    let _ = nodlet_kernel::signal::reset(libc::SIGPIPE);
}

fn print_help(context: &Context, mut parser: lexopt::Parser) -> Outcome {
    reset_sigpipe();
    if let Ok(Some(lexopt::Arg::Value(name))) = parser.next() {
        let name = name.to_string_lossy();
        let verb = VERBS.iter().find(|verb| verb.name == name).ok_or_else(|| unknown(context, &name))?;
        println!("{}", help::of(verb.name));
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "nodlet runs Kubernetes Pods on small boards.\n\nUsage: nodlet [--board [USER@]BOARD[:PORT]] [--root DIR] VERB\n\nVerbs:"
    );
    for verb in VERBS.iter().filter(|verb| !verb.summary.is_empty()) {
        println!("  {:<13} {}", verb.name, verb.summary);
    }
    println!(
        "\nOptions:\n  --board [USER@]BOARD[:PORT]   run the verb on this board, over ssh (or $NODLET_BOARD)\n  \
         --root DIR                    where all of nodlet's files are, instead of / (or $NODLET_ROOT)\n\n\
         `nodlet VERB --help` describes a verb. kubectl works too: the agent serves the Kubernetes API."
    );
    Ok(ExitCode::SUCCESS)
}

/// Verbs of kubectl that nodlet lacks, and that work with any server.
const KUBECTLS: &[&str] = &[
    "annotate",
    "api-resources",
    "api-versions",
    "auth",
    "cluster-info",
    "cp",
    "create",
    "diff",
    "edit",
    "explain",
    "label",
    "patch",
    "proxy",
    "replace",
    "run",
    "set",
    "wait",
];

/// Commands of other tools, and what does the same here.
const OURS: &[(&str, &str)] = &[
    ("build", "'podman build' or 'docker build' on another machine, and 'nodlet image load FILE'"),
    ("images", "'nodlet image ls'"),
    ("inspect", "'nodlet describe pod POD'"),
    ("kill", "'nodlet delete pod POD --now'"),
    ("list", "'nodlet get pods'"),
    ("load", "'nodlet image load FILE'"),
    ("pods", "'nodlet get pods'"),
    ("ps", "'nodlet get pods'"),
    ("pull", "'nodlet image pull NAME'"),
    ("rm", "'nodlet delete pod POD'"),
    ("rmi", "'nodlet image rm NAME'"),
    ("rollout", "'nodlet restart POD' after 'nodlet image load FILE', or 'nodlet apply -f FILE'"),
    ("shutdown", "'nodlet poweroff', or 'nodlet down' to end only the pods and the agent"),
    ("start", "'nodlet apply -f FILE'"),
    ("status", "'nodlet get pods', 'nodlet events' and 'nodlet describe node'"),
    ("stop", "'nodlet delete pod POD'"),
    ("top", "'nodlet describe node' for what pods request, and 'systemd-cgtop' for what they use"),
    ("update", "'nodlet system install FILE', or 'nodlet image load FILE' for the image of a pod"),
    ("upgrade", "'nodlet system install FILE', or 'nodlet image load FILE' for the image of a pod"),
];

/// Verbs of kubectl for features that a board does not have.
const OF_CLUSTERS: &[&str] = &["autoscale", "cordon", "drain", "expose", "scale", "taint", "uncordon"];

fn unknown(context: &Context, name: &str) -> VerbError {
    let see = "See 'nodlet --help' for usage.";
    if let Some((_, ours)) = OURS.iter().find(|(theirs, _)| *theirs == name) {
        return VerbError::new(format!("unknown command {name:?} for \"nodlet\"\n\nUse {ours}.\n\n{see}"));
    }
    let closest = VERBS
        .iter()
        .filter(|verb| !verb.summary.is_empty())
        .map(|verb| (arguments::distance(name, verb.name), verb.name))
        .min()
        .filter(|&(distance, _)| distance <= 2 && !KUBECTLS.contains(&name) && !OF_CLUSTERS.contains(&name));
    let hint = match closest {
        Some((_, verb)) => format!("\n\nDid you mean this?\n\t{verb}"),
        None if KUBECTLS.contains(&name) => format!(
            "\n\n'kubectl {name}' works with this agent, which serves the Kubernetes API on {}",
            context.root.join("run/nodlet/api.sock").display()
        ),
        None if OF_CLUSTERS.contains(&name) => {
            format!("\n\n'kubectl {name}' is for clusters: a board has only pods")
        }
        None => String::new(),
    };
    VerbError::new(format!("unknown command {name:?} for \"nodlet\"{hint}\n\n{see}"))
}
