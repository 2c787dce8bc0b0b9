//! Cuts between the servers of a cluster, and between them and boards.

use std::process::Command;

use super::ControlPlane;
use crate::namespace::Namespace;

impl ControlPlane {
    /// Drops all packets between the servers and the boards until the result is dropped. Boards still reach
    /// each other.
    pub fn partition(&self) -> Partition {
        self.drop_packets("", "")
    }

    /// Drops all packets between the servers and the board with this address until the result is dropped.
    pub fn partition_from(&self, address: &str) -> Partition {
        self.drop_packets(&format!("ip saddr {address}"), &format!("ip daddr {address}"))
    }

    /// Drops all packets between the API server and etcd until the result is dropped.
    pub fn partition_from_etcd(&self) -> Partition {
        self.drop_matching("iifname lo tcp dport 2379", "oifname lo tcp sport 2379")
    }

    /// Drops all packets between boards until the result is dropped. They still reach the servers.
    pub fn partition_between_boards(&self) -> Isolation<'_> {
        self.isolate("on");
        Isolation(self)
    }

    fn isolate(&self, switch: &str) {
        for number in 1..=self.boards.get() {
            self.namespace.ip(&format!("link set board{number} type bridge_slave isolated {switch}"));
        }
    }

    fn drop_packets(&self, from: &str, to: &str) -> Partition {
        self.drop_matching(&format!("iifname boards {from}"), &format!("oifname boards {to}"))
    }

    fn drop_matching(&self, input: &str, output: &str) -> Partition {
        nft(
            &self.namespace,
            &format!(
                "table inet partition {{\n\
                 chain in {{ type filter hook input priority -300; {input} drop; }}\n\
                 chain out {{ type filter hook output priority -300; {output} drop; }}\n}}"
            ),
        );
        Partition(self.namespace.clone())
    }
}

/// A cut between the servers of a cluster and boards, which ends when it is dropped.
pub struct Partition(Namespace);

impl Drop for Partition {
    fn drop(&mut self) {
        nft(&self.0, "delete table inet partition");
    }
}

/// A cut between boards, which ends when it is dropped.
pub struct Isolation<'a>(&'a ControlPlane);

impl Drop for Isolation<'_> {
    fn drop(&mut self) {
        self.0.isolate("off");
    }
}

pub(super) fn nft(namespace: &Namespace, rules: &str) {
    let mut command = Command::new("nft");
    command.arg(rules);
    namespace.give_to(&mut command);
    let output = command.output().expect("nft can be run: `cargo xtask setup` installs it");
    assert!(output.status.success(), "nft {rules}: {}", String::from_utf8_lossy(&output.stderr));
}
