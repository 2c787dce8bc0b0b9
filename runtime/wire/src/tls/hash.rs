//! SHA-2 and its HMAC, as rustls asks for them.

use hmac::{KeyInit, Mac};
use rustls::crypto::hash::{Context, Hash, HashAlgorithm, Output};
use rustls::crypto::hmac::{Hmac, Key, Tag};
use sha2::{Digest, Sha256, Sha384};
use zeroize::Zeroizing;

/// SHA-256.
pub(super) struct HashSha256;
/// SHA-384.
pub(super) struct HashSha384;
/// HMAC with SHA-256.
pub(super) struct HmacSha256;
/// HMAC with SHA-384.
pub(super) struct HmacSha384;

macro_rules! sha2 {
    ($digest:ty, $hash:ident, $hmac:ident, $algorithm:ident, $len:literal) => {
        impl Hash for $hash {
            fn start(&self) -> Box<dyn Context> {
                Box::new(Running(<$digest>::new()))
            }

            fn hash(&self, data: &[u8]) -> Output {
                Output::new(&<$digest>::digest(data))
            }

            fn output_len(&self) -> usize {
                $len
            }

            fn algorithm(&self) -> HashAlgorithm {
                HashAlgorithm::$algorithm
            }
        }

        impl Context for Running<$digest> {
            fn fork_finish(&self) -> Output {
                Output::new(&self.0.clone().finalize())
            }

            fn fork(&self) -> Box<dyn Context> {
                Box::new(Running(self.0.clone()))
            }

            fn finish(self: Box<Self>) -> Output {
                Output::new(&self.0.finalize())
            }

            fn update(&mut self, data: &[u8]) {
                self.0.update(data);
            }
        }

        impl Hmac for $hmac {
            fn with_key(&self, key: &[u8]) -> Box<dyn Key> {
                match hmac::Hmac::<$digest>::new_from_slice(key) {
                    Ok(keyed) => Box::new(Keyed(keyed)),
                    Err(_) => unreachable!("HMAC takes keys of any length"),
                }
            }

            fn hash_output_len(&self) -> usize {
                $len
            }
        }

        impl Key for Keyed<hmac::Hmac<$digest>> {
            fn sign_concat(&self, first: &[u8], middle: &[&[u8]], last: &[u8]) -> Tag {
                let mut signing = self.0.clone();
                signing.update(first);
                for part in middle {
                    signing.update(part);
                }
                signing.update(last);
                // HKDF makes keys of it.
                Tag::new(Zeroizing::new(signing.finalize().into_bytes()).as_slice())
            }

            fn tag_len(&self) -> usize {
                $len
            }
        }
    };
}

struct Running<D>(D);
struct Keyed<M>(M);

sha2!(Sha256, HashSha256, HmacSha256, SHA256, 32);
sha2!(Sha384, HashSha384, HmacSha384, SHA384, 48);

#[cfg(test)]
mod tests;
