//! Joining a cluster as kubelets do: the CA is pinned by its hash, a token authenticates a request for a client
//! certificate, and the cluster's controllers approve and sign it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nodlet_core::time::Timestamp;
use nodlet_kube::base64;
use nodlet_wire::tls::der::Certificate;
use nodlet_wire::tls::{ClientKey, Trust, pem};
use serde_json::{Value, json};
use smol::Timer;

use crate::api::{self, Api, ApiError, EVENT, JSON, Verification};
use crate::backoff::{Backoff, Rate};
use crate::credentials::{Credentials, Secret, Server, pinned_roots, valid_from};
use crate::error::JoinError;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// The time in which a controller of the cluster decides about a request.
const DECIDED_SOON: Duration = Duration::from_secs(10);

/// By what the CA of a cluster is known.
#[derive(Clone, Copy, Debug)]
pub enum Authority<'a> {
    /// The accepted hashes of its public key. The certificate is read from the cluster.
    Hashes(&'a [[u8; 32]]),
    /// Its certificates (DER).
    Roots(&'a [Vec<u8>]),
}

/// The input of an enrolment: server, token and CA.
#[derive(Debug)]
pub struct Join<'a> {
    /// The API server.
    pub server: &'a Server,
    /// The addresses of its host.
    pub addresses: Vec<SocketAddr>,
    /// The bootstrap token.
    pub token: &'a str,
    /// The CA of the cluster.
    pub authority: Authority<'a>,
    /// The name of the node.
    pub node: &'a str,
    /// The ID of this machine, by which a Node of the same name is recognised as this one.
    pub machine_id: &'a str,
    /// The time by the clock of this machine.
    pub now: Timestamp,
    /// The time for which the certificate is awaited.
    pub limit: Duration,
}

/// Joins a cluster, for a program without an executor. Blocks until then.
///
/// # Errors
/// A step failed.
pub fn join_and_wait(request: Join<'_>) -> Result<Credentials, JoinError> {
    smol::block_on(join(request))
}

/// Joins a cluster. Returns the credentials of the node.
///
/// # Errors
/// A step failed.
pub async fn join(join: Join<'_>) -> Result<Credentials, JoinError> {
    let Join { server, addresses, token, authority, node, machine_id, now, limit } = join;
    let roots = match authority {
        Authority::Roots(roots) => roots.to_vec(),
        Authority::Hashes(hashes) => {
            let mut unverified = Api::new(&server.host, addresses.clone(), Verification::None, None);
            let info = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
            let info = unverified.call("GET", info, None).await;
            pinned_roots(&info.map_err(JoinError::at("read kube-public/cluster-info"))?, hashes)?
        }
    };
    check_clock(&roots, now)?;
    let trust = Trust::new(&roots, None).map_err(JoinError::Authority)?;
    let mut api = Api::new(&server.host, addresses, Verification::By(trust), Some(token));
    match api.call("GET", &format!("/api/v1/nodes/{node}"), None).await {
        Ok(other) => check_name(&other, node, machine_id)?,
        Err(ApiError::Status { code: 401, .. }) => return Err(JoinError::TokenRejected),
        // A token need not have the right to read Nodes. The agent checks the name again.
        Err(ApiError::Status { code: 403 | 404, .. }) => {}
        Err(error) => return Err(JoinError::at("look for a Node of the same name")(error)),
    }
    let (key, certificates) = request_certificate(&mut api, node, limit).await?;
    Ok(Credentials { server: server.clone(), node: node.to_owned(), roots, certificates, key })
}

/// Checks that the clock is not behind the certificates of the CA, as that of a board without a battery is: TLS would
/// fail, with an error of the certificate.
fn check_clock(roots: &[Vec<u8>], now: Timestamp) -> Result<(), JoinError> {
    match valid_from(roots).map(|from| Timestamp(from.saturating_mul(1_000_000_000))) {
        Some(from) if now < from => Err(JoinError::Clock { now, from }),
        Some(_) | None => Ok(()),
    }
}

/// Checks that a Node with the name of this node is not another machine that is in use.
///
/// # Errors
/// The name is taken.
pub fn check_name(node: &Value, name: &str, machine_id: &str) -> Result<(), JoinError> {
    let other = api::text(&node["status"]["nodeInfo"]["machineID"]);
    let conditions = node["status"]["conditions"].as_array();
    let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    let is_in_use = conditions.is_some_and(|all| all.iter().any(is_ready));
    if is_in_use && !other.is_empty() && other != machine_id {
        return Err(JoinError::NameTaken { name: name.to_owned(), machine_id: other });
    }
    Ok(())
}

