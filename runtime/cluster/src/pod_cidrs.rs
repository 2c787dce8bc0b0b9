//! The network of a cluster's pods, as its Nodes describe it: the range of this node's pods, and where the pods of the
//! others are. Pure. Its text is what the board stores, and what `runtime/host/src/network/cluster.rs` puts into effect:
//!
//! ```text
//! 10.244.1.0/24,fd00:1::/64       this node's ranges (spec.podCIDRs), IPv4 first; empty if it has none
//! 10.244.2.0/24 192.0.2.7         the range of another node, and that node's address (InternalIP)
//! ```

use std::net::IpAddr;

use nodlet_core::sorted::SortedMap;
use serde_json::Value;

/// The most other nodes that are followed: each has rules and routes in the kernel. More are left out, and named in the
/// log.
pub(crate) const MAX_NODES: usize = 250;

/// A node that is ignored, because as many as possible are followed.
#[derive(Debug, thiserror::Error)]
#[error("node {ignored}: ignored, since {MAX_NODES} other nodes are known")]
pub struct TooManyNodes {
    ignored: String,
}

/// The Nodes of a cluster.
#[derive(Debug, Default)]
pub struct Nodes {
    /// The name of this node.
    own: String,
    /// The UID of the Node with which it registered.
    uid: String,
    /// The cluster does not have that Node any more.
    is_deleted: bool,
    /// The ranges of this node.
    ranges: Vec<(IpAddr, u8)>,
    /// The ranges of other nodes with the addresses of these, by the node's name.
    others: SortedMap<String, Vec<(IpAddr, u8, IpAddr)>>,
}

impl Nodes {
    /// Nothing is known of any node. `own` is the name of this one, and `uid` that of its Node.
    pub fn new(own: &str, uid: &str) -> Nodes {
        Nodes { own: own.to_owned(), uid: uid.to_owned(), ..Nodes::default() }
    }

    /// The name of this node.
    pub fn own(&self) -> &str {
        &self.own
    }

    /// Records a Node object.
    ///
    /// # Errors
    /// The node is one too many.
    pub fn see(&mut self, node: &Value) -> Result<(), TooManyNodes> {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        let spec = &node["spec"];
        let listed = spec["podCIDRs"].as_array().into_iter().flatten();
        let ranges: Vec<(IpAddr, u8)> = listed.filter_map(|range| parse_range(range.as_str()?)).collect();
        if name == self.own {
            self.is_deleted |= node["metadata"]["uid"] != *self.uid;
            // A range that was assigned is never taken away, but by another one.
            if !ranges.is_empty() {
                self.ranges = ranges;
            }
            return Ok(());
        }
        let addresses = node["status"]["addresses"].as_array().into_iter().flatten();
        let addresses: Vec<IpAddr> = addresses
            .filter(|address| address["type"] == "InternalIP")
            .filter_map(|address| address["address"].as_str()?.parse().ok())
            .collect();
        let mut found = Vec::new();
        for (base, prefix) in ranges.into_iter().take(2) {
            let gateway = addresses.iter().find(|address| address.is_ipv4() == base.is_ipv4());
            // A route must not lead through itself, or take the traffic of half the world.
            let gateway = gateway.filter(|gateway| prefix >= 8 && !contains((base, prefix), **gateway));
            found.extend(gateway.map(|gateway| (base, prefix, *gateway)));
        }
        if found.is_empty() {
            self.others.remove(name);
        } else if self.others.contains_key(name) || self.others.len() < MAX_NODES {
            self.others.insert(name.to_owned(), found);
        } else {
            return Err(TooManyNodes { ignored: name.to_owned() });
        }
        Ok(())
    }

    /// Records that the cluster has a node no more. Nothing changes for this one, which keeps its range.
    pub fn forget(&mut self, name: &str) {
        self.is_deleted |= name == self.own;
        self.others.remove(name);
    }

    /// Records that the cluster has no nodes but those with these names.
    pub fn keep(&mut self, names: &[String]) {
        self.is_deleted |= !names.contains(&self.own);
        self.others.retain(|name, _| names.contains(name));
    }

    /// Whether the Node with which this node registered was deleted.
    pub fn is_deleted(&self) -> bool {
        self.is_deleted
    }

