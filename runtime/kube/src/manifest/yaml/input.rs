//! The text as input of the YAML parser, with four differences.
//!
//! The parser keeps every token of a `[…]` or `{…}` until that is closed, since it may be a key: a hundred
//! bytes for one byte of text. Therefore the input ends early if there are more than [`MAX_MARKS`] of `[]{},:`
//! between two of the parser's events; the reader detects this by their count.
//!
//! The parser rejects `key:<TAB>value`, which YAML allows and Kubernetes accepts: in one place it checks for
//! a space after the colon. This input lets a tab pass there. A tab as indentation, which YAML does not
//! allow, is checked elsewhere and still rejected.
//!
//! The parser rejects a comment right behind `]`, `}`, a quote or the mark of a block, as in `[a]# why`. Kubernetes
//! accepts it; this input passes over it.
//!
//! In brackets, the parser ends a text without quotes at a colon before `,`, `]` or `}`, and reads `[http://x:]` as a
//! mapping. For Kubernetes only a blank ends it, so that the colon is part of the text; this input says the same.

use std::cell::Cell;
use std::rc::Rc;

use saphyr_parser::input::SkipTabs;
use saphyr_parser::{Input, StrInput};

/// Maximum of `[]{},:` between two events. Half of them suffice for the longest string that the kernel passes
/// to a program, all of it JSON; the tokens take some 10 MiB.
pub(super) const MAX_MARKS: usize = 50_000;

/// The input of the parser.
pub(in crate::manifest) struct Text<'text> {
    input: StrInput<'text>,
    marks: Rc<Cell<usize>>,
}

impl<'text> Text<'text> {
    /// The input for `text`. `marks` counts the marks; the reader resets it to 0 with each event.
    pub(in crate::manifest) fn new(text: &'text str, marks: &Rc<Cell<usize>>) -> Self {
        Text { input: StrInput::new(text), marks: Rc::clone(marks) }
    }

    /// Skips the next character, and counts it if it is a mark.
    fn pass(&mut self) {
        if matches!(self.input.peek(), '[' | ']' | '{' | '}' | ',' | ':') {
            self.marks.set(self.marks.get() + 1);
            if self.marks.get() > MAX_MARKS {
                self.input = StrInput::new("");
            }
        }
        self.input.skip();
    }
}

impl Input for Text<'_> {
    fn skip_ws_to_eol(&mut self, skip_tabs: SkipTabs) -> (usize, Result<SkipTabs, &'static str>) {
        let (mut count, skipped) = self.input.skip_ws_to_eol(skip_tabs);
        let Ok(skipped) = skipped else {
            // The only error is a comment without a blank in front of it.
            while !self.input.next_is_breakz() {
                self.input.skip();
                count += 1;
            }
            return (count, Ok(SkipTabs::Result(false, true)));
        };
        let tabs = skipped.found_tabs();
        (count, Ok(SkipTabs::Result(tabs, tabs || skipped.has_valid_yaml_ws())))
    }

    fn next_can_be_plain_scalar(&self, in_flow: bool) -> bool {
        match self.input.peek() {
            ':' => !matches!(self.input.peek_nth(1), ' ' | '\t' | '\n' | '\r' | '\0'),
            _ => self.input.next_can_be_plain_scalar(in_flow),
        }
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
