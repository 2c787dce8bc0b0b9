//! Demonstrates nodlet to a person who has just cloned it: an agent in a scratch directory runs the pods of
//! `examples/` and is killed, which does not affect the pods. Readers can type every line that starts with
//! `$`; `--keep` leaves everything running for that. With `--gateway`, it runs the gateway of `examples/gateway`;
//! `demo/cluster.rs` is about boards that are nodes of a cluster.

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nodlet_build::arguments::Arguments;
use nodlet_build::task::{Outcome, Task, TaskError, output, project, run as run_command, run_program, work};
use nodlet_build::toolchain::{built, cargo};
use nodlet_build::{images, requirements};
use nodlet_tests::SerialLine;

use crate::demo_image;
use crate::programs::SYSTEM;

mod cluster;

/// The timeout of a step that usually takes moments.
const PATIENCE: Duration = Duration::from_secs(60);

/// The directory of the volume in `examples/claim.yaml`.
const DIARY: &str = "/var/tmp/nodlet-diary";

/// The address range of the pods, which is probably unused.
const POD_CIDR: &str = "10.214.0.0/24";

/// The task `cargo xtask demo`.
pub(crate) const TASK: Task = Task::new(
    "demo",
    "[--keep] [--gateway | --cluster | --board PROFILE]",
    "show what nodlet does, on this machine, in a cluster or on an emulated board; --keep leaves it running",
    run,
);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let mut arguments = Arguments::new(&TASK, arguments);
    let board: Option<String> = arguments.one("--board")?;
    let [keep, gateway, cluster] = ["--keep", "--gateway", "--cluster"].map(|option| arguments.has(option));
    arguments.end()?;
    if u8::from(gateway) + u8::from(cluster) + u8::from(board.is_some()) > 1 {
        return Err(TASK.misused());
    }
    if let Some(profile) = board {
        let keep = if keep { &["--keep"][..] } else { &[] };
        return run_program(SYSTEM, &[&["demo-board", &profile], keep].concat(), None);
    }
    if cluster {
        return cluster::run(keep);
    }
    requirements::require_root()?;
    if gateway {
        requirements::require()?;
    }
    say("Building nodlet and what it will run (some minutes the first time)");
    run_command(cargo()?.args(["build", "--package", "nodlet"]))?;
    let images = if gateway { images::build()? } else { demo_image::build()? };

    // The directory of the example with a claim, unless an agent of this machine has it already.
    let makes_diary = !Path::new(DIARY).exists();
    let mut show = Show::new()?;
    let outcome = if gateway { show.gateway(&images) } else { show.play(&images) };
    if keep && outcome.is_ok() {
        show.leave(gateway);
        return Ok(());
    }
    if outcome.is_err() {
        show.print_logs();
    }
    say("Taking everything down again");
    let down = show.nodlet(&["down"]);
    show.forget();
    if makes_diary && Path::new(DIARY).exists() {
        fs::remove_dir_all(DIARY)?;
    }
    outcome.and(down)
}

struct Show {
    nodlet: PathBuf,
    root: PathBuf,
    agent: Option<Child>,
}

impl Show {
    fn new() -> Result<Self, TaskError> {
        let root = work("demo")?;
        let show = Self { nodlet: built("debug", "nodlet")?, root, agent: None };
        // An earlier demo may have been kept or interrupted.
        if show.root.join("run").exists() {
            show.quietly(&["down"])?;
        }
        fs::remove_dir_all(&show.root)?;
        fs::create_dir_all(&show.root)?;
        Ok(show)
    }

    fn play(&mut self, archive: &Path) -> Outcome {
        say("An agent, with a directory of its own for everything");
        println!("$ alias nodlet={}", self.nodlet.display());
        println!("$ export NODLET_ROOT={}", self.root.display());
        self.start_agent()?;
        self.nodlet(&["image", "load", &archive.display().to_string()])?;

        say(
            "The pods of examples/: most serve, one crashes, one completes, one waits at a gate, one asks for too much. Those \
             that need a device, AppArmor, cgroup v2 or a privilege that this machine lacks are rejected, or wait",
        );
        let mut watch = self.background(&["get", "pods", "-w"])?;
        let examples = project().join("examples");
        self.nodlet(&["apply", "-f", &examples.display().to_string()])?;
        let settled = self.wait("the pods to be where they should be", |show| {
            let rows = show.quietly(&["get", "pods"])?;
            let has = |name: &str, status: &str| {
                rows.lines().any(|row| row.starts_with(name) && row.contains(status))
            };
            Ok(has("shared", "2/2")
                && has("prepared", "2/2")
                && has("web", "1/1")
                && has("drain", "1/1")
                && has("job", "Completed")
                && has("crash", "CrashLoopBackOff")
                && has("gated", "SchedulingGated")
                && has("greedy", "OutOfcpu"))
        });
        end(&mut watch);
        settled?;

        say("What they write, and what they can reach");
        self.nodlet(&["logs", "job"])?;
        self.nodlet(&["exec", "shared", "-c", "writer", "--", "demo", "get", "http://127.0.0.1:8080/"])?;

        say("A server that turns sick is seen by its probes: not ready, then restarted, then well");
        let mut watch = self.background(&["get", "pods", "web", "-w"])?;
        self.nodlet(&["exec", "web", "--", "demo", "touch", "/tmp/sick"])?;
        let healed = self.wait("the restart", |show| {
            let row = show.quietly(&["get", "pods", "web", "--no-headers"])?;
            let words: Vec<&str> = row.split_whitespace().collect();
            Ok(words.get(1) == Some(&"1/1") && words.get(3) != Some(&"0"))
        });
        end(&mut watch);
        healed?;

        say("The agent is killed with -9: its pods do not notice");
        let birth = |show: &Self| {
            show.quietly(&["exec", "shared", "-c", "server", "--", "demo", "cat", "/proc/1/stat"])
        };
        let before = birth(self)?;
        self.kill_agent()?;
        self.start_agent()?;
        self.nodlet(&["get", "pods"])?;
        if start_of(&birth(self)?) != start_of(&before) {
            return Err("the server of pod shared is another process than before".into());
        }
        println!("The server of pod shared is the process that it was.");
        Ok(())
    }

