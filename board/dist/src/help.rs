//! Parses the help texts of nodlet's verbs, read from the program itself. They are the source of the manual
//! pages (`help/manual.rs`) and of shell completion (`help/completion.rs`), so that a new verb or flag
//! appears in both automatically.

use std::path::Path;
use std::process::Command;

use nodlet_build::task::{TaskError, output};

pub(crate) mod completion;
pub(crate) mod manual;

/// The contents of `nodlet --help` and `nodlet VERB --help`.
#[derive(Debug)]
pub(crate) struct Help {
    /// The first line of `nodlet --help`.
    pub(crate) summary: String,
    pub(crate) flags: Vec<Flag>,
    pub(crate) verbs: Vec<Verb>,
}

/// The help of one verb.
#[derive(Debug)]
pub(crate) struct Verb {
    pub(crate) name: String,
    /// The verb's line in the list of verbs.
    pub(crate) summary: String,
    /// The paragraphs before the usage, each joined to one line.
    pub(crate) description: Vec<String>,
    /// The lines of the usage, without `Usage:`.
    pub(crate) usage: Vec<String>,
    /// The paragraphs after the usage or the flags.
    pub(crate) notes: Vec<String>,
    /// The lines of the examples, without their common indentation.
    pub(crate) examples: Vec<String>,
    pub(crate) flags: Vec<Flag>,
}

/// An option with all its names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Flag {
    /// The names, for example `-n` and `--namespace`.
    pub(crate) names: Vec<String>,
    /// The placeholder of the value, for example `NAME`; empty for a switch.
    pub(crate) value: String,
    pub(crate) text: String,
}

/// Reads the help texts by running a nodlet that this machine can execute.
pub(crate) fn of(program: &Path) -> Result<Help, TaskError> {
    let help = |arguments: &[&str]| output(Command::new(program).args(arguments));
    read(&help(&["--help"])?, |verb| help(&[verb, "--help"]))
}

fn read(overview: &str, of_verb: impl Fn(&str) -> Result<String, TaskError>) -> Result<Help, TaskError> {
    let section = |title: &'static str| {
        overview
            .lines()
            .skip_while(move |line| *line != title)
            .skip(1)
            .take_while(|line| line.starts_with("  "))
    };
    let mut verbs = Vec::new();
    for line in section("Verbs:") {
        let (name, summary) = line.trim().split_once(' ').ok_or("a verb has a summary")?;
        verbs.push(verb(name, summary.trim(), &of_verb(name)?)?);
    }
    if verbs.is_empty() {
        return Err("`nodlet --help` lists no verbs".into());
    }
    let options: Vec<&str> = section("Options:").collect();
    Ok(Help {
        summary: overview.lines().next().unwrap_or_default().to_owned(),
        flags: flags(&options)?,
        verbs,
    })
}

fn verb(name: &str, summary: &str, text: &str) -> Result<Verb, TaskError> {
    let mut verb = Verb {
        name: name.to_owned(),
        summary: summary.to_owned(),
        description: Vec::new(),
        usage: Vec::new(),
        notes: Vec::new(),
        examples: Vec::new(),
        flags: Vec::new(),
    };
    let mut lines = text.lines().peekable();
    let mut paragraph: Vec<&str> = Vec::new();
    loop {
        let line = lines.next();
        let title = line.is_none_or(|line| {
            line.is_empty() || line.starts_with("Usage:") || line == "Examples:" || line == "Flags:"
        });
        if title && !paragraph.is_empty() {
            let paragraphs = if verb.usage.is_empty() { &mut verb.description } else { &mut verb.notes };
            paragraphs.push(paragraph.join(" "));
            paragraph.clear();
        }
        match line {
            None => break,
            Some("") => {}
            Some("Examples:") => {
                let block = indented(&mut lines);
                verb.examples = block.iter().map(|line| line.get(2..).unwrap_or("").to_owned()).collect();
            }
            Some("Flags:") => {
                verb.flags = flags(&indented(&mut lines))
                    .map_err(|TaskError(why)| format!("nodlet {name} --help: {why}"))?;
            }
            Some(line) => match line.strip_prefix("Usage:") {
                Some(usage) => {
                    verb.usage.push(usage.trim().to_owned());
                    verb.usage.extend(indented(&mut lines).iter().map(|line| line.trim().to_owned()));
                }
                None => paragraph.push(line.trim()),
            },
        }
    }
    if verb.usage.is_empty() {
        return Err(TaskError(format!("nodlet {name} --help has no line that begins with `Usage:`")));
    }
    Ok(verb)
}

