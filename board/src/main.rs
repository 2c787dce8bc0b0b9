//! The binary `nodlet`.
fn main() {}
