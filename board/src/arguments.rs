//! The parts of the command line that all verbs share.

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::{Arg, Parser, ValueExt};

use crate::error::VerbError;
use crate::help;

pub(crate) mod duration;

/// The root, board and namespace on which a verb acts.
pub(crate) struct Context {
    pub(crate) root: PathBuf,
    root_given: bool,
    /// The board given by `--board`, which is reached by ssh.
    pub(crate) board: Option<String>,
    /// The namespace given by `-n`; `default` without it.
    pub(crate) namespace: String,
    namespace_given: bool,
    pub(crate) verb: &'static str,
}

/// Flags of kubectl that the verb of the same name lacks: kubectl works with the agent, too.
const KUBECTLS: &[&str] = &[
    "--all-containers",
    "--prefix",
    "--prune",
    "--recursive",
    "--selector",
    "--sort-by",
    "--template",
    "-l",
];

impl Context {
    pub(crate) fn new() -> Self {
        let root = std::env::var_os("NODLET_ROOT").filter(|root| !root.is_empty());
        Context {
            root: root.map_or_else(|| "/".into(), PathBuf::from),
            root_given: false,
            board: std::env::var("NODLET_BOARD").ok().filter(|board| !board.is_empty()),
            namespace: "default".into(),
            namespace_given: false,
            verb: "",
        }
    }

    /// The next flag, as `-c` or `--container`, of a verb without other arguments.
    pub(crate) fn next_flag(&self, parser: &mut Parser) -> Result<Option<String>, VerbError> {
        match next(parser)? {
            Some(Argument::Value(value)) => Err(self.wrong_use(format!("unexpected argument {value:?}"))),
            Some(Argument::Flag(flag)) => Ok(Some(flag)),
            None => Ok(None),
        }
    }

    /// Parses the arguments of a verb that has none of its own.
    pub(crate) fn no_arguments(&mut self, parser: &mut Parser) -> Result<(), VerbError> {
        while let Some(flag) = self.next_flag(parser)? {
            self.global(&flag, parser)?;
        }
        Ok(())
    }

    /// Parses a flag that every verb has. Rejects any other flag by its name.
    pub(crate) fn global(&mut self, flag: &str, parser: &mut Parser) -> Result<(), VerbError> {
        match flag {
            "--root" => {
                self.root = parser.value()?.into();
                self.root_given = true;
            }
            "--board" => self.board = Some(parser.value()?.string()?),
            "-h" | "--help" => return Err(VerbError::help()),
            _ => {
                let see = match self.verb {
                    "" => "nodlet --help".into(),
                    verb => format!("nodlet {verb} --help"),
                };
                let kubectls = if KUBECTLS.contains(&flag) { ", which kubectl has" } else { "" };
                return Err(VerbError::new(format!(
                    "unknown flag: {flag}{kubectls}\nSee '{see}' for usage."
                )));
            }
        }
        Ok(())
    }

    /// The value of `--root`. With `--board` it is a path on the board, whereas `NODLET_ROOT` is a path on
    /// this machine.
    pub(crate) fn root_given(&self) -> Option<&std::path::Path> {
        self.root_given.then_some(&*self.root)
    }

    /// Parses a flag of [`Context::global`] or `-n NAMESPACE`.
    pub(crate) fn namespaced(&mut self, flag: &str, parser: &mut Parser) -> Result<(), VerbError> {
        if !["-n", "--namespace"].contains(&flag) {
            return self.global(flag, parser);
        }
        self.namespace = parser.value()?.string()?;
        self.namespace_given = true;
        Ok(())
    }

    /// The namespace of an object from a file: the object's own, or the one of the command line.
    pub(crate) fn namespace_of(&self, object: &serde_json::Value) -> Result<String, VerbError> {
        match object["metadata"]["namespace"].as_str() {
            None | Some("") => Ok(self.namespace.clone()),
            Some(own) if self.namespace_given && own != self.namespace => Err(VerbError::new(format!(
                "the namespace from the provided object {own:?} does not match the namespace {:?}. You must pass \
                 '--namespace={own}' to perform this operation.",
                self.namespace
            ))),
            Some(own) => Ok(own.into()),
        }
    }

