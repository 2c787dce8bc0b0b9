//! The server of tokens of a registry, as Docker's and GitHub's registries have one: it signs what its client may do.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use data_encoding::{BASE64, BASE64URL_NOPAD};
use serde_json::{Value, json};

/// The repositories that clients without a password may pull from begin with this text.
const PUBLIC: &str = "public/";

/// A server of tokens on this machine. It lives as long as the process.
pub(crate) struct TokenServer {
    key: PathBuf,
    certificate: PathBuf,
    /// The value of `Authorization` that has all rights.
    authorization: String,
}

impl TokenServer {
    /// Starts a server with a key in `dir`. Returns the registry's configuration.
    pub(crate) fn start(dir: &Path, user: &str, password: &str) -> String {
        let (key, certificate) = (dir.join("tokens.key"), dir.join("tokens.crt"));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "9", "-subj", "/CN=tokens"])
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .output()
            .expect("openssl can be run: `cargo xtask setup` installs it");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let config = format!(
            "auth:\n  token: {{realm: 'http://127.0.0.1:{port}/token', service: test, issuer: tests, rootcertbundle: {}}}\n",
            certificate.display()
        );
        let authorization = format!("Basic {}", BASE64.encode(format!("{user}:{password}").as_bytes()));
        let server = TokenServer { key, certificate, authorization };
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                // A client that goes away gets no response.
                let _ = server.answer(client);
            }
        });
        config
    }

    fn answer(&self, client: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(client.try_clone()?).lines();
        let request = lines.next().unwrap_or(Ok(String::new()))?;
        let mut authorization = None;
        for line in lines {
            let line = line?;
            match line.split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                    authorization = Some(value.to_owned());
                }
                _ if line.is_empty() => break,
                _ => {}
            }
        }
        let (status, body) = match &authorization {
            Some(other) if *other != self.authorization => ("401 Unauthorized", json!({})),
            known => ("200 OK", json!({ "token": self.token(&request, known.is_some()) })),
        };
        let body = body.to_string();
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
        (&client).write_all(format!("{head}{body}").as_bytes())
    }

    /// A token for what a request such as `GET /token?scope=repository:team/demo:pull HTTP/1.1` is about.
    fn token(&self, request: &str, has_all_rights: bool) -> String {
        let target = request.split(' ').nth(1).unwrap_or_default();
        let query = target.split_once('?').map_or("", |(_, query)| query);
        let scopes = query.split('&').filter_map(|pair| pair.strip_prefix("scope="));
        let access = scopes.filter_map(|scope| {
            let scope = scope.replace("%3A", ":").replace("%2F", "/").replace("%2C", ",");
            let (kind, rest) = scope.split_once(':')?;
            let (name, actions) = rest.rsplit_once(':')?;
            let actions: Vec<&str> = if has_all_rights {
                actions.split(',').collect()
            } else if name.starts_with(PUBLIC) {
                vec!["pull"]
            } else {
                return None;
            };
            Some(json!({ "type": kind, "name": name, "actions": actions }))
        });
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is set").as_secs();
        let claims = json!({
            "iss": "tests", "sub": "", "aud": "test", "jti": "1",
            "iat": now, "nbf": now - 10, "exp": now + 300,
            "access": access.collect::<Vec<Value>>(),
        });
        let pem = fs::read_to_string(&self.certificate).expect("it was made");
        let certificate: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let head = json!({ "typ": "JWT", "alg": "RS256", "x5c": [certificate] });
        let [head, claims] = [head, claims].map(|part| BASE64URL_NOPAD.encode(part.to_string().as_bytes()));
        let text = format!("{head}.{claims}");
        let signature = BASE64URL_NOPAD.encode(&self.sign(text.as_bytes()));
        format!("{text}.{signature}")
    }

    fn sign(&self, text: &[u8]) -> Vec<u8> {
        let mut command = Command::new("openssl");
        command.args(["dgst", "-sha256", "-sign"]).arg(&self.key);
        let mut openssl = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("openssl runs");
        openssl.stdin.take().expect("piped").write_all(text).expect("openssl reads it");
        let output = openssl.wait_with_output().expect("openssl ends");
        assert!(output.status.success());
        output.stdout
    }
}
