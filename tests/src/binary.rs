//! Bytes of every value in no order that anything could have made: what `demo binary`
//! writes, and a test expects.

/// So many of them, the last a newline, the same each time.
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
