//! `cargo xtask bench --cluster`: nodes of one control plane, in the same minutes: nodlet, nodlet with `--metered`, and a
//! kubelet with containerd and runc. Each has a network namespace with one link, whose bytes are those of the node.
//!
//! Pods are the same everywhere, and use the network of the node, since a kubelet needs a plugin for any other. Their
//! images are on the nodes.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nodlet_build::task::{Outcome, TaskError};
use nodlet_build::{go, requirements};
use nodlet_tests::{ClusterNode, ControlPlane, KubeletNode, Share, nodlet_program};

use super::machine;
use super::spread::{Digits, Spread};

/// Pods of each node while it is idle.
const PODS: usize = 10;

/// Runs of a pod from `kubectl create` to `Running`, unless `--rounds` is another number.
const ROUNDS: usize = 10;

/// How long a pod may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A node of the table: its column, its name, and its processes.
struct Contestant<'a> {
    column: &'static str,
    node: &'static str,
    processes: Box<dyn Fn() -> Vec<u32> + 'a>,
}

/// What a node has used until a moment.
#[derive(Clone, Copy)]
struct Used {
    bytes: f64,
    seconds: f64,
}

pub(super) fn run(rounds: Option<usize>, minutes: u64) -> Outcome {
    go::KUBECTL.build(None)?;
    go::CONTROL_PLANE.build(None)?;
    go::KUBELET.build(None)?;
    for program in &go::CONTAINERD {
        program.build(None)?;
    }
    requirements::require_programs(&["runc"])?;
    println!("{}", machine::describe());
    let busy = machine::is_busy();
    let plane = ControlPlane::start();
    let kubelet = KubeletNode::join(&plane, "kubelet");
    let mut boards = vec![ClusterNode::join_unwatched(&plane, "nodlet", &[])];
    // The binary of `--binary` may be older.
    let help = Command::new(nodlet_program()).args(["agent", "--help"]).output()?.stdout;
    if String::from_utf8_lossy(&help).contains("--metered") {
        boards.push(ClusterNode::join_unwatched(&plane, "metered", &["--metered"]));
    }
    let mut all: Vec<Contestant<'_>> = ["nodlet", "nodlet --metered"]
        .into_iter()
        .zip(["nodlet", "metered"])
        .zip(&boards)
        .map(|((column, node), board)| Contestant {
            column,
            node,
            processes: Box::new(|| board.device.own_processes()),
        })
        .collect();
    all.push(Contestant {
        column: "kubelet + containerd",
        node: "kubelet",
        processes: Box::new(|| kubelet.processes()),
    });
    let columns: Vec<&str> = all.iter().map(|one| one.column).collect();
    println!("\n| what | {} |\n|---|{}", columns.join(" | "), "---|".repeat(all.len()));

    let watch = Watch::start(&plane)?;
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); all.len()];
    for round in 0..rounds.unwrap_or(ROUNDS) {
        for turn in 0..all.len() {
            // Another one begins in each round.
            let place = (round + turn) % all.len();
            times[place].push(watch.time_of(&plane, all[place].node, &format!("round-{round}"))?);
        }
    }
    line("`kubectl create` → Running", times.iter().map(|times| spread(times, "s")));

    for one in &all {
        let names: Vec<String> = (0..PODS).map(|number| format!("idle-{number}")).collect();
        for name in &names {
            plane.create(&pod(one.node, name));
        }
        for name in &names {
            watch.wait(&format!("{}-{name}", one.node))?;
        }
    }
    if minutes > 0 {
        // What follows a start is not idle.
        thread::sleep(Duration::from_secs(60));
        let used = || all.iter().map(|one| used(&(one.processes)())).collect::<Result<Vec<_>, _>>();
        let before = used()?;
        thread::sleep(Duration::from_secs(60 * minutes));
        let after = used()?;
        let each = |of: &dyn Fn(Used) -> f64, unit: &str| {
            let differences = before.iter().zip(&after).map(|(before, after)| of(*after) - of(*before));
            differences.map(|number| format!("{} {unit}", Digits(number))).collect::<Vec<_>>()
        };
        line(
            &format!("bytes on the wire of {minutes} idle min, {PODS} pods"),
            each(&|used| used.bytes, "").into_iter(),
        );
        line(
            &format!("CPU time of {minutes} idle min, {PODS} pods"),
            each(&|used| used.seconds, "s").into_iter(),
        );
    }
    let shares = all.iter().map(|one| Share::of(&(one.processes)()).all as f64 / 1024.0);
    line(
        &format!("PSS of all its processes, {PODS} pods"),
        shares.map(|share| format!("{} MiB", Digits(share))),
    );
    if let Some(load) = busy {
        println!("\nThe machine was not quiet (load {load} before the first): times are no figures.");
    }
    Ok(())
}

