//! The verbs of the command line, one file for each, and what several of them share: `files` reads manifests,
//! `resources` finds the kind that an argument names, `containers` chooses a container of a pod. The verbs of the agent
//! and of its updates, which process 1 needs as well, are in `agent.rs` and `system.rs`.

mod apply;
mod attach;
mod cluster;
mod connect;
mod containers;
mod debug;
mod delete;
mod describe;
mod doctor;
mod events;
mod exec;
mod factory_reset;
mod files;
mod get;
mod hint;
mod identity;
pub(crate) mod image;
mod logs;
pub(crate) mod machine_verbs;
mod port_forward;
mod power;
pub(crate) mod push;
mod resources;
mod restart;
mod ring;
mod safe_mode;
pub(crate) mod version;

use crate::verb::Verb;
use crate::{agent, system};

/// The verbs, in the order of `nodlet --help`.
pub(crate) const VERBS: &[Verb] = &[
    agent::VERB,
    apply::VERB,
    get::VERB,
    describe::VERB,
    events::VERB,
    logs::VERB,
    exec::VERB,
    attach::VERB,
    debug::VERB,
    port_forward::VERB,
    delete::VERB,
    restart::VERB,
    image::VERB,
    push::VERB,
    cluster::JOIN,
    cluster::LEAVE,
    cluster::SYNC,
    agent::DOWN,
    power::REBOOT,
    power::POWEROFF,
    safe_mode::VERB,
    identity::VERB,
    factory_reset::VERB,
    system::VERB,
    system::HEALTHCHECK,
    ring::VERB,
    doctor::VERB,
    version::VERB,
    connect::VERB,
];
