//! Random changes of inputs, for tests of code that reads hostile bytes.
//!
//! A target is a function that must return for any input: it may reject the input, but must not panic, hang
//! or use memory without bound. Each crate has its targets beside the code under test, as ordinary tests:
//!
//! ```text
//! rootfs   archive, layer, image manifest   load/tests/fuzz.rs
//!          changed blocks of a layer        changes/tests.rs
//! kube     manifest                         manifest/fuzz_tests.rs
//! supervisor   protocol frame               protocol.rs
//! services   query, answer of the DNS      dns/fuzz_tests.rs
//! runtime  API request                      api/fuzz.rs
//! ```
//!
//! Only the seeds determine the inputs, so that a failure can be reproduced: `NODLET_SEED=4711
//! NODLET_ROUNDS=1 cargo test …`. `cargo xtask long fuzz` runs each target for any time, guided by coverage
//! (`coverage.rs`): an input that reaches new code is changed further. libFuzzer by way of bolero or
//! cargo-fuzz is not used, because it needs 35 crates, C++ among them, and a nightly compiler.
//!
//! [`disk`] lets changes of files fail at each of their steps. Apart from that, [`imports`] and [`purity`] are for tests
//! that read the source of their own crate, [`public`], [`errors`], [`confined`] and [`names`] for tests that read the
//! source of all crates.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

pub mod confined;
mod coverage;
pub mod disk;
pub mod entropy;
pub mod errors;
pub mod imports;
pub mod names;
pub mod public;
pub mod purity;
mod text;

use coverage::Reached;
pub use text::{assert_contains, assert_ends_with, assert_starts_with, cases, rows};

/// The longest time that one input may take; more is too slow.
const SLOW: Duration = Duration::from_secs(20);
/// The timeout after which the process ends with an error, so that the seed is known.
const HANG: Duration = Duration::from_secs(120);
/// Kibibytes by which a process's address space may grow over one input, including its other threads.
const GROWTH: u64 = 1024 * 1024;
/// The largest size in bytes to which changes extend an input.
const LONGEST: usize = 1024 * 1024;
/// The most bytes of inputs that reached something new, which are kept and changed further.
const KEPT_BYTES: usize = 64 * 1024 * 1024;

/// A small random number generator (xorshift64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator with this seed.
    pub fn of(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A random number below `limit`, which must not be zero.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The low bits are the least random.
        ((self.0 >> 11) % limit as u64) as usize
    }

    /// Returns `true` once in this many times, on average.
    pub fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    /// A random choice.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// This many random bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.below(256) as u8).collect()
    }
}

/// A numeric setting from the environment.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Tests `target` with randomly changed inputs of the corpus, `rounds` of them unless `NODLET_ROUNDS` is set.
/// `words` are byte strings that mean something to the target.
pub fn fuzz(name: &str, rounds: u64, corpus: &[Vec<u8>], words: &[&[u8]], mut target: impl FnMut(&[u8])) {
    let (first, rounds) = (setting("NODLET_SEED", 1), setting("NODLET_ROUNDS", rounds));
    let watch = watch(name.to_owned(), Duration::from_secs(setting("NODLET_HANG", HANG.as_secs())));
    let mut reached = Reached::new();
    let (mut found, mut room) = (Vec::new(), KEPT_BYTES);
    for seed in first..first.saturating_add(rounds) {
        let mut random = Random::of(seed);
        let old = found.is_empty() || random.one_in(8);
        let mut input = random.pick(if old { corpus } else { &found }).clone();
        for _ in 0..=random.below(6) {
            change(&mut input, &mut random, corpus, words);
        }
        // On a hang, the watching thread ends the process; a failure to send does not matter.
        let _ = watch.send((seed, input.clone()));
        let (begun, size) = (Instant::now(), largest_size());
        reached.begin();
        let outcome = catch_unwind(AssertUnwindSafe(|| target(&input)));
        let what = match outcome {
            Err(_) => "panicked at",
            Ok(()) if begun.elapsed() > SLOW => "took more than 20 s over",
            Ok(()) if largest_size().saturating_sub(size) > GROWTH => "took more than 1 GiB of memory for",
            Ok(()) => {
                if reached.is_new() && input.len() <= room {
                    room -= input.len();
                    found.push(input);
                }
                continue;
            }
        };
        panic!("{name} {what} the input of seed {seed}, which is in {}", keep(name, seed, &input).display());
    }
    let guided = if reached.is_counted() {
        format!("; {} reached something new, {} pieces of code in all", found.len(), reached.count())
    } else {
        String::new()
    };
    println!("{name}: {rounds} inputs, seeds {first} to {}{guided}", first.saturating_add(rounds) - 1);
}

