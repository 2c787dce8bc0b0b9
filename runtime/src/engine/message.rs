//! What tasks report to the loop, as data. The loop continues with each report in one place (`engine.rs`).

use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use async_channel::Sender;
use serde_json::Value;

use nodlet_cluster::backoff::Backoff;
use nodlet_core::facts::{PodIndex, PodObservation, PodUsage};
use nodlet_core::image_use::ImageUse;
use nodlet_core::pressure::{Level, Met, Signal};
use nodlet_core::sorted::SortedSet;
use nodlet_core::spec::Uid;
use nodlet_core::time::Instant;
use nodlet_registry::held_updates::LookUp;
use nodlet_registry::{Accepted, AwaitedImage, Owner, PodName, Registry, SourceFile, Stop, Wanted, Write};
use nodlet_rootfs::{Digest, Image, StoreError};

use crate::api::{EphemeralRequest, Reply, Request};
use crate::progress::Progress;
use crate::records::Recorded;
use crate::service::Service;
use crate::sources::{ManifestDirectories, ParseError, ScanEntry, Stamp};

/// A report of a task to the loop.
pub(super) enum Message {
    /// A fact about a pod.
    Seen(PodIndex, PodObservation),
    /// Images were added to the store, or removed.
    ImagesChanged,
    /// News of the images on the board.
    Images(ImageNews),
    /// Unused images were removed, because the disk is under pressure.
    ImagesReclaimed(Result<ImageCheck, StoreError>),
    /// Images of a change that is held back were looked up: whether each is on the board.
    ImagesLookedUp { look_up: LookUp, present: Vec<bool> },
    /// News of the manifest directories.
    Manifests(ManifestNews),
    /// A change was written to flash, or could not be.
    Stored(Box<StoredChange>),
    /// What was measured of the machine.
    Pressure(PressureNews),
    /// The task that follows the cluster asks for something.
    Cluster(ClusterCall),
    /// Addresses or routes of the board may have changed.
    AddressesChanged,
    /// What the Node is made from has changed.
    NodeChanged,
    /// The fencing period may be over. The sender is dropped when the fence is closed.
    CloseFence(Sender<()>),
    /// The machine goes down, or does not after all.
    GoesDown(bool),
    /// It is time to show that the loop runs: a timer also fires in a loop that hangs.
    Beat(Heartbeat),
    /// The clock was set.
    ClockSet,
    /// SIGTERM or SIGINT: the agent ends, and leaves the pods.
    Terminate,
}

/// A change of what the board wants that waits for its turn.
pub(super) enum Change {
    /// A client asks for it.
    Request(Box<Request>),
    /// The cluster has deleted a pod. There is at most one for each pod.
    End(ClusterPodEnd),
    /// A pod of the cluster, or an object that it needs, is new or changed. The task that follows the cluster awaits it.
    ClusterManifest(Box<ClusterManifest>),
    /// Pods of the cluster need these manifests no longer. The task that follows the cluster awaits it.
    ClusterRemoval { paths: Vec<PathBuf>, reply: Sender<()> },
    /// A finished pod is one too many. There is at most one for each pod.
    Collection(PodIndex),
}

/// A manifest of the cluster.
pub(super) struct ClusterManifest {
    pub(super) path: PathBuf,
    pub(super) text: Vec<u8>,
    /// The objects in the text, or the reason why it has none.
    pub(super) contents: Result<SourceFile, ParseError>,
    /// Gets whether the file has this text.
    pub(super) reply: Sender<bool>,
}

/// A change that was written to flash, or could not be.
pub(super) enum StoredChange {
    /// The manifest of a client's object.
    Manifest {
        write: Box<Write>,
        awaited: Vec<AwaitedImage>,
        reply: Reply<Accepted>,
        written: io::Result<Stamp>,
    },
    /// A manifest of the cluster; without a stamp if the file had this text before.
    ClusterManifest { manifest: Box<ClusterManifest>, written: io::Result<Option<Stamp>> },
    /// The removal of manifests of the cluster: those that are gone.
    ClusterRemoval { paths: Vec<PathBuf>, reply: Sender<()> },
    /// The removal of the manifest of an object that is no pod.
    Removal { object: Value, path: PathBuf, reply: Reply<Value>, removed: io::Result<()> },
    /// The removal of the manifest of a pod, which ends then. `false` if the file is that of another pod, and stays.
    PodRemoval { uid: Uid, path: PathBuf, end: PodEnd, removed: io::Result<bool> },
    /// The ephemeral containers of a pod.
    Ephemeral { index: PodIndex, wanted: Rc<Wanted>, asked: EphemeralRequest, written: io::Result<()> },
}

/// The end of a pod that the cluster has deleted.
pub(super) struct ClusterPodEnd {
    pub(super) uid: Uid,
    /// The manifest.
    pub(super) path: PathBuf,
    pub(super) grace: Option<Duration>,
    /// The waits between the attempts to remove the manifest.
    pub(super) backoff: Backoff,
    /// Receives whether the first attempt has removed the manifest.
    pub(super) removed: Option<Sender<bool>>,
}

