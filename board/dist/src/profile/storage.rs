//! The section `[storage]` of a profile: the medium from which a board boots.

use serde::Deserialize;

/// The medium, and how the board boots from it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Storage {
    /// What boots the board.
    pub loader: Loader,
    /// The size of the smallest medium for which the image is meant.
    pub medium_mib: u64,
    /// The size of the boot partition.
    #[serde(default = "boot_mib")]
    pub boot_mib: u64,
    /// The least space for data on that medium.
    #[serde(default = "data_mib")]
    pub data_mib: u64,
    /// Drivers of the medium that the kernel does not have built in.
    #[serde(default)]
    pub modules: Vec<String>,
}

/// The program that reads the boot partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loader {
    /// UEFI, which starts systemd-boot.
    Uefi,
    /// U-Boot, which reads `extlinux/extlinux.conf`.
    Extlinux,
    /// The firmware of a Raspberry Pi, which reads `config.txt`.
    RaspberryPi,
}

fn boot_mib() -> u64 {
    64
}

fn data_mib() -> u64 {
    32
}

impl Storage {
    /// Checks the sizes. The error names the key.
    pub(crate) fn check(&self) -> Result<(), String> {
        let wrong = |key: &str, what: &str| Err(format!("storage.{key} {what}"));
        match self {
            // A smaller partition would be FAT12, which not every firmware supports.
            Storage { boot_mib: ..16 | 2049.., .. } => {
                wrong("boot-mib", &format!("must be 16 to 2048, and is {}", self.boot_mib))
            }
            // A smaller partition would not be FAT32.
            Storage { loader: Loader::RaspberryPi, boot_mib: ..40, .. } => {
                wrong("boot-mib", &format!("must be 40 at least with raspberry-pi, and is {}", self.boot_mib))
            }
            Storage { data_mib: ..8 | 1_000_001.., .. } => {
                wrong("data-mib", &format!("must be 8 to 1000000, and is {}", self.data_mib))
            }
            Storage { medium_mib: 100_000_001.., .. } => {
                wrong("medium-mib", &format!("must be 100000000 at most, and is {}", self.medium_mib))
            }
            Storage { .. } => Ok(()),
        }
    }
}
