//! A kernel's configuration as its build wrote it: `.config`, `/proc/config.gz`, `/boot/config-*`. This
//! module only reads it; `features.rs` judges it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

/// The largest file that is read, compressed or not. Real configurations have some 300 KiB.
const BYTES_MAX: u64 = 8 * 1024 * 1024;

/// A version of Linux, major and minor, as far as features depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) u32, pub(super) u32);

impl Version {
    /// Parses a release such as `6.12.34-v8+`.
    pub(super) fn parse(release: &str) -> Option<Version> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        Some(Version(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// The value of a kernel option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    BuiltIn,
    Module,
    Off,
}

/// The options of a kernel's configuration.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Config {
    /// Options without `CONFIG_`, in the order of the file. An option that is not listed is off. A list
    /// suffices, because few lookups are made.
    options: Vec<(String, Setting)>,
    /// The release in the comment at the beginning of the file.
    pub(super) release: Option<String>,
}

/// Why a file is not a kernel's configuration.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigError {
    #[error("{0}")]
    Read(io::Error),
    #[error("it begins like a gzip file but cannot be unpacked: {0}; copy it again")]
    Unpack(io::Error),
    #[error("it has more than {} MiB; specify a kernel's .config", BYTES_MAX / 1024 / 1024)]
    TooLarge,
    #[error("it is neither text nor gzip; specify a kernel's .config, or /proc/config.gz of a board")]
    NotText,
    #[error(
        "line {number} must be CONFIG_NAME=VALUE, \"# CONFIG_NAME is not set\" or a comment, but is {text:?}; specify a \
         kernel's .config"
    )]
    Line { number: usize, text: String },
    #[error(
        "this is Buildroot's own configuration; specify the kernel's, output/build/linux-VERSION/.config"
    )]
    Buildroot,
    #[error("it has no line CONFIG_NAME=VALUE; specify a kernel's .config")]
    NoOptions,
}

impl Config {
    /// Reads a configuration file, compressed with gzip or not.
    pub(super) fn read(path: &Path) -> Result<Config, ConfigError> {
        let mut file = File::open(path).map_err(ConfigError::Read)?;
        let bytes = limited(&mut file)?;
        Config::from_bytes(&bytes)
    }

    fn from_bytes(bytes: &[u8]) -> Result<Config, ConfigError> {
        const GZIP: [u8; 2] = [0x1f, 0x8b];
        let unpacked;
        let bytes = if bytes.starts_with(&GZIP) {
            unpacked = limited(&mut MultiGzDecoder::new(bytes)).map_err(|error| match error {
                ConfigError::Read(source) => ConfigError::Unpack(source),
                other => other,
            })?;
            &unpacked
        } else {
            bytes
        };
        Config::parse(std::str::from_utf8(bytes).map_err(|_| ConfigError::NotText)?)
    }

