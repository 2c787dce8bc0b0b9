//! The resulting table, as Markdown: one line per comparison, printed as soon as it is known. The line of a
//! contestant that could not run gives the reason.

use nodlet_build::task::{Outcome, TaskError};

use super::race::Contestant;
use super::spread::{Comparison, Digits, ENOUGH, Spread};

/// The largest acceptable ratio to another contestant's figure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target(pub(super) f64);

pub(super) fn begin() {
    println!("| what | nodlet | other | nodlet ÷ other | target |\n|---|---|---|---|---|");
}

/// Prints a figure without a comparison; `target` is its largest acceptable value.
pub(super) fn figure(what: &str, unit: &str, ours: &[f64], target: Option<f64>) {
    let ours = Spread::of(ours);
    let target = match target {
        None => "—".into(),
        Some(target) => {
            let result = if ours.median() <= target { "met" } else { "missed" };
            format!("≤ {}: {result}", with_unit(&Digits(target).to_string(), unit))
        }
    };
    println!("| {what} | {} | — | — | {target} |", text_of(&ours, unit));
}

/// Prints another contestant's result that cannot be expressed as a ratio.
pub(super) fn other(what: &str, other: &str, theirs: &str) {
    println!("| {what} | — | {other}: {theirs} | — | — |");
}

/// Prints one kind of figure of the first contestant against each of the others. The targets are in the same
/// order as the others.
pub(super) fn comparisons<const N: usize>(
    what: &str,
    unit: &str,
    all: &[Contestant<'_, N>],
    kind: usize,
    targets: &[Option<Target>],
) -> Outcome {
    let (ours, others) = all.split_first().ok_or("somebody takes part")?;
    let ours = ours.figures(kind)?;
    for (other, target) in others.iter().zip(targets) {
        match other.figures(kind) {
            Ok(theirs) => comparison(what, unit, &ours, other.name, &theirs, *target),
            Err(TaskError(why)) => missing(what, unit, &ours, other.name, &why),
        }
    }
    Ok(())
}

fn comparison(what: &str, unit: &str, ours: &[f64], other: &str, theirs: &[f64], target: Option<Target>) {
    let ratios = Spread::of_ratios(ours, theirs);
    let ratio = match (ratios.interval(), Comparison::of(&ratios, 1.0)) {
        (Some((low, high)), comparison) => {
            let noise = if comparison == Comparison::Noise { "; a difference inside the noise" } else { "" };
            format!("{} ({} to {}){noise}", Digits(ratios.median()), Digits(low), Digits(high))
        }
        (None, _) => {
            format!("{}, but too few rounds to tell (there must be {ENOUGH})", Digits(ratios.median()))
        }
    };
    let target = target.map_or("—".into(), |Target(bound)| {
        let result = match Comparison::of(&ratios, bound) {
            Comparison::Below => "met",
            Comparison::Above => "missed",
            Comparison::Noise => "met or missed inside the noise",
            Comparison::TooFewRounds => "too few rounds to tell",
        };
        format!("≤ {}: {result}", Digits(bound))
    });
    let (ours, theirs) = (Spread::of(ours), Spread::of(theirs));
    println!(
        "| {what} | {} | {other}: {} | {ratio} | {target} |",
        text_of(&ours, unit),
        text_of(&theirs, unit)
    );
}

/// Prints a figure of nodlet, and why there is none to compare with.
fn missing(what: &str, unit: &str, ours: &[f64], other: &str, why: &str) {
    let why = why.replace(['\n', '|'], " ");
    println!(
        "| {what} | {} | {other}: not measured: {} | — | — |",
        text_of(&Spread::of(ours), unit),
        why.trim()
    );
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
