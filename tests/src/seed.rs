//! [`seed`]: the random choices of a test, and how to reproduce them. [`shard`]: the part of its cases that a
//! test with many cases runs.

use std::fs::File;
use std::io::Read;

/// A random number generator that depends only on its seed (splitmix64).
#[derive(Debug)]
pub struct Seed(u64);

/// A new seed, or `$NODLET_SEED`. The seed is printed; the output of a failed test is shown.
///
/// # Panics
/// `$NODLET_SEED` is no number.
pub fn seed() -> Seed {
    let number = match std::env::var("NODLET_SEED") {
        Ok(text) => text.parse().expect("NODLET_SEED is a number"),
        Err(_) => {
            let mut bytes = [0; 4];
            let mut random = File::open("/dev/urandom").expect("the kernel has random numbers");
            random.read_exact(&mut bytes).expect("the kernel has random numbers");
            u64::from(u32::from_le_bytes(bytes))
        }
    };
    println!("NODLET_SEED={number}");
    Seed(number)
}

impl Seed {
    /// The generator with this seed.
    pub fn new(number: u64) -> Seed {
        Seed(number)
    }

    /// The next random number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A random choice.
    ///
    /// # Panics
    /// The list is empty.
    pub fn choose<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        let place = self.number() % u64::try_from(among.len()).expect("it is no more than memory");
        &among[usize::try_from(place).expect("it is a place in the list")]
    }
}

/// The part of all cases to run, and the number of parts: (1, 1), or `$NODLET_SHARD`.
///
/// # Panics
/// `$NODLET_SHARD` is malformed.
pub fn shard() -> (usize, usize) {
    let Ok(shard) = std::env::var("NODLET_SHARD") else { return (1, 1) };
    let numbers = shard.split_once('/').and_then(|(part, of)| Some((part.parse().ok()?, of.parse().ok()?)));
    let (part, of): (usize, usize) = numbers.expect("NODLET_SHARD is a part and of how many, as 2/5");
    assert!((1..=of).contains(&part), "there is no part {part} of {of}");
    (part, of)
}
