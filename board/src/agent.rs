//! `nodlet agent` and `nodlet down`: the process that runs the engine. Read next: `agent/flags.rs`.

mod console;
mod flags;
mod limits;
mod running;
mod shutdown;

use std::fs;
use std::process::ExitCode;

use lexopt::Parser;
use nix::sys::signal::Signal;
use nodlet_host::error::chain;
use nodlet_host::paths::Paths;
use nodlet_runtime::engine::{Config, Engine, EngineError};

use crate::arguments::{Context, Flag};
use crate::failure::Failure;
use crate::verb::{Outcome, Verb};
use console::Console;
pub(crate) use flags::host_name;
use flags::{Options, config};
pub(crate) use running::{end_agent, executable};
pub(crate) use shutdown::flags_of as shutdown_flags;

pub(crate) const VERB: Verb = Verb {
    name: "agent",
    summary: "Run the pods of this machine",
    help: "\
Run the pods of this machine: from the manifest directories, and applied pods.
Ends on SIGTERM and leaves the pods running; the next agent finds them.

Manifests are read from usr/lib/nodlet/manifests, etc/nodlet/manifests,
var/lib/nodlet/manifests and run/nodlet/manifests below the root, later ones
overriding earlier ones, and again whenever they change.

Usage: nodlet agent [flags]

Examples:
  # On a board
  nodlet agent

  # One of several agents on a machine, with its own directory
  mkdir /tmp/node1
  nodlet agent --root /tmp/node1 --pod-cidr 10.86.1.0/24

Flags:
      --allowed-unsafe-sysctls NAME,...
                         kernel parameters that pods may set besides the safe ones;
                         NAME may end with *, as in net.core.*
      --cluster-cidr CIDR,...
                         ranges of the pods of a cluster, if the cluster does not let
                         this board read its Nodes: pods reach these addresses without
                         masquerade, and are reached from them
      --cluster-dns IP,...
                         name servers of the cluster, for pods with the dnsPolicy
                         ClusterFirst
      --cluster-domain NAME
                         domain of the cluster's names, cluster.local by default
      --container-log-max-files N
                         number of log files kept for each container, including the
                         current one: 5 by default, at least 2
      --container-log-max-size SIZE
                         size at which a log file is rotated, 10Mi by default
      --encryption-key-file FILE
                         encrypt what the board stores of its cluster with the
                         first key of this file below the root; each line is a
                         name and 32 bytes in base64
      --eviction-hard SIGNAL<QUANTITY,...
                         amounts of memory.available, nodefs.available,
                         nodefs.inodesFree, imagefs.available, imagefs.inodesFree and
                         pid.available below which the node is under pressure, and
                         pods are evicted; in place of the default, which is 1/16 of
                         the memory but at most 100Mi, 10% and 15% of the disks but at
                         most 1Gi, and 5% of the inodes; empty for none
      --eviction-pressure-transition-period DURATION
                         time for which a condition of pressure stays true after
                         the pressure has ended, 5m by default
      --fencing-period DURATION
                         on a board that has joined a cluster: no pod of the cluster
                         runs when the Lease of the Node was not renewed for this
                         time (such as 4m; at least 40s), so that the cluster may start
                         them elsewhere; they start again once the cluster has
                         confirmed them. By default, pods run on without the cluster
      --image-gc-high-threshold PERCENT
                         usage of the disk, or of the limit in
                         etc/nodlet/image-store-limit below the root, from which
                         images that no pod uses are removed, the least recently
                         used first; by default, no image is removed
      --image-gc-low-threshold PERCENT
                         usage at which the removal stops; by default 5 less than
                         the high threshold
      --image-maximum-gc-age DURATION
                         time after which an image that no pod uses is removed,
                         however much space there is; by default, never
      --kube-reserved, --system-reserved cpu=250m,memory=64Mi,ephemeral-storage=1Gi
                         resources of the machine that pods cannot use; the sum of
                         both is reserved
      --kubelet-port PORT
                         port on which the cluster reaches a board that has joined
                         it, for logs, exec and metrics; 10250 by default, 0 for none,
                         which is the default with --sync-every
      --masquerade=false
                         give packets of pods to other machines the pods' own
                         addresses, for which the network must have routes, instead
                         of the address of this machine
      --max-connections N
                         maximum number of API clients at a time, 64 by default;
                         three quarters of them can watch, follow logs or execute
                         processes
      --max-events N     number of events kept, 512 by default
      --max-pods N       maximum number of pods, from 1 to 110; 110 by default
      --memory-swap-behavior NoSwap|LimitedSwap
                         whether containers of burstable pods may swap, in proportion
                         to their memory requests (cgroup v2); NoSwap by default
      --metered          in a cluster, send less over a link that is paid by the byte:
                         the Lease every 25 s, changes of pods with the Lease, and
                         only events that are warnings
      --minimum-image-ttl-duration DURATION
                         time for which an unused image is kept, 2m by default
      --node-labels KEY=VALUE,...
                         labels of the node, for node selectors and node affinity
      --node-name NAME   spec.nodeName of the pods; the host's name by default
      --node-routes=false
                         in a cluster, make no routes to the pods of other nodes, and
                         do not watch their Nodes
      --pod-cidr CIDR[,CIDR]
                         address range of the pods, and an IPv6 range after a comma
                         (10.85.0.0/24,fd00:10:85::/64); by default the content of
                         etc/nodlet/pod-cidr below the root, else 10.85.0.0/24. In
                         a cluster, spec.podCIDRs of the Node replaces it
      --pod-pids-limit N
                         maximum number of processes and threads of each pod; -1
                         means no limit. The default is 15 % of the machine's
                         maximum. All pods together can have 90 % of it
      --quiet            log only warnings and errors
      --register-with-taints KEY=VALUE:EFFECT,...
                         taints of the node: with the effect NoExecute, only pods
                         that tolerate them are admitted
      --root DIR         directory that contains all files of the agent
      --shutdown-grace-period DURATION
                         maximum time for which a shutdown of the machine is delayed
                         through logind (such as 1m30s), while pods end, the lowest
                         priority first; by default, the machine ends the pods
      --shutdown-grace-period-by-pod-priority PRIORITY=DURATION,...
                         instead of both: maximum time to end for the pods from
                         each priority on
      --shutdown-grace-period-critical-pods DURATION
                         part of that time for pods with a priority of 2000000000
                         or more, which end last
      --stop-after N     for tests: exit as if by SIGKILL after N actions were
                         started
      --sync-every DURATION
                         on a board that has joined a cluster: connect to it only once
                         in this time (such as 6h; at least 1m), when a link comes up
                         and for `nodlet sync`; between, the cluster shows the Node as
                         not ready. By default, the board stays connected
      --sync-jitter DURATION
                         random time that is added to --sync-every, 0 by default
      --terminated-pod-gc-threshold N
                         number of applied finished pods that are kept, 110 by
                         default; beyond that, the oldest are removed. 0 keeps all
",
    run,
};