/// Makes a key, and requests a certificate for it, which must be signed within `limit`. Returns both.
///
/// # Errors
/// A step failed, the request was denied, or it was not approved in time.
pub async fn request_certificate(
    api: &mut Api,
    node: &str,
    limit: Duration,
) -> Result<(Secret, Vec<Vec<u8>>), JoinError> {
    let key = generate_key()?;
    let certificates = request_signature(api, node, &key, &[], limit, &|_| ()).await?;
    Ok((Secret(key.to_bytes().to_vec()), certificates))
}

/// Makes a key.
///
/// # Errors
/// The kernel has no random bytes yet.
pub fn generate_key() -> Result<ClientKey, JoinError> {
    ClientKey::generate().map_err(|error| JoinError::Key(error.into()))
}

/// Requests a certificate for a key, which must be signed within `limit`: for the node as a server with these names and
/// addresses, or as a client if there are none. Calls `pending` with the name of the request if it is not decided soon.
///
/// # Errors
/// As for [`request_certificate`].
pub async fn request_signature(
    api: &mut Api,
    node: &str,
    key: &ClientKey,
    names: &[String],
    limit: Duration,
    pending: &dyn Fn(&str),
) -> Result<Vec<Vec<u8>>, JoinError> {
    let (signer, usage) = match names {
        [] => ("kubernetes.io/kube-apiserver-client-kubelet", "client auth"),
        _ => ("kubernetes.io/kubelet-serving", "server auth"),
    };
    let request = key.certificate_request("system:nodes", &format!("system:node:{node}"), names);
    let text = pem::encode(pem::CERTIFICATE_REQUEST, &request);
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": { "generateName": "node-csr-" },
        "spec": {
            "request": base64::encode(text.as_bytes()),
            "signerName": signer,
            "usages": ["digital signature", usage],
        },
    });
    let made = api.call("POST", REQUESTS, Some((JSON, &object))).await;
    let made = made.map_err(JoinError::at("request a certificate"))?;
    let name = &*api::text(&made["metadata"]["name"]);
    let (until, mut backoff) = (Instant::now() + limit, Backoff::default());
    let mut reported = false;
    let certificates = loop {
        let left = until.saturating_duration_since(Instant::now());
        if left < Duration::from_secs(1) {
            return Err(JoinError::NotApproved(name.to_owned()));
        }
        let left = if reported { left } else { left.min(DECIDED_SOON) };
        let waited = api::within(left, next_certificate(api, name, left)).await;
        match waited {
            Ok(Some(certificates)) => break certificates?,
            Ok(None) | Err(ApiError::Timeout) if !std::mem::replace(&mut reported, true) => pending(name),
            // The server ended the watch, or the time is over.
            Ok(None) | Err(ApiError::Timeout) => {
                let wait = backoff.failed(api::random());
                Timer::after(wait.min(until.saturating_duration_since(Instant::now()))).await;
            }
            Err(error) => return Err(JoinError::at("wait for the certificate")(error)),
        }
    };
    check_certificate(&certificates, key)
        .map_err(|what| JoinError::Signed { request: name.to_owned(), what })?;
    Ok(certificates)
}

/// Checks that the first certificate is for this key: with another one, the board could no longer connect.
fn check_certificate(certificates: &[Vec<u8>], key: &ClientKey) -> Result<(), &'static str> {
    let first = certificates.first().and_then(|first| Certificate::parse(first));
    if first.ok_or("something that is not a certificate")?.public_key_info == key.public_key_info() {
        Ok(())
    } else {
        Err("a certificate for another key")
    }
}

/// Watches a request until it is decided.
async fn next_certificate(
    api: &Api,
    name: &str,
    left: Duration,
) -> Result<Option<Result<Vec<Vec<u8>>, JoinError>>, ApiError> {
    let seconds = left.as_secs();
    let target = format!("{REQUESTS}?watch=1&fieldSelector=metadata.name%3D{name}&timeoutSeconds={seconds}");
    let mut events = api.watch(&target).await?;
    let mut rate = Rate::new(Instant::now());
    while let Some(line) = events.line(EVENT).await.map_err(ApiError::Http)? {
        let event = api::object(&line)?;
        if let Some(decided) = decision(&event["object"]["status"]) {
            return Ok(Some(decided));
        }
        let now = Instant::now();
        let next = rate.read(line.len(), now);
        if next > now {
            Timer::at(next).await;
        }
    }
    Ok(None)
}

