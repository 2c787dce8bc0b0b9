//! Generates manual pages (man(7)): `nodlet.1`, and one page per verb.

use super::{Flag, Help, Verb};

/// The file name and the text of each page. `date` is that of the release, for example `2026-01-31`.
pub(crate) fn pages(help: &Help, version: &str, date: &str) -> Vec<(String, String)> {
    let mut pages = vec![("nodlet.1".to_owned(), overview(help, version, date))];
    for verb in &help.verbs {
        pages.push((format!("nodlet-{}.1", verb.name), page(verb, version, date)));
    }
    pages
}

fn head(name: &str, summary: &str, version: &str, date: &str) -> String {
    format!(
        ".TH {} 1 {date} \"nodlet {version}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n",
        escaped(&name.to_uppercase()),
        escaped(name),
        line(summary)
    )
}

fn overview(help: &Help, version: &str, date: &str) -> String {
    let summary = help.summary.trim_end_matches('.').trim_start_matches("nodlet ");
    let mut text = head("nodlet", summary, version, date);
    text.push_str(".B nodlet\n[\\-\\-root DIR] VERB [ARGUMENT...]\n.SH DESCRIPTION\n");
    text.push_str(
        "One program is the agent that runs the pods of this machine, the supervisor of each pod, and the\n\
         command line. Each verb has a manual page of its own.\n.SH VERBS\n",
    );
    for verb in &help.verbs {
        text.push_str(&format!(".TP\n.BR nodlet\\-{} (1)\n{}\n", escaped(&verb.name), line(&verb.summary)));
    }
    add_flags(&mut text, &help.flags);
    text.push_str(".SH ENVIRONMENT\n.TP\n.B NODLET_ROOT\nThe directory that \\-\\-root names, where the option is not given.\n");
    text.push_str(".SH FILES\n");
    for (path, what) in FILES {
        text.push_str(&format!(".TP\n.I {}\n{}\n", escaped(path), line(what)));
    }
    text
}

/// The files of nodlet that users encounter.
const FILES: &[(&str, &str)] = &[
    ("/etc/nodlet/manifests", "Manifests of the administrator: a file that is put there is applied at once."),
    ("/usr/lib/nodlet/manifests", "Manifests that come with the system."),
    ("/etc/nodlet/pod-cidr", "The range of the pods' addresses, instead of 10.85.0.0/24."),
    ("/etc/nodlet/service-cidr", "The range of the addresses of Services, instead of 10.86.0.0/16."),
    ("/etc/nodlet/image-store-limit", "What loaded images may take, as 64Mi."),
    ("/var/lib/nodlet", "Images, volumes, applied manifests and the state of pods."),
    ("/var/log/pods", "The logs of containers."),
    ("/run/nodlet/api.sock", "Kubernetes' API. Root and the members of the group nodlet may connect."),
];

fn page(verb: &Verb, version: &str, date: &str) -> String {
    let mut text = head(&format!("nodlet-{}", verb.name), &verb.summary, version, date);
    text.push_str(".nf\n");
    for usage in &verb.usage {
        text.push_str(&format!("{}\n", line(usage)));
    }
    text.push_str(".fi\n.SH DESCRIPTION\n");
    for (index, paragraph) in verb.description.iter().chain(&verb.notes).enumerate() {
        let between = if index == 0 { "" } else { ".PP\n" };
        text.push_str(&format!("{between}{}\n", line(paragraph)));
    }
    add_flags(&mut text, &verb.flags);
    if !verb.examples.is_empty() {
        text.push_str(".SH EXAMPLES\n.nf\n");
        for example in &verb.examples {
            text.push_str(&format!("{}\n", line(example)));
        }
        text.push_str(".fi\n");
    }
    text.push_str(".SH SEE ALSO\n.BR nodlet (1)\n");
    text
}

fn add_flags(text: &mut String, flags: &[Flag]) {
    if flags.is_empty() {
        return;
    }
    text.push_str(".SH OPTIONS\n");
    for flag in flags {
        let names: Vec<String> = flag.names.iter().map(|name| format!("\\fB{}\\fR", escaped(name))).collect();
        let value = if flag.value.is_empty() { "" } else { " " };
        text.push_str(&format!(
            ".TP\n{}{value}\\fI{}\\fR\n{}\n",
            names.join(", "),
            escaped(&flag.value),
            line(&flag.text)
        ));
    }
}

/// Escapes text at the beginning of a line, where a period or an apostrophe would be a request.
fn line(text: &str) -> String {
    let escaped = escaped(text);
    if escaped.starts_with(['.', '\'']) { format!("\\&{escaped}") } else { escaped }
}

/// Escapes text for roff, so that `-` can be copied and quotes and backslashes are literal.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '`' => out.push_str("\\(ga"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::help::example;

    #[test]
    fn the_program_and_each_verb_have_a_manual_page() {
        let pages = pages(&example(), "1.2.3", "2026-01-31");
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["nodlet.1", "nodlet-get.1", "nodlet-image.1", "nodlet-exec.1", "nodlet-push.1"]);
        assert!(pages[0].1.contains("\n.BR nodlet\\-get (1)\nShow pods\n"), "{}", pages[0].1);
        let get = &pages[1].1;
        assert!(get.starts_with(".TH NODLET\\-GET 1 2026-01-31 \"nodlet 1.2.3\""), "{get}");
        assert!(
            get.contains("\n\\fB\\-f\\fR, \\fB\\-\\-filename\\fR \\fIFILE|DIR|\\-\\fR\nthe pods of these\n"),
            "{get}"
        );
        assert!(get.contains("\n# One, don\\(aqt ask\n"), "{get}");
    }

    #[test]
    fn no_text_line_is_decoded_as_a_request() {
        assert_eq!(line(".config and 'x' \\n"), "\\&.config and \\(aqx\\(aq \\en");
        assert_eq!(line("'x'"), "\\(aqx\\(aq");
    }
}
