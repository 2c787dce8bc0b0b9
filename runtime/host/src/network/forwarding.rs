//! The forwarding of packets between pods and the rest of the network, link by link.
//!
//! Linux forwards an IPv4 packet if the link by which it *came in* has `forwarding`, whatever the link by which it
//! leaves has. So the bridge needs it for what pods send, and each other link of the machine with an address for the
//! replies, and for connections to a `hostPort`. The global switch `net.ipv4.ip_forward` is never changed: if it is on,
//! the owner of the machine forwards, and nodlet changes no link but the bridge. Nor does it change the bridges of other
//! agents of the machine, which do that themselves. The links on which nodlet has switched forwarding on are kept in a
//! file, so that a later agent and `nodlet down` know them.

use nodlet_kernel::durable::{discard, replace_in_memory};
use nodlet_kernel::own_file;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{is_of_an_agent, link_name};
use crate::netlink::Netlink;

/// The links that forward only because of nodlet.
#[derive(Debug)]
pub(super) struct Forwarding {
    file: PathBuf,
    links: Vec<String>,
}

fn setting(link: &str) -> PathBuf {
    Path::new("/proc/sys/net/ipv4/conf").join(link).join("forwarding")
}

fn is_on(path: &Path) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.trim() != "0")
}

/// The file that makes a link forward IPv6 packets, from Linux 6.17 on.
fn ipv6_setting(link: &str) -> PathBuf {
    Path::new("/proc/sys/net/ipv6/conf").join(link).join("force_forwarding")
}

impl Forwarding {
    /// Reads the links that an earlier agent recorded.
    pub(super) fn open(file: PathBuf) -> Forwarding {
        let text = own_file::read_to_string(&file).unwrap_or_default();
        Forwarding { file, links: text.lines().map(str::to_owned).collect() }
    }

    pub(super) fn links(&self) -> &[String] {
        &self.links
    }

    /// Whether an agent of this boot has made the table.
    pub(super) fn has_begun(&self) -> bool {
        self.file.exists()
    }

    /// Chooses the links that must forward, and records them. Returns whether they are others than before.
    pub(super) fn choose(&mut self, netlink: &mut Netlink) -> io::Result<bool> {
        let mut chosen: Vec<String> = Vec::new();
        if !is_on(Path::new("/proc/sys/net/ipv4/ip_forward")) {
            for (index, address, _) in netlink.addresses()? {
                let name = link_name(index);
                let known = self.links.contains(&name);
                if !address.is_loopback()
                    && !is_of_an_agent(&name)
                    && !chosen.contains(&name)
                    && (known || !is_on(&setting(&name)))
                {
                    chosen.push(name);
                }
            }
        }
        chosen.sort();
        if chosen == self.links && self.has_begun() {
            return Ok(false);
        }
        // Before the settings, so that no link is left behind.
        replace_in_memory(&self.file, chosen.iter().map(|link| format!("{link}\n")).collect::<String>())?;
        self.links = chosen;
        Ok(true)
    }

    /// Makes the bridge and the chosen links forward.
    pub(super) fn switch_on(&self, bridge: &str) -> io::Result<()> {
        for link in self.links.iter().map(String::as_str).chain([bridge]) {
            let path = setting(link);
            if is_on(&path) {
                continue;
            }
            match fs::write(&path, "1") {
                // The link was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(io::Error::new(error.kind(), format!("write {}: {error}", path.display())));
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Makes the bridge and the chosen links forward IPv6 packets. Returns whether the kernel does so then.
    pub(super) fn switch_on_ipv6(&self, bridge: &str) -> io::Result<bool> {
        if is_on(Path::new("/proc/sys/net/ipv6/conf/all/forwarding")) {
            return Ok(true);
        }
        for link in self.links.iter().map(String::as_str).chain([bridge]) {
            let path = ipv6_setting(link);
            match if is_on(&path) { Ok(()) } else { fs::write(&path, "1") } {
                Err(error) if error.kind() == io::ErrorKind::NotFound && link == bridge => return Ok(false),
                // A link without IPv6, or one that was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                written => written?,
            }
        }
        Ok(true)
    }

    /// Makes the recorded links forward no more, and forgets them.
    pub(super) fn switch_off(&mut self) -> io::Result<()> {
        // If the owner of the machine has switched forwarding on for all links since, it stays.
        if !is_on(Path::new("/proc/sys/net/ipv4/ip_forward")) {
            for link in &self.links {
                let _ = fs::write(setting(link), "0");
                if ipv6_setting(link).exists() {
                    let _ = fs::write(ipv6_setting(link), "0");
                }
            }
        }
        self.links.clear();
        discard(&self.file)
    }
}
