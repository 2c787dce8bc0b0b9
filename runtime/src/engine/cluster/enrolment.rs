//! Gets the credentials with which the agent follows a cluster: the stored ones, or new ones with the bootstrap
//! kubeconfig of the image (`etc/nodlet/bootstrap-kubeconfig`), also after the stored certificate has expired. Waits
//! for what is missing: a network, with back-off, or a clock, without polling. Pods wait for none of it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use nodlet_cluster::api::random;
use nodlet_cluster::backoff::Backoff;
use nodlet_cluster::credentials::{Credentials, Server, Usability, valid_from};
use nodlet_cluster::enrol::{Authority, Join, join};
use nodlet_cluster::error::JoinError;
use nodlet_cluster::kubeconfig::Bootstrap;
use nodlet_core::error::causes;
use nodlet_core::time::Timestamp;
use nodlet_host::clock::timestamp;
use nodlet_kube::manifest::{self, TextError};
use nodlet_registry::NodeEvent;
use nodlet_wire::tls::TlsError;

use super::Shell;
use crate::at_rest::read_file;
use crate::engine::kernel_events::clock_shows;
use crate::prober::lookup;

/// The time for which a request for a certificate waits to be approved, before another is made.
const APPROVAL_WITHIN: Duration = Duration::from_secs(60 * 60);

/// The longest time between two attempts to enrol.
const ENROL_AGAIN: Duration = Duration::from_secs(300);

/// The reason why the board has no credentials that it can use, or cannot make a connection with them.
#[derive(thiserror::Error)]
pub(in crate::engine) enum EnrolmentError {
    /// A file cannot be read.
    #[error("{file}")]
    Read { file: String, source: io::Error },
    /// The bootstrap kubeconfig is not one object of YAML. The text has the words of its source.
    #[error("{0}")]
    Syntax(TextError),
    /// A file does not contain what it must.
    #[error("{file}")]
    Content { file: String, source: JoinError },
    /// The host of the API server has no address.
    #[error("no such host: {0}")]
    NoAddress(String),
    /// The board cannot join the cluster, or get a certificate.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The key of a certificate cannot be used.
    #[error("the stored client key is invalid")]
    Key,
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(TlsError),
}

/// The text: the derived code would be linked without being used.
impl fmt::Debug for EnrolmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Waits until there are credentials that can be used. Returns `None` if the board has joined no cluster; a reason
/// besides the lack of both files is an event of the node.
pub(super) async fn credentials(shell: &Shell) -> Option<Credentials> {
    let (mut backoff, mut reported) = (Backoff::up_to(ENROL_AGAIN), String::new());
    // Each reason once: a board may be without its cluster for weeks.
    let mut tell = |reason: &str, why: String| {
        if reported != why {
            shell.publication.emit_of_node(NodeEvent::Machine(reason, &why));
            reported = why;
        }
    };
    loop {
        let path = shell.paths.cluster_credentials();
        let stored = match stored(shell, path.clone()).await {
            Ok(stored) => stored,
            Err(error) => {
                tell(
                    "ClusterNotFollowed",
                    format!("the board is not connected to its cluster: {}", causes(&error)),
                );
                return None;
            }
        };
        let is_stored = stored.is_some();
        if let Some(credentials) = stored {
            match Usability::of(credentials.validity(), seconds()) {
                Usability::Valid => return Some(credentials),
                Usability::NotYet(from) => {
                    tell("ClusterNotFollowed", clock_is_wrong(from));
                    clock_shows(Some(from)).await;
                    continue;
                }
                Usability::Expired(to) => tell(
                    "ClusterCertificateExpired",
                    format!(
                        "the client certificate of the cluster at {} expired at {}: without a bootstrap kubeconfig, \
                         run `nodlet join` with a new token; the pods of the board are not affected",
                        credentials.server,
                        time(to)
                    ),
                ),
            }
        }
        let bootstrap = match bootstrap(shell).await {
            Ok(Some(bootstrap)) => bootstrap,
            Ok(None) if !is_stored => return None,
            Ok(None) => {
                // `nodlet join` ends this task. The certificate may not have expired by a clock that is set later.
                clock_shows(None).await;
                continue;
            }
            Err(error) => {
                tell(
                    "ClusterNotFollowed",
                    format!("the board does not enrol in a cluster: {}", causes(&error)),
                );
                return None;
            }
        };
        if let Some(from) = valid_from(&bootstrap.roots).filter(|from| seconds() < *from) {
            tell("ClusterNotFollowed", clock_is_wrong(from));
            clock_shows(Some(from)).await;
            continue;
        }
        match enrol(shell, &bootstrap).await {
            Ok(credentials) => {
                let text = credentials.to_json().into_bytes();
                let written = shell.stores.replace_sealed(path.clone(), text).await;
                match written {
                    Ok(_) => {
                        log::info!("enrolled in the cluster at {}", bootstrap.server);
                        return Some(credentials);
                    }
                    Err(error) => {
                        tell(
                            "ClusterEnrolmentFailed",
                            format!("failed to write {}: {error}", path.display()),
                        );
                    }
                }
            }
            Err(error) => tell(
                "ClusterEnrolmentFailed",
                format!("failed to enrol in the cluster at {}: {}", bootstrap.server, causes(&error)),
            ),
        }
        smol::Timer::after(backoff.failed(random())).await;
    }
}

