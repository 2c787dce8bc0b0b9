//! The flags of `nodlet agent`, and what they configure.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lexopt::{Parser, ValueExt};
use nodlet_cluster::fencing;
use nodlet_cluster::pod_cidrs::parse_range;
use nodlet_cluster::reporting::Reporting;
use nodlet_cluster::sync::Periodic;
use nodlet_core::facts::{Amounts, MAX_PODS};
use nodlet_core::sorted::SortedMap;
use nodlet_core::spec::{OpenFiles, Quantity, Taint, sysctl};
use nodlet_host::cgroup::PodPidsLimit;
use nodlet_kube::manifest::{AllowedAnnotations, check_label, is_node_name, node_name_of};
use nodlet_runtime::api::CONNECTIONS;
use nodlet_runtime::container_config::LogLimits;
use nodlet_runtime::engine::{ClusterDns, Config, EVENTS, RESOLV_CONF};

use super::{limits, shutdown};
use crate::arguments::duration::go_duration;
use crate::arguments::{Context, number, switch};
use crate::error::VerbError;

/// The parsed command line of `nodlet agent`.
#[derive(Default)]
pub(super) struct Options {
    node_name: Option<String>,
    pod_cidr: Option<String>,
    routes_pods: bool,
    cluster_cidrs: Vec<(IpAddr, u8)>,
    no_node_routes: bool,
    dns: ClusterDns,
    resolv_conf: Option<PathBuf>,
    pod_pids_limit: PodPidsLimit,
    allowed_annotations: AllowedAnnotations,
    allowed_sysctls: Vec<String>,
    limited_swap: bool,
    terminated_pod_gc_threshold: Option<u64>,
    node_labels: SortedMap<String, String>,
    taints: Vec<Taint>,
    reserved: Amounts,
    logs: LogLimits,
    kubelet_port: Option<u16>,
    limits: limits::Flags,
    pub(super) quiet: bool,
    pub(super) shutdown: shutdown::Flags,
    sync_every: Option<Duration>,
    sync_jitter: Option<Duration>,
    fencing_period: Option<Duration>,
    reporting: Reporting,
    encryption_key_file: Option<PathBuf>,
}

