//! The two files below `/run` by which the network service publishes its state, written when it changes:
//! `network.json` for people and programs, and `resolv.conf` for every resolver, from which the pods' are
//! made.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use nodlet_kernel::durable::replace_in_memory;
use serde_json::{Value, json};

use super::dhcp::State;
use super::ports::Port;
use super::time::Time;
use crate::boot::console::say;

/// The file with the state of links and clock.
const STATUS: &str = "/run/nodlet/network.json";

/// The file with the name servers; `/etc/resolv.conf` is a link to it.
const RESOLV_CONF: &str = "/run/nodlet/resolv.conf";

/// The most name servers that a C library reads.
const NAME_SERVERS: usize = 3;

/// The current contents of the files.
#[derive(Default)]
pub(super) struct Report {
    status: String,
    resolv_conf: String,
}

impl Report {
    /// Writes the files whose contents changed.
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
    let created = path.parent().map_or(Ok(()), fs::create_dir_all);
    match created.and_then(|()| replace_in_memory(path, &shall)) {
        Ok(()) => *is = shall,
        Err(error) => say(format_args!("failed to write {}: {error}", path.display())),
    }
}

/// The state of one link. It omits the current time, which would change it each time.
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
                // In seconds since boot, on the kernel's clock: the wall clock may be wrong.
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

/// The text of `resolv.conf`; `None` while no name server is known, so that the old file stays.
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

/// The state of the wall clock.
#[derive(Default)]
pub(super) struct ClockStatus {
    /// The server that last set the clock, its stratum, and the clock's offset at that time in microseconds.
    pub(super) set_by: Option<(String, u8, i64)>,
    /// When a server last responded, on the monotonic clock.
    pub(super) answered: Option<Time>,
    /// Why the last request failed.
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
