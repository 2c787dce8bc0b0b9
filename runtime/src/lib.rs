//! The pod engine: knows pods, knows no board.

pub mod node;
pub mod spec;
pub mod supervisor;
pub mod time;