fn line(what: &str, cells: impl Iterator<Item = String>) {
    println!("| {what} | {} |", cells.map(|cell| cell.trim().to_owned()).collect::<Vec<_>>().join(" | "));
}

fn spread(times: &[f64], unit: &str) -> String {
    let spread = Spread::of(times);
    let (low, high) = spread.quartiles();
    format!("{} {unit} ({} to {})", Digits(spread.median()), Digits(low), Digits(high))
}

/// A pod that is scheduled to a node. Nothing of it changes while it runs.
fn pod(node: &str, name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {node}-{name}}}\nspec:\n  hostNetwork: true\n  \
         terminationGracePeriodSeconds: 1\n  nodeSelector: {{kubernetes.io/hostname: {node}}}\n  containers:\n  \
         - {{name: app, image: 'localhost/demo:1', imagePullPolicy: Never, args: [sleep]}}\n"
    )
}

/// The bytes that the link of these processes has carried, and their CPU time.
fn used(processes: &[u32]) -> Result<Used, TaskError> {
    let pid = processes.first().ok_or("no process of the node runs")?;
    let table = fs::read_to_string(format!("/proc/{pid}/net/dev"))?;
    let link = table.lines().find_map(|line| line.trim().strip_prefix("uplink:")).ok_or("it has no link")?;
    let numbers: Vec<f64> = link.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let (received, sent) = numbers.first().zip(numbers.get(8)).ok_or("its link has no counters")?;
    let mut ticks = 0.0;
    for pid in processes {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let words = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        ticks += words.skip(11).take(2).filter_map(|word| word.parse::<f64>().ok()).sum::<f64>();
    }
    // SAFETY: a number goes in, and one comes out.
    let rate = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    Ok(Used { bytes: received + sent, seconds: ticks / rate })
}

/// `kubectl get pods --watch`, and when it has shown that a pod runs.
struct Watch {
    kubectl: Child,
    running: Arc<Mutex<HashMap<String, Instant>>>,
}

impl Watch {
    fn start(plane: &ControlPlane) -> Result<Self, TaskError> {
        let columns = "custom-columns=NAME:.metadata.name,PHASE:.status.phase";
        let mut command = plane.command(&["get", "pods", "--watch", "--no-headers", "-o", columns]);
        let mut kubectl = command.stdout(Stdio::piped()).spawn()?;
        let output = kubectl.stdout.take().ok_or("it is piped")?;
        let running: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
        let seen = Arc::clone(&running);
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some((name, "Running")) =
                    line.trim().split_once(char::is_whitespace).map(|(name, phase)| (name, phase.trim()))
                {
                    seen.lock()
                        .expect("no reader panics")
                        .entry(name.to_owned())
                        .or_insert_with(Instant::now);
                }
            }
        });
        Ok(Self { kubectl, running })
    }

    /// When a pod was seen running.
    fn wait(&self, name: &str) -> Result<Instant, TaskError> {
        let begun = Instant::now();
        loop {
            if let Some(time) = self.running.lock().expect("no reader panics").get(name) {
                return Ok(*time);
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("pod {name} does not run within {PATIENCE:?}").into());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The time of one pod from `kubectl create` on, in seconds. The pod is deleted afterwards.
    fn time_of(&self, plane: &ControlPlane, node: &str, name: &str) -> Result<f64, TaskError> {
        let begun = Instant::now();
        plane.create(&pod(node, name));
        let time = self.wait(&format!("{node}-{name}"))?.duration_since(begun).as_secs_f64();
        plane.line(&format!("delete pod {node}-{name}")).ok();
        Ok(time)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}
