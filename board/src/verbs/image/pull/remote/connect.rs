//! Connections to a registry, and the authorities that certify it.

use std::fmt;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;

use nodlet_base64 as base64;
use nodlet_wire::http::{Connection, HttpError, Stream};
use nodlet_wire::tls::{Client, TlsError, Trust};
use smol::Async;

use super::{Origin, RemoteError};

/// The certificates of all authorities that the machine trusts, below the root.
const AUTHORITIES: &str = "etc/ssl/certs/ca-certificates.crt";

pub(super) async fn connect(root: &Path, origin: &Origin) -> Result<Connection, RemoteError> {
    let failed =
        |error: &dyn fmt::Display| RemoteError::Connect(format!("dial tcp {}: {error}", origin.host));
    let has_port = origin.host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let port = if origin.is_plain { 80 } else { 443 };
    let address = if has_port { origin.host.clone() } else { format!("{}:{port}", origin.host) };
    // This process has nothing else to do.
    let addresses = address.to_socket_addrs().map_err(|error| failed(&error))?;
    let mut last = None;
    for address in addresses {
        match Async::<TcpStream>::connect(address).await {
            Ok(socket) if origin.is_plain => return Ok(Connection::new(Stream::Plain(socket))),
            Ok(socket) => {
                let name = match has_port {
                    true => origin.host.rsplit_once(':').map_or("", |(name, _)| name),
                    false => &origin.host,
                };
                let name = name.trim_start_matches('[').trim_end_matches(']');
                let client = Client::verified(socket, name, &trust(root, &origin.host)?).await;
                let client = client.map_err(|error| match error {
                    TlsError::Io(_) | TlsError::Ended => RemoteError::Http(HttpError::Tls(error)),
                    error => RemoteError::Tls(error),
                })?;
                return Ok(Connection::new(Stream::Tls(Box::new(client))));
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| failed(&"no address"), |error| failed(&error)))
}

/// The authorities that certify a host: those of the machine, and those of the directory in which podman keeps an
/// authority of one registry.
fn trust(root: &Path, host: &str) -> Result<Trust, RemoteError> {
    let mut roots = Vec::new();
    let of_host = root.join("etc/containers/certs.d").join(host);
    let files = std::fs::read_dir(&of_host).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = files.filter(|path| path.extension().is_some_and(|end| end == "crt"));
    for file in std::iter::once(root.join(AUTHORITIES)).chain(files) {
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        for certificate in text.split("-----BEGIN CERTIFICATE-----").skip(1) {
            let certificate = certificate.split("-----END").next().unwrap_or_default();
            let letters: Vec<u8> = certificate.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
            roots.extend(base64::decode(&letters).ok());
        }
    }
    if roots.is_empty() {
        let bundle = root.join(AUTHORITIES);
        return Err(RemoteError::Invalid(format!(
            "no authority certifies {host}: neither {} nor {} has certificates",
            bundle.display(),
            of_host.display()
        )));
    }
    Trust::new(&roots, None).map_err(RemoteError::Tls)
}
