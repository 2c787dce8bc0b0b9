//! The test harness for tests with real containers. With it, a test reads like the actions of a person at a
//! board.
//!
//! * [`Device`]: a board in a scratch directory with an agent of its own; leftovers at its end fail the test
//! * [`TestPod`]: one pod on a device, as the API shows it
//! * [`RecordedDevice`]: one with a directory in which containers record what they do
//! * [`Memory`], [`Share`], [`Holdings`]: the resources that a device uses
//! * [`manifest`]: the common parts of manifests
//! * [`Terminal`]: a command on a terminal; [`Background`]: one in the background
//! * [`steps`]: kills a process of a pod before its n-th step; [`AgentSteps`]: the agent
//! * [`upgrade`]: the binaries that supervisors execute, and other binaries
//! * [`Calls`]: counts the system calls that nodlet makes
//! * [`HalfLoad`]: a load of an image that has received half of its archive
//! * [`image`]: images from files given in the test
//! * [`Namespace`]: a network namespace for a device, or for the world beyond it
//! * [`LoopDevice`]: a block device with the content of a file
//! * [`Monitor`]: QEMU's monitor, which plugs devices of a guest in and out
//! * [`SerialLine`]: a serial device, and the other end of its line
//! * [`Kubectl`]: the real kubectl, over [`forward`]
//! * [`ControlPlane`]: the real servers of a Kubernetes cluster; [`ClusterNode`]: a board that is a node of it;
//!   [`KubeletNode`]: a real kubelet
//! * [`Witness`]: what containers themselves show of how many of them run
//! * [`docker_registry`]: a registry of images
//! * [`honest`]: a medium that records what a power cut may lose, and the states after one
//! * [`slow`]: a directory on a card that answers only when the test lets it
//! * [`guest`]: a virtual machine with its own kernel, and kernels that lack a feature
//!
//! A test waits for a condition ([`Device::wait_for`]), never for a time. The tests are in `tests/tests/`,
//! one file per area; they run the built binary and link nothing of it.

mod actions;
mod agent_steps;
mod api;
mod background;
mod binary;
pub mod bus;
mod calls;
mod cluster_images;
mod cluster_node;
mod control_plane;
pub mod deaths;
mod device;
pub mod docker_registry;
mod figures;
mod files;
pub mod forward;
mod forwarding;
mod fuse;
pub mod guest;
mod half_load;
pub mod honest;
pub mod image;
mod kubectl;
mod kubelet_node;
mod leftovers;
mod loop_device;
pub mod manifest;
mod memory_cgroup;
mod monitor;
mod namespace;
mod pod;
mod pod_cgroups;
mod programs;
mod recorded;
mod requests;
mod ring;
mod seed;
mod sender;
mod serial;
pub mod service;
mod slot;
pub mod slow;
pub mod ssh;
pub mod steps;
mod terminal;
mod token_server;
mod trace;
pub mod upgrade;
mod view;
mod witness;

pub use agent_steps::AgentSteps;
pub use api::send_as as request_as;
pub use api::send_for_headers as request_for_headers;
pub use background::Background;
pub use binary::binary;
pub use calls::{Calls, Counted};
pub use cluster_images::{
    coredns_archive, coredns_program, konnectivity_archive, kube_proxy_archive, kube_proxy_program,
    with_dynamic_program,
};
pub use cluster_node::ClusterNode;
pub use control_plane::{ControlPlane, Isolation, Partition, TOKEN};
pub use device::{Device, Mount, Ran, check_file_system};
pub use figures::{Holdings, Memory, Share, switches};
pub use files::files_with;
pub use forwarding::Forwarding;
pub use half_load::HalfLoad;
pub use kubectl::Kubectl;
pub use kubelet_node::KubeletNode;
pub use loop_device::LoopDevice;
pub use memory_cgroup::MemoryCgroup;
pub use monitor::Monitor;
pub use namespace::{Namespace, is_in_range};
pub use pod::{TestContainer, TestPod};
pub use pod_cgroups::cpu_quota;
pub use programs::{
    agnhost_image, agnhost_program, built_image, demo_archive, demo_program, nodlet_program, programs_are_in,
    project,
};
pub use recorded::RecordedDevice;
pub use seed::{Seed, seed, shard};
pub use sender::Sender;
pub use serial::SerialLine;
pub use slot::sweep_devices;
pub use terminal::Terminal;
pub use trace::PtraceRequest;
pub use witness::Witness;
