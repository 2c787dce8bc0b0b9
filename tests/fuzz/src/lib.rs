//! Inputs changed at random, for the tests of what reads hostile bytes.
//!
//! A target is a function that must return, whatever bytes it gets: it may
//! refuse them, and it may not panic, hang or ask for memory without bound. Each
//! crate has its targets beside the code they try, as ordinary tests:
//!
//! ```text
//! rootfs   archive, layer, image manifest   load/tests/fuzz.rs
//!          changed blocks of a layer        changes/tests.rs
//! runtime  manifest, protocol frame, API request
//! ```
//!
//! Nothing but seeds decides what is tried, so that a failure can be had again:
//! `NODLET_SEED=4711 NODLET_ROUNDS=1 cargo test …`. `cargo xtask long fuzz` runs
//! each for as long as one likes, and guided by what the inputs reach
//! (`coverage.rs`): one that runs code that none before it ran is changed further.
//! Not libFuzzer by way of bolero or cargo-fuzz: those bring 35 crates, C++ among
//! them, and a nightly compiler.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

mod coverage;
pub mod entropy;

use coverage::Reached;

/// One input may take so long; more is too slow.
const SLOW: Duration = Duration::from_secs(20);
/// What has not come back by then never will: the process ends, so that the seed is known.
const HANG: Duration = Duration::from_secs(120);
/// Kibibytes of address space that a process may grow by over one input, its other threads included.
const GROWTH: u64 = 1024 * 1024;
/// An input does not grow beyond this by what is done to it.
const LONGEST: usize = 1024 * 1024;
/// Inputs that reached something new are kept up to so many bytes together, and changed further.
const FOUND: usize = 64 * 1024 * 1024;

/// A small generator (xorshift64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of this seed.
    pub fn of(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit`, which is not zero.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The low bits are the weakest.
        ((self.0 >> 11) % limit as u64) as usize
    }

    /// True once in so many times.
    pub fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    /// One of them.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// So many bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.below(256) as u8).collect()
    }
}

/// A number from the environment, which says what a run shall be.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Tries `target` with inputs of the corpus that are changed at random, `rounds`
/// of them unless `NODLET_ROUNDS` says otherwise. `words` mean something to it.
pub fn fuzz(name: &str, rounds: u64, corpus: &[Vec<u8>], words: &[&[u8]], mut target: impl FnMut(&[u8])) {
    let (first, rounds) = (setting("NODLET_SEED", 1), setting("NODLET_ROUNDS", rounds));
    let watch = watch(name.to_owned(), Duration::from_secs(setting("NODLET_HANG", HANG.as_secs())));
    let mut reached = Reached::new();
    let (mut found, mut room) = (Vec::new(), FOUND);
    for seed in first..first.saturating_add(rounds) {
        let mut random = Random::of(seed);
        let old = found.is_empty() || random.one_in(8);
        let mut input = random.pick(if old { corpus } else { &found }).clone();
        for _ in 0..=random.below(6) {
            change(&mut input, &mut random, corpus, words);
        }
        // It ends the process and not itself.
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
    let guided = match reached.is_counted() {
        true => format!("; {} reached something new, {} pieces of code in all", found.len(), reached.count()),
        false => String::new(),
    };
    println!("{name}: {rounds} inputs, seeds {first} to {}{guided}", first.saturating_add(rounds) - 1);
}

/// Ends the process when nothing is heard for so long, unless the sender is gone.
fn watch(name: String, patience: Duration) -> mpsc::Sender<(u64, Vec<u8>)> {
    let (sender, told) = mpsc::channel();
    thread::spawn(move || {
        let mut last: Option<(u64, Vec<u8>)> = None;
        loop {
            match told.recv_timeout(patience) {
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

/// Kibibytes of address space that this process had at the most.
fn largest_size() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let size = status.lines().find_map(|line| line.strip_prefix("VmPeak:")?.trim().strip_suffix(" kB"));
    size.and_then(|size| size.parse().ok()).unwrap_or(0)
}

/// Where an input lies that was too much, for whoever looks into it.
fn keep(name: &str, seed: u64, input: &[u8]) -> PathBuf {
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let path = std::env::temp_dir().join(format!("nodlet-fuzz-{name}-{seed}"));
    // The panic that follows says more than that this failed.
    let _ = std::fs::write(&path, input);
    path
}

/// Changes one thing about the input.
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

    /// Not a test by itself: what the next one runs, in a process of its own.
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
