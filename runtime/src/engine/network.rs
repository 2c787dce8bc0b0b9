//! The network of the pods, as far as the engine follows it: the network of a cluster, the rules of the host's
//! firewall, the resolver of the host, and the state of its links. What is done to the kernel is in `nodlet-host`.

pub(super) mod cluster_network;
pub(super) mod firewall;
pub(super) mod netns;
pub(super) mod resolver;
pub(super) mod uplink;
