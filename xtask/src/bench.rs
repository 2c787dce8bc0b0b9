//! The figures of the README and of `docs/`, measured on this machine: what the
//! promises of smallness and quickness come to. Times are compared with `crun
//! run` of the same bundle in the same run, because a time alone says more about
//! the machine than about us.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::time::{ClockId, clock_gettime};
use nodlet_tests::{Device, demo_archive, demo_program, manifest};
use serde_json::json;

use crate::{Failure, Outcome, built, cargo, misused, run as run_command, setup, work};

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (mut minutes, mut rounds, mut profile, mut binary) = (2, 20, "release", None);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut number = || -> Result<u64, Failure> {
            Ok(rest.next().ok_or(format!("{argument} wants a number"))?.parse()?)
        };
        match argument.as_str() {
            "--minutes" => minutes = number()?,
            "--rounds" => rounds = number()?,
            "--debug" => profile = "debug",
            "--binary" => binary = Some(rest.next().ok_or("--binary wants a path")?),
            _ => return Err(misused("bench")),
        }
    }
    setup::require_root()?;
    run_command(cargo().args(["build", "--package", "nodlet-tests", "--bin", "demo"]))?;
    // With which each device of the harness ends.
    run_command(cargo().args(["build", "--package", "nodlet-runtime", "--example", "replay"]))?;
    let program = match binary {
        // From where cargo was called, which is where a relative path is meant from.
        Some(path) => fs::canonicalize(path).map_err(|error| format!("failed to find {path}: {error}"))?,
        None => build(profile)?,
    };
    // SAFETY: this program has one thread so far; nobody else reads the environment.
    unsafe { std::env::set_var("NODLET", &program) };

    println!("| what | measured |\n|---|---|");
    row("binary, bytes", fs::metadata(&program)?.len());
    memory()?;
    start(rounds)?;
    idle(minutes)
}

fn build(profile: &str) -> Result<PathBuf, Failure> {
    let mut build = cargo();
    build.args(["build", "--package", "nodlet"]);
    if profile == "release" {
        build.arg("--release");
    }
    run_command(&mut build)?;
    Ok(built(profile, "nodlet"))
}

fn row(what: &str, measured: impl std::fmt::Display) {
    println!("| {what} | {measured} |");
}

/// The agent alone, then what twenty pods add: all our processes, none of theirs.
fn memory() -> Outcome {
    let device = Device::start();
    let alone = memory_of(&device)?;
    row("agent idle, no pods, PSS", kib(alone));
    row("of which no file backs", kib(smaps(device.agent_pid(), "Pss_Anon:")?));
    sleepers(&device, 20);
    let all = memory_of(&device)?;
    row("each of 20 pods adds, PSS", kib(all.saturating_sub(alone) / 20));
    row("agent with 20 pods, PSS", kib(pss(device.agent_pid())?));
    Ok(())
}

fn memory_of(device: &Device) -> Result<u64, Failure> {
    device.own_processes().into_iter().map(pss).sum()
}

/// KiB of one process, shared pages counted by their share.
fn pss(pid: u32) -> Result<u64, Failure> {
    smaps(pid, "Pss:")
}

/// A line of what the kernel sums up over all mappings of a process.
fn smaps(pid: u32, field: &str) -> Result<u64, Failure> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let line = line.ok_or_else(|| format!("smaps_rollup has no {field}"))?;
    Ok(line.split_whitespace().next().ok_or_else(|| format!("{field} has no number"))?.parse()?)
}

fn kib(kib: u64) -> String {
    format!("{kib} KiB")
}

/// Manifest renamed into place → first instruction of the container, in turns
/// with `crun run` of the same program in the same namespaces.
fn start(rounds: u64) -> Outcome {
    let device = Device::start();
    let (shared, here) = device.shared("clocks");
    let bundle = Bundle::new(&here)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        theirs.push(bundle.run(round)?);

        let name = format!("start-{round}");
        let text = manifest::pod_of(
            &name,
            &[manifest::container(
                "app",
                &format!("clock /clocks/{name} then sleep"),
                "volumeMounts: [{name: clocks, mountPath: /clocks}]",
            )],
            &format!("volumes: [{{name: clocks, hostPath: {{path: {shared}}}}}]"),
        );
        let file = format!("{name}.yaml");
        let aside = device.manifests().join(".aside");
        fs::create_dir_all(device.manifests())?;
        fs::write(&aside, text)?;
        let begun = now()?;
        fs::rename(&aside, device.manifests().join(&file))?;
        let clock = here.join(&name);
        device.wait_for("the container's clock", || read(&clock).is_some());
        ours.push(read(&clock).ok_or("the clock was written")?.saturating_sub(begun));
        device.remove_manifest(&file);
        device.pod(&name).wait_gone();
    }
    let (ours, theirs) = (median(&mut ours), median(&mut theirs));
    row("manifest → first instruction, median", format!("{:.1} ms", ours.as_secs_f64() * 1e3));
    row("crun run of the same, median", format!("{:.1} ms", theirs.as_secs_f64() * 1e3));
    row("the one to the other", format!("{:.2}", ours.as_secs_f64() / theirs.as_secs_f64()));
    Ok(())
}

