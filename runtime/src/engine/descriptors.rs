//! Reserves file descriptors that pods cannot take: the agent needs them to read manifests, to answer the API and to
//! end pods. Without any it would not notice the changes that free some.

use std::cell::Cell;
use std::{fs, io};

use nix::sys::resource::{Resource, getrlimit};

/// Descriptors that must be free when a pod starts.
const FOR_A_POD: u64 = 32;

/// Descriptors that must be free when a run starts: fewer than for a pod, so that runs of existing pods come before
/// new pods.
const FOR_A_RUN: u64 = 16;

/// Descriptors of a pod that has started: for its supervisor and its first run.
const OF_A_POD: u64 = 3;

/// Descriptors of a run that has started: for its process.
const OF_A_RUN: u64 = 1;

/// The number of descriptors that starting pods and runs will take.
#[derive(Default)]
pub(super) struct StartReservations(Cell<u64>);

/// Counts the descriptors of a starting pod or run until it is dropped.
pub(super) struct Reservation<'a>(&'a Cell<u64>, u64);

impl StartReservations {
    /// Counts a pod that starts.
    ///
    /// # Errors
    /// With this pod, and the pods and runs that are starting, too few descriptors would be left.
    pub(super) fn pod(&self) -> io::Result<Reservation<'_>> {
        self.take(FOR_A_POD, OF_A_POD, 0)
    }

    /// Counts a run that starts. `unconfirmed` runs were requested, and not reported as started or failed yet.
    ///
    /// # Errors
    /// With this run, and the pods and runs that are starting, too few descriptors would be left.
    pub(super) fn run(&self, unconfirmed: usize) -> io::Result<Reservation<'_>> {
        self.take(FOR_A_RUN, OF_A_RUN, OF_A_RUN * unconfirmed as u64)
    }

    fn take(&self, left: u64, takes: u64, unconfirmed: u64) -> io::Result<Reservation<'_>> {
        check_left(left, self.0.get() + unconfirmed)?;
        self.0.update(|promised| promised + takes);
        Ok(Reservation(&self.0, takes))
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.0.update(|promised| promised - self.1);
    }
}

/// Checks that `count` descriptors are left when `promised` more are taken.
fn check_left(count: u64, promised: u64) -> io::Result<()> {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if taken()? + promised + count <= limit {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "of the {limit} files that the agent may have open, the last {count} are not for pods: raise its limit \
         (LimitNOFILE= of its service, or ulimit -n)"
    )))
}

/// The number of descriptors that this process has open.
fn taken() -> io::Result<u64> {
    const OPEN: &str = "/proc/self/fd";
    match fs::metadata(OPEN)?.len() {
        // Before Linux 6.2 it does not say. The one for the directory is counted with the others.
        0 => Ok(fs::read_dir(OPEN)?.count() as u64 - 1),
        count => Ok(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_leaves_too_few_file_descriptors_is_rejected() {
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).expect("it is known");
        assert!(check_left(1, 0).is_ok());
        let refused = check_left(1, limit).expect_err("all are promised").to_string();
        assert!(refused.starts_with(&format!("of the {limit} files")), "{refused}");
        let refused = check_left(limit, 0).expect_err("some are taken").to_string();
        assert!(refused.starts_with(&format!("of the {limit} files")), "{refused}");
    }

    #[test]
    fn open_file_descriptors_are_counted_regardless_of_their_numbers() {
        let file = |_| fs::File::open("/dev/null").expect("it is there");
        let mut files: Vec<fs::File> = (0..400).map(file).collect();
        // The lowest numbers are free again, and those above them are taken.
        files.drain(..200);
        let with = taken().expect("/proc is mounted");
        drop(files);
        // Other tests open and close some meanwhile.
        assert!((200..400).contains(&with), "{with}");
    }

    #[test]
    fn pods_that_begin_together_are_counted_together() {
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).expect("it is known");
        let beginning = StartReservations(Cell::new(limit - FOR_A_POD));
        assert!(beginning.pod().is_err());
        let beginning = StartReservations::default();
        let begins = [beginning.pod().expect("few are taken"), beginning.run(2).expect("few are taken")];
        assert_eq!(beginning.0.get(), OF_A_POD + OF_A_RUN);
        assert!(beginning.run(limit as usize).is_err());
        drop(begins);
        assert_eq!(beginning.0.get(), 0);
    }
}
