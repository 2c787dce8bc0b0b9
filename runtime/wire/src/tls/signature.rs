//! Signatures: ECDSA on P-256 and P-384 and RSA (PKCS #1 and PSS) are verified, as certificates of API servers have
//! them; ECDSA on P-256 with SHA-256 is made, with the client's key.
//!
//! Verification computes only with public values. There is no private RSA key.

use std::sync::Arc;

use p256::ecdsa::signature::Signer as _;
use p256::ecdsa::signature::hazmat::PrehashVerifier;
use rsa::{pkcs1v15, pss};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    AlgorithmIdentifier, InvalidSignature, PrivateKeyDer, SignatureVerificationAlgorithm, alg_id,
};
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};
use sha2::{Digest, Sha256, Sha384, Sha512};

use super::der;

#[cfg(test)]
mod tests;

/// The smallest accepted modulus of an RSA key in bits, as for Go's client and browsers.
const MIN_RSA_BITS: usize = 2048;

/// The largest accepted modulus of an RSA key in bits. A larger one costs a board too much time.
const MAX_RSA_BITS: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    P256,
    P384,
    RsaPkcs1,
    RsaPss,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

/// One algorithm by which signatures are verified.
#[derive(Debug)]
pub(super) struct Verifier {
    key: Key,
    hash: Hash,
    key_id: AlgorithmIdentifier,
    signature_id: AlgorithmIdentifier,
}

const fn ecdsa(key: Key, hash: Hash) -> Verifier {
    let key_id = if matches!(key, Key::P256) { alg_id::ECDSA_P256 } else { alg_id::ECDSA_P384 };
    let signature_id = if matches!(hash, Hash::Sha256) { alg_id::ECDSA_SHA256 } else { alg_id::ECDSA_SHA384 };
    Verifier { key, hash, key_id, signature_id }
}

const fn rsa(key: Key, hash: Hash, signature_id: AlgorithmIdentifier) -> Verifier {
    Verifier { key, hash, key_id: alg_id::RSA_ENCRYPTION, signature_id }
}

static P256_SHA256: Verifier = ecdsa(Key::P256, Hash::Sha256);
static P256_SHA384: Verifier = ecdsa(Key::P256, Hash::Sha384);
static P384_SHA256: Verifier = ecdsa(Key::P384, Hash::Sha256);
static P384_SHA384: Verifier = ecdsa(Key::P384, Hash::Sha384);
static PKCS1_SHA256: Verifier = rsa(Key::RsaPkcs1, Hash::Sha256, alg_id::RSA_PKCS1_SHA256);
static PKCS1_SHA384: Verifier = rsa(Key::RsaPkcs1, Hash::Sha384, alg_id::RSA_PKCS1_SHA384);
static PKCS1_SHA512: Verifier = rsa(Key::RsaPkcs1, Hash::Sha512, alg_id::RSA_PKCS1_SHA512);
static PSS_SHA256: Verifier = rsa(Key::RsaPss, Hash::Sha256, alg_id::RSA_PSS_SHA256);
static PSS_SHA384: Verifier = rsa(Key::RsaPss, Hash::Sha384, alg_id::RSA_PSS_SHA384);
static PSS_SHA512: Verifier = rsa(Key::RsaPss, Hash::Sha512, alg_id::RSA_PSS_SHA512);

/// The algorithms of certificates and of handshakes. In TLS 1.2, the curve of an ECDSA key is independent of the hash.
pub(super) static ALGORITHMS: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[
        &P256_SHA256,
        &P256_SHA384,
        &P384_SHA256,
        &P384_SHA384,
        &PKCS1_SHA256,
        &PKCS1_SHA384,
        &PKCS1_SHA512,
        &PSS_SHA256,
        &PSS_SHA384,
        &PSS_SHA512,
    ],
    mapping: &[
        (SignatureScheme::ECDSA_NISTP256_SHA256, &[&P256_SHA256, &P384_SHA256]),
        (SignatureScheme::ECDSA_NISTP384_SHA384, &[&P384_SHA384, &P256_SHA384]),
        (SignatureScheme::RSA_PSS_SHA256, &[&PSS_SHA256]),
        (SignatureScheme::RSA_PSS_SHA384, &[&PSS_SHA384]),
        (SignatureScheme::RSA_PSS_SHA512, &[&PSS_SHA512]),
        (SignatureScheme::RSA_PKCS1_SHA256, &[&PKCS1_SHA256]),
        (SignatureScheme::RSA_PKCS1_SHA384, &[&PKCS1_SHA384]),
        (SignatureScheme::RSA_PKCS1_SHA512, &[&PKCS1_SHA512]),
    ],
};

