//! Selects the image of an index that fits a machine: operating system, architecture and variant, compared as
//! in containerd. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A platform such as `linux/arm/v7`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Platform {
    /// The operating system; only `linux` can run here.
    pub os: String,
    /// The architecture in Go's spelling: `amd64`, `arm64`, `arm`, `riscv64`.
    pub architecture: String,
    /// The variant: `v5` … `v8` for ARM; `None` if the architecture has only one.
    pub variant: Option<String>,
}

/// The error for a text that is not a platform.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "read platform \"{text}\": must be OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT, as in linux/arm64 or linux/arm/v7"
)]
pub struct PlatformError {
    text: String,
}

impl Platform {
    /// Parses `linux/arm64` or `linux/arm/v7`.
    pub fn parse(text: &str) -> Result<Platform, PlatformError> {
        let error = || PlatformError { text: text.to_owned() };
        let parts: Vec<&str> = text.split('/').collect();
        let word = |part: &&str| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
        };
        if !parts.iter().all(word) {
            return Err(error());
        }
        match parts.as_slice() {
            [os, architecture] => Ok(Platform::new(os, architecture, None)),
            [os, architecture, variant] => Ok(Platform::new(os, architecture, Some(variant))),
            _ => Err(error()),
        }
    }

    /// The platform in the normalised spelling that comparisons use.
    pub fn new(os: &str, architecture: &str, variant: Option<&str>) -> Platform {
        let architecture = architecture.to_ascii_lowercase();
        let variant = variant.map(str::to_ascii_lowercase).filter(|variant| !variant.is_empty());
        let (architecture, variant) = match (architecture.as_str(), variant.as_deref()) {
            ("x86_64" | "x86-64" | "amd64", None | Some("v1")) => ("amd64", None),
            ("x86_64" | "x86-64" | "amd64", variant) => ("amd64", variant),
            ("i386" | "i486" | "i586" | "i686" | "386", _) => ("386", None),
            ("aarch64" | "arm64", None | Some("8" | "v8" | "v8.0")) => ("arm64", None),
            ("aarch64" | "arm64", variant) => ("arm64", variant),
            ("armhf", _) => ("arm", Some("v7")),
            ("armel", _) => ("arm", Some("v6")),
            ("arm", None | Some("7")) => ("arm", Some("v7")),
            ("arm", Some("5")) => ("arm", Some("v5")),
            ("arm", Some("6")) => ("arm", Some("v6")),
            ("arm", Some("8")) => ("arm", Some("v8")),
            (architecture, variant) => (architecture, variant),
        };
        Platform {
            os: os.to_ascii_lowercase(),
            architecture: architecture.to_owned(),
            variant: variant.map(str::to_owned),
        }
    }

    /// The platform of this machine.
    pub fn of_this_machine() -> Platform {
        let machine = nix::sys::utsname::uname()
            .map(|name| name.machine().to_string_lossy().into_owned())
            .unwrap_or_default();
        match std::env::consts::ARCH {
            "arm" => {
                let variant = match machine.as_bytes() {
                    [b'a', b'r', b'm', b'v', digit @ b'5'..=b'7', ..] => format!("v{}", char::from(*digit)),
                    // A 64-bit kernel with 32-bit programs.
                    [b'a', b'r', b'm', b'v', b'8', ..] | [b'a', b'a', b'r', b'c', b'h', ..] => {
                        "v8".to_owned()
                    }
                    _ => "v7".to_owned(),
                };
                Platform::new("linux", "arm", Some(&variant))
            }
            architecture => Platform::new("linux", architecture, None),
        }
    }

    /// The platforms that this one can run, best first.
    fn runs(&self) -> Vec<Platform> {
        let mut vector = vec![self.clone()];
        let older = |from: u8, down_to: u8| {
            (down_to..=from).rev().map(|version| Platform::new("linux", "arm", Some(&format!("v{version}"))))
        };
        let version = self.variant.as_deref().and_then(|variant| match variant.as_bytes() {
            [b'v', digit @ b'1'..=b'9'] => Some(digit - b'0'),
            _ => None,
        });
        match (self.architecture.as_str(), version) {
            ("amd64", Some(version)) => {
                vector.extend(
                    (1..version).rev().map(|v| Platform::new("linux", "amd64", Some(&format!("v{v}")))),
                );
                vector.push(Platform::new("linux", "386", None));
            }
            ("amd64", None) => vector.push(Platform::new("linux", "386", None)),
            ("arm", Some(version)) => vector.extend(older(version.saturating_sub(1), 5)),
            ("arm64", _) => {
                if self.variant.is_some() {
                    vector.push(Platform::new("linux", "arm64", None));
                }
                vector.extend(older(8, 5));
            }
            (_, _) => {}
        }
        vector.iter_mut().for_each(|platform| platform.os.clone_from(&self.os));
        vector
    }

    /// How well an image for `image` fits a machine of this platform: 0 is best, `None` means not at all.
    pub fn rank(&self, image: &Platform) -> Option<usize> {
        self.runs().iter().position(|platform| platform == image)
    }

    /// The [`Platform::rank`] for a platform that the user requested by name: an older variant is accepted,
    /// another architecture is not.
    pub fn rank_of_explicit(&self, image: &Platform) -> Option<usize> {
        self.rank(image).filter(|_| image.architecture == self.architecture)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match &self.variant {
            Some(variant) => write!(f, "/{variant}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        Platform::parse(text).expect(text)
    }

    #[test]
    fn spellings_of_one_platform_are_one() {
        for (text, expected) in [
            ("linux/x86_64", "linux/amd64"),
            ("Linux/AMD64/v1", "linux/amd64"),
            ("linux/aarch64", "linux/arm64"),
            ("linux/arm64/v8", "linux/arm64"),
            ("linux/arm64/8", "linux/arm64"),
            ("linux/arm", "linux/arm/v7"),
            ("linux/armhf", "linux/arm/v7"),
            ("linux/armel", "linux/arm/v6"),
            ("linux/arm/6", "linux/arm/v6"),
            ("linux/riscv64", "linux/riscv64"),
        ] {
            assert_eq!(platform(text).to_string(), expected, "{text}");
        }
        for text in ["", "linux", "linux/", "/arm", "a/b/c/d", "linux/a b"] {
            assert!(Platform::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_older_variant_runs_and_a_newer_one_does_not() {
        for (machine, image, rank) in [
            ("linux/arm/v7", "linux/arm/v7", Some(0)),
            ("linux/arm/v7", "linux/arm/v6", Some(1)),
            ("linux/arm/v7", "linux/arm/v5", Some(2)),
            ("linux/arm/v6", "linux/arm/v7", None),
            ("linux/arm64", "linux/arm64/v8", Some(0)),
            ("linux/arm64", "linux/arm/v7", Some(2)),
            ("linux/amd64", "linux/386", Some(1)),
            ("linux/amd64/v3", "linux/amd64", Some(2)),
            ("linux/amd64", "linux/amd64/v3", None),
            ("linux/amd64", "linux/arm64", None),
            ("linux/amd64", "windows/amd64", None),
            ("linux/amd64", "unknown/unknown", None),
        ] {
            assert_eq!(platform(machine).rank(&platform(image)), rank, "{machine} runs {image}");
        }
        assert_eq!(platform("linux/arm64").rank_of_explicit(&platform("linux/arm/v7")), None);
        assert_eq!(platform("linux/arm/v7").rank_of_explicit(&platform("linux/arm/v6")), Some(1));
    }
}
