//! The kubelet's server (port 10250) of a board that has joined a cluster: the API server connects to it for logs,
//! `exec` and metrics. It exists only while the board has credentials of a cluster.
//!
//! TLS ends here: the bytes inside of it pass through a socket pair to the local API, which serves them with the routes
//! of `api/kubelet.rs`, after the API server has said who the client is and what it may do. Its clients have places of
//! their own, so that they cannot keep clients of the local API out.

use std::cell::RefCell;
use std::future::Future;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::header::AUTHORIZATION;
use hyper::{HeaderMap, Method};
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::Value;
use smol::lock::{Mutex, Semaphore};
use smol::{Async, LocalExecutor};

use nodlet_cluster::api::{Api as ClusterApi, ApiError, JSON, random};
use nodlet_cluster::backoff::{Backoff, Rate};
use nodlet_cluster::credentials::{Credentials, Secret};
use nodlet_cluster::enrol;
use nodlet_cluster::review::{self, AccessAnswers, TokenAnswers};
use nodlet_cluster::serving::{self, Next, Renewal, Serving};
use nodlet_core::error::causes;
use nodlet_registry::NodeEvent;
use nodlet_registry::objects::Key;
use nodlet_wire::timeout::within;
use nodlet_wire::tls::ClientKey;
use nodlet_wire::tls::server::{Identity, Server};

use super::super::kernel_events::clock_shows;
use super::enrolment::EnrolmentError;
use super::{Shell, connection, enrolment};
use crate::api::{Api, Authorization, Place, Status, connection, place_for_one};

/// The time limit of a TLS handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// The interval of the checks for a client that hangs, while another client waits: from hundreds of clients that say
/// nothing, the next one is served within seconds.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The time for which a client may be gone without notice: idle seconds until the kernel asks, between questions, and
/// the number of questions.
const KEEP_ALIVE: (u32, u32, u32) = (30, 10, 3);

/// The bytes that the kernel keeps of a client that is served more slowly than it sends, or the reverse.
const BUFFER: usize = 32 * 1024;

/// The time for which a requested certificate is awaited before it is requested again.
const CERTIFICATE_WITHIN: Duration = Duration::from_secs(60 * 60);

/// An event in the renewal of the certificate.
enum Due {
    /// A wait is over; whether the clock was set.
    Clock(bool),
    /// A request has ended.
    Requested(Result<Serving, EnrolmentError>),
}

/// The state of the server.
struct KubeletServer {
    shell: Rc<Shell>,
    api: Rc<Api>,
    credentials: RefCell<Credentials>,
    identity: RefCell<Identity>,
    /// The connection for questions about tokens, which clients without a credential cause.
    tokens: Reviewer,
    token_answers: RefCell<TokenAnswers>,
    /// The connection for questions about access, which never wait for those about tokens.
    access: Reviewer,
    access_answers: RefCell<AccessAnswers>,
}

/// A connection to the API server, which is made when it is needed. Questions are sent one after the other.
type Reviewer = Mutex<Option<ClusterApi>>;

/// Serves until the future is dropped. Ends at once if the board has no credentials, or the server is switched off.
pub(super) async fn run(shell: Rc<Shell>, api: Api) {
    if shell.config.kubelet_port == 0 {
        return;
    }
    // What is wrong with them is logged by the task that follows the cluster.
    let Some(credentials) = credentials(&shell).await else { return };
    let path = shell.paths.serving_certificate();
    let read = enrolment::read(&shell, path).await;
    let stored = read.ok().flatten().and_then(|text| Serving::from_json(&text));
    let server = async {
        let mut renewal = Renewal::new();
        let serving = match stored {
            Some(serving) => {
                renewal.restore(&serving, random());
                serving
            }
            None => {
                let own = self_signed(&shell, &credentials.node)?;
                renewal.renamed(&own.names);
                own
            }
        };
        let identity = identity(&serving, &credentials)?;
        let server = Rc::new(KubeletServer {
            shell,
            api: Rc::new(api),
            credentials: RefCell::new(credentials),
            identity: RefCell::new(identity),
            tokens: Mutex::new(None),
            token_answers: RefCell::default(),
            access: Mutex::new(None),
            access_answers: RefCell::default(),
        });
        smol::future::or(server.clone().serve(), server.certify(serving.names, renewal)).await;
        Ok::<(), EnrolmentError>(())
    };
    if let Err(error) = server.await {
        log::error!("the kubelet's server does not run: {}", causes(&error));
    }
}

