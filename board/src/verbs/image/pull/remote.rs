//! A registry: requests with authentication, redirects, limits and resumed downloads. The registry is not trusted: it
//! can neither make this process wait forever, nor fill its memory, nor get credentials for another host.

mod challenge;
mod connect;
mod error;
mod proxy;

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use nodlet_rootfs::Digest;
use nodlet_wire::http::{Connection, Head, HttpError, Request};
use nodlet_wire::timeout::within;

use super::credentials::Credentials;
use super::registries::Place;
use challenge::Challenge;
use connect::connect;
pub(super) use error::RemoteError;
use error::message;

/// The longest time of each step to a connection: TCP, the proxy, TLS.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// The longest time without a byte.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// The least bytes of a blob that arrive while this process waits for them this long: a server may not keep other pulls
/// waiting byte by byte.
const PACE: (u64, Duration) = (64 * 1024, Duration::from_secs(60));
/// The number of attempts without progress.
const ATTEMPTS: u32 = 5;
/// Progress of an attempt, in bytes.
const PROGRESS: u64 = 64 * 1024;
/// The largest document: manifest, configuration, token.
const DOCUMENT_MAX: usize = 4 << 20;
/// The most bytes that are read of an error response.
const ERROR_MAX: usize = 8 * 1024;
/// The most redirects of one request.
const REDIRECTS_MAX: usize = 5;

/// A server: whether it speaks plain HTTP, and its host with its port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    is_plain: bool,
    host: String,
}

/// The repository of a registry.
pub(super) struct Registry<'a> {
    root: &'a Path,
    place: &'a Place,
    /// Credentials that are tried one after another; the last attempt has none.
    candidates: Vec<Option<&'a str>>,
    candidate: usize,
    authorization: Option<String>,
    /// Whether the registry has accepted the authorization: then a rejection means that the token is too old.
    was_accepted: bool,
    connection: Option<(Origin, Connection)>,
}

impl<'a> Registry<'a> {
    pub(super) fn new(root: &'a Path, place: &'a Place, credentials: &'a Credentials) -> Self {
        let mut candidates: Vec<Option<&str>> =
            credentials.of(&place.repository()).into_iter().map(Some).collect();
        candidates.push(None);
        Registry {
            root,
            place,
            candidates,
            candidate: 0,
            authorization: None,
            was_accepted: false,
            connection: None,
        }
    }

    /// Downloads a manifest by tag or digest, and returns it with its digest.
    pub(super) async fn manifest(&mut self, name: &str) -> Result<(Digest, Vec<u8>), RemoteError> {
        let target = format!("/v2/{}/manifests/{name}", self.place.path);
        let bytes = self.document(&target).await?;
        let digest = Digest::of(&bytes);
        match Digest::parse(name) {
            Ok(expected) if expected != digest => Err(RemoteError::Digest { expected, actual: digest }),
            Ok(_) | Err(_) => Ok((digest, bytes)),
        }
    }

    /// Downloads a small blob.
    pub(super) async fn small_blob(&mut self, digest: &Digest) -> Result<Vec<u8>, RemoteError> {
        let bytes = self.document(&format!("/v2/{}/blobs/{digest}", self.place.path)).await?;
        match Digest::of(&bytes) {
            actual if actual != *digest => Err(RemoteError::Digest { expected: *digest, actual }),
            _ => Ok(bytes),
        }
    }

    /// Downloads a blob of `size` bytes, piece by piece. A broken connection is resumed where it broke.
    pub(super) async fn blob(
        &mut self,
        digest: &Digest,
        size: u64,
        write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), RemoteError> {
        let target = format!("/v2/{}/blobs/{digest}", self.place.path);
        let (mut done, mut failures) = (0, 0);
        loop {
            let before = done;
            let Err(error) = self.rest_of_blob(&target, size, &mut done, write).await else { return Ok(()) };
            failures = if done - before >= PROGRESS { 1 } else { failures + 1 };
            self.wait_after(error, failures).await?;
        }
    }

