//! An image's configuration document, as OCI and Docker define it. Pure.

use std::fmt;

use serde::Deserialize;

use crate::platform::Platform;
use crate::reference::Digest;
use crate::signal::signal_of;

/// The defaults of an image, which a Pod can override, and its volumes. Other parts of the configuration (labels, ports,
/// history) are not kept in memory: a Pod has its own fields for them, or none, and they may have megabytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// The command, which a container's `command` replaces.
    pub entrypoint: Vec<String>,
    /// The arguments, which a container's `args` replaces.
    pub cmd: Vec<String>,
    /// Environment variables in the form `NAME=value`.
    pub env: Vec<String>,
    /// User and group, as names or numbers; empty for root. For `assemble::user`.
    pub user: String,
    /// The working directory of the process; empty for `/`.
    pub working_dir: String,
    /// The signal that requests the process to end, if not SIGTERM.
    pub stop_signal: Option<String>,
    /// Directories that stay writable in a read-only root (`VOLUME`), in the order of the document.
    pub volumes: Vec<String>,
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
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    diff_ids: Option<Vec<Digest>>,
}

/// The `config` object of the document. Any field may be missing or null.
#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default, expecting = "an object")]
struct RawConfig {
    entrypoint: Option<Texts>,
    cmd: Option<Texts>,
    env: Option<Texts>,
    user: Option<String>,
    working_dir: Option<String>,
    stop_signal: Option<String>,
    volumes: Option<Texts<true>>,
}

/// A list, or the names of an object whose values mean nothing, no longer than the arguments of a process can be,
/// however long the document is: an agent reads it at each start of a container.
#[derive(Default)]
struct Texts<const OBJECT: bool = false> {
    texts: Vec<String>,
    bytes: usize,
}

/// The most entries of one list, and the most bytes of one text, which is the kernel's limit
/// (`MAX_ARG_STRLEN`).
const TEXTS: usize = 4096;
const TEXT_BYTES: usize = 128 << 10;

impl<const OBJECT: bool> Texts<OBJECT> {
    fn push<E: serde::de::Error>(&mut self, text: String) -> Result<(), E> {
        self.bytes += text.len();
        if self.texts.len() == TEXTS || self.bytes > TEXT_BYTES {
            let what = if OBJECT { ("an object", "names") } else { ("a list", "texts") };
            let problem = format!("{} of more than {TEXTS} {}, or 128 KiB of them", what.0, what.1);
            return Err(E::custom(problem));
        }
        self.texts.push(text);
        Ok(())
    }
}

impl<'de, const OBJECT: bool> Deserialize<'de> for Texts<OBJECT> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if OBJECT {
            deserializer.deserialize_map(Texts::<OBJECT>::default())
        } else {
            deserializer.deserialize_seq(Texts::<OBJECT>::default())
        }
    }
}

impl<'de, const OBJECT: bool> serde::de::Visitor<'de> for Texts<OBJECT> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if OBJECT { "an object" } else { "a sequence" })
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(mut self, mut list: A) -> Result<Self, A::Error> {
        while let Some(text) = list.next_element()? {
            self.push(text)?;
        }
        Ok(self)
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(mut self, mut object: A) -> Result<Self, A::Error> {
        while let Some((name, _)) = object.next_entry::<_, serde::de::IgnoredAny>()? {
            self.push(name)?;
        }
        Ok(self)
    }
}

impl ImageConfig {
    /// Rejects values that no process can be started with, or that would silently change. The error names the
    /// field.
    pub(crate) fn check(&self) -> Result<(), String> {
        let lists = [
            ("Entrypoint", &self.entrypoint),
            ("Cmd", &self.cmd),
            ("Env", &self.env),
            ("Volumes", &self.volumes),
        ];
        let signal = self.stop_signal.as_deref().unwrap_or_default();
        let texts = [("User", &*self.user), ("WorkingDir", &*self.working_dir), ("StopSignal", signal)];
        let lists = lists.into_iter().flat_map(|(field, list)| list.iter().map(move |text| (field, &**text)));
        for (field, text) in lists.chain(texts) {
            if text.contains('\0') {
                return Err(format!(
                    "config.{field}: a text with a NUL byte, which cannot be passed to a process"
                ));
            }
        }
        for (field, text) in texts {
            if text.len() > TEXT_MAX {
                return Err(format!("config.{field}: {} bytes: at most {TEXT_MAX} are accepted", text.len()));
            }
        }
        if let Some(pair) = self.env.iter().find(|pair| pair.find('=').is_none_or(|at| at == 0)) {
            let pair: String = pair.chars().take(60).collect();
            return Err(format!("config.Env: {pair:?}: must be NAME=value"));
        }
        if !self.working_dir.is_empty() && !self.working_dir.starts_with('/') {
            return Err(format!("config.WorkingDir: {:?}: must be an absolute path", self.working_dir));
        }
        if !signal.is_empty() && signal_of(signal).is_none() {
            return Err(format!("config.StopSignal: {signal:?}: must be a signal, such as SIGTERM or 15"));
        }
        Ok(())
    }
}

/// The most bytes of a user, directory or signal: paths are no longer.
const TEXT_MAX: usize = 4096;

impl Document {
    /// Parses the document. The error names the field.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Document, serde_json::Error> {
        let raw: Raw = serde_json::from_slice(bytes)?;
        if let Some(kind) = raw.rootfs.kind.filter(|kind| kind != "layers") {
            let kind: String = kind.chars().take(60).collect();
            let problem = format!("rootfs.type: {kind:?}: must be \"layers\"");
            return Err(serde::de::Error::custom(problem));
        }
        let config = raw.config.unwrap_or_default();
        Ok(Document {
            platform: Platform::new(&raw.os, &raw.architecture, raw.variant.as_deref()),
            created: raw.created.filter(|created| !created.is_empty()),
            config: ImageConfig {
                entrypoint: config.entrypoint.unwrap_or_default().texts,
                cmd: config.cmd.unwrap_or_default().texts,
                env: config.env.unwrap_or_default().texts,
                user: config.user.unwrap_or_default(),
                working_dir: config.working_dir.unwrap_or_default(),
                stop_signal: config.stop_signal.filter(|signal| !signal.is_empty()),
                volumes: config.volumes.unwrap_or_default().texts,
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
        config.check().expect("nothing is wrong with it");
        assert_eq!((config.entrypoint, config.cmd), (vec!["/e".to_owned()], vec!["c".to_owned()]));
        assert_eq!((config.env, config.user.as_str()), (vec!["A=b".to_owned()], "www:80"));
        assert_eq!((config.working_dir.as_str(), config.stop_signal.as_deref()), ("/w", Some("SIGQUIT")));
        assert_eq!(config.volumes, ["/data"]);
    }
}
