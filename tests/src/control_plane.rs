//! [`ControlPlane`]: the real servers of a Kubernetes cluster, in a network namespace of a test.
//! `cargo xtask control-plane` builds them. Boards that are nodes are [`crate::ClusterNode`]s.

mod certificates;
mod partition;

pub use self::partition::{Isolation, Partition};

use std::cell::Cell;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use data_encoding::BASE64;

use self::partition::nft;
use crate::device::Ran;
use crate::kubectl;
use crate::namespace::Namespace;
use crate::programs::built;
use crate::slot::Slot;

/// How long the API server may take until it is ready: 2 s on an idle machine.
const DEADLINE: Duration = Duration::from_secs(180);

/// The address of the API server on the link of the boards.
const ADDRESS: &str = "10.212.0.1";

/// The keys of the cluster's CA and servers, unless a test has others.
const P256: &str = "ec -pkeyopt ec_paramgen_curve:P-256";

/// The token with which nodes join.
pub const TOKEN: &str = "abcdef.0123456789abcdef";

/// A server that runs, or that was killed and starts again.
struct Server {
    name: &'static str,
    flags: Vec<String>,
    process: Child,
}

/// etcd, kube-apiserver, kube-controller-manager and kube-scheduler, in a network namespace with a link for
/// boards. They end with the value; if the test fails, their logs are kept.
pub struct ControlPlane {
    namespace: Namespace,
    slot: Slot,
    servers: Vec<Server>,
    boards: Cell<u8>,
}

impl ControlPlane {
    /// Starts a control plane, as kubeadm configures it, and waits until it is ready.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a control plane whose controllers have further flags, for example
    /// `--node-monitor-grace-period=5s`.
    pub fn start_with(controllers: &[&str]) -> Self {
        Self::start_with_flags(controllers, &[])
    }

    /// Starts a control plane whose controllers and whose API server have further flags.
    pub fn start_with_flags(controllers: &[&str], server: &[&str]) -> Self {
        Self::begin(controllers, server, "", P256)
    }

    /// Starts a control plane whose CA and servers have such keys, in the form of openssl: `rsa:2048` as with kubeadm, or
    /// the parameters of `ec`.
    pub fn start_with_keys(keys: &str) -> Self {
        Self::begin(&[], &[], "", keys)
    }

    /// Starts a control plane whose API server reaches nodes only through the agents of a konnectivity server, since
    /// the link lets through no connection that the servers open, as a router with NAT does.
    pub fn start_before_nat() -> Self {
        let mut plane = Self::begin(&[], &[], "--egress-selector-config-file DIR/egress.yaml", P256);
        nft(
            &plane.namespace,
            "table inet nat {\n\
             chain out { type filter hook output priority -300; oifname boards ct state new drop; }\n}",
        );
        let dir = plane.dir().display().to_string();
        // Several agents: each request goes through the agent on the node that it is for.
        let flags = "--mode grpc --uds-name DIR/konnectivity.socket --server-port 0 --agent-port 8132 \
                     --health-port 8134 --proxy-strategies destHost --cluster-cert DIR/apiserver.crt \
                     --cluster-key DIR/apiserver.key --agent-namespace kube-system \
                     --agent-service-account konnectivity-agent --kubeconfig DIR/admin.kubeconfig \
                     --authentication-audience system:konnectivity-server";
        plane.serve("konnectivity-server", &flags.replace("DIR", &dir), &[]);
        plane
    }

    /// Starts the agents of konnectivity, whose image each node needs: [`crate::konnectivity_archive`].
    pub fn install_konnectivity(&self) {
        self.apply(&include_str!("konnectivity.yaml").replace("ADDRESS", ADDRESS));
    }

