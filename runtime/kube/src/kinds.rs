//! The rules of each kind: how its objects are read from manifests, checked, updated, printed and described. Pure, except
//! for descriptions: they print ages and local times, by the clock and the time zone of the machine on which the
//! command line runs.
//!
//! A new kind is a row in `kind.rs`, and a file below `kinds/` with its [`Strategy`]: its columns, its cells, its description, and, if clients may create its objects, its rules, as
//! `kinds/limit_range.rs`. For such a kind, `cargo xtask schema` adds its type to the table of [`crate::schema`]; a kind
//! that Kubernetes has removed is checked against another type, as in `kinds/pod_preset.rs`. Tests and the compiler
//! report what is missing.

pub(crate) mod applied;
mod cells;
pub(crate) mod config_data;
mod config_map;
pub(crate) mod definition;
mod describe;
mod endpoint_slice;
mod endpoints;
mod event;
mod generic;
pub mod limit_range;
mod namespace;
mod node;
pub mod persistent_volume;
pub mod persistent_volume_claim;
mod pod;
pub(crate) mod pod_preset;
pub mod priority_class;
pub mod runtime_class;
mod secret;
mod service;
mod strategy;

pub use crate::kind::{
    KINDS, Kind, Row, Subresource, definition_of_file, groups, on_command_line, readable, types,
};
pub use describe::escaped;
pub use describe::events::interval;
pub(crate) use describe::is_control_character;
pub use pod_preset::selects;
pub use strategy::{Column, Related, Strategy};

macro_rules! strategy_of {
    ($($kind:ident in $file:ident,)*) => {
        /// Returns the strategy of a kind.
        pub fn strategy(kind: Kind) -> &'static Strategy {
            match kind {
                $(Kind::$kind => &$file::STRATEGY,)*
            }
        }
    };
}
crate::kind::each_kind!(strategy_of);

#[cfg(test)]
mod tests;
