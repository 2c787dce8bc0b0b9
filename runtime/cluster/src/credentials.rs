//! The credentials of a joined board, in one owner-only file, and the texts that `nodlet join` prints. Pure.

use nodlet_kube::base64;
use nodlet_wire::tls::der::Certificate;
use nodlet_wire::tls::{ClientKey, TlsError, Trust, pem};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::error::JoinError;

/// The port of an API server that is given without one.
const PORT: u16 = 6443;

/// Everything with which a board identifies the cluster, and itself to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The API server.
    pub server: Server,
    /// The name of the node.
    pub node: String,
    /// The certificates (DER) that the API server's certificate must come from.
    pub roots: Vec<Vec<u8>>,
    /// The client's certificates (DER), its own first.
    pub certificates: Vec<Vec<u8>>,
    /// The client's key.
    pub key: Secret,
}

/// Bytes that no message shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secret")
    }
}

/// Host and port of an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// A name, or an address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Server {
    /// Parses `HOST`, `HOST:PORT` or `[ADDRESS]:PORT`.
    ///
    /// # Errors
    /// The text is something else; the message says what is right.
    pub fn parse(text: &str) -> Result<Server, JoinError> {
        Server::with_default_port(text, PORT).ok_or_else(|| JoinError::Server(text.to_owned()))
    }

    /// Parses `HOST`, `HOST:PORT` or `[ADDRESS]:PORT`, with the port of a text without one.
    pub(crate) fn with_default_port(text: &str, port: u16) -> Option<Server> {
        let (host, given) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, given) = rest.split_once(']')?;
                (host, given.strip_prefix(':').or(given.is_empty().then_some(""))?)
            }
            None => text.split_once(':').unwrap_or((text, "")),
        };
        let port = if given.is_empty() { port } else { given.parse().ok()? };
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-:%_".contains(&byte);
        let is_server = !host.is_empty() && port != 0 && host.bytes().all(is_host);
        is_server.then(|| Server { host: host.to_owned(), port })
    }
}

impl std::fmt::Display for Server {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{}:{}", self.host, self.port)
        }
    }
}

/// Checks the form of a bootstrap token: six and sixteen letters and digits.
///
/// # Errors
/// The token has another form. The message does not contain it.
pub fn check_token(token: &str) -> Result<(), JoinError> {
    let is_part = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    match token.split_once('.') {
        Some((id, secret)) if is_part(id, 6) && is_part(secret, 16) => Ok(()),
        _ => Err(JoinError::Token),
    }
}

/// Parses a value of `--discovery-token-ca-cert-hash`.
///
/// # Errors
/// The text is not `sha256:` and 64 hexadecimal digits.
pub fn parse_hash(text: &str) -> Result<[u8; 32], JoinError> {
    let wrong = || JoinError::Hash(text.to_owned());
    let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64).ok_or_else(wrong)?;
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16).ok_or_else(wrong);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Ok(hash)
}

/// The certificates in the ConfigMap `cluster-info` whose public key has one of these hashes. The ConfigMap comes from a
/// server that is not verified yet, so that nothing else of it is used.
///
/// # Errors
/// There is no certificate with such a hash.
pub(crate) fn pinned_roots(cluster_info: &Value, hashes: &[[u8; 32]]) -> Result<Vec<Vec<u8>>, JoinError> {
    let config = cluster_info["data"]["kubeconfig"].as_str().unwrap_or_default();
    let mut roots = Vec::new();
    // YAML in any style, or JSON. Whatever is not a certificate with the hash is of no use to an attacker.
    for data in config.split("certificate-authority-data").skip(1) {
        let data = data.trim_start_matches(['"', '\'', ':', ' ']);
        let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
        let data: Vec<u8> = data.bytes().take_while(is_base64).collect();
        let text = base64::decode(&data).unwrap_or_default();
        roots.extend(pem::certificates(&text).flatten());
    }
    let count = roots.len();
    let is_pinned = |root: &Vec<u8>| {
        Certificate::parse(root)
            .is_some_and(|root| hashes.contains(&Sha256::digest(root.public_key_info).into()))
    };
    roots.retain(is_pinned);
    match (roots.is_empty(), count) {
        (false, _) => Ok(roots),
        (true, 0) => Err(JoinError::NoAuthority),
        (true, _) => Err(JoinError::OtherAuthority),
    }
}