/// Context switches of all our threads while ten pods do nothing.
fn idle(minutes: u64) -> Outcome {
    let device = Device::start();
    sleepers(&device, 10);
    // What has just started is written down a few seconds later, once: then it is idle.
    let records = device.root().join("var/lib/nodlet/records");
    device.wait_for("the pods' records", || fs::read_dir(&records).is_ok_and(|all| all.count() == 10));
    let mut settled = switches(&device)?;
    device.wait_for("the agent to settle", || {
        let before = std::mem::replace(&mut settled, switches(&device).unwrap_or_default());
        settled == before
    });
    let before = switches(&device)?;
    let until = Instant::now() + Duration::from_secs(minutes * 60);
    // Nothing may be asked of the agent meanwhile: this is the one wait for a time.
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
    let after = switches(&device)?;
    row(&format!("context switches in {minutes} idle minutes, 10 pods"), after.saturating_sub(before));
    Ok(())
}

fn sleepers(device: &Device, count: u32) {
    for number in 0..count {
        let name = format!("pod-{number:02}");
        device.write_manifest(&format!("{name}.yaml"), &manifest::pod(&name, "sleep"));
    }
    for number in 0..count {
        device.pod(&format!("pod-{number:02}")).wait_ready();
    }
}

fn switches(device: &Device) -> Result<u64, Failure> {
    let mut sum = 0;
    for pid in device.own_processes() {
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            let status = fs::read_to_string(task?.path().join("status"))?;
            let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
            sum += counts.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum::<u64>();
        }
    }
    Ok(sum)
}

/// What crun is given: the demo program, and a directory for its clock.
struct Bundle {
    dir: PathBuf,
    clocks: PathBuf,
}

impl Bundle {
    fn new(clocks: &Path) -> Result<Self, Failure> {
        let dir = work("bench")?.join("bundle");
        let _ = fs::remove_dir_all(&dir);
        for inside in ["bin", "clocks", "dev", "proc", "sys", "tmp"] {
            fs::create_dir_all(dir.join("rootfs").join(inside))?;
        }
        fs::copy(demo_program(), dir.join("rootfs/bin/demo"))?;
        demo_archive();
        run_command(Command::new("crun").arg("spec").current_dir(&dir))?;
        Ok(Self { dir, clocks: clocks.to_owned() })
    }

    fn run(&self, round: u64) -> Result<Duration, Failure> {
        let config = self.dir.join("config.json");
        let mut spec: serde_json::Value = serde_json::from_slice(&fs::read(&config)?)?;
        let clock = format!("crun-{round}");
        spec["process"]["terminal"] = json!(false);
        spec["process"]["args"] = json!(["/bin/demo", "clock", format!("/clocks/{clock}")]);
        let mounts = spec["mounts"].as_array_mut().ok_or("crun's spec has mounts")?;
        mounts.retain(|mount| mount["destination"] != "/clocks");
        mounts.push(json!({
            "destination": "/clocks", "type": "bind", "source": self.clocks, "options": ["rbind", "rw"]
        }));
        fs::write(&config, spec.to_string())?;

        let (dir, id) = (self.dir.clone(), format!("nodlet-bench-{}-{round}", std::process::id()));
        let begun = std::thread::spawn(move || -> Result<Duration, Failure> {
            hide_hybrid_cgroups()?;
            let begun = now()?;
            let status = Command::new("crun")
                .args(["run", "--bundle"])
                .arg(&dir)
                .arg(&id)
                .stdin(Stdio::null())
                .status()?;
            if status.success() { Ok(begun) } else { Err(Failure(format!("crun run: {status}"))) }
        })
        .join()
        .map_err(|_| "the thread for crun panicked")??;
        Ok(read(&self.clocks.join(clock)).ok_or("crun's container wrote no clock")?.saturating_sub(begun))
    }
}

/// crun refuses to start where version 2 of cgroups is mounted beside version 1;
/// this thread and what it starts no longer see it.
fn hide_hybrid_cgroups() -> Outcome {
    let unified = Path::new("/sys/fs/cgroup/unified");
    if unified.exists() {
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
        umount2(unified, MntFlags::MNT_DETACH)?;
    }
    Ok(())
}

fn now() -> Result<Duration, Failure> {
    Ok(clock_gettime(ClockId::CLOCK_MONOTONIC)?.into())
}

fn read(clock: &Path) -> Option<Duration> {
    let nanoseconds: u64 = fs::read_to_string(clock).ok()?.strip_suffix('\n')?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
