//! The sender's decision of how a layer goes over: whole, or as the changed blocks of one that the
//! board has.
//!
//! A list of the board's blocks costs some bytes as well, and so it is asked for only where it is
//! small beside the layer. What it leads to is kept for the next connection, should this one drop.

use std::time::{Duration, Instant};

use nodlet_rootfs::changes::{Blocks, Changes, list_bytes};
use serde_json::{Value, json};

use super::sources::Archive;

/// A smaller layer goes over whole.
const LAYER_MIN: u64 = 32 * 1024;

/// A list may have this part of the layer's bytes, and changed blocks half of them.
const LIST_PART: u64 = 8;
const CHANGES_PART: u64 = 2;

/// How long all comparisons of a push may take. A board waits longer for what is said to it.
pub(super) const COMPARING: Duration = Duration::from_secs(30);

/// A layer that the board lacks.
pub(super) struct Wanted {
    /// The number of its archive.
    pub(super) archive: usize,
    pub(super) member: String,
    /// Bytes of it as it lies in the archive, and those that the board has.
    pub(super) size: u64,
    pub(super) from: u64,
    base: Option<Base>,
    /// Where in the pieces the board goes on, and their bytes from there.
    pub(super) changes: Option<(u64, u64)>,
}

/// What the board may make it of.
struct Base {
    layer: String,
    bytes: u64,
    /// Bytes of the layer that it has made already.
    made: u64,
}

/// What a comparison led to, for as long as the base is this one.
pub(super) struct Compared {
    base: String,
    pub(super) changes: Changes,
}

impl Wanted {
    /// A layer of so many bytes, as the board describes it.
    pub(super) fn new(layer: &Value, archive: usize, member: &str, size: u64) -> Wanted {
        let number = |value: &Value| value.as_u64();
        let base = &layer["base"];
        Wanted {
            archive,
            member: member.to_owned(),
            size,
            // What is there may be of another layer that was longer.
            from: number(&layer["from"]).filter(|from| *from <= size).unwrap_or(0),
            base: base["layer"].as_str().map(|layer| Base {
                layer: layer.to_owned(),
                bytes: number(&base["bytes"]).unwrap_or(u64::MAX),
                made: number(&base["made"]).unwrap_or(0),
            }),
            changes: None,
        }
    }

    /// Whether a list of the base's blocks is worth its bytes.
    pub(super) fn needs_list(&self) -> bool {
        let left = self.size - self.from;
        self.changes.is_none()
            && self
                .base
                .as_ref()
                .is_some_and(|base| left >= LAYER_MIN && list_bytes(base.bytes) <= left / LIST_PART)
    }

    /// The most that the list of its base has, whatever the base is.
    pub(super) fn list_max(&self) -> u64 {
        self.base.as_ref().map_or(0, |base| list_bytes(base.bytes) * 5 + 4096)
    }

    /// Takes up what an earlier connection compared.
    pub(super) fn recall(&mut self, archive: &Archive) {
        let Some(base) = &self.base else { return };
        let known = archive.compared.get(&self.member).filter(|compared| compared.base == base.layer);
        self.changes = known.and_then(|compared| compared.changes.rest(base.made));
    }

    /// Compares it with the blocks of its base. What cannot be compared goes over whole, and the board
    /// says what is wrong with it.
    pub(super) fn compare(&mut self, archive: &mut Archive, blocks: &Blocks, end: Instant) {
        let Some(base) = &self.base else { return };
        let left = self.size - self.from;
        let compared = archive.parcel.changes(&self.member, blocks, base.made, left / CHANGES_PART, end);
        let Ok(Some(changes)) = compared else { return };
        self.changes = changes.rest(base.made);
        if let Some((_, bytes)) = self.changes {
            archive.spared += left - bytes;
        }
        let compared = Compared { base: base.layer.clone(), changes };
        archive.compared.insert(self.member.clone(), compared);
    }

    /// Bytes that go over, and those that the board has of the same.
    pub(super) fn bytes(&self) -> (u64, u64) {
        match self.changes {
            Some((place, bytes)) => (bytes, place),
            None => (self.size - self.from, self.from),
        }
    }

    /// Its size, as the board is told.
    pub(super) fn told(&self) -> Value {
        match (self.changes, &self.base) {
            (Some((_, bytes)), Some(base)) => json!({"changes": bytes, "made": base.made}),
            _ => json!(self.size),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_asked_for_where_it_is_small_beside_the_layer() {
        let wanted = |size: u64, from: u64, base: Value| {
            let layer = json!({"from": from, "base": base});
            Wanted::new(&layer, 0, "x", size).needs_list()
        };
        let base = |bytes: u64| json!({"layer": "sha256:0", "bytes": bytes, "made": 0});
        const MIB: u64 = 1024 * 1024;
        for (size, from, base, expected) in [
            (10 * MIB, 0, base(30 * MIB), true),
            // A list of a hundred kilobytes.
            (500_000, 0, base(30 * MIB), false),
            (10 * MIB, 10 * MIB - 500_000, base(30 * MIB), false),
            (20_000, 0, base(MIB), false),
            (10 * MIB, 0, Value::Null, false),
            (10 * MIB, 0, json!({"layer": "sha256:0"}), false),
        ] {
            assert_eq!(wanted(size, from, base.clone()), expected, "{size} {from} {base}");
        }
    }
}
