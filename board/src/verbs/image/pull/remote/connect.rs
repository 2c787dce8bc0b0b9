//! Connections to a registry, and the authorities that certify it.

use std::fmt;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;

use nodlet_kernel::own_file;
use nodlet_wire::http::{Connection, Stream};
use nodlet_wire::tls::{Client, TlsError, Trust, pem};
use smol::Async;

use super::{CONNECT_WITHIN, Origin, RemoteError, in_time, proxy};

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
    let dialled = async {
        let mut last = failed(&"no address");
        for one in addresses {
            match Async::<TcpStream>::connect(one).await {
                Ok(socket) => return Ok(socket),
                Err(error) => last = failed(&error),
            }
        }
        Err(last)
    };
    let mut socket = in_time(CONNECT_WITHIN, dialled).await?;
    if let Some(proxy) = &proxy {
        socket = proxy.tunnel(socket, &address).await?;
    }
    if origin.is_plain {
        return Ok(Connection::new(Stream::Plain(socket)));
    }
    let trust = trust(root, &origin.host)?;
    let client = in_time(CONNECT_WITHIN, async {
        Client::verified(socket, name, &trust).await.map_err(|error| match error {
            TlsError::Io(_) | TlsError::Ended => RemoteError::Http(error.into()),
            error => RemoteError::Tls(error),
        })
    });
    Ok(Connection::new(Stream::Tls(Box::new(client.await?))))
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
        roots.extend(pem::certificates(text.as_bytes()).flatten());
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
