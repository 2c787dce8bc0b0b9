//! What the tests of verbs share.

use lexopt::Parser;

use crate::arguments::Context;
use crate::error::VerbError;

/// How a verb parses its arguments.
pub(crate) type Parse<T> = fn(&mut Context, &mut Parser) -> Result<T, VerbError>;

/// What a verb makes of a line of arguments, without a board from the environment.
pub(crate) fn parsed<T>(verb: &'static str, parse: Parse<T>, line: &str) -> Result<T, String> {
    let mut context = Context::new();
    (context.verb, context.board) = (verb, None);
    let mut parser = Parser::from_args(line.split_whitespace());
    parse(&mut context, &mut parser).map_err(|failure| failure.to_string())
}

/// Checks what accepted lines of arguments mean, and with what the errors of rejected ones begin.
#[track_caller]
pub(crate) fn check<T: std::fmt::Debug + PartialEq>(
    verb: &'static str,
    parse: Parse<T>,
    accepted: impl IntoIterator<Item = (&'static str, T)>,
    rejected: &[(&str, &str)],
) {
    for (line, expected) in accepted {
        assert_eq!(parsed(verb, parse, line), Ok(expected), "{line}");
    }
    for (line, expected) in rejected {
        let refused = parsed(verb, parse, line).expect_err(line);
        assert!(refused.starts_with(&format!("error: {expected}")), "{line}: {refused}");
    }
}
