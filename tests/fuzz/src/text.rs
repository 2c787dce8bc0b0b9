//! Tables of cases, and comparisons of texts whose failure shows the whole text.

/// The cases of a table with `N` columns.
///
/// Panics if a case has another number of columns, or if there is none.
#[track_caller]
pub fn cases<const N: usize>(table: &str) -> Vec<[&str; N]> {
    let cases = rows(table).into_iter();
    cases.map(|case| case.try_into().unwrap_or_else(|case| panic!("not {N}: {case:?}"))).collect()
}

/// The cases of a table, one case a line with `=>` between its columns. A line that begins with `=>` continues the case
/// before it, and one that begins with `//` is a comment.
///
/// Panics if there is no case.
#[track_caller]
pub fn rows(table: &str) -> Vec<Vec<&str>> {
    let mut cases: Vec<Vec<&str>> = Vec::new();
    for line in table.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")) {
        match (line.strip_prefix("=>"), cases.last_mut()) {
            (Some(more), Some(case)) => case.extend(more.split("=>").map(str::trim)),
            _ => cases.push(line.split("=>").map(str::trim).collect()),
        }
    }
    assert!(!cases.is_empty(), "a table without a case");
    cases
}

/// Panics unless the text contains this part.
#[track_caller]
pub fn assert_contains(text: &(impl ToString + ?Sized), part: impl AsRef<str>) {
    let (text, part) = (text.to_string(), part.as_ref());
    assert!(text.contains(part), "{part:?} is not in {text:?}");
}

/// Panics unless the text starts with this part.
#[track_caller]
pub fn assert_starts_with(text: &(impl ToString + ?Sized), part: impl AsRef<str>) {
    let (text, part) = (text.to_string(), part.as_ref());
    assert!(text.starts_with(part), "{part:?} is not the start of {text:?}");
}

/// Panics unless the text ends with this part.
#[track_caller]
pub fn assert_ends_with(text: &(impl ToString + ?Sized), part: impl AsRef<str>) {
    let (text, part) = (text.to_string(), part.as_ref());
    assert!(text.ends_with(part), "{part:?} is not the end of {text:?}");
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_table_has_a_case_a_line_or_paragraph() {
        let table = "
            a => b
            // a comment
            c d
                => =
            e =>
        ";
        assert_eq!(super::cases(table), [["a", "b"], ["c d", "="], ["e", ""]]);
    }
}