/// The certificate in the status of a request, or why there will be none; `None` if that is not decided yet.
fn decision(status: &Value) -> Option<Result<Vec<Vec<u8>>, JoinError>> {
    for condition in status["conditions"].as_array().into_iter().flatten() {
        if let Some(refused) = ["Denied", "Failed"].into_iter().find(|refused| condition["type"] == *refused)
        {
            let message = api::text(&condition["message"]);
            return Some(Err(JoinError::Refused { condition: refused, message }));
        }
    }
    let data = base64::decode(status["certificate"].as_str()?.as_bytes()).unwrap_or_default();
    Some(Ok(pem::certificates(&data).flatten().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_signed_denied_or_undecided() {
        let text = pem::encode(pem::CERTIFICATE, &[1, 2]);
        let signed =
            json!({ "certificate": base64::encode(text.as_bytes()), "conditions": [{ "type": "Approved" }] });
        let decision =
            |status: &Value| decision(status).map(|decided| decided.map_err(|why| why.to_string()));
        assert_eq!(decision(&signed), Some(Ok(vec![vec![1, 2]])));
        assert_eq!(decision(&json!({ "conditions": [{ "type": "Approved" }] })), None);
        let denied = json!({ "conditions": [{ "type": "Denied", "message": "no" }] });
        let message = "the certificate request is \"Denied\": no".to_owned();
        assert_eq!(decision(&denied), Some(Err(message)));
    }

    /// A certificate that is valid from the first second of 2026.
    fn certificate(key: &ClientKey) -> Vec<u8> {
        use nodlet_wire::tls::der::{INTEGER, SEQUENCE, UTC_TIME, value};
        let time = value(UTC_TIME, &[b"260101000000Z"]);
        let empty = value(SEQUENCE, &[]);
        let fields: [&[u8]; 6] = [
            &value(INTEGER, &[&[1]]),
            &empty,
            &empty,
            &value(SEQUENCE, &[&time, &time]),
            &empty,
            &key.public_key_info(),
        ];
        value(SEQUENCE, &[&value(SEQUENCE, &fields)])
    }

    #[test]
    fn a_clock_that_is_behind_the_ca_is_named() {
        let roots = [certificate(&ClientKey::generate().expect("a key"))];
        let why = check_clock(&roots, Timestamp(5_000_000_000)).expect_err("1970").to_string();
        let expected =
            "it shows 1970-01-01T00:00:05Z, and the CA of the cluster is valid from 2026-01-01T00:00:00Z";
        assert!(why.contains(expected), "{why}");
        check_clock(&roots, Timestamp(1_767_225_600 * 1_000_000_000)).expect("the CA is valid");
        check_clock(&[vec![1]], Timestamp(0)).expect("nothing is known of the CA");
    }

    #[test]
    fn a_certificate_must_be_for_the_key_of_the_board() {
        let key = ClientKey::generate().expect("a key");
        let other = ClientKey::generate().expect("another key");
        let certificate = certificate(&key);
        assert_eq!(check_certificate(&[certificate.clone(), vec![1]], &key), Ok(()));
        assert_eq!(check_certificate(&[certificate], &other), Err("a certificate for another key"));
        for nothing in [vec![], vec![vec![0x30, 0]]] {
            assert_eq!(check_certificate(&nothing, &key), Err("something that is not a certificate"));
        }
    }

    #[test]
    fn a_name_is_taken_only_by_another_machine_that_is_ready() {
        let node = |machine: &str, ready: &str| json!({ "status": { "nodeInfo": { "machineID": machine }, "conditions": [{ "type": "Ready", "status": ready }] } });
        for (machine, ready, is_taken) in [
            ("other", "True", true),
            ("other", "Unknown", false),
            ("this", "True", false),
            ("", "True", false),
        ] {
            assert_eq!(
                check_name(&node(machine, ready), "board", "this").is_err(),
                is_taken,
                "{machine} {ready}"
            );
        }
        check_name(&json!({}), "board", "this").expect("no machine is ready");
    }
}