    async fn rest_of_blob(
        &mut self,
        target: &str,
        size: u64,
        done: &mut u64,
        write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), RemoteError> {
        if *done == size {
            return Ok(());
        }
        let range = format!("bytes={done}-");
        let headers: &[(&str, &str)] = if *done == 0 { &[] } else { &[("Range", &range)] };
        let (head, mut connection) = self.get(target, headers).await?;
        // A registry without ranges sends the blob from its beginning.
        let mut skip = match head.status {
            206 => {
                let start = head.header("Content-Range").and_then(|range| range.strip_prefix("bytes "));
                let start = start.and_then(|range| range.split_once('-')?.0.parse::<u64>().ok());
                if start != Some(*done) {
                    return Err(RemoteError::Broken("the registry resumes at another byte"));
                }
                0
            }
            _ => *done,
        };
        let mut pace = Pace::default();
        loop {
            let asked = Instant::now();
            let Some(piece) = in_time(IDLE_MAX, connection.1.piece()).await? else { break };
            pace.add(piece.len() as u64, asked.elapsed())?;
            let skipped = skip.min(piece.len() as u64);
            skip -= skipped;
            let piece = &piece[skipped as usize..];
            if piece.len() as u64 > size - *done {
                return Err(RemoteError::Broken("a blob is longer than its manifest says"));
            }
            write(piece).map_err(RemoteError::Write)?;
            *done += piece.len() as u64;
        }
        if *done < size {
            return Err(RemoteError::Http(HttpError::Ended));
        }
        self.connection = Some(connection);
        Ok(())
    }

    async fn document(&mut self, target: &str) -> Result<Vec<u8>, RemoteError> {
        let mut failures = 0;
        loop {
            let error = match self.document_once(target).await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => error,
            };
            failures += 1;
            self.wait_after(error, failures).await?;
        }
    }

    async fn document_once(&mut self, target: &str) -> Result<Vec<u8>, RemoteError> {
        let (_, mut connection) = self.get(target, &[("Accept", ACCEPT)]).await?;
        let bytes = in_time(IDLE_MAX, connection.1.body(DOCUMENT_MAX)).await?;
        self.connection = Some(connection);
        Ok(bytes)
    }

    /// Waits before the next attempt; fails if none would help.
    async fn wait_after(&mut self, error: RemoteError, failures: u32) -> Result<(), RemoteError> {
        self.connection = None;
        if failures >= ATTEMPTS || !error.is_transient() {
            return Err(error);
        }
        smol::Timer::after(Duration::from_secs(1 << (failures - 1))).await;
        Ok(())
    }

    /// Sends a GET request with authorization, and follows redirects.
    async fn get(
        &mut self,
        target: &str,
        headers: &[(&str, &str)],
    ) -> Result<(Head, (Origin, Connection)), RemoteError> {
        let home = Origin { is_plain: self.place.is_plain, host: self.place.host.clone() };
        loop {
            let (mut origin, mut target) = (home.clone(), target.to_owned());
            let mut redirects = 0;
            let (head, mut connection) = loop {
                let authorization = self.authorization.clone().filter(|_| origin == home);
                let mut all = headers.to_vec();
                all.extend(authorization.as_deref().map(|value| ("Authorization", value)));
                let (head, connection) = self.send(&origin, &target, &all).await?;
                if !matches!(head.status, 301 | 302 | 303 | 307 | 308) {
                    break (head, connection);
                }
                redirects += 1;
                if redirects > REDIRECTS_MAX {
                    return Err(RemoteError::Broken("the registry redirects too often"));
                }
                let location = head.header("Location").unwrap_or_default();
                (origin, target) = self.url(location, &origin)?;
            };
            match head.status {
                200..=299 => {
                    self.was_accepted = true;
                    return Ok((head, connection));
                }
                // Only the registry itself may name who gets its credentials.
                401 if origin != home => {
                    return Err(RemoteError::Broken(
                        "the registry redirects to another server, which demands authentication",
                    ));
                }
                401 => {
                    let challenge = head.header("WWW-Authenticate").unwrap_or_default().to_owned();
                    self.authenticate(&challenge).await?;
                }
                status => {
                    let body = in_time(IDLE_MAX, connection.1.body(ERROR_MAX)).await.unwrap_or_default();
                    return Err(RemoteError::Status(status, message(&body)));
                }
            }
        }
    }

    async fn send(
        &mut self,
        origin: &Origin,
        target: &str,
        headers: &[(&str, &str)],
    ) -> Result<(Head, (Origin, Connection)), RemoteError> {
        let request = Request { method: "GET", target, host: &origin.host, headers, body: &[] };
        if let Some((of, mut connection)) = self.connection.take()
            && of == *origin
            && connection.is_reusable()
            // The server may have closed it meanwhile.
            && let Ok(head) = in_time(IDLE_MAX, connection.send(&request)).await
        {
            return Ok((head, (of, connection)));
        }
        let mut connection = connect(self.root, origin).await?;
        let head = in_time(IDLE_MAX, connection.send(&request)).await?;
        Ok((head, (origin.clone(), connection)))
    }

    /// The server and the target of a URL, which may be relative to `origin`.
    fn url(&self, url: &str, origin: &Origin) -> Result<(Origin, String), RemoteError> {
        let wrong = || RemoteError::Broken("the registry refers to an invalid URL");
        if !url.bytes().all(|byte| (0x21..0x7f).contains(&byte)) {
            return Err(wrong());
        }
        if url.starts_with('/') && !url.starts_with("//") {
            return Ok((origin.clone(), url.to_owned()));
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
        let is_plain = match scheme {
            "https" => false,
            "http" if self.place.is_plain => true,
            "http" => return Err(RemoteError::Broken("the registry refers to a URL without TLS")),
            _ => return Err(wrong()),
        };
        let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (host, target) = rest.split_at(at);
        if host.is_empty() || host.contains('@') {
            return Err(wrong());
        }
        let target = target.split('#').next().unwrap_or_default();
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        Ok((Origin { is_plain, host: host.to_owned() }, target))
    }

    /// Gets the next authorization that may be accepted.
    async fn authenticate(&mut self, challenge: &str) -> Result<(), RemoteError> {
        if self.authorization.is_some() && !self.was_accepted {
            self.candidate += 1;
        }
        self.was_accepted = false;
        while let Some(candidate) = self.candidates.get(self.candidate).copied() {
            self.authorization = match (Challenge::parse(challenge), candidate) {
                (Some(Challenge::Bearer { realm, query }), candidate) => {
                    self.token(&realm, &query, candidate).await?.map(|token| format!("Bearer {token}"))
                }
                (Some(Challenge::Basic), Some(pair)) => Some(format!("Basic {pair}")),
                (Some(Challenge::Basic), None) => None,
                (None, _) => {
                    return Err(RemoteError::Broken("the registry demands an unknown authentication"));
                }
            };
            if self.authorization.is_some() {
                return Ok(());
            }
            self.candidate += 1;
        }
        Err(RemoteError::Unauthorized)
    }

    /// Requests a token; `None` if the credentials are not accepted.
    async fn token(
        &mut self,
        realm: &str,
        query: &str,
        candidate: Option<&str>,
    ) -> Result<Option<String>, RemoteError> {
        let home = Origin { is_plain: self.place.is_plain, host: self.place.host.clone() };
        let (origin, target) = self.url(realm, &home)?;
        let target = format!("{target}{}{query}", if target.contains('?') { '&' } else { '?' });
        let basic = candidate.map(|pair| format!("Basic {pair}"));
        let headers: Vec<(&str, &str)> =
            basic.iter().map(|value| ("Authorization", value.as_str())).collect();
        let (head, mut connection) = self.send(&origin, &target, &headers).await?;
        let body = in_time(IDLE_MAX, connection.1.body(DOCUMENT_MAX)).await?;
        match head.status {
            200 => {}
            401 | 403 => return Ok(None),
            status => return Err(RemoteError::Status(status, message(&body))),
        }
        let parsed = nodlet_kube::manifest::json::value(&body);
        let (document, _) = parsed.map_err(|_| RemoteError::Broken("the token is not in JSON"))?;
        let token = ["token", "access_token"].iter().find_map(|key| document.get(*key)?.as_str());
        let token =
            token.filter(|token| !token.is_empty() && token.bytes().all(|byte| (0x21..0x7f).contains(&byte)));
        token.map(|token| Some(token.to_owned())).ok_or(RemoteError::Broken("the response has no token"))
    }
}

