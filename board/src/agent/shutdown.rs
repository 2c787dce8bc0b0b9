//! The time that pods have to end when all of them are stopped: the flags of `nodlet agent` and `nodlet
//! down`.

use std::time::Duration;

use lexopt::{Parser, ValueExt};
use nodlet_core::facts::ShutdownGroup;

use crate::arguments::duration::{duration, go_duration};
use crate::arguments::refused;
use crate::error::VerbError;

const TOTAL: &str = "--shutdown-grace-period";
const CRITICAL: &str = "--shutdown-grace-period-critical-pods";
const GROUPS: &str = "--shutdown-grace-period-by-pod-priority";

/// The most groups of priorities that are accepted; nobody needs more.
const MOST: usize = 64;

/// The arguments of `nodlet agent` that `nodlet down` accepts, too.
pub(crate) fn flags_of(arguments: &[String]) -> Vec<&str> {
    let mut found = Vec::new();
    let mut words = arguments.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let name = word.split_once('=').map_or(word, |(name, _)| name);
        if [TOTAL, CRITICAL, GROUPS].contains(&name) {
            found.push(word);
            if name == word {
                found.extend(words.next());
            }
        }
    }
    found
}

/// The shutdown flags given on the command line.
#[derive(Default)]
pub(super) struct Flags {
    total: Option<Duration>,
    critical: Option<Duration>,
    groups: Vec<ShutdownGroup>,
}

impl Flags {
    /// Parses the value of a shutdown flag. Returns `false` if this module has no such flag.
    pub(super) fn take(&mut self, flag: &str, parser: &mut Parser) -> Result<bool, VerbError> {
        match flag {
            TOTAL => self.total = Some(duration(parser, TOTAL)?.unwrap_or_default()),
            CRITICAL => self.critical = Some(duration(parser, CRITICAL)?.unwrap_or_default()),
            GROUPS => self.groups = groups(&parser.value()?.string()?)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The shutdown groups by priority, lowest first; an empty list means no limits.
    pub(super) fn groups(self) -> Result<Vec<ShutdownGroup>, VerbError> {
        let (total, critical) = (self.total.unwrap_or_default(), self.critical.unwrap_or_default());
        if !self.groups.is_empty() && (self.total.is_some() || self.critical.is_some()) {
            return Err(VerbError::new(format!(
                "{GROUPS} cannot be used together with {TOTAL} or {CRITICAL}"
            )));
        }
        if critical > total {
            return Err(VerbError::new(format!(
                "{CRITICAL} must not be longer than {TOTAL}, of which it is a part"
            )));
        }
        Ok(if total.is_zero() { self.groups } else { ShutdownGroup::of(total, critical) })
    }
}

fn groups(text: &str) -> Result<Vec<ShutdownGroup>, VerbError> {
    let invalid = || refused(GROUPS, text, "like 0=20s,2000000000=10s, with each priority once");
    let mut groups = Vec::new();
    for group in text.split(',') {
        let (priority, grace) = group.split_once('=').ok_or_else(invalid)?;
        let priority = priority.trim().parse().map_err(|_| invalid())?;
        let grace = go_duration(GROUPS, grace.trim())?.unwrap_or_default();
        groups.push(ShutdownGroup { priority, grace });
    }
    groups.sort_by_key(|group| group.priority);
    let repeated = groups.windows(2).any(|two| two[0].priority == two[1].priority);
    if repeated || groups.len() > MOST { Err(invalid()) } else { Ok(groups) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::next_flag;

    fn check(line: &str) -> Result<Vec<(i32, u64)>, String> {
        let mut parser = Parser::from_args(line.split_whitespace());
        let mut flags = Flags::default();
        while let Some(flag) = next_flag(&mut parser, &mut Vec::new()).expect("it is a line") {
            assert!(flags.take(&flag, &mut parser).map_err(|failure| failure.to_string())?, "{flag}");
        }
        let groups = flags.groups().map_err(|failure| failure.to_string())?;
        Ok(groups.iter().map(|group| (group.priority, group.grace.as_secs())).collect())
    }

    #[test]
    fn a_total_is_split_between_most_pods_and_critical_ones() {
        let total = "--shutdown-grace-period";
        assert_eq!(check(""), Ok(vec![]));
        assert_eq!(check(&format!("{total} 0")), Ok(vec![]));
        assert_eq!(check(&format!("{total} 1m30s")), Ok(vec![(0, 90), (2_000_000_000, 0)]));
        let both = format!("{total}=30s --shutdown-grace-period-critical-pods=10s");
        assert_eq!(check(&both), Ok(vec![(0, 20), (2_000_000_000, 10)]));
        for (line, said) in [
            (format!("{total} soon"), "must be a duration like 5s"),
            (format!("{total} 5s --shutdown-grace-period-critical-pods 6s"), "must not be longer"),
            ("--shutdown-grace-period-critical-pods 6s".to_owned(), "must not be longer"),
        ] {
            let refused = check(&line).expect_err(&line);
            assert!(refused.contains(said), "{line}: {refused}");
        }
    }

    #[test]
    fn a_board_shuts_down_with_the_shutdown_flags_of_its_agent() {
        let line =
            "--quiet --shutdown-grace-period 30s --max-pods 3 --shutdown-grace-period-critical-pods=10s";
        let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let flags = flags_of(&arguments).join(" ");
        assert_eq!(flags, "--shutdown-grace-period 30s --shutdown-grace-period-critical-pods=10s");
        assert_eq!(check(&flags), Ok(vec![(0, 20), (2_000_000_000, 10)]));
        assert!(flags_of(&["--shutdown-grace-periods".to_owned()]).is_empty());
    }

    #[test]
    fn shutdown_groups_are_sorted_and_a_repeated_priority_is_rejected() {
        let by = |groups: &str| check(&format!("--shutdown-grace-period-by-pod-priority {groups}"));
        assert_eq!(by("100=5s,0=10s"), Ok(vec![(0, 10), (100, 5)]));
        for wrong in ["x", "1", "1=", "a=5s", "1=5s,1=6s", "1=5s,", "99999999999=1s"] {
            assert!(by(wrong).is_err(), "{wrong}");
        }
        let both = check("--shutdown-grace-period-by-pod-priority 0=1s --shutdown-grace-period 5s");
        assert!(both.is_err_and(|refused| refused.contains("cannot be used together")));
    }
}
