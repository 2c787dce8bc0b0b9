//! `regex-lite` under the name of `regex`: the same interface for what is used of it.

pub use regex_lite::*;
