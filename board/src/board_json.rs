//! What `board.json` may contain, the file that a device image has about its board.
//!
//! `cargo xtask image` writes the file (`xtask/src/image/board_json.rs`), and the test of that module
//! compiles this one to read what it wrote: nothing here may need another module.

use std::net::Ipv4Addr;

use serde::Deserialize;

/// The board, as its image was built for.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Board {
    /// The profile.
    pub(crate) name: String,
    /// Links that are set up and given an address.
    pub(crate) network: Vec<Link>,
    /// Time servers, addresses or names; without a list those that DHCP names.
    pub(crate) ntp: Option<Vec<String>>,
    /// The time of the sources of this image, in seconds since 1970: before it no clock can be right.
    pub(crate) built: u64,
    /// Arguments of `nodlet agent`.
    pub(crate) agent: Vec<String>,
    /// MiB of RAM for logs; none if they lie on the data partition.
    pub(crate) logs_in_ram_mib: u32,
    /// The watchdog that process 1 feeds.
    pub(crate) watchdog: Option<Watchdog>,
    /// What an agent that keeps failing leads to.
    pub(crate) crash_loop: Option<CrashLoop>,
    /// Which updates of nodlet are accepted.
    pub(crate) update: Rules,
}

/// A hardware watchdog.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Watchdog {
    pub(crate) device: String,
    /// Seconds after which the board is reset unless process 1 feeds the watchdog.
    pub(crate) timeout: u32,
}

/// Limits of crash loops.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CrashLoop {
    /// Seconds for which the first one lasts until the board reboots.
    pub(crate) after: u32,
    /// How many end with a reboot before safe mode.
    pub(crate) reboots: u32,
}

/// A link, or all links that a pattern matches.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Link {
    /// As the kernel names it, or the beginning of such a name and `*`.
    pub(crate) link: String,
    /// The address comes from a DHCP server.
    pub(crate) dhcp: bool,
    /// A fixed address.
    pub(crate) address: Option<Ipv4Addr>,
    /// Bits of the fixed address that are the network's.
    pub(crate) prefix: Option<u8>,
    pub(crate) gateway: Option<Ipv4Addr>,
    /// Name servers besides those that DHCP names.
    pub(crate) dns: Vec<Ipv4Addr>,
    /// Whether IPv6 routers configure the link; without it, as the kernel does by default.
    pub(crate) accept_ra: Option<bool>,
}

/// Which updates a board accepts: `update` of its profile.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Rules {
    /// Public keys of minisign.
    pub(crate) keys: Vec<String>,
    /// Whether an update needs no signature.
    pub(crate) allow_unsigned: bool,
    /// For how many seconds an update must be healthy to be kept.
    pub(crate) healthy_after: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Rules { keys: Vec::new(), allow_unsigned: false, healthy_after: 60 }
    }
}
