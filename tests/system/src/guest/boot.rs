//! One boot of a guest: its initramfs, the emulator, and the judgement of what it printed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nodlet_build::task::{Outcome, Signal, TaskError, end_with_us};
use nodlet_build::{debian, go};
use nodlet_dist::kernel::Kernel;
use nodlet_dist::tree::Tree;
use nodlet_tests::guest::{CGROUP_V1, CHOSEN, END, MODULE_LIST, MODULES, ORDERS, Part, SAYS};

use super::list::*;
use super::run::Run;
use super::{Guest, MEMORY_MIB, Processor, SILENCE, System, systemd};

impl Guest<'_> {
    /// Whether the guest exists with other processors: a Debian, hardware and images of real
    /// software are only made for this machine's.
    pub(super) fn is_portable(&self) -> bool {
        self.system == System::Tools && self.hardware.is_empty() && !self.runs_any_of(WITH_IMAGES)
    }

    pub(super) fn runs_any_of(&self, suites: &[&str]) -> bool {
        self.runs.iter().any(|run| suites.contains(&Run::parse(run).suite))
    }

    pub(super) fn write_initramfs(
        &self,
        processor: &Processor,
        path: &Path,
        kernel: &Kernel,
        programs: &BTreeMap<String, PathBuf>,
        system: Option<(&Path, &str)>,
        part: Option<Part>,
    ) -> Outcome {
        let failed = |error: io::Error| TaskError(format!("failed to write {}: {error}", path.display()));
        let program = |name: &str| {
            programs.get(name).ok_or_else(|| TaskError(format!("unknown test program {name:?}")))
        };
        let mut orders = format!("load {}\n", self.modules.concat().join(" "));
        for controllers in self.cgroup_v1 {
            orders.push_str(&format!("{CGROUP_V1} {controllers}\n"));
        }
        if let Some(part) = part {
            orders.push_str(&format!("{part}\n"));
        }
        let mut wanted = vec!["nodlet", "demo"];
        for run in self.runs.iter().map(|run| Run::parse(run)) {
            orders.push_str(&format!("run /tests/{}\n", run.line()));
            wanted.push(run.program());
        }
        let mut tree = Tree::default();
        let is_systemd = self.system == System::Systemd;
        if let Some((system, console)) = system.filter(|_| is_systemd) {
            systemd::install(&mut tree, system, console).map_err(failed)?;
            if self.runs_any_of(WITH_PACKAGES) {
                for (name, _) in PACKAGES {
                    tree.file(&format!("/packages/{name}"), 0o644, fs::read(program(name)?)?);
                }
            } else {
                systemd::install_nodlet(&mut tree, fs::read(program("nodlet")?)?).map_err(failed)?;
            }
        } else {
            if let Some((system, _)) = system {
                systemd::install_without(&mut tree, system).map_err(failed)?;
            }
            for (suites, packages, programs) in [
                (WITH_LINKS, IPROUTE, &["/usr/sbin/ip", "/usr/sbin/tc"][..]),
                (WITH_APPARMOR, APPARMOR, &["/usr/sbin/apparmor_parser"]),
                (
                    WITH_DISKS,
                    DISK_TOOLS,
                    &["/usr/sbin/mkfs.ext4", "/usr/sbin/mkfs.xfs", "/usr/sbin/mkfs.btrfs", "/usr/bin/lsattr"],
                ),
            ] {
                if system.is_some() || !self.runs_any_of(suites) {
                    continue;
                }
                debian::fetch(packages, processor.debian)?;
                for package in packages {
                    tree.copy(&debian::package(package, processor.debian)?, &["usr/share"])
                        .map_err(failed)?;
                }
                // Busybox, which is installed later, leaves these.
                for program in programs {
                    let name = program.rsplit('/').next().unwrap_or_default();
                    tree.link(&format!("/bin/{name}"), program);
                }
                tree.link("/lib64", "usr/lib64");
                tree.link("/lib", "usr/lib");
            }
            tree.file("/bin/busybox", 0o755, fs::read(program("busybox")?)?);
        }
        tree.file("/init", 0o755, fs::read(program("guest-init")?)?);
        // At the paths at which the tests look for them, which is where they were built.
        for (suites, name, at) in [
            (WITH_KUBECTL, "kubectl", go::KUBECTL.path(None)?),
            (WITH_AGNHOST, "agnhost", go::AGNHOST.path(None)?),
        ] {
            if self.runs_any_of(suites) {
                let at = at.display().to_string();
                tree.file(&at, 0o755, fs::read(program(name)?)?);
            }
        }
        for (_, path) in FILES.iter().filter(|(suite, _)| self.runs_any_of(&[suite])) {
            let path = nodlet_build::task::project().join(path);
            let files = if path.is_dir() {
                fs::read_dir(&path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?
            } else {
                vec![path]
            };
            for file in files.iter().filter(|file| !file.is_dir()) {
                tree.file(&file.display().to_string(), 0o644, fs::read(file)?);
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        for name in wanted {
            tree.file(&format!("/tests/{name}"), 0o755, fs::read(program(name)?)?);
        }
        tree.file("/examples/replay", 0o755, fs::read(program("replay")?)?);
        let modules = kernel.modules(&self.modules.concat())?;
        let mut list = String::new();
        for module in &modules {
            let words: Vec<&str> =
                std::iter::once(&module.name).chain(&module.needs).map(String::as_str).collect();
            list.push_str(&words.join(" "));
            list.push('\n');
            tree.file(&format!("{MODULES}/{}.ko", module.name), 0o644, module.bytes.as_slice());
        }
        tree.file(MODULE_LIST, 0o644, list);
        tree.file(ORDERS, 0o644, orders);
        tree.write_cpio(BufWriter::new(File::create(path).map_err(failed)?)).map_err(failed)
    }

    /// Boots the guest, and returns all of its output until it was off.
    pub(super) fn boot(
        &self,
        processor: &Processor,
        kernel: &Kernel,
        initramfs: &Path,
        log: &Path,
    ) -> Result<String, TaskError> {
        // The output of an earlier guest must not count if the emulator does not start.
        File::create(log)?;
        let (program, package) = processor.emulator()?;
        let mut qemu = Command::new(program);
        qemu.args(processor.machine)
            .args(["-accel", "tcg", "-smp", if self.name == "cores" { "4" } else { "1" }])
            // The guest's clock counts its instructions, two nanoseconds each, and skips idle time: the
            // guest's deadlines do not depend on how busy this machine is.
            .args(["-icount", "shift=1,sleep=off", "-rtc", "clock=vm"])
            .args(["-m", &MEMORY_MIB.to_string(), "-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none", "-nic", "none"])
            .arg("-serial")
            .arg(format!("file:{}", log.display()))
            .arg("-kernel")
            .arg(&kernel.image)
            .arg("-initrd")
            .arg(initramfs)
            .arg("-append")
            // Only errors: warnings would interrupt the tests' output.
            .arg(format!("console={} panic=-1 mitigations=off loglevel=1 {}", processor.console, self.kernel))
            .args(self.hardware)
            // Where the sockets between parts of the hardware are.
            .current_dir(log.parent().unwrap_or(Path::new("/")))
            .stdin(Stdio::null());
        end_with_us(&mut qemu, Signal::SIGKILL);
        let mut qemu = qemu.spawn().map_err(|error| {
            format!("failed to run {program}: {error}; Debian's package {package} has it")
        })?;
        let mut heard = (0, Instant::now());
        let hung = loop {
            if qemu.try_wait()?.is_some() {
                break false;
            }
            let length = fs::metadata(log).map_or(0, |log| log.len());
            if length != heard.0 {
                heard = (length, Instant::now());
            } else if heard.1.elapsed() > SILENCE {
                qemu.kill()?;
                qemu.wait()?;
                break true;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let said = String::from_utf8_lossy(&fs::read(log)?).replace('\r', "");
        if hung {
            return Err(
                format!("guest {}: it said nothing more for {SILENCE:?} after\n{said}", self.name).into()
            );
        }
        Ok(said)
    }

    /// The number of passed tests in each run. Fails unless all wanted tests ran and passed. With a part of
    /// the tests, a run may have none.
    pub(super) fn judge(&self, said: &str, part: Option<Part>) -> Result<Vec<u32>, String> {
        let says = |what: &str| said.lines().filter(|line| *line == format!("{SAYS}{what}")).count();
        for run in self.runs {
            if says(&format!("run /tests/{}", Run::parse(run).line())) == 0 {
                return Err(format!("it did not run {run}"));
            }
        }
        if says("exit 0") != self.runs.len() || !said.lines().any(|line| line == END) {
            return Err("not all went well".to_owned());
        }
        let mut passed = said.lines().filter_map(passed);
        if part.is_none() {
            let passed: Vec<u32> = passed.collect();
            if passed.len() != self.runs.len() || passed.contains(&0) {
                return Err("a program ran no test".to_owned());
            }
            return Ok(passed);
        }
        let chosen =
            said.lines().filter_map(|line| line.strip_prefix(SAYS)?.strip_prefix(CHOSEN)?.parse().ok());
        let chosen: Vec<u32> = chosen.collect();
        let ran = chosen.iter().all(|count| *count == 0 || passed.next() == Some(*count));
        if chosen.len() != self.runs.len() || !ran || passed.next().is_some() {
            return Err("a program did not run the tests that were chosen".to_owned());
        }
        if chosen.iter().all(|count| *count == 0) {
            return Err("there are fewer tests than parts".to_owned());
        }
        Ok(chosen)
    }
}

/// Parses `test result: ok. 3 passed; …`, or the supervisor tests' format `test result: 3 passed; …`.
fn passed(line: &str) -> Option<u32> {
    line.strip_prefix("test result: ")?.split(" passed").next()?.rsplit(' ').next()?.parse().ok()
}