impl Credentials {
    /// The content of the file.
    pub fn to_json(&self) -> String {
        let object = json!({
            "server": self.server.to_string(),
            "node": self.node,
            "certificateAuthority": pem::encode_all(&self.roots),
            "clientCertificate": pem::encode_all(&self.certificates),
            "clientKey": base64::encode(&self.key.0),
        });
        format!("{object:#}\n")
    }

    /// Reads the content of the file.
    ///
    /// # Errors
    /// A field is missing or wrong; the message names it, and shows no value.
    pub fn from_json(text: &str) -> Result<Credentials, JoinError> {
        // Where it is no JSON does not matter: no person writes this file.
        let object: Value = serde_json::from_str(text).map_err(|_| JoinError::NotJson)?;
        let field = |name: &'static str| object[name].as_str().ok_or(JoinError::Missing(name));
        let certificates = |name: &'static str| {
            let all = pem::certificates(field(name)?.as_bytes()).collect::<Result<Vec<_>, _>>().ok();
            all.filter(|all| !all.is_empty()).ok_or(JoinError::Wrong { field: name, what: "certificate" })
        };
        let key = base64::decode(field("clientKey")?.as_bytes()).ok();
        let key = key.filter(|key| ClientKey::from_bytes(key).is_some());
        Ok(Credentials {
            server: Server::parse(field("server")?)?,
            node: field("node")?.to_owned(),
            roots: certificates("certificateAuthority")?,
            certificates: certificates("clientCertificate")?,
            key: Secret(key.ok_or(JoinError::Wrong { field: "clientKey", what: "key" })?),
        })
    }

    /// For TLS: whom the client trusts, and who it is.
    ///
    /// # Errors
    /// A certificate or the key is of no use.
    pub fn trust(&self) -> Result<Trust, TlsError> {
        let key = ClientKey::from_bytes(&self.key.0);
        Trust::new(&self.roots, key.map(|key| (self.certificates.clone(), key)))
    }

    /// When the client certificate begins and ends to be valid, in seconds since 1970.
    pub fn validity(&self) -> Option<(i64, i64)> {
        let certificate = Certificate::parse(self.certificates.first()?)?;
        Some((certificate.not_before, certificate.not_after))
    }
}

/// Whether credentials can be used at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usability {
    /// The credentials can be used.
    Valid,
    /// The clock shows a time before this one, from which the certificate is valid, in seconds since 1970.
    NotYet(i64),
    /// The certificate was valid until then, in seconds since 1970.
    Expired(i64),
}

impl Usability {
    /// Whether a certificate with this [`Credentials::validity`] can be used at `now`. One whose times cannot be read is
    /// left to the server to judge.
    pub fn of(validity: Option<(i64, i64)>, now: i64) -> Usability {
        match validity {
            Some((from, _)) if now < from => Usability::NotYet(from),
            Some((_, to)) if now >= to => Usability::Expired(to),
            Some(_) | None => Usability::Valid,
        }
    }
}

/// The time from which the first of `roots` is valid, in seconds since 1970. A clock that shows an earlier time is wrong.
pub fn valid_from(roots: &[Vec<u8>]) -> Option<i64> {
    roots.iter().filter_map(|root| Certificate::parse(root)).map(|root| root.not_before).min()
}

