//! What Services and EndpointSlices mean: which endpoints a Service has, where its connections go, its names in the DNS,
//! and its variables in containers. All of it is pure: objects, pods, messages and times are arguments; what follows is
//! data. `nodlet-host` has the data path done by nftables, `nodlet-runtime` has the sockets of the name server.

pub mod allocation;
pub mod catalog;
pub mod data_path;
pub mod dns;
pub mod environment;
pub mod service;
pub mod slices;
