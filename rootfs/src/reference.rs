//! Names of images, as a Pod or a user writes them, normalised as Kubernetes does; and content digests.
//!
//! This module handles only text and opens no file. `store` resolves names.

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// The longest repository name, including the domain.
const NAME_MAX: usize = 255;
/// The longest tag.
const TAG_MAX: usize = 128;
/// The fewest hexadecimal digits of a digest of an unknown algorithm.
const DIGEST_HEX_MIN: usize = 32;

/// A normalised image name: `nginx` is `docker.io/library/nginx:latest`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    domain: String,
    path: String,
    tag: Option<String>,
    digest: Option<String>,
}

/// Why a text is no image name, in the kubelet's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("couldn't parse image name \"{image}\": invalid reference format{detail}")]
pub struct ReferenceError {
    image: String,
    /// What is wrong, after a colon; empty if nothing more is known.
    detail: String,
}

impl Reference {
    /// Parses `[domain/]path[:tag][@digest]`. A name without tag and digest gets the tag `latest`.
    pub fn parse(image: &str) -> Result<Reference, ReferenceError> {
        let wrong = |detail: String| ReferenceError { image: image.to_owned(), detail };
        if Digest::from_hex(image).is_ok() {
            return Err(wrong(format!(": cannot specify 64-byte hexadecimal strings ({image})")));
        }
        let (domain, remainder) = split_domain(image);
        let (named, digest) = match remainder.split_once('@') {
            Some((named, digest)) => (named, Some(digest)),
            None => (remainder, None),
        };
        let (path, tag) = match named.split_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (named, None),
        };
        let path = if domain == "docker.io" && !path.contains('/') {
            format!("library/{path}")
        } else {
            path.to_owned()
        };
        if path.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(wrong(format!(": repository name ({path}) must be lowercase")));
        }
        let well_formed = is_domain(domain)
            && path.split('/').all(is_path_component)
            && tag.is_none_or(is_tag)
            && digest.is_none_or(is_digest);
        if !well_formed {
            return Err(wrong(String::new()));
        }
        if domain.len() + 1 + path.len() > NAME_MAX {
            let detail = format!(": repository name must not be more than {NAME_MAX} characters");
            return Err(wrong(detail));
        }
        let tag = match (tag, digest) {
            (None, None) => Some("latest"),
            (tag, _) => tag,
        };
        Ok(Reference {
            domain: domain.to_owned(),
            path,
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
        })
    }

    /// The registry; `docker.io` if none was given.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The repository within the registry.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The repository with its registry, without tag and digest.
    pub fn name(&self) -> String {
        format!("{}/{}", self.domain, self.path)
    }

    /// The tag; `None` if only a digest was given.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest of the manifest, if one was given. It takes precedence over a tag.
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    /// The image ID, if the reference was written as one: `sha256:<64 hex>` also parses as tag `<64 hex>` of
    /// the repository `sha256`.
    pub(crate) fn as_image_id(&self) -> Option<Digest> {
        match (self.domain.as_str(), self.path.as_str(), &self.tag, &self.digest) {
            ("docker.io", "library/sha256", Some(hex), None) => Digest::from_hex(hex).ok(),
            _ => None,
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.path)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl Serialize for Reference {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Reference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Reference, D::Error> {
        let text = String::deserialize(deserializer)?;
        Reference::parse(&text).map_err(serde::de::Error::custom)
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(image: &str) -> Result<Reference, ReferenceError> {
        Reference::parse(image)
    }
}

/// Splits off the domain. The first component is a domain only if it cannot be part of a repository name.
fn split_domain(image: &str) -> (&str, &str) {
    let (domain, remainder) = match image.split_once('/') {
        Some((first, rest))
            if first == "localhost"
                || first.contains(['.', ':'])
                || first.bytes().any(|b| b.is_ascii_uppercase()) =>
        {
            (first, rest)
        }
        _ => ("docker.io", image),
    };
    match domain {
        "index.docker.io" => ("docker.io", remainder),
        domain => (domain, remainder),
    }
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, "")) => (address, None),
            Some((address, port)) => match port.strip_prefix(':') {
                Some(port) => (address, Some(port)),
                None => return false,
            },
            None => return false,
        },
        None => match domain.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (domain, None),
        },
    };
    let host_is_well_formed = if domain.starts_with('[') {
        !host.is_empty() && host.bytes().all(|b| b.is_ascii_hexdigit() || b == b':')
    } else {
        host.split('.').all(|label| {
            !label.is_empty()
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
    };
    host_is_well_formed
        && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether the component matches `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`.
fn is_path_component(component: &str) -> bool {
    let mut separator = String::new();
    let mut seen = false;
    for c in component.chars() {
        match c {
            'a'..='z' | '0'..='9' => {
                let joins = matches!(separator.as_str(), "" | "." | "_" | "__")
                    || separator.bytes().all(|b| b == b'-');
                if !joins || (!seen && !separator.is_empty()) {
                    return false;
                }
                separator.clear();
                seen = true;
            }
            '.' | '_' | '-' => separator.push(c),
            _ => return false,
        }
    }
    seen && separator.is_empty()
}

fn is_tag(tag: &str) -> bool {
    tag.len() <= TAG_MAX
        && tag.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let algorithm_is_well_formed = algorithm.split(['-', '_', '+', '.']).all(|part| {
        part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.bytes().all(|b| b.is_ascii_alphanumeric())
    });
    let length_is_right = match algorithm {
        "sha256" => hex.len() == 64,
        "sha384" => hex.len() == 96,
        "sha512" => hex.len() == 128,
        _ => hex.len() >= DIGEST_HEX_MIN,
    };
    algorithm_is_well_formed && length_is_right && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

/// A SHA-256 digest, written `sha256:<64 hexadecimal digits>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// Why a text is not a digest that nodlet can verify.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// An algorithm other than SHA-256.
    #[error("check digest \"{digest}\": only sha256 is supported")]
    Unsupported {
        /// The digest as written.
        digest: String,
    },
    /// Not `sha256:` and 64 lower-case hexadecimal digits.
    #[error("read digest \"{digest}\": must be \"sha256:\" followed by 64 lower-case hexadecimal digits")]
    Malformed {
        /// The digest as written.
        digest: String,
    },
}

impl Digest {
    /// Parses `sha256:<64 hex>`.
    pub fn parse(text: &str) -> Result<Digest, DigestError> {
        match text.split_once(':') {
            Some(("sha256", hex)) => Digest::from_hex(hex),
            Some((algorithm, _)) if !algorithm.is_empty() => {
                Err(DigestError::Unsupported { digest: clipped(text) })
            }
            _ => Err(DigestError::Malformed { digest: clipped(text) }),
        }
    }

    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// The 64 hexadecimal digits without the algorithm.
    pub fn hex(&self) -> String {
        HEXLOWER.encode(&self.0)
    }

    pub(crate) fn from_hex(hex: &str) -> Result<Digest, DigestError> {
        let bytes = HEXLOWER.decode(hex.as_bytes()).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map(Digest).ok_or_else(|| DigestError::Malformed { digest: clipped(hex) })
    }

    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Digest {
        Digest(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Shortens a text for messages, so that a hostile one cannot fill the screen.
fn clipped(text: &str) -> String {
    match text.char_indices().nth(160) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Digest, DigestError> {
        Digest::parse(text)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        let text = String::deserialize(deserializer)?;
        Digest::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(image: &str, expected: &str) {
        assert_eq!(Reference::parse(image).map(|r| r.to_string()).as_deref(), Ok(expected));
    }

    #[track_caller]
    fn refused(image: &str, detail: &str) {
        let error = Reference::parse(image).expect_err(image).to_string();
        let expected = format!("couldn't parse image name \"{image}\": invalid reference format{detail}");
        assert_eq!(error, expected);
    }

    #[test]
    fn names_normalise_as_kubernetes_does() {
        let hex = "a".repeat(64);
        check("nginx", "docker.io/library/nginx:latest");
        check("nginx:1.25", "docker.io/library/nginx:1.25");
        check("bitnami/redis", "docker.io/bitnami/redis:latest");
        check("docker.io/nginx", "docker.io/library/nginx:latest");
        check("index.docker.io/nginx", "docker.io/library/nginx:latest");
        check("index.docker.io/a/b:c", "docker.io/a/b:c");
        check("localhost/x", "localhost/x:latest");
        check("localhost:5000/x:y", "localhost:5000/x:y");
        check("registry.k8s.io/pause:3.9", "registry.k8s.io/pause:3.9");
        check("Registry/app", "Registry/app:latest");
        check("[2001:db8::1]:5000/app", "[2001:db8::1]:5000/app:latest");
        check("a__b/c-----d/e.f", "docker.io/a__b/c-----d/e.f:latest");
        check("x:_A.b-C", "docker.io/library/x:_A.b-C");
        check(&format!("nginx@sha256:{hex}"), &format!("docker.io/library/nginx@sha256:{hex}"));
        check(&format!("nginx:1@sha256:{hex}"), &format!("docker.io/library/nginx:1@sha256:{hex}"));
    }

    #[test]
    fn an_invalid_image_name_is_rejected_with_the_error_of_the_kubelet() {
        for image in ["", ":", "/", "a/", "/a", "a//b", "a:", "a@", "a@sha256:123", " a", "a b", "a_", "_a"] {
            refused(image, "");
        }
        for image in ["a..b", "a___b", "a._b", "a/b:c:d", "-a.b/c", "host:port/c", "a:-x", "[::1/a", "ü"] {
            refused(image, "");
        }
        refused(&format!("a:{}", "t".repeat(129)), "");
        refused("Nginx", ": repository name (library/Nginx) must be lowercase");
        refused("quay.io/Team/app", ": repository name (Team/app) must be lowercase");
        let hex = "0123456789abcdef".repeat(4);
        refused(&hex, &format!(": cannot specify 64-byte hexadecimal strings ({hex})"));
        let long = "a".repeat(250);
        refused(&long, ": repository name must not be more than 255 characters");
    }

    #[test]
    fn digests_are_sha256_or_refused_by_name() {
        let text = format!("sha256:{}", "0f".repeat(32));
        assert_eq!(Digest::parse(&text).map(|d| d.to_string()).as_deref(), Ok(text.as_str()));
        let sha512 = format!("sha512:{}", "0f".repeat(64));
        assert!(matches!(Digest::parse(&sha512), Err(DigestError::Unsupported { .. })));
        for text in ["", "sha256:", "sha256:0", &format!("sha256:{}", "0F".repeat(32))] {
            assert!(matches!(Digest::parse(text), Err(DigestError::Malformed { .. })), "{text}");
        }
        assert_eq!(
            Digest::of(b"").to_string(),
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }
}
