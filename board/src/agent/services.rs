//! The flags of `nodlet agent` about Services.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use lexopt::{Parser, ValueExt};
use nodlet_cluster::pod_cidrs::parse_range;
use nodlet_runtime::engine::{Services, ServicesOf};

use crate::arguments::value;
use crate::error::VerbError;

/// Parses the flag of this name and its value. Returns `false` if this module has no such flag.
pub(super) fn take(services: &mut Services, flag: &str, parser: &mut Parser) -> Result<bool, VerbError> {
    match flag {
        "--services" => {
            services.of = value(parser, flag, |text| match text {
                "board" => Ok(ServicesOf::Board),
                "cluster" => Ok(ServicesOf::Cluster),
                "off" => Ok(ServicesOf::Nobody),
                _ => Err("board, cluster or off"),
            })?;
        }
        "--service-cidr" => services.cidr = Some(parser.value()?.string()?),
        "--service-node-port-range" => services.node_ports = value(parser, flag, node_ports)?,
        "--services-kubeconfig" => services.kubeconfig = Some(PathBuf::from(parser.value()?)),
        "--external-ip-ranges" => services.external_ips = value(parser, flag, ranges)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Parses a range of ports as kube-apiserver does: `30000-32767`, or `30000+2767`.
fn node_ports(text: &str) -> Result<RangeInclusive<u16>, &'static str> {
    const HOW: &str = "ports like 30000-32767, from 1 to 65535";
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
    let (first, last) = match (text.split_once('-'), text.split_once('+')) {
        (Some((first, last)), None) => (port(first), port(last)),
        (None, Some((first, more))) => {
            let first = port(first);
            (first, first.zip(more.trim().parse().ok()).and_then(|(first, more)| first.checked_add(more)))
        }
        (None, None) => (port(text), port(text)),
        (Some(_), Some(_)) => return Err(HOW),
    };
    let (first, last) = first.zip(last).ok_or(HOW)?;
    if first > last { Err(HOW) } else { Ok(first..=last) }
}

/// Parses ranges that commas separate.
fn ranges(text: &str) -> Result<Vec<(IpAddr, u8)>, &'static str> {
    let items = text.split(',').filter(|item| !item.is_empty());
    items.map(parse_range).collect::<Option<_>>().ok_or("ranges like 192.0.2.0/24,2001:db8::/64")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::next_flag;

    fn parse(line: &str) -> Result<Services, String> {
        let mut services = Services::default();
        let mut parser = Parser::from_args(line.split_whitespace());
        while let Some(flag) = next_flag(&mut parser, &mut Vec::new()).expect("it is one") {
            assert!(take(&mut services, &flag, &mut parser).map_err(|why| why.to_string())?, "{flag}");
        }
        Ok(services)
    }

    #[test]
    fn flags_of_services_are_parsed_and_wrong_values_are_rejected_with_the_flags_name() {
        let given = parse(
            "--services cluster --service-cidr 10.9.0.0/16 --external-ip-ranges 192.0.2.0/24,2001:db8::/64",
        );
        let given = given.expect("all is right");
        assert_eq!((given.of, given.cidr.as_deref()), (ServicesOf::Cluster, Some("10.9.0.0/16")));
        let ranges = ["192.0.2.0", "2001:db8::"].map(|text| text.parse().expect("an address"));
        assert_eq!(given.external_ips, [(ranges[0], 24), (ranges[1], 64)]);
        let by_default = parse("").expect("nothing is wrong");
        assert_eq!((by_default.of, by_default.node_ports), (ServicesOf::Board, 30000..=32767));
        for (text, expected) in [("30000-30001", 30000..=30001), ("80+8", 80..=88), ("9", 9..=9)] {
            let given = parse(&format!("--service-node-port-range {text}")).expect(text);
            assert_eq!(given.node_ports, expected, "{text}");
        }
        for line in [
            "--services on",
            "--service-node-port-range 0-9",
            "--service-node-port-range 9-8",
            "--service-node-port-range 60000+9999",
            "--service-node-port-range many",
            "--external-ip-ranges 192.0.2.1",
        ] {
            let flag = line.split_once(' ').expect("there is a value").0;
            let refused = parse(line).expect_err(line);
            assert!(refused.contains(&format!("for {flag}: must be")), "{line}: {refused}");
        }
    }
}
