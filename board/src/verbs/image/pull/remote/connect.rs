//! Connections to a registry, and the authorities that certify it.

use std::fmt;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;

use nodlet_kernel::own_file;
use nodlet_kube::base64;
use nodlet_wire::http::{Connection, HttpError, Stream};
use nodlet_wire::tls::{Client, TlsError, Trust};
use smol::Async;

use super::{Origin, RemoteError, proxy};

/// The certificates of all authorities that the machine trusts, below the root.
const AUTHORITIES: &str = "etc/ssl/certs/ca-certificates.crt";

/// Connects to a server, through a proxy if the environment names one for it.
pub(super) async fn connect(root: &Path, origin: &Origin) -> Result<Connection, RemoteError> {
    let (name, has_port) = parts(&origin.host);
    let port = if origin.is_plain { 80 } else { 443 };
    let address = if has_port { origin.host.clone() } else { format!("{}:{port}", origin.host) };
    let proxy = proxy::of(&origin.host, name, origin.is_plain, &|name| std::env::var(name).ok())?;
    let (to, shown) = match &proxy {
        Some(proxy) => (&proxy.address, &proxy.address),
        None => (&address, &origin.host),
    };
    let failed = |error: &dyn fmt::Display| RemoteError::Connect(format!("dial tcp {shown}: {error}"));
    // This process has nothing else to do.
    let addresses = to.to_socket_addrs().map_err(|error| failed(&error))?;
    let mut last = None;
    for one in addresses {
        match Async::<TcpStream>::connect(one).await {
            Ok(socket) => {
                if let Some(proxy) = &proxy {
                    proxy.tunnel(socket.get_ref(), &address)?;
                }
                if origin.is_plain {
                    return Ok(Connection::new(Stream::Plain(socket)));
                }
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

/// The name or the address of a host, and whether a port follows it.
pub(super) fn parts(host: &str) -> (&str, bool) {
    let split = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
    let name = split.map_or(host, |(name, _)| name);
    (name.trim_start_matches('[').trim_end_matches(']'), split.is_some())
}

/// The authorities that certify a host: those of the machine, and those of the directory in which podman keeps an
/// authority of one registry.
fn trust(root: &Path, host: &str) -> Result<Trust, RemoteError> {
    let mut roots = Vec::new();
    let of_host = root.join("etc/containers/certs.d").join(host);
    let files = std::fs::read_dir(&of_host).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = files.filter(|path| path.extension().is_some_and(|end| end == "crt"));
    for file in std::iter::once(root.join(AUTHORITIES)).chain(files) {
        let text = match own_file::read_linked(&file) {
            Ok(text) => text,
            Err(error) if own_file::is_irregular(&error) => {
                return Err(RemoteError::Invalid(format!("{}: {error}", file.display())));
            }
            Err(_) => continue,
        };
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
