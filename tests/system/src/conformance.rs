//! Runs Kubernetes' own tests of nodes, those marked `[NodeConformance]`, on a board that is a node of a real
//! cluster. A failure that `tests/conformance/allowed-failures` does not list is an error, and so is a test of that
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
use nodlet_tests::{ClusterNode, ControlPlane};

mod allowed;
mod images;
mod report;

use allowed::Allowed;
use report::Report;

/// What is run, in ginkgo's words for labels.
const LABELS: &str = "NodeConformance";

/// Tests that run at once. They wait for most of their time.
const PROCESSES: usize = 6;

/// The time after which the remaining tests are not run.
const MINUTES: u64 = 60;

/// The name of the board in the cluster.
const NODE: &str = "board-1";

struct Options {
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
    "--sample | [--focus REGEX]... [--labels EXPRESSION] [--shard PART/OF] [--procs N] [--minutes N]",
    "run Kubernetes' own tests of nodes on a board that is a node of a real cluster",
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
        Self { focus, labels, shard: None, processes: PROCESSES, minutes: MINUTES, slow: true }
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
        let options = Self {
            focus: arguments.all("--focus")?,
            labels: arguments.one("--labels")?.unwrap_or(defaults.labels),
            shard: shard.map(|text| Part::parse(&text).ok_or_else(|| TASK.misused())).transpose()?,
            processes: usize::try_from(number(arguments.one("--procs")?, defaults.processes as u64)?)?,
            minutes: number(arguments.one("--minutes")?, defaults.minutes)?,
            slow: defaults.slow,
        };
        arguments.end()?;
        if options.shard.is_some() && (!options.focus.is_empty() || options.labels != LABELS) {
            return Err(TaskError(format!(
                "--shard chooses among all tests with the label {LABELS}: leave out --focus and --labels"
            )));
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
    let all = suite.list()?;
    allowed.require_known(all.names())?;
    let focus = match options.shard {
        Some(part) => {
            let wanted = all.names().filter(|name| options.slow || !name.contains("[Slow]"));
            part.choose(&wanted.collect::<Vec<_>>(), 0).into_iter().map(exactly).collect()
        }
        None => options.focus.clone(),
    };

    let begun = Instant::now();
    let plane = ControlPlane::start();
    let mut node = ClusterNode::join(&plane, NODE);
    // More happens than the ring holds.
    node.device.replay_nothing();
    node.approve_server(&plane, NODE);
    images::load(&node.device)?;
    eprintln!("the cluster is ready after {:.0?}", begun.elapsed());
    let ran = suite.run(&plane, options, &focus);
    fs::write(suite.dir.join("agent.log"), node.device.agent_log())?;
    drop(node);
    drop(plane);
    let report = ran?;
    print!("{report}");
    println!("in {:.0?}; details in {}", begun.elapsed(), suite.dir.display());
    allowed.judge(&report)
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
        go::control_plane(&[])?;
        let dir = work("conformance")?;
        // ginkgo takes only programs with this ending for tests.
        let program = dir.join("e2e.test");
        let _ = fs::remove_file(&program);
        std::os::unix::fs::symlink(go::E2E.build(None)?, &program)?;
        Ok(Self { dir, ginkgo: go::GINKGO.build(None)?, kubectl: go::KUBECTL.build(None)? })
    }

    /// All tests, without running them.
    fn list(&self) -> Result<Report, TaskError> {
        let path = self.dir.join("list.json");
        let mut command = Command::new(self.dir.join("e2e.test"));
        command
            .args(["--ginkgo.dry-run", "--provider=local", "--ginkgo.label-filter", LABELS])
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
    fn a_part_is_one_of_all_tests_of_nodes() {
        let refused = |words: &str| {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            Options::parse(&words).err().map(|TaskError(why)| why)
        };
        for words in ["--shard 1/8 --focus Pods", "--labels Conformance --shard 1/8"] {
            let why = refused(words).expect("it is refused");
            assert!(why.contains("leave out --focus and --labels"), "{why}");
        }
        assert_eq!(refused("--labels Conformance --focus Pods"), None);
    }

    #[test]
    fn a_name_is_a_regular_expression_for_itself_alone() {
        let expected = r" \[sig\-node\] Pods should \*not\* run \(root\,0644\)$";
        assert_eq!(exactly("[sig-node] Pods should *not* run (root,0644)"), expected);
    }
}
