//! The reasons why a board cannot join a cluster. `nodlet join`, events and the log show their texts.

use std::error::Error;
use std::fmt;

use nodlet_core::time::Timestamp;
use nodlet_wire::tls::TlsError;

use crate::api::ApiError;

/// The reason why a board cannot join a cluster, or get another certificate. No text contains a secret.
pub enum JoinError {
    /// The text is no API server.
    Server(String),
    /// The token does not have the form of a bootstrap token.
    Token,
    /// The text is no hash of a CA.
    Hash(String),
    /// The file with the credentials is not JSON.
    NotJson,
    /// A field of the credentials or of a kubeconfig is missing.
    Missing(&'static str),
    /// A field of the credentials or of a kubeconfig is not what it must be.
    Wrong {
        /// The field.
        field: &'static str,
        /// The values that would be accepted.
        what: &'static str,
    },
    /// The file is not a kubeconfig.
    NotKubeconfig,
    /// A list of a kubeconfig has no entry of a name that the file refers to.
    NoEntry {
        /// The list.
        list: &'static str,
        /// The name.
        name: String,
    },
    /// A field of a kubeconfig has no effect.
    NotSupported {
        /// The field.
        field: String,
        /// The fields that have one.
        possible: String,
    },
    /// The server of a kubeconfig is not the URL of an API server.
    Url(String),
    /// The cluster publishes no CA certificate.
    NoAuthority,
    /// No CA certificate that the cluster publishes has an accepted hash.
    OtherAuthority,
    /// The CA certificates cannot be used.
    Authority(TlsError),
    /// The clock shows a time before the CA is valid.
    Clock {
        /// The time that the clock shows.
        now: Timestamp,
        /// The time from which the CA is valid.
        from: Timestamp,
    },
    /// The cluster rejects the token.
    TokenRejected,
    /// Another machine uses the name of the node.
    NameTaken {
        /// The name.
        name: String,
        /// The ID of the other machine.
        machine_id: String,
    },
    /// A request to the API server failed.
    Call {
        /// The step that it is part of.
        step: &'static str,
        /// The cause.
        source: ApiError,
    },
    /// No key could be made.
    Key(Box<dyn Error + Send + Sync>),
    /// The certificate request of this name was not approved in time.
    NotApproved(String),
    /// The certificate request was denied, or its signer failed.
    Refused {
        /// The type of the condition.
        condition: &'static str,
        /// The message of the condition.
        message: String,
    },
    /// The certificate request was signed with something else than a certificate for its key.
    Signed {
        /// The name of the request.
        request: String,
        /// The other thing.
        what: &'static str,
    },
}

impl JoinError {
    /// Makes the error of a step from the error of its request, for `map_err`.
    pub(crate) fn at(step: &'static str) -> impl FnOnce(ApiError) -> JoinError {
        move |source| JoinError::Call { step, source }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Server(text) => {
                write!(f, "the API server {text:?} is invalid: must be HOST:PORT, such as 192.0.2.1:6443")
            }
            JoinError::Token => f.write_str("the token must have the form abcdef.0123456789abcdef"),
            JoinError::Hash(text) => {
                write!(f, "the CA hash {text:?} is invalid: must be sha256: followed by 64 hexadecimal digits")
            }
            JoinError::NotJson => f.write_str("it is not JSON"),
            JoinError::Missing(field) => write!(f, "the field {field} is missing"),
            JoinError::Wrong { field, what } => write!(f, "the field {field} is not a {what}"),
            JoinError::NotKubeconfig => {
                f.write_str("not a kubeconfig: must have `apiVersion: v1` and `kind: Config`")
            }
            JoinError::NoEntry { list, name } => write!(f, "the list {list} has no entry {name:?}"),
            JoinError::NotSupported { field, possible } => {
                write!(f, "the field {field} is not supported: {possible} are possible")
            }
            JoinError::Url(url) => {
                write!(f, "the field cluster.server is {url:?}: must be https://HOST:PORT")
            }
            JoinError::NoAuthority => {
                f.write_str("the ConfigMap kube-public/cluster-info has no certificate-authority-data")
            }
            JoinError::OtherAuthority => f.write_str(
                "no CA certificate of the cluster has the hash of --discovery-token-ca-cert-hash: this is another \
                 cluster, or somebody between it and this board",
            ),
            JoinError::Authority(_) => f.write_str("the CA certificate of the cluster is invalid"),
            JoinError::Clock { now, from } => write!(
                f,
                "the clock of this board is wrong: it shows {now}, and the CA of the cluster is valid from {from}; \
                 set the clock"
            ),
            JoinError::TokenRejected => f.write_str(
                "the cluster rejects the token: it is wrong or has expired, and `kubeadm token create \
                 --print-join-command` makes another",
            ),
            JoinError::NameTaken { name, machine_id } => write!(
                f,
                "another machine (machine ID {machine_id}) uses the Node name {name}, and is Ready; \
                 choose another name with --node-name of `nodlet agent`, or delete that Node"
            ),
            JoinError::Call { step, .. } => write!(f, "failed to {step}"),
            JoinError::Key(_) => f.write_str("failed to make a key"),
            JoinError::NotApproved(request) => write!(
                f,
                "the certificate request {request} was not approved in time: see `kubectl certificate approve`"
            ),
            JoinError::Refused { condition, message } => {
                write!(f, "the certificate request is {condition:?}: {message}")
            }
            JoinError::Signed { request, what } => {
                write!(f, "the cluster signed the request {request} with {what}")
            }
        }
    }
}

/// The text: the derived code would be linked without being used.
impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for JoinError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            JoinError::Authority(source) => Some(source),
            JoinError::Call { source, .. } => Some(source),
            JoinError::Key(source) => Some(&**source),
            JoinError::Server(_)
            | JoinError::Token
            | JoinError::Hash(_)
            | JoinError::NotJson
            | JoinError::Missing(_)
            | JoinError::Wrong { .. }
            | JoinError::NotKubeconfig
            | JoinError::NoEntry { .. }
            | JoinError::NotSupported { .. }
            | JoinError::Url(_)
            | JoinError::NoAuthority
            | JoinError::OtherAuthority
            | JoinError::Clock { .. }
            | JoinError::TokenRejected
            | JoinError::NameTaken { .. }
            | JoinError::NotApproved(_)
            | JoinError::Refused { .. }
            | JoinError::Signed { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use nodlet_core::error::causes;

    use super::*;

    #[test]
    fn a_step_that_failed_has_its_cause_in_source() {
        let refused = std::io::Error::from_raw_os_error(111);
        let source = ApiError::Connect(Some(([192, 0, 2, 1], 6443).into()), refused);
        let error = JoinError::at("read kube-public/cluster-info")(source);
        assert_eq!(error.to_string(), "failed to read kube-public/cluster-info");
        assert_eq!(
            causes(&error),
            "failed to read kube-public/cluster-info: failed to connect to 192.0.2.1:6443: Connection refused (os error 111)"
        );
        let error = JoinError::Key(Box::new(ApiError::Timeout));
        assert_eq!(causes(&error), "failed to make a key: no response within 15 s");
        let error = JoinError::Authority(TlsError::Ended);
        assert_eq!(
            causes(&error),
            "the CA certificate of the cluster is invalid: the server closed the connection"
        );
    }
}
