//! Indents lines that YAML 1.2 wants indented, and Kubernetes' reader does not.
//!
//! Within `[…]`, `{…}` and quotes, the reader of Kubernetes ignores the indentation of a line, also by tabs; the parser
//! requires that of the enclosing block. Spaces in front of such a line do not change the value, so that they are inserted
//! where the parser reports their absence.
//!
//! In double quotes, Kubernetes also reads `\'` as a single quote, which YAML 1.2 does not: the backslash is removed.

use std::cell::Cell;
use std::rc::Rc;

use saphyr_parser::{Marker, Parser, ScanError};

use super::input::Text;

/// Spaces that are inserted in front of a line at once; they are inserted again until they suffice.
const SPACES: &str = "                                ";

/// The parser's error at a tab in the indentation of a line within quotes, which Kubernetes accepts.
const TAB_IN_QUOTES: &str = "tab cannot be used as indentation";

/// The parser's error at a tab in the indentation of a line, which Kubernetes accepts in brackets.
const TAB_IN_BLOCK: &str = "tabs disallowed within this context (block indentation)";

/// The parser's error at a bracket that closes nothing.
const NOT_IN_BRACKETS: &str = "misplaced bracket";

/// The parser's error for a scalar in double quotes with an escape that YAML 1.2 does not have.
const UNKNOWN_ESCAPE: &str = "while parsing a quoted scalar, found unknown escape character";

/// Maximum bytes of text that are parsed again, in all attempts with one text.
const AGAIN: usize = 16 << 20;

/// The bytes that may still be parsed again.
pub(super) struct Budget(usize);

impl Budget {
    /// The budget of one text.
    pub(super) fn new() -> Self {
        Self(AGAIN)
    }

    /// The text with the lines indented whose indentation `error` reports, or without the backslashes that it reports;
    /// `None` if it reports something else, or the budget is spent.
    pub(super) fn indent(&mut self, text: &str, error: &ScanError) -> Option<String> {
        let quoted = match error.info() {
            "invalid indentation"
            | "invalid indentation in flow construct"
            | TAB_IN_QUOTES
            | TAB_IN_BLOCK => false,
            "invalid indentation in quoted scalar" | UNKNOWN_ESCAPE => true,
            _ => return None,
        };
        // The parser counts a carriage return alone as a line.
        if text.replace("\r\n", "\n").contains('\r') {
            return None;
        }
        self.0 = self.0.checked_sub(text.len())?;
        let at = offset(text, error.marker())?;
        if error.info() == UNKNOWN_ESCAPE {
            return without_escaped_quotes(text, at);
        }
        if error.info() == TAB_IN_BLOCK {
            let before = &text[..text[..at].rfind('\n').map_or(0, |end| end + 1)];
            self.0 = self.0.checked_sub(before.len())?;
            if !ends_in_brackets(before) {
                return None;
            }
        }
        let lines = if quoted { at..at + quoted_length(&text[at..])? } else { at..at + 1 };
        let mut result = String::with_capacity(text.len() + 1024);
        let mut begins = 0;
        for line in text.split_inclusive('\n') {
            let wanted =
                if quoted { lines.contains(&begins) } else { begins + line.len() > at && begins <= at };
            // A mark of a document ends the text even there.
            if wanted && !line.starts_with("---") && !line.starts_with("...") {
                result.push_str(SPACES);
            }
            result.push_str(line);
            begins += line.len();
        }
        (result.len() > text.len()).then_some(result)
    }
}

/// Whether a text ends within brackets, so that another one is not misplaced there.
fn ends_in_brackets(text: &str) -> bool {
    let text = format!("{text}]");
    let marks = Rc::new(Cell::new(0));
    let mut parser = Parser::new(Text::new(&text, &marks));
    while let Some(event) = parser.next_event() {
        if let Err(error) = event {
            return error.info() != NOT_IN_BRACKETS;
        }
        marks.set(0);
    }
    true
}

/// The text without the backslashes of `\'` in the scalar in double quotes at an offset; `None` if it has none.
fn without_escaped_quotes(text: &str, at: usize) -> Option<String> {
    let (before, rest) = text.split_at(at);
    let (scalar, after) = rest.split_at(quoted_length(rest)?);
    let mut result = before.to_owned();
    let mut characters = scalar.chars().peekable();
    while let Some(character) = characters.next() {
        if character != '\\' {
            result.push(character);
        } else if characters.peek() != Some(&'\'') {
            // The next character may be a backslash, too.
            result.push(character);
            result.extend(characters.next());
        }
    }
    result.push_str(after);
    (result.len() < text.len()).then_some(result)
}

/// The offset of a mark in bytes.
fn offset(text: &str, mark: &Marker) -> Option<usize> {
    let line: usize = text.split_inclusive('\n').take(mark.line().checked_sub(1)?).map(str::len).sum();
    let rest = text.get(line..)?;
    Some(line + rest.char_indices().nth(mark.col()).map_or(rest.len(), |(at, _)| at))
}

/// The length of the quoted scalar with which a text begins; `None` if it does not end.
fn quoted_length(text: &str) -> Option<usize> {
    let mut bytes = text.bytes().enumerate();
    let (_, quote) = bytes.next()?;
    loop {
        match bytes.next()? {
            (_, b'\\') if quote == b'"' => {
                bytes.next()?;
            }
            (at, byte) if byte == quote => {
                // A doubled quote is part of a scalar in single quotes.
                if quote == b'\'' && text.as_bytes().get(at + 1) == Some(&quote) {
                    bytes.next()?;
                } else {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
}
