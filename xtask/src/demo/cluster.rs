//! `cargo xtask demo --cluster`: the servers of a real Kubernetes cluster, and two boards that join it, each in a
//! network namespace of its own. The boards run the pods of a Deployment, which do not notice that the link to the
//! servers is cut.

use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nodlet_build::task::{Outcome, TaskError, project, run as run_command};
use nodlet_build::toolchain::cargo;
use nodlet_build::{go, requirements};
use nodlet_tests::{ControlPlane, Device, demo_archive};

use super::say;

/// How long a step may take that takes seconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(120);

const DEPLOYMENT: &str = "xtask/src/demo/web.yaml";

/// Of each pod: its name, its node, the ID of its container, and how often that was restarted.
const PODS: &str = "get pods -o jsonpath={range.items[*]}{.metadata.name}|{.spec.nodeName}|\
                    {.status.containerStatuses[0].containerID}|{.status.containerStatuses[0].restartCount}{'\\n'}{end}";

/// The conditions `Ready` of all nodes.
const READY: &str = "get nodes -o jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}";

pub(super) fn run(keep: bool) -> Outcome {
    requirements::require_root()?;
    requirements::require_programs(&["ip", "nft", "openssl"])?;
    say(
        "Building nodlet, and a control plane of Kubernetes from its Go modules (some ten minutes the first time)",
    );
    run_command(cargo()?.args(["build", "--package", "nodlet"]))?;
    run_command(cargo()?.args(["build", "--package", "nodlet-tests", "--bin", "demo"]))?;
    let kubectl = go::KUBECTL.build(None)?;
    go::CONTROL_PLANE.build(None)?;

    let begun = Instant::now();
    say(
        "A cluster: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, in a network namespace",
    );
    // A node is lost after 50 s by default.
    let plane = ControlPlane::start_with(&["--node-monitor-grace-period=16s", "--node-monitor-period=1s"]);
    println!("$ alias kubectl='{}'", alias(&plane, &kubectl.display().to_string()));
    let mut show = Show { boards: Vec::new(), plane };
    show.play()?;
    println!("\nAll of that took {} s.", begun.elapsed().as_secs());
    if keep {
        show.wait_for_the_end(&kubectl.display().to_string())?;
    }
    say("Taking everything down again");
    Ok(())
}

/// The words that run kubectl in the namespace of the servers.
fn alias(plane: &ControlPlane, kubectl: &str) -> String {
    format!(
        "nsenter --net=/proc/{}/ns/net {kubectl} --kubeconfig {}",
        plane.pid(),
        plane.kubeconfig().display()
    )
}

struct Board {
    name: &'static str,
    device: Device,
}

/// The boards end before the servers.
struct Show {
    boards: Vec<Board>,
    plane: ControlPlane,
}

/// One line of [`PODS`].
struct Pod {
    name: String,
    node: String,
    container: String,
    restarts: String,
}

impl Show {
    fn play(&mut self) -> Outcome {
        say("Two boards, each in a network namespace of its own, join the cluster");
        for name in ["board-1", "board-2"] {
            self.join(name)?;
        }
        self.wait(READY, |ready| ready == "True True")?;
        self.kubectl("get nodes -o wide")?;
        self.approve()?;

        say("A Deployment: the scheduler spreads its pods over the boards");
        self.kubectl(&format!("apply -f {}", project().join(DEPLOYMENT).display()))?;
        self.kubectl("rollout status deployment/web --timeout=60s")?;
        self.kubectl("get pods -o wide")?;

        say("Logs and exec, from the API server to port 10250 of the boards");
        self.kubectl("logs --selector app=web --prefix --tail=2")?;
        let pods = parse(&self.wait(PODS, |_| true)?);
        let sick = pods.iter().find(|pod| pod.node == "board-1").ok_or("board-1 has no pod")?;
        self.kubectl(&format!("exec {} -- demo get http://127.0.0.1:8080/healthz", sick.name))?;

        say(
            "The link to the servers is cut: every packet is dropped. The boards run on, and restart what turns sick",
        );
        let cut = self.plane.partition();
        self.nodlet("board-1", &["exec", &sick.name, "--", "demo", "touch", "/tmp/sick"])?;
        self.wait(READY, |ready| ready == "Unknown Unknown")?;
        self.kubectl("get nodes")?;
        let device = &self.board("board-1")?.device;
        until("the restart", || {
            let pod = device.pod(&sick.name);
            pod.container("server").is_running() && pod.container("server").restart_count() == 1
        })?;
        self.nodlet("board-1", &["get", "pods"])?;

        say("The link is mended: the boards report what took place, and no container was touched");
        drop(cut);
        let mended = Instant::now();
        let is_restarted = |pod: &Pod| pod.name == sick.name && pod.restarts == "1";
        self.wait(PODS, |text| parse(text).iter().any(is_restarted))?;
        println!(
            "The restart is reported {:.1} s after the link was mended.",
            mended.elapsed().as_secs_f32()
        );
        self.wait(READY, |ready| ready == "True True")?;
        self.kubectl("rollout status deployment/web --timeout=60s")?;
        self.kubectl("get nodes")?;
        self.kubectl("get pods -o wide")?;
        unharmed(&pods, &parse(&self.wait(PODS, |_| true)?), &sick.name)
    }

