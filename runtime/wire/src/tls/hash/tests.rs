//! The pseudo-random function of TLS 1.2, with the vectors that the IETF's TLS working group
//! exchanged for it, and HKDF of TLS 1.3 with RFC 5869's. Both are rustls' code over our HMAC.

use rustls::crypto::hmac::Hmac;
use rustls::crypto::tls12::{Prf, PrfUsingHmac};
use rustls::crypto::tls13::{Hkdf, HkdfUsingHmac};

use super::super::hex;
use super::{HmacSha256, HmacSha384};

fn prf(hmac: &'static dyn Hmac, secret: &str, seed: &str, expected: &str) {
    let expected = hex(expected);
    let mut output = vec![0; expected.len()];
    PrfUsingHmac(hmac).for_secret(&mut output, &hex(secret), b"test label", &hex(seed));
    assert_eq!(output, expected);
}

#[test]
fn tls12_derives_the_known_bytes_with_sha256() {
    prf(
        &HmacSha256,
        "9bbe436ba940f017b17652849a71db35",
        "a0ba9f936cda311827a6f796ffd5198c",
        "e3f229ba727be17b8d122620557cd453c2aab21d07c3d495329b52d4e61edb5a
         6b301791e90d35c9c9a46b4e14baf9af0fa022f7077def17abfd3797c0564bab
         4fbc91666e9def9b97fce34f796789baa48082d122ee42c5a72e5a5110fff701
         87347b66",
    );
}

#[test]
fn tls12_derives_the_known_bytes_with_sha384() {
    prf(
        &HmacSha384,
        "b80b733d6ceefcdc71566ea48e5567df",
        "cd665cf6a8447dd6ff8b27555edb7465",
        "7b0c18e9ced410ed1804f2cfa34a336a1c14dffb4900bb5fd7942107e81c83cd
         e9ca0faa60be9fe34f82b1233c9146a0e534cb400fed2700884f9dc236f80edd
         8bfa961144c9e8d792eca722a7b32fc3d416d473ebc2c5fd4abfdad05d918425
         9b5bf8cd4d90fa0d31e2dec479e4f1a26066f2eea9a69236a3e52655c9e9aee6
         91c8f3a26854308d5eaa3be85e0990703d73e56f",
    );
}

#[test]
fn hkdf_expands_as_in_rfc_5869() {
    let expander = HkdfUsingHmac(&HmacSha256).extract_from_secret(
        Some(&hex("000102030405060708090a0b0c")),
        &hex("0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b"),
    );
    let mut output = [0; 42];
    expander.expand_slice(&[&hex("f0f1f2f3f4f5f6f7f8f9")], &mut output).expect("a short output");
    assert_eq!(
        output[..],
        hex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865")
    );
}