/// The stored credentials of the cluster.
async fn credentials(shell: &Shell) -> Option<Credentials> {
    let path = shell.paths.cluster_credentials();
    let read = enrolment::read(shell, path).await;
    let credentials = read.ok().flatten().and_then(|text| Credentials::from_json(&text).ok());
    credentials.filter(|credentials| credentials.node == shell.config.node_name)
}

/// A certificate until there is one of the cluster.
fn self_signed(shell: &Shell, node: &str) -> Result<Serving, EnrolmentError> {
    let key = enrol::generate_key()?;
    let names = serving::names(&connection::local_node(shell, node));
    let certificates = vec![key.self_signed(node, &names)];
    Ok(Serving { names, certificates, key: Secret(key.to_bytes().to_vec()) })
}

fn identity(serving: &Serving, credentials: &Credentials) -> Result<Identity, EnrolmentError> {
    let key = ClientKey::from_bytes(&serving.key.0).ok_or(EnrolmentError::Key)?;
    Identity::new(serving.certificates.clone(), key, &credentials.roots).map_err(EnrolmentError::Tls)
}

impl KubeletServer {
    async fn serve(self: Rc<Self>) {
        let listener = self.listen().await;
        let free = Arc::new(Semaphore::new(self.api.places.most()));
        let connections = LocalExecutor::new();
        let accept = async {
            let mut rate = Rate::new(Instant::now());
            loop {
                let accepted = listener.accept().await;
                // Handshakes cost much more than other requests.
                let next = rate.read(0, Instant::now());
                let free = place_for_one(&self.api.places, &free, CHECK_INTERVAL).await;
                // An error: the client is gone already, or there are no descriptors left.
                if let Ok((stream, _)) = accepted {
                    let server = self.clone();
                    connections
                        .spawn(async move {
                            let place = server.api.places.take();
                            let disconnected = place.disconnected();
                            smol::future::or(server.converse(stream, place.clone()), disconnected).await;
                            drop(free);
                        })
                        .detach();
                } else {
                    smol::Timer::after(Duration::from_millis(100)).await;
                }
                smol::Timer::at(next).await;
            }
        };
        connections.run(accept).await
    }

