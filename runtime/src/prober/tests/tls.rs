//! Probes over TLS, against servers in this process: rustls with the same
//! cryptography, a certificate that is none and a key that signs nothing. That
//! others understand it as well, the tests with containers show.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::crypto::cipher::{OutboundChunks, OutboundPlainMessage};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{
    ConnectionTrafficSecrets, ContentType, ProtocolVersion, ServerConfig, ServerConnection,
    SignatureAlgorithm, SignatureScheme, StreamOwned, SupportedCipherSuite,
};

use super::super::{BODY, HttpGet, http};
use super::{LOCAL, PATIENT, listen, read_request};
use nodlet_core::facts::ProbeResult;
use nodlet_core::spec::probe::PortOrName;
use nodlet_wire::tls;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Returns one certificate for every name, and records the requested names.
#[derive(Debug)]
struct Anybody(mpsc::Sender<Option<String>>, SignatureAlgorithm);

impl ResolvesServerCert for Anybody {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let _ = self.0.send(hello.server_name().map(str::to_owned));
        Some(Arc::new(CertifiedKey::new(vec![b"a certificate".to_vec().into()], Arc::new(Key(self.1)))))
    }
}

#[derive(Debug)]
struct Key(SignatureAlgorithm);

impl SigningKey for Key {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let scheme = match self.0 {
            SignatureAlgorithm::RSA => SignatureScheme::RSA_PSS_SHA256,
            _ => SignatureScheme::ECDSA_NISTP256_SHA256,
        };
        offered.contains(&scheme).then(|| Box::new(Signs(scheme)) as Box<dyn Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0
    }
}

#[derive(Debug)]
struct Signs(SignatureScheme);

impl Signer for Signs {
    fn sign(&self, _: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        Ok(b"a signature".to_vec())
    }

    fn scheme(&self) -> SignatureScheme {
        self.0
    }
}

type Stream = StreamOwned<ServerConnection, TcpStream>;

/// Returns the configuration of a server, and a channel with the names that clients request.
fn configuration(provider: CryptoProvider) -> (ServerConfig, mpsc::Receiver<Option<String>>) {
    let (sender, names) = mpsc::channel();
    let rsa = provider.cipher_suites.iter().all(|suite| format!("{:?}", suite.suite()).contains("RSA"));
    let rsa = rsa && !format!("{:?}", provider.cipher_suites).contains("ECDSA_");
    let algorithm = if rsa { SignatureAlgorithm::RSA } else { SignatureAlgorithm::ECDSA };
    let config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .expect("each has a version")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Anybody(sender, algorithm)));
    (config, names)
}

/// A server over TLS that gives its connections to `answer`, with their number and
/// request; the names that it was asked for.
fn server(
    provider: CryptoProvider,
    mut answer: impl FnMut(usize, &str, &mut Stream) + Send + 'static,
) -> (u16, mpsc::Receiver<Option<String>>) {
    let (config, names) = configuration(provider);
    let (config, (listener, port)) = (Arc::new(config), listen());
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let connection = ServerConnection::new(config.clone()).expect("a configuration");
            let mut stream = StreamOwned::new(connection, stream.expect("a connection"));
            let request = read_request(&mut stream);
            answer(number, &request, &mut stream);
        }
    });
    (port, names)
}

fn bye(stream: &mut Stream) {
    stream.conn.send_close_notify();
    let _ = stream.flush();
}

fn says(text: impl AsRef<str> + Send + 'static) -> (u16, mpsc::Receiver<Option<String>>) {
    server(tls::provider(), move |_, _, stream| {
        let _ = stream.write_all(text.as_ref().as_bytes());
        bye(stream);
    })
}

fn get(host: Option<&str>, port: u16, timeout: Duration) -> ProbeResult {
    let port = &PortOrName::Port(port);
    let get = HttpGet { secure: true, host, port, path: "/x", headers: &[] };
    smol::block_on(http(LOCAL, &[], &get, timeout))
}

