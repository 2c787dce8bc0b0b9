//! The life of a device: its agent starts, stops and is killed, and the power is cut.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use super::disk::{check_file_system, mounted_device};
use super::{DEADLINE, Device, poll_interval};
use crate::leftovers;
use crate::programs::{demo_archive, nodlet_program};
use crate::ring::RingReader;
use crate::trace::is_over;
use crate::view::View;

/// The uptime of a new boot, in seconds.
const MINUTE: i64 = 60;

impl Device {
    /// Starts the agent and waits until its API responds.
    pub fn start_agent(&mut self) {
        self.launch_agent();
        self.wait_for("the agent's API to answer", || self.get("/version").is_ok());
        // Otherwise a replay might have no entries.
        self.wait_for("the agent's ring to be read", || self.ring.as_ref().is_none_or(RingReader::reads));
    }

    /// Starts the agent and loads the demo image.
    pub fn start_agent_with_demo(&mut self) {
        self.start_agent();
        self.load_image(demo_archive());
    }

    /// Kills the agent without notice, and starts another one.
    pub fn restart_agent(&mut self) {
        self.kill_agent();
        self.start_agent();
    }

    /// Ends the agent, and starts another one with these arguments.
    pub fn restart_agent_with<const N: usize>(&mut self, arguments: [&str; N]) {
        self.stop_agent();
        self.agent_arguments(arguments);
        self.start_agent();
    }

    /// Cuts the power, as [`Device::cut_power`] does, and starts the agent of the next boot.
    pub fn power_cycle(&mut self) {
        self.cut_power();
        self.start_agent();
    }

    /// Starts the agent without waiting: it may be meant to die.
    pub fn launch_agent(&mut self) {
        let command = self.agent_command(Command::new(&self.program));
        self.launch(command);
    }

    /// Launches the agent's process, which stops itself before it executes the program: whoever follows it from here on
    /// misses nothing, and lets it go on with a `SIGCONT`.
    pub fn launch_stopped_agent(&mut self) {
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"kill -STOP $$; exec "$0" "$@""#]).arg(&self.program);
        let command = self.agent_command(shell);
        self.launch(command);
        let stat = format!("/proc/{}/stat", self.agent_pid());
        self.wait_for("the agent's process to stop", || {
            let stat = fs::read_to_string(&stat).expect("an unreaped child is listed");
            // The name before it may contain anything.
            stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
        });
    }

