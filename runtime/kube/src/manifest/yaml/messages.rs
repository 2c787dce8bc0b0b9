//! Messages about texts that are not YAML, for people who know YAML from manifests: the parser's own words for frequent
//! errors name its inner states.

/// Parts of messages of the parser, and what is reported instead.
const EXPLAINED: [(&str, &str); 15] = [
    ("misplaced bracket", "this bracket closes nothing: remove it, or put the text in quotes"),
    (
        "did not find expected <document start>",
        "this text follows the end of the document's value: remove it, indent it as a part of the value, or begin another \
         document with ---",
    ),
    (
        "simple key expect ':'",
        "a line here or above is neither `key: value` nor a part of the value before it: add the colon, or indent the line \
         more than its key (also the | or > of a block of text)",
    ),
    (
        "wrongly indented line in block scalar",
        "a line of a block of text is indented less than an empty line above it: remove the spaces of the empty line",
    ),
    ("while scanning a tag,", TAG),
    ("while parsing a tag,", TAG),
    ("':' may not precede any of", "a blank must follow the colon of a key"),
    ("tabs disallowed within", TAB),
    ("tabs disallowed in this context", "a tab cannot follow a ? or a -: use a space"),
    (
        "plain scalar cannot start with '-'",
        "a - in front of a bracket or a comma is no text: put it in quotes",
    ),
    ("tab cannot be used as indentation", TAB),
    (
        "while scanning a plain scalar, found a tab",
        "the text that begins here is followed by a line that a tab indents: use spaces",
    ),
    (
        "while parsing a block mapping, did not find expected key",
        "this line is no `key: value` in the column of the keys above it: indent all keys of a mapping alike",
    ),
    (
        "invalid trailing content after double-quoted scalar",
        "text follows the closing quote: put all of the text in the quotes",
    ),
    (
        "comment intercepting the multiline text",
        "a comment is between the lines of a text: write it above the key, or put the text in quotes",
    ),
];

const TAG: &str =
    "a ! begins a tag, such as !!str, which a blank must follow: put a text that begins with ! in quotes";

const TAB: &str = "a tab cannot indent a line: use spaces";

/// The message for one of the parser.
pub(super) fn explained(message: &str) -> &str {
    let known = EXPLAINED.iter().find(|(part, _)| message.contains(part));
    known.map_or(message, |(_, explanation)| explanation)
}