fn failed(port: u16, text: &str) -> ProbeResult {
    ProbeResult::Failure(format!("Get \"https://127.0.0.1:{port}/x\": {text}").into())
}

#[test]
fn every_suite_and_group_that_is_offered_is_understood() {
    let all = tls::provider();
    for suite in &all.cipher_suites {
        for group in &all.kx_groups {
            let provider =
                CryptoProvider { cipher_suites: vec![*suite], kx_groups: vec![*group], ..tls::provider() };
            let body = "b".repeat(BODY + 1);
            let (port, _names) = server(provider, move |_, request, stream| {
                assert!(request.starts_with("GET /x HTTP/1.1\r\nHost: 127.0.0.1:"), "{request}");
                let answer = format!("HTTP/1.1 399 Fine\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                let _ = stream.write_all(answer.as_bytes());
                bye(stream);
            });
            let ProbeResult::Warning(text) = get(None, port, PATIENT) else {
                panic!("{suite:?} with {group:?}");
            };
            assert_eq!(text.len(), "Probe terminated redirects, Response body: ".len() + BODY);
        }
    }
}

#[test]
fn server_name_indication_is_sent_for_host_names_and_not_for_addresses() {
    let (port, names) = says(OK);
    assert_eq!(get(None, port, PATIENT), ProbeResult::Success);
    assert_eq!(names.recv(), Ok(None));
    assert_eq!(get(Some("localhost"), port, PATIENT), ProbeResult::Success);
    assert_eq!(names.recv(), Ok(Some("localhost".to_owned())));
    // The Host header is for HTTP alone.
    let headers = [("Host".to_owned(), "web.example".to_owned())];
    let numbered = &PortOrName::Port(port);
    let get = HttpGet { secure: true, host: None, port: numbered, path: "/", headers: &headers };
    assert_eq!(smol::block_on(http(LOCAL, &[], &get, PATIENT)), ProbeResult::Success);
    assert_eq!(names.recv(), Ok(None));
}

#[test]
fn statuses_and_bodies_mean_the_same_over_tls() {
    let result = get(None, says("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n").0, PATIENT);
    assert_eq!(result, ProbeResult::Failure("HTTP probe failed with statuscode: 500".into()));
    // Without a length, the end has to be said.
    assert_eq!(get(None, says("HTTP/1.1 200 OK\r\n\r\nto the end").0, PATIENT), ProbeResult::Success);
    let (port, _names) = server(tls::provider(), |_, _, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nto the e");
    });
    assert_eq!(get(None, port, PATIENT), ProbeResult::Error("unexpected EOF".into()));
    // Nothing was said, and that is all; or it is not known whether that is all.
    let (port, _names) = says("");
    assert_eq!(get(None, port, PATIENT), failed(port, "EOF"));
    let (port, _names) = server(tls::provider(), |_, _, _| {});
    assert_eq!(get(None, port, PATIENT), failed(port, "unexpected EOF"));
}

#[test]
fn redirects_lead_to_tls_and_back_on_the_same_host() {
    let (secure, _names) = says(OK);
    let to = |url: String| format!("HTTP/1.1 302 Found\r\nLocation: {url}\r\nContent-Length: 4\r\n\r\naway");
    let (open, requests) = super::server(move |number, _, stream| {
        let first = to(format!("https://127.0.0.1:{secure}/"));
        let _ = stream.write_all(if number == 0 { &first } else { OK }.as_bytes());
    });
    let ask = |secure, port| {
        let port = &PortOrName::Port(port);
        let get = HttpGet { secure, host: None, port, path: "/from", headers: &[] };
        smol::block_on(http(LOCAL, &[], &get, PATIENT))
    };
    assert_eq!(ask(false, open), ProbeResult::Success);
    requests.recv().expect("a request");
    // No Referer header goes from HTTPS to HTTP.
    let (back, _names) = says(to(format!("http://127.0.0.1:{open}/to")));
    assert_eq!(ask(true, back), ProbeResult::Success);
    let request = requests.recv().expect("a request");
    assert!(request.starts_with("GET /to ") && !request.contains("Referer"), "{request}");
    // To another host it does not go.
    let (away, _names) = says(to("https://192.0.2.1/".to_owned()));
    let expected = ProbeResult::Warning("Probe terminated redirects, Response body: away".into());
    assert_eq!(ask(true, away), expected);
}

