//! Random numbers that differ between boards: transaction numbers, and delays that keep a thousand boards
//! which are switched on together from sending requests together. Not for secrets.

/// The generator `xorshift64*`.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        // A state of zero would stay zero.
        Random(seed | 1 << 63)
    }

    /// Gets a seed from the kernel. Does not wait if the kernel has none yet, shortly after power-on.
    pub(super) fn seed() -> u64 {
        let mut bytes = [0; 8];
        let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::NONBLOCK);
        if got == Ok(8) {
            return u64::from_ne_bytes(bytes);
        }
        super::time::now().as_nanos() as u64
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
}
