//! TLS towards servers: rustls, computing with crates that need no C compiler.
//! `docs/decisions/0006-tls-and-http2-for-probes.md` says why.
//!
//! So far it has one user, the prober, who believes no certificate and asks for
//! none to be right: a kubelet's probes neither. Whoever needs to know whom it
//! talks to adds what verifies signatures to the provider
//! (`docs/decisions/0009-cryptography-for-mutual-tls.md`), and a configuration
//! of its own. Nothing here waits for anything but the connection, and a server is
//! bounded in what it can make it keep: a record, and a handshake message of 64 KiB;
//! and in what it can make it do: each read lets others go first, and of what brings
//! no data only so much is taken ([`MAX_IDLE_BYTES`]).

mod aead;
mod exchange;
mod hash;
#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, ClientConnection, Resumption};
use rustls::crypto::tls12::PrfUsingHmac;
use rustls::crypto::tls13::HkdfUsingHmac;
use rustls::crypto::{
    CipherSuiteCommon, CryptoProvider, GetRandomFailed, KeyExchangeAlgorithm, KeyProvider, SecureRandom,
    WebPkiSupportedAlgorithms,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CipherSuite, DigitallySignedStruct, Error, SignatureScheme, SupportedCipherSuite, Tls12CipherSuite,
    Tls13CipherSuite,
};
use smol::Async;
use smol::io::{AsyncReadExt, AsyncWriteExt};

use aead::Aead;

/// What is read from a socket at once.
const CHUNK_BYTES: usize = 4096;

/// Bytes of a record's head.
const HEADER_BYTES: usize = 5;

/// Upper bound of the bytes that a server may send before the first byte of data: the longest handshake, and
/// tickets. Each byte of data allows [`IDLE_BYTES_PER_DATA_BYTE`] more, since it may come in its own record.
const MAX_IDLE_BYTES: usize = 128 * 1024;
const IDLE_BYTES_PER_DATA_BYTE: usize = 32;

/// Why there is no connection, or no longer one.
#[derive(Debug)]
pub enum TlsError {
    /// The socket's.
    Io(io::Error),
    /// The server hung up before it was its turn to.
    Ended,
    /// What the server says is no TLS; these are the first bytes of it.
    NoTls([u8; HEADER_BYTES]),
    /// The server says more and more that is no data.
    Useless,
    /// The server, or what it says, is refused, or it refuses us.
    Failed(Error),
}

/// The client's end of a connection.
pub struct Client {
    stream: Async<TcpStream>,
    connection: ClientConnection,
    /// Read and not yet given to `connection`.
    received: Vec<u8>,
    /// The socket is at its end.
    ended: bool,
    /// How many more bytes without data may be read.
    idle_budget: usize,
}

impl Client {
    /// Shakes hands with a server whom nothing is believed. Only a `host` that is
    /// a name is told to it.
    pub async fn unverified(stream: Async<TcpStream>, host: &str) -> Result<Client, TlsError> {
        let host = host.trim_end_matches('.').to_owned();
        // What is no name is told to nobody, like an address.
        let name = ServerName::try_from(host).unwrap_or(ServerName::from(std::net::Ipv4Addr::UNSPECIFIED));
        let connection = ClientConnection::new(unverifying()?, name).map_err(TlsError::Failed)?;
        let mut client =
            Client { stream, connection, received: Vec::new(), ended: false, idle_budget: MAX_IDLE_BYTES };
        client.first_record().await?;
        while client.connection.is_handshaking() {
            client.receive().await?;
        }
        client.flush().await?;
        Ok(client)
    }

    /// Both ends of the socket, as Go writes them.
    pub fn socket(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    /// Sees whether it is TLS at all before anything is made of it.
    async fn first_record(&mut self) -> Result<(), TlsError> {
        self.flush().await?;
        while self.received.len() < HEADER_BYTES {
            self.fill().await?;
        }
        let mut head = [0; HEADER_BYTES];
        head.copy_from_slice(&self.received[..HEADER_BYTES]);
        // As Go's client judges: a handshake or an alert, of a version that could be one.
        match head {
            [21 | 22, (..0x10), ..] => Ok(()),
            _ => Err(TlsError::NoTls(head)),
        }
    }

    /// Reads what was said; 0 when the server has said that this is all.
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

    /// Says all of `bytes`.
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> Result<(), TlsError> {
        while !bytes.is_empty() {
            let taken = self.connection.writer().write(bytes).map_err(TlsError::Io)?;
            bytes = &bytes[taken..];
            self.flush().await?;
        }
        Ok(())
    }

    /// Gives the connection what came next, and sends what it answers.
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
        // Even if it is over: the server is told why.
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
            let mut sealed = Vec::new();
            self.connection.write_tls(&mut sealed).map_err(TlsError::Io)?;
            self.stream.write_all(&sealed).await.map_err(TlsError::Io)?;
        }
        Ok(())
    }
}

/// It says that it is done, if that can be said without waiting.
impl Drop for Client {
    fn drop(&mut self) {
        self.connection.send_close_notify();
        let mut sealed = Vec::new();
        if self.connection.write_tls(&mut sealed).is_ok() {
            let _ = self.stream.get_ref().write(&sealed);
        }
    }
}

/// The configuration of who verifies nothing: made once, when it is first needed.
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

/// Takes any certificate, and does not look at what is signed by its key: who
/// believes any key learns nothing from a signature.
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
        signature_verification_algorithms: WebPkiSupportedAlgorithms { all: &[], mapping: &[] },
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

/// Nobody has a key here that could sign.
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
