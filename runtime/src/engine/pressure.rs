//! Measures how much of the machine's resources is left, and has what is missing reclaimed: first images that no pod
//! uses, if it is disk space, and then a pod. Conditions, thresholds and times are decided in the core
//! (`core/src/pressure.rs`), and so is which pod is evicted (`core/src/node/eviction.rs`).
//!
//! An idle agent measures nothing: it measures when its loop runs for another reason, when the kernel reports processes
//! that wait for memory, when a joined board has renewed its Lease, and regularly only under pressure.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, fstatfs};
use nix::sys::statvfs::{FsFlags, Statvfs, fstatvfs};
use nodlet_core::facts::{Observation, PodIndex, PodUsage, Starved, StorageScope};
use nodlet_core::pressure::{Level, Met, RecordsDisk, Signal, StarvedResource};
use nodlet_core::time::Instant;
use nodlet_host::cgroup::Usage;
use nodlet_host::mounts::mount_of;
use nodlet_host::usage::{DeletedFiles, Unit};
use nodlet_kernel::own_file;
use nodlet_registry::NodeEvent;
use smol::Async;

use super::message::{Message, PressureNews};
use super::root::of_meminfo;
use super::tasks::Tasks;
use super::{Engine, Shell, this_node};
use crate::api::Reply;

/// A trigger of the kernel's pressure stall information: a tenth of a second, in microseconds, in which all processes that
/// have something to do wait for memory, within a second.
const STALL: &[u8] = b"full 100000 1000000\0";

/// The time until the next report of the kernel is awaited.
const STALLS_EVERY: Duration = Duration::from_secs(10);

impl Engine {
    /// Measures the node if it is time. Returns when that is to be done even if the loop has nothing else to do.
    pub(super) fn watch_pressure(&mut self) -> Option<Instant> {
        if self.shell.config.down {
            return None;
        }
        let mut pressure = self.shell.machine.pressure.borrow_mut();
        if pressure.begin(nodlet_host::clock::instant()) {
            let measured_at = nodlet_host::clock::instant();
            let levels = levels(self.shell.clone());
            let news = move |levels| Message::Pressure(PressureNews::Measured { levels, measured_at });
            self.shell.tasks.then(levels, news);
        }
        pressure.wake_at()
    }

    /// Measures the node for a client, and shows the conditions. If a threshold is met, the loop measures again soon, and
    /// has the resource reclaimed.
    pub(super) fn measure(&mut self, reply: Reply<()>) {
        let levels = levels(self.shell.clone());
        self.shell.tasks.then(levels, move |levels| Message::Pressure(PressureNews::Asked { levels, reply }));
    }

    /// Continues with what was measured.
    pub(super) fn pressure_news(&mut self, news: PressureNews) {
        match news {
            PressureNews::Measured { levels, measured_at } => self.measured(&levels, measured_at),
            PressureNews::Asked { levels, reply } => {
                if self.show_pressure(&levels).is_some() {
                    self.shell.machine.pressure.borrow_mut().stalled();
                }
                let _ = reply.try_send(Ok(()));
            }
            PressureNews::Reclaimed { levels, measured_at } => self.reclaimed(&levels, measured_at),
            PressureNews::Used { met, measured_at, usage } => {
                let Met { threshold, available, .. } = met;
                let resource = met.signal.resource();
                let starved = Starved { resource, threshold, available, measured_at, usage };
                self.observe(Observation::Starved(Box::new(starved)));
                self.shell.machine.pressure.borrow_mut().relieved(nodlet_host::clock::instant());
            }
            PressureNews::Stalled => self.shell.machine.pressure.borrow_mut().stalled(),
        }
    }

    fn measured(&mut self, levels: &[(Signal, Level)], measured_at: Instant) {
        let machine = self.shell.machine.clone();
        let Some(met) = self.show_pressure(levels) else {
            self.shell.stores.replenish();
            return machine.pressure.borrow_mut().relieved(nodlet_host::clock::instant());
        };
        let resource = met.signal.resource();
        self.shell.publication.emit_of_node(NodeEvent::ThresholdMet(resource));
        match resource {
            StarvedResource::EphemeralStorage | StarvedResource::Inodes => {
                self.image_use.require_reclaim();
                self.collect_images();
            }
            StarvedResource::Memory | StarvedResource::Pids => self.relieve(met, measured_at),
        }
    }

    /// Shows the conditions that follow from what was measured. Returns the threshold whose resource is to be reclaimed.
    fn show_pressure(&mut self, levels: &[(Signal, Level)]) -> Option<Met> {
        let machine = self.shell.machine.clone();
        let now = nodlet_host::clock::instant();
        let before = machine.pressure.borrow().present();
        let met = machine.pressure.borrow_mut().measured(now, levels);
        if machine.pressure.borrow().present() != before {
            self.publish_node();
            self.observe_node();
            let changed: Vec<_> = machine.pressure.borrow().conditions().collect();
            for (condition, is_true, _) in changed {
                if is_true != before.contains(&condition) {
                    let [.., reason] = condition.texts(is_true);
                    let event = NodeEvent::StatusChanged(&self.shell.config.node_name, reason);
                    self.shell.publication.emit_of_node(event);
                }
            }
        }
        met
    }