/// The stored credentials, if there are any.
async fn stored(shell: &Shell, path: PathBuf) -> Result<Option<Credentials>, EnrolmentError> {
    let file = || "its cluster.json".to_owned();
    let text = read(shell, path).await.map_err(|source| EnrolmentError::Read { file: file(), source })?;
    let stored = text.map(|text| Credentials::from_json(&text)).transpose();
    stored.map_err(|source| EnrolmentError::Content { file: file(), source })
}

async fn enrol(shell: &Shell, bootstrap: &Bootstrap) -> Result<Credentials, EnrolmentError> {
    let request = Join {
        server: &bootstrap.server,
        addresses: addresses(&bootstrap.server).await?,
        token: &bootstrap.token,
        authority: Authority::Roots(&bootstrap.roots),
        node: &shell.config.node_name,
        machine_id: &shell.machine.installed.machine_id,
        now: timestamp(),
        limit: APPROVAL_WITHIN,
    };
    Ok(join(request).await?)
}

/// The addresses of an API server.
///
/// # Errors
/// The server has no address.
pub(super) async fn addresses(server: &Server) -> Result<Vec<SocketAddr>, EnrolmentError> {
    let found = match server.host.parse() {
        Ok(ip) => vec![ip],
        Err(_) => lookup::lookup(&server.host).await.unwrap_or_default(),
    };
    if found.is_empty() {
        Err(EnrolmentError::NoAddress(server.host.clone()))
    } else {
        Ok(found.into_iter().map(|ip| SocketAddr::new(ip, server.port)).collect())
    }
}

/// The bootstrap kubeconfig; `None` if there is none, or the board has left its cluster.
async fn bootstrap(shell: &Shell) -> Result<Option<Bootstrap>, EnrolmentError> {
    let (path, left) = (shell.paths.bootstrap_kubeconfig(), shell.paths.cluster_left());
    if shell.stores.storage.run(move || left.exists()).await {
        return Ok(None);
    }
    let file = path.display().to_string();
    let text = match read(shell, path).await {
        Ok(Some(text)) => text,
        Ok(None) => return Ok(None),
        Err(source) => return Err(EnrolmentError::Read { file, source }),
    };
    let config = manifest::object_of(&file, &text).map_err(EnrolmentError::Syntax)?;
    Bootstrap::new(&config).map(Some).map_err(|source| EnrolmentError::Content { file, source })
}

/// Reads a file, which may be encrypted, on the storage thread; `None` if it is missing.
pub(super) async fn read(shell: &Shell, path: PathBuf) -> io::Result<Option<String>> {
    let at_rest = shell.stores.at_rest.clone();
    let read = shell.stores.storage.run(move || {
        let text = at_rest.open(&path, read_file(&path)?)?;
        String::from_utf8(text).map_err(|_| io::Error::other("not valid UTF-8"))
    });
    match read.await {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn clock_is_wrong(from: i64) -> String {
    format!(
        "the clock of this board is wrong: it shows {}, and the certificate for the cluster is valid from {}; the \
         cluster is followed when the clock is set, and pods do not wait for that",
        timestamp(),
        time(from)
    )
}

/// A time in seconds since 1970.
fn time(seconds: i64) -> Timestamp {
    Timestamp(seconds.saturating_mul(1_000_000_000))
}

/// The wall time in seconds since 1970.
pub(super) fn seconds() -> i64 {
    timestamp().0.div_euclid(1_000_000_000)
}
