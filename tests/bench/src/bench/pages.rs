//! Writes the figures into the README and `docs/benchmarks.md`, between two marks in each. A test of the documents
//! (`tests/tests/docs.rs`) requires that both have the same figures.

use std::fs;
use std::path::PathBuf;

use nodlet_build::files;
use nodlet_build::task::{Outcome, TaskError, project};

use super::report::{HEAD, Row};

/// The marks around the figures of a page.
const MARKS: [&str; 2] = ["<!-- bench -->\n", "<!-- /bench -->"];

/// The measures of the README, which has the first row of each, without quartiles and ratios.
const README: &[&str] = &[
    "binary",
    "agent idle, no pods, PSS",
    "each of 20 pods adds, PSS of all our processes",
    "the same against conmon",
    "1 pod, warm: manifest → first instruction",
    "1 pod, page cache dropped: manifest → first instruction",
    "boot with 20, warm: start of agent → all run",
    "boot with 100, warm: start of agent → all run",
    "exec probe, CPU of all involved",
    "image load, 32 MB: CPU",
    "image load, 32 MB: peak memory, resident",
    "log, lines of 100 bytes: CPU of each MB",
];

fn pages() -> [PathBuf; 2] {
    ["README.md", "docs/benchmarks.md"].map(|page| project().join(page))
}

/// Requires the marks in both pages, before anything is measured.
///
/// # Errors
/// A page cannot be read, or has not both marks once.
pub(super) fn require_marks() -> Outcome {
    pages().iter().try_for_each(|page| replace(&files::read_text(page)?, "").map(drop))
}

/// Writes what was measured on this machine into both pages.
///
/// # Errors
/// A row of the README was not measured, a page has not both marks once, or cannot be read or written.
pub(super) fn write(machine: &str, rows: &[Row]) -> Outcome {
    for (page, figures) in pages().iter().zip([short(machine, rows)?, full(machine, rows)]) {
        fs::write(page, replace(&files::read_text(page)?, &figures)?)?;
    }
    Ok(())
}

/// The table of the page on benchmarks: all rows.
fn full(machine: &str, rows: &[Row]) -> String {
    let rows: String = rows.iter().map(|row| format!("{row}\n")).collect();
    format!("{machine}\n\n{HEAD}\n{rows}")
}

/// The table of the README.
fn short(machine: &str, rows: &[Row]) -> Result<String, TaskError> {
    let median = |cell: &str| cell.split(" (").next().unwrap_or_default().to_owned();
    let mut table = format!("{machine}\n\n| measure | nodlet | for comparison |\n|---|---|---|\n");
    for measure in README {
        let row = rows.iter().find(|row| row.measure == *measure);
        let row = row.ok_or_else(|| format!("no row of the table has the measure {measure:?}"))?;
        table += &format!("| {measure} | {} | {} |\n", median(&row.nodlet), median(&row.other));
    }
    Ok(table)
}

/// The page with these figures between its marks.
fn replace(page: &str, figures: &str) -> Result<String, TaskError> {
    let [begin, end] = MARKS;
    if MARKS.iter().any(|mark| page.matches(mark).count() != 1) {
        return Err(format!("the page must have {begin:?} and {end:?} once").into());
    }
    let (before, rest) = page.split_once(begin).ok_or("the first mark is there")?;
    let (_, after) = rest.split_once(end).ok_or_else(|| format!("{end:?} comes before {begin:?}"))?;
    Ok(format!("{before}{begin}{figures}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::super::report::{figure, other};
    use super::*;

    #[test]
    fn the_page_has_all_rows_and_the_readme_the_medians_of_the_first_row_of_each_measure() {
        let mut rows: Vec<Row> =
            README.iter().map(|measure| figure(measure, "ms", &[1.0, 2.5, 4.0], Some(3.0))).collect();
        rows[0].other = "`crun run`: 18.2 ms (15.8 to 20.8, 20 rounds)".into();
        rows.push(other(README[0], "`podman run`", "5 ms"));
        rows.push(figure("the README has no such row", "", &[0.0], None));
        let page = full("2026-11-22, Linux 6", &rows);
        assert!(page.starts_with(
            "2026-11-22, Linux 6\n\n| measure | nodlet | other | nodlet ÷ other | target |\n|---|---|---|---|---|\n\
             | binary | 2.50 ms (1.75 to 3.25, 3 rounds) | `crun run`: 18.2 ms (15.8 to 20.8, 20 rounds) | — | ≤ 3 ms: met |\n"
        ), "{page}");
        assert!(page.ends_with(
            "| binary | — | `podman run`: 5 ms | — | — |\n| the README has no such row | 0 | — | — | — |\n"
        ));
        assert_eq!(page.lines().count(), 4 + rows.len());
        let readme = short("2026-11-22, Linux 6", &rows).unwrap();
        assert!(
            readme.starts_with(
                "2026-11-22, Linux 6\n\n| measure | nodlet | for comparison |\n|---|---|---|\n\
             | binary | 2.50 ms | `crun run`: 18.2 ms |\n| agent idle, no pods, PSS | 2.50 ms | — |\n"
            ),
            "{readme}"
        );
        assert_eq!(readme.lines().count(), 4 + README.len());
        rows.remove(1);
        assert!(short("", &rows).unwrap_err().0.contains("agent idle"));
    }

    #[test]
    fn only_what_is_between_the_marks_is_replaced_and_a_missing_mark_is_an_error() {
        let page = "before\n<!-- bench -->\nold\n<!-- /bench -->\nafter\n";
        let replaced = "before\n<!-- bench -->\nnew\n<!-- /bench -->\nafter\n";
        assert_eq!(replace(page, "new\n").unwrap(), replaced);
        for wrong in [
            "",
            "<!-- bench -->\n",
            "<!-- /bench -->\n",
            "<!-- /bench -->\n<!-- bench -->\n",
            &page.repeat(2),
        ] {
            assert!(replace(wrong, "new\n").is_err(), "{wrong:?}");
        }
        require_marks().unwrap();
    }
}
