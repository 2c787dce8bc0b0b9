//! Kubeconfigs: that with which a board enrols by itself (the kubelet's `--bootstrap-kubeconfig`), and that with which it
//! reads Services and EndpointSlices (kube-proxy's `--kubeconfig`). Each has the API server, the certificates of its CA, and
//! the credentials of a user. Pure.

use nodlet_kube::base64;
use nodlet_wire::tls::{ClientKey, TlsError, Trust, pem};
use serde_json::Value;

use crate::credentials::Server;
use crate::error::JoinError;

/// The port of an `https` URL without one.
const HTTPS: u16 = 443;

/// The parts of a kubeconfig with which a board enrols.
pub struct Bootstrap {
    /// The API server.
    pub server: Server,
    /// The certificates (DER) that the API server's certificate must come from.
    pub roots: Vec<Vec<u8>>,
    /// The bearer token.
    pub token: String,
}

impl Bootstrap {
    /// Reads the current context of a kubeconfig.
    ///
    /// # Errors
    /// A field is missing, wrong or not supported; the message names it, and does not contain the token.
    pub fn new(config: &Value) -> Result<Bootstrap, JoinError> {
        let (server, roots, user) = current(config, &["token", "extensions"])?;
        Ok(Bootstrap { server, roots, token: token(user)?.to_owned() })
    }
}

/// A user of a cluster besides the node itself.
pub struct Identity {
    /// The API server.
    pub server: Server,
    /// The certificates (DER) that the API server's certificate must come from.
    roots: Vec<Vec<u8>>,
    /// The bearer token, unless there is a certificate alone.
    pub token: Option<String>,
    /// The client's certificates (DER), its own first, and its key.
    certificate: Option<(Vec<Vec<u8>>, ClientKey)>,
}

impl Identity {
    /// Reads the current context of a kubeconfig, whose user has a token, or a client certificate with a key of P-256.
    ///
    /// # Errors
    /// As those of [`Bootstrap::new`]; the message contains no secret.
    pub fn new(config: &Value) -> Result<Identity, JoinError> {
        const FIELDS: [&str; 4] = ["token", "client-certificate-data", "client-key-data", "extensions"];
        let (server, roots, user) = current(config, &FIELDS)?;
        let mut certificate = None;
        if !user["client-certificate-data"].is_null() {
            let certificates = certificates(user, "client-certificate-data").ok_or(JoinError::Wrong {
                field: "user.client-certificate-data",
                what: "certificate in base64",
            })?;
            let key = base64::decode(text(user, "client-key-data")?.trim().as_bytes()).ok();
            let what = "private key of the curve P-256 in base64";
            let key = key.and_then(|key| ClientKey::from_pem(&key));
            certificate =
                Some((certificates, key.ok_or(JoinError::Wrong { field: "user.client-key-data", what })?));
        }
        let token = match (&user["token"], &certificate) {
            (Value::Null, Some(_)) => None,
            (_, _) => Some(token(user)?.to_owned()),
        };
        Ok(Identity { server, roots, token, certificate })
    }

    /// For TLS: whom the client trusts, and who it is.
    ///
    /// # Errors
    /// A certificate is of no use.
    pub fn trust(self) -> Result<Trust, TlsError> {
        Trust::new(&self.roots, self.certificate)
    }
}

/// The API server, the certificates of its CA and the user of the current context, who has no others than these `fields`.
fn current<'a>(config: &'a Value, fields: &[&str]) -> Result<(Server, Vec<Vec<u8>>, &'a Value), JoinError> {
    const TOP: [&str; 8] = [
        "apiVersion",
        "kind",
        "clusters",
        "users",
        "contexts",
        "current-context",
        "preferences",
        "extensions",
    ];
    known(config, "", &TOP)?;
    if config["kind"] != "Config" || config["apiVersion"] != "v1" {
        return Err(JoinError::NotKubeconfig);
    }
    let context = entry(config, "contexts", "context", text(config, "current-context")?)?;
    known(context, "context.", &["cluster", "user", "namespace", "extensions"])?;
    let cluster = entry(config, "clusters", "cluster", text(context, "cluster")?)?;
    known(cluster, "cluster.", &["server", "certificate-authority-data", "extensions"])?;
    let user = entry(config, "users", "user", text(context, "user")?)?;
    known(user, "user.", fields)?;

    let url = text(cluster, "server")?;
    let server = url.strip_prefix("https://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    let server = server.and_then(|server| Server::with_default_port(server, HTTPS));
    let server = server.ok_or_else(|| JoinError::Url(url.to_owned()))?;
    text(cluster, "certificate-authority-data")?;
    let roots = certificates(cluster, "certificate-authority-data");
    let (field, what) = ("cluster.certificate-authority-data", "certificate in base64");
    let roots = roots.ok_or(JoinError::Wrong { field, what })?;
    Ok((server, roots, user))
}

fn token(user: &Value) -> Result<&str, JoinError> {
    let token = text(user, "token")?.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(JoinError::Wrong { field: "user.token", what: "token" });
    }
    Ok(token)
}

/// The certificates in a field: PEM in base64.
fn certificates(object: &Value, field: &str) -> Option<Vec<Vec<u8>>> {
    let data = base64::decode(object[field].as_str()?.trim().as_bytes()).ok()?;
    let all = pem::certificates(&data).collect::<Result<Vec<_>, _>>().ok()?;
    Some(all).filter(|all| !all.is_empty())
}

fn text<'a>(object: &'a Value, field: &'static str) -> Result<&'a str, JoinError> {
    object[field].as_str().ok_or(JoinError::Missing(field))
}

