//! The pod engine: knows pods, knows no board.

pub mod spec;
