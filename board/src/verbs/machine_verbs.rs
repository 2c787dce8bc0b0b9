//! Verbs that work on the machine itself, without an agent: with `--board` they run on the board as they are.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use lexopt::Parser;

use crate::arguments::Context;
use crate::client::remote::Remote;
use crate::error::VerbError;
use crate::verb::Outcome;
use crate::verbs::push::system::Update;

/// Verbs that work on the machine and not through its agent: with `--board` they run on the board.
const MACHINE_VERBS: &[&str] = &[
    "image",
    "doctor",
    "reboot",
    "poweroff",
    "down",
    "join",
    "leave",
    "safe-mode",
    "identity",
    "factory-reset",
    "system",
    "healthcheck",
];

/// Runs a verb of [`MACHINE_VERBS`] on the board, if one is named before or after the verb.
pub(crate) fn run_on_board(verb: &str, context: &Context, parser: &mut Parser) -> Option<Outcome> {
    let mut given = parser.raw_args().ok()?;
    if !MACHINE_VERBS.contains(&verb) {
        return None;
    }
    let (mut board, mut root) = (context.board.clone(), context.root_given().map(Path::to_owned));
    let mut arguments = vec![OsString::from(verb)];
    let mut help = false;
    // The parser still belongs to the caller: no arguments may be consumed here.
    let all: Vec<OsString> = given.by_ref().collect();
    let mut rest = all.iter();
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy();
        match text.split_once('=') {
            Some(("--board", value)) => board = Some(value.to_owned()),
            Some(("--root", value)) => root = Some(value.into()),
            _ if text == "--board" => board = Some(rest.next()?.to_string_lossy().into_owned()),
            _ if text == "--root" => root = Some(rest.next()?.into()),
            _ => {
                help |= text == "--help" || text == "-h";
                arguments.push(argument.clone());
            }
        }
    }
    *parser = Parser::from_args(all);
    // The help is the same here.
    let board = board.filter(|_| !help)?;
    Some(Remote::new(&board, root.as_deref()).and_then(|remote| {
        if let Some(update) = update(&arguments) {
            return update?.send(&remote);
        }
        let stdin = stdin(&mut arguments)?;
        remote.run(&arguments, stdin)
    }))
}

/// For `system install FILE`, the update to send with its signature. `None` for anything else.
fn update(arguments: &[OsString]) -> Option<Result<Update, VerbError>> {
    if arguments.first()? != "system" || !arguments.iter().any(|argument| argument == "install") {
        return None;
    }
    let mut update = Update::default();
    let mut words = 0;
    let mut rest = arguments[1..].iter();
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy();
        match text.strip_prefix("--signature=") {
            Some(path) => update.signature = Some(path.into()),
            None if text == "--signature" => update.signature = rest.next().map(PathBuf::from),
            None if text.starts_with('-') && text != "-" => update.options.push(argument.clone()),
            None => {
                words += 1;
                match words {
                    1 if text == "install" => {}
                    2 => update.program = argument.into(),
                    // The board rejects the flag by its name.
                    _ => return None,
                }
            }
        }
    }
    match update.program.to_str() {
        // With `-`, the caller puts the signature before the program.
        Some("-") if update.signature.is_some() => Some(Err(VerbError::new(
            "--signature needs a FILE to install: - has its signature before the program",
        ))),
        Some("" | "-") => None,
        _ => Some(Ok(update)),
    }
}

/// Opens the local FILE of `image load FILE` or `identity FILE` as the verb's standard input.
fn stdin(arguments: &mut [OsString]) -> Result<Stdio, VerbError> {
    let words = match arguments {
        [verb, ..] if verb == "identity" => 1,
        [verb, load, ..] if verb == "image" && load == "load" => 2,
        _ => return Ok(Stdio::inherit()),
    };
    let mut of_option = false;
    for argument in &mut arguments[words..] {
        let text = argument.to_string_lossy();
        if of_option {
            of_option = false;
        } else if text == "-" {
            break;
        } else if text.starts_with('-') {
            of_option = text == "--platform" || text == "--name";
        } else {
            let failed = |error| VerbError::new(format!("failed to open {text}: {error}"));
            let file = File::open(&*text).map_err(failed)?;
            if file.metadata().map_err(failed)?.is_dir() {
                let instead = if words == 2 { ": `nodlet push` sends one" } else { "" };
                return Err(VerbError::new(format!("{text} is a directory{instead}")));
            }
            *argument = "-".into();
            return Ok(file.into());
        }
    }
    Ok(Stdio::inherit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_a_verb_of_a_board_reads_is_opened_on_this_machine() {
        let file = std::env::temp_dir().join(format!("nodlet-sent-{}", std::process::id()));
        std::fs::write(&file, "name = a\nend\n").expect("written");
        let shown = file.display().to_string();
        for (line, sent) in [
            (format!("identity {shown}"), "identity -"),
            (format!("image load --name a {shown}"), "image load --name a -"),
            (format!("doctor --identity {shown}"), &format!("doctor --identity {shown}")),
            ("identity -".to_owned(), "identity -"),
        ] {
            let mut arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert!(stdin(&mut arguments).is_ok(), "{line}");
            assert_eq!(arguments.join(" ".as_ref()), sent, "{line}");
        }
        std::fs::remove_file(&file).expect("removed");
        let missing = stdin(&mut ["identity".into(), file.into()]).expect_err("it does not exist");
        assert!(missing.to_string().contains("failed to open "), "{missing}");
    }

    #[test]
    fn the_file_of_an_update_for_a_board_is_read_on_this_machine() {
        let of = |line: &str| {
            let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            update(&arguments).map(|update| update.map_err(|failure| failure.to_string()))
        };
        let expected = |signature: Option<&str>, options: &[&str]| {
            let options = options.iter().map(OsString::from).collect();
            Some(Ok(Update { program: "n".into(), signature: signature.map(PathBuf::from), options }))
        };
        assert_eq!(of("system install n --wait"), expected(None, &["--wait"]));
        assert_eq!(
            of("system --signature s install --allow-downgrade n"),
            expected(Some("s"), &["--allow-downgrade"])
        );
        assert_eq!(of("system install --signature=s n"), expected(Some("s"), &[]));
        for line in [
            "system",
            "system status",
            "system install",
            "system install -",
            "system install n m",
            "image install n",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
        let refused =
            of("system install - --signature s").expect("it is about an update").expect_err("rejected");
        assert!(refused.contains("--signature needs a FILE"), "{refused}");
    }
}
