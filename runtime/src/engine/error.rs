//! Errors at the start of an agent. Once its loop runs, failures are observations, and do not end the agent.

use std::io;
use std::path::PathBuf;

/// An error before the loop runs.
#[derive(Debug)]
pub enum EngineError {
    /// A directory or a lock of nodlet cannot be prepared.
    Prepare {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another agent runs with this root.
    AlreadyRunning {
        /// The PID of the other agent, if known.
        pid: Option<i32>,
        /// The root.
        root: PathBuf,
    },
    /// The cgroups of this machine cannot be used.
    Cgroups(nodlet_host::cgroup::CgroupError),
    /// The network of pods cannot be set up.
    Network(nodlet_host::network::NetworkError),
    /// The image store cannot be opened.
    Images(nodlet_rootfs::StoreError),
    /// The kernel does not provide something.
    Kernel {
        /// The facility.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A signal ended an agent that was to stop all pods.
    Interrupted {
        /// The number of pods that had not ended.
        pods: usize,
    },
    /// All pods have ended, and something on the disk could not be brought up to date.
    Unwritten {
        /// The pods and directories, each with the reason.
        left: Vec<String>,
    },
}

impl std::fmt::Display for EngineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EngineError::Prepare { path, .. } => write!(f, "prepare {}", path.display()),
            EngineError::AlreadyRunning { pid: Some(pid), root } => {
                write!(
                    f,
                    "start: another nodlet agent (pid {pid}) works on {}; stop it, or use another --root",
                    root.display()
                )
            }
            EngineError::AlreadyRunning { pid: None, root } => {
                write!(
                    f,
                    "start: another nodlet agent works on {}; stop it, or use another --root",
                    root.display()
                )
            }
            EngineError::Cgroups(_) => f.write_str("use the cgroups of this machine"),
            EngineError::Network(_) => f.write_str("set up the pods' network"),
            EngineError::Images(_) => f.write_str("open the image store"),
            EngineError::Interrupted { pods } => write!(
                f,
                "stop all pods: interrupted while {pods} had not ended, which no agent runs now; run nodlet down \
                 again, or start the agent"
            ),
            EngineError::Unwritten { left } => write!(
                f,
                "write or remove everything of the pods, all of which have ended. The next agent continues with what \
                 the disk has. Not written or removed: {}",
                left.join("; ")
            ),
            EngineError::Kernel { what, .. } => write!(f, "get {what} from the kernel"),
        }
    }
}

impl std::error::Error for EngineError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            EngineError::Prepare { source, .. } | EngineError::Kernel { source, .. } => Some(source),
            EngineError::AlreadyRunning { .. }
            | EngineError::Interrupted { .. }
            | EngineError::Unwritten { .. } => None,
            EngineError::Cgroups(source) => Some(source),
            EngineError::Network(source) => Some(source),
            EngineError::Images(source) => Some(source),
        }
    }
}
