//! This board as a Node of a Kubernetes cluster. The cluster is a source of pods and a reader of their status: nothing
//! between a manifest and a running container waits for it.
//!
//! * [`credentials`]: what a joined board keeps, and the texts of `nodlet join`; [`kubeconfig`]: the file with which a
//!   board enrols by itself.
//! * [`api`]: a client of the API server, with which [`enrol`] gets a client certificate; [`error`]: why it does not.
//! * [`watches`]: all watches of a node over one connection.
//! * [`schedule`], [`sync`] and [`objects`] decide what to do when; [`node`], [`pods`], `difference`, [`gates`],
//!   [`mirrors`], [`rejections`], [`services`], [`trust`], [`pod_cidrs`] and [`followed`], what to send and what to write
//!   down; [`proxy`], which Services and EndpointSlices of the cluster the board serves. They are pure, as [`backoff`] is: no socket, no file, no clock.
//! * [`serving`] and [`review`]: the certificate of the kubelet's server, and who may use that server. Pure, too.
//!
//! The agent's tasks are `runtime/src/engine/cluster.rs` and `runtime/src/engine/cluster/kubelet_server.rs`.

pub mod api;
pub mod backoff;
pub mod credentials;
mod difference;
pub mod enrol;
pub mod error;
pub mod fencing;
pub mod followed;
pub mod gates;
pub mod kubeconfig;
pub mod mirrors;
pub mod node;
pub mod objects;
pub mod pod_cidrs;
pub mod pods;
pub mod proxy;
pub mod rejections;
pub mod reporting;
pub mod review;
pub mod schedule;
pub mod services;
pub mod serving;
pub mod sync;
pub mod trust;
pub mod watches;

/// Maximum number of values in a response or an event of the API server. Each needs some hundred bytes while it is read.
pub const VALUES: usize = 50_000;

#[cfg(test)]
mod tests {
    #[test]
    fn the_files_that_decide_touch_nothing_of_the_machine() {
        for (file, text) in [
            ("backoff.rs", include_str!("backoff.rs")),
            ("difference.rs", include_str!("difference.rs")),
            ("fencing.rs", include_str!("fencing.rs")),
            ("followed.rs", include_str!("followed.rs")),
            ("gates.rs", include_str!("gates.rs")),
            ("mirrors.rs", include_str!("mirrors.rs")),
            ("node.rs", include_str!("node.rs")),
            ("objects.rs", include_str!("objects.rs")),
            ("pods.rs", include_str!("pods.rs")),
            ("pods/copy.rs", include_str!("pods/copy.rs")),
            ("pods/status.rs", include_str!("pods/status.rs")),
            ("proxy.rs", include_str!("proxy.rs")),
            ("proxy/own_ports.rs", include_str!("proxy/own_ports.rs")),
            ("rejections.rs", include_str!("rejections.rs")),
            ("reporting.rs", include_str!("reporting.rs")),
            ("schedule.rs", include_str!("schedule.rs")),
            ("schedule/facts.rs", include_str!("schedule/facts.rs")),
            ("services.rs", include_str!("services.rs")),
            ("trust.rs", include_str!("trust.rs")),
        ] {
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let is_vocabulary = file == "schedule/facts.rs";
            assert!(code.len() > 1000, "{file} has code");
            assert!(is_vocabulary || code.len() < text.len(), "{file} has tests");
            for forbidden in ["::now()", "smol", "std::fs", "std::net", "random()", "async", "api::"] {
                assert!(!code.contains(forbidden), "{file} uses {forbidden}");
            }
        }
    }
}