    async fn listen(&self) -> Async<TcpListener> {
        let port = self.shell.config.kubelet_port;
        let (mut backoff, mut is_told) = (Backoff::default(), false);
        loop {
            // Where there is no IPv6, the first fails.
            let bound = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
                .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)));
            match bound.and_then(Async::new) {
                Ok(listener) => return listener,
                Err(error) if !is_told => {
                    log::error!("the kubelet's server cannot listen on port {port}: {error}");
                    is_told = true;
                }
                Err(_) => {}
            }
            smol::Timer::after(backoff.failed(random())).await;
        }
    }

    /// Serves one client.
    async fn converse(self: Rc<Self>, stream: Async<TcpStream>, place: Rc<Place>) {
        let (idle, between, count) = KEEP_ALIVE;
        let _ = setsockopt(&stream, sockopt::TcpNoDelay, &true);
        let _ = setsockopt(&stream, sockopt::KeepAlive, &true);
        let _ = setsockopt(&stream, sockopt::TcpKeepIdle, &idle);
        let _ = setsockopt(&stream, sockopt::TcpKeepInterval, &between);
        let _ = setsockopt(&stream, sockopt::TcpKeepCount, &count);
        let identity = self.identity.borrow().clone();
        let tls = match within(HANDSHAKE_WITHIN, Server::accept(stream, &identity)).await {
            Some(Ok(tls)) => tls,
            Some(Err(error)) => {
                return log::debug!("the kubelet's server: a client: {}", causes(&error));
            }
            None => {
                return log::debug!(
                    "the kubelet's server: a client: it did not complete the handshake in time"
                );
            }
        };
        let Ok((plain, served)) = UnixStream::pair() else { return };
        for end in [&plain, &served] {
            let _ = setsockopt(end, sockopt::SndBuf, &BUFFER);
        }
        let (Ok(plain), Ok(served)) = (Async::new(plain), Async::new(served)) else { return };
        let user = tls.client().and_then(|certificate| review::user_of_certificate(&certificate));
        let client = Rc::new(RemoteClient { server: self.clone(), user });
        let serve = connection(self.api.clone(), place, served, Some(client));
        smol::future::zip(
            async {
                tls.relay(&plain).await;
                drop(plain);
            },
            serve,
        )
        .await;
    }

    /// Asks the API server. The connection is kept.
    async fn ask(&self, reviewer: &Reviewer, path: &str, question: &Value) -> Result<Value, ApiError> {
        let mut client = reviewer.lock().await;
        let is_new = client.is_none();
        if let Some(kept) = &mut *client {
            match kept.call("POST", path, Some((JSON, question))).await {
                // The certificate may have been replaced.
                Err(error) if matches!(error.code(), None | Some(401)) => *client = None,
                answered => return answered,
            }
        }
        if !is_new && let Some(new) = credentials(&self.shell).await {
            *self.credentials.borrow_mut() = new;
        }
        let credentials = self.credentials.borrow().clone();
        let mut new = connection::client(&credentials).await.map_err(|error| ApiError::Status {
            code: 500,
            reason: String::new(),
            message: causes(&error),
            retry_after: Duration::ZERO,
        })?;
        let answered = new.call("POST", path, Some((JSON, question))).await;
        *client = Some(new);
        answered
    }

    /// The user with this token; `None` if it is not valid.
    async fn user_of_token(&self, token: &str) -> Result<Option<Value>, ApiError> {
        let kept = self.token_answers.borrow().get(token, Instant::now());
        if let Some(user) = kept {
            return Ok(user);
        }
        let question = review::token_review(token);
        let answer = self.ask(&self.tokens, review::TOKEN_REVIEWS, &question).await?;
        let user = review::user_of_token(&answer);
        self.token_answers.borrow_mut().put(token, user.clone(), Instant::now() + review::TOKEN_FOR);
        Ok(user)
    }

    /// Whether a user may use a subresource of this node.
    async fn is_allowed(&self, user: &Value, verb: &str, subresource: &str) -> Result<bool, ApiError> {
        let question = review::access_review(user, &self.api.node_name, verb, subresource);
        let text = question.to_string();
        let kept = self.access_answers.borrow().get(&text, Instant::now());
        if let Some(answer) = kept {
            return Ok(answer.is_some());
        }
        let answer = self.ask(&self.access, review::ACCESS_REVIEWS, &question).await?;
        let (allowed, lasts) = review::is_allowed(&answer);
        self.access_answers.borrow_mut().put(&text, allowed.then_some(()), Instant::now() + lasts);
        Ok(allowed)
    }

    /// Requests certificates, when `renewal` decides so.
    async fn certify(&self, mut names: Vec<String>, mut renewal: Renewal) {
        let mut reported = String::new();
        loop {
            let found = serving::names(&connection::local_node(&self.shell, &self.api.node_name));
            if found != names {
                names = found;
                renewal.renamed(&names);
            }
            let changed = async {
                self.names_differ(&names).await;
                None
            };
            let clock_set = |time| async move {
                clock_shows(time).await;
                true
            };
            let next = renewal.next(Instant::now(), enrolment::seconds());
            let due = async {
                Some(match next {
                    Next::Request => Due::Requested(self.request(&names).await),
                    Next::Name => smol::future::pending().await,
                    Next::Clock(at) => Due::Clock(clock_set(Some(at)).await && enrolment::seconds() < at),
                    Next::Until(at) => Due::Clock(
                        smol::future::or(
                            async {
                                smol::Timer::at(at).await;
                                false
                            },
                            clock_set(None),
                        )
                        .await,
                    ),
                })
            };
            match smol::future::or(due, changed).await {
                None | Some(Due::Clock(false)) => {}
                Some(Due::Clock(true)) => renewal.clock_was_set(),
                Some(Due::Requested(Ok(new))) => {
                    log::info!("the kubelet's server has a new certificate of the cluster");
                    renewal.signed(&new, Instant::now(), enrolment::seconds(), random());
                    reported.clear();
                }
                Some(Due::Requested(Err(error))) => {
                    let why = causes(&error);
                    renewal.failed(Instant::now(), random());
                    // Each reason once: a board may be without its cluster for weeks.
                    if reported != why {
                        self.warn(&format!(
                            "the kubelet's server has no new certificate of the cluster: {why}"
                        ));
                        reported = why;
                    }
                }
            }
        }
    }

    /// Publishes an event of the node about the certificate, which the log has, too.
    fn warn(&self, text: &str) {
        self.shell.publication.emit_of_node(NodeEvent::Machine("ServingCertificate", text));
    }

    /// Waits until the node has other names and addresses.
    async fn names_differ(&self, names: &[String]) {
        let objects = &self.shell.publication.objects;
        let key = Key::new("nodes", "", &self.api.node_name);
        let mut seen = None;
        loop {
            let version = objects.version();
            let node = objects.get(&key).map(|node| node.version);
            if seen != node {
                seen = node;
                if serving::names(&connection::local_node(&self.shell, &self.api.node_name)) != names {
                    return;
                }
            }
            objects.changed_since(version).await;
        }
    }

    /// Gets a certificate for these names, and serves with it.
    async fn request(&self, names: &[String]) -> Result<Serving, EnrolmentError> {
        let credentials = self.credentials.borrow().clone();
        let mut client = connection::client(&credentials).await?;
        let key = enrol::generate_key()?;
        let pending = |name: &str| {
            self.warn(&format!(
                "the certificate request {name} of the kubelet's server waits to be approved: see `kubectl certificate \
                 approve`; pods do not wait for it, but `kubectl logs` and `kubectl exec` may"
            ));
        };
        let (node, within) = (&credentials.node, CERTIFICATE_WITHIN);
        let signed = enrol::request_signature(&mut client, node, &key, names, within, &pending);
        let certificates = signed.await?;
        let new = Serving { names: names.to_vec(), certificates, key: Secret(key.to_bytes().to_vec()) };
        *self.identity.borrow_mut() = identity(&new, &credentials)?;
        let path: PathBuf = self.shell.paths.serving_certificate();
        let written = self.shell.stores.replace_sealed(path.clone(), new.to_json().into_bytes()).await;
        if let Err(error) = written {
            log::error!("failed to write {}: {error}", path.display());
        }
        Ok(new)
    }
}

