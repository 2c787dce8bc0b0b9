//! Profiles of boards: `board/profiles/NAME.toml`, a file a board.

use std::fs;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::{Failure, project};

/// What there is to know of a board.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Profile {
    /// The name of the file.
    #[serde(skip)]
    pub(crate) name: String,
    /// Rust's name of the processor and its C library.
    pub(crate) target: String,
    /// Debian's name of the processor.
    pub(crate) debian: String,
    /// Debian's package of the kernel.
    pub(crate) kernel: String,
    /// Of the kernel.
    pub(crate) command_line: String,
    /// Kernel modules that are loaded at boot. What they need comes with them.
    pub(crate) modules: Vec<String>,
    /// Links with a fixed address.
    #[serde(default)]
    pub(crate) network: Vec<Link>,
    /// How QEMU emulates the board; real hardware has none.
    #[serde(default)]
    pub(crate) qemu: Option<Qemu>,
}

/// A link with a fixed address, for the profile and for `board.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Link {
    /// As the kernel names it.
    link: String,
    address: Ipv4Addr,
    prefix: u8,
    #[serde(default)]
    gateway: Option<Ipv4Addr>,
}

/// An emulated board.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Qemu {
    pub(crate) program: String,
    /// Debian's package of the program.
    pub(crate) package: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) memory_mib: u32,
}

/// Reads the profile of a board.
///
/// # Errors
/// There is no such profile, or it has an unknown key or a wrong value: the text names it.
pub(crate) fn get(name: &str) -> Result<Profile, Failure> {
    let directory = project().join("board/profiles");
    let file = directory.join(format!("{name}.toml"));
    let known = known()?;
    if !known.iter().any(|known| known == name) {
        let known = known.join(", ");
        return Err(Failure(format!("there is no profile {name:?} in board/profiles, only {known}")));
    }
    parse(
        name,
        &fs::read_to_string(&file).map_err(|error| format!("failed to read {}: {error}", file.display()))?,
    )
}

/// The names of all profiles.
pub(crate) fn known() -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    for entry in fs::read_dir(project().join("board/profiles"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".toml").map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

fn parse(name: &str, text: &str) -> Result<Profile, Failure> {
    let mut profile: Profile =
        toml::from_str(text).map_err(|error| format!("board/profiles/{name}.toml: {error}"))?;
    if let Some(link) = profile.network.iter().find(|link| link.prefix > 32) {
        return Err(Failure(format!(
            "board/profiles/{name}.toml: network: prefix {} of {} is more than 32",
            link.prefix, link.link
        )));
    }
    name.clone_into(&mut profile.name);
    Ok(profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_can_be_read() {
        let known = known().expect("the directory is there");
        assert!(known.contains(&"qemu-arm64".to_owned()), "{known:?}");
        for name in known {
            let profile = get(&name).expect("it is right");
            assert_eq!(profile.name, name);
            crate::cross::target(&profile.target).expect("nodlet can be built for it");
        }
    }

    #[test]
    fn what_is_wrong_with_a_profile_is_named_with_what_would_be_right() {
        let right =
            fs::read_to_string(project().join("board/profiles/qemu-arm64.toml")).expect("it is there");
        for (from, to, words) in [
            ("debian =", "debain =", "unknown field `debain`, expected one of `target`, `debian`"),
            ("memory-mib = 128", "memory-mib = \"much\"", "memory-mib"),
            ("prefix = 24", "prefix = 33", "prefix 33 of eth0 is more than 32"),
            ("10.0.2.15", "10.0.2", "invalid IPv4 address"),
            ("command-line =", "# command-line =", "missing field `command-line`"),
        ] {
            let Err(Failure(why)) = parse("a", &right.replacen(from, to, 1)) else { panic!("{to} is taken") };
            assert!(why.contains(words) && why.contains("board/profiles/a.toml"), "{why}");
        }
        let Err(Failure(why)) = get("no-board") else { panic!("there is none") };
        assert!(
            why.contains("no profile \"no-board\" in board/profiles, only ") && why.contains("qemu-arm64"),
            "{why}"
        );
    }
}
