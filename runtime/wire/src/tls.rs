//! TLS: rustls, with cryptography from crates that need no C compiler
//! (`docs/decisions/0006-tls-and-http2-for-probes.md`).
//!
//! The prober verifies no certificate, as a kubelet's probes ([`Client::unverified`]). A client of a cluster or of a
//! registry verifies the server with the roots of a [`Trust`], and may present a certificate of its own
//! ([`Client::verified`], `docs/decisions/0009-cryptography-for-mutual-tls.md`). [`server`] is the other end. [`at_rest`]
//! encrypts files with one of the ciphers. [`der`] and [`pem`] read certificates.
//!
//! This module waits only for the connection. A server can occupy only limited memory: a record, and a handshake
//! message of 64 KiB. It can cause only limited work: each read yields to other tasks, and the number of bytes
//! without data is limited ([`MAX_IDLE_BYTES`]).

mod aead;
pub mod at_rest;
pub mod certificate;
pub mod der;
mod exchange;
mod hash;
pub mod pem;
pub mod server;
mod signature;
#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, ClientConnection, Resumption, WebPkiServerVerifier};
use rustls::crypto::tls12::PrfUsingHmac;
use rustls::crypto::tls13::HkdfUsingHmac;
use rustls::crypto::{
    CipherSuiteCommon, CryptoProvider, GetRandomFailed, KeyExchangeAlgorithm, KeyProvider, SecureRandom,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CipherSuite, DigitallySignedStruct, Error, RootCertStore, SignatureScheme, SupportedCipherSuite,
    Tls12CipherSuite, Tls13CipherSuite,
};
use smol::Async;
use smol::io::{AsyncReadExt, AsyncWriteExt};

use aead::Aead;
pub use signature::ClientKey;

/// Maximum number of bytes of one read from the socket.
const CHUNK_BYTES: usize = 4096;

/// Size of a record's head in bytes.
const HEADER_BYTES: usize = 5;

/// Upper bound of the bytes that a server may send before the first byte of data: the longest handshake, and
/// tickets. Each byte of data allows [`IDLE_BYTES_PER_DATA_BYTE`] more, since it may come in its own record.
const MAX_IDLE_BYTES: usize = 128 * 1024;
const IDLE_BYTES_PER_DATA_BYTE: usize = 32;

/// The error of a connection that cannot be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Reading from or writing to the socket failed.
    #[error("the connection failed")]
    Io(#[source] io::Error),
    /// The server closed the connection without `close_notify`.
    #[error("the server closed the connection")]
    Ended,
    /// The server does not respond with TLS; these are its first bytes.
    #[error("the server does not respond with TLS")]
    NoTls([u8; HEADER_BYTES]),
    /// The server has sent too many bytes without data.
    #[error("the server sends too many bytes without data")]
    Useless,
    /// The handshake or a record was rejected by either end.
    #[error("tls")]
    Failed(#[source] Error),
}

/// Whom a client trusts, and who the client is.
#[derive(Clone, Debug)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// Trusts servers with a certificate from one of `roots` (DER). `identity` is the client's own key and its
    /// certificates (DER), its own first.
    ///
    /// # Errors
    /// No root is a valid certificate.
    pub fn new(roots: &[Vec<u8>], identity: Option<(Vec<Vec<u8>>, ClientKey)>) -> Result<Trust, TlsError> {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(roots.iter().map(|root| CertificateDer::from(&root[..])));
        let provider = Arc::new(provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider.clone());
        let verifier =
            verifier.build().map_err(|error| TlsError::Failed(Error::General(error.to_string())))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Failed)?
            .with_webpki_verifier(verifier);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificates, key)) => {
                let chain = certificates.into_iter().map(CertificateDer::from).collect();
                let key = Arc::new(signature::Signing(Arc::new(key)));
                let certified = rustls::sign::CertifiedKey::new(chain, key);
                builder.with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified)))
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Trust(Arc::new(config)))
    }

    /// Returns this trust for connections over which the client prefers HTTP/2.
    #[must_use]
    pub fn with_http2(&self) -> Trust {
        let mut config = ClientConfig::clone(&self.0);
        config.alpn_protocols.insert(0, b"h2".to_vec());
        Trust(Arc::new(config))
    }
}