    fn begin(controllers: &[&str], server: &[&str], egress: &str, keys: &str) -> Self {
        assert!(program().is_file(), "the control plane is not built: run `cargo xtask control-plane`");
        let namespace = Namespace::new();
        // One link for all boards. It is up without any board, since the API server needs its address.
        namespace.ip("link add boards type bridge");
        namespace.ip(&format!("address add {ADDRESS}/16 dev boards"));
        namespace.ip("link set boards up");
        let mut plane = Self { namespace, slot: Slot::take(), servers: Vec::new(), boards: Cell::new(0) };
        let _ = fs::remove_dir_all(plane.dir());
        fs::create_dir_all(plane.dir()).expect("/tmp can be written to");
        plane.make_certificates(keys);
        let dir = plane.dir().display().to_string();
        let selection = format!(
            "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\n\
             egressSelections: [{{name: cluster, connection: {{proxyProtocol: GRPC, \
             transport: {{uds: {{udsName: {dir}/konnectivity.socket}}}}}}}}]\n"
        );
        fs::write(plane.dir().join("egress.yaml"), selection).expect("written");
        let egress = egress.replace("DIR", &dir);
        let server: Vec<&str> = server.iter().copied().chain(egress.split_whitespace()).collect();
        plane.start_servers(controllers, &server);
        plane.install();
        plane
    }

    /// Connects a network namespace with the API server and with all boards that were connected before, and
    /// returns its address.
    pub fn connect(&self, board: &Namespace) -> String {
        let number = self.boards.get() + 1;
        self.boards.set(number);
        let address = format!("10.212.0.{}", u16::from(number) + 1);
        let link = format!("board{number}");
        self.namespace.connect(&link, board, "uplink");
        self.namespace.ip(&format!("link set {link} master boards"));
        board.ip(&format!("address add {address}/16 dev uplink"));
        board.ip(&format!("route add default via {ADDRESS}"));
        address
    }

    /// A process in the network namespace of the servers.
    pub fn pid(&self) -> u32 {
        self.servers.first().expect("etcd was started").process.id()
    }

    /// The network namespace of the servers.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The host and the port of the API server, as boards reach it.
    pub fn server(&self) -> String {
        format!("{ADDRESS}:6443")
    }

    /// The arguments that `kubeadm token create --print-join-command` prints.
    pub fn join_arguments(&self) -> Vec<String> {
        let hash = format!("sha256:{}", self.authority_hash());
        [&self.server(), "--token", TOKEN, "--discovery-token-ca-cert-hash", &hash]
            .map(str::to_owned)
            .to_vec()
    }

    /// Starts an API server with faults in front of the API server, which speaks HTTP/1.1, or HTTP/2 as well. Returns its
    /// host and port.
    pub fn misbehave(&mut self, version: u8) -> String {
        let server = format!("{ADDRESS}:6444");
        let flags = format!("{server} {} {} {version}", self.server(), self.dir().display());
        self.serve("misbehave", &flags, &[]);
        server
    }

    /// Sets how the API server of [`ControlPlane::misbehave`] responds: an HTTP status or the name of a fault in
    /// `tests/go/misbehave/main.go`; empty for none. Returns the number of requests it got before.
    pub fn set_fault(&self, fault: &str) -> usize {
        fs::write(self.dir().join("fault"), fault).expect("written");
        self.faulty_requests()
    }

    /// The number of requests to the API server of [`ControlPlane::misbehave`].
    pub fn faulty_requests(&self) -> usize {
        self.requests_since(0).len()
    }

    /// The request that was kept or cut last, after its fault, such as `cut 3 after web`.
    pub fn ended_request(&self) -> String {
        fs::read_to_string(self.dir().join("ended")).unwrap_or_default()
    }

    /// The requests to the API server of [`ControlPlane::misbehave`] after so many, each with the fault of that time.
    pub fn requests_since(&self, count: usize) -> Vec<String> {
        let all = fs::read_to_string(self.dir().join("requests")).unwrap_or_default();
        all.lines().skip(count).map(str::to_owned).collect()
    }

    /// The certificate of the cluster's authority.
    pub fn authority(&self) -> PathBuf {
        self.pki("ca.crt")
    }

