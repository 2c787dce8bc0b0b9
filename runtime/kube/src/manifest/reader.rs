//! The functions that read definitions and check their updates, by kind. Pure.

use serde_json::Value;

use super::{
    Definition, Kind, ManifestError, Validation, class, config, definition, limit_range, persistent, preset,
};

/// The functions for the definitions of one kind.
pub(super) struct Reader {
    /// Reads one: the object, the name of the node, and the name of the file, if it is of one.
    pub(super) read: fn(Value, Validation, &str, Option<&str>) -> Result<Definition, ManifestError>,
    /// Checks an update by a client: the existing object and the new one.
    pub(super) check_update: fn(&Value, &Value) -> Result<(), ManifestError>,
}

/// The reader of a kind; `None` for Pods, and for kinds that only the agent creates.
pub(super) fn of(kind: Kind) -> Option<Reader> {
    Some(match kind {
        Kind::Pod | Kind::Event | Kind::Namespace | Kind::Node => return None,
        Kind::ConfigMap => Reader { read: config::read_config_map, check_update: config::check_update },
        Kind::Secret => Reader { read: config::read_secret, check_update: config::check_update },
        Kind::PodPreset => Reader { read: preset::read, check_update: definition::any_update },
        Kind::LimitRange => Reader { read: limit_range::read, check_update: definition::any_update },
        Kind::PriorityClass => Reader { read: class::read, check_update: class::check_update },
        Kind::PersistentVolume => {
            Reader { read: persistent::read_volume, check_update: persistent::check_volume_update }
        }
        Kind::PersistentVolumeClaim => {
            Reader { read: persistent::read_claim, check_update: persistent::check_claim_update }
        }
    })
}
