//! The links of the machine that the profile configures, each a [`Port`]: its carrier, its lease, and what
//! was configured in the kernel.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;

use nodlet_host::netlink::Netlink;

use super::config::Link;
use super::dhcp::{Client, Lease, Message, State};
use super::time::Time;
use super::{random, sockets, wire};
use crate::boot::console::say;

/// The directory in which the kernel lists links.
const LINKS: &str = "/sys/class/net";

/// Time until the kernel's failure to configure a link is retried.
const RETRY: Time = Time::from_secs(30);

/// The most datagrams that are read from one link at once.
const AT_ONCE: usize = 16;

/// A link as the kernel lists it.
pub(super) struct KernelLink {
    pub(super) name: String,
    pub(super) index: u32,
    /// The Ethernet address, if the link has one.
    hardware: Option<[u8; 6]>,
    pub(super) carrier: bool,
    /// The index of the link's entry in the profile.
    pub(super) entry: usize,
}

/// The existing links that match the profile.
pub(super) fn present(links: &[Link]) -> Vec<KernelLink> {
    let names = fs::read_dir(LINKS).into_iter().flatten().flatten();
    let found = names.filter_map(|name| {
        let name = name.file_name().into_string().ok()?;
        let directory = Path::new(LINKS).join(&name);
        let is_hardware = || directory.join("device").exists();
        let entry = links.iter().position(|link| link.means(&name, is_hardware))?;
        let read = |file: &str| fs::read_to_string(directory.join(file)).unwrap_or_default();
        Some(KernelLink {
            index: read("ifindex").trim().parse().ok()?,
            hardware: hardware(read("address").trim()),
            // Reading it fails while the link is down.
            carrier: read("carrier").trim() == "1",
            name,
            entry,
        })
    });
    let mut found: Vec<KernelLink> = found.collect();
    found.sort_by_key(|found| (found.entry, found.index));
    found
}

/// Parses an Ethernet address such as `52:54:00:12:34:56`.
fn hardware(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}

/// The address, gateway and lifetime to configure on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) address: Ipv4Addr,
    pub(super) prefix: u8,
    pub(super) gateway: Option<Ipv4Addr>,
    /// When the address expires; `None` for never.
    expires: Option<Time>,
}

/// A link that the profile configures.
pub(super) struct Port {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) carrier: bool,
    pub(super) entry: usize,
    /// Metric of the default route: links that come earlier in the profile are preferred.
    metric: u32,
    fixed: Option<Address>,
    pub(super) client: Option<Client>,
    pub(super) socket: Option<UdpSocket>,
    /// The address configured in the kernel; `None` before anything was configured.
    applied: Option<Option<Address>>,
    /// The last failure; `retry` is when the operation is retried.
    pub(super) failure: Option<String>,
    retry: Option<Time>,
}

impl Port {
    pub(super) fn new(found: &KernelLink, link: &Link, host_name: &str) -> Port {
        let fixed = link.fixed().map(|(address, prefix)| Address {
            address,
            prefix,
            gateway: link.gateway,
            expires: None,
        });
        let mut port = Port {
            name: found.name.clone(),
            index: found.index,
            carrier: false,
            entry: found.entry,
            // Each link has its own metric: the kernel has one route of a metric.
            metric: 1000 * (1 + found.entry as u32) + found.index % 1000,
            fixed,
            client: None,
            socket: None,
            applied: None,
            failure: None,
            retry: None,
        };
        match (link.dhcp, found.hardware) {
            (true, Some(hardware)) => {
                port.client = Some(Client::new(hardware, host_name, random::Random::seed()));
            }
            (true, None) => port.failed("ask for an address", &"the link has no Ethernet address"),
            (false, _) => {}
        }
        port
    }

    /// Sets the link up. The kernel's report of the carrier triggers all further steps.
    pub(super) fn set_up(&mut self, link: &Link, netlink: &mut Netlink, now: Time) {
        let set = |family: &str, name: &str, value: &str| {
            // A kernel without the family or the setting needs no configuration.
            let _ = fs::write(format!("/proc/sys/net/{family}/conf/{}/{name}", self.name), value);
        };
        set("ipv4", "ignore_routes_with_linkdown", "1");
        match link.accept_ra {
            // 2 accepts router advertisements even if the machine forwards packets.
            Some(true) => set("ipv6", "accept_ra", "2"),
            Some(false) => set("ipv6", "accept_ra", "0"),
            None => {}
        }
        if let Err(error) = netlink.set_up(self.index) {
            self.failed("set it up", &error);
            self.retry = Some(now + RETRY);
        }
    }

    /// Updates the link's carrier.
    pub(super) fn carrier(&mut self, now: Time, up: bool) {
        if self.carrier == up {
            return;
        }
        self.carrier = up;
        say(format_args!("{}: carrier {}", self.name, if up { "on" } else { "off" }));
        if let Some(client) = &mut self.client {
            client.carrier(now, up);
        }
        if up {
            // A link that was down meanwhile has lost its routes.
            self.applied = None;
        }
    }

    pub(super) fn lease(&self) -> Option<&Lease> {
        self.client.as_ref().and_then(Client::lease)
    }

