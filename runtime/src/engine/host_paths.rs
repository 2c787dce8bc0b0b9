//! Checks the host paths that pods mount, each pod's in a thread of its own, which ends with the result: a path on a
//! server that is gone does not answer, and neither the loop nor the storage thread may wait for it. There is at most
//! one thread for each pod, also if the check is repeated.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use nodlet_core::sorted::SortedSet;
use nodlet_core::spec::Uid;
use nodlet_host::volume;
use nodlet_wire::timeout::within;

use super::tasks::Tasks;

/// Time within which the host paths of a pod must answer.
const WITHIN: Duration = Duration::from_secs(10);

/// Stack size of a thread that looks at host paths.
const STACK: usize = 256 * 1024;

/// The reason why the host paths of a pod are not acceptable.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostPathError {
    #[error("MountVolume.SetUp failed: a hostPath did not respond: its file server may be unreachable")]
    NoAnswer,
    #[error("MountVolume.SetUp failed: no thread to look at a hostPath")]
    Thread(#[source] io::Error),
    #[error(transparent)]
    Volume(volume::SetUpError),
}

/// The pods whose host paths have not answered yet.
#[derive(Default)]
pub(super) struct HostPaths(Rc<RefCell<SortedSet<Uid>>>);

impl HostPaths {
    /// Checks the host paths that a pod names. Returns the block devices among them, and the lock of its PersistentVolumes.
    ///
    /// # Errors
    /// A path is not of the type that the pod requests, or does not answer.
    pub(super) async fn check(
        &self,
        tasks: &Tasks,
        uid: &Uid,
        request: &volume::Request,
    ) -> Result<(volume::BlockDevices, Option<volume::VolumeLock>), HostPathError> {
        if self.0.borrow().contains(uid) {
            return Err(HostPathError::NoAnswer);
        }
        let ((check, checked), (done, answer)) = (async_channel::bounded(1), async_channel::bounded(1));
        let request = request.clone();
        let thread = std::thread::Builder::new().name("host-paths".into()).stack_size(STACK);
        let begun = thread.spawn(move || {
            let _ = check.try_send(volume::check_host_paths(&request));
        });
        begun.map_err(HostPathError::Thread)?;
        self.0.borrow_mut().insert(uid.clone());
        let (silent_pods, uid) = (self.0.clone(), uid.clone());
        tasks.spawn(async move {
            let checked = checked.recv().await;
            silent_pods.borrow_mut().remove(&uid);
            // After a timeout nobody waits for the result.
            let _ = checked.map(|checked| done.try_send(checked));
        });
        match within(WITHIN, answer.recv()).await {
            Some(Ok(checked)) => checked.map_err(HostPathError::Volume),
            Some(Err(_)) | None => Err(HostPathError::NoAnswer),
        }
    }
}
