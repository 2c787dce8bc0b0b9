//! The pod engine: knows pods, knows no board.

pub mod network;
pub mod manifest;
pub mod node;
pub mod schema;
pub mod spec;
pub mod supervisor;
pub mod time;
