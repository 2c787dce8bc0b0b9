//! Changes the devices of running containers. When a device goes or comes back, its node in the container and the rule
//! of the container's cgroup change with it. The container can replace its nodes at any time, so a helper of the
//! supervisor changes them: `device.rs` there.

use std::rc::Rc;
use std::time::Duration;

use nodlet_core::facts::Attempt;
use nodlet_host::cgroup::CgroupError;
use nodlet_host::error::chain;
use nodlet_host::launch::{DeviceChange, DeviceNode, ExecConfig};
use nodlet_registry::{DeviceOfRun, DeviceRetry, device_events};
use nodlet_wire::timeout::within;

use super::{Devices, RunKey, find, node_of};
use crate::engine::exec::ExecError;
use crate::engine::handles::{GivenDevice, write_facts};

/// How long a change of the nodes in a container may take. A container may have mounted a file system there that
/// never answers.
const CHANGE_TIME: Duration = Duration::from_secs(10);

/// The reason why the devices of a run could not be changed.
#[derive(Debug)]
enum ApplyError {
    Rule(CgroupError),
    Nodes(ExecError),
    NoAnswer,
}

impl ApplyError {
    fn message(&self) -> String {
        match self {
            ApplyError::Rule(error) => chain(error),
            ApplyError::Nodes(error) => error.message(),
            ApplyError::NoAnswer => "the container's /dev does not answer".to_owned(),
        }
    }
}

impl Devices {
    /// Makes the devices of a run as they are on the board, in a task, unless one does so already: with `is_news`, that one
    /// waits no longer before it tries again.
    pub(in crate::engine) fn follow(self: &Rc<Self>, key: RunKey, is_news: bool) {
        let mut changing = self.changing.borrow_mut();
        if let Some((_, retry)) = changing.iter().find(|(other, _)| *other == key) {
            if is_news {
                // An earlier notice that was not read yet ends the delay as well.
                let _ = retry.try_send(());
            }
            return;
        }
        if self.difference(&key).is_none() {
            return;
        }
        let (retry, news) = async_channel::bounded(1);
        changing.push((key.clone(), retry));
        let devices = self.clone();
        self.parts.tasks.spawn(async move {
            let mut retry = DeviceRetry::default();
            // What changes meanwhile is the next difference.
            while let Some(change) = devices.difference(&key) {
                let Err(error) = devices.apply(&key, change).await else {
                    retry = DeviceRetry::default();
                    continue;
                };
                // A further change of the device ends the delay.
                let delay = retry.failed();
                log::warn!(
                    "failed to change the devices of container {}: {}; trying again in {} s",
                    key.1,
                    error.message(),
                    delay.as_secs()
                );
                let _ = within(delay, news.recv()).await;
            }
            devices.changing.borrow_mut().retain(|(other, _)| *other != key);
        });
    }

    /// The present devices of a run, if they differ from those that it has or that its nodes show.
    fn difference(&self, (pod, container, number): &RunKey) -> Option<Vec<GivenDevice>> {
        let sandbox = self.parts.pods.sandbox(*pod)?;
        let runs = sandbox.runs.borrow();
        let run = runs.get(&(container.clone(), *number))?;
        // Until its process runs, it has what was found for its start.
        run.process.as_ref()?;
        let files = self.parts.machine.devices.borrow();
        let present = run.image.devices.iter().map(|given| {
            if given.name.is_empty() {
                return given.clone();
            }
            let found = files.get(&given.name);
            let found = found.and_then(|definition| Some(node_of(&definition, find(&definition).ok()?)));
            match found {
                Some(node) => GivenDevice::new(&given.name, node),
                None => GivenDevice { is_gone: true, ..GivenDevice::new(&given.name, given.node.clone()) },
            }
        });
        let present: Vec<GivenDevice> = present.collect();
        (present != run.image.devices).then_some(present)
    }

    /// Changes the rule of the run's cgroup, then the nodes in the container. What the nodes show is stored before and after:
    /// whatever fails, this agent or the next one tries again.
    async fn apply(
        &self,
        (pod, container, number): &RunKey,
        mut new: Vec<GivenDevice>,
    ) -> Result<(), ApplyError> {
        let gone = || ApplyError::Nodes(ExecError::Gone);
        let wanted = self.parts.pods.wanted(*pod).ok_or_else(gone)?;
        let index = wanted.pod.spec.index_of(container).ok_or_else(gone)?;
        let sandbox = self.parts.pods.sandbox(*pod).ok_or_else(gone)?;
        let attempt = Attempt { container: index, number: *number };
        let store = |devices: &[GivenDevice]| {
            let mut runs = sandbox.runs.borrow_mut();
            let run = runs.get_mut(&(container.clone(), *number)).ok_or_else(gone)?;
            let (old, new) = (nodes(&run.image.devices), nodes(devices));
            if old != new && !wanted.pod.spec.container(index).security_context.privileged {
                run.leaf.change_devices(&old, &new).map_err(ApplyError::Rule)?;
            }
            run.image.devices = devices.to_vec();
            if let Err(error) = write_facts(&self.parts.paths, &wanted, attempt, &run.image) {
                // The next agent looks again.
                log::warn!("failed to store the devices of container {container}: {error}");
            }
            Ok(())
        };
        let (mut change, mut events) = (DeviceChange::default(), Vec::new());
        {
            let runs = sandbox.runs.borrow();
            let old = &runs.get(&(container.clone(), *number)).ok_or_else(gone)?.image.devices;
            for (old, new) in old.iter().zip(&mut new).filter(|(old, new)| *old != *new) {
                let shown = old.shown.as_deref().unwrap_or(old);
                if !shown.is_gone {
                    change.gone.push(shown.node.clone());
                }
                if !new.is_gone {
                    change.added.push(new.node.clone());
                }
                events.extend(device_events(index, of_run(shown), of_run(new)));
                new.shown = Some(Box::new(shown.clone()));
            }
        }
        store(&new)?;
        let config =
            ExecConfig { args: vec![container.clone()], tty: false, size: None, devices: Some(change) };
        let exec = self.parts.execs.exec(*pod, container, *number, &config, [None, None, None]);
        let exec = exec.map_err(ApplyError::Nodes)?;
        let ended = within(CHANGE_TIME, exec.ended()).await;
        let ended = ended.map_or(Err(ApplyError::NoAnswer), |ended| ended.map_err(ApplyError::Nodes));
        if ended.is_err() {
            exec.kill();
        }
        ended?;
        new.iter_mut().for_each(|device| device.shown = None);
        store(&new)?;
        events.iter().for_each(|event| self.parts.publication.emit(&wanted, event));
        Ok(())
    }
}

/// The nodes of those devices that are there.
pub(in crate::engine) fn nodes(devices: &[GivenDevice]) -> Vec<DeviceNode> {
    devices.iter().filter(|device| !device.is_gone).map(|device| device.node.clone()).collect()
}

fn of_run(device: &GivenDevice) -> DeviceOfRun<'_> {
    let DeviceNode { path, major, minor, .. } = &device.node;
    let path = path.to_str().unwrap_or_default();
    DeviceOfRun { name: &device.name, path, number: (*major, *minor), is_gone: device.is_gone }
}
