//! Reads and writes `xtask/budgets.toml`, which limits what nodlet may cost, one section per budget, and
//! compares measurements with it. Measures nothing. `tests/bench/src/gates.rs` and `xtask/src/sizes.rs` measure.
//!
//! The file is written for people: it uses only sections, whole numbers and plain strings of TOML, and
//! writing a figure changes only that figure's line.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use crate::task::{Outcome, TaskError, project};

/// The path of the file, also for messages.
const FILE: &str = "xtask/budgets.toml";

/// The target on which all budgets but the sizes of cross builds were measured. On other processors, programs
/// have other sizes, and C libraries make other system calls.
pub const MEASURED_ON: &str = "x86_64-unknown-linux-musl";

/// One section of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Budget {
    name: String,
    /// The figure that was last written.
    measured: u64,
    /// How much more is accepted, in the same unit.
    margin: u64,
    unit: String,
}

/// The comparison of a measurement with its budget.
#[derive(Debug, PartialEq, Eq)]
enum Comparison {
    Kept,
    /// The measured size is far below the budget: the file must be updated, so that later growth is noticed.
    Below,
    Exceeded,
}

impl Budget {
    fn judge(&self, measured: u64) -> Comparison {
        if measured > self.measured + self.margin {
            Comparison::Exceeded
        } else if measured + self.margin < self.measured {
            Comparison::Below
        } else {
            Comparison::Kept
        }
    }
}

/// The file, and this run's measurements.
#[derive(Debug)]
pub struct Budgets {
    text: String,
    budgets: Vec<Budget>,
    measured: Vec<(String, u64)>,
}

impl Budgets {
    /// Reads the file.
    pub fn read() -> Result<Self, TaskError> {
        Self::parse(fs::read_to_string(file())?)
    }

    fn parse(text: String) -> Result<Self, TaskError> {
        let mut budgets = Vec::new();
        let mut sections = text.split("\n[");
        sections.next();
        for section in sections {
            budgets.push(budget(section)?);
        }
        Ok(Self { text, budgets, measured: Vec::new() })
    }

    /// Whether the file has a budget of this name.
    pub fn has(&self, name: &str) -> bool {
        self.budgets.iter().any(|budget| budget.name == name)
    }

    /// Records a measurement, and prints how it compares with its budget.
    pub fn measured(&mut self, name: &str, measured: u64) -> Outcome {
        let budget = self.of(name)?;
        let Budget { measured: ledger, margin, unit, .. } = budget;
        let advice = match budget.judge(measured) {
            Comparison::Kept => "",
            Comparison::Below => ": better by more than its margin; let `--write` keep it",
            Comparison::Exceeded => ": TOO MUCH",
        };
        println!("{name}: {measured} {unit}, budget {ledger} + {margin}{advice}");
        self.measured.push((name.to_owned(), measured));
        Ok(())
    }

    /// Fails if any budget is exceeded, with all of them in one message.
    pub fn require_kept(&self, again: &str) -> Outcome {
        let mut why = String::new();
        for (name, measured) in &self.measured {
            let budget = self.of(name)?;
            if budget.judge(*measured) == Comparison::Exceeded {
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
            "{why}Make it less; or, if it is meant to cost more, run `{again} --write` and say in the commit what \
             it buys"
        )))
    }

    /// Fails if a measurement exceeds its budget. For figures that no task writes, because they are measured
    /// elsewhere than by `cargo xtask gates` and `cargo xtask sizes`.
    pub fn require(&mut self, name: &str, measured: u64) -> Outcome {
        self.measured(name, measured)?;
        match self.of(name)?.judge(measured) {
            Comparison::Exceeded => Err(TaskError(format!(
                "{name} is {measured}: make it less; or, if it is meant to cost more, change the figure in {FILE} \
                 and say in the commit what it buys"
            ))),
            Comparison::Kept | Comparison::Below => Ok(()),
        }
    }

    /// Writes the measurements to the file, and changes nothing else.
    pub fn write(&self) -> Outcome {
        Ok(fs::write(file(), self.rewritten()?)?)
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
        let found = self.budgets.iter().find(|budget| budget.name == name);
        found.ok_or_else(|| TaskError(format!("{FILE} has no section [{name}]")))
    }
}

fn file() -> PathBuf {
    project().join(FILE)
}

/// Parses a section after its `[`.
fn budget(section: &str) -> Result<Budget, TaskError> {
    let wrong = |what: &str, line: &str| TaskError(format!("{FILE}: {what}: {line:?}"));
    let (name, lines) = section.split_once("]\n").ok_or_else(|| wrong("no section", section))?;
    let (mut measured, mut margin, mut unit, mut why) = (None, None, None, None);
    for line in lines.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (key, value) = line.split_once(" = ").ok_or_else(|| wrong("no `key = value`", line))?;
        let number = || value.parse().map_err(|_| wrong("no whole number", line));
        let text = || {
            let inner = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
            inner.map(str::to_owned).ok_or_else(|| wrong("no plain string", line))
        };
        match key {
            "measured" => measured = Some(number()?),
            "margin" => margin = Some(number()?),
            "unit" => unit = Some(text()?),
            "why" => why = Some(text()?),
            _ => return Err(wrong("a budget has measured, margin, unit and why", line)),
        }
    }
    let missing = |key: &str| TaskError(format!("{FILE}: [{name}] has no {key}"));
    why.ok_or_else(|| missing("why"))?;
    Ok(Budget {
        name: name.to_owned(),
        measured: measured.ok_or_else(|| missing("measured"))?,
        margin: margin.ok_or_else(|| missing("margin"))?,
        unit: unit.ok_or_else(|| missing("unit"))?,
    })
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
        for (measured, comparison) in [
            (94, Comparison::Below),
            (95, Comparison::Kept),
            (105, Comparison::Kept),
            (106, Comparison::Exceeded),
        ] {
            assert_eq!(budgets().budgets[0].judge(measured), comparison, "{measured}");
        }
        let mut budgets = budgets();
        budgets.measured("one", 105).unwrap();
        budgets.require_kept("cargo xtask gates").unwrap();
        budgets.measured("two", 101).unwrap();
        let why = budgets.require_kept("cargo xtask gates").unwrap_err().0;
        for part in ["two is 101 calls", "xtask/budgets.toml allows 100 and 0 more", "gates --write"] {
            assert!(why.contains(part), "{why}");
        }
        assert!(!why.contains("one is"), "{why}");
        budgets.require("one", 105).unwrap();
        let why = budgets.require("one", 106).unwrap_err().0;
        assert!(why.starts_with("one is 106: make it less"), "{why}");
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
            ("\n[one]\nmeasured = much\n", "no whole number: \"measured = much\""),
            ("\n[one]\nmeasured = 1\nmargin = 1\nunit = \"KiB\"\n", "[one] has no why"),
            ("\n[one]\nunit = KiB\n", "no plain string"),
            ("\n[one]\nlimit = 1\n", "limit"),
            ("\n[one]\nmeasured\n", "no `key = value`"),
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
