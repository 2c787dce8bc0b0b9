//! Writes `board.json` of a device image, which tells the board's init what it needs of the profile.
//! `board/src/board_json.rs` has the types with which the board reads the file.

use serde_json::{Value, json};

use crate::profile::Profile;

/// The contents of the file. `built` is the time of the sources in seconds since 1970: no clock of a board is right before.
pub(super) fn of(profile: &Profile, built: u64) -> Value {
    json!({
        "name": profile.name,
        "network": profile.network,
        "agent": profile.agent_arguments(),
        "logs_in_ram_mib": profile.logs.ram_mib.unwrap_or_default(),
        "watchdog": profile.watchdog,
        "crash_loop": profile.crash_loop,
        "update": profile.update,
        "ntp": profile.ntp,
        "built": built,
    })
}

/// The types with which the board reads the file, from their own source.
#[cfg(test)]
#[path = "../../../src/board_json.rs"]
mod on_board;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile;

    /// Parses the text as the board does, and writes the result as this module would.
    fn read_and_written(text: &str) -> Value {
        let board: on_board::Board =
            serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        serde_json::to_value(board).unwrap()
    }

    #[test]
    fn a_board_reads_every_value_of_its_profile() {
        for name in profile::known().unwrap() {
            let written = of(&profile::get(&name).unwrap(), 1);
            assert_eq!(read_and_written(&written.to_string()), written, "{name}");
        }
    }

    #[test]
    fn a_board_reads_every_key_that_a_profile_may_have() {
        let all = r#"
            target = "t"
            debian = "d"
            kernel = "k"
            command-line = "c"
            modules = []
            memory-mib = 128
            services = []
            agent = ["--node-labels", "site=roof"]
            ntp = ["192.168.7.3", "time.example"]
            [logs]
            max-size = "1Mi"
            max-files = 3
            ram-mib = 8
            [limits]
            max-pods = 9
            [[network]]
            link = "eth0"
            dhcp = true
            accept-ra = false
            [[network]]
            link = "eth1"
            address = "192.168.7.2"
            prefix = 24
            gateway = "192.168.7.1"
            dns = ["192.168.7.1", "9.9.9.9"]
            [watchdog]
            device = "/dev/watchdog1"
            timeout = 30
            [crash-loop]
            after = 90
            reboots = 5
            [update]
            keys = ["RWSdvysHnYyxThlfiyOofiBndfqdYRp0X3OmlKZDgj1zD7Yfmc0B3KfJ"]
            allow-unsigned = true
            healthy-after = "5m"
        "#;
        let written = of(&profile::parse("all", all).unwrap(), 1);
        assert_eq!(read_and_written(&written.to_string()), written);
        assert_eq!(written["network"][1]["dns"][1], "9.9.9.9");
        assert_eq!(written["crash_loop"]["reboots"], 5);
        assert_eq!(written["update"]["healthy_after"], 300);
        assert_eq!(written["ntp"][1], "time.example");
    }
}
