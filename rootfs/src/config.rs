//! What an image says of how to run it: its configuration document, as OCI and
//! Docker write it. Pure.

use serde::Deserialize;

use crate::platform::Platform;
use crate::reference::Digest;

/// How the image wants to be run, where a Pod does not say otherwise. Of what else a
/// configuration has (labels, ports, volumes, history) nothing is kept in memory: a
/// Pod has its own word for it, or none, and an image may bring megabytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// The command that a container's `command` replaces.
    pub entrypoint: Vec<String>,
    /// The arguments that a container's `args` replaces.
    pub cmd: Vec<String>,
    /// `NAME=value`
    pub env: Vec<String>,
    /// User and group, as names or numbers; empty for root. For `assemble::user`.
    pub user: String,
    /// Where the process starts; empty for `/`.
    pub working_dir: String,
    /// The signal that asks the process to end, if not SIGTERM.
    pub stop_signal: Option<String>,
}

/// An image's configuration document.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    pub(crate) platform: Platform,
    pub(crate) created: Option<String>,
    pub(crate) config: ImageConfig,
    /// Digests of the layers' tar streams, lowest first.
    pub(crate) diff_ids: Vec<Digest>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Raw {
    architecture: String,
    os: String,
    variant: Option<String>,
    created: Option<String>,
    config: Option<RawConfig>,
    rootfs: RawRootfs,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct RawRootfs {
    #[serde(default)]
    diff_ids: Option<Vec<Digest>>,
}

/// Any of it may be left out or null.
#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default, expecting = "an object")]
struct RawConfig {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    env: Option<Vec<String>>,
    user: Option<String>,
    working_dir: Option<String>,
    stop_signal: Option<String>,
}

impl RawConfig {
    /// Refuses what no process can be given, while it can be said of which field it is.
    fn check(&self) -> Result<(), String> {
        let lists = [("Entrypoint", &self.entrypoint), ("Cmd", &self.cmd), ("Env", &self.env)];
        let texts =
            [("User", &self.user), ("WorkingDir", &self.working_dir), ("StopSignal", &self.stop_signal)];
        let values =
            lists.into_iter().flat_map(|(field, list)| list.iter().flatten().map(move |text| (field, text)));
        let mut values =
            values.chain(texts.into_iter().filter_map(|(field, text)| Some((field, text.as_ref()?))));
        match values.find(|(_, text)| text.contains('\0')) {
            Some((field, _)) => {
                Err(format!("config.{field}: a text with a NUL byte, which no process can be given"))
            }
            None => Ok(()),
        }
    }
}

impl Document {
    /// Reads the document's JSON. The error names the field.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Document, serde_json::Error> {
        let raw: Raw = serde_json::from_slice(bytes)?;
        let config = raw.config.unwrap_or_default();
        config.check().map_err(serde::de::Error::custom)?;
        Ok(Document {
            platform: Platform::new(&raw.os, &raw.architecture, raw.variant.as_deref()),
            created: raw.created.filter(|created| !created.is_empty()),
            config: ImageConfig {
                entrypoint: config.entrypoint.unwrap_or_default(),
                cmd: config.cmd.unwrap_or_default(),
                env: config.env.unwrap_or_default(),
                user: config.user.unwrap_or_default(),
                working_dir: config.working_dir.unwrap_or_default(),
                stop_signal: config.stop_signal.filter(|signal| !signal.is_empty()),
            },
            diff_ids: raw.rootfs.diff_ids.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nulls_and_omissions_are_empty() {
        let minimal = br#"{"architecture":"arm","os":"linux","variant":"v6","rootfs":{"type":"layers"},
            "config":{"Entrypoint":null,"Env":null,"StopSignal":"","Labels":null,"Unknown":[1]}}"#;
        let document = Document::parse(minimal).expect("minimal");
        assert_eq!(document.platform.to_string(), "linux/arm/v6");
        assert_eq!(document.config, ImageConfig::default());
    }

    #[test]
    fn all_that_a_container_needs_is_read() {
        let digest = Digest::of(b"");
        let full = format!(
            r#"{{"architecture":"amd64","os":"linux","created":"2024-01-02T03:04:05Z","rootfs":{{"diff_ids":["{digest}"]}},
            "config":{{"Entrypoint":["/e"],"Cmd":["c"],"Env":["A=b"],"User":"www:80","WorkingDir":"/w",
            "StopSignal":"SIGQUIT","ExposedPorts":{{"80/tcp":{{}}}},"Volumes":{{"/data":{{}}}},"Labels":{{"k":"v"}}}}}}"#
        );
        let document = Document::parse(full.as_bytes()).expect("full");
        assert_eq!(document.diff_ids, [digest]);
        assert_eq!(document.created.as_deref(), Some("2024-01-02T03:04:05Z"));
        let config = document.config;
        assert_eq!((config.entrypoint, config.cmd), (vec!["/e".to_owned()], vec!["c".to_owned()]));
        assert_eq!((config.env, config.user.as_str()), (vec!["A=b".to_owned()], "www:80"));
        assert_eq!((config.working_dir.as_str(), config.stop_signal.as_deref()), ("/w", Some("SIGQUIT")));
    }
}