/// One client, and who it is by its certificate.
struct RemoteClient {
    server: Rc<KubeletServer>,
    user: Option<Value>,
}

impl Authorization for RemoteClient {
    fn check<'a>(
        &'a self,
        method: &'a Method,
        path: &'a str,
        headers: &'a HeaderMap,
    ) -> Pin<Box<dyn Future<Output = Result<(), Status>> + 'a>> {
        Box::pin(async move {
            let unauthorized = || Status {
                code: 401,
                reason: "Unauthorized",
                message: "Unauthorized".to_owned(),
                details: None,
            };
            let user = match &self.user {
                Some(user) => user.clone(),
                None => {
                    let token = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
                    let token = token.and_then(|value| value.split_once(' '));
                    let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("Bearer"));
                    let (_, token) = token.ok_or_else(unauthorized)?;
                    let user = self.server.user_of_token(token.trim()).await.map_err(|error| {
                        // Not at a higher level: anybody can cause this.
                        log::debug!("the kubelet's server: the API server does not review tokens: {error}");
                        unauthorized()
                    })?;
                    user.ok_or_else(unauthorized)?
                }
            };
            let (verb, subresources) = review::attributes(method.as_str(), path);
            let name = user["user"].as_str().unwrap_or_default();
            for subresource in subresources {
                let what = format!("user={name}, verb={verb}, resource=nodes, subresource");
                match self.server.is_allowed(&user, verb, subresource).await {
                    Ok(true) => return Ok(()),
                    Ok(false) => {}
                    Err(error) => {
                        log::debug!(
                            "the kubelet's server: the API server does not review access: {}",
                            causes(&error)
                        );
                        return Err(Status::internal(format!("Authorization error ({what}={subresource})")));
                    }
                }
            }
            Err(Status {
                code: 403,
                reason: "Forbidden",
                message: format!(
                    "Forbidden (user={name}, verb={verb}, resource=nodes, subresource(s)=[{}])\n",
                    subresources.join(" ")
                ),
                details: None,
            })
        })
    }
}
