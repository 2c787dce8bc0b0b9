//! Watches the devices that pods request, and looks them up when something changes.
//!
//! Uevents of the kernel, inotify on /dev and, for interfaces, messages about links report changes; they are watched only
//! while a pod requests a device.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::rc::Rc;

use nix::sys::inotify::AddWatchFlags;
use nodlet_core::facts::{PodIndex, PodObservation};
use nodlet_core::spec::Pod;
use nodlet_host::netlink::News;
use nodlet_host::watches::Watcher;
use nodlet_kube::manifest::DeviceSource;
use nodlet_registry::{Wanted, requested_devices};
use smol::Async;

use super::change::follow;
use super::{DEV, find};
use crate::engine::Shell;
use crate::sources::RESCAN_INTERVAL;

/// Looks the devices of a pod up once more, after the core knows that its sandbox failed: a change that was reported
/// before would be lost.
pub(in crate::engine) fn schedule_refresh(shell: &Rc<Shell>, pod: &Pod) {
    for name in requested_devices(pod) {
        shell.devices.seen.borrow_mut().record(name, None);
    }
    let (later, executor) = (shell.clone(), shell.clone());
    executor.tasks.spawn(async move { refresh(&later).await });
}

fn is_any_requested(shell: &Shell) -> bool {
    shell.pods.borrow().values().any(|pod| requested_devices(&pod.wanted.pod).next().is_some())
}

/// The group of the uevents of the kernel.
const UEVENTS: u32 = 1;

/// The descriptors that report changes of devices.
pub(super) struct Watch {
    uevents: Async<News>,
    /// Reports links of the network, once an interface is requested. The uevent of an interface is no substitute: the
    /// kernel sends it before the interface is found by its name.
    links: Async<News>,
    watches_links: Cell<bool>,
    /// `None` if the kernel refuses an instance of inotify: then the devices are looked up every [`RESCAN_INTERVAL`].
    files: Option<Watcher>,
}

impl Watch {
    fn new(shell: &Shell) -> io::Result<Watch> {
        let uevents = News::open(libc::NETLINK_KOBJECT_UEVENT, &[UEVENTS])?;
        let links = News::open(libc::NETLINK_ROUTE, &[])?;
        let files = shell.watches.watcher().inspect_err(|error| {
            log::warn!(
                "failed to watch {DEV}: {error} (see fs.inotify.max_user_instances); devices are looked up every {} s \
                 while a pod requests one",
                RESCAN_INTERVAL.as_secs()
            );
        });
        Ok(Watch {
            uevents: Async::new_nonblocking(uevents)?,
            links: Async::new_nonblocking(links)?,
            watches_links: Cell::new(false),
            files: files.ok(),
        })
    }

    /// Watches the links of the network.
    pub(super) fn add_links(&self) {
        if self.watches_links.replace(true) {
            return;
        }
        if let Err(error) = self.links.get_ref().join(libc::RTNLGRP_LINK) {
            log::warn!("failed to watch interfaces: {error}");
        }
    }

    /// Watches the directories of the paths that definitions name, and links if one names an interface. Directories
    /// that do not exist are watched when their parent reports them.
    fn add_directories(&self, shell: &Shell) {
        let names = shell.devices.seen.borrow();
        let files = shell.machine.devices.borrow();
        for definition in names.names().filter_map(|name| files.get(name)) {
            let path = match &definition.source {
                DeviceSource::Path(path) => path,
                DeviceSource::Interface(_) => {
                    self.add_links();
                    continue;
                }
                DeviceSource::Sysfs { .. } | DeviceSource::Cdi(_) => continue,
            };
            let mut directories: Vec<&Path> = Path::new(path).ancestors().skip(1).collect();
            // From /dev downwards.
            directories.retain(|directory| directory.starts_with(DEV));
            for directory in directories.into_iter().rev() {
                let what = AddWatchFlags::IN_CREATE
                    | AddWatchFlags::IN_DELETE
                    | AddWatchFlags::IN_MOVED_TO
                    | AddWatchFlags::IN_MOVED_FROM
                    | AddWatchFlags::IN_ONLYDIR;
                if self.files.as_ref().is_none_or(|watcher| watcher.add(directory, what).is_err()) {
                    break;
                }
            }
        }
    }

