//! Runs the same task by several contestants in turns, so that a machine that becomes slower for a while
//! affects all of them. A different one begins in each round.

use nodlet_build::task::{Outcome, TaskError};

/// The results of one contestant's rounds, or why it could not continue.
pub(super) type Rounds<T> = Result<T, TaskError>;

type Run<'a, const N: usize> = Box<dyn FnMut(usize) -> Result<[f64; N], TaskError> + 'a>;

/// A contestant. Its function gets the number of the round, performs the task once and returns its figures.
pub(super) struct Contestant<'a, const N: usize> {
    pub(super) name: &'a str,
    /// The function, or why the contestant cannot run.
    run: Rounds<Run<'a, N>>,
    figures: Vec<[f64; N]>,
}

impl<'a, const N: usize> Contestant<'a, N> {
    pub(super) fn new(name: &'a str, run: impl FnMut(usize) -> Result<[f64; N], TaskError> + 'a) -> Self {
        Self { name, run: Ok(Box::new(run)), figures: Vec::new() }
    }

    /// A contestant that cannot run if its prerequisite is missing; its figures then contain the reason.
    pub(super) fn if_possible<P>(
        name: &'a str,
        possible: &'a Result<P, TaskError>,
        mut run: impl FnMut(&'a P, usize) -> Result<[f64; N], TaskError> + 'a,
    ) -> Self {
        let run: Rounds<Run<'a, N>> = match possible {
            Ok(peer) => Ok(Box::new(move |round| run(peer, round))),
            Err(TaskError(why)) => Err(TaskError(why.clone())),
        };
        Self { name, run, figures: Vec::new() }
    }

    fn turn(&mut self, round: usize) {
        let Ok(run) = &mut self.run else { return };
        match run(round) {
            Ok(figures) => self.figures.push(figures),
            Err(why) => self.run = Err(why),
        }
    }

    /// One kind of the contestant's figures, with one number per round.
    pub(super) fn figures(&self, kind: usize) -> Rounds<Vec<f64>> {
        match &self.run {
            Ok(_) => Ok(self.figures.iter().filter_map(|figures| figures.get(kind).copied()).collect()),
            Err(TaskError(why)) => Err(TaskError(why.clone())),
        }
    }
}

/// Runs all contestants for this many rounds. If one fails, its figures contain the reason, and it runs no
/// more; the first must not fail.
pub(super) fn race<const N: usize>(rounds: usize, all: &mut [Contestant<'_, N>]) -> Outcome {
    for round in 0..rounds {
        for place in 0..all.len() {
            let turn = (round + place) % all.len();
            all[turn].turn(round);
        }
        if let Some(Err(TaskError(why))) = all.first().map(|first| first.run.as_ref().map(|_| ())) {
            return Err(TaskError(format!("round {round} of {}: {why}", all[0].name)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn contestants_run_in_rotating_order_and_a_failure_stops_no_other() {
        let order = RefCell::new(String::new());
        let run = |name: char| {
            let order = &order;
            move |round: usize| {
                order.borrow_mut().push(name);
                if name == 'c' && round == 1 {
                    Err(TaskError("it is broken".into()))
                } else {
                    Ok([round as f64])
                }
            }
        };
        let absent: Result<(), TaskError> = Err(TaskError("it is not installed".into()));
        let mut all = [
            Contestant::new("a", run('a')),
            Contestant::new("b", run('b')),
            Contestant::new("c", run('c')),
            Contestant::if_possible("d", &absent, |(), _| Ok([0.0])),
        ];
        race(4, &mut all).unwrap();
        assert_eq!(order.take(), "abcbcaabab");
        assert_eq!(all[0].figures(0).unwrap(), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(all[2].figures(0).unwrap_err().0, "it is broken");
        assert_eq!(all[3].figures(0).unwrap_err().0, "it is not installed");
    }

    #[test]
    fn without_our_own_figures_there_is_nothing_to_compare() {
        let mut all = [Contestant::<0>::new("nodlet", |_| Err(TaskError("it does not start".into())))];
        assert!(race(2, &mut all).unwrap_err().0.contains("round 0 of nodlet: it does not start"));
    }
}
