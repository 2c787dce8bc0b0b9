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
use nodlet_runtime::engine::{ClusterDns, Config, EVENTS, RESOLV_CONF, Services, ServicesOf};

use super::{limits, services, shutdown};
use crate::arguments::duration::{duration, go_duration};
use crate::arguments::{Context, number, refused, switch, value};
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
    services: Services,
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
    pub(super) fn parse(context: &mut Context, parser: &mut Parser) -> Result<Self, VerbError> {
        let mut options = Options::default();
        while let Some(flag) = context.next_flag(parser)? {
            match flag.as_str() {
                "--node-name" => {
                    let how = "lower case letters, digits, '-' and '.', as in a host's name";
                    options.node_name = Some(value(parser, &flag, |text| name(text).ok_or(how))?);
                }
                "--pod-cidr" => options.pod_cidr = Some(parser.value()?.string()?),
                "--masquerade" => options.routes_pods = !switch(parser)?,
                "--node-routes" => options.no_node_routes = !switch(parser)?,
                "--cluster-cidr" => {
                    let ranges = |text: &str| text.split(',').map(parse_range).collect::<Option<_>>();
                    options.cluster_cidrs =
                        value(parser, &flag, |text| ranges(text).ok_or("ranges like 10.244.0.0/16"))?;
                }
                "--cluster-dns" => {
                    let server = |server: &str| server.parse::<IpAddr>().map(|_| server.to_owned());
                    let servers = |text: &str| text.split(',').map(server).collect::<Result<_, _>>();
                    options.dns.servers =
                        value(parser, &flag, |text| servers(text).or(Err("IP addresses, separated by ','")))?;
                }
                "--cluster-domain" => {
                    options.dns.domain =
                        value(parser, &flag, |text| name(text).ok_or("a domain like cluster.local"))?;
                }
                "--resolv-conf" => {
                    let file = PathBuf::from(parser.value()?);
                    if !file.as_os_str().is_empty() && !file.is_absolute() {
                        let why = "the absolute path of a file, or empty for none";
                        return Err(refused(&flag, &file.display().to_string(), why));
                    }
                    options.resolv_conf = Some(file);
                }
                "--pod-pids-limit" => options.pod_pids_limit = value(parser, &flag, pod_pids_limit)?,
                "--allowed-annotations" => {
                    let value = parser.value()?.string()?;
                    for allowed in items(&value) {
                        if !options.allowed_annotations.allow(allowed) {
                            let why = "exclusive-cpus.nodlet.dev, rtprio.nodlet.dev, \
                                       io.podman.annotations.ulimit, or CDI devices such as \
                                       vendor.com/camera=front or vendor.com/camera=*";
                            return Err(refused(&flag, allowed, why));
                        }
                    }
                }
                "--default-ulimit" => {
                    let how = "a limit of open files as nofile=1024:524288: a soft limit, and a hard limit that is not \
                               lower and at most 1073741824";
                    options.allowed_annotations.open_files = value(parser, &flag, |text| {
                        let limit = text.strip_prefix("nofile=");
                        limit.and_then(|limit| OpenFiles::parse(limit, OpenFiles::DEFAULT.hard)).ok_or(how)
                    })?;
                }
                "--allowed-unsafe-sysctls" => {
                    let value = parser.value()?.string()?;
                    for pattern in items(&value) {
                        if !sysctl::is_valid(pattern, true) || sysctl::namespace(pattern).is_none() {
                            let why = "namespaced sysctls, such as kernel.msgmax or net.core.*";
                            return Err(refused(&flag, pattern, why));
                        }
                        options.allowed_sysctls.push(pattern.to_owned());
                    }
                }
                "--memory-swap-behavior" => {
                    options.limited_swap = value(parser, &flag, |text| match text {
                        "NoSwap" => Ok(false),
                        "LimitedSwap" => Ok(true),
                        _ => Err("NoSwap or LimitedSwap"),
                    })?;
                }
                "--terminated-pod-gc-threshold" => {
                    options.terminated_pod_gc_threshold = Some(number(parser, &flag)?);
                }
                "--kubelet-port" => {
                    let how = "a port from 1 to 65535, or 0 for none";
                    options.kubelet_port = Some(value(parser, &flag, |text| text.parse().or(Err(how)))?);
                }
                "--node-labels" => options.node_labels.extend(value(parser, &flag, labels)?),
                "--register-with-taints" => options.taints.extend(value(parser, &flag, taints)?),
                "--kube-reserved" | "--system-reserved" => {
                    options.reserved = options.reserved.plus(&value(parser, &flag, reserved)?);
                }
                "--container-log-max-files" => {
                    let files = number(parser, &flag)?;
                    let files = u32::try_from(files).ok().filter(|files| *files >= 2);
                    options.logs.max_files = files.ok_or_else(|| {
                        VerbError::new("invalid value for --container-log-max-files: must be 2 or more")
                    })?;
                }
                "--container-log-max-size" => {
                    options.logs.max_size = value(parser, &flag, |text| {
                        let size =
                            Quantity::parse(text).ok().and_then(|size| u64::try_from(size.value()).ok());
                        size.filter(|size| *size > 0).ok_or("a quantity of bytes, as 10Mi")
                    })?;
                }
                "--sync-every" => {
                    let (least, how) = (Duration::from_secs(60), "1m or more, or 0 to stay connected");
                    options.sync_every = at_least(parser, &flag, least, how)?;
                }
                "--sync-jitter" => {
                    options.sync_jitter = duration(parser, &flag)?;
                }
                "--fencing-period" => {
                    let how = "40s or more, or 0 for no end of the pods";
                    options.fencing_period = at_least(parser, &flag, fencing::SHORTEST, how)?;
                }
                "--encryption-key-file" => {
                    options.encryption_key_file = Some(PathBuf::from(parser.value()?));
                }
                "--metered" => {
                    options.reporting =
                        if switch(parser)? { Reporting::Metered } else { Reporting::Ordinary };
                }
                "--quiet" => options.quiet = switch(parser)?,
                flag if options.limits.take(flag, parser)? => {}
                flag if services::take(&mut options.services, flag, parser)? => {}
                flag if options.shutdown.take(flag, parser)? => {}
                other => context.global(other, parser)?,
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
        if options.sync_every.is_some() && options.services.of == ServicesOf::Cluster {
            return Err(VerbError::new(
                "--services=cluster needs a board that stays connected: leave out --sync-every",
            ));
        }
        if options.services.kubeconfig.is_some() && options.services.of != ServicesOf::Cluster {
            return Err(VerbError::new("--services-kubeconfig has no effect without --services=cluster"));
        }
        if options.sync_every.is_some() && options.kubelet_port.is_some_and(|port| port != 0) {
            return Err(VerbError::new(
                "--kubelet-port needs a board that stays connected: the port has to ask the cluster who may use it; leave out --sync-every, or use --kubelet-port 0",
            ));
        }
        Ok(options)
    }
}

/// A name as a host's.
fn name(text: &str) -> Option<String> {
    is_node_name(text).then(|| text.to_owned())
}

/// The items of a list that commas separate.
fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(|item| !item.is_empty())
}