/// The client's end of a connection.
pub struct Client {
    stream: Async<TcpStream>,
    connection: ClientConnection,
    /// Bytes that were read and not yet passed to `connection`.
    received: Vec<u8>,
    /// Bytes of `connection` that were not yet sent, so that a dropped future loses none.
    unsent: Vec<u8>,
    /// Whether the server has closed the socket.
    ended: bool,
    /// The number of further bytes without data that may be read.
    idle_budget: usize,
}

impl Client {
    /// Performs the handshake without verifying the server. `host` is sent to the server (SNI) only if it is a name.
    pub async fn unverified(stream: Async<TcpStream>, host: &str) -> Result<Client, TlsError> {
        let host = host.trim_end_matches('.').to_owned();
        // An invalid name is not sent, like an address.
        let name = ServerName::try_from(host).unwrap_or(ServerName::from(std::net::Ipv4Addr::UNSPECIFIED));
        Client::shake_hands(stream, unverifying()?, name).await
    }

    /// Performs the handshake, and verifies that the server is `host`, a name or an address.
    ///
    /// # Errors
    /// Besides errors of the connection: the certificate of the server is not from a root of `trust`, not for `host`,
    /// or not valid now, or the server rejects the client's certificate.
    pub async fn verified(stream: Async<TcpStream>, host: &str, trust: &Trust) -> Result<Client, TlsError> {
        let name = ServerName::try_from(host.trim_end_matches('.').to_owned());
        let name = name
            .map_err(|_| TlsError::Failed(Error::General(format!("{host:?} is not a name of a server"))))?;
        Client::shake_hands(stream, trust.0.clone(), name).await
    }

    async fn shake_hands(
        stream: Async<TcpStream>,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Client, TlsError> {
        let connection = ClientConnection::new(config, name).map_err(TlsError::Failed)?;
        let mut client = Client {
            stream,
            connection,
            received: Vec::new(),
            unsent: Vec::new(),
            ended: false,
            idle_budget: MAX_IDLE_BYTES,
        };
        client.first_record().await?;
        while client.connection.is_handshaking() {
            client.receive().await?;
        }
        client.flush().await?;
        Ok(client)
    }

    /// Returns the TCP socket of the connection.
    pub fn socket(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    /// Whether the server chose HTTP/2.
    pub fn is_http2(&self) -> bool {
        self.connection.alpn_protocol() == Some(b"h2")
    }

    /// Checks that the server responds with TLS, before rustls parses the response.
    async fn first_record(&mut self) -> Result<(), TlsError> {
        self.flush().await?;
        while self.received.len() < HEADER_BYTES {
            self.fill().await?;
        }
        let mut head = [0; HEADER_BYTES];
        head.copy_from_slice(&self.received[..HEADER_BYTES]);
        // As Go's client: a handshake or an alert, with a plausible version.
        match head {
            [21 | 22, (..0x10), ..] => Ok(()),
            _ => Err(TlsError::NoTls(head)),
        }
    }

    /// Reads available data into `buffer`, and returns the number of bytes; 0 after the server's `close_notify`.
    pub async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, TlsError> {
        loop {
            match self.connection.reader().read(buffer) {
                Ok(count) => {
                    self.idle_budget += count * IDLE_BYTES_PER_DATA_BYTE;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.receive().await?,
                Err(_) => return Err(TlsError::Ended),
            }
        }
    }

    /// Writes all of `bytes`.
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> Result<(), TlsError> {
        while !bytes.is_empty() {
            let taken = self.connection.writer().write(bytes).map_err(TlsError::Io)?;
            bytes = &bytes[taken..];
            self.flush().await?;
        }
        Ok(())
    }

    /// Passes received bytes to rustls, and sends its response.
    async fn receive(&mut self) -> Result<(), TlsError> {
        if self.received.is_empty() {
            self.fill().await?;
        }
        let mut rest = &self.received[..];
        // There is no socket behind this: what fails is that it has no room for a message so large.
        let taken = self.connection.read_tls(&mut rest);
        let taken = taken.map_err(|error| TlsError::Failed(Error::General(error.to_string())))?;
        self.received.drain(..taken);
        let processed = self.connection.process_new_packets();
        // Even after a failure: the alert reaches the server.
        let flushed = self.flush().await;
        processed.map_err(TlsError::Failed)?;
        flushed
    }

    async fn fill(&mut self) -> Result<(), TlsError> {
        if self.ended {
            return Err(TlsError::Ended);
        }
        let mut chunk = [0; CHUNK_BYTES];
        // A socket that always has something would never be waited for, nor the time of who asks be over.
        smol::future::yield_now().await;
        let count = self.stream.read(&mut chunk).await.map_err(TlsError::Io)?;
        self.idle_budget = self.idle_budget.checked_sub(count).ok_or(TlsError::Useless)?;
        self.received.extend_from_slice(&chunk[..count]);
        match count {
            0 => {
                self.ended = true;
                Err(TlsError::Ended)
            }
            _ => Ok(()),
        }
    }

    async fn flush(&mut self) -> Result<(), TlsError> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut self.unsent).map_err(TlsError::Io)?;
        }
        while !self.unsent.is_empty() {
            let count = self.stream.write(&self.unsent).await.map_err(TlsError::Io)?;
            if count == 0 {
                return Err(TlsError::Io(io::ErrorKind::WriteZero.into()));
            }
            self.unsent.drain(..count);
        }
        Ok(())
    }
}

