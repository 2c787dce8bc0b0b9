//! Parts of the descriptions of objects: lines in columns, fields, ages, events.

use std::borrow::Cow;

pub(super) mod events;
mod tabs;
pub(super) mod text;

pub(super) use tabs::Tabs;

/// Text that others wrote, so that it cannot steer a terminal: control characters, those of C1 and those that
/// change the direction of writing are spelled out. Line ends and tabs stay. What kubectl escapes looks as
/// kubectl has it.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_control_character) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        match letter {
            '\u{1b}' => out.push_str("^["),
            '\r' => out.push_str("\\r"),
            letter if is_control_character(letter) => out.extend(letter.escape_unicode()),
            letter => out.push(letter),
        }
    }
    Cow::Owned(out)
}

pub(crate) fn is_control_character(letter: char) -> bool {
    // Of the direction of writing, and two that end a line.
    let direction = matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    (letter.is_control() && !matches!(letter, '\n' | '\t')) || direction
}