/// How a pod ends whose manifest is gone.
pub(super) enum PodEnd {
    /// A client deletes the pod.
    Deleted {
        index: PodIndex,
        name: String,
        stop: Stop,
        /// The pod as it was when it was deleted, if the manifest is that of the pod that was to replace it. It may
        /// end before the manifest is gone.
        replaced: Option<(Uid, Value)>,
        reply: Reply<Value>,
    },
    /// The cluster has deleted the pod.
    OfCluster(ClusterPodEnd),
    /// The pod has finished, and is one too many.
    Collected { index: PodIndex, name: String },
}

/// What a task reports of the images on the board.
pub(super) enum ImageNews {
    /// All images, for the status of the Node.
    Listed(Result<Vec<Image>, StoreError>),
    /// The result of a check.
    Checked(Result<ImageCheck, StoreError>),
    /// It is time for a check.
    Due,
}

/// The result of a check.
#[derive(Debug, Default)]
pub(super) struct ImageCheck {
    pub(super) images: ImageUse<Digest>,
    /// Names or IDs of the images that were removed, and why.
    pub(super) removed: Vec<(String, &'static str)>,
    /// Bytes above the low threshold that are left.
    pub(super) excess: u64,
    /// Time until the first unused image reaches the minimum age.
    pub(super) older: Option<Duration>,
}

/// What a task reports of the manifest directories.
pub(super) enum ManifestNews {
    /// One part of a read was made.
    Part(ReadPart),
    /// There are events of inotify.
    Changed,
    /// A file that was being saved is back, or will not come back.
    Saved,
    /// It is time to read what cannot be watched.
    Due,
}

/// The result of one part of a read.
pub(super) struct ReadPart {
    pub(super) directories: Box<ManifestDirectories>,
    /// `None` if the inotify events were of no interest and nobody requested the read.
    pub(super) entries: Option<Vec<ScanEntry>>,
    pub(super) more: bool,
    pub(super) recorded: Option<Recorded>,
}

/// What was measured of the machine, and for whom.
pub(super) enum PressureNews {
    /// It was time.
    Measured { levels: Vec<(Signal, Level)>, measured_at: Instant },
    /// A client asked for it.
    Asked { levels: Vec<(Signal, Level)>, reply: Reply<()> },
    /// Unused images were removed.
    Reclaimed { levels: Vec<(Signal, Level)>, measured_at: Instant },
    /// The usage of each pod, so that one of them is evicted.
    Used { met: Met, measured_at: Instant, usage: Vec<(PodIndex, PodUsage)> },
    /// The kernel reports processes that wait for memory.
    Stalled,
}

/// What the task that follows the cluster asks of the loop.
pub(super) enum ClusterCall {
    /// Serve the kubelet's port.
    Serve,
    /// Change what the board wants.
    Change(Change),
    /// The cluster has confirmed the pods with these UIDs.
    Confirm(SortedSet<String>),
    /// Take the conditions of the readiness gates of the pod `local` from its status in the cluster.
    TakeConditions { local: Value, status: Value },
    /// The UIDs and the manifests of all pods of the cluster.
    Pods(Sender<Vec<(Uid, PathBuf)>>),
    /// Which pod of this name the manifests of the board contain, for a pod of the cluster with this UID.
    Named { name: PodName, uid: Uid, reply: Sender<Named> },
    /// Whether a manifest wants the pod with this UID.
    IsDesired { uid: Uid, reply: Sender<bool> },
    /// Do nothing: the loop measures the node when it has run.
    Turn,
}

/// Which pod of a name the manifests of the board contain.
pub(super) enum Named {
    /// None, or no pod of the cluster or of a file.
    Nothing,
    /// The pod with this UID.
    Itself,
    /// Another pod of the cluster.
    Predecessor(Uid),
    /// A pod of this file.
    OfFile(PathBuf),
}

impl Named {
    pub(super) fn of(registry: &Registry, name: &PodName, uid: &Uid) -> Named {
        let (wanted, _) = registry.sources.wanted();
        let Some(found) = wanted.get(name) else { return Named::Nothing };
        if registry.owner_of(found) != Some(Owner::Cluster) {
            Named::OfFile(found.source.clone())
        } else if found.pod.uid == *uid {
            Named::Itself
        } else {
            Named::Predecessor(found.pod.uid.clone())
        }
    }
}

/// What learns that the loop runs.
pub(super) enum Heartbeat {
    /// The service manager.
    Service(Rc<Service>),
    /// Process 1 of a board.
    Progress(Rc<Progress>),
}

impl Heartbeat {
    /// Called by the loop itself.
    pub(super) fn beat(self) {
        match self {
            Heartbeat::Service(service) => service.lives(),
            Heartbeat::Progress(progress) => progress.store(nodlet_host::clock::instant()),
        }
    }
}