impl SignatureVerificationAlgorithm for Verifier {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let is_valid = match self.hash {
            Hash::Sha256 => self.verify(public_key, &Sha256::digest(message), signature),
            Hash::Sha384 => self.verify(public_key, &Sha384::digest(message), signature),
            Hash::Sha512 => self.verify(public_key, &Sha512::digest(message), signature),
        };
        is_valid.ok_or(InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.key_id
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.signature_id
    }
}

impl Verifier {
    /// Verifies the signature of a hash; `None` if anything about it is invalid.
    fn verify(&self, public_key: &[u8], hash: &[u8], signature: &[u8]) -> Option<()> {
        match self.key {
            Key::P256 => {
                let key = p256::ecdsa::VerifyingKey::from_sec1_bytes(uncompressed(public_key)?).ok()?;
                let signature = p256::ecdsa::Signature::from_der(signature).ok()?;
                key.verify_prehash(hash, &signature).ok()
            }
            Key::P384 => {
                let key = p384::ecdsa::VerifyingKey::from_sec1_bytes(uncompressed(public_key)?).ok()?;
                let signature = p384::ecdsa::Signature::from_der(signature).ok()?;
                key.verify_prehash(hash, &signature).ok()
            }
            Key::RsaPkcs1 => {
                let key = rsa_key(public_key)?;
                let signature = pkcs1v15::Signature::try_from(signature).ok()?;
                match self.hash {
                    Hash::Sha256 => {
                        pkcs1v15::VerifyingKey::<Sha256>::new(key).verify_prehash(hash, &signature).ok()
                    }
                    Hash::Sha384 => {
                        pkcs1v15::VerifyingKey::<Sha384>::new(key).verify_prehash(hash, &signature).ok()
                    }
                    Hash::Sha512 => {
                        pkcs1v15::VerifyingKey::<Sha512>::new(key).verify_prehash(hash, &signature).ok()
                    }
                }
            }
            Key::RsaPss => {
                let key = rsa_key(public_key)?;
                let signature = pss::Signature::try_from(signature).ok()?;
                match self.hash {
                    Hash::Sha256 => {
                        pss::VerifyingKey::<Sha256>::new(key).verify_prehash(hash, &signature).ok()
                    }
                    Hash::Sha384 => {
                        pss::VerifyingKey::<Sha384>::new(key).verify_prehash(hash, &signature).ok()
                    }
                    Hash::Sha512 => {
                        pss::VerifyingKey::<Sha512>::new(key).verify_prehash(hash, &signature).ok()
                    }
                }
            }
        }
    }
}

/// The point of a certificate, which is uncompressed (RFC 5480 allows no client to expect another form).
fn uncompressed(point: &[u8]) -> Option<&[u8]> {
    Some(point).filter(|point| point.first() == Some(&4))
}

/// The key of a certificate: `RSAPublicKey` of PKCS #1.
fn rsa_key(key: &[u8]) -> Option<::rsa::PublicKey> {
    let mut whole = der::Reader::new(key);
    let mut fields = der::Reader::new(whole.expect(der::SEQUENCE)?);
    let (modulus, exponent) = (fields.positive()?, fields.positive()?);
    if !fields.is_at_end() || !whole.is_at_end() {
        return None;
    }
    let number = ::rsa::BoxedUint::from_be_slice_vartime;
    ::rsa::PublicKey::new_with_size_limits(number(modulus), number(exponent), MIN_RSA_BITS..=MAX_RSA_BITS)
        .ok()
}