impl Options {
    pub(super) fn parse(context: &mut Context, mut parser: Parser) -> Result<Self, VerbError> {
        let mut options = Options::default();
        while let Some(flag) = context.next_flag(&mut parser)? {
            match flag.as_str() {
                "--node-name" => {
                    let value = parser.value()?.string()?;
                    if !is_node_name(&value) {
                        let why = "lower case letters, digits, '-' and '.', as in a host's name";
                        return Err(refused(&flag, &value, why));
                    }
                    options.node_name = Some(value);
                }
                "--pod-cidr" => options.pod_cidr = Some(parser.value()?.string()?),
                "--masquerade" => options.routes_pods = !switch(&mut parser)?,
                "--node-routes" => options.no_node_routes = !switch(&mut parser)?,
                "--cluster-cidr" => {
                    let value = parser.value()?.string()?;
                    let ranges: Option<Vec<_>> = value.split(',').map(parse_range).collect();
                    options.cluster_cidrs =
                        ranges.ok_or_else(|| refused(&flag, &value, "ranges like 10.244.0.0/16"))?;
                }
                "--cluster-dns" => {
                    let value = parser.value()?.string()?;
                    if value.split(',').any(|server| server.parse::<IpAddr>().is_err()) {
                        return Err(refused(&flag, &value, "IP addresses, separated by ','"));
                    }
                    options.dns.servers = value.split(',').map(str::to_owned).collect();
                }
                "--cluster-domain" => {
                    let value = parser.value()?.string()?;
                    if !is_node_name(&value) {
                        return Err(refused(&flag, &value, "a domain like cluster.local"));
                    }
                    options.dns.domain = value;
                }
                "--resolv-conf" => {
                    let file = PathBuf::from(parser.value()?);
                    if !file.as_os_str().is_empty() && !file.is_absolute() {
                        let why = "the absolute path of a file, or empty for none";
                        return Err(refused(&flag, &file.display().to_string(), why));
                    }
                    options.resolv_conf = Some(file);
                }
                "--pod-pids-limit" => {
                    options.pod_pids_limit = pod_pids_limit(&mut parser)?;
                }
                "--allowed-annotations" => {
                    let value = parser.value()?.string()?;
                    for allowed in value.split(',').filter(|allowed| !allowed.is_empty()) {
                        if !options.allowed_annotations.allow(allowed) {
                            let why = "exclusive-cpus.nodlet.dev, rtprio.nodlet.dev, \
                                       io.podman.annotations.ulimit, or CDI devices such as \
                                       vendor.com/camera=front or vendor.com/camera=*";
                            return Err(refused(&flag, allowed, why));
                        }
                    }
                }
                "--default-ulimit" => {
                    let value = parser.value()?.string()?;
                    let limit = value.strip_prefix("nofile=");
                    let limit = limit.and_then(|limit| OpenFiles::parse(limit, OpenFiles::DEFAULT.hard));
                    let why = "a limit of open files as nofile=1024:524288: a soft limit, and a hard limit that is not \
                               lower and at most 1073741824";
                    options.allowed_annotations.open_files =
                        limit.ok_or_else(|| refused(&flag, &value, why))?;
                }
                "--allowed-unsafe-sysctls" => {
                    let value = parser.value()?.string()?;
                    for pattern in value.split(',').filter(|pattern| !pattern.is_empty()) {
                        if !sysctl::is_valid(pattern, true) || sysctl::namespace(pattern).is_none() {
                            let why = "namespaced sysctls, such as kernel.msgmax or net.core.*";
                            return Err(refused(&flag, pattern, why));
                        }
                        options.allowed_sysctls.push(pattern.to_owned());
                    }
                }
                "--memory-swap-behavior" => {
                    options.limited_swap = match &*parser.value()?.string()? {
                        "NoSwap" => false,
                        "LimitedSwap" => true,
                        value => {
                            return Err(refused(&flag, value, "NoSwap or LimitedSwap"));
                        }
                    };
                }
                "--terminated-pod-gc-threshold" => {
                    let kept = number(&mut parser, &flag)?;
                    options.terminated_pod_gc_threshold = Some(kept);
                }
                "--kubelet-port" => {
                    let text = parser.value()?.string()?;
                    let port = text
                        .parse()
                        .map_err(|_| refused(&flag, &text, "a port from 1 to 65535, or 0 for none"))?;
                    options.kubelet_port = Some(port);
                }
                "--node-labels" => {
                    let value = parser.value()?.string()?;
                    options.node_labels.extend(labels(&value).map_err(|why| refused(&flag, &value, &why))?);
                }
                "--register-with-taints" => {
                    let value = parser.value()?.string()?;
                    options.taints.extend(taints(&value).map_err(|why| refused(&flag, &value, &why))?);
                }
                "--kube-reserved" | "--system-reserved" => {
                    let value = parser.value()?.string()?;
                    let more = reserved(&value).map_err(|why| refused(&flag, &value, &why))?;
                    options.reserved = options.reserved.plus(&more);
                }
                "--container-log-max-files" => {
                    let files = number(&mut parser, &flag)?;
                    let files = u32::try_from(files).ok().filter(|files| *files >= 2);
                    options.logs.max_files = files.ok_or_else(|| {
                        VerbError::new("invalid value for --container-log-max-files: must be 2 or more")
                    })?;
                }
                "--container-log-max-size" => {
                    let value = parser.value()?.string()?;
                    let size = Quantity::parse(&value).ok().and_then(|size| u64::try_from(size.value()).ok());
                    options.logs.max_size = size
                        .filter(|size| *size > 0)
                        .ok_or_else(|| refused(&flag, &value, "a quantity of bytes, as 10Mi"))?;
                }
                "--sync-every" => {
                    let text = parser.value()?.string()?;
                    let every = go_duration(&flag, &text)?;
                    if every.is_some_and(|every| every < Duration::from_secs(60)) {
                        return Err(refused(&flag, &text, "1m or more, or 0 to stay connected"));
                    }
                    options.sync_every = every;
                }
                "--sync-jitter" => {
                    options.sync_jitter = go_duration(&flag, &parser.value()?.string()?)?;
                }
                "--fencing-period" => {
                    let text = parser.value()?.string()?;
                    let period = go_duration(&flag, &text)?;
                    if period.is_some_and(|period| period < fencing::SHORTEST) {
                        return Err(refused(&flag, &text, "40s or more, or 0 for no end of the pods"));
                    }
                    options.fencing_period = period;
                }
                "--encryption-key-file" => {
                    options.encryption_key_file = Some(PathBuf::from(parser.value()?));
                }
                "--metered" => {
                    options.reporting =
                        if switch(&mut parser)? { Reporting::Metered } else { Reporting::Ordinary };
                }
                "--quiet" => options.quiet = switch(&mut parser)?,
                flag if options.limits.take(flag, &mut parser)? => {}
                flag if options.shutdown.take(flag, &mut parser)? => {}
                other => context.global(other, &mut parser)?,
            }
        }
        if options.sync_jitter.is_some() && options.sync_every.is_none() {
            return Err(VerbError::new("--sync-jitter has no effect without --sync-every"));
        }
        if options.sync_every.is_some() && options.fencing_period.is_some() {
            return Err(VerbError::new(
                "--fencing-period needs a board that stays connected: with --sync-every, the Lease lapses between two visits",
            ));
        }
        if options.sync_every.is_some() && options.kubelet_port.is_some_and(|port| port != 0) {
            return Err(VerbError::new(
                "--kubelet-port needs a board that stays connected: the port has to ask the cluster who may use it; leave out --sync-every, or use --kubelet-port 0",
            ));
        }
        Ok(options)
    }
}

