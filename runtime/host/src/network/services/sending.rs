//! A whole table on its way to the kernel, in one batch or more. If it takes more, it grows under a second name without a
//! hook, and the last batch gives it the hooks and deletes the one that was in effect.

use std::io;

use nodlet_services::data_path::{DataPath, PortPath};

use super::rules::{self, Abilities, Frame};
use super::{Changes, State};
use crate::netlink::nftables::Nft;
use crate::network::conntrack::Reached;

/// The bytes of a batch after which another one begins, if all Services do not fit into one. The kernel needs several
/// times as much while it handles a batch, and nobody else runs meanwhile.
pub(super) const BATCH_BYTES: usize = 128 << 10;

/// What the kernel is to have, and what it has of that.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) path: DataPath,
    /// What was sent.
    pub(super) state: State,
    /// Where packets of UDP may go as soon as all was sent.
    pub(super) reached: Reached,
    pub(super) changes: Changes,
    /// How many ports were sent.
    sent: usize,
    is_large: bool,
    /// Which of the names the table has.
    target: usize,
    /// Whether there is a table of the other name.
    has_other: bool,
}

impl Sending {
    /// Finds out which name the table is to have.
    ///
    /// # Errors
    /// The kernel cannot be asked.
    pub(super) fn begin(
        socket: &mut Nft,
        names: &[String; 2],
        path: &DataPath,
        frame: Frame,
        reached: Reached,
    ) -> io::Result<Sending> {
        let is_large = is_large(path.ports.iter());
        let active = active(socket, names)?;
        let target = match active {
            Some(active) if is_large => 1 - active,
            active => active.unwrap_or_default(),
        };
        let has_other = socket.has_chain(&names[1 - target], rules::SERVICES_CHAIN)?;
        let (path, state) = (path.clone(), State { frame, ..State::default() });
        let changes = Changes { is_whole: true, has_more: true, ..Changes::default() };
        Ok(Sending { path, state, reached, changes, sent: 0, is_large, target, has_other })
    }

    /// Sends one batch.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(super) fn step(
        &mut self,
        socket: &mut Nft,
        names: &[String; 2],
        abilities: Abilities,
    ) -> io::Result<()> {
        let Sending { path, state, changes, sent, .. } = self;
        let bytes = socket.change(&names[self.target], |batch| {
            if changes.batches == 0 {
                batch.add_table();
                batch.delete_table();
                batch.add_table();
                state.frame.add(batch, abilities);
            }
            while let Some(port) = path.ports.get(*sent)
                && (!self.is_large || batch.length() < BATCH_BYTES)
            {
                state.add(batch, abilities, port);
                *sent += 1;
            }
            changes.has_more = *sent < path.ports.len();
            if !changes.has_more {
                state.frame.add_hooks(batch);
                if self.has_other {
                    batch.delete_other_table(&names[1 - self.target]);
                }
            }
        })?;
        changes.bytes += bytes;
        changes.batches += 1;
        Ok(())
    }
}

/// Which of the names is that of the table whose rules are in effect.
pub(super) fn active(socket: &mut Nft, names: &[String; 2]) -> io::Result<Option<usize>> {
    for (number, name) in names.iter().enumerate() {
        if socket.has_chain(name, rules::PREROUTING_CHAIN)? {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// Whether these ports do not fit into one batch.
pub(super) fn is_large<'a>(ports: impl Iterator<Item = &'a PortPath>) -> bool {
    ports.map(weight).sum::<usize>() > BATCH_BYTES
}

/// About how many bytes a port takes in a batch.
fn weight(port: &PortPath) -> usize {
    let each = if port.affinity_seconds.is_some() { 700 } else { 80 };
    800 + (port.everywhere.len() + port.here.len()) * each
}