    /// Waits for a change, and reads what is known of it.
    async fn changed(&self) -> io::Result<()> {
        let sockets = smol::future::or(self.uevents.readable(), self.links.readable());
        let files = async {
            match &self.files {
                Some(watcher) => watcher.changed().await,
                None => drop(smol::Timer::after(RESCAN_INTERVAL).await),
            }
            Ok(())
        };
        smol::future::or(sockets, files).await?;
        for socket in [&self.uevents, &self.links] {
            // The devices are looked up whatever has changed, and even if news were lost.
            let _ = socket.get_ref().read(|_| {});
        }
        drop(self.files.as_ref().map(Watcher::take));
        Ok(())
    }
}

/// Watches devices, unless they are watched already, until no pod requests one.
pub(in crate::engine) fn watch(shell: &Rc<Shell>) {
    if let Some(watch) = &*shell.devices.watch.borrow() {
        return watch.add_directories(shell);
    }
    let watch = match Watch::new(shell) {
        Ok(watch) => Rc::new(watch),
        Err(error) => {
            log::warn!("failed to watch devices: {error}; pods see a change of devices only when they start");
            return;
        }
    };
    *shell.devices.watch.borrow_mut() = Some(watch.clone());
    let (shell, executor) = (shell.clone(), shell.clone());
    // Uevents begin with the socket; the directories of pods whose start is being prepared are added by the task,
    // which then looks at once.
    executor.tasks.spawn(async move {
        loop {
            watch.add_directories(&shell);
            refresh(&shell).await;
            if !is_any_requested(&shell) {
                break;
            }
            if let Err(error) = watch.changed().await {
                log::warn!("failed to watch devices: {error}");
                break;
            }
        }
        *shell.devices.watch.borrow_mut() = None;
        if !is_any_requested(&shell) {
            shell.devices.seen.borrow_mut().clear();
        }
    });
}

/// Looks up the requested devices. Lets pods start whose devices have changed, and changes the nodes of running
/// containers.
pub(in crate::engine) async fn refresh(shell: &Rc<Shell>) {
    let changed = {
        let files = shell.machine.devices.borrow();
        let find = |name: &str| find(&*files.get(name)?).ok();
        shell.devices.seen.borrow_mut().refresh(find)
    };
    let pods: Vec<(PodIndex, Rc<Wanted>)> =
        shell.pods.borrow().iter().map(|(index, pod)| (*index, pod.wanted.clone())).collect();
    for (pod, wanted) in pods {
        let is_news = requested_devices(&wanted.pod).any(|name| changed.iter().any(|other| *other == name));
        if is_news {
            shell.tasks.report(pod, PodObservation::ObjectsChanged).await;
        }
        let runs: Vec<(String, u32)> = match shell.pods.sandbox(pod) {
            Some(sandbox) => {
                let runs = sandbox.runs.borrow();
                let with_devices = runs.iter().filter(|(_, run)| !run.image.devices.is_empty());
                with_devices.map(|(key, _)| key.clone()).collect()
            }
            None => Vec::new(),
        };
        for (container, number) in runs {
            follow(shell, (pod, container, number), is_news);
        }
    }
}

/// Watches devices again that runs have, which an earlier agent has started.
pub(in crate::engine) fn resume(shell: &Rc<Shell>) {
    let mut names: Vec<String> = Vec::new();
    for pod in shell.pods.borrow().values() {
        if pod.sandbox.is_some() {
            names.extend(requested_devices(&pod.wanted.pod).map(str::to_owned));
        }
    }
    if names.is_empty() {
        return;
    }
    for name in names {
        shell.devices.seen.borrow_mut().add(&name);
    }
    watch(shell);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_instance_of_inotify_devices_are_looked_up_after_a_while() {
        // Sockets that report nothing: no group is joined.
        let silent = |protocol| Async::new(News::open(protocol, &[]).unwrap()).unwrap();
        let watch = Watch {
            uevents: silent(libc::NETLINK_KOBJECT_UEVENT),
            links: silent(libc::NETLINK_ROUTE),
            watches_links: Cell::new(false),
            files: None,
        };
        let changed = nodlet_wire::timeout::within(6 * RESCAN_INTERVAL, watch.changed());
        smol::block_on(changed).expect("it wakes up by itself").expect("it can be read");
    }
}
