//! Checks of the network of a running machine: whether the pods' address range is free, and what blocks
//! packets to pods.

use std::fs;
use std::io;

use nodlet_host::network::foreign::{Chain, dropping_chains};
use nodlet_host::network::{Network, NetworkError};
use nodlet_host::paths::Paths;

use super::facts::Machine;
use super::report::Finding;

/// All checks of the network, including those of [`super::links`].
pub(super) fn findings(machine: &Machine) -> Vec<(&'static str, Finding)> {
    let sysctl = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim() == "1");
    let bridged = sysctl("/proc/sys/net/bridge/bridge-nf-call-iptables").unwrap_or(false);
    let forwards = sysctl("/proc/sys/net/ipv4/ip_forward");
    let network = network(machine);
    let ipv6 = network.as_ref().is_ok_and(Network::has_ipv6);
    let mut findings = vec![
        ("pod addresses", addresses(network)),
        ("firewall", judge_firewall(bridged, dropping_chains(ipv6))),
        ("forwarding", judge_forwarding(forwards)),
    ];
    findings.extend(super::links::findings().into_iter().map(|finding| ("link", finding)));
    findings
}

/// The network of the pods, by the files of the root directory.
fn network(machine: &Machine) -> Result<Network, NetworkError> {
    let paths = Paths::new(&machine.root.canonicalize().unwrap_or_else(|_| machine.root.clone()));
    Network::new(&paths, None, true)
}

/// Checks whether the pods' address range is used for nothing else.
fn addresses(network: Result<Network, NetworkError>) -> Finding {
    let network = match network {
        Ok(network) => network,
        Err(error) => {
            let found = format!("failed to {}", nodlet_host::error::chain(&error));
            return Finding::missing(found).because(
                "The agent does not start.",
                "Correct the file, or set a range with nodlet agent --pod-cidr.",
            );
        }
    };
    match network.check_range() {
        Ok(()) => Finding::ok("the machine uses their range for nothing else"),
        Err(error @ NetworkError::Overlap { .. }) => {
            let found = format!("failed to {}", nodlet_host::error::chain(&error));
            Finding::warning(found).because(
                "No pod starts without hostNetwork, unless the agent has another range.",
                "Set one with nodlet agent --pod-cidr, or in etc/nodlet/pod-cidr below the root.",
            )
        }
        Err(error) => Finding::unknown(format!("failed to {}", nodlet_host::error::chain(&error))),
    }
}

/// Judges the chains that drop packets which no rule accepts. `bridged`: whether packets between ports of a
/// bridge pass the chains.
fn judge_firewall(bridged: bool, chains: io::Result<Vec<Chain>>) -> Finding {
    let chains = match chains {
        Ok(chains) => chains,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Finding::unknown("only root with CAP_NET_ADMIN can read it");
        }
        Err(error) => return Finding::unknown(format!("failed to read it: {error}")),
    };
    let names: Vec<String> = chains.iter().map(Chain::to_string).collect();
    let names = names.join(", ");
    match (chains.is_empty(), bridged) {
        (true, _) => Finding::ok("no chain drops all forwarded packets that no rule accepts"),
        (false, true) => Finding::warning(format!("dropped unless a rule accepts it: {names}"))
            .because(
                "Pods run; they do not reach each other unless a rule accepts it, because br_netfilter passes what \
                 a bridge forwards to these chains.",
                "Accept packets from and to the links nl*, or set net.bridge.bridge-nf-call-iptables=0.",
            ),
        (false, false) => Finding::ok(format!(
                "{names} drops packets between pods and other machines, unless a rule accepts them \
                 (docs/firewalls.md); packets between pods do not pass it"
            ),
        ),
    }
}

/// Judges whether the machine forwards packets between all its links. Pods do not require it.
fn judge_forwarding(forwards: Option<bool>) -> Finding {
    match forwards {
        Some(true) => Finding::ok("on for all links by the owner of the machine"),
        Some(false) => Finding::ok(
            "off for all links together: the agent switches it on for those by which pods reach other machines",
        ),
        None => Finding::missing("there is no /proc/sys/net/ipv4/ip_forward")
            .because("The agent does not start without IPv4.", "Enable CONFIG_INET, or mount /proc."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::doctor::report::Verdict;

    #[test]
    fn a_chain_that_drops_matters_where_bridged_packets_pass_it() {
        let chain = || vec![Chain { table: "ip filter".to_owned(), name: "FORWARD".to_owned() }];
        let denied = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
        for (bridged, chains, expected) in [
            (true, Ok(Vec::new()), Verdict::Ok),
            (true, Ok(chain()), Verdict::Warning),
            (false, Ok(chain()), Verdict::Ok),
            (true, denied(), Verdict::Unknown),
            (true, Err(io::Error::other("x")), Verdict::Unknown),
        ] {
            let check = judge_firewall(bridged, chains);
            assert_eq!(check.verdict, expected, "{check:?}");
        }
        assert_eq!(judge_forwarding(None).verdict, Verdict::Missing);
        assert_eq!(judge_forwarding(Some(false)).verdict, Verdict::Ok);
    }
}