/// The private key of a client or server: ECDSA on P-256. It is erased when it is dropped.
pub struct ClientKey(p256::ecdsa::SigningKey);

/// Shows nothing of the key.
impl std::fmt::Debug for ClientKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ClientKey")
    }
}

impl ClientKey {
    /// Makes a new key from random bytes of the kernel.
    ///
    /// # Errors
    /// The kernel has no random bytes yet.
    pub fn generate() -> Result<ClientKey, Error> {
        for _ in 0..super::exchange::MAX_DRAWS {
            let mut bytes = zeroize::Zeroizing::new([0; 32]);
            super::fill(&mut *bytes)?;
            if let Some(key) = ClientKey::from_bytes(&*bytes) {
                return Ok(key);
            }
        }
        Err(Error::FailedToGetRandomBytes)
    }

    /// The key with these bytes; `None` if they are no key.
    pub fn from_bytes(bytes: &[u8]) -> Option<ClientKey> {
        p256::ecdsa::SigningKey::from_slice(bytes).ok().map(ClientKey)
    }

    /// The key in a PEM file: `PRIVATE KEY` (PKCS #8) or `EC PRIVATE KEY` (SEC 1); `None` if it has none of P-256.
    pub fn from_pem(text: &[u8]) -> Option<ClientKey> {
        match PrivateKeyDer::from_pem_slice(text).ok()? {
            PrivateKeyDer::Sec1(key) => ClientKey::from_sec1(key.secret_sec1_der()),
            PrivateKeyDer::Pkcs8(key) => {
                let mut fields = der::Reader::new(key.secret_pkcs8_der());
                let mut fields = der::Reader::new(fields.expect(der::SEQUENCE)?);
                fields.expect(der::INTEGER)?;
                let algorithm = fields.expect(der::SEQUENCE)?;
                let is_p256 = algorithm == alg_id::ECDSA_P256.as_ref();
                is_p256.then(|| ClientKey::from_sec1(fields.expect(der::OCTET_STRING)?))?
            }
            _ => None,
        }
    }

    /// The key of an `ECPrivateKey` (RFC 5915). That of another curve has another length.
    fn from_sec1(der: &[u8]) -> Option<ClientKey> {
        let mut fields = der::Reader::new(der);
        let mut fields = der::Reader::new(fields.expect(der::SEQUENCE)?);
        fields.expect(der::INTEGER)?;
        ClientKey::from_bytes(fields.expect(der::OCTET_STRING)?)
    }

    /// The bytes of the key, from which [`ClientKey::from_bytes`] makes it again.
    pub fn to_bytes(&self) -> zeroize::Zeroizing<[u8; 32]> {
        zeroize::Zeroizing::new(self.0.to_bytes().into())
    }

    /// The signature of a message, as DER.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        let signature: p256::ecdsa::Signature = self.0.sign(message);
        signature.to_der().as_bytes().to_vec()
    }

    /// `subjectPublicKeyInfo` of a certificate for this key.
    pub fn public_key_info(&self) -> Vec<u8> {
        use der::{BIT_STRING, SEQUENCE, value};
        let point = self.0.verifying_key().to_sec1_point(false);
        let algorithm = value(SEQUENCE, &[alg_id::ECDSA_P256.as_ref()]);
        value(SEQUENCE, &[&algorithm, &value(BIT_STRING, &[&[0], point.as_bytes()])])
    }
}

/// A key, as rustls asks for signatures in handshakes.
#[derive(Debug)]
pub(super) struct Signing(pub(super) Arc<ClientKey>);

impl SigningKey for Signing {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let is_offered = offered.contains(&SignatureScheme::ECDSA_NISTP256_SHA256);
        is_offered.then(|| Box::new(Signing(self.0.clone())) as Box<dyn Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

impl Signer for Signing {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(self.0.sign(message))
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ECDSA_NISTP256_SHA256
    }
}