/// The lines up to the next unindented one; blank lines separate examples and do not end them.
fn indented<'a>(lines: &mut std::iter::Peekable<std::str::Lines<'a>>) -> Vec<&'a str> {
    let mut block = Vec::new();
    while let Some(line) = lines.next_if(|line| line.is_empty() || line.starts_with("  ")) {
        block.push(line);
    }
    while block.last().is_some_and(|line| line.is_empty()) {
        block.pop();
    }
    block
}

/// Parses lines such as `  -n, --namespace NAME   of this namespace`, whose text may continue in the lines
/// below.
fn flags(lines: &[&str]) -> Result<Vec<Flag>, TaskError> {
    let mut flags: Vec<Flag> = Vec::new();
    for line in lines.iter().map(|line| line.trim()) {
        if !line.starts_with('-') {
            let flag = flags.last_mut().ok_or_else(|| format!("{line:?} comes before any flag"))?;
            let space = if flag.text.is_empty() { "" } else { " " };
            flag.text.push_str(space);
            flag.text.push_str(line);
            continue;
        }
        let (mut head, text) = line.split_once("  ").unwrap_or((line, ""));
        let mut flag = Flag::default();
        loop {
            let (name, rest) = head.split_once(' ').unwrap_or((head, ""));
            head = rest;
            // `--wait=false` is a switch that is on by default, and so is `--wait[=DURATION]`.
            let is_last = !name.ends_with(',');
            let name = name.trim_end_matches(',').split(['=', '[']).next().unwrap_or(name);
            if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
                return Err(TaskError(format!("{name:?} is not a name of a flag")));
            }
            flag.names.push(name.to_owned());
            if is_last || !head.starts_with('-') {
                break;
            }
        }
        // A flag that is too long for the column has a single space before its text.
        let (value, more) = head.split_once(' ').unwrap_or((head, ""));
        flag.value = value.to_owned();
        flag.text = if more.is_empty() { text.trim().to_owned() } else { format!("{more} {text}") };
        flag.text.truncate(flag.text.trim_end().len());
        flags.push(flag);
    }
    Ok(flags)
}

impl Flag {
    /// The long name, for example `namespace` of `-n, --namespace`.
    pub(crate) fn long(&self) -> Option<&str> {
        self.names.iter().find_map(|name| name.strip_prefix("--"))
    }
}

impl Verb {
    /// The words of the usage that are typed literally: `load`, `ls` and `rm` of `nodlet image`, and the
    /// optional word of `nodlet system [status]`.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        for line in &self.usage {
            let line = line.split(" -- ").next().unwrap_or(line);
            let (mut depth, rest) = (0_usize, line.split(' ').skip(2));
            for token in rest {
                let optional = token.strip_prefix('[').and_then(|token| token.strip_suffix(']'));
                let token = optional.filter(|token| *token != "flags").unwrap_or(token);
                let inside = depth > 0 || token.starts_with('[');
                depth = (depth + token.matches('[').count()).saturating_sub(token.matches(']').count());
                let token = token.trim_matches(['(', ')']);
                let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase());
                if !inside && token.split('|').all(is_word) {
                    words.extend(token.split('|').map(str::to_owned));
                }
            }
        }
        for types in
            self.description.iter().chain(&self.notes).filter_map(|text| text.strip_prefix("TYPE is "))
        {
            words.extend(list(types.split(['.', ';']).next().unwrap_or(types)).unwrap_or_default());
        }
        let mut unique = Vec::new();
        for word in words {
            if !unique.contains(&word) {
                unique.push(word);
            }
        }
        unique
    }

    /// Whether the first argument is the name of a pod.
    pub(crate) fn takes_pod(&self) -> bool {
        self.usage.iter().any(|line| line.split(' ').nth(2) == Some("POD"))
    }

    /// The number of arguments before the first one that is a file name; `None` if there is none.
    pub(crate) fn before_files(&self) -> Option<usize> {
        let of_line = |line: &String| {
            let (mut count, mut before) = (0, "");
            for word in line.split(' ').skip(2) {
                let is_argument = !word.contains('-') && !before.contains('-');
                if is_argument && word.contains("FILE") {
                    return Some(count);
                }
                count += usize::from(is_argument);
                before = word;
            }
            None
        };
        self.usage.iter().find_map(of_line)
    }
}

/// The completions of a flag's value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Values {
    Files,
    Namespaces,
    OneOf(Vec<String>),
    Unknown,
}

