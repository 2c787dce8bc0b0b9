//! Failures of the pods' network.

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use super::range::Range;

/// An operation on the pods' network that failed.
#[derive(Debug)]
pub enum NetworkError {
    /// The text is not a valid range.
    Range {
        /// The flag or file with the text.
        origin: String,
        /// The text as written.
        text: String,
        /// The mistake in the text, and a correct form.
        wrong: String,
    },
    /// The file with the range cannot be read.
    ReadRange {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The machine uses the range already.
    Overlap {
        /// The range for pods.
        range: Range,
        /// `address` or `route`.
        what: &'static str,
        /// The base address of the machine's address or route.
        base: Ipv4Addr,
        /// The prefix length of the machine's address or route.
        prefix: u8,
        /// The link of the machine's address or route.
        link: String,
    },
    /// Every address is in use.
    Exhausted {
        /// The range for pods.
        range: Range,
        /// How many pods have an address.
        pods: usize,
    },
    /// The kernel was built without bridges, or their module is not loaded.
    NoBridges,
    /// The bridge could not be made.
    Bridge {
        /// The cause.
        source: io::Error,
    },
    /// A `hostPort` that cannot be forwarded: what is wrong with it.
    Port(String),
    /// A `hostPort` of SCTP, which the kernel does not track.
    NoSctp,
    /// The nftables table could not be changed, or forwarding not be switched on.
    Firewall {
        /// The cause.
        source: io::Error,
    },
    /// Another request to the kernel failed.
    Kernel {
        /// The operation.
        operation: &'static str,
        /// The cause.
        source: io::Error,
    },
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetworkError::Range { origin, text, wrong } => {
                write!(f, "read the range of the pods' addresses from {origin}: {text:?}: {wrong}")
            }
            NetworkError::ReadRange { path, .. } => {
                write!(f, "read the range of the pods' addresses from {}", path.display())
            }
            NetworkError::Overlap { range, what, base, prefix, link } => write!(
                f,
                "use {range} for pods: the machine has the {what} {base}/{prefix} on {link}; choose another range with --pod-cidr"
            ),
            NetworkError::Exhausted { range, pods } => write!(
                f,
                "give the pod an address: all of {range} are in use by {pods} pods; choose a larger range with --pod-cidr"
            ),
            NetworkError::NoBridges => f.write_str(
                "make a bridge: this kernel has none; load the module bridge, or use a kernel with \
                 CONFIG_BRIDGE (pods with hostNetwork need neither)",
            ),
            NetworkError::Bridge { .. } => f.write_str("make a bridge"),
            NetworkError::Port(wrong) => f.write_str(wrong),
            NetworkError::NoSctp => f.write_str(
                "forward a hostPort of SCTP: this kernel does not track SCTP connections; use one with \
                 CONFIG_NF_CT_PROTO_SCTP, or hostNetwork",
            ),
            NetworkError::Firewall { .. } => f.write_str("translate addresses for pods"),
            NetworkError::Kernel { operation, .. } => f.write_str(operation),
        }
    }
}

impl std::error::Error for NetworkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            NetworkError::ReadRange { source, .. }
            | NetworkError::Bridge { source }
            | NetworkError::Firewall { source }
            | NetworkError::Kernel { source, .. } => Some(source),
            NetworkError::Range { .. }
            | NetworkError::Overlap { .. }
            | NetworkError::Exhausted { .. }
            | NetworkError::NoSctp
            | NetworkError::Port(_)
            | NetworkError::NoBridges => None,
        }
    }
}