    /// The address that the link should have.
    pub(super) fn wanted(&self) -> Option<Address> {
        let leased = self.lease().map(|lease| Address {
            address: lease.address,
            prefix: lease.prefix,
            gateway: lease.gateway,
            expires: lease.expires,
        });
        self.fixed.or(leased)
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        self.client.as_ref().and_then(Client::wake_at).into_iter().chain(self.retry).min()
    }

    /// Reads messages from DHCP servers.
    pub(super) fn receive(&mut self, now: Time) {
        let (Some(client), Some(socket)) = (&mut self.client, &self.socket) else { return };
        let mut buffer = [0; wire::LARGEST];
        for _ in 0..AT_ONCE {
            let Ok((length, from)) = socket.recv_from(&mut buffer) else { return };
            if from.port() == wire::SERVER_PORT {
                client.receive(now, &buffer[..length]);
            }
        }
    }

    /// Sends due messages, and applies changes to the kernel. Returns whether the link has a new address.
    pub(super) fn tick(&mut self, now: Time, link: &Link, netlink: &mut Netlink) -> bool {
        if self.retry.is_some_and(|retry| retry <= now) {
            self.retry = None;
            self.failure = None;
            self.set_up(link, netlink, now);
        }
        self.converse(now);
        if self.retry.is_some() {
            return false;
        }
        let wanted = self.wanted();
        if self.applied == Some(wanted) {
            return false;
        }
        let before = self.applied.flatten();
        match self.apply(now, wanted, netlink) {
            Ok(()) => {
                let address = |given: Option<Address>| given.map(|given| (given.address, given.prefix));
                if address(before) != address(wanted) {
                    match wanted {
                        Some(Address { address, prefix, .. }) => {
                            say(format_args!("{}: {address}/{prefix}", self.name));
                        }
                        None => say(format_args!("{}: no address any more", self.name)),
                    }
                }
                self.applied = Some(wanted);
                self.failure = None;
                wanted.is_some()
            }
            Err(error) => {
                self.failed("set the address of the link", &error);
                self.retry = Some(now + RETRY);
                false
            }
        }
    }

    fn converse(&mut self, now: Time) {
        let Some(client) = &mut self.client else { return };
        if client.state() == State::Off {
            self.socket = None;
        } else if self.socket.is_none() {
            match sockets::dhcp(&self.name) {
                Ok(socket) => self.socket = Some(socket),
                Err(error) => {
                    self.failed("listen to DHCP servers", &error);
                    self.retry = Some(now + RETRY);
                    return;
                }
            }
        }
        let Some(message) = self.client_message(now) else { return };
        let sent = match (message.to, &self.socket) {
            (Some(server), Some(socket)) => sockets::unicast(socket, server, &message.bytes),
            _ => sockets::broadcast(self.index, &message.bytes),
        };
        // The client repeats the message.
        if let Err(error) = sent {
            self.failed("send to DHCP servers", &error);
        }
    }

    fn client_message(&mut self, now: Time) -> Option<Message> {
        self.client.as_mut().and_then(|client| client.poll(now))
    }

    fn apply(&self, now: Time, wanted: Option<Address>, netlink: &mut Netlink) -> io::Result<()> {
        let before = self.applied.flatten();
        if let Some(gateway) = before.and_then(|before| before.gateway)
            && wanted.and_then(|wanted| wanted.gateway) != Some(gateway)
        {
            // The route may have disappeared with the address.
            let _ = netlink.remove_default_route(self.index, gateway, self.metric);
        }
        // Before adding the new address: removing the first address of a subnet removes all others of it.
        for (index, address, prefix) in netlink.addresses()? {
            let is_wanted = wanted.is_some_and(|wanted| (wanted.address, wanted.prefix) == (address, prefix));
            let is_stale = match before {
                Some(before) => (before.address, before.prefix) == (address, prefix),
                // An address from an earlier run of the service.
                None => self.applied.is_none() && wanted.is_some(),
            };
            if index == self.index && is_stale && !is_wanted {
                let _ = netlink.remove_address(index, address, prefix);
            }
        }
        let Some(Address { address, prefix, gateway, expires }) = wanted else { return Ok(()) };
        let lifetime = expires.map(|expires| expires.saturating_sub(now));
        netlink.add_address(self.index, address, prefix, lifetime)?;
        match gateway {
            Some(gateway) => netlink.replace_default_route(self.index, gateway, self.metric),
            None => Ok(()),
        }
    }

    fn failed(&mut self, what: &str, error: &dyn std::fmt::Display) {
        let failure = format!("failed to {what}: {error}");
        if self.failure.as_ref() != Some(&failure) {
            say(format_args!("{}: {failure}", self.name));
        }
        self.failure = Some(failure);
    }
}

#[cfg(test)]
mod tests {
    use super::hardware;

    #[test]
    fn a_hardware_address_has_six_bytes() {
        assert_eq!(hardware("52:54:00:12:34:ff"), Some([0x52, 0x54, 0, 0x12, 0x34, 0xff]));
        for wrong in ["", "52:54:00:12:34", "52:54:00:12:34:56:78", "52:54:00:12:34:5g"] {
            assert_eq!(hardware(wrong), None, "{wrong}");
        }
    }
}
