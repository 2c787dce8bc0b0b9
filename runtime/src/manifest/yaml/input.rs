//! The text as the YAML parser reads it, with one difference: it refuses `key:<TAB>value`,
//! which YAML allows and Kubernetes takes.
//!
//! It asks whether there was a space behind the colon, in one place; here a tab will do. As
//! indentation, where it has no place in YAML, a tab is refused as before: that is asked elsewhere.

use saphyr_parser::input::SkipTabs;
use saphyr_parser::{Input, StrInput};

/// What the parser reads.
pub(super) struct Text<'text>(StrInput<'text>);

impl<'text> Text<'text> {
    pub(super) fn new(text: &'text str) -> Self {
        Text(StrInput::new(text))
    }
}

impl Input for Text<'_> {
    fn skip_ws_to_eol(&mut self, skip_tabs: SkipTabs) -> (usize, Result<SkipTabs, &'static str>) {
        let (count, skipped) = self.0.skip_ws_to_eol(skip_tabs);
        let skipped = skipped.map(|skipped| {
            let tabs = skipped.found_tabs();
            SkipTabs::Result(tabs, tabs || skipped.has_valid_yaml_ws())
        });
        (count, skipped)
    }

    fn lookahead(&mut self, count: usize) {
        self.0.lookahead(count);
    }

    fn buflen(&self) -> usize {
        self.0.buflen()
    }

    fn bufmaxlen(&self) -> usize {
        self.0.bufmaxlen()
    }

    fn raw_read_ch(&mut self) -> char {
        self.0.raw_read_ch()
    }

    fn raw_read_non_breakz_ch(&mut self) -> Option<char> {
        self.0.raw_read_non_breakz_ch()
    }

    fn skip(&mut self) {
        self.0.skip();
    }

    fn skip_n(&mut self, count: usize) {
        self.0.skip_n(count);
    }

    fn peek(&self) -> char {
        self.0.peek()
    }

    fn peek_nth(&self, n: usize) -> char {
        self.0.peek_nth(n)
    }

    fn peek_opt(&self) -> Option<char> {
        self.0.peek_opt()
    }
}