    /// Parses the text of a configuration. If an option is set twice, the last value counts, as in the
    /// kernel's build.
    pub(super) fn parse(text: &str) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if let Some(comment) = line.strip_prefix('#') {
                let comment = comment.trim();
                if let Some(name) =
                    comment.strip_suffix(" is not set").and_then(|name| name.strip_prefix("CONFIG_"))
                {
                    config.options.push((name.to_owned(), Setting::Off));
                } else if let Some(title) = comment.strip_suffix(" Kernel Configuration") {
                    // The title looks like "Linux/arm64 6.12.34 Kernel Configuration".
                    config.release = title.rsplit(' ').next().map(str::to_owned);
                }
                continue;
            }
            if line.is_empty() {
                continue;
            }
            if line.starts_with("BR2_") {
                return Err(ConfigError::Buildroot);
            }
            let option = line.strip_prefix("CONFIG_").and_then(|option| option.split_once('='));
            let Some((name, value)) = option.filter(|(name, _)| is_name(name)) else {
                let text = line.chars().take(40).collect();
                return Err(ConfigError::Line { number: index + 1, text });
            };
            let setting = match value {
                "m" => Setting::Module,
                "n" => Setting::Off,
                _ => Setting::BuiltIn,
            };
            config.options.push((name.to_owned(), setting));
        }
        if config.options.is_empty() {
            return Err(ConfigError::NoOptions);
        }
        Ok(config)
    }

    /// The value of an option, which is named without `CONFIG_`.
    pub(super) fn setting(&self, option: &str) -> Setting {
        self.options
            .iter()
            .rev()
            .find(|(name, _)| name == option)
            .map_or(Setting::Off, |(_, setting)| *setting)
    }

    /// Whether the configuration is complete, that is begins with the comment that the kernel's build writes.
    /// A defconfig or a fragment omits options with default values, so it cannot be judged.
    pub(super) fn is_whole(&self) -> bool {
        self.release.is_some()
    }

    /// The kernel version of the configuration.
    pub(super) fn version(&self) -> Option<Version> {
        Version::parse(self.release.as_deref()?)
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn limited(from: &mut dyn Read) -> Result<Vec<u8>, ConfigError> {
    let mut bytes = Vec::new();
    from.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(ConfigError::Read)?;
    if bytes.len() as u64 > BYTES_MAX { Err(ConfigError::TooLarge) } else { Ok(bytes) }
}

/// Finds the configuration of the running kernel.
pub(super) fn running(release: &str) -> Option<(PathBuf, Config)> {
    let places = [
        "/proc/config.gz".to_owned(),
        format!("/boot/config-{release}"),
        format!("/lib/modules/{release}/config"),
        format!("/usr/lib/modules/{release}/config"),
    ];
    // An unreadable configuration counts as missing: the running kernel can be probed without it.
    places
        .into_iter()
        .map(PathBuf::from)
        .find_map(|path| Config::read(&path).ok().map(|config| (path, config)))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn options_are_read_as_the_kernels_build_writes_them() {
        let text = "#\n# Automatically generated file; DO NOT EDIT.\n# Linux/arm64 6.12.34 Kernel Configuration\n#\n\
                    CONFIG_A=y\r\nCONFIG_B=m\n# CONFIG_C is not set\nCONFIG_D=\"a=b # c\"\nCONFIG_E=4\n\n\
                    CONFIG_F=y\n# CONFIG_F is not set\nCONFIG_G=n\n";
        let config = Config::parse(text).unwrap();
        for (option, expected) in [
            ("A", Setting::BuiltIn),
            ("B", Setting::Module),
            ("C", Setting::Off),
            ("D", Setting::BuiltIn),
            ("E", Setting::BuiltIn),
            ("F", Setting::Off),
            ("G", Setting::Off),
            ("UNNAMED", Setting::Off),
        ] {
            assert_eq!(config.setting(option), expected, "{option}");
        }
        assert_eq!(config.version(), Some(Version(6, 12)));
        assert!(config.is_whole());
        assert!(!Config::parse("CONFIG_A=y\n").unwrap().is_whole());
    }

    #[test]
    fn versions_are_read_from_every_release() {
        for (release, expected) in [
            ("6.12.34-v8+", Some(Version(6, 12))),
            ("5.14", Some(Version(5, 14))),
            ("6.1-rc3", Some(Version(6, 1))),
            ("6", None),
            ("next", None),
            ("", None),
        ] {
            assert_eq!(Version::parse(release), expected, "{release:?}");
        }
        assert!(Version(5, 14) < Version(6, 1));
    }

    #[test]
    fn an_invalid_kernel_configuration_is_rejected_with_the_expected_format() {
        for (bytes, expected) in [
            (&b""[..], "no line CONFIG_NAME=VALUE"),
            (b"# nothing\n", "no line CONFIG_NAME=VALUE"),
            (b"CONFIG_A=y\n[section]\n", "line 2 must be CONFIG_NAME=VALUE"),
            (b"CONFIG_A\n", "line 1 must be"),
            (b"CONFIG_=y\n", "line 1 must be"),
            (b"CONFIG_A B=y\n", "line 1 must be"),
            (b"BR2_HAVE_DOT_CONFIG=y\n", "output/build/linux-VERSION/.config"),
            (b"\xff\xfe\x00", "neither text nor gzip"),
            (b"\x1f\x8bgarbage", "begins like a gzip file but cannot be unpacked"),
        ] {
            let error = Config::from_bytes(bytes).unwrap_err().to_string();
            assert!(error.contains(expected), "{bytes:?}: {error}");
        }
    }

    #[test]
    fn gzip_is_read_and_bounded() {
        let packed = |bytes: &[u8]| {
            let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            writer.write_all(bytes).unwrap();
            writer.finish().unwrap()
        };
        let config = Config::from_bytes(&packed(b"CONFIG_A=m\n")).unwrap();
        assert_eq!(config.setting("A"), Setting::Module);
        let huge = packed(&vec![b'#'; BYTES_MAX as usize + 1]);
        assert!(matches!(Config::from_bytes(&huge), Err(ConfigError::TooLarge)));
        let cut = packed(b"CONFIG_A=m\n");
        assert!(matches!(Config::from_bytes(&cut[..cut.len() - 6]), Err(ConfigError::Unpack(_))));
    }
}
