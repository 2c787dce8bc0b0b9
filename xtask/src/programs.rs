//! The packages of the workspace with the programs that tasks run.

/// The package that makes device images, packages and releases.
pub(crate) const DIST: &str = "nodlet-dist";

/// The package with the tests in virtual machines, on emulated boards and of whole builds.
pub(crate) const SYSTEM: &str = "nodlet-system-tests";

/// The package that measures.
pub(crate) const BENCH: &str = "nodlet-bench";
