//! Descriptors are kept free of pods: with these manifests are read, the API answers and what is to
//! end is ended. An agent that pods leave none hears of nothing that would give it some back.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::resource::{Resource, getrlimit};

/// Free when a pod begins. Several begin at once, and each takes a few meanwhile.
pub(super) const FOR_A_POD: u64 = 32;

/// Free when a run begins: those of pods that are here come before other pods.
pub(super) const FOR_A_RUN: u64 = 16;

/// Whether so many are left.
///
/// # Errors
/// They are not.
pub(super) fn are_left(count: u64) -> io::Result<()> {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // The kernel gives the lowest number that is free.
    let taken = io::stderr().as_fd().try_clone_to_owned()?.as_raw_fd();
    if u64::from(taken.unsigned_abs()) + count <= limit {
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
        assert!(are_left(1).is_ok());
        let refused = are_left(limit).expect_err("some are taken").to_string();
        assert!(refused.starts_with(&format!("of the {limit} files")), "{refused}");
    }
}