    /// Continues when unused images were removed: evicts a pod if the disk is still too full.
    pub(super) fn images_reclaimed(&mut self) {
        let measured_at = nodlet_host::clock::instant();
        let shell = self.shell.clone();
        let again = async move {
            let disks = [Some(shell.paths.records()), shell.stores.images.watch_paths().into_iter().next()];
            let freed = move || disks.iter().flatten().for_each(|path| free_removed(path));
            shell.stores.storage.run(freed).await;
            levels(shell).await
        };
        let news = move |levels| Message::Pressure(PressureNews::Reclaimed { levels, measured_at });
        self.shell.tasks.then(again, news);
    }

    fn reclaimed(&mut self, levels: &[(Signal, Level)], measured_at: Instant) {
        let is_of_disk = |met: &Met| {
            matches!(met.signal.resource(), StarvedResource::EphemeralStorage | StarvedResource::Inodes)
        };
        let met = self.shell.machine.pressure.borrow().thresholds().met(levels).filter(is_of_disk);
        match met {
            Some(met) => self.relieve(met, measured_at),
            None => self.shell.machine.pressure.borrow_mut().relieved(nodlet_host::clock::instant()),
        }
    }

    /// Measures the pods, and has one of them evicted.
    fn relieve(&mut self, met: Met, measured_at: Instant) {
        let usage = usage(self.shell.clone(), met.signal.resource());
        let news = move |usage| Message::Pressure(PressureNews::Used { met, measured_at, usage });
        self.shell.tasks.then(usage, news);
    }
}

/// The available amount of each resource. The storage thread reads that of the disk.
async fn levels(shell: Rc<Shell>) -> Vec<(Signal, Level)> {
    let machine = &shell.machine;
    let mut levels = vec![(
        Signal::Memory,
        Level { available: of_meminfo("MemAvailable:"), capacity: of_meminfo("MemTotal:") },
    )];
    let of_pods = machine.cgroups.memory_of_all_pods();
    let allocatable = u64::try_from(this_node::info(&shell.config, machine).allocatable.memory).unwrap_or(0);
    if let Some((available, capacity)) = of_pods.filter(|(_, capacity)| *capacity <= allocatable) {
        levels.push((Signal::AllocatableMemory, Level { available, capacity }));
    }
    if machine.pressure.borrow().thresholds().concern(Signal::Pid) {
        levels.push((Signal::Pid, process_ids()));
    }
    let (records, images) = (shell.paths.records(), shell.stores.images.watch_paths());
    let records_path = records.clone();
    let disks = shell.stores.storage.run(move || {
        let disks = [Some(&records), images.first()].map(|path| path.and_then(|path| disk(path)));
        let broken = disks[0].as_ref().is_some_and(|disk| disk.is_read_only);
        // A read-only file system cannot fill up.
        let [of_nodes, of_images] =
            disks.map(|disk| disk.filter(|disk| !disk.is_read_only).map(|disk| disk.statistics));
        let levels = [
            (Signal::NodeFs, of_nodes.as_ref().map(bytes)),
            (Signal::NodeFsInodes, of_nodes.as_ref().map(inodes)),
            (Signal::ImageFs, of_images.as_ref().map(bytes)),
            (Signal::ImageFsInodes, of_images.as_ref().map(inodes)),
        ];
        (levels, broken)
    });
    let (disks, is_read_only) = disks.await;
    let why =
        is_read_only.then(|| format!("{} is on a file system that is read-only", records_path.display()));
    shell.show_records_disk(|disk, now| disk.measured(now, why));
    levels.extend(disks.into_iter().filter_map(|(signal, level)| Some((signal, level?))));
    levels
}

impl Shell {
    /// Shows what was found about the file system of the records, if it is new.
    pub(super) fn show_records_disk(&self, found: impl FnOnce(&mut RecordsDisk, Instant) -> bool) {
        let disk = &self.machine.records_disk;
        if !found(&mut disk.borrow_mut(), nodlet_host::clock::instant()) {
            return;
        }
        if let Some((why, _)) = disk.borrow().broken() {
            self.publication.emit_of_node(NodeEvent::Machine("FilesystemIsReadOnly", why));
        }
        this_node::publish(self);
    }
}

/// A file system.
struct Disk {
    statistics: Statvfs,
    is_read_only: bool,
}

/// The file system of a directory, which may not exist yet.
fn disk(path: &Path) -> Option<Disk> {
    let directory = path.ancestors().find_map(|directory| own_file::open_directory(directory).ok())?;
    let statistics = fstatvfs(&directory).ok()?;
    // The flag is not set when ext4 has found an error.
    let is_read_only = statistics.flags().contains(FsFlags::ST_RDONLY)
        || mount_of(&directory).ok().flatten().is_some_and(|mount| mount.is_read_only);
    Some(Disk { statistics, is_read_only })
}

