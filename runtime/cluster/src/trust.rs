//! ClusterTrustBundles in volumes of pods (the kubelet's `clustertrustbundle` manager). Pure.
//!
//! The certificates that a source of a projected volume selects become a ConfigMap of the board, to which the copy of the
//! pod refers instead. A selection that finds none becomes a ConfigMap with the kubelet's message, which the board shows
//! while the pod waits.

use nodlet_core::sorted::SortedSet;
use nodlet_kube::kinds::Kind;
use nodlet_wire::tls::pem;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The resource.
pub const BUNDLES: &str = "clustertrustbundles";

/// The prefix of the names of the ConfigMaps.
pub const PREFIX: &str = "nodlet-trust-";

/// The key of the message about missing certificates.
pub const MISSING: &str = "missing";

/// The key of the certificates.
const BUNDLE: &str = "bundle";

/// The longest selection, which is its source without the path.
const MAX_SELECTION: usize = 4096;

/// Makes a source of a projected volume refer to the ConfigMap. Returns the selection, for [`file()`] and [`path()`];
/// `None` for another source.
pub fn link(source: &mut Value) -> Option<String> {
    let mut selection = source.get("clusterTrustBundle")?.clone();
    let path = selection.as_object_mut()?.remove("path");
    let selection = selection.to_string();
    if selection.len() > MAX_SELECTION {
        return None;
    }
    let items = json!([{ "key": BUNDLE, "path": path }]);
    *source = json!({ "configMap": { "name": name(&selection), "items": items } });
    Some(selection)
}

fn name(selection: &str) -> String {
    let digest = Sha256::digest(selection.as_bytes());
    let digest: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{PREFIX}{digest}")
}

/// The name of the file with the ConfigMap.
pub fn file(namespace: &str, selection: &str) -> String {
    Kind::ConfigMap.row().file(namespace, &name(selection))
}

/// The path of the list of the selected bundles, in the newest version of the API.
pub fn path(selection: &str) -> String {
    let selection: Value = serde_json::from_str(selection).unwrap_or_default();
    let query = match selection["name"].as_str() {
        Some(name) => format!("fieldSelector=metadata.name%3D{}", encoded(name)),
        None => {
            let signer = encoded(selection["signerName"].as_str().unwrap_or_default());
            let labels = encoded(&labels(&selection["labelSelector"]));
            format!("fieldSelector=spec.signerName%3D{signer}&labelSelector={labels}")
        }
    };
    format!("/apis/certificates.k8s.io/v1/{BUNDLES}?{query}")
}

/// [`path()`] for a cluster without that version.
pub fn beta(path: &str) -> String {
    path.replacen("/v1/", "/v1beta1/", 1)
}

/// A selector of labels in the form of a query.
fn labels(selector: &Value) -> String {
    let mut all = Vec::new();
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        all.push(format!("{key}={}", value.as_str().unwrap_or_default()));
    }
    for one in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = one["key"].as_str().unwrap_or_default();
        let values: Vec<&str> =
            one["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let values = values.join(",");
        all.push(match one["operator"].as_str() {
            Some("In") => format!("{key} in ({values})"),
            Some("NotIn") => format!("{key} notin ({values})"),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    all.join(",")
}

/// The text in a query, with all characters escaped that have a meaning there.
fn encoded(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'-' | b'.' | b'_' => char::from(byte).to_string(),
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

/// The ConfigMap with the certificates of `bundles`, each once, or with the reason why there are none; `None` for
/// `bundles` if the cluster has no such resource.
pub fn config_map(namespace: &str, selection: &str, bundles: Option<&Value>) -> Value {
    let parsed: Value = serde_json::from_str(selection).unwrap_or_default();
    let mut found = bundles.and_then(Value::as_array).cloned().unwrap_or_default();
    // Without a selector of labels, a signer selects nothing, and with an empty one, all of its bundles.
    if parsed.get("name").is_none() && !parsed["labelSelector"].is_object() {
        found.clear();
    }
    let data = if found.is_empty() && parsed["optional"] != true {
        json!({ MISSING: missing(&parsed, bundles.is_some()) })
    } else {
        let mut certificates = SortedSet::new();
        for bundle in &found {
            let text = bundle["spec"]["trustBundle"].as_str().unwrap_or_default();
            for certificate in pem::certificates(text.as_bytes()).flatten() {
                certificates.insert(certificate);
            }
        }
        let certificates: Vec<Vec<u8>> = certificates.into_iter().collect();
        json!({ BUNDLE: pem::encode_all(&certificates) })
    };
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name(selection), "namespace": namespace }, "data": data,
    })
}

