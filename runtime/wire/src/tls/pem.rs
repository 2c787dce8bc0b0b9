//! PEM (RFC 7468), as Kubernetes carries certificates and requests for certificates. It is read by the parser of rustls.

use data_encoding::BASE64;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{Error, PemObject};

/// The label of a certificate.
pub const CERTIFICATE: &str = "CERTIFICATE";
/// The label of a request for a certificate.
pub const CERTIFICATE_REQUEST: &str = "CERTIFICATE REQUEST";

/// Encodes `der`, with lines of 64 characters.
pub fn encode(label: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in BASE64.encode(der).as_bytes().chunks(64) {
        text.push_str(&String::from_utf8_lossy(line));
        text.push('\n');
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

/// Encodes certificates, one after the other.
pub fn encode_all(certificates: &[Vec<u8>]) -> String {
    certificates.iter().map(|der| encode(CERTIFICATE, der)).collect()
}

/// The certificates (DER) in `text`, and an error for each section that is not base64 or has no end. Other sections and
/// other text are skipped.
pub fn certificates(text: &[u8]) -> impl Iterator<Item = Result<Vec<u8>, Error>> {
    CertificateDer::pem_slice_iter(text).map(|certificate| Ok(certificate?.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_found_between_other_text() {
        let all = |text: &str| certificates(text.as_bytes()).collect::<Result<Vec<_>, _>>().ok();
        let (long, short) = (vec![7; 100], vec![1, 2, 3]);
        let text = format!("# a\n{}x\n{}", encode(CERTIFICATE, &long), encode(CERTIFICATE, &short));
        assert!(text.lines().all(|line| line.len() <= 64), "{text}");
        assert_eq!(all(&text), Some(vec![long, short]));
        assert_eq!(all(&text.replace('\n', "\r\n")), all(&text));
        assert_eq!(all(&encode(CERTIFICATE_REQUEST, &[1])), Some(Vec::new()));
        assert_eq!(all("-----BEGIN CERTIFICATE-----\nAAAA"), None);
        let broken = "-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n";
        assert_eq!(all(broken), None);
        let others: Vec<_> = certificates(format!("{broken}{text}").as_bytes()).flatten().collect();
        assert_eq!(Some(others), all(&text));
    }
}