/// A server below TLS, that says these bytes to whoever begins.
fn raw(bytes: Vec<u8>) -> u16 {
    let (listener, port) = listen();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut hello = [0; 5];
            let _ = stream.read_exact(&mut hello);
            let mut rest = vec![0; usize::from(u16::from_be_bytes([hello[3], hello[4]]))];
            let _ = stream.read_exact(&mut rest);
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.set_read_timeout(Some(PATIENT));
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
    });
    port
}

#[test]
fn a_server_without_tls_is_reported_with_the_errors_of_go() {
    for (bytes, expected) in [
        (&b""[..], "EOF"),
        (b"HTT", "EOF"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "http: server gave HTTP response to HTTPS client"),
        (b"SSH-2.0-x\r\n", "tls: first record does not look like a TLS handshake"),
        (&[23, 3, 3, 0, 1, 0], "tls: first record does not look like a TLS handshake"),
        (&[22, 16, 3, 0, 1, 0], "tls: first record does not look like a TLS handshake"),
        (&[21, 3, 3, 0, 2, 2, 40], "remote error: tls: handshake failure"),
        (&[21, 3, 1, 0, 2, 2, 70], "remote error: tls: protocol version not supported"),
        (&[21, 3, 3, 0, 2, 2, 116], "remote error: tls: certificate required"),
        (&[21, 3, 3, 0, 2, 2, 99], "remote error: tls: alert(99)"),
        (&[22, 3, 3, 0, 4, 2, 0], "EOF"),
    ] {
        let port = raw(bytes.to_vec());
        assert_eq!(get(None, port, PATIENT), failed(port, expected), "{bytes:?}");
    }
    // A record that is too large; no message of a handshake; one of 16 MiB.
    for bytes in [
        vec![22, 3, 3, 0xff, 0xff],
        vec![22, 3, 3, 0, 4, 0x77, 0, 0, 0],
        vec![22, 3, 3, 0, 5, 2, 0xff, 0xff, 0xff, 0],
    ] {
        let port = raw(bytes);
        let ProbeResult::Failure(text) = get(None, port, PATIENT) else { panic!("no failure") };
        assert!(text.starts_with(&format!("Get \"https://127.0.0.1:{port}/x\": tls: ")), "{text}");
    }
}

#[test]
fn a_tls_handshake_without_a_response_fails_at_the_timeout() {
    let (_listener, port) = listen();
    let text = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
    assert_eq!(get(None, port, Duration::from_millis(50)), failed(port, text));
}

#[test]
fn an_endless_tls_handshake_fails_the_probe() {
    // Records of a handshake message that never comes to its end.
    let (listener, port) = listen();
    let (sender, sent) = mpsc::channel();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut count = 0;
        let mut record = vec![22, 3, 3, 0x40, 0, 2, 0, 0xff, 0xff];
        record.resize(5 + 0x4000, 0);
        while stream.write_all(&record).is_ok() {
            count += record.len();
            record[5..9].fill(0);
        }
        sender.send(count).expect("it is awaited");
    });
    let ProbeResult::Failure(text) = get(None, port, PATIENT) else { panic!("no failure") };
    assert!(text.contains("tls: "), "{text}");
    assert!(sent.recv_timeout(PATIENT).expect("we hung up") < 64 << 20);
}

