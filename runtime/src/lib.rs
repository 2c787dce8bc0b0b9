//! The pod engine: knows pods, knows no board.

pub mod api;
pub mod cgroup;
pub mod container_config;
pub mod engine;
pub mod error;
pub mod manifest;
pub mod network;
pub mod node;
pub mod objects;
pub mod paths;
pub mod pod;
pub mod pod_files;
pub mod prober;
pub mod schema;
pub mod sources;
pub mod spec;
pub mod status;
pub mod storage;
pub mod store;
pub mod supervisor;
pub mod time;
pub mod volume;