/// The message of a kubelet about a selection that finds nothing.
fn missing(selection: &Value, is_served: bool) -> String {
    match selection["name"].as_str() {
        _ if !is_served => {
            "ClusterTrustBundle projection is not supported: the cluster has no such resource".to_owned()
        }
        Some(name) => format!(
            "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {name:?} not found"
        ),
        None => "combination of signerName and labelSelector matched zero ClusterTrustBundles".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(certificates: &[u8]) -> Value {
        let text: String =
            certificates.iter().map(|byte| pem::encode(pem::CERTIFICATE, &[*byte; 3])).collect();
        json!({ "spec": { "trustBundle": format!("# a comment\n{text}") } })
    }

    fn linked(source: &Value) -> (Value, String) {
        let mut source = json!({ "clusterTrustBundle": source });
        let selection = link(&mut source).expect("it is one");
        (source, selection)
    }

    #[test]
    fn a_source_becomes_a_config_map_with_the_certificates_each_once() {
        let (source, selection) = linked(&json!({ "name": "example.com:ca:one", "path": "ca.crt" }));
        assert_eq!(link(&mut json!({ "secret": {} })), None);
        let map = config_map("shop", &selection, Some(&json!([bundle(&[2, 1, 2])])));
        assert_eq!(source["configMap"]["name"], map["metadata"]["name"]);
        assert_eq!(source["configMap"]["items"], json!([{ "key": "bundle", "path": "ca.crt" }]));
        let text = map["data"]["bundle"].as_str().expect("certificates");
        let certificates: Vec<_> = pem::certificates(text.as_bytes()).flatten().collect();
        assert_eq!(certificates, [vec![1; 3], vec![2; 3]]);
        assert!(file("shop", &selection).contains(map["metadata"]["name"].as_str().expect("a name")));
        let path = path(&selection);
        let expected = "/apis/certificates.k8s.io/v1/clustertrustbundles?fieldSelector=metadata.name%3Dexample.com%3Aca%3Aone";
        assert_eq!(path, expected);
        assert!(beta(&path).starts_with("/apis/certificates.k8s.io/v1beta1/clustertrustbundles?"));
    }

    #[test]
    fn a_signer_selects_by_labels_nothing_without_a_selector_and_everything_with_an_empty_one() {
        let selector = json!({
            "matchLabels": { "a": "b" },
            "matchExpressions": [
                { "key": "c", "operator": "In", "values": ["d", "e"] }, { "key": "f", "operator": "DoesNotExist" },
                { "key": "g", "operator": "NotIn", "values": ["h"] }, { "key": "i", "operator": "Exists" },
            ],
        });
        let source = json!({ "signerName": "example.com/ca", "labelSelector": selector, "path": "p" });
        assert_eq!(
            path(&linked(&source).1),
            "/apis/certificates.k8s.io/v1/clustertrustbundles?fieldSelector=spec.signerName%3Dexample.com%2Fca\
             &labelSelector=a%3Db%2Cc%20in%20%28d%2Ce%29%2C%21f%2Cg%20notin%20%28h%29%2Ci"
        );
        let all = json!([bundle(&[1]), bundle(&[1, 2])]);
        let data = |source: Value| config_map("shop", &linked(&source).1, Some(&all))["data"].clone();
        let none = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
        assert_eq!(data(json!({ "signerName": "example.com/ca", "path": "p" })), json!({ "missing": none }));
        let every = data(json!({ "signerName": "example.com/ca", "labelSelector": {}, "path": "p" }));
        assert_eq!(every["bundle"].as_str().map(|text| text.matches("BEGIN").count()), Some(2));
    }

    #[test]
    fn a_missing_bundle_has_the_kubelets_message_and_an_optional_one_is_an_empty_file() {
        let data = |optional: bool, found: Option<&Value>| {
            let (_, selection) = linked(&json!({ "name": "ca", "optional": optional, "path": "p" }));
            config_map("shop", &selection, found)["data"].clone()
        };
        assert_eq!(
            data(false, Some(&json!([]))),
            json!({ "missing": "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"ca\" not found" })
        );
        assert_eq!(data(true, Some(&json!([]))), json!({ "bundle": "" }));
        assert_eq!(data(true, None), json!({ "bundle": "" }));
        let why = data(false, None)["missing"].as_str().unwrap_or_default().to_owned();
        assert!(why.starts_with("ClusterTrustBundle projection is not supported"), "{why}");
    }
}