/// How fast a blob arrives. The time in which nobody reads what arrived is not the registry's.
#[derive(Default)]
struct Pace {
    bytes: u64,
    waited: Duration,
}

impl Pace {
    /// Records bytes, and how long this process waited for them.
    fn add(&mut self, bytes: u64, waited: Duration) -> Result<(), RemoteError> {
        self.bytes += bytes;
        self.waited += waited;
        if self.waited >= PACE.1 {
            if self.bytes < PACE.0 {
                return Err(RemoteError::Slow);
            }
            *self = Pace::default();
        }
        Ok(())
    }
}

/// The kinds of manifests that are understood.
const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

async fn in_time<T, E>(limit: Duration, work: impl Future<Output = Result<T, E>>) -> Result<T, RemoteError>
where
    RemoteError: From<E>,
{
    match within(limit, work).await {
        Some(done) => Ok(done?),
        None => Err(RemoteError::Silent),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_trickle_of_bytes_is_no_download() {
        let is_slow = |bytes: u64, seconds: u64, pieces: usize| {
            let mut pace = Pace::default();
            (0..pieces).any(|_| pace.add(bytes, Duration::from_secs(seconds)).is_err())
        };
        assert!(is_slow(1, 5, 12));
        assert!(!is_slow(1, 5, 11), "the end of a blob may be small");
        assert!(is_slow(5_000, 5, 12));
        assert!(!is_slow(6_000, 5, 1_000));
        let mut pace = Pace::default();
        pace.add(1 << 20, Duration::from_secs(60)).expect("fast");
        assert!((0..12).any(|_| pace.add(1, Duration::from_secs(5)).is_err()), "each minute counts");
    }

    #[test]
    fn urls_lead_to_no_weaker_protocol() {
        let (plain, tls) = (true, false);
        for (is_plain, url, expected) in [
            (tls, "https://cdn.example/x?y=z#f", Ok(("cdn.example", "/x?y=z"))),
            (tls, "/v2/x", Ok(("home.example", "/v2/x"))),
            (plain, "http://cdn.example:81", Ok(("cdn.example:81", "/"))),
            (tls, "http://cdn.example/x", Err("the registry refers to a URL without TLS")),
            (tls, "//cdn.example/x", Err("the registry refers to an invalid URL")),
            (tls, "https://u:p@cdn.example/x", Err("the registry refers to an invalid URL")),
            (tls, "https://cdn.example/x\r\nA: b", Err("the registry refers to an invalid URL")),
            (plain, "file:///etc/passwd", Err("the registry refers to an invalid URL")),
        ] {
            let place = Place { host: "home.example".into(), path: "a".into(), is_plain };
            let credentials = Credentials::default();
            let registry = Registry::new(Path::new("/"), &place, &credentials);
            let got = registry.url(url, &Origin { is_plain, host: "home.example".into() });
            let got = got.map(|(origin, target)| (origin.host, target)).map_err(|error| error.to_string());
            let expected = expected.map(|(host, target)| (host.to_owned(), target.to_owned()));
            assert_eq!(got, expected.map_err(str::to_owned), "{url}");
        }
    }

    /// Answers each request with the response for its server, and returns what was asked, with the server's index.
    fn serve(
        listeners: Vec<TcpListener>,
        answer: fn(usize, u16) -> String,
        until: u16,
    ) -> Vec<(usize, String)> {
        let ports: Vec<u16> = listeners.iter().map(|of| of.local_addr().expect("bound").port()).collect();
        let mut asked = Vec::new();
        let mut accept = |index: usize| {
            let (mut socket, _) = listeners[index].accept().expect("accepted");
            let (mut request, mut piece) = (Vec::new(), [0; 1024]);
            while !request.ends_with(b"\r\n\r\n") {
                match socket.read(&mut piece).expect("read") {
                    0 => break,
                    count => request.extend_from_slice(&piece[..count]),
                }
            }
            asked.push((index, String::from_utf8_lossy(&request).into_owned()));
            let _ = socket.write_all(answer(index, ports[1]).as_bytes());
        };
        for number in 0..until {
            accept(usize::from(number % 2));
        }
        asked
    }

    #[test]
    fn a_server_to_which_a_registry_redirects_gets_no_credentials() {
        let listeners: Vec<_> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").expect("bound")).collect();
        let host = listeners[0].local_addr().expect("bound").to_string();
        let other = listeners[1].try_clone().expect("cloned");
        let answer = |index, other| {
            let (status, header) = match index {
                0 => ("307 Temporary Redirect", format!("Location: http://127.0.0.1:{other}/blob")),
                _ => (
                    "401 Unauthorized",
                    format!("WWW-Authenticate: Bearer realm=\"http://127.0.0.1:{other}/steal\""),
                ),
            };
            format!("HTTP/1.1 {status}\r\n{header}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        };
        let server = std::thread::spawn(move || serve(listeners, answer, 2));
        let secret = serde_json::json!({"auths": {&host: {"username": "me", "password": "secret"}}});
        let root = Path::new("/does/not/exist");
        let credentials = Credentials::read(root, &[("mine".to_owned(), secret.to_string())]).expect("valid");
        let place = Place { host, path: "a".into(), is_plain: true };
        let mut registry = Registry::new(root, &place, &credentials);
        let got = smol::block_on(registry.small_blob(&Digest::of(b"x"))).map_err(|error| error.to_string());
        let expected = "the registry redirects to another server, which demands authentication";
        assert_eq!(got, Err(expected.to_owned()));
        let asked = server.join().expect("served");
        assert!(asked[1].1.starts_with("GET /blob "), "{asked:?}");
        assert!(!asked[1].1.to_lowercase().contains("authorization"), "{asked:?}");
        other.set_nonblocking(true).expect("set");
        assert!(other.accept().is_err(), "nobody asks for a token");
    }
}
