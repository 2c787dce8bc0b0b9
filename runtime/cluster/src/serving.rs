//! The certificate of the kubelet's server, and what of it the board keeps. Pure.

use nodlet_base64 as base64;
use nodlet_wire::tls::ClientKey;
use nodlet_wire::tls::der::Certificate;
use serde_json::{Value, json};

use crate::credentials::Secret;
use crate::pem;

/// A certificate of the kubelet's server that the cluster has signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// The names and addresses for which it was requested.
    pub names: Vec<String>,
    /// The certificates (DER), the server's own first.
    pub certificates: Vec<Vec<u8>>,
    /// The key.
    pub key: Secret,
}

/// The names and addresses of a Node, for which its certificate is.
pub fn names(node: &Value) -> Vec<String> {
    let addresses = node["status"]["addresses"].as_array().into_iter().flatten();
    let mut names: Vec<String> =
        addresses.filter_map(|address| address["address"].as_str().map(str::to_owned)).collect();
    names.sort();
    names.dedup();
    names
}

impl Serving {
    /// The content of the file.
    pub fn to_json(&self) -> String {
        let object = json!({
            "names": self.names,
            "certificate": pem::encode_all(&self.certificates),
            "key": base64::encode(&self.key.0),
        });
        format!("{object:#}\n")
    }

    /// Reads the content of the file; `None` if it is of no use.
    pub fn from_json(text: &str) -> Option<Serving> {
        let object: Value = serde_json::from_str(text).ok()?;
        let names = object["names"].as_array()?.iter().filter_map(|name| name.as_str().map(str::to_owned));
        let certificates = pem::decode(pem::CERTIFICATE, object["certificate"].as_str()?)?;
        Certificate::parse(certificates.first()?)?;
        let key = base64::decode(object["key"].as_str()?.as_bytes()).ok()?;
        ClientKey::from_bytes(&key)?;
        Some(Serving { names: names.collect(), certificates, key: Secret(key) })
    }

    /// When the certificate begins and ends to be valid, in seconds since 1970.
    pub fn validity(&self) -> Option<(i64, i64)> {
        let certificate = Certificate::parse(self.certificates.first()?)?;
        Some((certificate.not_before, certificate.not_after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read_as_it_was_written() {
        let key = ClientKey::generate().expect("a key");
        let names = names(&json!({ "status": { "addresses": [
            { "type": "InternalIP", "address": "192.0.2.1" }, { "type": "Hostname", "address": "board" },
            { "type": "ExternalIP", "address": "192.0.2.1" },
        ] } }));
        assert_eq!(names, ["192.0.2.1", "board"]);
        let serving = Serving {
            certificates: vec![key.self_signed("board", &names)],
            names,
            key: Secret(key.to_bytes().to_vec()),
        };
        let text = serving.to_json();
        assert_eq!(Serving::from_json(&text), Some(serving.clone()));
        assert_eq!(serving.validity(), Some((0, 253_402_300_799)));
        for (field, other) in [("names", json!(1)), ("certificate", json!("")), ("key", json!("c2VjcmV0"))] {
            let mut wrong: Value = serde_json::from_str(&text).expect("JSON");
            wrong[field] = other;
            assert_eq!(Serving::from_json(&wrong.to_string()), None, "{field}");
        }
    }
}
