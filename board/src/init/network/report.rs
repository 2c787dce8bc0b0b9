//! What the network service tells others, in two files below `run`, written when they change:
//! `network.json` for people and programs, `resolv.conf` for every resolver, which the pods' follow.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use serde_json::{Value, json};

use super::dhcp::{State, Time};
use super::ports::Port;
use crate::init::say;

/// What is known of links and clock.
const STATUS: &str = "/run/nodlet/network.json";

/// The name servers; `/etc/resolv.conf` is a link to it.
const RESOLV_CONF: &str = "/run/nodlet/resolv.conf";

/// Name servers that a C library reads.
const NAME_SERVERS: usize = 3;

/// The files as they are.
#[derive(Default)]
pub(super) struct Report {
    status: String,
    resolv_conf: String,
}

impl Report {
    /// Writes what has changed.
    pub(super) fn write(&mut self, status: &Value, resolv_conf: Option<String>) {
        replace(Path::new(STATUS), &mut self.status, format!("{status:#}\n"));
        if let Some(text) = resolv_conf {
            replace(Path::new(RESOLV_CONF), &mut self.resolv_conf, text);
        }
    }
}

fn replace(path: &Path, is: &mut String, shall: String) {
    if *is == shall {
        return;
    }
    match write(path, &shall) {
        Ok(()) => *is = shall,
        Err(error) => say(format_args!("failed to write {}: {error}", path.display())),
    }
}

/// Whoever reads the file meanwhile reads the old one or the new one.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(&new, text)?;
    fs::rename(&new, path)
}

/// The state of one link. `now` is left out of what is written: it would change each time.
pub(super) fn of_port(port: &Port) -> Value {
    let mut status = json!({ "link": port.name, "carrier": port.carrier });
    if let Some(given) = port.wanted() {
        status["address"] = format!("{}/{}", given.address, given.prefix).into();
        if let Some(gateway) = given.gateway {
            status["gateway"] = gateway.to_string().into();
        }
    }
    if let Some(client) = &port.client {
        let state = match client.state() {
            State::Off => "off",
            State::Selecting => "selecting",
            State::Requesting { .. } => "requesting",
            State::Rebooting => "rebooting",
            State::Bound => "bound",
            State::Renewing => "renewing",
            State::Rebinding => "rebinding",
        };
        status["dhcp"] = match client.lease() {
            Some(lease) => json!({
                "state": state,
                "server": lease.server.to_string(),
                // Since boot, as the kernel counts: the wall clock may be wrong.
                "expires": lease.expires.map(|expires| expires.as_secs()),
            }),
            None => json!({ "state": state }),
        };
    }
    if let Some(failure) = &port.failure {
        status["failure"] = failure.as_str().into();
    }
    status
}

/// The text of `resolv.conf`; `None` while no name server is known, when the old one stays.
pub(super) fn resolv_conf<'a>(
    servers: impl Iterator<Item = Ipv4Addr>,
    domains: impl Iterator<Item = &'a str>,
) -> Option<String> {
    let mut text =
        "# Written by nodlet init: the name servers of the links that have a carrier.\n".to_owned();
    let mut known: Vec<Ipv4Addr> = Vec::new();
    for server in servers {
        if !known.contains(&server) && known.len() < NAME_SERVERS {
            known.push(server);
        }
    }
    let mut search: Vec<&str> = Vec::new();
    for domain in domains {
        if !search.contains(&domain) {
            search.push(domain);
        }
    }
    if !search.is_empty() {
        text.push_str(&format!("search {}\n", search.join(" ")));
    }
    for server in &known {
        text.push_str(&format!("nameserver {server}\n"));
    }
    (!known.is_empty()).then_some(text)
}

/// The state of the clock.
#[derive(Default)]
pub(super) struct ClockStatus {
    /// Who set it, and how far off it was then, in microseconds.
    pub(super) set_by: Option<(String, u8, i64)>,
    /// When it was asked for last, in this clock's own time.
    pub(super) answered: Option<Time>,
    /// Why the last request was of no use.
    pub(super) failure: Option<String>,
}

impl ClockStatus {
    pub(super) fn value(&self) -> Value {
        let mut status = json!({ "synchronised": self.set_by.is_some() });
        if let Some((server, stratum, offset)) = &self.set_by {
            status["server"] = server.as_str().into();
            status["stratum"] = (*stratum).into();
            status["offset-us"] = (*offset).into();
            status["answered"] = self.answered.map(|time| time.as_secs()).into();
        }
        if let Some(failure) = &self.failure {
            status["failure"] = failure.as_str().into();
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_named_once_and_three_at_most() {
        let servers = |numbers: &'static [u8]| numbers.iter().map(|number| Ipv4Addr::from([*number; 4]));
        assert_eq!(resolv_conf(servers(&[]), ["a"].into_iter()), None);
        let text = resolv_conf(servers(&[9, 8, 9, 7, 6]), ["example.com", "example.com", "b"].into_iter());
        let text = text.expect("there are servers");
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            ["search example.com b", "nameserver 9.9.9.9", "nameserver 8.8.8.8", "nameserver 7.7.7.7"]
        );
    }
}