    /// Shows the gateway of `examples/gateway`; `images` is the directory of the images of real software.
    fn gateway(&mut self, images: &Path) -> Outcome {
        say("A meter on a serial line, which is a virtual terminal of this machine");
        let mut meter = SerialLine::open().map_err(|error| {
            format!("failed to open a virtual terminal, which needs /dev/tty0 and root: {error}")
        })?;
        let devices = self.root.join("etc/nodlet/devices");
        fs::create_dir_all(&devices)?;
        let definition =
            format!("name: meter\n{}\ncontainerPath: /dev/meter\npermissions: r\n", meter.selector());
        print!("$ cat $NODLET_ROOT/etc/nodlet/devices/meter.yaml\n{definition}");
        fs::write(devices.join("meter.yaml"), definition)?;

        say("An agent, with a directory of its own for everything");
        println!("$ alias nodlet={}", self.nodlet.display());
        println!("$ export NODLET_ROOT={}", self.root.display());
        self.start_agent()?;
        for image in ["gateway.oci.tar", "nginx.oci.tar"] {
            self.nodlet(&["image", "load", &images.join(image).display().to_string()])?;
        }

        say("A broker, a collector that reads the meter, and a web server on port 8080 of this machine");
        let mut watch = self.background(&["get", "pods", "-w"])?;
        let manifest = project().join("examples/gateway/gateway.yaml");
        let applied = self.nodlet(&["apply", "-f", &manifest.display().to_string()]);
        let ready = applied.and_then(|()| {
            self.wait("the collector to read", |show| {
                let log = show.quietly(&["logs", "collector", "-c", "collector"]);
                Ok(log.is_ok_and(|log| log.contains("reading")))
            })?;
            for reading in ["meter=20.5", "meter=21.25", "meter=21.50"] {
                meter.send(&format!("{reading}\n"))?;
            }
            self.wait("the gateway to be ready", |show| {
                let rows = show.quietly(&["get", "pods"])?;
                let has = |name: &str, ready: &str| {
                    rows.lines().any(|row| row.starts_with(name) && row.contains(ready))
                };
                let log = show.quietly(&["logs", "collector", "-c", "collector"])?;
                Ok(has("broker", "1/1") && has("collector", "2/2") && log.contains("published meter=21.50"))
            })
        });
        end(&mut watch);
        ready?;
        self.nodlet(&["logs", "collector", "-c", "collector", "--tail=3"])?;
        let pod: serde_json::Value =
            serde_json::from_str(&self.quietly(&["get", "pod", "collector", "-o", "json"])?)?;
        let address = pod["status"]["hostIP"].as_str().unwrap_or_default();
        println!("$ curl http://{address}:8080/");
        let page = page(address)?;
        print!("{page}");
        if page.trim() != "meter=21.50" {
            return Err(format!("the page does not show the last reading: {page:?}").into());
        }
        self.nodlet(&["describe", "node"])
    }