#[test]
fn a_body_without_end_is_cut_over_tls_too() {
    let (port, _names) = server(tls::provider(), |_, _, stream| {
        let _ = stream.write_all(b"HTTP/1.1 307 R\r\n\r\n");
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    let ProbeResult::Warning(text) = get(None, port, PATIENT) else { panic!("no warning") };
    assert_eq!(text.len(), "Probe terminated redirects, Response body: ".len() + BODY);
    let (port, _names) = server(tls::provider(), |_, _, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        // A record for each line would take minutes on an emulated board.
        while stream.write_all(&b"X-Long: 1\r\n".repeat(100)).is_ok() {}
    });
    let ProbeResult::Failure(text) = get(None, port, PATIENT) else { panic!("no failure") };
    assert!(text.ends_with("server response headers exceeded 65536 bytes; aborted"), "{text}");
}

/// A server that answers with records of tickets, so many, each full of them, and with `OK` thereafter.
fn ticketing(records: u64) -> u16 {
    let provider = tls::provider();
    let suite = provider.cipher_suites[0];
    let SupportedCipherSuite::Tls13(cipher) = suite else { panic!("the best one is of 1.3") };
    let (mut config, _) = configuration(CryptoProvider { cipher_suites: vec![suite], ..provider });
    config.enable_secret_extraction = true;
    config.send_tls13_tickets = 0;
    let (config, (listener, port)) = (Arc::new(config), listen());
    thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a connection");
        let connection = ServerConnection::new(config).expect("a configuration");
        let mut stream = StreamOwned::new(connection, stream);
        read_request(&mut stream);
        let (connection, mut stream) = stream.into_parts();
        let secrets = connection.dangerous_extract_secrets().expect("it was configured");
        let (begun, ConnectionTrafficSecrets::Aes128Gcm { key, iv }) = secrets.tx else {
            panic!("the suite")
        };
        let mut encrypter = cipher.aead_alg.encrypter(key, iv);
        // For a minute, with an age to add, no nonce, one byte and no extension.
        let ticket = [4, 0, 0, 14, 0, 0, 0, 60, 0, 0, 0, 1, 0, 0, 1, 65, 0, 0];
        let full = ticket.repeat(16_000 / ticket.len());
        for number in 0..=records {
            let (typ, payload) = match number {
                _ if number == records => (ContentType::ApplicationData, OK.as_bytes()),
                _ => (ContentType::Handshake, &full[..]),
            };
            let version = ProtocolVersion::TLSv1_3;
            let message = OutboundPlainMessage { typ, version, payload: OutboundChunks::Single(payload) };
            let record = encrypter.encrypt(message, begun + number).expect("it has a key");
            if stream.write_all(&record.encode()).is_err() {
                return;
            }
        }
    });
    port
}

#[test]
fn a_server_that_sends_only_tls_tickets_fails_before_the_timeout() {
    assert_eq!(get(None, ticketing(4), PATIENT), ProbeResult::Success);
    let port = ticketing(u64::MAX / 2);
    assert_eq!(get(None, port, PATIENT), failed(port, "tls: too many non-advancing records"));
}

#[test]
fn a_large_response_over_tls_does_not_starve_other_tasks() {
    const LENGTH: usize = 32 * 1024;
    let (sender, said) = mpsc::channel();
    let (port, _names) = server(tls::provider(), move |_, _, stream| {
        stream.write_all(&[b'x'; LENGTH]).expect("it fits in what a socket takes");
        sender.send(()).expect("it is awaited");
    });
    let mut client = smol::block_on(async {
        let socket = smol::Async::<TcpStream>::connect((LOCAL, port)).await.expect("a connection");
        let mut client = tls::Client::unverified(socket, "127.0.0.1").await.expect("a server");
        client.write_all(b"\r\n\r\n").await.expect("it reads");
        client
    });
    said.recv_timeout(PATIENT).expect("it has said it");
    let ((), turns) = super::turns(async {
        let (mut piece, mut read) = ([0; 4096], 0);
        while read < LENGTH {
            read += client.read(&mut piece).await.expect("there is more");
        }
    });
    // Each read of the socket is of 4 KiB.
    assert!(turns >= LENGTH / 4096, "{turns} turns");
}
