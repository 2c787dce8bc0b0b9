//! The tasks.
fn main() {}