/// The verb `nodlet down`.
pub(crate) const DOWN: Verb = Verb {
    name: "down",
    summary: "Stop all pods and the agent",
    help: "\
End the agent, stop all pods in order and clean up after them: no process, mount,
cgroup or link stays. Images and manifests stay, so that the pods start again with
the next agent. Works without a running agent, too.

Pods of a lower priority end before pods of a higher priority, each within its own
grace period, or within the times of the flags.

Usage: nodlet down [flags]

Examples:
  # Before nodlet is removed from a machine
  nodlet down

  # In half a minute at most, of which critical pods have ten seconds
  nodlet down --shutdown-grace-period 30s --shutdown-grace-period-critical-pods 10s

Flags:
      --shutdown-grace-period DURATION
      --shutdown-grace-period-critical-pods DURATION
      --shutdown-grace-period-by-pod-priority PRIORITY=DURATION,...
                   the same as for nodlet agent
      --root DIR   the root of the agent
",
    run: down,
};

fn run(mut context: Context, parser: Parser) -> Outcome {
    let options = Options::parse(&mut context, parser)?;
    begin(options.quiet)?;
    set_oom_score();
    start(config(&context.root, options, false)?)
}

fn down(mut context: Context, mut parser: Parser) -> Outcome {
    let mut options = Options::default();
    while let Some(argument) = parser.next()? {
        if let lexopt::Arg::Value(value) = argument {
            return Err(context.wrong_use(format!("unexpected argument {value:?}")));
        }
        match Flag::from(argument) {
            Flag::Long(name) if options.shutdown.take(&name, &mut parser)? => {}
            flag => context.global(&flag, &mut parser)?,
        }
    }
    begin(false)?;
    let config = config(&context.root, options, true)?;
    end_agent(&Paths::new(&config.root))?;
    let done = start(config)?;
    println!("all pods have ended; images and manifests stay, and the next agent starts the pods again");
    Ok(done)
}

fn begin(quiet: bool) -> Result<(), Failure> {
    if !nix::unistd::geteuid().is_root() {
        let why =
            "the agent must run as root, because namespaces, mounts and cgroups require it: run it with sudo";
        return Err(Failure::new(why));
    }
    reset_inherited_state().map_err(|error| Failure::new(format!("failed to begin: {error}")))?;
    log::set_max_level(if quiet { log::LevelFilter::Warn } else { log::LevelFilter::Info });
    log::set_logger(&Console).map_err(|error| Failure::new(error.to_string()))
}

/// Resets inherited state, so that the agent behaves the same whether a shell, a script or a service manager
/// starts it.
fn reset_inherited_state() -> nix::Result<()> {
    use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, signal, sigprocmask};
    // The agent needs exactly this mask: files get the mode they are created with, but are never group- or
    // world-writable.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    const FIRST: i32 = 3;
    // SAFETY: takes numbers only. This program has opened no descriptors yet except the standard three.
    nix::errno::Errno::result(unsafe { libc::syscall(libc::SYS_close_range, FIRST, u32::MAX, 0) })?;
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    // SIGHUP and SIGINT stay ignored if the caller ignores them, which may be intended.
    // SAFETY: no thread runs yet, and the default action is no handler of ours.
    unsafe { signal(Signal::SIGTERM, SigHandler::SigDfl) }?;
    Ok(())
}

/// Sets the OOM score that the kubelet uses: when the machine is out of memory, the kernel kills agent and
/// supervisors last. Containers have scores of their own.
fn set_oom_score() {
    if let Err(error) = fs::write("/proc/self/oom_score_adj", "-999") {
        log::debug!("failed to lower oom_score_adj: {error}");
    }
}

fn start(config: Config) -> Outcome {
    // The caller's directory may be on a file system that somebody wants to unmount.
    nix::unistd::chdir("/").map_err(|errno| Failure::new(format!("failed to change directory: {errno}")))?;
    let explain = |error: EngineError| Failure::new(format!("failed to {}", chain(&error)));
    Engine::start(config).map_err(explain)?.run().map_err(explain)?;
    Ok(ExitCode::SUCCESS)
}