impl Flag {
    pub(crate) fn values(&self) -> Values {
        if self.value.split('|').any(|word| matches!(word, "FILE" | "DIR")) {
            return Values::Files;
        }
        if self.long() == Some("namespace") {
            return Values::Namespaces;
        }
        if !self.value.is_empty() && self.value.chars().all(|c| c.is_ascii_lowercase()) {
            return Values::OneOf(vec![self.value.clone()]);
        }
        // The patterns are: `wide, yaml, json or name`, `what it may: general, baseline or restricted`,
        // `json: one object a line`
        let text = without_parentheses(&self.text);
        let (before, after) = text.split_once(": ").unwrap_or((&text, ""));
        let all = list(after).filter(|list| list.len() > 1).or_else(|| list(before));
        match all {
            Some(words) if words.len() > 1 || self.value == "FORMAT" => Values::OneOf(words),
            Some(_) | None => Values::Unknown,
        }
    }
}

/// The words of a list such as `pods (po), nodes or namespaces`, including those in parentheses; `None` if
/// the text is not only a list.
fn list(text: &str) -> Option<Vec<String>> {
    let text = text.replace(" or ", ", ").replace(['(', ')'], ",");
    let words: Vec<&str> = text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    let is_word = |word: &&str| word.chars().all(|c| c.is_ascii_alphabetic());
    (!words.is_empty() && words.iter().all(is_word)).then(|| words.into_iter().map(str::to_owned).collect())
}

/// Removes parentheses: `strict, warn` of `strict (the default), warn`.
fn without_parentheses(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::new();
    while let Some((before, inside)) = rest.split_once(" (") {
        kept.push_str(before);
        rest = inside.split_once(')').map_or("", |(_, after)| after);
    }
    kept + rest
}

#[cfg(test)]
pub(crate) const OVERVIEW: &str = "nodlet runs pods.

Usage: nodlet [--root DIR] VERB

Verbs:
  get          Show pods
  image        Load and list images
  exec         Run a command
  push         Send files

Options:
  --board [USER@]BOARD   on this board
  --root DIR             where all of nodlet's files are

The manual describes more.
";

