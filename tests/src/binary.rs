//! Pseudo-random bytes of every value, which `demo binary` writes and a test expects.

/// Returns this many bytes, the same each time. The last one is a newline.
pub fn binary(length: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let mut bytes: Vec<u8> = (0..length).map(|_| next()).collect();
    if let Some(last) = bytes.last_mut() {
        *last = b'\n';
    }
    bytes
}
