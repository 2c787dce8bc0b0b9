//! What a device image says of its board: `usr/lib/nodlet/board.json`, which `cargo xtask image`
//! makes of a profile.

use std::io;

use serde::Deserialize;

use super::network::config::Link;

/// Where the file lies.
const FILE: &str = "/usr/lib/nodlet/board.json";

/// The board, as its image was built for.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Board {
    /// The profile.
    pub(super) name: String,
    /// Links that are set up and given an address.
    pub(super) network: Vec<Link>,
    /// Time servers, addresses or names; without a list those that DHCP names.
    pub(super) ntp: Option<Vec<String>>,
    /// The time of the sources of this image, in seconds since 1970: before it no clock can be right.
    pub(super) built: u64,
    /// Arguments of `nodlet agent`.
    pub(super) agent: Vec<String>,
    /// MiB of RAM for logs; none if they lie on the data partition.
    pub(super) logs_in_ram_mib: u32,
    /// The watchdog that process 1 feeds.
    pub(super) watchdog: Option<Watchdog>,
    /// What an agent that keeps failing leads to.
    pub(super) crash_loop: Option<CrashLoop>,
    /// Which updates of nodlet are accepted.
    pub(super) update: crate::system::Rules,
}

/// A hardware watchdog.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Watchdog {
    pub(super) device: String,
    /// Seconds after which the board is reset unless process 1 feeds the watchdog.
    pub(super) timeout: u32,
}

/// Limits of crash loops.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CrashLoop {
    /// Seconds for which the first one lasts until the board reboots.
    pub(super) after: u32,
    /// How many end with a reboot before safe mode.
    pub(super) reboots: u32,
}

/// Reads the file.
///
/// # Errors
/// If it is missing or says something that this version does not know.
pub(super) fn read() -> io::Result<Board> {
    let in_file = |error: &dyn std::fmt::Display| io::Error::other(format!("read {FILE}: {error}"));
    let bytes = std::fs::read(FILE).map_err(|error| in_file(&error))?;
    serde_json::from_slice(&bytes).map_err(|error| in_file(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_is_read_and_an_unknown_key_is_an_error() {
        let read = |text: &str| serde_json::from_str::<Board>(text);
        let text = r#"{"name": "a", "network": [{"link": "eth0", "address": "10.0.2.15", "prefix": 24}]}"#;
        let board = read(text).expect("it is right");
        assert_eq!((board.name.as_str(), board.network[0].prefix, board.agent.len()), ("a", Some(24), 0));
        let error = read(r#"{"nam": "a"}"#).expect_err("there is no such key").to_string();
        assert!(error.contains("unknown field `nam`, expected one of"), "{error}");
    }
}