/// Has btrfs free what was removed. It does so with its next transaction, up to 30 s later, and a pod would be evicted for
/// what another one has freed.
fn free_removed(path: &Path) {
    let Some(directory) = path.ancestors().find_map(|directory| own_file::open_directory(directory).ok())
    else {
        return;
    };
    if fstatfs(&directory).is_ok_and(|found| found.filesystem_type() == BTRFS_SUPER_MAGIC) {
        // Best effort: a file system that cannot be synced is found to be broken by what is written next.
        let _ = nix::unistd::syncfs(directory.as_raw_fd());
    }
}

#[allow(clippy::unnecessary_cast, reason = "the types differ between architectures")]
fn bytes(disk: &Statvfs) -> Level {
    let of = |blocks: libc::fsblkcnt_t| (blocks as u64).saturating_mul(disk.fragment_size() as u64);
    Level { available: of(disk.blocks_available()), capacity: of(disk.blocks()) }
}

#[allow(clippy::unnecessary_cast, reason = "the types differ between architectures")]
fn inodes(disk: &Statvfs) -> Level {
    Level { available: disk.files_available() as u64, capacity: disk.files() as u64 }
}

/// The process IDs of the machine.
fn process_ids() -> Level {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let limits = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
    let capacity = limits.iter().filter_map(|path| read(path).trim().parse().ok()).min().unwrap_or(0);
    // `0.00 0.00 0.00 1/123 4567`: running and all threads.
    let used = read("/proc/loadavg");
    let used = used.split_ascii_whitespace().nth(3).and_then(|counts| counts.split_once('/')?.1.parse().ok());
    Level { available: used.map_or(capacity, |used: u64| capacity.saturating_sub(used)), capacity }
}

/// The usage of a resource by each pod. Other tasks run between two pods.
async fn usage(shell: Rc<Shell>, resource: StarvedResource) -> Vec<(PodIndex, PodUsage)> {
    let pods: Vec<_> = {
        let pods = shell.pods.borrow();
        let with_sandbox = |(index, pod): (&PodIndex, &super::pods::PodShell)| {
            Some((*index, pod.wanted.clone(), pod.sandbox.clone()?))
        };
        pods.iter().filter_map(with_sandbox).collect()
    };
    let mut found = Vec::new();
    for (index, wanted, sandbox) in pods {
        smol::future::yield_now().await;
        let of = |usage: Usage| match resource {
            StarvedResource::Pids => usage.tasks,
            _ => usage.working_set,
        };
        let usage = match resource {
            StarvedResource::Memory | StarvedResource::Pids => {
                let Some(total) = of(sandbox.cgroup.usage()) else { continue };
                let containers = {
                    let runs = sandbox.runs.borrow();
                    // The leaf of a run that has ended has no usage.
                    let of_run = runs
                        .iter()
                        .filter_map(|((name, _), run)| Some((name.as_str().into(), of(run.leaf.usage())?)));
                    of_run.collect()
                };
                let files = match resource {
                    StarvedResource::Memory => shell.volumes.memory_of_files(&wanted).await,
                    _ => 0,
                };
                PodUsage { total: total.saturating_add(files), containers }
            }
            StarvedResource::EphemeralStorage | StarvedResource::Inodes => {
                let unit = match resource {
                    StarvedResource::Inodes => Unit::Inodes,
                    _ => Unit::Bytes,
                };
                let used = shell.volumes.measure(&wanted, StorageScope::Pod, unit).await;
                // What a container has deleted and keeps open is found by no walk.
                let (cgroup, directory) = (sandbox.cgroup.directory(), shell.paths.pod(&wanted.pod.uid.0));
                let mut deleted = DeletedFiles::new(cgroup, directory, unit);
                shell.volumes.with_quota(&wanted).for_each(|volume| deleted.leave_out_project(volume));
                let deleted = shell.stores.storage.run_in_parts(move || deleted.part()).await;
                let named = used.containers.iter().chain(&used.volumes).copied();
                let total = named.chain([deleted]).fold(0, u64::saturating_add);
                let names = wanted.pod.spec.all_containers().map(|container| container.name.as_str().into());
                PodUsage { total, containers: names.zip(used.containers).collect() }
            }
        };
        found.push((index, usage));
    }
    found
}

/// Has the kernel report processes that wait for memory, if it can.
pub(super) fn watch_stalls(tasks: Rc<Tasks>) {
    let (stalls, awaited) = match stalls() {
        Ok(made) => made,
        Err(error) => return log::debug!("failed to watch /proc/pressure/memory: {error}"),
    };
    tasks.clone().spawn(async move {
        let _stalls = stalls;
        while awaited.readable().await.is_ok() {
            tasks.send(Message::Pressure(PressureNews::Stalled)).await;
            smol::Timer::after(STALLS_EVERY).await;
        }
    });
}

/// A trigger, and a descriptor that is readable when the trigger fires: the kernel reports that as an urgent event,
/// which `Async` cannot wait for.
fn stalls() -> io::Result<(File, Async<OwnedFd>)> {
    let mut file = OpenOptions::new().read(true).write(true).open("/proc/pressure/memory")?;
    file.write_all(STALL)?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(file.as_fd(), EpollEvent::new(EpollFlags::EPOLLPRI, 0))?;
    Ok((file, Async::new_nonblocking(epoll.0)?))
}
