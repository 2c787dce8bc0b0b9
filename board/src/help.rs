//! The texts of `--help`: the file of `board/help` with the name of the verb, with examples, in which `{types}` stands
//! for all kinds. The binary has them compressed (`board/build.rs`), and only a process that prints one unpacks them.

use std::io::Read;

use nodlet_kube::kinds;

/// The texts, as `build.rs` writes them.
static TEXTS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/help.deflate"));

/// The text of a verb; empty for a name that is no verb.
pub(crate) fn of(verb: &str) -> String {
    let texts = unpack();
    let text = texts.split('\0').find_map(|text| text.strip_prefix(verb)?.strip_prefix('\n'));
    text.unwrap_or_default().replace("{types}", &wrapped(&kinds::types()))
}

fn unpack() -> String {
    let mut texts = String::new();
    let read = flate2::read::DeflateDecoder::new(TEXTS).read_to_string(&mut texts);
    if read.is_ok() { texts } else { String::new() }
}

/// A list as lines of at most 80 characters, indented.
fn wrapped(list: &str) -> String {
    let mut lines = vec!["  ".to_owned()];
    for entry in list.split_inclusive(", ") {
        let line = match lines.last_mut() {
            Some(line) if line.len() + entry.len() <= 80 => line,
            _ => {
                lines.push("  ".to_owned());
                lines.last_mut().expect("a line")
            }
        };
        line.push_str(entry);
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::VERBS;

    #[test]
    fn every_verb_has_a_text_with_its_usage() {
        for verb in VERBS {
            let text = of(verb.name);
            assert!(
                text.lines().any(|line| line.starts_with(&format!("Usage: nodlet {}", verb.name))),
                "{text}"
            );
        }
        assert_eq!(unpack().matches('\0').count(), VERBS.len(), "a text has no verb");
        assert_eq!(of("frobnicate"), "");
    }
}
