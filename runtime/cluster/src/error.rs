//! The reasons why a board cannot join a cluster. `nodlet join`, events and the log show their texts.

use std::error::Error;
use std::fmt;

use nodlet_core::time::Timestamp;
use nodlet_wire::tls::TlsError;

use crate::api::ApiError;

/// The reason why a board cannot join a cluster, or get another certificate. No text contains a secret.
#[derive(thiserror::Error)]
pub enum JoinError {
    /// The text is no API server.
    #[error("the API server {0:?} is invalid: must be HOST:PORT, such as 192.0.2.1:6443")]
    Server(String),
    /// The token does not have the form of a bootstrap token.
    #[error("the token must have the form abcdef.0123456789abcdef")]
    Token,
    /// The text is no hash of a CA.
    #[error("the CA hash {0:?} is invalid: must be sha256: followed by 64 hexadecimal digits")]
    Hash(String),
    /// The file with the credentials is not JSON.
    #[error("it is not JSON")]
    NotJson,
    /// A field of the credentials or of a kubeconfig is missing.
    #[error("the field {0} is missing")]
    Missing(&'static str),
    /// A field of the credentials or of a kubeconfig is not what it must be.
    #[error("the field {field} is not a {what}")]
    Wrong {
        /// The field.
        field: &'static str,
        /// The values that would be accepted.
        what: &'static str,
    },
    /// The file is not a kubeconfig.
    #[error("not a kubeconfig: must have `apiVersion: v1` and `kind: Config`")]
    NotKubeconfig,
    /// A list of a kubeconfig has no entry of a name that the file refers to.
    #[error("the list {list} has no entry {name:?}")]
    NoEntry {
        /// The list.
        list: &'static str,
        /// The name.
        name: String,
    },
    /// A field of a kubeconfig has no effect.
    #[error("the field {field} is not supported: {possible} are possible")]
    NotSupported {
        /// The field.
        field: String,
        /// The fields that have one.
        possible: String,
    },
    /// The server of a kubeconfig is not the URL of an API server.
    #[error("the field cluster.server is {0:?}: must be https://HOST:PORT")]
    Url(String),
    /// The cluster publishes no CA certificate.
    #[error("the ConfigMap kube-public/cluster-info has no certificate-authority-data")]
    NoAuthority,
    /// No CA certificate that the cluster publishes has an accepted hash.
    #[error(
        "no CA certificate of the cluster has the hash of --discovery-token-ca-cert-hash: this is another cluster, or \
         somebody between it and this board"
    )]
    OtherAuthority,
    /// The CA certificates cannot be used.
    #[error("the CA certificate of the cluster is invalid")]
    Authority(#[source] TlsError),
    /// The clock shows a time before the CA is valid.
    #[error(
        "the clock of this board is wrong: it shows {now}, and the CA of the cluster is valid from {from}; set the clock"
    )]
    Clock {
        /// The time that the clock shows.
        now: Timestamp,
        /// The time from which the CA is valid.
        from: Timestamp,
    },
    /// The cluster rejects the token.
    #[error(
        "the cluster rejects the token: it is wrong or has expired, and `kubeadm token create --print-join-command` makes \
         another"
    )]
    TokenRejected,
    /// Another machine uses the name of the node.
    #[error(
        "another machine (machine ID {machine_id}) uses the Node name {name}, and is Ready; choose another name with \
         --node-name of `nodlet agent`, or delete that Node"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// The ID of the other machine.
        machine_id: String,
    },
    /// A request to the API server failed.
    #[error("failed to {step}")]
    Call {
        /// The step that it is part of.
        step: &'static str,
        /// The cause.
        source: ApiError,
    },
    /// No key could be made.
    #[error("failed to make a key")]
    Key(#[source] Box<dyn Error + Send + Sync>),
    /// The certificate request of this name was not approved in time.
    #[error("the certificate request {0} was not approved in time: see `kubectl certificate approve`")]
    NotApproved(String),
    /// The certificate request was denied, or its signer failed.
    #[error("the certificate request is {condition:?}: {message}")]
    Refused {
        /// The type of the condition.
        condition: &'static str,
        /// The message of the condition.
        message: String,
    },
    /// The certificate request was signed with something else than a certificate for its key.
    #[error("the cluster signed the request {request} with {what}")]
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

/// The text: the derived code would be linked without being used.
impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use nodlet_core::error::causes;

    use super::*;

    #[test]
    fn a_step_that_failed_has_its_cause_in_source() {
        let refused = std::io::Error::from_raw_os_error(111);
        let source = ApiError::Connect(([192, 0, 2, 1], 6443).into(), refused);
        let error = JoinError::at("read kube-public/cluster-info")(source);
        assert_eq!(error.to_string(), "failed to read kube-public/cluster-info");
        let expected = "failed to read kube-public/cluster-info: failed to connect to 192.0.2.1:6443: Connection refused (os error 111)";
        assert_eq!(causes(&error), expected);
        let error = JoinError::Key(Box::new(ApiError::Timeout));
        assert_eq!(causes(&error), "failed to make a key: no response within 15 s");
        let error = JoinError::Authority(TlsError::Ended);
        let expected = "the CA certificate of the cluster is invalid: the server closed the connection";
        assert_eq!(causes(&error), expected);
    }
}
