//! [`undisturbed`]: repeats what other processes can disturb.

use nix::errno::Errno;

/// The most attempts. A process that does nothing but rename disturbs about one attempt in three.
const ATTEMPTS: usize = 256;

/// Repeats an openat2(2) while it returns EAGAIN. With `RESOLVE_BENEATH` or `RESOLVE_IN_ROOT`, the kernel gives up at each
/// `..`, also of a link, if anything on the machine is renamed or mounted at the same moment, which a container does as it
/// likes.
///
/// # Errors
/// That of the call; EAGAIN only if all of 256 attempts were disturbed.
pub fn undisturbed<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 1..ATTEMPTS {
        match call() {
            Err(Errno::EAGAIN) => std::thread::yield_now(),
            answer => return answer,
        }
    }
    call()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_call_is_repeated_up_to_a_bound_and_others_are_not() {
        let calls = |disturbed: usize, answer: Result<u8, Errno>| {
            let mut calls = 0;
            let got = undisturbed(|| {
                calls += 1;
                if calls > disturbed { answer } else { Err(Errno::EAGAIN) }
            });
            (calls, got)
        };
        assert_eq!(calls(0, Ok(1)), (1, Ok(1)));
        assert_eq!(calls(7, Ok(1)), (8, Ok(1)));
        assert_eq!(calls(7, Err(Errno::ENOENT)), (8, Err(Errno::ENOENT)));
        assert_eq!(calls(1_000, Ok(1)), (ATTEMPTS, Err(Errno::EAGAIN)));
    }
}