/// The value of `field` in the entry of `list` with this name.
fn entry<'a>(config: &'a Value, list: &'static str, field: &str, name: &str) -> Result<&'a Value, JoinError> {
    let found = config[list].as_array().into_iter().flatten().find(|entry| entry["name"] == name);
    let found = found.ok_or_else(|| JoinError::NoEntry { list, name: name.to_owned() })?;
    known(found, &format!("{list}."), &["name", field])?;
    Ok(&found[field])
}

/// Rejects fields without effect here: a kubeconfig that verifies or authenticates in another way must not seem to.
fn known(object: &Value, at: &str, fields: &[&str]) -> Result<(), JoinError> {
    let mut names = object.as_object().into_iter().flatten().map(|(name, _)| &**name);
    match names.find(|name| !fields.contains(name)) {
        Some(name) => {
            Err(JoinError::NotSupported { field: format!("{at}{name:?}"), possible: fields.join(", ") })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "boot",
            "clusters": [
                { "name": "other", "cluster": {} },
                { "name": "c", "cluster": {
                    "server": "https://192.0.2.1:6443",
                    "certificate-authority-data": base64::encode(pem::encode(pem::CERTIFICATE, &[1, 2]).as_bytes()),
                } },
            ],
            "contexts": [{ "name": "boot", "context": { "cluster": "c", "user": "u" } }],
            "users": [{ "name": "u", "user": { "token": "abcdef.0123456789abcdef" } }],
        })
    }

    #[test]
    fn the_current_context_names_server_ca_and_token() {
        let bootstrap = Bootstrap::new(&config()).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(bootstrap.server.to_string(), "192.0.2.1:6443");
        assert_eq!((bootstrap.roots, &*bootstrap.token), (vec![vec![1, 2]], "abcdef.0123456789abcdef"));
        for (url, expected) in
            [("https://api.example/", "api.example:443"), ("https://[2001:db8::1]", "[2001:db8::1]:443")]
        {
            let mut config = config();
            config["clusters"][1]["cluster"]["server"] = url.into();
            let bootstrap = Bootstrap::new(&config).unwrap_or_else(|why| panic!("{why}"));
            assert_eq!(bootstrap.server.to_string(), expected);
        }
    }

    #[test]
    fn an_identity_has_a_token_or_a_certificate_with_its_key() {
        let identity = |user: Value| {
            let mut config = config();
            config["users"][0]["user"] = user;
            Identity::new(&config)
                .map(|identity| (identity.token, identity.certificate.map(|(chain, _)| chain)))
        };
        let encoded = |label: &str, der: &[u8]| base64::encode(pem::encode(label, der).as_bytes());
        let certificate = encoded(pem::CERTIFICATE, &[7]);
        let key = ClientKey::generate().expect("a key").to_bytes();
        // ECPrivateKey of RFC 5915, as `BEGIN EC PRIVATE KEY` has it.
        let sec1 = [&[0x30, 37, 2, 1, 1, 4, 32], &key[..]].concat();
        let key = encoded("EC PRIVATE KEY", &sec1);
        assert_eq!(
            identity(json!({ "token": "abc" })).unwrap_or_else(|why| panic!("{why}")),
            (Some("abc".to_owned()), None)
        );
        let both = json!({ "client-certificate-data": certificate, "client-key-data": key });
        assert_eq!(identity(both).unwrap_or_else(|why| panic!("{why}")), (None, Some(vec![vec![7]])));
        for (user, expected) in [
            (json!({}), "the field token is missing"),
            (json!({ "token": "a b" }), "user.token is not a token"),
            (json!({ "tokenFile": "/x" }), "tokenFile"),
            (json!({ "client-certificate-data": certificate }), "client-key-data is missing"),
            (
                json!({ "client-certificate-data": "hush", "client-key-data": key }),
                "client-certificate-data is not",
            ),
            (
                json!({ "client-certificate-data": certificate, "client-key-data": "hush" }),
                "of the curve P-256",
            ),
        ] {
            let why = identity(user).expect_err(expected).to_string();
            assert!(why.contains(expected) && !why.contains("hush"), "{why}");
        }
    }

    #[test]
    fn a_field_that_is_missing_wrong_or_without_effect_is_named() {
        for (pointer, value, expected) in [
            ("/kind", json!("Pod"), "kind: Config"),
            ("/current-context", json!("x"), "contexts has no entry \"x\""),
            ("/current-context", Value::Null, "current-context is missing"),
            ("/contexts/0/context/user", json!("x"), "users has no entry \"x\""),
            ("/clusters/1/cluster/server", json!("http://a:1"), "cluster.server"),
            ("/clusters/1/cluster/server", json!("https://a/b"), "cluster.server"),
            (
                "/clusters/1/cluster/certificate-authority-data",
                json!("KioqKg=="),
                "certificate-authority-data is not a certificate",
            ),
            ("/clusters/1/cluster", json!({ "insecure-skip-tls-verify": true }), "insecure-skip-tls-verify"),
            ("/users/0/user", json!({ "client-key-data": "" }), "client-key-data"),
            ("/users/0/user/token", json!("hush\r\nX: y"), "user.token is not a token"),
            ("/users/0/user/token", json!(""), "user.token is not a token"),
            ("/users/0", json!({ "name": "u", "exec": {} }), "exec"),
        ] {
            let mut config = config();
            *config.pointer_mut(pointer).expect(pointer) = value;
            let why = Bootstrap::new(&config).err().expect(pointer).to_string();
            assert!(why.contains(expected) && !why.contains("hush"), "{pointer}: {why}");
        }
        assert!(Bootstrap::new(&json!([])).is_err());
    }
}
