//! The input of the core's decisions: a Pod as typed values, with every default applied.
//!
//! `manifest` makes these from an object that the schema table has validated; this module reads no text and
//! no file. Fields that nodlet only stores and shows stay in the object's JSON and have no Rust type.
//!
//! Read next: [`pod::PodSpec`], then `node` for the decisions on it.

pub mod container;
pub mod hook;
pub mod open_files;
pub mod placement;
pub mod pod;
pub mod probe;
pub mod quantity;
pub mod reference;
pub mod restart;
pub mod sysctl;
pub mod volume;

pub use container::{Container, ContainerIndex, EnvVar, MAX_CONTAINERS, ResourceRequirements, Role};
pub use hook::{Hook, HookKind, Lifecycle};
pub use open_files::OpenFiles;
pub use placement::{Placement, Taint};
pub use pod::{Pod, PodSpec, QosClass, Uid};
pub use probe::{Probe, ProbeAction, ProbeKind};
pub use quantity::Quantity;
pub use reference::{ConfigKind, ObjectReference, ResourceField};
pub use restart::{OwnRestart, RestartAction, RestartPolicy, RestartRule};
pub use volume::{Volume, VolumeMount, VolumeSource};
