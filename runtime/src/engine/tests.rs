//! Tests of the engine as a whole, which read its source.

use std::fs;
use std::path::{Path, PathBuf};

use nodlet_fuzz::imports::{circles, imports};

/// Names of the variants of a public enum in the text of a module.
fn variants(text: &str, name: &str) -> Vec<String> {
    let begin = [format!("pub enum {name}<"), format!("pub enum {name} {{")];
    let begin = begin.iter().find_map(|begin| text.find(begin)).expect("the enum is there");
    let body = text[begin..].split("\n}").next().unwrap_or_default();
    let names = body.lines().filter_map(|line| {
        let word = line.strip_prefix("    ").filter(|word| word.starts_with(char::is_uppercase))?;
        word.split(|letter: char| !letter.is_alphanumeric()).next()
    });
    names.map(str::to_owned).collect()
}

/// The source of the agent, and of the decisions that it reports as they are, without tests, comments and texts.
fn agent() -> String {
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Failures for which the registry decides that a container waits.
    let mut files = vec![runtime.join("registry/src/devices.rs")];
    let mut directories = vec![runtime.join("src")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("the source is there") {
            let path = entry.expect("it can be read").path();
            if path.is_dir() { directories.push(path) } else { files.push(path) }
        }
    }
    let is_test = |path: &PathBuf| path.file_name().is_some_and(|name| name == "tests.rs");
    files.retain(|path| !is_test(path) && !path.components().any(|part| part.as_os_str() == "tests"));
    let text = files.iter().map(|path| fs::read_to_string(path).expect("it can be read"));
    text.map(|text| code(text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default())).collect()
}

/// The text without comments and without the contents of string literals, in which brackets need not be in pairs.
fn code(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let text = lines.collect::<Vec<_>>().join("\n").replace("'\"'", "' '");
    let (mut code, mut is_text, mut is_escaped) = (String::new(), false, false);
    for letter in text.chars() {
        match (is_text, letter) {
            (true, '\\') if !is_escaped => is_escaped = true,
            (_, '"') if !is_escaped => is_text = !is_text,
            (true, _) => is_escaped = false,
            (false, _) => code.push(letter),
        }
    }
    code
}

/// The end of the group in brackets that begins at `begin`, or `begin` if none does.
fn after_group(code: &str, begin: usize) -> usize {
    let mut depth = 0;
    for (at, letter) in code[begin..].char_indices() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ' ' if depth == 0 => continue,
            _ => {}
        }
        match depth {
            0 if matches!(letter, ')' | ']' | '}') => return begin + at + 1,
            ..=0 => return begin,
            _ => {}
        }
    }
    begin
}