fn refused(flag: &str, value: &str, why: &str) -> VerbError {
    VerbError::new(format!("invalid value {value:?} for {flag}: must be {why}"))
}

/// Parses labels in the form `KEY=VALUE,...`.
pub(super) fn labels(text: &str) -> Result<SortedMap<String, String>, String> {
    let label = |pair: &str| {
        let (key, value) = pair.split_once('=').ok_or("key=value pairs, separated by ','")?;
        check_label(key, value)?;
        Ok((key.to_owned(), value.to_owned()))
    };
    text.split(',').filter(|pair| !pair.is_empty()).map(label).collect()
}

/// Parses taints in the form `KEY=VALUE:EFFECT,...`; the value may be omitted.
pub(super) fn taints(text: &str) -> Result<Vec<Taint>, String> {
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
pub(super) fn reserved(text: &str) -> Result<Amounts, String> {
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

/// Parses `--pod-pids-limit`: a number of processes, at least 1 for the container's own process, or -1 for no
/// limit.
fn pod_pids_limit(parser: &mut Parser) -> Result<PodPidsLimit, VerbError> {
    let value = parser.value()?.string()?;
    match value.parse::<i64>().map(|limit| (limit, u64::try_from(limit))) {
        Ok((-1, _)) => Ok(PodPidsLimit::Unlimited),
        Ok((1.., Ok(limit))) => Ok(PodPidsLimit::Of(limit)),
        Ok(_) | Err(_) => Err(VerbError::new(format!(
            "invalid value {value:?} for --pod-pids-limit: must be at least 1, or -1 for no limit"
        ))),
    }
}

pub(super) fn config(root: &Path, options: Options, down: bool) -> Result<Config, VerbError> {
    let root = fs::canonicalize(root).map_err(|error| {
        VerbError::new(format!("failed to use --root {}: {error}; make the directory first", root.display()))
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
        resolv_conf: Some(options.resolv_conf.unwrap_or_else(|| RESOLV_CONF.into()))
            .filter(|file| !file.as_os_str().is_empty()),
        pod_pids_limit: options.pod_pids_limit,
        allowed_annotations: options.allowed_annotations,
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
        down,
        shutdown_groups: options.shutdown.groups()?,
    })
}

pub(crate) fn host_name() -> Result<String, VerbError> {
    let name = nix::unistd::gethostname().map_err(|errno| {
        VerbError::new(format!("failed to read the host's name: {errno}; add --node-name NAME"))
    })?;
    let name = name.to_string_lossy();
    node_name_of(&name).ok_or_else(|| {
        VerbError::new(format!("the host's name {name:?} cannot be the name of a Node; add --node-name NAME"))
    })
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
        let limit = |line| parse(line).map(|options| options.allowed_annotations.open_files).ok();
        assert_eq!(limit("--default-ulimit nofile=5:9"), Some(OpenFiles { soft: 5, hard: 9 }));
        assert_eq!(limit("--allowed-annotations=io.podman.annotations.ulimit"), Some(OpenFiles::DEFAULT));
        let resolv_conf = |line| parse(line).ok().and_then(|options| options.resolv_conf);
        assert_eq!(resolv_conf("--resolv-conf=/run/dns"), Some(PathBuf::from("/run/dns")));
        assert_eq!((resolv_conf("--resolv-conf="), resolv_conf("")), (Some(PathBuf::new()), None));
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
            ("--resolv-conf resolv.conf", "--resolv-conf"),
            ("--default-ulimit nproc=5", "--default-ulimit"),
            ("--default-ulimit nofile=2:1", "--default-ulimit"),
            ("--default-ulimit 1024", "--default-ulimit"),
            ("--pod-pids-limit=-2", "--pod-pids-limit"),
            ("--pod-pids-limit 0", "--pod-pids-limit"),
            ("--allowed-annotations rtprio.nodlet.dev,cdi.k8s.io/cams", "--allowed-annotations"),
            ("--allowed-annotations vendor.com/*", "--allowed-annotations"),
            ("--allowed-unsafe-sysctls net.core.*,vm.swappiness", "--allowed-unsafe-sysctls"),
            ("--allowed-unsafe-sysctls kernel.*", "--allowed-unsafe-sysctls"),
            ("--memory-swap-behavior UnlimitedSwap", "--memory-swap-behavior"),
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
