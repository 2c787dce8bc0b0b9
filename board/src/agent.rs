//! `nodlet agent` and `nodlet down`: the engine, and its log on the console.

use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use lexopt::{Parser, ValueExt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodlet_cluster::fencing;
use nodlet_cluster::network::parse_range;
use nodlet_cluster::reporting::Reporting;
use nodlet_cluster::sync::Periodic;
use nodlet_core::facts::{Amounts, MAX_PODS};
use nodlet_core::sorted::SortedMap;
use nodlet_core::spec::{Quantity, Taint, sysctl};
use nodlet_host::cgroup::PodPidsLimit;
use nodlet_host::error::chain;
use nodlet_host::paths::Paths;
use nodlet_kube::manifest::{check_label, is_node_name, node_name_of};
use nodlet_runtime::api::CONNECTIONS;
use nodlet_runtime::container_config::LogLimits;
use nodlet_runtime::engine::{ClusterDns, Config, EVENTS, Engine, EngineError};

use crate::arguments::duration::go_duration;
use crate::arguments::{Context, Flag, number, switch};
use crate::failure::Failure;
use crate::output::escaped;
use crate::pidfd::pidfd;
use crate::verb::{Outcome, Verb};

mod limits;
mod shutdown;

pub(crate) use shutdown::flags_of as shutdown_flags;

/// A logger that writes lines to standard error, which is the console or the journal.
struct Console;

impl log::Log for Console {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            // Images and manifests supply some of this text: newlines are escaped so that a record stays one
            // line.
            let text = record.args().to_string().replace('\n', "\\n");
            // In one write, so that no other process writes in between.
            let line = format!("{:<5} {}\n", record.level(), escaped(&text));
            // A missing console must not end the agent.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}

pub(crate) const VERB: Verb = Verb {
    name: "agent",
    summary: "Run the pods of this machine",
    help: "\
Run the pods of this machine: those of the manifest directories and those that are
applied. Ends on SIGTERM and leaves the pods running; the next agent finds them.

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
      --eviction-hard SIGNAL<QUANTITY,...
                         amounts of memory.available, nodefs.available,
                         nodefs.inodesFree, imagefs.available, imagefs.inodesFree and
                         pid.available below which the node is under pressure, and
                         pods are evicted; in place of the default, which is 1/16 of
                         the memory but at most 100Mi, 10% and 15% of the disks but at
                         most 1Gi, and 5% of the inodes; empty for none
      --eviction-pressure-transition-period DURATION
                         time for which the Node shows pressure that is over, 5m by
                         default
      --encryption-key-file FILE
                         encrypt what the board stores of its cluster with the
                         first key of this file below the root; each line is a
                         name and 32 bytes in base64
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
      --pod-pids-limit N
                         maximum number of processes and threads of each pod; -1
                         means no limit. The default is 15 % of the machine's
                         maximum. All pods together can have 90 % of it
      --pod-cidr CIDR[,CIDR]
                         address range of the pods, and an IPv6 range after a comma
                         (10.85.0.0/24,fd00:10:85::/64); by default the content of
                         etc/nodlet/pod-cidr below the root, else 10.85.0.0/24. In
                         a cluster, spec.podCIDRs of the Node replaces it
      --terminated-pod-gc-threshold N
                         number of applied finished pods that are kept, 110 by
                         default; beyond that, the oldest are removed. 0 keeps all
      --shutdown-grace-period DURATION
                         maximum time for which a shutdown of the machine is delayed
                         through logind (such as 1m30s), while pods end, the lowest
                         priority first; by default, the machine ends the pods
      --shutdown-grace-period-critical-pods DURATION
                         part of that time for pods with a priority of 2000000000
                         or more, which end last
      --shutdown-grace-period-by-pod-priority PRIORITY=DURATION,...
                         instead of both: maximum time to end for the pods from
                         each priority on
      --sync-every DURATION
                         on a board that has joined a cluster: connect to it only once
                         in this time (such as 6h; at least 1m), when a link comes up
                         and for `nodlet sync`; between, the cluster shows the Node as
                         not ready. By default, the board stays connected
      --sync-jitter DURATION
                         random time that is added to --sync-every, 0 by default
      --quiet            log only warnings and errors
      --register-with-taints KEY=VALUE:EFFECT,...
                         taints of the node: with the effect NoExecute, only pods
                         that tolerate them are admitted
      --root DIR         directory that contains all files of the agent
      --stop-after N     for tests: end as by SIGKILL after beginning N actions
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

/// The parsed command line of `nodlet agent`.
#[derive(Default)]
struct Options {
    node_name: Option<String>,
    pod_cidr: Option<String>,
    routes_pods: bool,
    cluster_cidrs: Vec<(IpAddr, u8)>,
    no_node_routes: bool,
    dns: ClusterDns,
    pod_pids_limit: PodPidsLimit,
    allowed_sysctls: Vec<String>,
    limited_swap: bool,
    terminated_pod_gc_threshold: Option<u64>,
    node_labels: SortedMap<String, String>,
    taints: Vec<Taint>,
    reserved: Amounts,
    logs: LogLimits,
    kubelet_port: Option<u16>,
    limits: limits::Flags,
    stop_after: Option<u64>,
    quiet: bool,
    shutdown: shutdown::Flags,
    sync_every: Option<Duration>,
    sync_jitter: Option<Duration>,
    fencing_period: Option<Duration>,
    reporting: Reporting,
    encryption_key_file: Option<PathBuf>,
}

fn run(mut context: Context, parser: Parser) -> Outcome {
    let options = Options::parse(&mut context, parser)?;
    begin(options.quiet)?;
    set_oom_score();
    start(config(&context.root, options, false)?)
}

impl Options {
    fn parse(context: &mut Context, mut parser: Parser) -> Result<Self, Failure> {
        let mut options = Options::default();
        while let Some(argument) = parser.next()? {
            if let lexopt::Arg::Value(value) = argument {
                return Err(context.wrong_use(format!("unexpected argument {value:?}")));
            }
            match Flag::from(argument) {
                Flag::Long(name) if name == "node-name" => {
                    let value = parser.value()?.string()?;
                    if !is_node_name(&value) {
                        return Err(Failure::new(format!(
                            "invalid value {value:?} for --node-name: must be lower case letters, digits, '-' and '.', \
                         as in a host's name"
                        )));
                    }
                    options.node_name = Some(value);
                }
                Flag::Long(name) if name == "pod-cidr" => options.pod_cidr = Some(parser.value()?.string()?),
                Flag::Long(name) if name == "masquerade" => options.routes_pods = !switch(&mut parser)?,
                Flag::Long(name) if name == "node-routes" => options.no_node_routes = !switch(&mut parser)?,
                Flag::Long(name) if name == "cluster-cidr" => {
                    let value = parser.value()?.string()?;
                    let ranges: Option<Vec<_>> = value.split(',').map(parse_range).collect();
                    options.cluster_cidrs =
                        ranges.ok_or_else(|| refused(&name, &value, "ranges like 10.244.0.0/16"))?;
                }
                Flag::Long(name) if name == "cluster-dns" => {
                    let value = parser.value()?.string()?;
                    if value.split(',').any(|server| server.parse::<IpAddr>().is_err()) {
                        return Err(refused(&name, &value, "IP addresses, separated by ','"));
                    }
                    options.dns.servers = value.split(',').map(str::to_owned).collect();
                }
                Flag::Long(name) if name == "cluster-domain" => {
                    let value = parser.value()?.string()?;
                    if !is_node_name(&value) {
                        return Err(refused(&name, &value, "a domain like cluster.local"));
                    }
                    options.dns.domain = value;
                }
                Flag::Long(name) if name == "pod-pids-limit" => {
                    options.pod_pids_limit = pod_pids_limit(&mut parser)?;
                }
                Flag::Long(name) if name == "allowed-unsafe-sysctls" => {
                    let value = parser.value()?.string()?;
                    for pattern in value.split(',').filter(|pattern| !pattern.is_empty()) {
                        if !sysctl::is_valid(pattern, true) || sysctl::namespace(pattern).is_none() {
                            let why = "namespaced sysctls, such as kernel.msgmax or net.core.*";
                            return Err(refused(&name, pattern, why));
                        }
                        options.allowed_sysctls.push(pattern.to_owned());
                    }
                }
                Flag::Long(name) if name == "memory-swap-behavior" => {
                    options.limited_swap = match &*parser.value()?.string()? {
                        "NoSwap" => false,
                        "LimitedSwap" => true,
                        value => {
                            return Err(Failure::new(format!(
                                "invalid value {value:?} for --memory-swap-behavior: must be NoSwap or LimitedSwap"
                            )));
                        }
                    };
                }
                Flag::Long(name) if name == "terminated-pod-gc-threshold" => {
                    let kept = number(&mut parser, "--terminated-pod-gc-threshold")?;
                    options.terminated_pod_gc_threshold = Some(kept);
                }
                Flag::Long(name) if name == "kubelet-port" => {
                    let text = parser.value()?.string()?;
                    let port = text.parse().map_err(|_| {
                        refused("kubelet-port", &text, "a port from 1 to 65535, or 0 for none")
                    })?;
                    options.kubelet_port = Some(port);
                }
                Flag::Long(name) if name == "node-labels" => {
                    let value = parser.value()?.string()?;
                    options
                        .node_labels
                        .extend(labels(&value).map_err(|why| refused("node-labels", &value, &why))?);
                }
                Flag::Long(name) if name == "register-with-taints" => {
                    let value = parser.value()?.string()?;
                    options
                        .taints
                        .extend(taints(&value).map_err(|why| refused("register-with-taints", &value, &why))?);
                }
                Flag::Long(name) if name == "kube-reserved" || name == "system-reserved" => {
                    let value = parser.value()?.string()?;
                    let more = reserved(&value).map_err(|why| refused(&name, &value, &why))?;
                    options.reserved = options.reserved.plus(&more);
                }
                Flag::Long(name) if name == "container-log-max-files" => {
                    let files = number(&mut parser, "--container-log-max-files")?;
                    let files = u32::try_from(files).ok().filter(|files| *files >= 2);
                    options.logs.max_files = files.ok_or_else(|| {
                        Failure::new("invalid value for --container-log-max-files: must be 2 or more")
                    })?;
                }
                Flag::Long(name) if name == "container-log-max-size" => {
                    let value = parser.value()?.string()?;
                    let size = Quantity::parse(&value).ok().and_then(|size| u64::try_from(size.value()).ok());
                    options.logs.max_size = size.filter(|size| *size > 0).ok_or_else(|| {
                        refused("container-log-max-size", &value, "a quantity of bytes, as 10Mi")
                    })?;
                }
                Flag::Long(name) if name == "stop-after" => {
                    options.stop_after = Some(number(&mut parser, "--stop-after")?);
                }
                Flag::Long(name) if name == "sync-every" => {
                    let text = parser.value()?.string()?;
                    let every = go_duration("--sync-every", &text)?;
                    if every.is_some_and(|every| every < Duration::from_secs(60)) {
                        return Err(refused(&name, &text, "1m or more, or 0 to stay connected"));
                    }
                    options.sync_every = every;
                }
                Flag::Long(name) if name == "sync-jitter" => {
                    options.sync_jitter = go_duration("--sync-jitter", &parser.value()?.string()?)?;
                }
                Flag::Long(name) if name == "fencing-period" => {
                    let text = parser.value()?.string()?;
                    let period = go_duration("--fencing-period", &text)?;
                    if period.is_some_and(|period| period < fencing::SHORTEST) {
                        return Err(refused(&name, &text, "40s or more, or 0 for no end of the pods"));
                    }
                    options.fencing_period = period;
                }
                Flag::Long(name) if name == "encryption-key-file" => {
                    options.encryption_key_file = Some(PathBuf::from(parser.value()?));
                }
                Flag::Long(name) if name == "metered" => {
                    options.reporting =
                        if switch(&mut parser)? { Reporting::Metered } else { Reporting::Ordinary };
                }
                Flag::Long(name) if name == "quiet" => options.quiet = switch(&mut parser)?,
                Flag::Long(name) if options.limits.take(&name, &mut parser)? => {}
                Flag::Long(name) if options.shutdown.take(&name, &mut parser)? => {}
                other => context.global(&other, &mut parser)?,
            }
        }
        if options.sync_jitter.is_some() && options.sync_every.is_none() {
            return Err(Failure::new("--sync-jitter has no effect without --sync-every"));
        }
        if options.sync_every.is_some() && options.fencing_period.is_some() {
            return Err(Failure::new(
                "--fencing-period needs a board that stays connected: with --sync-every, the Lease lapses between two visits",
            ));
        }
        if options.sync_every.is_some() && options.kubelet_port.is_some_and(|port| port != 0) {
            return Err(Failure::new(
                "--kubelet-port needs a board that stays connected: the port has to ask the cluster who may use it; leave out --sync-every, or use --kubelet-port 0",
            ));
        }
        Ok(options)
    }
}

fn refused(flag: &str, value: &str, why: &str) -> Failure {
    Failure::new(format!("invalid value {value:?} for --{flag}: must be {why}"))
}

/// Parses labels in the form `KEY=VALUE,...`.
fn labels(text: &str) -> Result<SortedMap<String, String>, String> {
    let label = |pair: &str| {
        let (key, value) = pair.split_once('=').ok_or("key=value pairs, separated by ','")?;
        check_label(key, value)?;
        Ok((key.to_owned(), value.to_owned()))
    };
    text.split(',').filter(|pair| !pair.is_empty()).map(label).collect()
}

/// Parses taints in the form `KEY=VALUE:EFFECT,...`; the value may be omitted.
fn taints(text: &str) -> Result<Vec<Taint>, String> {
    const HOW: &str = "taints like key=value:NoExecute, separated by ','; effects are NoSchedule, \
                       PreferNoSchedule and NoExecute";
    let taint = |taint: &str| {
        let (pair, effect) = taint.rsplit_once(':').ok_or(HOW)?;
        if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) {
            return Err(HOW.to_owned());
        }
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        check_label(key, value)?;
        Ok(Taint { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned() })
    };
    text.split(',').filter(|taint| !taint.is_empty()).map(taint).collect()
}

/// Parses amounts in the form `RESOURCE=QUANTITY,...`.
fn reserved(text: &str) -> Result<Amounts, String> {
    let mut amounts = Amounts::default();
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (name, amount) = pair.split_once('=').ok_or("resource=quantity pairs, separated by ','")?;
        let amount = Quantity::parse(amount).ok().filter(|amount| !amount.is_negative());
        let amount = amount.ok_or_else(|| format!("quantities like 250m or 64Mi, also for {name}"))?;
        match name {
            "cpu" => amounts.cpu = amount.milli_value(),
            "memory" => amounts.memory = amount.value(),
            "ephemeral-storage" => amounts.ephemeral_storage = amount.value(),
            _ => return Err(format!("for cpu, memory and ephemeral-storage, not for {name:?}")),
        }
    }
    Ok(amounts)
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
    begin(true)?;
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

/// Parses `--pod-pids-limit`: a number of processes, at least 1 for the container's own process, or -1 for no
/// limit.
fn pod_pids_limit(parser: &mut Parser) -> Result<PodPidsLimit, Failure> {
    let value = parser.value()?.string()?;
    match value.parse::<i64>().map(|limit| (limit, u64::try_from(limit))) {
        Ok((-1, _)) => Ok(PodPidsLimit::Unlimited),
        Ok((1.., Ok(limit))) => Ok(PodPidsLimit::Of(limit)),
        Ok(_) | Err(_) => Err(Failure::new(format!(
            "invalid value {value:?} for --pod-pids-limit: must be at least 1, or -1 for no limit"
        ))),
    }
}

fn config(root: &Path, options: Options, down: bool) -> Result<Config, Failure> {
    let root = fs::canonicalize(root).map_err(|error| {
        Failure::new(format!("failed to use --root {}: {error}; make the directory first", root.display()))
    })?;
    let node_name = match options.node_name {
        Some(name) => name,
        None => host_name()?,
    };
    let below_root = |file: PathBuf| root.join(file.strip_prefix("/").unwrap_or(&file));
    let encryption_key_file = options.encryption_key_file.map(below_root);
    Ok(Config {
        warning: crate::boot::storage_warning(&root),
        root,
        node_name,
        pod_cidr: options.pod_cidr,
        masquerade: !options.routes_pods,
        cluster_cidrs: options.cluster_cidrs,
        node_routes: !options.no_node_routes,
        dns: options.dns,
        pod_pids_limit: options.pod_pids_limit,
        allowed_sysctls: options.allowed_sysctls,
        limited_swap: options.limited_swap,
        terminated_pod_gc_threshold: match options.terminated_pod_gc_threshold {
            None => Some(MAX_PODS),
            Some(0) => None,
            Some(kept) => Some(usize::try_from(kept).unwrap_or(usize::MAX)),
        },
        max_pods: options.limits.pods.unwrap_or(MAX_PODS),
        max_events: options.limits.events.unwrap_or(EVENTS),
        max_connections: options.limits.connections.unwrap_or(CONNECTIONS),
        kubelet_port: options.kubelet_port.unwrap_or(if options.sync_every.is_some() { 0 } else { 10250 }),
        image_collection: options.limits.image_collection()?,
        eviction: options.limits.eviction,
        node_labels: options.node_labels,
        taints: options.taints,
        reserved: options.reserved,
        logs: options.logs,
        sync: options
            .sync_every
            .map(|every| Periodic { every, jitter: options.sync_jitter.unwrap_or_default() }),
        fencing_period: options.fencing_period,
        reporting: options.reporting,
        encryption_key_file,
        stop_after: options.stop_after,
        down,
        shutdown_groups: options.shutdown.groups()?,
    })
}

pub(crate) fn host_name() -> Result<String, Failure> {
    let name = nix::unistd::gethostname().map_err(|errno| {
        Failure::new(format!("failed to read the host's name: {errno}; add --node-name NAME"))
    })?;
    let name = name.to_string_lossy();
    node_name_of(&name).ok_or_else(|| {
        Failure::new(format!("the host's name {name:?} cannot be the name of a Node; add --node-name NAME"))
    })
}

/// How long an agent may take to end. An ending agent waits for nothing.
const AGENT_END: Duration = Duration::from_secs(10);

/// Ends the agent that holds the lock of this root, if there is one, and waits until it has ended.
pub(crate) fn end_agent(paths: &Paths) -> Result<(), Failure> {
    let Some(pid) = holder(&paths.agent_lock()) else { return Ok(()) };
    let failed = |what: &str, why: &dyn std::fmt::Display| {
        Failure::new(format!("failed to {what} the agent (pid {pid}): {why}"))
    };
    let Some(process) = pidfd(pid).map_err(|error| failed("find", &error))? else { return Ok(()) };
    kill(pid, Signal::SIGTERM).map_err(|errno| failed("end", &errno))?;
    let mut poll = [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(&process), nix::poll::PollFlags::POLLIN)];
    let timeout = u16::try_from(AGENT_END.as_millis()).unwrap_or(u16::MAX);
    match nix::poll::poll(&mut poll, timeout) {
        Ok(0) => Err(failed("end", &"it does not respond; kill it and try again")),
        Ok(_) => Ok(()),
        Err(errno) => Err(failed("wait for", &errno)),
    }
}

/// The executable file of the running agent of this root, if there is one.
pub(crate) fn executable(paths: &Paths) -> Option<std::path::PathBuf> {
    let pid = holder(&paths.agent_lock())?;
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// The process that holds the lock, by the pid that it wrote into the lock file.
fn holder(lock: &Path) -> Option<Pid> {
    let file = fs::File::open(lock).ok()?;
    match nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockSharedNonblock) {
        Ok(_free) => None,
        Err(_) => Some(Pid::from_raw(fs::read_to_string(lock).ok()?.trim().parse().ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_flag_value_is_rejected_with_the_name_of_the_flag() {
        let parse = |line: &str| {
            let parser = Parser::from_args(line.split_whitespace());
            Options::parse(&mut Context::new(), parser).map_err(|failure| failure.to_string())
        };
        let right = parse("--node-name board-1.lab --pod-pids-limit 100").expect("all is right");
        assert_eq!(
            (right.node_name.as_deref(), right.pod_pids_limit),
            (Some("board-1.lab"), PodPidsLimit::Of(100))
        );
        let swaps = |line| parse(line).map(|options| options.limited_swap).ok();
        assert_eq!(swaps("--memory-swap-behavior LimitedSwap"), Some(true));
        assert_eq!((swaps("--memory-swap-behavior=NoSwap"), swaps("")), (Some(false), Some(false)));
        let of = |line| parse(line).map(|options| options.pod_pids_limit);
        assert_eq!(of("--pod-pids-limit=-1").ok(), Some(PodPidsLimit::Unlimited));
        assert_eq!(of("").ok(), Some(PodPidsLimit::Share));
        let sync = |line| parse(line).map(|options| (options.sync_every, options.sync_jitter)).ok();
        let minutes = |count: u64| Some(Duration::from_secs(60 * count));
        assert_eq!(sync("--sync-jitter 10m --sync-every 6h"), Some((minutes(360), minutes(10))));
        let fencing = |line| parse(line).map(|options| options.fencing_period).ok();
        assert_eq!(fencing("--fencing-period 40s"), Some(Some(Duration::from_secs(40))));
        assert_eq!((fencing("--fencing-period 0"), fencing("")), (Some(None), Some(None)));
        assert!(parse("--sync-every 6h --kubelet-port 10250").is_err());
        assert!(parse("--fencing-period 5m --sync-every 6h").is_err());
        assert!(parse("--sync-every 6h --kubelet-port 0").is_ok());
        assert_eq!((sync("--sync-every 0"), sync("--sync-jitter 10m")), (Some((None, None)), None));
        let right = parse(
            "--node-labels zone=a,x.y/b= --node-labels c=d --register-with-taints lab=x:NoExecute,b:NoSchedule \
             --kube-reserved cpu=250m,memory=1Ki --system-reserved=cpu=1,ephemeral-storage=1k",
        );
        let right = right.expect("all is right");
        let labels: Vec<String> =
            right.node_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(labels, ["c=d", "x.y/b=", "zone=a"]);
        let taint = |taint: &Taint| format!("{}={}:{}", taint.key, taint.value, taint.effect);
        let taints: Vec<String> = right.taints.iter().map(taint).collect();
        assert_eq!(taints, ["lab=x:NoExecute", "b=:NoSchedule"]);
        let reserved = Amounts { pods: 0, cpu: 1250, memory: 1024, ephemeral_storage: 1000 };
        assert_eq!(right.reserved, reserved);
        for (line, flag) in [
            ("--node-name A_b", "--node-name"),
            ("--node-name=../x", "--node-name"),
            ("--node-name=", "--node-name"),
            ("--pod-pids-limit=-2", "--pod-pids-limit"),
            ("--pod-pids-limit 0", "--pod-pids-limit"),
            ("--allowed-unsafe-sysctls net.core.*,vm.swappiness", "--allowed-unsafe-sysctls"),
            ("--allowed-unsafe-sysctls kernel.*", "--allowed-unsafe-sysctls"),
            ("--memory-swap-behavior UnlimitedSwap", "--memory-swap-behavior"),
            ("--stop-after x", "--stop-after"),
            ("--sync-every 59s", "--sync-every"),
            ("--fencing-period 39s", "--fencing-period"),
            ("--sync-every 6", "--sync-every"),
            ("--sync-every 6h --sync-jitter -1m", "--sync-jitter"),
            ("--node-labels zone", "--node-labels"),
            ("--node-labels zone=a,-=b", "--node-labels"),
            ("--node-labels zone=a_", "--node-labels"),
            ("--register-with-taints lab=x", "--register-with-taints"),
            ("--register-with-taints lab=x:No", "--register-with-taints"),
            ("--register-with-taints =x:NoExecute", "--register-with-taints"),
            ("--kube-reserved cpu", "--kube-reserved"),
            ("--kube-reserved cpu=-1", "--kube-reserved"),
            ("--system-reserved pid=3", "--system-reserved"),
        ] {
            let refused = parse(line).err().expect(line);
            assert!(refused.contains(&format!("for {flag}: must be")), "{line}: {refused}");
        }
    }
}
