//! Descriptors are kept free of pods: with these manifests are read, the API answers and what is to
//! end is ended. An agent that pods leave none hears of nothing that would give it some back.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::resource::{Resource, getrlimit};

/// Free when a pod begins.
const FOR_A_POD: u64 = 32;

/// Free when a run begins: those of pods that are here come before other pods.
const FOR_A_RUN: u64 = 16;

/// What a pod takes that has begun: its supervisor and its first run.
const OF_A_POD: u64 = 3;

/// The pods that are beginning, whose descriptors are not all taken yet.
#[derive(Default)]
pub(super) struct Beginning(Cell<u64>);

/// As long as a pod is beginning.
pub(super) struct Begins<'a>(&'a Cell<u64>);

impl Beginning {
    /// A pod that begins.
    ///
    /// # Errors
    /// With it and those that are beginning too few are left.
    pub(super) fn pod(&self) -> io::Result<Begins<'_>> {
        are_left(FOR_A_POD, OF_A_POD * self.0.get())?;
        self.0.update(|pods| pods + 1);
        Ok(Begins(&self.0))
    }
}

impl Drop for Begins<'_> {
    fn drop(&mut self) {
        self.0.update(|pods| pods - 1);
    }
}

/// Whether a run may begin.
///
/// # Errors
/// Too few are left.
pub(super) fn for_a_run() -> io::Result<()> {
    are_left(FOR_A_RUN, 0)
}

/// Whether `count` are left if `promised` are taken besides those that are.
fn are_left(count: u64, promised: u64) -> io::Result<()> {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // The kernel gives the lowest number that is free.
    let taken = io::stderr().as_fd().try_clone_to_owned()?.as_raw_fd();
    if u64::from(taken.unsigned_abs()) + promised + count <= limit {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "of the {limit} files that the agent may have open, the last {count} are not for pods: raise its limit \
         (LimitNOFILE= of its service, or ulimit -n)"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_leave_too_few_is_refused() {
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).expect("it is known");
        assert!(are_left(1, 0).is_ok());
        let refused = are_left(1, limit).expect_err("all are promised").to_string();
        assert!(refused.starts_with(&format!("of the {limit} files")), "{refused}");
        let refused = are_left(limit, 0).expect_err("some are taken").to_string();
        assert!(refused.starts_with(&format!("of the {limit} files")), "{refused}");
    }

    #[test]
    fn pods_that_begin_together_are_counted_together() {
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).expect("it is known");
        let beginning = Beginning(Cell::new((limit - FOR_A_POD) / OF_A_POD));
        assert!(beginning.pod().is_err());
        let beginning = Beginning::default();
        let begins = beginning.pod().expect("few are taken");
        assert_eq!(beginning.0.get(), 1);
        drop(begins);
        assert_eq!(beginning.0.get(), 0);
    }
}