/// Sends `close_notify`, if that is possible without waiting.
impl Drop for Client {
    fn drop(&mut self) {
        self.connection.send_close_notify();
        let mut sealed = Vec::new();
        if self.connection.write_tls(&mut sealed).is_ok() {
            let _ = self.stream.get_ref().write(&sealed);
        }
    }
}

/// Returns the configuration without verification, which is created at the first call.
fn unverifying() -> Result<Arc<ClientConfig>, TlsError> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone());
    }
    let builder =
        ClientConfig::builder_with_provider(Arc::new(provider())).with_safe_default_protocol_versions();
    let mut config = builder
        .map_err(TlsError::Failed)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Unverifying))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::disabled();
    Ok(CONFIG.get_or_init(|| Arc::new(config)).clone())
}

/// Accepts any certificate and any signature: since any key is accepted, a signature proves nothing.
#[derive(Debug)]
struct Unverifying;

impl ServerCertVerifier for Unverifying {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ECDSA.iter().chain(RSA).copied().collect()
    }
}

const ECDSA: &[SignatureScheme] = &[
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::ED25519,
];

const RSA: &[SignatureScheme] = &[
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA512,
];

/// The algorithms that rustls computes with.
pub fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![
            SupportedCipherSuite::Tls13(&TLS13_AES_128),
            SupportedCipherSuite::Tls13(&TLS13_AES_256),
            SupportedCipherSuite::Tls13(&TLS13_CHACHA20),
            SupportedCipherSuite::Tls12(&ECDSA_AES_128),
            SupportedCipherSuite::Tls12(&RSA_AES_128),
            SupportedCipherSuite::Tls12(&ECDSA_AES_256),
            SupportedCipherSuite::Tls12(&RSA_AES_256),
            SupportedCipherSuite::Tls12(&ECDSA_CHACHA20),
            SupportedCipherSuite::Tls12(&RSA_CHACHA20),
        ],
        kx_groups: vec![&exchange::X25519, &exchange::P256],
        signature_verification_algorithms: signature::ALGORITHMS,
        secure_random: &Random,
        key_provider: &NoKeys,
    }
}

const fn sha256(suite: CipherSuite, limit: u64) -> CipherSuiteCommon {
    CipherSuiteCommon { suite, hash_provider: &hash::HashSha256, confidentiality_limit: limit }
}

