//! The tests with real containers that take more than a minute, and those that only `cargo xtask long suites` runs.

/// Each test of the check that takes more than a minute, and why.
pub(super) const SLOW: &[(&str, &str)] = &[
    (
        "misbehaving::faults_of_the_api_server_cost_neither_pods_nor_memory_and_are_retried_with_back_off",
        "the back-off after each of some fifteen faults",
    ),
    ("misbehaving::so_are_faults_of_an_api_server_with_http2", "the back-off after each fault"),
];

/// Each test that is left to `cargo xtask long suites`, and what the check runs in its place.
pub(super) const LONG_ONLY: &[(&str, &str)] = &[];