    fn launch(&mut self, mut agent: Command) {
        assert!(self.agent.is_none(), "the agent runs already");
        let log = || {
            let path = self.slot.dir().join("agent.log");
            fs::OpenOptions::new().create(true).append(true).open(path).expect("/tmp can be written to")
        };
        let agent = agent
            .arg("--root")
            .arg(&self.root)
            .args(["agent", "--pod-cidr", &self.slot.pod_cidr()])
            .args(
                self.knows("--service-cidr").then(|| format!("--service-cidr={}", self.slot.service_cidr())),
            )
            // The machine's own firewall and forwarding stay unchanged.
            .args((self.namespace.is_none() && self.knows("--masquerade")).then_some("--masquerade=false"))
            .args(&self.arguments)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log())
            .stderr(log())
            .spawn()
            .expect("the agent can be started");
        self.agent = Some(agent);
        // Another version may have no ring, or another core.
        let replays = self.replays && self.program == nodlet_program();
        self.ring = replays.then(|| RingReader::start(self.socket()));
    }

    /// Whether the agent has this flag: an earlier version may lack it.
    fn knows(&self, flag: &str) -> bool {
        self.program == nodlet_program() || {
            let help = Command::new(&self.program).args(["agent", "--help"]).output();
            help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains(flag))
        }
    }

    /// Replays the agent's observations to the core, which must decide the same.
    pub(super) fn replay(&mut self) {
        if let Some(ring) = self.ring.take() {
            ring.replay(&self.slot.dir().join("ring.json"));
        }
    }

    /// The command that starts the agent. After a power cut the agent sees another boot ID and a restarted
    /// clock.
    /// The command that executes a program, as the agent of this device.
    fn agent_command(&self, mut command: Command) -> Command {
        let mut view = View::default();
        if let Some(etc) = &self.etc {
            view = view.file(etc, "/etc");
        }
        if self.boots > 0 {
            let boot_id = self.slot.dir().join("boot-id");
            let text = format!("{:08x}-0000-4000-8000-000000000000\n", self.boots);
            fs::write(&boot_id, text).expect("/tmp can be written to");
            view = view.file(&boot_id, "/proc/sys/kernel/random/boot_id").clock(MINUTE);
        }
        let settings = Path::new("/proc/sys/net/netfilter");
        if self.lacks_sctp && settings.exists() {
            let none = self.slot.dir().join("no-settings");
            fs::create_dir_all(&none).expect("/tmp can be written to");
            view = view.file(&none, "/proc/sys/net/netfilter");
        }
        self.enter_network(&mut command);
        view.give_to(&mut command);
        if let Some(take) = self.lacks {
            take(&mut command);
        }
        command
    }

    /// Cuts the power: kills the agent, all supervisors and all containers, without a chance to write to the
    /// disk, and removes everything that no reboot keeps: mounts, cgroups, links and `/run`. The agent is not
    /// started again.
    pub fn cut_power(&mut self) {
        // The agent first, because it writes to the disk: it would record the end of the others.
        self.kill_agent();
        self.lose_memory();
    }

    /// Ends the pods and the agent in order, and removes everything that no reboot keeps. The agent is not started again.
    pub fn reboot(&mut self) {
        self.nodlet(["down"]).ok();
        assert_eq!(self.agent_ended(), 0);
        self.lose_memory();
    }

    fn lose_memory(&mut self) {
        // Held open, the device stays while it is not mounted.
        let disk = self.disk.as_ref().map(|disk| {
            let device = mounted_device(&disk.path);
            (fs::File::open(&device).expect("a device that is mounted"), device)
        });
        leftovers::sweep(&self.root);
        fs::remove_dir_all(self.path("/run")).expect("the agent has run");
        if let Some((_held, device)) = disk {
            if std::mem::take(&mut self.is_disk_broken) {
                check_file_system(Path::new(&device));
            }
            let status = Command::new("mount").arg(device).arg(self.path("/var")).status();
            assert!(status.is_ok_and(|status| status.success()), "the disk is mounted again");
        }
        self.boots += 1;
    }

    /// Kills all processes, the agent first. Everything else stays.
    pub fn kill_everything(&mut self) {
        self.kill_agent();
        leftovers::kill_all(&self.root);
    }

    /// Kills the agent by SIGKILL, without notice.
    pub fn kill_agent(&mut self) {
        let mut agent = self.agent.take().expect("the agent runs");
        agent.kill().expect("a child can be killed");
        agent.wait().expect("a child can be waited for");
        self.replay();
    }

    /// Requests the agent to end and returns its exit code.
    pub fn stop_agent(&mut self) -> i32 {
        let agent = self.agent.as_ref().expect("the agent runs");
        let pid = nix::unistd::Pid::from_raw(agent.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("a child can be signalled");
        self.agent_ended()
    }

    /// Waits for an agent that ends by itself. Returns its exit code (128 + N for signal N).
    pub fn agent_ended(&mut self) -> i32 {
        let mut agent = self.agent.take().expect("the agent was started");
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = agent.try_wait().expect("a child can be waited for") {
                self.replay();
                return status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            }
            if Instant::now() > until {
                self.agent = Some(agent);
                panic!("the agent does not end\n{}", self.diagnosis());
            }
            thread::sleep(poll_interval());
        }
    }

    /// Whether the agent has ended by itself; if so, the device no longer has one.
    pub fn agent_is_dead(&mut self) -> bool {
        let dead = match &mut self.agent {
            // To wait for a process that this one traces would also tell of its stops.
            Some(agent) if !is_over(agent.id().cast_signed()) => false,
            Some(agent) => {
                // An error is that a tracer in this process has waited before.
                let _ = agent.wait();
                true
            }
            None => true,
        };
        if dead {
            self.agent = None;
            self.replay();
        }
        dead
    }

    /// Waits for a condition while the agent may die repeatedly. `revive` is called before each check, and
    /// may restart the agent.
    #[track_caller]
    pub fn wait_reviving(
        &mut self,
        what: &str,
        revive: &dyn Fn(&mut Device),
        condition: impl Fn(&Device) -> bool,
    ) {
        let until = Instant::now() + DEADLINE;
        loop {
            revive(self);
            if condition(self) {
                return;
            }
            assert!(Instant::now() < until, "waited {DEADLINE:?} in vain for {what}\n{}", self.diagnosis());
            thread::sleep(poll_interval());
        }
    }

    /// The agent's process id.
    pub fn agent_pid(&self) -> u32 {
        self.agent.as_ref().expect("the agent runs").id()
    }

    /// The log of the agent, over all its starts.
    pub fn agent_log(&self) -> String {
        fs::read_to_string(self.slot.dir().join("agent.log")).unwrap_or_default()
    }
}
