//! Reads and writes `xtask/budgets.toml`, which limits what nodlet may cost, one section per budget, and
//! compares measurements with it. Measures nothing. `tests/bench/src/gates.rs` and `xtask/src/sizes.rs` measure.
//!
//! The file is written for people: writing a figure changes only that figure's line.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Deserialize;

use crate::files;
use crate::task::{Outcome, TaskError, project};

/// The path of the file, also for messages.
const FILE: &str = "xtask/budgets.toml";

/// The target on which all budgets but the sizes of cross builds were measured. On other processors, programs
/// have other sizes, and C libraries make other system calls.
pub const MEASURED_ON: &str = "x86_64-unknown-linux-musl";

/// One section of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    /// The figure that was last written.
    measured: u64,
    /// How much more is accepted, in the same unit.
    margin: u64,
    unit: String,
    /// The reason for the figure, which is for people.
    #[serde(rename = "why")]
    _why: String,
}

impl Budget {
    /// `Greater` if the measurement exceeds the budget. `Less` if it is so far below the budget that the file must be
    /// updated, so that later growth is noticed.
    fn compare(&self, measured: u64) -> Ordering {
        if measured > self.measured + self.margin {
            Ordering::Greater
        } else if measured + self.margin < self.measured {
            Ordering::Less
        } else {
            Ordering::Equal
        }
    }
}

/// The file, and this run's measurements.
#[derive(Debug)]
pub struct Budgets {
    text: String,
    budgets: BTreeMap<String, Budget>,
    measured: Vec<(String, u64)>,
}

impl Budgets {
    /// Reads the file.
    pub fn read() -> Result<Self, TaskError> {
        Self::parse(files::read_text(&project().join(FILE))?)
    }

    fn parse(text: String) -> Result<Self, TaskError> {
        let budgets = toml::from_str(&text).map_err(|error| format!("{FILE}: {error}"))?;
        Ok(Self { text, budgets, measured: Vec::new() })
    }

    /// Whether the file has a budget of this name.
    pub fn has(&self, name: &str) -> bool {
        self.budgets.contains_key(name)
    }

    /// Records a measurement, and prints how it compares with its budget.
    pub fn measured(&mut self, name: &str, measured: u64) -> Outcome {
        let budget = self.of(name)?;
        let Budget { measured: ledger, margin, unit, .. } = budget;
        let advice = match budget.compare(measured) {
            Ordering::Equal => "",
            Ordering::Less => ": better by more than its margin; let `--write` keep it",
            Ordering::Greater => ": TOO MUCH",
        };
        println!("{name}: {measured} {unit}, budget {ledger} + {margin}{advice}");
        self.measured.push((name.to_owned(), measured));
        Ok(())
    }

    /// Fails if any budget is exceeded, with all of them in one message, which names what changes a budget: `change`.
    pub fn require_kept(&self, change: &str) -> Outcome {
        let mut why = String::new();
        for (name, measured) in &self.measured {
            let budget = self.of(name)?;
            if budget.compare(*measured) == Ordering::Greater {
                let Budget { measured: ledger, margin, unit, .. } = budget;
                let _ = write!(
                    why,
                    "{name} is {measured} {unit}, and {FILE} allows {ledger} and {margin} more. "
                );
            }
        }
        if why.is_empty() {
            return Ok(());
        }
        Err(TaskError(format!(
            "{why}Make it less; or, if it is meant to cost more, {change} and say in the commit what it buys"
        )))
    }

    /// Writes the measurements to the file, and changes nothing else.
    pub fn write(&self) -> Outcome {
        files::write(&project().join(FILE), self.rewritten()?)
    }

    fn rewritten(&self) -> Result<String, TaskError> {
        let mut text = self.text.clone();
        for (name, measured) in &self.measured {
            let old = self.of(name)?.measured;
            let section = text.find(&format!("\n[{name}]\n")).ok_or("a budget has a section")?;
            let line = format!("\nmeasured = {old}\n");
            let at = section + text[section..].find(&line).ok_or("a budget has a figure")?;
            text.replace_range(at..at + line.len(), &format!("\nmeasured = {measured}\n"));
        }
        Ok(text)
    }

    fn of(&self, name: &str) -> Result<&Budget, TaskError> {
        self.budgets.get(name).ok_or_else(|| TaskError(format!("{FILE} has no section [{name}]")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# What.\n\n[one]\nmeasured = 100\nmargin = 5\nunit = \"bytes\"\nwhy = \"because\"\n\n\
                        [two]\n# A figure.\nmeasured = 100\nmargin = 0\nunit = \"calls\"\nwhy = \"so\"\n";

    fn budgets() -> Budgets {
        Budgets::parse(TEXT.to_owned()).unwrap()
    }

    #[test]
    fn a_figure_beyond_the_margin_of_its_budget_is_rejected_with_a_remedy() {
        for (measured, comparison) in
            [(94, Ordering::Less), (95, Ordering::Equal), (105, Ordering::Equal), (106, Ordering::Greater)]
        {
            assert_eq!(budgets().budgets["one"].compare(measured), comparison, "{measured}");
        }
        let mut budgets = budgets();
        budgets.measured("one", 105).unwrap();
        budgets.require_kept("run `gates --write`").unwrap();
        budgets.measured("two", 101).unwrap();
        let why = budgets.require_kept("run `gates --write`").unwrap_err().0;
        for part in ["two is 101 calls", "xtask/budgets.toml allows 100 and 0 more", "gates --write"] {
            assert!(why.contains(part), "{why}");
        }
        assert!(!why.contains("one is"), "{why}");
    }

    #[test]
    fn a_figure_is_written_into_its_own_line_and_nothing_else_changes() {
        let mut budgets = budgets();
        budgets.measured("two", 7).unwrap();
        let (before, after) = TEXT.rsplit_once("measured = 100").unwrap();
        assert_eq!(budgets.rewritten().unwrap(), format!("{before}measured = 7{after}"));
    }

    #[test]
    fn an_invalid_budget_is_rejected_with_its_line() {
        for (text, part) in [
            ("[one]\nmeasured = \"much\"\n", "measured = \"much\""),
            ("[one]\nmeasured = 1\nmargin = 1\nunit = \"KiB\"\n", "missing field `why`"),
            ("[one]\nlimit = 1\n", "unknown field `limit`"),
        ] {
            let why = Budgets::parse(text.to_owned()).unwrap_err().0;
            assert!(why.contains(part), "{why}");
        }
        assert!(budgets().of("three").unwrap_err().0.contains("no section [three]"));
    }

    #[test]
    fn the_file_itself_is_read() {
        assert!(!Budgets::read().unwrap().budgets.is_empty());
    }
}
