//! A TLS server: TLS 1.3 only, with a client certificate if the client has one.
//!
//! A client can occupy only limited memory (a record, and a handshake message of 64 KiB), and cause only limited work
//! before it is known: the caller limits the time of the handshake. Each read yields to other tasks.

use std::cell::{Cell, RefCell};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, ServerConfig, ServerConnection, WebPkiClientVerifier};
use rustls::{Error, RootCertStore};
use smol::Async;
use smol::io::{AsyncReadExt, AsyncWriteExt};

use super::{ClientKey, TlsError, provider, signature};

/// Bytes that are read or sent at a time, and the encrypted bytes that wait for the client.
const PIECE: usize = 16 * 1024;

/// The time for which a client may still send after the last data for it.
const REST_WITHIN: Duration = Duration::from_secs(2);

/// The certificate of a server, and the clients that it accepts.
#[derive(Clone, Debug)]
pub struct Identity(Arc<ServerConfig>);

impl Identity {
    /// A server with these certificates (DER), its own first, and their key. Clients may have no certificate, or one
    /// from a root in `clients` (DER); a handshake with another one fails.
    ///
    /// # Errors
    /// No root is a valid certificate.
    pub fn new(
        certificates: Vec<Vec<u8>>,
        key: ClientKey,
        clients: &[Vec<u8>],
    ) -> Result<Identity, TlsError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(clients.iter().map(|root| CertificateDer::from(&root[..])));
        let provider = Arc::new(provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let verifier = verifier.allow_unauthenticated().build();
        let verifier = verifier.map_err(|error| TlsError::Failed(Error::General(error.to_string())))?;
        let certificates = certificates.into_iter().map(CertificateDer::from).collect();
        let key = Arc::new(signature::Signing(Arc::new(key)));
        let certified = rustls::sign::CertifiedKey::new(certificates, key);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(TlsError::Failed)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified)));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Identity(Arc::new(config)))
    }
}

/// The server's end of a connection.
pub struct Server {
    stream: Async<TcpStream>,
    connection: RefCell<ServerConnection>,
}

impl Server {
    /// Performs the handshake. The caller limits its time.
    ///
    /// # Errors
    /// The client does not speak TLS 1.3, has a certificate that is not accepted, or has ended.
    pub async fn accept(stream: Async<TcpStream>, identity: &Identity) -> Result<Server, TlsError> {
        let mut connection = ServerConnection::new(identity.0.clone()).map_err(TlsError::Failed)?;
        connection.set_buffer_limit(Some(PIECE));
        let server = Server { stream, connection: RefCell::new(connection) };
        while server.connection.borrow().is_handshaking() {
            let received = server.receive().await;
            // Even if it has failed: the client learns why.
            let flushed = server.flush().await;
            received?;
            flushed.map_err(TlsError::Io)?;
        }
        Ok(server)
    }

    /// The certificate of the client (DER), which was verified, if it has one.
    pub fn client(&self) -> Option<Vec<u8>> {
        let connection = self.connection.borrow();
        Some(connection.peer_certificates()?.first()?.to_vec())
    }

    /// Passes bytes between the client and `plain`, until `plain` has ended or the client is gone. The end of the
    /// client's data is the end of the data on `plain`.
    pub async fn relay(&self, plain: &Async<UnixStream>) {
        let (has_ended, is_closing) = (Cell::new(false), Cell::new(false));
        let up = async {
            if self.decrypt(plain).await.is_ok() && !is_closing.get() {
                has_ended.set(true);
                if plain.get_ref().shutdown(Shutdown::Write).is_ok() {
                    smol::future::pending::<()>().await;
                }
            }
        };
        let down = async {
            // The client is gone if this fails.
            if self.encrypt(plain).await.is_ok() && !has_ended.get() {
                let _ = self.stream.get_ref().shutdown(Shutdown::Write);
                // What the client still sends is received: otherwise the kernel would reset the connection, before the
                // client has read everything.
                is_closing.set(true);
                smol::Timer::after(REST_WITHIN).await;
            }
        };
        smol::future::or(up, down).await;
    }

    async fn decrypt(&self, mut plain: &Async<UnixStream>) -> Result<(), TlsError> {
        let (mut piece, mut is_open) = (vec![0; PIECE], true);
        loop {
            let read = self.connection.borrow_mut().reader().read(&mut piece);
            match read {
                Ok(0) => return Ok(()),
                // Who no longer reads may still have written something.
                Ok(count) => is_open = is_open && plain.write_all(&piece[..count]).await.is_ok(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.receive().await?,
                Err(_) => return Err(TlsError::Ended),
            }
        }
    }

    async fn encrypt(&self, mut plain: &Async<UnixStream>) -> io::Result<()> {
        let mut piece = vec![0; PIECE];
        loop {
            let count = plain.read(&mut piece).await?;
            let mut rest = &piece[..count];
            if count == 0 {
                self.connection.borrow_mut().send_close_notify();
                return self.flush().await;
            }
            while !rest.is_empty() {
                let taken = self.connection.borrow_mut().writer().write(rest)?;
                rest = &rest[taken..];
                self.flush().await?;
            }
        }
    }

    /// Receives a part of the client's records.
    async fn receive(&self) -> Result<(), TlsError> {
        // A socket that always has something would never be waited for.
        smol::future::yield_now().await;
        let read = |mut socket: &TcpStream| self.connection.borrow_mut().read_tls(&mut socket);
        if self.stream.read_with(read).await.map_err(TlsError::Io)? == 0 {
            // A client that ends without `close_notify` is an error of the reader.
            if self.connection.borrow().is_handshaking() {
                return Err(TlsError::Ended);
            }
        }
        self.connection.borrow_mut().process_new_packets().map_err(TlsError::Failed)?;
        Ok(())
    }

    async fn flush(&self) -> io::Result<()> {
        let write = |mut socket: &TcpStream| {
            let mut connection = self.connection.borrow_mut();
            while connection.wants_write() {
                connection.write_tls(&mut socket)?;
            }
            Ok(())
        };
        self.stream.write_with(write).await
    }
}