const fn sha384(suite: CipherSuite, limit: u64) -> CipherSuiteCommon {
    CipherSuiteCommon { suite, hash_provider: &hash::HashSha384, confidentiality_limit: limit }
}

/// Records that may be sealed with one key of AES-GCM (draft-irtf-cfrg-aead-limits).
const GCM_LIMIT: u64 = 1 << 24;

static TLS13_AES_128: Tls13CipherSuite = Tls13CipherSuite {
    common: sha256(CipherSuite::TLS13_AES_128_GCM_SHA256, GCM_LIMIT),
    hkdf_provider: &HkdfUsingHmac(&hash::HmacSha256),
    aead_alg: &Aead::Aes128Gcm,
    quic: None,
};
static TLS13_AES_256: Tls13CipherSuite = Tls13CipherSuite {
    common: sha384(CipherSuite::TLS13_AES_256_GCM_SHA384, GCM_LIMIT),
    hkdf_provider: &HkdfUsingHmac(&hash::HmacSha384),
    aead_alg: &Aead::Aes256Gcm,
    quic: None,
};
static TLS13_CHACHA20: Tls13CipherSuite = Tls13CipherSuite {
    common: sha256(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256, u64::MAX),
    hkdf_provider: &HkdfUsingHmac(&hash::HmacSha256),
    aead_alg: &Aead::ChaCha20Poly1305,
    quic: None,
};
static ECDSA_AES_128: Tls12CipherSuite = tls12(
    sha256(CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, GCM_LIMIT),
    ECDSA,
    &Aead::Aes128Gcm,
    &PrfUsingHmac(&hash::HmacSha256),
);
static RSA_AES_128: Tls12CipherSuite = tls12(
    sha256(CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, GCM_LIMIT),
    RSA,
    &Aead::Aes128Gcm,
    &PrfUsingHmac(&hash::HmacSha256),
);
static ECDSA_AES_256: Tls12CipherSuite = tls12(
    sha384(CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, GCM_LIMIT),
    ECDSA,
    &Aead::Aes256Gcm,
    &PrfUsingHmac(&hash::HmacSha384),
);
static RSA_AES_256: Tls12CipherSuite = tls12(
    sha384(CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, GCM_LIMIT),
    RSA,
    &Aead::Aes256Gcm,
    &PrfUsingHmac(&hash::HmacSha384),
);
static ECDSA_CHACHA20: Tls12CipherSuite = tls12(
    sha256(CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, u64::MAX),
    ECDSA,
    &Aead::ChaCha20Poly1305,
    &PrfUsingHmac(&hash::HmacSha256),
);
static RSA_CHACHA20: Tls12CipherSuite = tls12(
    sha256(CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256, u64::MAX),
    RSA,
    &Aead::ChaCha20Poly1305,
    &PrfUsingHmac(&hash::HmacSha256),
);

const fn tls12(
    common: CipherSuiteCommon,
    sign: &'static [SignatureScheme],
    aead_alg: &'static Aead,
    prf_provider: &'static PrfUsingHmac<'static>,
) -> Tls12CipherSuite {
    Tls12CipherSuite { common, kx: KeyExchangeAlgorithm::ECDHE, sign, aead_alg, prf_provider }
}

#[derive(Debug)]
struct Random;

impl SecureRandom for Random {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        fill(bytes)
    }
}

fn fill(bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
    crate::random::secret(bytes).map_err(|_| GetRandomFailed)
}

/// A provider of private keys that has none.
#[derive(Debug)]
struct NoKeys;

impl KeyProvider for NoKeys {
    fn load_private_key(
        &self,
        _: PrivateKeyDer<'static>,
    ) -> Result<Arc<dyn rustls::sign::SigningKey>, Error> {
        Err(Error::General("no private keys are read".to_owned()))
    }
}

/// Bytes of test vectors. White space is ignored.
#[cfg(test)]
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|digit| !digit.is_whitespace())
        .map(|digit| digit.to_digit(16).expect("a hexadecimal digit") as u8)
        .collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}