/// Where the innermost brackets begin that enclose the place `at`.
fn enclosing(code: &str, at: usize) -> Option<usize> {
    let mut depth = 0;
    for (at, letter) in code[..at].char_indices().rev() {
        match letter {
            ')' | ']' | '}' => depth += 1,
            '(' | '[' | '{' if depth == 0 => return Some(at),
            '(' | '[' | '{' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Whether the path of a variant from `begin` to `end` makes a value: it is no part of a pattern, and nothing is only
/// compared with it.
fn makes_value(code: &str, mut begin: usize, end: usize) -> bool {
    let before = code[..begin].trim_end();
    if before.ends_with("==") || before.ends_with("!=") || before.ends_with("use") {
        return false;
    }
    let mut end = match after_group(code, end) {
        after if code[end..after].trim_end_matches(['}', ')', ' ', '\n']).ends_with("..") => return false,
        after => after,
    };
    loop {
        let rest = code[end..].trim_start();
        let is_alternative = rest.starts_with('|') && !rest.starts_with("||");
        let is_matched = rest.starts_with('=') && !rest.starts_with("==");
        if is_alternative || is_matched || rest.starts_with("=>") || rest.starts_with("if ") {
            return false;
        }
        let Some(outer) = enclosing(code, begin) else { return true };
        let word = code[..outer].trim_end().rsplit(|letter: char| !letter.is_alphanumeric()).next();
        // The brackets of a block, and not of a struct.
        if code[outer..].starts_with('{') && !word.is_some_and(|word| word.starts_with(char::is_uppercase)) {
            return true;
        }
        if code[..outer].ends_with("matches!") {
            return false;
        }
        (begin, end) = (outer, after_group(code, outer));
    }
}

/// Whether the source makes a value of a variant.
fn makes(code: &str, path: &str, variant: &str) -> bool {
    let name = format!("{path}::{variant}");
    code.match_indices(&name).any(|(at, _)| {
        // As whole words: `Started` is no `StartedContainer`, and `PodObservation` is no `Observation`.
        let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
        !code[at + name.len()..].starts_with(is_part)
            && !code[..at].ends_with(is_part)
            && makes_value(code, at, at + name.len())
    })
}

#[test]
fn a_pattern_or_a_comparison_makes_no_value() {
    for (text, expected) in [
        ("fn f() { report(Seen::A { attempt, message: text(\"(\") }); }", true),
        ("match x { Ok(()) => Some(Seen::A), Err(_) => None }", true),
        ("match x { Ok(()) => Seen::A,\n Err(_) => Seen::B }", true),
        ("let seen = if x { Seen::A } else { Seen::B };", true),
        ("let failure = Failure { reason: Seen::A, message };", true),
        ("match x { Seen::A => 1, _ => 2 }", false),
        ("match x { Seen::A { attempt, message: _ } | Seen::B => 1, _ => 2 }", false),
        ("match x { Err((Seen::A, message)) => 1, _ => 2 }", false),
        ("match x { Err(Failure { reason: Seen::A, message }) if f(message) => 1, _ => 2 }", false),
        ("match x { Some(Seen::A) if y => 1, _ => 2 }", false),
        ("let Seen::A { attempt, .. } = seen else { return };", false),
        ("if let Some(Seen::A(attempt)) = seen {}", false),
        ("matches!(seen, Some(Seen::A))", false),
        ("if seen == Seen::A {}", false),
        ("// report(Seen::A)", false),
        ("report(Seen::Also); report(OtherSeen::A);", false),
    ] {
        assert_eq!(makes(&code(text), "Seen", "A"), expected, "{text}");
    }
}

#[test]
fn the_agent_makes_every_observation_that_the_core_knows() {
    let text = include_str!("../../core/src/facts/observation.rs");
    let agent = agent();
    let mut count = 0;
    for (enumeration, paths) in [
        ("Observation", &["Observation"][..]),
        ("PodObservation", &["PodObservation", "Seen"]),
        ("SandboxFailure", &["SandboxFailure"]),
        ("StartFailureReason", &["StartFailureReason"]),
        ("ProbeResult", &["ProbeResult"]),
    ] {
        for variant in variants(text, enumeration) {
            let is_made = paths.iter().any(|path| makes(&agent, path, &variant));
            assert!(is_made, "nothing makes {enumeration}::{variant}");
            count += 1;
        }
    }
    assert!(count > 40, "{count} variants were found");
}

#[test]
fn no_files_of_the_engine_import_from_each_other() {
    let files = imports(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine.rs"));
    assert!(files.len() > 20 && files["sandbox"].contains("reports"), "{files:?}");
    let circles = circles(files);
    assert!(circles.is_empty(), "these import from each other in a circle: {circles:?}");
}

#[test]
fn failed_actions_keep_their_causes_and_give_no_advice_about_disks_for_files_on_tmpfs() {
    use super::{exec::ExecError, sandbox, stop::StopError, volumes::HostPathError};
    use nodlet_host::error::{causes, chain, shortage_behind};
    let full = || std::io::Error::from_raw_os_error(libc::ENOSPC);
    let removed = sandbox::RemoveError::Directory { path: "/run/x".into(), source: full() };
    assert_eq!(removed.message(), "failed to remove /run/x: No space left on device (os error 28)");
    let record = sandbox::ForgetError::Record(full());
    assert_eq!(causes(&record), "failed to remove its record: No space left on device (os error 28)");
    let pipe = ExecError::ReadPipe(full());
    assert_eq!(pipe.message(), "failed to read a pipe: No space left on device (os error 28)");
    for error in [&removed as &(dyn std::error::Error + 'static), &record, &pipe] {
        assert!(shortage_behind(error).is_some(), "{error} has its cause");
    }
    let no_pipe = ExecError::MakePipe(nix::errno::Errno::EMFILE);
    assert_eq!(no_pipe.message(), "failed to make a pipe: EMFILE: Too many open files");
    let signal = StopError::Signal(std::io::Error::from_raw_os_error(libc::ESRCH));
    assert_eq!(chain(&signal), "signal the container: No such process (os error 3)");
    let late = "MountVolume.SetUp failed: a hostPath did not respond: its file server may be unreachable";
    assert_eq!(chain(&HostPathError::NoAnswer), late);
}
