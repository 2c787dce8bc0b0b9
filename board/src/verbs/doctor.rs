//! `nodlet doctor`: which requirements of pods this machine, or another kernel, meets and lacks. Reports what
//! each lack means, and what to do about it. Needs no agent, and leaves no changes.
//!
//! Read next: `doctor/features.rs`, the table of what a kernel must have.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lexopt::{Parser, ValueExt};

use crate::arguments::Context;
use crate::error::VerbError;
use crate::output;
use crate::verb::{Outcome, Verb};

mod cgroups;
mod config;
mod data_directory;
mod facts;
mod features;
mod judge;
mod kernel;
mod links;
mod machine;
mod mounts;
mod pod_network;
mod probe;
mod report;
mod volumes;

use self::config::Config;
use self::facts::Machine;
use self::report::{Area, Finding, Report};

pub(crate) const VERB: Verb = Verb {
    name: "doctor",
    summary: "Check whether this machine, or a kernel's configuration, has what pods need",
    run,
};

/// The exit code if nothing could be checked. 1 means that a requirement is missing.
const WRONG_USE: u8 = 2;

#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    kernel_config: Option<PathBuf>,
    identity: Option<PathBuf>,
    json: bool,
}

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let report = Arguments::parse(&mut context, &mut parser).and_then(|arguments| {
        if let Some(file) = &arguments.identity {
            return judge_identity(file).map(|report| (report, arguments.json));
        }
        let report = match &arguments.kernel_config {
            Some(path) => of_file(path)?,
            None => of_machine(&context.root),
        };
        Ok((report, arguments.json))
    });
    match report {
        Ok((report, json)) => {
            if json {
                println!("{}", output::json(&report.json()));
            } else {
                print!("{}", report.text());
            }
            Ok(if report.is_sufficient() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Err(failure) if failure.is_help() => Err(failure),
        Err(failure) => {
            eprintln!("{failure}");
            Ok(ExitCode::from(WRONG_USE))
        }
    }
}

impl Arguments {
    fn parse(context: &mut Context, parser: &mut Parser) -> Result<Arguments, VerbError> {
        let mut arguments = Arguments::default();
        while let Some(flag) = context.next_flag(parser)? {
            match flag.as_str() {
                "--kernel-config" => {
                    arguments.kernel_config = Some(parser.value()?.into());
                }
                "--identity" => {
                    arguments.identity = Some(parser.value()?.into());
                }
                "-o" | "--output" => match parser.value()?.string()?.as_str() {
                    "json" => arguments.json = true,
                    other => {
                        return Err(VerbError::new(format!(
                            "invalid value {other:?} for --output: must be json"
                        )));
                    }
                },
                other => context.global(other, parser)?,
            }
        }
        if arguments.kernel_config.is_some() && arguments.identity.is_some() {
            return Err(context.wrong_use("--kernel-config and --identity cannot be used together"));
        }
        Ok(arguments)
    }
}

/// Checks an identity file as a board would.
fn judge_identity(file: &Path) -> Result<Report, VerbError> {
    let shown = file.display().to_string();
    let failed = |error: &dyn std::fmt::Display| VerbError::new(format!("failed to read {shown}: {error}"));
    let judged = match crate::boot::read_short(file) {
        Ok(Some(text)) => crate::init::judge_identity(&text),
        Ok(None) => return Err(failed(&"there is no such file")),
        // Too long, or no text: a board rejects such a file, too.
        Err(error) if error.kind() == io::ErrorKind::Other => Err(error.to_string()),
        Err(error) => return Err(failed(&error)),
    };
    let finding = match judged {
        Ok(found) => Finding::ok(found),
        Err(why) => Finding::missing(why).because(
            "A board rejects the whole file and keeps the identity it had.",
            "Correct the lines that are named.",
        ),
    };
    let checks = Area::Machine.checks(vec![("identity", finding)]).collect();
    Ok(Report { subject: shown, checks })
}

fn of_file(path: &Path) -> Result<Report, VerbError> {
    let shown = path.display();
    let config = Config::read(path).map_err(|error| {
        VerbError::new(format!("failed to read the kernel configuration {shown}: {error}"))
    })?;
    let release = config.release.as_deref().map_or_else(String::new, |release| format!(", Linux {release}"));
    Ok(Report {
        subject: format!("the kernel configuration {shown}{release}"),
        checks: judge::judge_file(&config),
    })
}

fn of_machine(root: &Path) -> Report {
    let machine = Machine::observe(root);
    let mut checks = kernel::checks(&machine);
    checks.extend(Area::Cgroups.checks(cgroups::findings(&machine)));
    checks.extend(Area::Storage.checks(data_directory::findings(&machine)));
    checks.extend(Area::Storage.checks(volumes::findings(&machine)));
    checks.extend(Area::Network.checks(pod_network::findings(&machine)));
    checks.extend(Area::Machine.checks(machine::findings(&machine)));
    let user = if machine.is_root { "" } else { ", without root" };
    Report { subject: format!("Linux {} on {}{user}", machine.release, std::env::consts::ARCH), checks }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::check;

    #[test]
    fn arguments_are_a_file_and_a_format() {
        let file = || Some(PathBuf::from("f"));
        let accepted = [
            ("", Arguments::default()),
            ("-o json", Arguments { json: true, ..Arguments::default() }),
            ("--identity f", Arguments { identity: file(), ..Arguments::default() }),
            (
                "--kernel-config f --output=json",
                Arguments { kernel_config: file(), json: true, identity: None },
            ),
        ];
        let rejected = [
            ("--identity a --kernel-config b", "--kernel-config and --identity cannot be used together"),
            ("-o yaml", "invalid value \"yaml\" for --output: must be json"),
            ("kernel", "unexpected argument \"kernel\""),
            ("--kernel-config", "missing argument"),
            ("--nonsense", "unknown flag: --nonsense"),
        ];
        check(VERB.name, Arguments::parse, accepted, &rejected);
    }

    #[test]
    fn an_identity_is_judged_before_it_is_on_a_board() {
        let file = std::env::temp_dir().join(format!("nodlet-doctor-identity-{}", std::process::id()));
        let judge = |text: &str| {
            fs::write(&file, text).expect("written");
            judge_identity(&file).map_err(|failure| failure.to_string()).expect("it can be read")
        };
        let right = judge("name = gate-17\nlabel = site=hall-3\nnetwork = eth0 dhcp\nend\n");
        assert!(right.is_sufficient());
        assert!(right.text().contains("name gate-17, labels: 1, keys: 0, link eth0"), "{}", right.text());
        let wrong = judge("name = gate-17\nnmae = x\n");
        assert!(!wrong.is_sufficient());
        assert!(wrong.text().contains("line 2: unknown key \"nmae\""), "{}", wrong.text());
        assert!(!judge("").is_sufficient());
        let torn = judge("name = gate-17\n");
        assert!(torn.text().contains("its last line must be `end`"), "{}", torn.text());
        let long = judge(&"# nothing\n".repeat(2000));
        assert!(!long.is_sufficient() && long.text().contains("more than 16 KiB"), "{}", long.text());
        fs::remove_file(file).expect("removed");
    }
}
