//! The tests with real containers that take more than a minute, and those that only `cargo xtask long suites` runs.

/// Each test of the check that takes more than a minute, and why.
pub(super) const SLOW: &[(&str, &str)] = &[];

/// Each test that is left to `cargo xtask long suites`, and what the check runs in its place.
pub(super) const LONG_ONLY: &[(&str, &str)] = &[];
