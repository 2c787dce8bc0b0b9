//! Statistics of a figure that was measured several times: its median, the range of the middle half of the
//! rounds, and a 95 % confidence interval of the true median. No distribution is assumed: times have long
//! tails.

use std::fmt;

/// Figures of one kind, sorted.
#[derive(Debug, Clone)]
pub(super) struct Spread(Vec<f64>);

/// The fewest rounds for a confidence interval: with five, even the smallest and the largest enclose the
/// median in less than 19 of 20 cases.
pub(super) const ENOUGH: usize = 6;

impl Spread {
    /// The spread of these figures, of which there must be at least one.
    pub(super) fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        Self(sorted)
    }

    /// The spread of the ratios, round by round: disturbances that affect both in a round cancel out.
    pub(super) fn of_ratios(ours: &[f64], theirs: &[f64]) -> Self {
        Self::of(&ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>())
    }

    pub(super) fn rounds(&self) -> usize {
        self.0.len()
    }

    pub(super) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The quartiles, which enclose the middle half.
    pub(super) fn quartiles(&self) -> (f64, f64) {
        (self.quantile(0.25), self.quantile(0.75))
    }

    /// The interval that contains the true median in at least 19 of 20 cases, for any distribution; `None` if
    /// there are too few rounds.
    pub(super) fn interval(&self) -> Option<(f64, f64)> {
        let n = self.0.len();
        // Each round is above or below the true median, like a coin toss. Counts how many may lie outside on
        // one side: the most for which the probability is at most one in forty.
        let (mut outside, mut probability, mut sum) = (0, 0.5f64.powi(i32::try_from(n).ok()?), 0.0);
        while sum + probability <= 0.025 {
            sum += probability;
            outside += 1;
            probability *= (n + 1 - outside) as f64 / outside as f64;
        }
        let first = outside.checked_sub(1)?;
        Some((*self.0.get(first)?, *self.0.get(n - outside)?))
    }

    /// The quantile, interpolated between the two neighbouring figures.
    fn quantile(&self, part: f64) -> f64 {
        let at = part * (self.0.len().saturating_sub(1)) as f64;
        let figure = |index: f64| self.0.get(index as usize).copied().unwrap_or(f64::NAN);
        let (below, above) = (figure(at.floor()), figure(at.ceil()));
        below + (above - below) * at.fract()
    }
}

/// How a ratio compares with a bound, as far as the rounds can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Below,
    Above,
    /// The true median may be on either side.
    Noise,
    TooFewRounds,
}

impl Comparison {
    pub(super) fn of(spread: &Spread, bound: f64) -> Self {
        match spread.interval() {
            None => Comparison::TooFewRounds,
            Some((_, high)) if high <= bound => Comparison::Below,
            Some((low, _)) if low > bound => Comparison::Above,
            Some(_) => Comparison::Noise,
        }
    }
}

/// A number with a readable number of digits: `0.34`, `18.9`, `3328`.
pub(super) struct Digits(pub(super) f64);

impl fmt::Display for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.abs() {
            whole if whole.fract() == 0.0 || whole >= 100.0 => write!(f, "{:.0}", self.0),
            10.0.. => write!(f, "{:.1}", self.0),
            _ => write!(f, "{:.2}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up_to(n: u32) -> Spread {
        Spread::of(&(1..=n).rev().map(f64::from).collect::<Vec<_>>())
    }

    #[test]
    fn median_and_quartiles_are_those_of_the_sorted_figures() {
        assert_eq!((up_to(5).median(), up_to(5).quartiles()), (3.0, (2.0, 4.0)));
        assert_eq!((up_to(4).median(), up_to(4).quartiles()), (2.5, (1.75, 3.25)));
        assert_eq!((up_to(1).median(), up_to(1).quartiles()), (1.0, (1.0, 1.0)));
    }

    #[test]
    fn the_interval_of_the_median_is_that_of_the_tables() {
        // From Conover, Practical Nonparametric Statistics: at least 95 %.
        for (n, low, high) in [(6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (20, 6, 15), (50, 18, 33)] {
            assert_eq!(up_to(n).interval(), Some((f64::from(low), f64::from(high))), "{n} rounds");
        }
        assert_eq!(up_to(5).interval(), None);
        assert!(up_to(ENOUGH as u32).interval().is_some());
    }

    #[test]
    fn a_difference_that_chance_explains_is_noise() {
        let ratios = |figures: &[f64]| Comparison::of(&Spread::of(figures), 1.0);
        assert_eq!(ratios(&[1.1, 1.2, 0.9, 1.3, 0.8, 1.1, 1.0]), Comparison::Noise);
        assert_eq!(ratios(&[1.1, 1.2, 1.1, 1.3, 1.2, 1.1, 1.05]), Comparison::Above);
        assert_eq!(ratios(&[0.9, 0.8, 0.9, 0.95, 0.7, 1.0]), Comparison::Below);
        assert_eq!(ratios(&[0.5, 0.5]), Comparison::TooFewRounds);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        // Both take ten times as long in the second round, but the ratio is always a half.
        assert_eq!(Spread::of_ratios(&[1.0, 10.0], &[2.0, 20.0]).quartiles(), (0.5, 0.5));
    }

    #[test]
    fn numbers_have_the_digits_that_one_reads() {
        let shown = [0.344, 18.94, 3328.2, 0.0, 7.0, 1.5].map(|number| Digits(number).to_string());
        assert_eq!(shown, ["0.34", "18.9", "3328", "0", "7", "1.50"]);
    }
}
