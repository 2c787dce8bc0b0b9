//! The text as the YAML parser reads it, with two differences.
//!
//! The parser keeps every token of a `[…]` or `{…}` until that is closed, for it may turn out to
//! be a key: a hundred bytes for one of text. So the text ends early for it where there are
//! more than [`MARKS`] of `[]{},:` between two of its events; the reader sees it by their count.
//!
//! It refuses `key:<TAB>value`, which YAML allows and Kubernetes takes. It asks whether there
//! was a space behind the colon, in one place; here a tab will do. As indentation, where it has
//! no place in YAML, a tab is refused as before: that is asked elsewhere.

use std::cell::Cell;
use std::rc::Rc;

use saphyr_parser::input::SkipTabs;
use saphyr_parser::{Input, StrInput};

/// Of `[]{},:` between two events. Half of them are enough for the longest string that the
/// kernel passes to a program, all of it JSON; the tokens take some 10 MiB.
pub(super) const MARKS: usize = 50_000;

/// What the parser reads.
pub(in crate::manifest) struct Text<'text> {
    input: StrInput<'text>,
    marks: Rc<Cell<usize>>,
}

impl<'text> Text<'text> {
    /// `marks` counts them; the reader sets it to 0 with each event.
    pub(in crate::manifest) fn new(text: &'text str, marks: &Rc<Cell<usize>>) -> Self {
        Text { input: StrInput::new(text), marks: Rc::clone(marks) }
    }

    /// The parser goes past the next character.
    fn pass(&mut self) {
        if matches!(self.input.peek(), '[' | ']' | '{' | '}' | ',' | ':') {
            self.marks.set(self.marks.get() + 1);
            if self.marks.get() > MARKS {
                self.input = StrInput::new("");
            }
        }
        self.input.skip();
    }
}

impl Input for Text<'_> {
    fn skip_ws_to_eol(&mut self, skip_tabs: SkipTabs) -> (usize, Result<SkipTabs, &'static str>) {
        let (count, skipped) = self.input.skip_ws_to_eol(skip_tabs);
        let skipped = skipped.map(|skipped| {
            let tabs = skipped.found_tabs();
            SkipTabs::Result(tabs, tabs || skipped.has_valid_yaml_ws())
        });
        (count, skipped)
    }

    fn lookahead(&mut self, count: usize) {
        self.input.lookahead(count);
    }

    fn buflen(&self) -> usize {
        self.input.buflen()
    }

    fn bufmaxlen(&self) -> usize {
        self.input.bufmaxlen()
    }

    fn raw_read_ch(&mut self) -> char {
        self.input.raw_read_ch()
    }

    fn raw_read_non_breakz_ch(&mut self) -> Option<char> {
        self.input.raw_read_non_breakz_ch()
    }

    fn skip(&mut self) {
        self.pass();
    }

    fn skip_n(&mut self, count: usize) {
        (0..count).for_each(|_| self.pass());
    }

    fn peek(&self) -> char {
        self.input.peek()
    }

    fn peek_nth(&self, n: usize) -> char {
        self.input.peek_nth(n)
    }

    fn peek_opt(&self) -> Option<char> {
        self.input.peek_opt()
    }
}