    /// The kubeconfig of the cluster's administrator, for programs in the namespace of the servers or on a
    /// connected board.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir().join("admin.kubeconfig")
    }

    /// Runs kubectl with these arguments, as the cluster's administrator.
    pub fn kubectl<const N: usize>(&self, words: [&str; N]) -> Ran {
        self.kubectl_with(&words, "")
    }

    /// Runs kubectl with the arguments in a line, which is split at spaces.
    pub fn line(&self, line: &str) -> Ran {
        self.kubectl_with(&line.split_whitespace().collect::<Vec<_>>(), "")
    }

    /// Creates or changes the objects of a manifest.
    #[track_caller]
    pub fn apply(&self, manifest: &str) {
        self.kubectl_with(&["apply", "-f", "-"], manifest).ok();
    }

    /// Creates the objects of a manifest, which may be too large to apply.
    #[track_caller]
    pub fn create(&self, manifest: &str) {
        self.kubectl_with(&["create", "-f", "-"], manifest).ok();
    }

    /// Runs kubectl with a line of arguments until its output meets a condition, and returns that output.
    #[track_caller]
    pub fn wait_for(&self, line: &str, mut condition: impl FnMut(&str) -> bool) -> String {
        let begun = Instant::now();
        // kubectl is a large program: calls in a row would take a whole processor.
        let mut pause = Duration::from_millis(100);
        loop {
            let ran = self.line(line);
            if ran.code == 0 && condition(&ran.stdout) {
                return ran.stdout;
            }
            assert!(begun.elapsed() < DEADLINE, "kubectl {line}: not within {DEADLINE:?}: {ran:#?}");
            thread::sleep(pause);
            pause = (pause * 3 / 2).min(Duration::from_secs(1));
        }
    }

    /// A directory that ends with the control plane, for all boards.
    pub fn shared(&self, name: &str) -> PathBuf {
        let path = self.dir().join(name);
        fs::create_dir_all(&path).expect("/tmp can be written to");
        path
    }

    fn dir(&self) -> PathBuf {
        self.slot.dir().join("cluster")
    }

    fn pki(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    fn start_servers(&mut self, controllers: &[&str], more: &[&str]) {
        let dir = self.dir().display().to_string();
        let server = |flags: &str| flags.replace("DIR", &dir).replace("ADDRESS", ADDRESS);
        self.serve(
            "etcd",
            &server(
                "--data-dir DIR/etcd --unsafe-no-fsync --listen-client-urls http://127.0.0.1:2379 \
                 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 \
                 --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster default=http://127.0.0.1:2380",
            ),
            &[],
        );
        self.serve(
            "kube-apiserver",
            &server(
                "--etcd-servers http://127.0.0.1:2379 --advertise-address ADDRESS --allow-privileged \
                 --tls-cert-file DIR/apiserver.crt --tls-private-key-file DIR/apiserver.key \
                 --client-ca-file DIR/ca.crt --authorization-mode Node,RBAC --enable-bootstrap-token-auth \
                 --enable-admission-plugins NodeRestriction --kubelet-certificate-authority DIR/ca.crt \
                 --kubelet-client-certificate DIR/to-nodes.crt --kubelet-client-key DIR/to-nodes.key \
                 --requestheader-client-ca-file DIR/ca.crt --requestheader-allowed-names front-proxy-client \
                 --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
                 --requestheader-extra-headers-prefix X-Remote-Extra- \
                 --proxy-client-cert-file DIR/front-proxy.crt --proxy-client-key-file DIR/front-proxy.key \
                 --kubelet-preferred-address-types InternalIP,Hostname --service-cluster-ip-range 10.96.0.0/16 \
                 --service-account-issuer https://kubernetes.default.svc \
                 --service-account-key-file DIR/accounts.key --service-account-signing-key-file DIR/accounts.key",
            ),
            more,
        );
        let begun = Instant::now();
        while self.line("get --raw /readyz").code != 0 {
            for Server { name, process, .. } in &mut self.servers {
                let ended = process.try_wait().expect("it is a child");
                assert!(ended.is_none(), "{name} ended: {ended:?}");
            }
            assert!(begun.elapsed() < DEADLINE, "the API server is not ready within {DEADLINE:?}");
            thread::sleep(Duration::from_millis(100));
        }
        self.serve(
            "kube-controller-manager",
            &server(
                "--kubeconfig DIR/kube-controller-manager.kubeconfig --leader-elect=false \
                 --cluster-signing-cert-file DIR/ca.crt --cluster-signing-key-file DIR/ca.key \
                 --root-ca-file DIR/ca.crt --service-account-private-key-file DIR/accounts.key \
                 --use-service-account-credentials --controllers *,bootstrapsigner,tokencleaner \
                 --allocate-node-cidrs --cluster-cidr 10.244.0.0/16",
            ),
            controllers,
        );
        self.serve(
            "kube-scheduler",
            &server("--kubeconfig DIR/kube-scheduler.kubeconfig --leader-elect=false"),
            &[],
        );
    }

    fn serve(&mut self, name: &'static str, flags: &str, more: &[&str]) {
        let flags: Vec<String> =
            flags.split_whitespace().chain(more.iter().copied()).map(str::to_owned).collect();
        let process = self.run(name, &flags);
        self.servers.push(Server { name, flags, process });
    }

    /// Runs another controller manager or scheduler beside the first one, as if the election of a leader had failed.
    pub fn run_another(&mut self, name: &'static str) {
        let first = self.servers.iter().find(|server| server.name == name).expect("there is such a server");
        let mut flags = first.flags.clone();
        flags.push("--secure-port=0".to_owned());
        let process = self.run(name, &flags);
        self.servers.push(Server { name, flags, process });
    }

    /// Kills a server, which stays away until [`ControlPlane::restart`].
    pub fn kill(&mut self, name: &str) {
        let server =
            self.servers.iter_mut().find(|server| server.name == name).expect("there is such a server");
        server.process.kill().expect("a child can be killed");
        server.process.wait().expect("a child can be waited for");
    }

    /// Starts a killed server again.
    pub fn restart(&mut self, name: &str) {
        let place =
            self.servers.iter().position(|server| server.name == name).expect("there is such a server");
        let process = self.run(self.servers[place].name, &self.servers[place].flags);
        self.servers[place].process = process;
    }

    fn run(&self, name: &str, flags: &[String]) -> Child {
        let log =
            fs::OpenOptions::new().create(true).append(true).open(self.dir().join(format!("{name}.log")));
        let log = log.expect("/tmp can be written to");
        let (program, role) = match name {
            "misbehave" => (built("misbehave/misbehave-6"), None),
            "metrics-server" => (built("metrics-server/metrics-server-0.9.0"), None),
            "konnectivity-server" => (built("konnectivity-server/konnectivity-server-0.34.0"), None),
            server => (program(), Some(server)),
        };
        let mut command = Command::new(program);
        command
            .args(role)
            .args(flags)
            .current_dir(self.dir())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor is left"))
            .stderr(log);
        self.namespace.give_to(&mut command);
        // SAFETY: between fork and exec only a system call is made.
        unsafe { command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(nix::sys::signal::SIGKILL)?)) };
        command.spawn().expect("the control plane can be run")
    }

    /// Installs what lets nodes join. The namespaces for it appear moments after the API server is ready.
    fn install(&self) {
        self.wait_for("get namespace kube-public kube-system default -o name", |_| true);
        let authority = fs::read(self.authority()).expect("it was written");
        let text = include_str!("control_plane.yaml")
            .replace("SERVER", &self.server())
            .replace("AUTHORITY", &BASE64.encode(&authority));
        self.apply(&text);
        // Pods are admitted only with a service account.
        self.wait_for("get serviceaccount default -o name", |_| true);
    }

    /// Starts metrics-server, which verifies the certificates of the nodes' ports, and makes it a part of the API. The
    /// control plane needs `--enable-aggregator-routing`.
    pub fn serve_metrics(&mut self) {
        let dir = self.dir().display().to_string();
        let flags = "--kubeconfig DIR/admin.kubeconfig --authentication-kubeconfig DIR/admin.kubeconfig \
                     --authorization-kubeconfig DIR/admin.kubeconfig --secure-port 4443 --cert-dir DIR/metrics \
                     --kubelet-certificate-authority DIR/ca.crt --kubelet-preferred-address-types InternalIP \
                     --metric-resolution 15s";
        self.serve("metrics-server", &flags.replace("DIR", &dir), &[]);
        self.apply(&include_str!("metrics_server.yaml").replace("ADDRESS", ADDRESS));
        let available = "get apiservice v1beta1.metrics.k8s.io -o jsonpath={.status.conditions[*].status}";
        self.wait_for(available, |status| status == "True");
    }

    /// Lets nodes read all Nodes, as docs/cluster.md tells the cluster's administrator.
    pub fn let_nodes_read_nodes(&self) {
        self.line("create clusterrole node-reader --verb=get,list,watch --resource=nodes").ok();
        self.line("create clusterrolebinding node-reader --clusterrole=node-reader --group=system:nodes")
            .ok();
    }

    /// Installs kube-proxy and CoreDNS, whose images each node needs: [`crate::kube_proxy_archive`] and
    /// [`crate::coredns_archive`]. The address of the DNS is 10.96.0.10.
    pub fn install_services(&self) {
        self.apply(&include_str!("cluster_services.yaml").replace("SERVER", &self.server()));
        self.install_names();
    }

    /// Installs CoreDNS without kube-proxy. A node needs [`crate::coredns_archive`].
    pub fn install_names(&self) {
        self.apply(include_str!("cluster_names.yaml"));
    }

    /// Lets nodes read Services and EndpointSlices, as docs/cluster.md tells the cluster's administrator.
    pub fn let_nodes_read_services(&self) {
        let binding = "create clusterrolebinding node-proxier --clusterrole=system:node-proxier";
        self.line(&format!("{binding} --group=system:nodes")).ok();
    }

    /// kubectl with these arguments, as the cluster's administrator, in the namespace of the servers.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(kubectl::program());
        command.arg("--kubeconfig").arg(self.kubeconfig()).args(words).env("HOME", self.dir());
        self.namespace.give_to(&mut command);
        command
    }

    /// Runs kubectl with these arguments and this input.
    pub fn kubectl_with(&self, words: &[&str], input: &str) -> Ran {
        Ran::of(self.command(words), &format!("kubectl {}", words.join(" ")), input)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        for server in self.servers.iter_mut().rev() {
            let _ = server.process.kill();
            let _ = server.process.wait();
        }
        if !thread::panicking() {
            let _ = fs::remove_dir_all(self.dir());
            return;
        }
        let kept = std::env::temp_dir().join(format!(
            "nodlet-cluster-{}-{}",
            std::process::id(),
            self.slot.number()
        ));
        let _ = fs::create_dir_all(&kept);
        for Server { name, .. } in &self.servers {
            let log = self.dir().join(format!("{name}.log"));
            let lines = fs::read_to_string(&log).unwrap_or_default();
            let last: Vec<&str> = lines.lines().rev().take(5).collect();
            eprintln!("the last lines of {name}, which are kept in {}:", kept.display());
            last.iter().rev().for_each(|line| eprintln!("  {line}"));
            let _ = fs::copy(&log, kept.join(format!("{name}.log")));
        }
    }
}

/// The servers of this project's version of Kubernetes, or of that in `NODLET_KUBERNETES`.
fn program() -> PathBuf {
    let release = std::env::var("NODLET_KUBERNETES").unwrap_or_else(|_| "1.36.3".to_owned());
    built(&format!("control-plane/control-plane-{release}"))
}