/// When to replace a certificate: at a random point between 70 % and 90 % of its life (client-go's
/// `nextRotationDeadline`). `random` is any number.
pub fn rotation((from, to): (i64, i64), random: u16) -> i64 {
    let life = (to - from).max(0);
    from + life / 10 * 7 + life / 5 * i64::from(random) / i64::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_a_host_and_a_port() {
        for (text, expected) in [
            ("192.0.2.1:6443", "192.0.2.1:6443"),
            ("api.example", "api.example:6443"),
            ("[2001:db8::1]:443", "[2001:db8::1]:443"),
            ("[2001:db8::1]", "[2001:db8::1]:6443"),
        ] {
            assert_eq!(Server::parse(text).expect(text).to_string(), expected);
        }
        for wrong in ["", ":6443", "a:b", "a:0", "a:70000", "https://a:1", "[::1]x", "[::1", "a b", "a/b"] {
            assert!(Server::parse(wrong).is_err_and(|why| why.to_string().contains("HOST:PORT")), "{wrong}");
        }
    }

    #[test]
    fn tokens_and_hashes_have_kubeadms_forms() {
        check_token("abcdef.0123456789abcdef").expect("its form is right");
        for wrong in
            ["", "abcdef", "abcdef.0123456789abcde", "ABCDEF.0123456789abcdef", "abcdef.0123456789abcdef."]
        {
            let message = check_token(wrong).expect_err(wrong).to_string();
            assert!(wrong.is_empty() || !message.contains(&format!("{wrong:?}")), "{message}");
        }
        let hash = format!("sha256:{}", "0f".repeat(32));
        assert_eq!(parse_hash(&hash).expect("its form is right"), [0x0f; 32]);
        for wrong in ["", "sha256:", &hash[..70], &hash.replace('f', "g"), &hash.replace("sha256", "sha1")] {
            parse_hash(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn a_certificate_is_replaced_between_70_and_90_percent_of_its_life() {
        assert_eq!(rotation((1000, 2000), 0), 1700);
        assert_eq!(rotation((1000, 2000), u16::MAX), 1900);
        assert_eq!(rotation((2000, 1000), 9), 2000);
    }

    #[test]
    fn a_certificate_is_of_use_from_its_first_to_its_last_second() {
        let of = |now| Usability::of(Some((1000, 2000)), now);
        assert_eq!(of(999), Usability::NotYet(1000));
        assert_eq!((of(1000), of(1999)), (Usability::Valid, Usability::Valid));
        assert_eq!(of(2000), Usability::Expired(2000));
        assert_eq!(Usability::of(None, 0), Usability::Valid);
        assert_eq!(valid_from(&[vec![1], vec![]]), None);
    }

    #[test]
    fn no_root_without_the_hash_is_trusted() {
        let info = |data: &str| json!({ "data": { "kubeconfig": format!("clusters:\n- cluster:\n    certificate-authority-data: {data}\n") } });
        let other = base64::encode(pem::encode(pem::CERTIFICATE, &[0x30, 0]).as_bytes());
        for data in [other.clone(), format!("\"{other}\""), format!("{other}, server: x}}}}")] {
            let why = pinned_roots(&info(&data), &[[0; 32]]).expect_err(&data);
            assert!(matches!(why, JoinError::OtherAuthority), "{data}: {why}");
        }
        let why = pinned_roots(&info("*"), &[[0; 32]]).expect_err("no base64");
        assert!(matches!(why, JoinError::NoAuthority), "{why}");
        pinned_roots(&json!({}), &[[0; 32]]).expect_err("nothing");
    }

    #[test]
    fn the_file_is_read_as_it_was_written_and_its_errors_show_no_secret() {
        let key = ClientKey::generate().expect("a key");
        let credentials = Credentials {
            server: Server { host: "192.0.2.1".into(), port: 6443 },
            node: "board".into(),
            roots: vec![vec![1, 2], vec![3]],
            certificates: vec![vec![4; 200]],
            key: Secret(key.to_bytes().to_vec()),
        };
        let text = credentials.to_json();
        assert_eq!(Credentials::from_json(&text).expect("it is as it was written"), credentials);
        assert!(!format!("{credentials:?}").contains(&format!("{:?}", credentials.key.0)));
        let object: Value = serde_json::from_str(&text).expect("JSON");
        for name in ["server", "node", "certificateAuthority", "clientCertificate", "clientKey"] {
            let mut without = object.clone();
            without[name] = Value::Null;
            let message = Credentials::from_json(&without.to_string()).expect_err(name).to_string();
            assert!(message.contains(name), "{message}");
        }
        let mut wrong = object;
        wrong["clientKey"] = "c2VjcmV0".into();
        let why = Credentials::from_json(&wrong.to_string()).expect_err("no key");
        assert_eq!(why.to_string(), "the field clientKey is not a key");
    }
}
