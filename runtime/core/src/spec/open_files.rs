//! The limit of open files of a process (`RLIMIT_NOFILE`), as Docker and podman write it.

use serde::{Deserialize, Serialize};

/// How many files each process may have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFiles {
    /// The limit in effect, which a process may raise to `hard`.
    pub soft: u64,
    /// The most that a process without CAP_SYS_RESOURCE may have.
    pub hard: u64,
}

impl OpenFiles {
    /// The limit of containers by default, as with containerd and podman. It is the kernel's `fs.nr_open`, too.
    pub const DEFAULT: OpenFiles = OpenFiles { soft: 1 << 20, hard: 1 << 20 };

    /// Parses `SOFT:HARD`, or one number for both. -1 stands for `most`.
    #[must_use]
    pub fn parse(text: &str, most: u64) -> Option<OpenFiles> {
        let number = |text: &str| match text {
            "-1" => Some(most),
            // No sign, as in `+1`.
            _ => text.parse().ok().filter(|_| text.starts_with(|first: char| first.is_ascii_digit())),
        };
        let (soft, hard) = text.split_once(':').unwrap_or((text, text));
        let limit = OpenFiles { soft: number(soft)?, hard: number(hard)? };
        (limit.soft <= limit.hard && limit.hard <= MAX).then_some(limit)
    }
}

/// The most that the kernel accepts for `fs.nr_open`.
const MAX: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_one_number_or_a_soft_and_a_hard_one() {
        for (text, expected) in [
            ("1024", Some((1024, 1024))),
            ("1024:2048", Some((1024, 2048))),
            ("0:0", Some((0, 0))),
            ("-1", Some((77, 77))),
            ("10:-1", Some((10, 77))),
            ("1073741824", Some((MAX, MAX))),
            ("1073741825", None),
            ("2048:1024", None),
            ("-2", None),
            ("+1", None),
            ("", None),
            (":", None),
            ("1:2:3", None),
            ("1 : 2", None),
            ("1k", None),
        ] {
            let parsed = OpenFiles::parse(text, 77).map(|limit| (limit.soft, limit.hard));
            assert_eq!(parsed, expected, "{text:?}");
        }
    }
}
