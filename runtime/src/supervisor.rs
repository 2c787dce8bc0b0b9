//! The per-pod process, which outlives the agent.

pub mod config;