#[cfg(test)]
pub(crate) fn example() -> Help {
    read(OVERVIEW, |verb| {
        Ok(match verb {
            "get" => {
                "Show objects, in\ntwo lines.\n\nUsage: nodlet get (TYPE [NAME...] | -f FILE|DIR|-) [flags]\n\n\
                 TYPE is pods (po), nodes (no) or events; TYPE/NAME\nworks too.\n\n\
                 Examples:\n  # All\n  nodlet get pods\n\n  # One, don't ask\n  nodlet get pod 'web'\n\n\
                 Flags:\n  -f, --filename FILE|DIR|-   the pods of these\n  -n, --namespace NAME        of this one\n      \
                 --wait=false            do not wait\n      --two, --names A=B\n                         on the next\n                         \
                 lines: [1]\n      --validate HOW          unknown fields: strict (refused), warn or ignore\n  \
                 -o, --output FORMAT         wide, yaml or json\n\nAfter all.\n"
            }
            "image" => "Images.\n\nUsage: nodlet image load FILE [--name NAME]\n       nodlet image ls\n",
            "exec" => "Run.\n\nUsage: nodlet exec POD [-c CONTAINER] [flags] -- COMMAND\n\nFlags:\n  -i, --stdin   pass it on\n",
            "push" => {
                "Send.\n\nUsage: nodlet push [USER@]BOARD FILE|DIR... [flags]\n\nFlags:\n      --wait[=DURATION]   until all are ready: [1]\n"
            }
            other => return Err(TaskError(other.into())),
        }
        .to_owned())
    })
    .unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_help_text_is_parsed_into_its_sections() {
        let help = example();
        assert_eq!(help.summary, "nodlet runs pods.");
        assert_eq!(help.flags[1].names, ["--root"]);
        assert_eq!(help.flags[1].value, "DIR");
        let names: Vec<(&str, &str)> =
            help.verbs.iter().map(|verb| (verb.name.as_str(), verb.summary.as_str())).collect();
        assert_eq!(
            names,
            [
                ("get", "Show pods"),
                ("image", "Load and list images"),
                ("exec", "Run a command"),
                ("push", "Send files")
            ]
        );
        let get = &help.verbs[0];
        assert_eq!(get.description, ["Show objects, in two lines."]);
        assert_eq!(get.usage, ["nodlet get (TYPE [NAME...] | -f FILE|DIR|-) [flags]"]);
        assert_eq!(
            get.notes,
            ["TYPE is pods (po), nodes (no) or events; TYPE/NAME works too.", "After all."]
        );
        assert_eq!(
            get.examples,
            ["# All", "nodlet get pods", "", "# One, don't ask", "nodlet get pod 'web'"]
        );
        assert_eq!(help.verbs[1].usage, ["nodlet image load FILE [--name NAME]", "nodlet image ls"]);
    }

    #[test]
    fn flags_have_names_a_value_and_a_text_that_may_follow_in_the_next_lines() {
        let flags = &example().verbs[0].flags;
        let flag = |index: usize| {
            let Flag { names, value, text } = &flags[index];
            (names.join(" "), value.as_str(), text.as_str())
        };
        assert_eq!(flag(0), ("-f --filename".into(), "FILE|DIR|-", "the pods of these"));
        assert_eq!(flag(2), ("--wait".into(), "", "do not wait"));
        assert_eq!(flag(3), ("--two --names".into(), "A=B", "on the next lines: [1]"));
        assert_eq!((flags[0].long(), flags[3].long()), (Some("filename"), Some("two")));
        let long = super::flags(&["      --field-selector FIELDS only with  these fields"]).unwrap();
        assert_eq!((long[0].value.as_str(), long[0].text.as_str()), ("FIELDS", "only with these fields"));
        assert!(super::flags(&["  a text of nothing"]).is_err());
        let wait = super::flags(&["      --wait[=DURATION]   so long"]).unwrap();
        assert_eq!(
            (wait[0].names.as_slice(), wait[0].text.as_str()),
            (&["--wait".to_owned()][..], "so long")
        );
        assert!(super::flags(&["      --wait(ing)   so long"]).is_err());
    }

    #[test]
    fn completions_of_a_flags_value_are_derived_from_its_help_text() {
        let flags = &example().verbs[0].flags;
        let of = |words: &[&str]| Values::OneOf(words.iter().map(|word| (*word).to_owned()).collect());
        let values: Vec<Values> = flags.iter().map(Flag::values).collect();
        let (unknown, files) = (Values::Unknown, Values::Files);
        let formats = of(&["wide", "yaml", "json"]);
        let validate = of(&["strict", "warn", "ignore"]);
        assert_eq!(values, [files, Values::Namespaces, Values::Unknown, unknown, validate, formats]);
        for (value, text, expected) in [
            ("FORMAT", "json: one object a line", of(&["json"])),
            ("json", "for programs", of(&["json"])),
            ("LABELS", "only with these labels: app=web,tier!=back", Values::Unknown),
            ("TYPES", "only of these types: Normal,Warning", of(&["Normal", "Warning"])),
            ("IMAGE", "image of the container", Values::Unknown),
        ] {
            let flag = Flag { names: vec!["--x".into()], value: value.into(), text: text.into() };
            assert_eq!(flag.values(), expected, "{text}");
        }
    }

    #[test]
    fn the_usage_of_a_verb_yields_its_words_and_arguments() {
        let verbs = example().verbs;
        assert_eq!(verbs[0].words(), ["pods", "po", "nodes", "no", "events"]);
        assert_eq!(verbs[1].words(), ["load", "ls"]);
        assert_eq!(verbs[2].words(), Vec::<String>::new());
        assert!(verbs[2].takes_pod() && !verbs[0].takes_pod());
        assert_eq!((verbs[1].before_files(), verbs[0].before_files()), (Some(1), None));
        let usage = "nodlet delete (pod NAME... | pod -l LABELS | a|b NAME... | -f FILE) [flags]".to_owned();
        let delete = verb("delete", "", &format!("D.\n\nUsage: {usage}\n")).unwrap();
        assert_eq!(delete.words(), ["pod", "a", "b"]);
        let usage = "Usage: nodlet system [status]\n       nodlet system install FILE [flags]\n";
        let system = verb("system", "", &format!("S.\n\n{usage}")).unwrap();
        assert_eq!((system.words().join(" "), system.before_files()), ("status install".into(), Some(1)));
        let usage =
            "Usage: nodlet push [U@]BOARD FILE|DIR... [flags]\n       nodlet push BOARD --system FILE\n";
        let push = verb("push", "", &format!("P.\n\n{usage}")).unwrap();
        assert_eq!((push.words(), push.before_files()), (Vec::new(), Some(1)));
    }

    #[test]
    fn a_help_without_usage_is_refused_by_the_verbs_name() {
        let why = verb("get", "", "Show objects.\n").unwrap_err().0;
        assert!(why.contains("nodlet get --help"), "{why}");
        assert!(read("nodlet runs pods.\n", |_| Ok(String::new())).is_err());
    }
}
