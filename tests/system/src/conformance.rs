//! Runs Kubernetes' own tests of nodes, those marked `[NodeConformance]`, on a board that is a node of a real
//! cluster, and those of Services and names on two boards that serve the cluster's Services in place of kube-proxy. A
//! failure that `tests/conformance/allowed-failures` does not list is an error, and so is a test of that
//! list that passes: the list can only shrink.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use nodlet_build::arguments::Arguments;
use nodlet_build::task::{
    Outcome, Signal, Task, TaskError, end_with_us, line_of, project, run as run_command, work,
};
use nodlet_build::{cross, go, requirements, toolchain};
use nodlet_tests::guest::Part;
use nodlet_tests::{ClusterNode, ControlPlane, coredns_archive};

mod allowed;
mod images;
mod report;

use allowed::Allowed;
use report::Report;

/// The tests of nodes, in ginkgo's words for labels.
const LABELS: &str = "NodeConformance";

/// The tests of Services, EndpointSlices and names: all of sig-network but those of features that a cluster may lack, such
/// as a cloud's load balancers, and those that disturb others.
const NETWORK: &str = "sig-network && !Disruptive && !Serial && Feature: isEmpty";

/// Tests that run at once. They wait for most of their time.
const PROCESSES: usize = 6;

/// The time after which the remaining tests are not run.
const MINUTES: u64 = 60;

/// The names of the boards in the cluster, of which the tests of nodes have the first.
const NODES: [&str; 2] = ["board-1", "board-2"];

/// The arguments of the agents that serve Services. The addresses are those of CoreDNS and of the API server, which is no
/// node, and which the tests have connect to pods.
const SERVED: [&str; 3] = ["--services=cluster", "--cluster-dns=10.96.0.10", "--cluster-cidr=10.212.0.1/32"];

struct Options {
    /// Whether the tests are those of Services and names, on two boards.
    network: bool,
    focus: Vec<String>,
    labels: String,
    shard: Option<Part>,
    processes: usize,
    minutes: u64,
    /// Whether tests are run that take many minutes each.
    slow: bool,
}

/// The task `cargo xtask conformance`.
pub(crate) const TASK: Task = Task::new(
    "conformance",
    "--sample | [--network] [--focus REGEX]... [--labels EXPRESSION] [--shard PART/OF] [--procs N] [--minutes N]",
    "run Kubernetes' own tests of nodes on a board that is a node of a real cluster, or those of Services on two",
    run,
);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    perform(&Options::parse(arguments)?)
}

/// The sample of the check: every eighth test, without those that take many minutes each.
fn sample() -> Options {
    Options { shard: Part::parse("1/8"), minutes: 20, slow: false, ..Options::default() }
}

impl Default for Options {
    fn default() -> Self {
        let (focus, labels) = (Vec::new(), LABELS.to_owned());
        Self {
            network: false,
            focus,
            labels,
            shard: None,
            processes: PROCESSES,
            minutes: MINUTES,
            slow: true,
        }
    }
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, TaskError> {
        if arguments == ["--sample"] {
            return Ok(sample());
        }
        let mut arguments = Arguments::new(&TASK, arguments);
        let defaults = Self::default();
        let number = |number: Option<u64>, default| match number {
            Some(0) => Err(TASK.misused()),
            number => Ok(number.unwrap_or(default)),
        };
        let shard = arguments.one::<String>("--shard")?;
        let network = arguments.has("--network");
        let (focus, labels) = (arguments.all("--focus")?, arguments.one("--labels")?);
        let is_chosen = !focus.is_empty() || labels.is_some();
        let all = if network { NETWORK } else { LABELS };
        let options = Self {
            network,
            focus,
            labels: labels.unwrap_or_else(|| all.to_owned()),
            shard: shard.map(|text| Part::parse(&text).ok_or_else(|| TASK.misused())).transpose()?,
            processes: usize::try_from(number(arguments.one("--procs")?, defaults.processes as u64)?)?,
            minutes: number(arguments.one("--minutes")?, defaults.minutes)?,
            slow: defaults.slow,
        };
        arguments.end()?;
        if options.shard.is_some() && is_chosen {
            return Err("--shard chooses among all tests: leave out --focus and --labels".into());
        }
        Ok(options)
    }
}

fn perform(options: &Options) -> Outcome {
    requirements::require()?;
    let allowed = Allowed::read(&project().join("tests/conformance/allowed-failures"))?;
    cross::provide()?;
    toolchain::programs()?;
    let suite = Suite::build()?;
    let known = suite.list(&format!("({LABELS}) || ({NETWORK})"))?;
    allowed.require_known(known.names())?;
    let focus = match options.shard {
        Some(part) => {
            let all = suite.list(&options.labels)?;
            let wanted = all.names().filter(|name| options.slow || !name.contains("[Slow]"));
            part.choose(&wanted.collect::<Vec<_>>(), 0).into_iter().map(exactly).collect()
        }
        None => options.focus.clone(),
    };

    let begun = Instant::now();
    let plane = ControlPlane::start();
    let nodes = start_nodes(&plane, options.network)?;
    eprintln!("the cluster is ready after {:.0?}", begun.elapsed());
    let ran = suite.run(&plane, options, &focus);
    for (node, name) in nodes.iter().zip(["agent.log", "agent-2.log"]) {
        fs::write(suite.dir.join(name), node.device.agent_log())?;
    }
    drop(nodes);
    drop(plane);
    let report = ran?;
    print!("{report}");
    println!("in {:.0?}; details in {}", begun.elapsed(), suite.dir.display());
    allowed.judge(&report)
}

