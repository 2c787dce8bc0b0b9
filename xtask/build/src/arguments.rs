//! The arguments of a task: options are taken by their names, in any order, and what is left are names.

use std::str::FromStr;

use crate::task::{Outcome, Task, TaskError};

/// What follows the name of a task.
pub struct Arguments<'a> {
    task: &'a Task,
    words: Vec<String>,
}

impl<'a> Arguments<'a> {
    /// The arguments of a task.
    pub fn new(task: &'a Task, words: &[String]) -> Self {
        Self { task, words: words.to_vec() }
    }

    fn take(&mut self, option: &str) -> Option<usize> {
        let place = self.words.iter().position(|word| word == option)?;
        self.words.remove(place);
        Some(place)
    }

    /// Whether there is an option without a value.
    pub fn has(&mut self, option: &str) -> bool {
        self.take(option).is_some()
    }

    /// The values of an option that may be given several times.
    ///
    /// # Errors
    /// A value is missing, or is of another type.
    pub fn all<T: FromStr>(&mut self, option: &str) -> Result<Vec<T>, TaskError> {
        let mut values = Vec::new();
        while let Some(place) = self.take(option) {
            let word = self.words.get(place).filter(|word| !word.starts_with('-'));
            let value = word.and_then(|word| word.parse().ok());
            values.push(value.ok_or_else(|| self.task.misused())?);
            self.words.remove(place);
        }
        Ok(values)
    }

    /// The value of an option that may be given once.
    ///
    /// # Errors
    /// It is given several times, or its value is missing or of another type.
    pub fn one<T: FromStr>(&mut self, option: &str) -> Result<Option<T>, TaskError> {
        let mut values = self.all(option)?;
        if values.len() > 1 { Err(self.task.misused()) } else { Ok(values.pop()) }
    }

    /// What is left.
    ///
    /// # Errors
    /// An option is left.
    pub fn names(self) -> Result<Vec<String>, TaskError> {
        if self.words.iter().any(|word| word.starts_with('-')) {
            return Err(self.task.misused());
        }
        Ok(self.words)
    }

    /// Requires that nothing is left.
    ///
    /// # Errors
    /// Something is left.
    pub fn end(self) -> Outcome {
        if self.words.is_empty() { Ok(()) } else { Err(self.task.misused()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_in_any_order_and_unknown_ones_are_misuse() {
        const TASK: Task =
            Task::new("demo", "[--keep] [--pod FILE]... [--rounds N] NAME", "show it", |_| Ok(()));
        let read = |line: &str| -> Result<String, TaskError> {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let mut arguments = Arguments::new(&TASK, &words);
            let (keep, pods) = (arguments.has("--keep"), arguments.all::<String>("--pod")?);
            let rounds: Option<u32> = arguments.one("--rounds")?;
            Ok(format!("{keep} {pods:?} {rounds:?} {:?}", arguments.names()?))
        };
        let all = read("--pod a one --rounds 3 --pod b --keep").unwrap();
        assert_eq!(all, r#"true ["a", "b"] Some(3) ["one"]"#);
        assert_eq!(read("").unwrap(), "false [] None []");
        for wrong in ["--pod", "--pod --keep", "--rounds x", "--rounds 1 --rounds 2", "--other"] {
            assert_eq!(read(wrong).unwrap_err().0, TASK.usage(), "{wrong}");
        }
    }
}
