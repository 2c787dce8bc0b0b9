//! The layers that the board lacks.

use std::io;

use nodlet_rootfs::parcel::Part;
use serde_json::{Value, json};

use super::base::Base;
use crate::verbs::push::frames::invalid;

/// A layer that must be sent.
pub(super) struct Missing {
    pub(super) archive: usize,
    pub(super) part: Part,
    /// Bytes of the layer that the spool has.
    pub(super) from: u64,
    /// The layer's base, if any; `rebuilt` is how many bytes of the layer the pieces in the spool make.
    pub(super) base: Option<Base>,
    pub(super) rebuilt: u64,
    pub(super) transfer: Transfer,
}

/// How a layer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    /// Whole, as stored in the sender's archive: its total bytes.
    Whole(u64),
    /// As pieces that make the layer from its base: the bytes of the pieces that follow, after pieces that
    /// already make `rebuilt` bytes of the layer.
    Changes { bytes: u64, rebuilt: u64 },
}

impl Missing {
    /// The description of the missing layer that is sent to the sender.
    pub(super) fn described(&self) -> Value {
        let mut described = json!({"archive": self.archive, "member": self.part.member, "from": self.from});
        if let Some(base) = &self.base {
            let layer = base.layer.to_string();
            described["base"] = json!({"layer": layer, "bytes": base.bytes, "made": self.rebuilt});
        }
        described
    }

    /// Bytes of the layer that are still to be received.
    pub(super) fn remaining(&self) -> u64 {
        match self.transfer {
            Transfer::Whole(size) => size.saturating_sub(self.from),
            Transfer::Changes { bytes, .. } => bytes,
        }
    }
}

/// Records how each layer will be sent, from the sender's message.
pub(super) fn record_sizes(missing: &mut [Missing], message: &Value) -> io::Result<()> {
    let sizes = message["sizes"].as_array().map_or(&[][..], Vec::as_slice);
    if sizes.len() != missing.len() {
        return Err(invalid("the sizes do not match the requested layers"));
    }
    for (missing, size) in missing.iter_mut().zip(sizes) {
        missing.transfer = match (size.as_u64(), size["changes"].as_u64(), size["made"].as_u64()) {
            (Some(size), ..) => Transfer::Whole(size),
            (_, Some(bytes), Some(rebuilt))
                if missing.base.is_some() && (rebuilt == 0 || rebuilt == missing.rebuilt) =>
            {
                Transfer::Changes { bytes, rebuilt }
            }
            _ => return Err(invalid("an invalid size")),
        };
    }
    Ok(())
}
