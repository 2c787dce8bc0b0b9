//! Names and passwords for registries: of a pod's `imagePullSecrets`, and of the files of podman and docker.

use std::path::Path;

use nodlet_kernel::own_file;
use nodlet_kube::base64;
use serde_json::Value;

use crate::error::VerbError;

/// Where podman and docker keep credentials of root, below the root. The first that exists is read.
const FILES: [&str; 3] =
    ["run/containers/0/auth.json", "root/.config/containers/auth.json", "root/.docker/config.json"];

/// The most bytes of such a file, as of a Secret.
const FILE_MAX: u64 = 1 << 20;

/// All known credentials, in the order in which they are tried.
#[derive(Debug, Default)]
pub(super) struct Credentials(Vec<(String, String)>);

impl Credentials {
    /// The credentials of Secrets, which are names with texts, then those of the first file.
    pub(super) fn read(root: &Path, secrets: &[(String, String)]) -> Result<Credentials, VerbError> {
        let mut all = Credentials::default();
        for (name, text) in secrets {
            let wrong = |error: &dyn std::fmt::Display| {
                VerbError::new(format!("the credentials in the Secret {name:?} of imagePullSecrets: {error}"))
            };
            let document = serde_json::from_str(text).map_err(|error| wrong(&error))?;
            all.add(&document).map_err(|error| wrong(&error))?;
        }
        for file in FILES {
            let path = root.join(file);
            let wrong =
                |error: &dyn std::fmt::Display| VerbError::new(format!("{}: {error}", path.display()));
            if std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() > FILE_MAX) {
                return Err(wrong(&"the file is too large"));
            }
            let text = own_file::if_exists(own_file::read_linked(&path)).map_err(|error| wrong(&error))?;
            let Some(text) = text else { continue };
            let document = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
            all.add(&document).map_err(|error| wrong(&error))?;
            break;
        }
        Ok(all)
    }

    /// Adds the entries of a document, longer keys first.
    fn add(&mut self, document: &Value) -> Result<(), String> {
        // The older form of docker has no `auths` around the entries.
        let Some(entries) = document.get("auths").unwrap_or(document).as_object() else {
            return Err("auths must be an object".to_owned());
        };
        let mut of_document = Vec::new();
        for (key, entry) in entries {
            let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default();
            let pair = match text("auth") {
                "" => format!("{}:{}", text("username"), text("password")),
                encoded => {
                    let decoded = base64::decode(encoded.as_bytes()).ok();
                    let pair = decoded.and_then(|decoded| String::from_utf8(decoded).ok());
                    pair.filter(|pair| pair.contains(':'))
                        .ok_or_else(|| format!("auths[{key:?}].auth must be USER:PASSWORD in base64"))?
                }
            };
            if pair != ":" {
                of_document.push((key.clone(), base64::encode(pair.as_bytes())));
            }
        }
        of_document.sort_by_key(|(key, _)| std::cmp::Reverse(key.len()));
        self.0.extend(of_document);
        Ok(())
    }

    /// The values for the header `Authorization: Basic` of this repository.
    pub(super) fn of(&self, repository: &str) -> Vec<&str> {
        let matching = self.0.iter().filter(|(key, _)| matches(key, repository));
        matching.map(|(_, pair)| pair.as_str()).collect()
    }
}

/// Whether the key of a credential stands for a repository, as the kubelet decides: a host, maybe with a scheme, a
/// port, and a path that is a prefix. `*` stands for any characters of one label of the host.
fn matches(key: &str, repository: &str) -> bool {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let key = match key.strip_suffix('/').unwrap_or(key) {
        "index.docker.io/v1" | "index.docker.io" | "docker.io" => "registry-1.docker.io",
        key => key,
    };
    let (host, path) = key.split_once('/').unwrap_or((key, ""));
    let (of_host, of_path) = repository.split_once('/').unwrap_or((repository, ""));
    let of_path_matches = path.is_empty()
        || of_path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let labels = |host: &str| host.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (labels_of_key, labels_of_host) = (labels(host), labels(of_host));
    of_path_matches
        && labels_of_key.len() == labels_of_host.len()
        && labels_of_key.iter().zip(&labels_of_host).all(|(pattern, label)| fits(pattern, label))
}

/// Whether a label fits a pattern, whose `*` stand for any characters.
fn fits(pattern: &str, label: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = label.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut last = None;
    for part in parts {
        if let Some(part) = last.replace(part) {
            let Some(at) = str::find(rest, part) else { return false };
            rest = &rest[at + part.len()..];
        }
    }
    last.map_or(rest.is_empty(), |last| rest.ends_with(last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_match_as_for_a_kubelet() {
        for (key, repository, expected) in [
            ("example.com", "example.com/a/b", true),
            ("https://example.com/", "example.com/a", true),
            ("example.com/a", "example.com/a/b", true),
            ("example.com/a", "example.com/ab", false),
            ("example.com:5000", "example.com:5000/a", true),
            ("example.com", "example.com:5000/a", false),
            ("*.example.com", "r.example.com/a", true),
            ("*.example.com", "a.b.example.com/a", false),
            ("r*y.example.com", "registry.example.com/a", true),
            ("r*y.example.com", "registries.example.com/a", false),
            ("*.io", "a.b.io/x", false),
            ("https://index.docker.io/v1/", "registry-1.docker.io/library/nginx", true),
        ] {
            assert_eq!(matches(key, repository), expected, "{key} {repository}");
        }
    }

    #[test]
    fn a_wrong_secret_is_named() {
        for (text, expected) in [
            ("none", "expected ident at line 1 column 2"),
            ("{}, {}", "trailing characters at line 1 column 3"),
            ("[]", "auths must be an object"),
        ] {
            let secrets = [("mine".to_owned(), text.to_owned())];
            let error = Credentials::read(Path::new("/does/not/exist"), &secrets).expect_err("wrong");
            let expected =
                format!("error: the credentials in the Secret \"mine\" of imagePullSecrets: {expected}");
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn longer_keys_come_first_and_both_forms_are_read() {
        let mut all = Credentials::default();
        let auth = base64::encode(b"me:secret");
        all.add(&json!({"auths": {"example.com": {"auth": auth}, "example.com/a": {"username": "u", "password": "p"}}}))
            .expect("valid");
        all.add(&json!({"example.com": {"username": "old", "password": ""}, "empty.example": {}}))
            .expect("valid");
        let expected = [b"u:p".as_slice(), b"me:secret", b"old:"].map(base64::encode);
        assert_eq!(all.of("example.com/a/b"), expected);
        assert_eq!(all.of("empty.example/a"), Vec::<&str>::new());
        let error = all.add(&json!({"auths": {"example.com": {"auth": "eA=="}}})).expect_err("no colon");
        assert_eq!(error, "auths[\"example.com\"].auth must be USER:PASSWORD in base64");
    }
}