    /// Reports that a list is empty, of the namespace or, for `all`, of all.
    pub(crate) fn none_found(&self, what: &str, all: bool) {
        if all {
            eprintln!("No {what} found")
        } else {
            eprintln!("No {what} found in {} namespace.", self.namespace)
        }
    }

    /// A failure for a missing or superfluous argument, with the verb's usage line.
    pub(crate) fn wrong_use(&self, why: impl std::fmt::Display) -> VerbError {
        let help = help::of(self.verb);
        let usage = help.lines().find(|line| line.starts_with("Usage:")).unwrap_or("");
        VerbError::new(format!("{why}\n{usage}\nSee 'nodlet {} --help' for more.", self.verb))
    }
}

/// An argument, copied so that it no longer borrows from the parser.
pub(crate) enum Argument {
    /// A flag, as `-c` or `--container`.
    Flag(String),
    Value(OsString),
}

/// The next argument.
pub(crate) fn next(parser: &mut Parser) -> Result<Option<Argument>, VerbError> {
    Ok(parser.next()?.map(|argument| match argument {
        Arg::Short(letter) => Argument::Flag(format!("-{letter}")),
        Arg::Long(name) => Argument::Flag(format!("--{name}")),
        Arg::Value(value) => Argument::Value(value),
    }))
}

/// The next flag, as `-c` or `--container`. Adds the other arguments before it to `values`.
pub(crate) fn next_flag(parser: &mut Parser, values: &mut Vec<String>) -> Result<Option<String>, VerbError> {
    loop {
        match next(parser)? {
            Some(Argument::Value(value)) => values.push(value.string()?),
            Some(Argument::Flag(flag)) => return Ok(Some(flag)),
            None => return Ok(None),
        }
    }
}

/// Like [`next_flag`], for a verb with a command: all arguments after `--` are the command, even if they look like flags.
pub(crate) fn next_flag_before_command(
    parser: &mut Parser,
    values: &mut Vec<String>,
    command: &mut Vec<String>,
) -> Result<Option<String>, VerbError> {
    loop {
        if parser.try_raw_args().is_some_and(|raw| raw.peek().is_some_and(|next| next == "--")) {
            for value in parser.raw_args()?.skip(1) {
                command.push(value.string()?);
            }
            return Ok(None);
        }
        match next(parser)? {
            Some(Argument::Value(value)) => values.push(value.string()?),
            Some(Argument::Flag(flag)) => return Ok(Some(flag)),
            None => return Ok(None),
        }
    }
}

/// Parses the value of a flag that may be given as `--flag`, `--flag=true` or `--flag=false`.
pub(crate) fn switch(parser: &mut Parser) -> Result<bool, VerbError> {
    match parser.optional_value() {
        None => Ok(true),
        Some(value) => match value.to_string_lossy().as_ref() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            other => Err(VerbError::new(format!("invalid value {other:?}: must be true or false"))),
        },
    }
}

/// Parses the number that follows a flag. The error names the flag.
pub(crate) fn number(parser: &mut Parser, flag: &str) -> Result<u64, VerbError> {
    value(parser, flag, |text| text.parse().or(Err("a whole number, 0 or more")))
}

/// The value of a flag as `read` reads it. The error of `read` is what the value must be.
pub(crate) fn value<T, E: std::fmt::Display>(
    parser: &mut Parser,
    flag: &str,
    read: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, VerbError> {
    let text = parser.value()?.string()?;
    read(&text).map_err(|how| refused(flag, &text, how))
}

/// The error of an invalid value of a flag, with what it must be.
pub(crate) fn refused(flag: &str, value: &str, how: impl std::fmt::Display) -> VerbError {
    VerbError::new(format!("invalid value {value:?} for {flag}: must be {how}"))
}

/// The number of edits between two words (Levenshtein distance).
pub(crate) fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, letter) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_verb_suggests_the_closest_verb() {
        for (from, to, expected) in [("get", "get", 0), ("gte", "get", 2), ("logs", "log", 1), ("", "get", 3)]
        {
            assert_eq!(distance(from, to), expected, "{from} {to}");
        }
    }
}
