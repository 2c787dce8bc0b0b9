//! The rows of the resulting table: one for each comparison. The row of a contestant that could not run gives the reason.

use std::fmt;

use nodlet_build::task::TaskError;

use super::race::Contestant;
use super::spread::{Comparison, Digits, ENOUGH, Spread};

/// The largest acceptable ratio to another contestant's figure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target(pub(super) f64);

/// The head of the table.
pub(super) const HEAD: &str = "| measure | nodlet | other | nodlet ÷ other | target |\n|---|---|---|---|---|";

/// The rows of a measure, or why it could not measure.
pub(super) type Rows = Result<Vec<Row>, TaskError>;

/// A row of the table, as the texts of its cells.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) measure: String,
    pub(super) nodlet: String,
    pub(super) other: String,
    pub(super) ratio: String,
    pub(super) target: String,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { measure, nodlet, other, ratio, target } = self;
        write!(f, "| {measure} | {nodlet} | {other} | {ratio} | {target} |")
    }
}

/// A row whose cells contain nothing but the name of the measure.
fn empty(measure: &str) -> Row {
    let [nodlet, other, ratio, target] = ["—"; 4].map(String::from);
    Row { measure: measure.into(), nodlet, other, ratio, target }
}

/// A figure without a comparison; `target` is its largest acceptable value.
pub(super) fn figure(measure: &str, unit: &str, ours: &[f64], target: Option<f64>) -> Row {
    let ours = Spread::of(ours);
    let target = match target {
        None => "—".into(),
        Some(target) => {
            let result = if ours.median() <= target { "met" } else { "missed" };
            format!("≤ {}: {result}", with_unit(&Digits(target).to_string(), unit))
        }
    };
    Row { nodlet: text_of(&ours, unit), target, ..empty(measure) }
}

/// Another contestant's result that cannot be expressed as a ratio.
pub(super) fn other(measure: &str, other: &str, theirs: &str) -> Row {
    Row { other: format!("{other}: {theirs}"), ..empty(measure) }
}

/// One kind of figure of the first contestant against each of the others. The targets are in the same order as the
/// others.
pub(super) fn comparisons<const N: usize>(
    measure: &str,
    unit: &str,
    all: &[Contestant<'_, N>],
    kind: usize,
    targets: &[Option<Target>],
) -> Rows {
    let (ours, others) = all.split_first().ok_or("somebody takes part")?;
    let ours = ours.figures(kind)?;
    let rows = others.iter().zip(targets).map(|(other, target)| {
        let row = Row { nodlet: text_of(&Spread::of(&ours), unit), ..empty(measure) };
        match other.figures(kind) {
            Ok(theirs) => {
                let (ratio, target) = comparison(&Spread::of_ratios(&ours, &theirs), *target);
                let theirs = text_of(&Spread::of(&theirs), unit);
                Row { other: format!("{}: {theirs}", other.name), ratio, target, ..row }
            }
            Err(TaskError(why)) => {
                let why = why.replace(['\n', '|'], " ");
                Row { other: format!("{}: not measured: {}", other.name, why.trim()), ..row }
            }
        }
    });
    Ok(rows.collect())
}

/// The cells with the ratio and with the target.
fn comparison(ratios: &Spread, target: Option<Target>) -> (String, String) {
    let ratio = match (ratios.interval(), Comparison::of(ratios, 1.0)) {
        (Some((low, high)), comparison) => {
            let noise = if comparison == Comparison::Noise { "; a difference inside the noise" } else { "" };
            format!("{} ({} to {}){noise}", Digits(ratios.median()), Digits(low), Digits(high))
        }
        (None, _) => {
            format!("{}, but too few rounds to tell (there must be {ENOUGH})", Digits(ratios.median()))
        }
    };
    let target = target.map_or("—".into(), |Target(bound)| {
        let result = match Comparison::of(ratios, bound) {
            Comparison::Below => "met",
            Comparison::Above => "missed",
            Comparison::Noise => "met or missed inside the noise",
            Comparison::TooFewRounds => "too few rounds to tell",
        };
        format!("≤ {}: {result}", Digits(bound))
    });
    (ratio, target)
}

/// Formats the median and the interquartile range: `18.9 ms (17.8 to 20.1, 20 rounds)`.
fn text_of(spread: &Spread, unit: &str) -> String {
    let median = with_unit(&Digits(spread.median()).to_string(), unit);
    if spread.rounds() == 1 {
        return median;
    }
    let (low, high) = spread.quartiles();
    format!("{median} ({} to {}, {} rounds)", Digits(low), Digits(high), spread.rounds())
}

fn with_unit(number: &str, unit: &str) -> String {
    if unit.is_empty() { number.into() } else { format!("{number} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_shown_with_where_the_middle_half_lay() {
        assert_eq!(text_of(&Spread::of(&[1.0, 2.5, 4.0]), "ms"), "2.50 ms (1.75 to 3.25, 3 rounds)");
        assert_eq!(text_of(&Spread::of(&[3_223_008.0]), ""), "3223008");
    }
}
