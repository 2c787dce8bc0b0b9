//! The pod engine: knows pods, knows no board.

pub mod network;
pub mod node;
pub mod spec;
pub mod supervisor;
pub mod time;
