//! The sender's decision how to send a layer: whole, or as the changed blocks of a layer that the board has.
//!
//! The list of the board's blocks must be transferred, too, so it is requested only if it is small compared
//! with the layer. The result of a comparison is kept for the next connection, in case this one drops.

use std::time::{Duration, Instant};

use nodlet_rootfs::changes::{Blocks, list_bytes};
use serde_json::{Value, json};

use super::archive::{Archive, Compared};

/// The smallest layer in bytes for which changed blocks are considered.
const LAYER_MIN: u64 = 32 * 1024;

/// The divisors of a layer's bytes that limit the list of blocks and the changed blocks.
const LIST_PART: u64 = 8;
const CHANGES_PART: u64 = 2;

/// How long all comparisons of a push may take together. A board waits longer for a message.
pub(super) const COMPARING: Duration = Duration::from_secs(30);

/// A layer that the board lacks.
pub(super) struct Wanted {
    /// The index of the layer's archive.
    pub(super) archive: usize,
    pub(super) member: String,
    /// Bytes of the layer as stored in the archive; `from` is the number of bytes that the board already has.
    pub(super) size: u64,
    pub(super) from: u64,
    base: Option<Base>,
    /// The position in the sequence of pieces at which the board continues, and the bytes of pieces from
    /// there.
    pub(super) changes: Option<(u64, u64)>,
}

/// The layer from which the board may rebuild the wanted layer.
struct Base {
    layer: String,
    bytes: u64,
    /// Bytes of the wanted layer that the board has already rebuilt.
    rebuilt: u64,
}

impl Wanted {
    /// Reads the board's description of a wanted layer of this many bytes.
    pub(super) fn new(layer: &Value, archive: usize, member: &str, size: u64) -> Wanted {
        let number = |value: &Value| value.as_u64();
        let base = &layer["base"];
        Wanted {
            archive,
            member: member.to_owned(),
            size,
            // The board's partial file may belong to a longer layer.
            from: number(&layer["from"]).filter(|from| *from <= size).unwrap_or(0),
            base: base["layer"].as_str().map(|layer| Base {
                layer: layer.to_owned(),
                bytes: number(&base["bytes"]).unwrap_or(u64::MAX),
                rebuilt: number(&base["made"]).unwrap_or(0),
            }),
            changes: None,
        }
    }

    /// Whether a list of the base's blocks is likely to save more than it costs.
    pub(super) fn needs_list(&self) -> bool {
        let left = self.size - self.from;
        self.changes.is_none()
            && self
                .base
                .as_ref()
                .is_some_and(|base| left >= LAYER_MIN && list_bytes(base.bytes) <= left / LIST_PART)
    }

    /// The most bytes that the list of the base's blocks may have.
    pub(super) fn list_max(&self) -> u64 {
        self.base.as_ref().map_or(0, |base| list_bytes(base.bytes) * 5 + 4096)
    }

    /// Reuses the comparison of an earlier connection.
    pub(super) fn recall(&mut self, archive: &Archive) {
        let Some(base) = &self.base else { return };
        let known = archive.compared.get(&self.member).filter(|compared| compared.base == base.layer);
        self.changes = known.and_then(|compared| compared.changes.rest(base.rebuilt));
    }

    /// Compares the layer with the blocks of its base. A layer that cannot be compared is sent whole, and the
    /// board reports what is wrong with it.
    pub(super) fn compare(&mut self, archive: &mut Archive, blocks: &Blocks, end: Instant) {
        let Some(base) = &self.base else { return };
        let left = self.size - self.from;
        let compared = archive.parcel.changes(&self.member, blocks, base.rebuilt, left / CHANGES_PART, end);
        let Ok(Some(changes)) = compared else { return };
        self.changes = changes.rest(base.rebuilt);
        if let Some((_, bytes)) = self.changes {
            archive.spared += left - bytes;
        }
        let compared = Compared { base: base.layer.clone(), changes };
        archive.compared.insert(self.member.clone(), compared);
    }

    /// The bytes to send, and the bytes that the board already has of the same.
    pub(super) fn bytes(&self) -> (u64, u64) {
        match self.changes {
            Some((place, bytes)) => (bytes, place),
            None => (self.size - self.from, self.from),
        }
    }

    /// The layer's size in the form in which it is sent to the board.
    pub(super) fn announced(&self) -> Value {
        match (self.changes, &self.base) {
            (Some((_, bytes)), Some(base)) => json!({"changes": bytes, "made": base.rebuilt}),
            _ => json!(self.size),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_list_is_requested_only_if_it_is_small_compared_with_the_layer() {
        let wanted = |size: u64, from: u64, base: Value| {
            let layer = json!({"from": from, "base": base});
            Wanted::new(&layer, 0, "x", size).needs_list()
        };
        let base = |bytes: u64| json!({"layer": "sha256:0", "bytes": bytes, "made": 0});
        const MIB: u64 = 1024 * 1024;
        for (size, from, base, expected) in [
            (10 * MIB, 0, base(30 * MIB), true),
            // The list would have a hundred kilobytes.
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