    fn join(&mut self, name: &'static str) -> Outcome {
        let mut device = Device::new();
        device.replay_nothing();
        let network = device.own_network();
        self.plane.connect(&network);
        device.agent_arguments(["--node-name", name]);
        println!("$ nodlet agent --node-name {name} &");
        device.start_agent();
        device.load_image(demo_archive());
        self.boards.push(Board { name, device });
        let arguments = self.plane.join_arguments();
        let words: Vec<&str> = ["join"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
        self.nodlet(name, &words)
    }

    /// Approves the certificates of the boards' ports, as the administrator of a cluster does.
    fn approve(&self) -> Outcome {
        let line = "get csr -o jsonpath={range.items[?(@.spec.signerName=='kubernetes.io/kubelet-serving')]}\
                    {.metadata.name}{'\\n'}{end}";
        let requests = self.wait(line, |text| text.lines().count() >= self.boards.len())?;
        let names: Vec<&str> = requests.lines().collect();
        self.kubectl(&format!("certificate approve {}", names.join(" ")))?;
        for board in &self.boards {
            let log = || board.device.agent_log();
            until("the certificate", || log().contains("has a new certificate of the cluster"))?;
        }
        Ok(())
    }

    /// Runs kubectl, without showing it, until its output meets a condition.
    fn wait(&self, line: &str, condition: impl Fn(&str) -> bool) -> Result<String, TaskError> {
        let mut output = String::new();
        until(&format!("kubectl {line}"), || {
            let ran = self.plane.line(line);
            output = ran.stdout;
            ran.code == 0 && condition(&output)
        })?;
        Ok(output)
    }

    fn board(&self, name: &str) -> Result<&Board, TaskError> {
        self.boards
            .iter()
            .find(|board| board.name == name)
            .ok_or_else(|| format!("there is no {name}").into())
    }

    /// Runs a verb on a board as the reader would, without showing `--root`.
    fn nodlet(&self, board: &str, words: &[&str]) -> Outcome {
        println!("{board}$ nodlet {}", words.join(" "));
        let mut command = self.board(board)?.device.command(words);
        finish(&mut command, &format!("nodlet {}", words.join(" ")))
    }

    fn kubectl(&self, line: &str) -> Outcome {
        println!("$ kubectl {line}");
        let words: Vec<&str> = line.split_whitespace().collect();
        finish(&mut self.plane.command(&words), &format!("kubectl {line}"))
    }

    /// Waits for Ctrl-C: the servers end with this process.
    fn wait_for_the_end(&self, kubectl: &str) -> Outcome {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block()?;
        say("It goes on running until Ctrl-C. To play with it, in another terminal:");
        println!("alias kubectl='{}'", alias(&self.plane, kubectl));
        println!("kubectl get pods -o wide -w");
        println!("kubectl scale deployment/web --replicas 8");
        println!("kubectl exec -it deployment/web -- demo tty");
        println!("kubectl drain board-2 --force");
        for board in &self.boards {
            let nodlet = nodlet_tests::nodlet_program();
            println!(
                "{} --root {} get pods  # {}",
                nodlet.display(),
                board.device.root().display(),
                board.name
            );
        }
        std::io::stdout().flush()?;
        signals.wait()?;
        Ok(())
    }
}

/// Waits for a condition. Nothing here may panic: without the end of the boards, their pods would stay.
fn until(what: &str, mut condition: impl FnMut() -> bool) -> Outcome {
    let begun = Instant::now();
    while !condition() {
        if begun.elapsed() > PATIENCE {
            return Err(format!("waited in vain for {what}").into());
        }
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

fn finish(command: &mut Command, line: &str) -> Outcome {
    let status = command.stdin(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(TaskError(format!("{line}: {status}"))) }
}

fn parse(text: &str) -> Vec<Pod> {
    let part = |words: &[&str], index: usize| words.get(index).copied().unwrap_or_default().to_owned();
    text.lines()
        .map(|line| {
            let words: Vec<&str> = line.split('|').collect();
            Pod {
                name: part(&words, 0),
                node: part(&words, 1),
                container: part(&words, 2),
                restarts: part(&words, 3),
            }
        })
        .collect()
}

/// Compares the pods before the cut with those after it: only the sick one may have another container.
fn unharmed(before: &[Pod], after: &[Pod], sick: &str) -> Outcome {
    for pod in before.iter().filter(|pod| pod.name != sick) {
        let same = |other: &&Pod| {
            other.name == pod.name && other.container == pod.container && other.restarts == "0"
        };
        if !after.iter().any(|other| same(&other)) {
            return Err(format!("pod {} is not as it was before the cut", pod.name).into());
        }
    }
    println!("All containers but the sick one of {sick} are those from before the cut.");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_with_another_container_after_the_cut_is_noticed() {
        let before = parse("web-1|board-1|nodlet://1|0\nweb-2|board-2|nodlet://2|0\n");
        assert!(
            unharmed(&before, &parse("web-1|board-1|nodlet://3|1\nweb-2|board-2|nodlet://2|0\n"), "web-1")
                .is_ok()
        );
        for after in
            ["web-2|board-2|nodlet://4|1\n", "web-2|board-2|nodlet://4|0\n", "web-1|board-1|nodlet://1|0\n"]
        {
            let Err(TaskError(why)) = unharmed(&before, &parse(after), "web-1") else {
                panic!("{after} was accepted")
            };
            assert!(why.contains("pod web-2"), "{why}");
        }
    }
}
