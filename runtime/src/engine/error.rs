//! Errors at the start of an agent. Once its loop runs, failures are observations, and do not end the agent.

use std::io;
use std::path::PathBuf;

/// An error before the loop runs.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A directory or a lock of nodlet cannot be prepared.
    #[error("prepare {path}")]
    Prepare {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another agent runs with this root.
    #[error(
        "start: another nodlet agent{} works on {root}; stop it, or use another --root",
        .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    AlreadyRunning {
        /// The PID of the other agent, if known.
        pid: Option<i32>,
        /// The root.
        root: PathBuf,
    },
    /// The cgroups of this machine cannot be used.
    #[error("use the cgroups of this machine")]
    Cgroups(#[source] nodlet_host::cgroup::CgroupError),
    /// The network of pods cannot be set up.
    #[error("set up the pods' network")]
    Network(#[source] nodlet_host::network::NetworkError),
    /// The image store cannot be opened.
    #[error("open the image store")]
    Images(#[source] nodlet_rootfs::StoreError),
    /// The kernel does not provide something.
    #[error("get {what} from the kernel")]
    Kernel {
        /// The facility.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A signal ended an agent that was to stop all pods.
    #[error(
        "stop all pods: interrupted while {pods} had not ended, which no agent runs now; run nodlet down again, or start \
         the agent"
    )]
    Interrupted {
        /// The number of pods that had not ended.
        pods: usize,
    },
    /// All pods have ended, and something on the disk could not be brought up to date.
    #[error(
        "write or remove everything of the pods, all of which have ended. The next agent continues with what the disk has. \
         Not written or removed: {}",
        .failures.join("; ")
    )]
    Unwritten {
        /// The pods and directories, each with the reason.
        failures: Vec<String>,
    },
}