    /// Whether the cluster has assigned a range to this node.
    pub fn has_range(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// The network as a text, which is the same as long as nothing changes.
    pub fn text(&self) -> String {
        let mut ranges: Vec<String> = Vec::new();
        for (base, prefix) in &self.ranges {
            let place = if base.is_ipv4() { 0 } else { ranges.len() };
            ranges.insert(place, format!("{base}/{prefix}"));
        }
        let mut text = ranges.join(",") + "\n";
        for (base, prefix, gateway) in self.others.values().flatten() {
            text += &format!("{base}/{prefix} {gateway}\n");
        }
        text
    }
}

/// Parses a range of addresses, such as `10.244.0.0/16`.
pub fn parse_range(range: &str) -> Option<(IpAddr, u8)> {
    let (base, prefix) = range.split_once('/')?;
    let (base, prefix) = (base.parse::<IpAddr>().ok()?, prefix.parse().ok()?);
    (prefix <= if base.is_ipv4() { 32 } else { 128 }).then_some((base, prefix))
}

/// Whether a range, an address and the number of its first bits that count, contains an address.
pub fn contains((base, prefix): (IpAddr, u8), address: IpAddr) -> bool {
    // The bits of an address from the first one on, whatever its family.
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    };
    let differing = bits(base) ^ bits(address);
    base.is_ipv4() == address.is_ipv4() && differing.checked_shr(128 - u32::from(prefix)).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, ranges: &[&str], addresses: &[&str]) -> Value {
        let addresses: Vec<Value> = addresses
            .iter()
            .map(|address| json!({ "type": "InternalIP", "address": address }))
            .chain([json!({ "type": "Hostname", "address": name })])
            .collect();
        json!({ "metadata": { "name": name, "uid": "1" }, "spec": { "podCIDRs": ranges }, "status": { "addresses": addresses } })
    }

    #[test]
    fn ranges_of_other_nodes_lead_to_their_addresses_of_the_same_family() {
        let mut nodes = Nodes::new("a", "1");
        assert_eq!(nodes.text(), "\n");
        nodes.see(&node("a", &["fd00:1::/64", "10.244.1.0/24"], &["192.0.2.1"])).expect("its own");
        nodes.see(&node("c", &["10.244.3.0/24"], &[])).expect("no address yet");
        nodes
            .see(&node("b", &["10.244.2.0/24", "fd00:2::/64"], &["192.0.2.2", "2001:db8::2"]))
            .expect("both families");
        assert!(nodes.has_range());
        let text = "10.244.1.0/24,fd00:1::/64\n10.244.2.0/24 192.0.2.2\nfd00:2::/64 2001:db8::2\n";
        assert_eq!(nodes.text(), text);
        nodes.see(&node("a", &[], &[])).expect("a Node that was made again has none for a moment");
        assert_eq!(nodes.text(), text);
        nodes.see(&node("b", &["10.244.9.0/24"], &["192.0.2.3"])).expect("it was made again");
        nodes.see(&node("c", &["10.244.3.0/24"], &["192.0.2.4"])).expect("it has an address now");
        let expected = "10.244.1.0/24,fd00:1::/64\n10.244.9.0/24 192.0.2.3\n10.244.3.0/24 192.0.2.4\n";
        assert_eq!(nodes.text(), expected);
        nodes.keep(&["a".to_owned(), "c".to_owned()]);
        nodes.forget("a");
        assert_eq!(nodes.text(), "10.244.1.0/24,fd00:1::/64\n10.244.3.0/24 192.0.2.4\n");
        nodes.forget("c");
        assert_eq!(nodes.text(), "10.244.1.0/24,fd00:1::/64\n");
    }

    #[test]
    fn the_deletion_of_the_own_node_is_seen_in_events_and_in_lists() {
        let seen = |see: &dyn Fn(&mut Nodes)| {
            let mut nodes = Nodes::new("a", "1");
            nodes.see(&node("a", &[], &[])).expect("its own");
            nodes.see(&node("b", &["10.0.0.0/24"], &["192.0.2.1"])).expect("there is room");
            see(&mut nodes);
            nodes.is_deleted()
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(!seen(&|nodes| nodes.forget("b")));
        assert!(!seen(&|nodes| nodes.keep(&names(&["a"]))));
        assert!(seen(&|nodes| nodes.forget("a")));
        assert!(seen(&|nodes| nodes.keep(&names(&["b"]))));
        let mut another = node("a", &[], &[]);
        another["metadata"]["uid"] = "2".into();
        assert!(seen(&|nodes| nodes.see(&another).expect("its own")));
        // It stays deleted, whatever comes after it.
        assert!(seen(&|nodes| {
            nodes.forget("a");
            nodes.see(&node("a", &[], &[])).expect("its own");
        }));
    }

    #[test]
    fn a_node_cannot_take_the_traffic_of_other_machines() {
        let mut nodes = Nodes::new("a", "1");
        for ranges in ["0.0.0.0/0", "192.0.2.0/24", "::/0", "10.0.0.0/33", "10.0.0.0", "x/8"] {
            nodes.see(&node("b", &[ranges], &["192.0.2.2", "fd00::2"])).expect("there is room");
            assert_eq!(nodes.text(), "\n", "{ranges}");
        }
        // A node without a route for IPv6 has the address of its bridge, which is in its range.
        nodes
            .see(&node("b", &["10.0.0.0/24", "fd00::/64"], &["192.0.2.2", "fd00::1"]))
            .expect("there is room");
        assert_eq!(nodes.text(), "\n10.0.0.0/24 192.0.2.2\n");
        nodes.forget("b");
        for number in 0..MAX_NODES {
            let address = format!("192.0.2.{}", number % 250);
            nodes.see(&node(&format!("n{number}"), &["10.0.0.0/24"], &[&address])).expect("it fits");
        }
        nodes.see(&node("n1", &["10.0.1.0/24"], &["192.0.2.1"])).expect("it is known");
        let why = nodes.see(&node("more", &["10.0.2.0/24"], &["192.0.2.2"])).expect_err("too many");
        assert_eq!(why.to_string(), "node more: ignored, since 250 other nodes are known");
        assert_eq!(nodes.text().lines().count(), 1 + MAX_NODES);
    }
}
