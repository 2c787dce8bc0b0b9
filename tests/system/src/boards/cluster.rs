//! Joins an emulated board to a real cluster over QEMU's user network: behind address translation, so that the cluster
//! cannot connect to the board.

use std::fs;

use nodlet_build::go;
use nodlet_build::task::Outcome;
use nodlet_dist::profile::{Profile, Qemu};
use nodlet_tests::{ControlPlane, manifest};

use super::monitor::{self, Monitor};
use super::{AGENT, Board, LINK, build, prepare, text};

/// A Deployment of one pod, which prints the value of a ConfigMap.
fn deployment() -> String {
    let site = "env: [{name: SITE, valueFrom: {configMapKeyRef: {name: site, key: name}}}]";
    let app = manifest::container("app", "env then sleep", site);
    manifest::deployment(1, &[app], "", "terminationGracePeriodSeconds: 1")
}

/// The phase of the Deployment's pods, and what their containers are.
const PODS: &str = "get pods -o jsonpath={range.items[*]}{.spec.nodeName}|{.status.phase}|{.status.containerStatuses[0].containerID}{end}";

/// The condition `Ready` of the board's Node.
const READY: &str = "get nodes -o jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}";

pub(super) fn try_out(profile: &Profile, qemu: &Qemu) -> Outcome {
    go::KUBECTL.build(None)?;
    go::CONTROL_PLANE.build(None)?;
    let (directory, key, mut contents) = prepare(profile, "cluster")?;
    let config = directory.join("nodlet.conf");
    fs::write(&config, "name = gate-18\nend\n")?;
    contents.config = Some(config);
    let image = build(profile, &contents, &directory)?;
    // A node is lost after 50 s by default.
    let plane = ControlPlane::start_with(&["--node-monitor-grace-period=20s", "--node-monitor-period=2s"]);
    let arguments = monitor::arguments(&directory);
    let memory = profile.memory_mib;
    let mut board = Board::boot_in(plane.namespace(), qemu, memory, &image, &directory, &key, &arguments)?;
    let mut monitor = Monitor::connect(&mut board)?;
    board.wait_for("answer over SSH", |board| Ok(board.ssh("nodlet get pods", "")?.status.success()))?;

    let words = plane.join_arguments().join(" ");
    let joined = board.ssh(&format!("nodlet join {words}"), "")?;
    if !text(&joined.stdout).contains("node gate-18 has joined") {
        return Err(board.failed(&format!("`nodlet join {words}`: {}", text(&joined.stderr))));
    }
    board.wait_for("Ready of the Node", |_| Ok(plane.line(READY).ok() == "True"))?;
    plane.line("create configmap site --from-literal=name=harbour").ok();
    plane.apply(&deployment());
    board.wait_for("running pod", |_| Ok(plane.line(PODS).ok().starts_with("gate-18|Running|")))?;
    let first = plane.line(PODS).ok();
    let log = board.output("nodlet logs $(nodlet get pods -o name)")?;
    if !log.contains("SITE=harbour") {
        return Err(board.failed(&format!("the pod has no ConfigMap of the cluster: {log:?}")));
    }
    let agent = board.kib(&format!("{AGENT}/smaps_rollup"), "Pss:")?;
    let available = board.kib("/proc/meminfo", "MemAvailable:")?;

    // The link is cut until the cluster takes the node for lost.
    monitor.set_link(LINK, false)?;
    board.wait_for("Unknown of the Node", |_| Ok(plane.line(READY).ok() == "Unknown"))?;
    monitor.set_link(LINK, true)?;
    board.wait_for("Ready of the Node after the cut", |_| Ok(plane.line(READY).ok() == "True"))?;
    board.wait_for("running pod after the cut", |_| Ok(plane.line(PODS).ok() == first))?;
    eprintln!(
        "{}: with {memory} MiB and a pod of the cluster, the agent took {agent} KiB, and {available} KiB were available",
        profile.name
    );
    Ok(())
}
