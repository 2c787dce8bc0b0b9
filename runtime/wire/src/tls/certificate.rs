//! Requests for certificates (PKCS #10), and self-signed certificates (X.509).

use std::net::IpAddr;

use rustls::pki_types::alg_id;

use super::ClientKey;
use super::der::{
    BIT_STRING, GENERALIZED_TIME, INTEGER, OCTET_STRING, OID, SEQUENCE, SET, UTC_TIME, UTF8_STRING, value,
};

/// `organizationName`.
pub const ORGANIZATION: &[u8] = &[0x55, 4, 10];
/// `commonName`.
pub const COMMON_NAME: &[u8] = &[0x55, 4, 3];
/// `subjectAltName`.
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 17];
/// `extensionRequest` of PKCS #9.
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 14];

impl ClientKey {
    /// A request for a certificate (PKCS #10) with this organization and common name, for a server with these names
    /// and addresses, or for a client if there are none.
    pub fn certificate_request(&self, organization: &str, common_name: &str, names: &[String]) -> Vec<u8> {
        let subject =
            value(SEQUENCE, &[&attribute(ORGANIZATION, organization), &attribute(COMMON_NAME, common_name)]);
        // Attributes are not optional, even if there are none.
        let attributes = match names {
            [] => Vec::new(),
            names => value(
                SEQUENCE,
                &[&value(OID, &[EXTENSION_REQUEST]), &value(SET, &[&alternative_names(names)])],
            ),
        };
        let key = self.public_key_info();
        self.signed(&[&value(INTEGER, &[&[0]]), &subject, &key, &value(0xa0, &[&attributes])])
    }

    /// A certificate that this key signs itself, for a server with these names and addresses. It is valid at any time.
    pub fn self_signed(&self, common_name: &str, names: &[String]) -> Vec<u8> {
        let name = value(SEQUENCE, &[&attribute(COMMON_NAME, common_name)]);
        let always =
            [&value(UTC_TIME, &[b"700101000000Z"])[..], &value(GENERALIZED_TIME, &[b"99991231235959Z"])];
        self.signed(&[
            &value(0xa0, &[&value(INTEGER, &[&[2]])]),
            &value(INTEGER, &[&[1]]),
            &value(SEQUENCE, &[alg_id::ECDSA_SHA256.as_ref()]),
            &name,
            &value(SEQUENCE, &always),
            &name,
            &self.public_key_info(),
            &value(0xa3, &[&alternative_names(names)]),
        ])
    }

    fn signed(&self, fields: &[&[u8]]) -> Vec<u8> {
        let fields = value(SEQUENCE, fields);
        let signature = value(BIT_STRING, &[&[0], &self.sign(&fields)]);
        value(SEQUENCE, &[&fields, &value(SEQUENCE, &[alg_id::ECDSA_SHA256.as_ref()]), &signature])
    }
}

fn attribute(oid: &[u8], text: &str) -> Vec<u8> {
    let pair = value(SEQUENCE, &[&value(OID, &[oid]), &value(UTF8_STRING, &[text.as_bytes()])]);
    value(SET, &[&pair])
}

/// The `Extensions` with these names and addresses.
fn alternative_names(names: &[String]) -> Vec<u8> {
    let names: Vec<Vec<u8>> = names
        .iter()
        .map(|name| match name.parse() {
            Ok(IpAddr::V4(address)) => value(0x87, &[&address.octets()]),
            Ok(IpAddr::V6(address)) => value(0x87, &[&address.octets()]),
            Err(_) => value(0x82, &[name.as_bytes()]),
        })
        .collect();
    let names = value(OCTET_STRING, &[&value(SEQUENCE, &[&names.concat()])]);
    value(SEQUENCE, &[&value(SEQUENCE, &[&value(OID, &[ALTERNATIVE_NAMES]), &names])])
}
