//! The arguments of `nodlet push`.

use std::path::PathBuf;
use std::time::Duration;

use lexopt::Parser;
use nodlet_kube::manifest::Validation;

use super::system::Update;
use crate::arguments::duration::go_duration;
use crate::arguments::{Argument, Context, next, number, switch};
use crate::error::VerbError;
use crate::verbs::apply;

/// How often in a row a connection is retried after the line dropped. Including the pauses this takes longer
/// than a board needs to notice that the line is gone.
const RETRIES: u32 = 6;

/// The default time for pods to become ready.
const WAIT: Duration = Duration::from_secs(120);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Push {
    pub(super) paths: Vec<PathBuf>,
    pub(super) retries: u32,
    pub(super) wait: Option<Duration>,
    pub(super) dry_run: bool,
    pub(super) validation: Validation,
    /// An update of nodlet, which is sent instead of images and manifests.
    pub(super) update: Option<Update>,
}

impl Default for Push {
    fn default() -> Push {
        Push {
            paths: Vec::new(),
            retries: RETRIES,
            wait: None,
            dry_run: false,
            validation: Validation::default(),
            update: None,
        }
    }
}

impl Push {
    pub(super) fn parse(context: &mut Context, parser: &mut Parser) -> Result<Push, VerbError> {
        let mut push = Push::default();
        let mut update = Update::default();
        // The last flag that only images and manifests accept, and the last that only an update accepts.
        let (mut of_files, mut of_update) = (None, None);
        while let Some(argument) = next(parser)? {
            let flag = match argument {
                Argument::Flag(flag) => flag,
                Argument::Value(value) => {
                    push.paths.push(value.into());
                    continue;
                }
            };
            match flag.as_str() {
                "--wait" => {
                    let given = parser.optional_value().map(|value| value.to_string_lossy().into_owned());
                    push.wait = match given {
                        Some(text) => go_duration("--wait", &text)?,
                        None => Some(WAIT),
                    };
                }
                "--dry-run" => push.dry_run = apply::dry_run(parser)?,
                "--validate" => push.validation = apply::validation(parser)?,
                "--retries" => {
                    push.retries = u32::try_from(number(parser, "--retries")?).unwrap_or(u32::MAX);
                }
                "--system" => update.program = parser.value()?.into(),
                "--signature" => update.signature = Some(parser.value()?.into()),
                "--allow-downgrade" => {
                    update.options.clear();
                    if switch(parser)? {
                        update.options.push("--allow-downgrade".into());
                    }
                }
                other => context.namespaced(other, parser)?,
            }
            match flag.as_str() {
                "--system" | "--root" | "--board" => {}
                "--signature" | "--allow-downgrade" => of_update = Some(flag),
                _ => of_files = Some(flag),
            }
        }
        match (&context.board, push.paths.first()) {
            (None, Some(path)) if path.is_file() => {
                return Err(context.wrong_use(format!(
                    "{path:?} is a file: the first argument must be the board, such as root@board"
                )));
            }
            (None, Some(_)) => {
                context.board = Some(push.paths.remove(0).to_string_lossy().into_owned());
            }
            (Some(board), Some(path)) if path.to_string_lossy().contains('@') && !path.exists() => {
                return Err(context.wrong_use(format!(
                    "{path:?} is neither a file nor a directory, and --board or $NODLET_BOARD names the board already: \
                     {board}"
                )));
            }
            _ => {}
        }
        let is_update = !update.program.as_os_str().is_empty();
        match (is_update, push.paths.first(), of_files, of_update) {
            (true, _, Some(flag), _) => {
                let hint = if flag == "--wait" { ": a push of an update always waits" } else { "" };
                Err(context.wrong_use(format!("{flag} cannot be used with --system{hint}")))
            }
            (true, Some(path), ..) => Err(context.wrong_use(format!(
                "--system accepts no other files: push {path:?} separately, before or after the update"
            ))),
            (true, None, ..) if context.board.is_none() => {
                Err(context.wrong_use("a board for the update is required"))
            }
            (true, None, ..) => {
                update.options.push("--wait".into());
                push.update = Some(update);
                Ok(push)
            }
            (false, .., Some(flag)) => {
                Err(context.wrong_use(format!("{flag} is for an update: add --system FILE")))
            }
            (false, None, ..) => {
                Err(context.wrong_use("a board, and files or directories for it, are required"))
            }
            (false, Some(_), ..) => Ok(push),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check;
    use crate::verbs::push::VERB;

    #[test]
    fn arguments_of_an_update() {
        let update = |signature: Option<&str>, options: &[&str]| {
            let options = options.iter().map(|option| option.into()).collect();
            let update = Update { program: "n".into(), signature: signature.map(PathBuf::from), options };
            Push { update: Some(update), ..Push::default() }
        };
        let accepted = [
            ("b --system n", update(None, &["--wait"])),
            ("--board b --system=n --signature s", update(Some("s"), &["--wait"])),
            ("--allow-downgrade b --system n", update(None, &["--allow-downgrade", "--wait"])),
        ];
        let rejected = [
            ("b --system n web.yaml", "--system accepts no other files: push \"web.yaml\""),
            ("b --system n --dry-run", "--dry-run cannot be used with --system"),
            ("b --system n --wait", "--wait cannot be used with --system: a push of an update always"),
            ("b --system n -n kitchen", "-n cannot be used with --system"),
            ("b --system n --namespace=kitchen", "--namespace cannot be used with"),
            ("b --system n --retries 3", "--retries cannot be used with"),
            ("b web.yaml --retries few", "invalid value \"few\" for --retries"),
            ("b --system n --validate warn", "--validate cannot be used with"),
            ("b web.yaml --signature s", "--signature is for an update"),
            ("b web.yaml --allow-downgrade", "--allow-downgrade is for an update"),
            ("--system n", "a board for the update is required"),
            ("b --system", "missing argument"),
            ("b", "a board, and files or directories"),
        ];
        check(VERB.name, Push::parse, accepted, &rejected);
    }
}
