//! Key exchange: X25519 and P-256, with a key of its own for each connection.

use p256::elliptic_curve::sec1::ToSec1Point;
use rustls::crypto::{ActiveKeyExchange, GetRandomFailed, SharedSecret, SupportedKxGroup};
use rustls::{Error, NamedGroup, PeerMisbehaved};
use zeroize::Zeroizing;

/// The group of Curve25519 (RFC 7748).
#[derive(Debug)]
pub(super) struct X25519;

/// NIST's P-256.
#[derive(Debug)]
pub(super) struct P256;

/// Keys that are no number of the group are as good as never drawn; this many would be no chance.
pub(super) const MAX_DRAWS: usize = 8;

impl SupportedKxGroup for X25519 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let mut bytes = Zeroizing::new([0; 32]);
        super::fill(&mut *bytes)?;
        let secret = x25519_dalek::StaticSecret::from(*bytes);
        let public = x25519_dalek::PublicKey::from(&secret);
        Ok(Box::new(OfX25519 { secret, public }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

struct OfX25519 {
    secret: x25519_dalek::StaticSecret,
    public: x25519_dalek::PublicKey,
}

impl ActiveKeyExchange for OfX25519 {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let peer: [u8; 32] = peer.try_into().map_err(|_| PeerMisbehaved::InvalidKeyShare)?;
        let shared = self.secret.diffie_hellman(&peer.into());
        // RFC 8446, 7.4.2: a share of low order would make the secret known.
        if shared.was_contributory() {
            Ok(SharedSecret::from(shared.as_bytes().as_slice()))
        } else {
            Err(PeerMisbehaved::InvalidKeyShare.into())
        }
    }

    fn pub_key(&self) -> &[u8] {
        self.public.as_bytes()
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

impl SupportedKxGroup for P256 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        for _ in 0..MAX_DRAWS {
            let mut bytes = Zeroizing::new([0; 32]);
            super::fill(&mut *bytes)?;
            let Ok(secret) = p256::SecretKey::from_slice(&*bytes) else { continue };
            return Ok(Box::new(OfP256::new(secret)));
        }
        Err(GetRandomFailed.into())
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::secp256r1
    }
}

struct OfP256 {
    secret: p256::SecretKey,
    public: Box<[u8]>,
}

impl OfP256 {
    fn new(secret: p256::SecretKey) -> OfP256 {
        let public = secret.public_key().to_sec1_point(false).as_bytes().into();
        OfP256 { secret, public }
    }
}

impl ActiveKeyExchange for OfP256 {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        // Uncompressed alone is what TLS 1.3 allows, and what all send in 1.2.
        let peer = Some(peer).filter(|peer| peer.first() == Some(&4));
        let peer = peer.and_then(|peer| p256::PublicKey::from_sec1_bytes(peer).ok());
        let peer = peer.ok_or(PeerMisbehaved::InvalidKeyShare)?;
        let secret = Zeroizing::new(self.secret.to_nonzero_scalar());
        let shared = p256::ecdh::diffie_hellman(*secret, peer.as_affine());
        Ok(SharedSecret::from(shared.raw_secret_bytes().as_slice()))
    }

    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::secp256r1
    }
}

#[cfg(test)]
mod tests;
