//! Failures of the pods' network.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use super::range::Range;

/// An operation on the pods' network that failed.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The text is not a valid range.
    #[error("read the range of the pods' addresses from {origin}: {text:?}: {wrong}")]
    Range {
        /// The flag or file with the text.
        origin: String,
        /// The text as written.
        text: String,
        /// The mistake in the text, and a correct form.
        wrong: String,
    },
    /// The file with the range cannot be read.
    #[error("read the range of the pods' addresses from {}", path.display())]
    ReadRange {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The text is not a valid range of Services.
    #[error("read the range of the addresses of Services from {origin}: {text:?}: {wrong}")]
    ServiceRange {
        /// The flag or file with the text.
        origin: String,
        /// The text as written.
        text: String,
        /// The mistake in the text, and a correct form.
        wrong: String,
    },
    /// The file with the range of Services cannot be read.
    #[error("read the range of the addresses of Services from {}", path.display())]
    ReadServiceRange {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The machine uses the range already.
    #[error(
        "use {range} for pods: the machine has the {what} {base}/{prefix} on {link}; choose another range with --pod-cidr"
    )]
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
    #[error(
        "give the pod an address: all of {range} are in use by {pods} pods; choose a larger range with --pod-cidr"
    )]
    Exhausted {
        /// The range for pods.
        range: Range,
        /// How many pods have an address.
        pods: usize,
    },
    /// The kernel was built without bridges, or their module is not loaded.
    #[error(
        "make a bridge: this kernel has none; load the module bridge, or use a kernel with CONFIG_BRIDGE \
         (pods with hostNetwork need neither)"
    )]
    NoBridges,
    /// The bridge could not be made.
    #[error("make a bridge")]
    Bridge {
        /// The cause.
        source: io::Error,
    },
    /// A `hostPort` that cannot be forwarded: what is wrong with it.
    #[error("{0}")]
    Port(String),
    /// A `hostPort` of SCTP, which the kernel does not track.
    #[error(
        "forward a hostPort of SCTP: this kernel does not track SCTP connections; use one with \
         CONFIG_NF_CT_PROTO_SCTP, or hostNetwork"
    )]
    NoSctp,
    /// The nftables table could not be changed, or forwarding not be switched on.
    #[error("translate addresses for pods")]
    Firewall {
        /// The cause.
        source: io::Error,
    },
    /// The nftables table of Services could not be changed.
    #[error("translate the addresses of Services")]
    Services {
        /// The cause.
        source: io::Error,
    },
    /// Another request to the kernel failed.
    #[error("{operation}")]
    Kernel {
        /// The operation.
        operation: &'static str,
        /// The cause.
        source: io::Error,
    },
}
