//! Connections to a registry, and the authorities that certify it.

use std::fmt;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;

use nodlet_base64 as base64;
use nodlet_wire::http::{Connection, HttpError, Request, Stream};
use nodlet_wire::tls::{Client, TlsError, Trust};
use smol::Async;

use super::proxy::{self, AUTHORIZATION, Proxy};
use super::{Origin, RemoteError};

/// The certificates of all authorities that the machine trusts, below the root.
const AUTHORITIES: &str = "etc/ssl/certs/ca-certificates.crt";

/// Connects to a server, through a proxy if there is one for it.
pub(super) async fn connect(
    root: &Path,
    origin: &Origin,
    proxy: Option<&Proxy>,
) -> Result<Connection, RemoteError> {
    let (name, port) = proxy::parts(origin);
    let address = match origin.host.ends_with(&format!(":{port}")) {
        true => origin.host.clone(),
        false => format!("{}:{port}", origin.host),
    };
    let socket = match proxy {
        None => dial(&address, "tcp", &origin.host).await?,
        Some(proxy) => {
            let socket = dial(&proxy.address, "proxy", &proxy.address).await?;
            match origin.is_plain {
                true => socket,
                false => tunnel(socket, proxy, &address).await?,
            }
        }
    };
    if origin.is_plain {
        return Ok(Connection::new(Stream::Plain(socket)));
    }
    let client = Client::verified(socket, name, &trust(root, &origin.host)?).await;
    let client = client.map_err(|error| match error {
        TlsError::Io(_) | TlsError::Ended => RemoteError::Http(HttpError::Tls(error)),
        error => RemoteError::Tls(error),
    })?;
    Ok(Connection::new(Stream::Tls(Box::new(client))))
}

/// Connects to the first address of a server that accepts the connection.
async fn dial(address: &str, kind: &str, shown: &str) -> Result<Async<TcpStream>, RemoteError> {
    let failed = |error: &dyn fmt::Display| RemoteError::Connect(format!("dial {kind} {shown}: {error}"));
    // This process has nothing else to do.
    let addresses = address.to_socket_addrs().map_err(|error| failed(&error))?;
    let mut last = None;
    for address in addresses {
        match Async::<TcpStream>::connect(address).await {
            Ok(socket) => return Ok(socket),
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| failed(&"no address"), |error| failed(&error)))
}

/// Lets a proxy forward a connection to `address`.
async fn tunnel(
    socket: Async<TcpStream>,
    proxy: &Proxy,
    address: &str,
) -> Result<Async<TcpStream>, RemoteError> {
    let authorization = proxy.authorization();
    let headers: Vec<(&str, &str)> =
        authorization.iter().map(|value| (AUTHORIZATION, value.as_str())).collect();
    let request = Request { method: "CONNECT", target: address, host: address, headers: &headers, body: &[] };
    let mut connection = Connection::new(Stream::Plain(socket));
    let head = connection.send(&request).await?;
    let refused =
        |why: &dyn fmt::Display| RemoteError::Connect(format!("dial proxy {}: {why}", proxy.address));
    if !(200..300).contains(&head.status) {
        return Err(refused(&format_args!("it responded with status {}", head.status)));
    }
    // No server of TLS is the first to speak.
    connection.into_socket().ok_or_else(|| refused(&"it sent more than a head"))
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
