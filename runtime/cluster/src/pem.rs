//! PEM (RFC 7468), as Kubernetes carries certificates and requests for certificates.

use nodlet_kube::base64;

/// The label of a certificate.
pub const CERTIFICATE: &str = "CERTIFICATE";
/// The label of a request for a certificate.
pub(crate) const CERTIFICATE_REQUEST: &str = "CERTIFICATE REQUEST";

/// Encodes `der`, with lines of 64 characters.
pub fn encode(label: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in base64::encode(der).as_bytes().chunks(64) {
        text.push_str(&String::from_utf8_lossy(line));
        text.push('\n');
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

/// Encodes certificates, one after the other.
pub(crate) fn encode_all(certificates: &[Vec<u8>]) -> String {
    certificates.iter().map(|der| encode(CERTIFICATE, der)).collect()
}

/// Decodes all blocks with this label. Other text is skipped; a block that is not base64 is an error.
pub fn decode(label: &str, text: &str) -> Option<Vec<Vec<u8>>> {
    let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
    let (mut blocks, mut rest) = (Vec::new(), text);
    while let Some((_, after)) = rest.split_once(&*begin) {
        let (body, after) = after.split_once(&*end)?;
        let body: Vec<u8> = body.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        blocks.push(base64::decode(&body).ok()?);
        rest = after;
    }
    Some(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_between_other_text() {
        let (long, short) = (vec![7; 100], vec![1, 2, 3]);
        let text = format!("# a\n{}x\n{}", encode(CERTIFICATE, &long), encode(CERTIFICATE, &short));
        assert!(text.lines().all(|line| line.len() <= 64), "{text}");
        assert_eq!(decode(CERTIFICATE, &text), Some(vec![long, short]));
        assert_eq!(decode(CERTIFICATE_REQUEST, &text), Some(Vec::new()));
        assert_eq!(decode(CERTIFICATE, "-----BEGIN CERTIFICATE-----\nAAAA"), None);
        assert_eq!(decode(CERTIFICATE, "-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----"), None);
    }
}
