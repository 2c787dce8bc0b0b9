//! Keys do not stay in memory. What rustls holds itself (`AeadKey`, `SharedSecret`, secrets of
//! the key schedule) it erases without being asked to.

use nodlet_fuzz::entropy::with_an_empty_pool;
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
    is_erased::<p256::ecdsa::SigningKey>();
    is_erased::<x25519_dalek::StaticSecret>();
    is_erased::<x25519_dalek::SharedSecret>();
}

#[test]
fn tls_makes_no_keys_while_the_pool_is_empty() {
    for group in super::provider().kx_groups {
        group.start().map(drop).expect("a key of a pool that is ready");
    }
    with_an_empty_pool(|| {
        let provider = super::provider();
        for group in &provider.kx_groups {
            let error = group.start().map(drop).expect_err("an empty pool");
            assert_eq!(error, rustls::Error::FailedToGetRandomBytes, "{:?}", group.name());
        }
        provider.secure_random.fill(&mut [0; 32]).expect_err("an empty pool");
    });
}
