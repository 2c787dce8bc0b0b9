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
use nodlet_host::watches::{Watcher, Watches};
use nodlet_kube::manifest::DeviceSource;
use nodlet_registry::{Wanted, requested_devices};
use smol::Async;

use super::{DEV, Devices, find};
use crate::sources::RESCAN_INTERVAL;

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
    fn new(watches: &Watches) -> io::Result<Watch> {
        let uevents = News::open(libc::NETLINK_KOBJECT_UEVENT, &[UEVENTS])?;
        let links = News::open(libc::NETLINK_ROUTE, &[])?;
        let files = watches.watcher().inspect_err(|error| {
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
    fn add_directories(&self, devices: &Devices) {
        let names = devices.seen.borrow();
        let files = devices.parts.machine.devices.borrow();
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

impl Devices {
    /// Looks the devices of a pod up once more, after the core knows that its sandbox failed: a change that was reported
    /// before would be lost.
    pub(in crate::engine) fn schedule_refresh(self: &Rc<Self>, pod: &Pod) {
        for name in requested_devices(pod) {
            self.seen.borrow_mut().record(name, None);
        }
        let devices = self.clone();
        self.parts.tasks.spawn(async move { devices.refresh().await });
    }

    fn is_any_requested(&self) -> bool {
        self.parts.pods.borrow().values().any(|pod| requested_devices(&pod.wanted.pod).next().is_some())
    }

    /// Watches devices, unless they are watched already, until no pod requests one.
    pub(in crate::engine) fn watch(self: &Rc<Self>) {
        if let Some(watch) = &*self.watch.borrow() {
            return watch.add_directories(self);
        }
        let watch = match Watch::new(&self.parts.watches) {
            Ok(watch) => Rc::new(watch),
            Err(error) => {
                log::warn!(
                    "failed to watch devices: {error}; pods see a change of devices only when they start"
                );
                return;
            }
        };
        *self.watch.borrow_mut() = Some(watch.clone());
        let devices = self.clone();
        // Uevents begin with the socket; the directories of pods whose start is being prepared are added by the task,
        // which then looks at once.
        self.parts.tasks.spawn(async move {
            loop {
                watch.add_directories(&devices);
                devices.refresh().await;
                if !devices.is_any_requested() {
                    break;
                }
                if let Err(error) = watch.changed().await {
                    log::warn!("failed to watch devices: {error}");
                    break;
                }
            }
            *devices.watch.borrow_mut() = None;
            if !devices.is_any_requested() {
                devices.seen.borrow_mut().clear();
            }
        });
    }

    /// Looks up the requested devices. Lets pods start whose devices have changed, and changes the nodes of running
    /// containers.
    pub(in crate::engine) async fn refresh(self: &Rc<Self>) {
        let changed = {
            let files = self.parts.machine.devices.borrow();
            let find = |name: &str| find(&*files.get(name)?).ok();
            self.seen.borrow_mut().refresh(find)
        };
        let pods: Vec<(PodIndex, Rc<Wanted>)> =
            self.parts.pods.borrow().iter().map(|(index, pod)| (*index, pod.wanted.clone())).collect();
        for (pod, wanted) in pods {
            let is_news =
                requested_devices(&wanted.pod).any(|name| changed.iter().any(|other| *other == name));
            if is_news {
                self.parts.tasks.report(pod, PodObservation::ObjectsChanged).await;
            }
            let runs: Vec<(String, u32)> = match self.parts.pods.sandbox(pod) {
                Some(sandbox) => {
                    let runs = sandbox.runs.borrow();
                    let with_devices = runs.iter().filter(|(_, run)| !run.image.devices.is_empty());
                    with_devices.map(|(key, _)| key.clone()).collect()
                }
                None => Vec::new(),
            };
            for (container, number) in runs {
                self.follow((pod, container, number), is_news);
            }
        }
    }

    /// Watches devices again that runs have, which an earlier agent has started.
    pub(in crate::engine) fn resume(self: &Rc<Self>) {
        let mut names: Vec<String> = Vec::new();
        for pod in self.parts.pods.borrow().values() {
            if pod.sandbox.is_some() {
                names.extend(requested_devices(&pod.wanted.pod).map(str::to_owned));
            }
        }
        if names.is_empty() {
            return;
        }
        for name in names {
            self.seen.borrow_mut().add(&name);
        }
        self.watch();
    }
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