/// Starts a thread that ends the process if nothing is received for this time, unless the sender is gone.
fn watch(name: String, patience: Duration) -> mpsc::Sender<(u64, Vec<u8>)> {
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || {
        let mut last: Option<(u64, Vec<u8>)> = None;
        loop {
            match ended.recv_timeout(patience) {
                Ok(next) => last = Some(next),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    if let Some((seed, input)) = &last {
                        let path = keep(&name, *seed, input);
                        eprintln!(
                            "{name} hangs over the input of seed {seed}, which is in {}",
                            path.display()
                        );
                        std::process::abort();
                    }
                }
            }
        }
    });
    sender
}

/// The peak size of this process's address space, in kibibytes.
fn largest_size() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let size = status.lines().find_map(|line| line.strip_prefix("VmPeak:")?.trim().strip_suffix(" kB"));
    size.and_then(|size| size.parse().ok()).unwrap_or(0)
}

/// Saves an input that failed, for inspection. Returns its path.
fn keep(name: &str, seed: u64, input: &[u8]) -> PathBuf {
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let path = std::env::temp_dir().join(format!("nodlet-fuzz-{name}-{seed}"));
    // The panic that follows is more informative than an error here.
    let _ = std::fs::write(&path, input);
    path
}

/// Makes one random change to the input.
fn change(input: &mut Vec<u8>, random: &mut Random, corpus: &[Vec<u8>], words: &[&[u8]]) {
    const NUMBERS: [&[u8]; 8] = [
        b"-1",
        b"0",
        b"18446744073709551615",
        b"9223372036854775808",
        b"4294967296",
        b"1e999",
        b"0777",
        b"\xff",
    ];
    let at = random.below(input.len() + 1);
    let end = (at + 1 + random.below(1 + random.clone().below(64))).min(input.len());
    match random.below(10) {
        0 | 1 if at < input.len() => input[at] ^= 1 << random.below(8),
        2 if at < input.len() => input[at] = random.below(256) as u8,
        3 => drop(input.drain(at..end)),
        4 => {
            let piece = input[at..end].to_vec();
            input.splice(at..at, piece);
        }
        5 => input.truncate(at),
        6 => {
            let other = random.pick(corpus).clone();
            let from = random.below(other.len() + 1);
            input.splice(at..end, other[from..].iter().copied().take(600));
        }
        7 => drop(input.splice(at..end, random.pick(&NUMBERS).iter().copied())),
        8 => {
            let length = random.below(40);
            let bytes = random.bytes(length);
            input.splice(at..at, bytes);
        }
        _ if !words.is_empty() => drop(input.splice(at..end, random.pick(words).iter().copied())),
        _ => {}
    }
    input.truncate(LONGEST);
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANGING: &str = "tests::a_target_that_hangs";

    fn kept(message: &str) -> Vec<u8> {
        let path = message.trim().rsplit(' ').next().expect("its last word");
        let input = std::fs::read(path).expect("the input is kept");
        std::fs::remove_file(path).expect("it can be removed");
        input
    }

    fn panics_with(name: &str, target: impl Fn(&[u8]) + std::panic::RefUnwindSafe) -> String {
        let corpus = [b"some text to begin with".to_vec()];
        let found = catch_unwind(|| fuzz(name, 2000, &corpus, &[b"magic"], &target));
        *found.expect_err("it is found").downcast::<String>().expect("a message")
    }

    fn is_magic(input: &[u8]) -> bool {
        input.windows(5).any(|word| word == b"magic")
    }

    #[test]
    fn a_target_that_panics_is_found_and_its_input_kept() {
        let message = panics_with("self test", |input| assert!(!is_magic(input)));
        assert!(message.starts_with("self test panicked at the input of seed "), "{message}");
        assert!(is_magic(&kept(&message)));
    }

    #[test]
    fn a_target_that_asks_for_memory_without_bound_is_found() {
        let message = panics_with("self test of memory", |input| {
            let bytes: Vec<u8> = Vec::with_capacity(if is_magic(input) { 2 << 30 } else { 0 });
            std::hint::black_box(&bytes);
        });
        assert!(message.contains("took more than 1 GiB of memory for the input of seed "), "{message}");
        assert!(is_magic(&kept(&message)));
    }

    /// Not a test by itself: the next test runs it in a process of its own.
    #[test]
    fn a_target_that_hangs() {
        if std::env::args().any(|argument| argument == HANGING) {
            let corpus = [b"some text to begin with".to_vec()];
            fuzz("self test of hanging", 2000, &corpus, &[b"magic"], |input| {
                while is_magic(input) {
                    thread::park();
                }
            });
        }
    }

    #[test]
    fn a_target_that_hangs_ends_the_process_and_its_input_is_kept() {
        let mut process = std::process::Command::new(std::env::current_exe().expect("its own path"));
        process.args(["--exact", HANGING, "--nocapture"]).env("NODLET_HANG", "1");
        let ended = process.output().expect("it can be run");
        assert!(!ended.status.success());
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        let message = said.lines().find(|line| line.contains(" hangs over ")).expect(&said);
        assert!(is_magic(&kept(message)));
    }
}
