//! The schema of `board.json`, the file in a device image that describes its board.
//!
//! `cargo xtask image` writes the file (`board/dist/src/image/board_json.rs`). A test of that module compiles this
//! file to read what was written, so this file must not use other modules.

use std::net::Ipv4Addr;

use serde::Deserialize;

/// The board for which the device image was built.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Board {
    /// The name of the profile.
    pub(crate) name: String,
    /// Links to configure.
    pub(crate) network: Vec<Link>,
    /// Time servers, as addresses or names; `None` means those that DHCP names.
    pub(crate) ntp: Option<Vec<String>>,
    /// The time of the sources of this image, in seconds since 1970. A clock that shows an earlier time is
    /// wrong.
    pub(crate) built: u64,
    /// Arguments of `nodlet agent`.
    pub(crate) agent: Vec<String>,
    /// MiB of RAM for logs; 0 if logs are on the data partition.
    pub(crate) logs_in_ram_mib: u32,
    /// The watchdog that process 1 feeds.
    pub(crate) watchdog: Option<Watchdog>,
    /// When an agent that keeps failing leads to a reboot and to safe mode.
    pub(crate) crash_loop: Option<CrashLoop>,
    /// Which updates of nodlet are accepted.
    pub(crate) update: Rules,
}

/// A hardware watchdog.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(deny_unknown_fields)]
pub(crate) struct Watchdog {
    pub(crate) device: String,
    /// Seconds after which the board is reset unless process 1 feeds the watchdog.
    pub(crate) timeout: u32,
}

/// Limits of crash loops, which end with a reboot and finally with safe mode.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(deny_unknown_fields)]
pub(crate) struct CrashLoop {
    /// Seconds for which the first crash loop lasts until the board reboots.
    pub(crate) after: u32,
    /// How many crash loops end with a reboot before the board boots into safe mode.
    pub(crate) reboots: u32,
}

/// A link, or all links that a pattern matches.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Link {
    /// The kernel's name of the link, or the beginning of such names followed by `*`.
    pub(crate) link: String,
    /// Whether a DHCP server assigns the address.
    pub(crate) dhcp: bool,
    /// A fixed address.
    pub(crate) address: Option<Ipv4Addr>,
    /// The prefix length of the fixed address, in bits.
    pub(crate) prefix: Option<u8>,
    pub(crate) gateway: Option<Ipv4Addr>,
    /// Name servers, in addition to those that DHCP names.
    pub(crate) dns: Vec<Ipv4Addr>,
    /// Whether IPv6 routers configure the link; `None` keeps the kernel's default.
    pub(crate) accept_ra: Option<bool>,
}

/// Which updates a board accepts: `update` of its profile.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Rules {
    /// Public keys of minisign.
    pub(crate) keys: Vec<String>,
    /// Whether updates without a signature are accepted.
    pub(crate) allow_unsigned: bool,
    /// For how many seconds an updated nodlet must be healthy to be kept.
    pub(crate) healthy_after: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Rules { keys: Vec::new(), allow_unsigned: false, healthy_after: 60 }
    }
}