/// Starts the board of the tests of nodes, or the boards of those of Services, with CoreDNS.
fn start_nodes(plane: &ControlPlane, network: bool) -> Result<Vec<ClusterNode>, TaskError> {
    let (names, arguments) = if network { (&NODES[..], &SERVED[..]) } else { (&NODES[..1], &[][..]) };
    if network {
        plane.let_nodes_read_nodes();
        plane.let_nodes_read_services();
    }
    let mut nodes = Vec::new();
    for name in names {
        let mut node = ClusterNode::join_with(plane, name, arguments);
        // More happens than the ring holds.
        node.device.replay_nothing();
        node.approve_server(plane, name);
        images::load(&node.device)?;
        if network {
            node.device.load_image(coredns_archive());
            let range = format!("get node {name} -o jsonpath={{.spec.podCIDR}}");
            let range = plane.wait_for(&range, |range| !range.is_empty());
            plane.namespace().ip(&format!("route add {range} via {}", node.address));
        }
        nodes.push(node);
    }
    if network {
        plane.install_names();
        let ready = "-n kube-system get deployment coredns -o jsonpath={.status.readyReplicas}";
        plane.wait_for(ready, |ready| ready == "1");
    }
    Ok(nodes)
}

/// A regular expression of Go that matches tests of this name alone.
fn exactly(name: &str) -> String {
    let mut text = String::from(" ");
    for letter in name.chars() {
        if !letter.is_alphanumeric() && letter != ' ' {
            text.push('\\');
        }
        text.push(letter);
    }
    text + "$"
}

/// Kubernetes' tests, as programs.
struct Suite {
    /// The directory of everything that a run writes.
    dir: PathBuf,
    /// Runs the tests in several processes.
    ginkgo: PathBuf,
    kubectl: PathBuf,
}

impl Suite {
    fn build() -> Result<Self, TaskError> {
        for program in [go::CONTROL_PLANE, go::COREDNS] {
            program.build(None)?;
        }
        let dir = work("conformance")?;
        // ginkgo takes only programs with this ending for tests.
        let program = dir.join("e2e.test");
        let _ = fs::remove_file(&program);
        std::os::unix::fs::symlink(go::E2E.build(None)?, &program)?;
        Ok(Self { dir, ginkgo: go::GINKGO.build(None)?, kubectl: go::KUBECTL.build(None)? })
    }

    /// The tests with these labels, without running them.
    fn list(&self, labels: &str) -> Result<Report, TaskError> {
        let path = self.dir.join("list.json");
        let mut command = Command::new(self.dir.join("e2e.test"));
        command
            .args(["--ginkgo.dry-run", "--provider=local", "--ginkgo.label-filter", labels])
            .arg(format!("--ginkgo.json-report={}", path.display()))
            .current_dir(&self.dir)
            .stdout(File::create(self.dir.join("list.log"))?)
            .stderr(Stdio::inherit());
        run_command(&mut command)?;
        Report::read(&path)
    }

    /// Runs the tests whose names match one of the expressions, or all.
    fn run(&self, plane: &ControlPlane, options: &Options, focus: &[String]) -> Result<Report, TaskError> {
        let log = self.dir.join("e2e.log");
        let path = self.dir.join("report.json");
        let _ = fs::remove_file(&path);
        let mut command = Command::new(&self.ginkgo);
        command
            .args(["run", "--no-color", "--keep-going", "--json-report=report.json"])
            .arg(format!("--procs={}", options.processes))
            .arg(format!("--timeout={}m", options.minutes))
            .arg(format!("--output-dir={}", self.dir.display()))
            .arg(format!("--label-filter={}", options.labels))
            .args(focus.iter().map(|focus| format!("--focus={focus}")))
            .arg(self.dir.join("e2e.test"))
            .args(["--", "--provider=local", "--dump-logs-on-failure=false"])
            .arg(format!("--kubeconfig={}", plane.kubeconfig().display()))
            .arg(format!("--kubectl-path={}", self.kubectl.display()))
            .env("HOME", &self.dir)
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(File::options().append(true).open(&log)?);
        end_with_us(&mut command, Signal::SIGTERM);
        plane.namespace().give_to(&mut command);
        eprintln!("running the tests; their output is in {}", log.display());
        // A failed test makes ginkgo fail, too. The report says which.
        let status =
            command.status().map_err(|error| format!("failed to run {}: {error}", line_of(&command)))?;
        if !path.is_file() {
            return Err(TaskError(format!("the tests were not run: {status}; see {}", log.display())));
        }
        Report::read(&path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_one_of_all_tests() {
        let refused = |words: &str| {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            Options::parse(&words).err().map(|TaskError(why)| why)
        };
        for words in ["--shard 1/8 --focus Pods", "--labels Conformance --shard 1/8"] {
            let why = refused(words).expect("it is refused");
            assert!(why.contains("leave out --focus and --labels"), "{why}");
        }
        assert_eq!(refused("--labels Conformance --focus Pods"), None);
        assert_eq!(refused("--network --shard 1/8"), None);
    }

    #[test]
    fn a_name_is_a_regular_expression_for_itself_alone() {
        let expected = r" \[sig\-node\] Pods should \*not\* run \(root\,0644\)$";
        assert_eq!(exactly("[sig-node] Pods should *not* run (root,0644)"), expected);
    }
}
