//! That keys do not stay in memory. What rustls holds itself (`AeadKey`, `SharedSecret`, secrets of
//! the key schedule) it erases without being asked to.

use zeroize::ZeroizeOnDrop;

fn is_erased<T: ZeroizeOnDrop>() {}

/// Each of these has a feature for it that is off by default, or could be: without it, this does
/// not compile.
#[test]
fn ciphers_hashes_and_secrets_are_erased_when_they_are_dropped() {
    is_erased::<aes_gcm::Aes128Gcm>();
    is_erased::<aes_gcm::Aes256Gcm>();
    is_erased::<chacha20poly1305::ChaCha20Poly1305>();
    // The states of HMAC, which has none of its own.
    is_erased::<sha2::Sha256>();
    is_erased::<sha2::Sha384>();
    is_erased::<p256::SecretKey>();
    is_erased::<p256::ecdh::SharedSecret>();
    is_erased::<x25519_dalek::StaticSecret>();
    is_erased::<x25519_dalek::SharedSecret>();
}