    fn start_agent(&mut self) -> Outcome {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.root.join("agent.log"))?;
        println!("$ nodlet agent --pod-cidr {POD_CIDR} &");
        let agent = self
            .command(&["agent", "--pod-cidr", POD_CIDR])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.agent = Some(agent);
        let socket = self.root.join("run/nodlet/api.sock");
        self.wait("the agent to answer", |_| Ok(std::os::unix::net::UnixStream::connect(&socket).is_ok()))
    }

    fn kill_agent(&mut self) -> Outcome {
        let mut agent = self.agent.take().ok_or("the agent was started")?;
        println!("$ kill -9 {}", agent.id());
        agent.kill()?;
        agent.wait()?;
        Ok(())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.nodlet);
        command.arg("--root").arg(&self.root).args(words);
        command
    }

    /// Runs a verb as the reader would, without showing `--root`.
    fn nodlet(&self, words: &[&str]) -> Outcome {
        println!("$ nodlet {}", words.join(" "));
        let status = self.command(words).status()?;
        if status.success() {
            Ok(())
        } else {
            Err(TaskError(format!("nodlet {}: {status}", words.join(" "))))
        }
    }

    fn background(&self, words: &[&str]) -> Result<Child, TaskError> {
        println!("$ nodlet {} &", words.join(" "));
        Ok(self.command(words).spawn()?)
    }

    fn quietly(&self, words: &[&str]) -> Result<String, TaskError> {
        output(&mut self.command(words))
    }

    fn wait(&self, what: &str, condition: impl Fn(&Self) -> Result<bool, TaskError>) -> Outcome {
        let until = Instant::now() + PATIENCE;
        while !condition(self)? {
            if Instant::now() > until {
                let log = self.root.join("agent.log");
                return Err(format!("waited in vain for {what}; the agent's log is {}", log.display()).into());
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Prints what is known about a failure: the pods, the last lines of each container, and those of the agent.
    fn print_logs(&self) {
        const LINES: usize = 20;
        say("It failed. The pods, what their containers wrote last, and what the agent wrote last");
        let _ = self.nodlet(&["get", "pods", "-o", "wide"]);
        let pods = self.quietly(&["get", "pods", "-o", "json"]).unwrap_or_default();
        let pods: serde_json::Value = serde_json::from_str(&pods).unwrap_or_default();
        for (pod, container) in containers(&pods) {
            let _ = self.nodlet(&["logs", &pod, "-c", &container, &format!("--tail={LINES}")]);
        }
        let log = fs::read_to_string(self.root.join("agent.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        println!("$ tail -n {LINES} $NODLET_ROOT/agent.log");
        lines[lines.len().saturating_sub(LINES)..].iter().for_each(|line| println!("{line}"));
    }

    /// Waits for the agent, which ends with its pods after `down`.
    fn forget(&mut self) {
        if let Some(agent) = &mut self.agent {
            end(agent);
        }
    }

    fn leave(&self, gateway: bool) {
        say("It goes on running. To play with it:");
        let nodlet = self.nodlet.display();
        println!("export NODLET_ROOT={}", self.root.display());
        println!("alias nodlet={nodlet}");
        println!("nodlet get pods -w                       # all of them");
        if gateway {
            println!("nodlet logs -f collector -c collector    # what it reads from the meter");
        } else {
            println!("nodlet exec -it web -- demo tty          # a terminal in a container");
        }
        println!("ls $NODLET_ROOT/var/lib/nodlet/manifests # what `apply` wrote; edit, add, remove");
        let pod = if gateway { "collector" } else { "crash" };
        println!("nodlet delete pod {pod:<23} # enough of it");
        println!("nodlet down                              # all pods end; manifests and images stay");
        if !gateway {
            println!("rm -r {DIARY:<34} # what the volume of the demo leaves");
        }
    }
}

/// The names of all containers in a list of pods, each with the name of its pod.
fn containers(pods: &serde_json::Value) -> Vec<(String, String)> {
    let items = pods["items"].as_array().into_iter().flatten();
    let of_pod = |pod: &serde_json::Value| {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let kinds = ["initContainers", "containers"].map(|kind| pod["spec"][kind].as_array().cloned());
        let containers = kinds.into_iter().flatten().flatten();
        let names = containers.filter_map(|container| Some(container["name"].as_str()?.to_owned()));
        names.map(|container| (name.clone(), container)).collect::<Vec<_>>()
    };
    items.flat_map(of_pod).collect()
}

/// The page of a web server on port 8080.
fn page(address: &str) -> Result<String, TaskError> {
    use std::io::{Read, Write};
    let mut server = std::net::TcpStream::connect((address, 8080))?;
    server.set_read_timeout(Some(PATIENCE))?;
    server.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut reply = String::new();
    server.read_to_string(&mut reply)?;
    Ok(reply.split_once("\r\n\r\n").map_or(String::new(), |(_, page)| page.to_owned()))
}

fn say(what: &str) {
    if std::io::stdout().is_terminal() {
        println!("\n\u{1b}[1m{what}\u{1b}[0m");
    } else {
        println!("\n{what}");
    }
}

fn end(child: &mut Child) {
    // The process may have ended already.
    let _ = child.kill();
    let _ = child.wait();
}

/// The start time in `/proc/1/stat`; the preceding name may contain anything.
fn start_of(stat: &str) -> Option<&str> {
    stat.rsplit(')').next()?.split_whitespace().nth(19)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logs_of_every_container_are_shown_after_a_failure() {
        let spec =
            serde_json::json!({"initContainers": [{"name": "first"}], "containers": [{"name": "app"}]});
        let pods = serde_json::json!({"items": [{"metadata": {"name": "web"}, "spec": spec}]});
        let named = |container: &str| ("web".to_owned(), container.to_owned());
        assert_eq!(containers(&pods), [named("first"), named("app")]);
        assert_eq!(containers(&serde_json::Value::Null), []);
    }
}
