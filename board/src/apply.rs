//! `nodlet apply`: makes the pods of manifests be. One that cannot be changed in place is
//! replaced; the agent does that, and judges the manifests.

use std::path::PathBuf;
use std::process::ExitCode;

use lexopt::{Parser, ValueExt};
use nodlet_runtime::manifest::Validation;

use crate::arguments::{Context, Flag};
use crate::client::{Client, encode};
use crate::files::{self, Object};
use crate::{Failure, Outcome, Verb};

pub(crate) const VERB: Verb = Verb {
    name: "apply",
    summary: "Make the pods of manifests run",
    help: "\
Make the pods of manifests run. A pod that is the same stays as it is, and one that
may be changed as it is, as with another image, is; another one is replaced when
it has ended.

Usage: nodlet apply -f FILE|DIR|- [flags]

Examples:
  # The pods of a file
  nodlet apply -f web.yaml

  # Those of a directory: see what would happen
  nodlet apply -f manifests/ --dry-run

  # From a pipe
  cat web.yaml | nodlet apply -f -

Flags:
  -f, --filename FILE|DIR|-   manifests in YAML or JSON; may be given several times
  -n, --namespace NAME        for manifests that name none, instead of default
      --dry-run               check it all, change nothing
      --validate HOW          what becomes of unknown fields: strict (refused), warn or ignore
      --root DIR              of the agent of this root
",
    run,
};

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let apply = Apply::parse(&mut context, &mut parser)?;
    let (objects, failures) = files::read(&apply.files, apply.validation)?;
    let client = Client::new(&context)?;
    let mut code = ExitCode::SUCCESS;
    for failure in failures {
        eprintln!("{failure}");
        code = ExitCode::FAILURE;
    }
    for object in &objects {
        for warning in &object.warnings {
            eprintln!("Warning: {}: {warning}", object.place);
        }
        match apply.object(&context, &client, object) {
            Ok(line) => println!("{line}"),
            // Without an agent there is no more to be tried.
            Err(failure) if failure.is_disconnected() => return Err(failure),
            Err(failure) => {
                eprintln!("{}: {failure}", object.place);
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Apply {
    files: Vec<PathBuf>,
    validation: Validation,
    dry_run: bool,
}

impl Apply {
    fn parse(context: &mut Context, parser: &mut Parser) -> Result<Apply, Failure> {
        let mut apply = Apply::default();
        while let Some(argument) = parser.next()? {
            if let lexopt::Arg::Value(value) = argument {
                return Err(context.wrong_use(format!("unexpected argument {value:?}")));
            }
            match Flag::from(argument) {
                Flag::Short('f') => apply.files.push(parser.value()?.into()),
                Flag::Long(name) => match name.as_str() {
                    "filename" => apply.files.push(parser.value()?.into()),
                    "dry-run" => apply.dry_run = dry_run(parser)?,
                    "validate" => apply.validation = validation(parser)?,
                    _ => context.namespaced(&Flag::Long(name), parser)?,
                },
                other => context.namespaced(&other, parser)?,
            }
        }
        if apply.files.is_empty() {
            return Err(context.wrong_use("must specify one of -f FILE, -f DIR and -f -"));
        }
        Ok(apply)
    }

    /// Sends one, and says what it did.
    fn object(&self, context: &Context, client: &Client, object: &Object) -> Result<String, Failure> {
        let namespace = context.namespace_of(&object.value)?;
        let applied = send(client, object, &namespace, self.validation, self.dry_run)?;
        for warning in &applied.warnings {
            eprintln!("Warning: {warning}");
        }
        let note = if self.dry_run { " (server dry run)" } else { "" };
        Ok(format!("{}{note}", applied.did))
    }
}

/// What an agent made of an object.
pub(crate) struct Applied {
    /// `pod/web configured`
    pub(crate) did: String,
    pub(crate) warnings: Vec<String>,
    /// As it is now.
    pub(crate) object: serde_json::Value,
}

/// Has the agent apply an object.
pub(crate) fn send(
    client: &Client,
    object: &Object,
    namespace: &str,
    validation: Validation,
    dry_run: bool,
) -> Result<Applied, Failure> {
    let (collection, kind) = object.collection(namespace);
    let how = match validation {
        Validation::Strict => "Strict",
        Validation::Warn => "Warn",
        Validation::Ignore => "Ignore",
    };
    let dry_run = if dry_run { "&dryRun=All" } else { "" };
    let query = format!("fieldManager=nodlet-apply&fieldValidation={how}{dry_run}");
    let (method, target) = match object.name() {
        Some(name) => ("PUT", format!("{collection}/{}?force=true&{query}", encode(name))),
        None => ("POST", format!("{collection}?{query}")),
    };
    let response = client.request(method, &target, "application/json", Some(&object.value))?;
    let did = response.header("nodlet-applied").unwrap_or("created").to_owned();
    let warnings = response.warnings();
    let object = response.json()?;
    let name = object["metadata"]["name"].as_str().unwrap_or("");
    Ok(Applied { did: format!("{kind}/{name} {did}"), warnings, object })
}

/// kubectl's `--dry-run=server`; there is nobody but the server to ask.
pub(crate) fn dry_run(parser: &mut Parser) -> Result<bool, Failure> {
    match parser.optional_value() {
        None => Ok(true),
        Some(value) => match value.to_string_lossy().as_ref() {
            "server" | "client" | "true" => Ok(true),
            "none" | "false" => Ok(false),
            other => Err(Failure::new(format!(
                "invalid dry-run value ({other}): must be \"none\", \"server\" or \"client\""
            ))),
        },
    }
}

pub(crate) fn validation(parser: &mut Parser) -> Result<Validation, Failure> {
    match parser.value()?.string()?.as_str() {
        "strict" | "true" => Ok(Validation::Strict),
        "warn" => Ok(Validation::Warn),
        "ignore" | "false" => Ok(Validation::Ignore),
        other => Err(Failure::new(format!(
            "invalid value {other:?} for --validate: must be \"strict\", \"warn\" or \"ignore\""
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::switch;

    #[test]
    fn arguments_of_apply() {
        let parse = |line: &str| {
            let mut context = Context::new();
            context.help = VERB.help;
            let mut parser = Parser::from_args(line.split_whitespace());
            Apply::parse(&mut context, &mut parser).map_err(|failure| failure.to_string())
        };
        let file = |apply: Apply| Apply { files: vec!["a.yaml".into()], ..apply };
        for (line, expected) in [
            ("-f a.yaml", file(Apply::default())),
            ("--filename=a.yaml --dry-run", file(Apply { dry_run: true, ..Apply::default() })),
            ("--dry-run=none -fa.yaml", file(Apply::default())),
            ("-f a.yaml --validate=warn", file(Apply { validation: Validation::Warn, ..Apply::default() })),
        ] {
            assert_eq!(parse(line), Ok(expected), "{line}");
        }
        for (line, expected) in [
            ("", "error: must specify one of -f FILE"),
            ("a.yaml", "error: unexpected argument \"a.yaml\""),
            ("-f a --dry-run=maybe", "error: invalid dry-run value (maybe)"),
            ("-f a --validate=hard", "error: invalid value \"hard\" for --validate"),
            ("-f a --prune", "error: unknown flag: --prune"),
        ] {
            let refused = parse(line).expect_err(line);
            assert!(refused.starts_with(expected), "{line}: {refused}");
        }
    }

    #[test]
    fn the_switch_is_not_taken_for_a_value() {
        let mut parser = Parser::from_args(["--all", "web"]);
        let _ = parser.next();
        assert_eq!(switch(&mut parser).map_err(|failure| failure.to_string()), Ok(true));
        assert!(matches!(parser.next(), Ok(Some(lexopt::Arg::Value(_)))));
    }
}