/// A duration of at least `least`, or 0.
fn at_least(
    parser: &mut Parser,
    flag: &str,
    least: Duration,
    how: &str,
) -> Result<Option<Duration>, VerbError> {
    let text = parser.value()?.string()?;
    let given = go_duration(flag, &text)?;
    if given.is_some_and(|given| given < least) { Err(refused(flag, &text, how)) } else { Ok(given) }
}

/// Parses labels in the form `KEY=VALUE,...`.
pub(super) fn labels(text: &str) -> Result<SortedMap<String, String>, String> {
    let label = |pair: &str| {
        let (key, value) = pair.split_once('=').ok_or("key=value pairs, separated by ','")?;
        check_label(key, value)?;
        Ok((key.to_owned(), value.to_owned()))
    };
    items(text).map(label).collect()
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
    items(text).map(taint).collect()
}

/// Parses amounts in the form `RESOURCE=QUANTITY,...`.
pub(super) fn reserved(text: &str) -> Result<Amounts, String> {
    let mut amounts = Amounts::default();
    for pair in items(text) {
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
fn pod_pids_limit(text: &str) -> Result<PodPidsLimit, &'static str> {
    match (text, text.parse()) {
        ("-1", _) => Ok(PodPidsLimit::Unlimited),
        (_, Ok(limit @ 1..)) => Ok(PodPidsLimit::Of(limit)),
        _ => Err("at least 1, or -1 for no limit"),
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
    let mut services = options.services;
    services.kubeconfig = services.kubeconfig.map(below_root);
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
        services,
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
    use crate::testing::parsed;

    #[test]
    fn an_invalid_flag_value_is_rejected_with_the_name_of_the_flag() {
        let parse = |line| parsed("agent", Options::parse, line);
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
