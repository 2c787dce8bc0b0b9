//! The queries by UDP that are being forwarded, in memory that outlives the agent: the next one forwards them again.
//!
//! A query is written here before it is taken out of its socket, and cleared after it was answered. An agent that is
//! killed between leaves it in both, and its client gets two answers, of which it ignores one.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nodlet_services::dns::message::{QUERY, Query};
use nodlet_services::dns::upstream::WAITING;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

/// Queries in the journal: all that can be forwarded at the same time, and the one that may displace another.
const SLOTS: usize = WAITING + 1;

/// Bytes of a slot. The lowest free one is used, so that few pages of memory are.
const SLOT: usize = HEAD + QUERY;

/// Length in bytes of a slot's head: of the query, which is 0 in a free slot; the address that was asked; address and
/// port of the client.
const HEAD: usize = 2 + 16 + 16 + 2;

/// The journal.
pub(super) struct Journal {
    file: File,
    used: RefCell<Vec<bool>>,
}

/// A query of an earlier agent.
pub(super) struct Entry {
    pub(super) slot: usize,
    pub(super) asked: IpAddr,
    pub(super) client: SocketAddr,
    pub(super) query: Vec<u8>,
}

impl Journal {
    /// An empty journal.
    pub(super) fn new() -> io::Result<Journal> {
        let file = File::from(memfd_create(c"nodlet-dns", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.set_len((SLOTS * SLOT) as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok(Journal { file, used: RefCell::new(vec![false; SLOTS]) })
    }

    /// The journal of an earlier agent. Each of its slots is free until [`Self::entries`] was called.
    pub(super) fn resume(file: OwnedFd) -> Journal {
        Journal { file: file.into(), used: RefCell::new(vec![false; SLOTS]) }
    }

    /// Whether a descriptor is that of a journal with this layout.
    pub(super) fn is_one(fd: &OwnedFd) -> bool {
        let size = rustix::fs::fstat(fd).ok().and_then(|stat| usize::try_from(stat.st_size).ok());
        // The kernel may have added others, such as `F_SEAL_EXEC`.
        fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SEALS)) && size == Some(SLOTS * SLOT)
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The queries of an earlier agent, whose slots are in use from now on.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let mut used = self.used.borrow_mut();
        let mut entries = Vec::new();
        let mut bytes = [0; SLOT];
        for (slot, used) in used.iter_mut().enumerate() {
            if self.file.read_exact_at(&mut bytes, offset(slot)).is_ok()
                && let Some((asked, client, query)) = parse(&bytes)
            {
                *used = true;
                entries.push(Entry { slot, asked, client, query });
            }
        }
        entries
    }

    /// Writes the query of a client to the address `asked`. Returns its slot; `None` if all are used.
    pub(super) fn write(&self, asked: IpAddr, client: SocketAddr, query: &Query) -> Option<usize> {
        let mut used = self.used.borrow_mut();
        let slot = used.iter().position(|used| !used)?;
        let query = query.written();
        let length = u16::try_from(query.len()).ok().filter(|_| query.len() <= QUERY)?;
        let octets = |address| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        let (asked, from) = (octets(asked), octets(client.ip()));
        let head = [&length.to_le_bytes()[..], &asked, &from, &client.port().to_le_bytes()];
        // The length comes last: a slot is whole, or free.
        self.file.write_all_at(&[&head[1..].concat(), &query[..]].concat(), offset(slot) + 2).ok()?;
        self.file.write_all_at(head[0], offset(slot)).ok()?;
        used[slot] = true;
        Some(slot)
    }

    /// Frees a slot.
    pub(super) fn clear(&self, slot: usize) {
        if self.file.write_all_at(&[0; 2], offset(slot)).is_ok()
            && let Some(used) = self.used.borrow_mut().get_mut(slot)
        {
            *used = false;
        }
    }
}

/// Nobody can shorten the file under a reader.
const SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW);

fn offset(slot: usize) -> u64 {
    (slot * SLOT) as u64
}

fn parse(bytes: &[u8; SLOT]) -> Option<(IpAddr, SocketAddr, Vec<u8>)> {
    let length = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    let query = bytes.get(HEAD..HEAD + length).filter(|query| !query.is_empty())?;
    let address = |at: usize| {
        let octets: [u8; 16] = bytes[at..at + 16].try_into().ok()?;
        Some(Ipv6Addr::from(octets).to_canonical())
    };
    let port = u16::from_le_bytes([bytes[HEAD - 2], bytes[HEAD - 1]]);
    Some((address(2)?, SocketAddr::new(address(18)?, port), query.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 88, 0, 1));

    /// A query for a name of four labels of this length, 62 of which make one of 253 bytes, with padding of 400 bytes.
    fn query(length: u8) -> Query {
        let label = [&[length][..], &[b'a'; 63][..usize::from(length)]].concat();
        let question = [&label.repeat(4)[..], &[0, 0, 1, 0, 1]].concat();
        let padding = [&[0, 0, 41, 16, 0, 0, 0, 0x80, 0, 1, 148, 0, 12, 1, 144][..], &[0; 400]].concat();
        let bytes = [&[0, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1][..], &question, &padding].concat();
        Query::read(&bytes).unwrap()
    }

    #[test]
    fn what_is_not_cleared_is_found_by_the_next_agent() {
        let journal = Journal::new().unwrap();
        let clients: [SocketAddr; 3] =
            ["10.88.0.5:1000", "[fd01::5]:1001", "10.88.0.6:65535"].map(|a| a.parse().unwrap());
        let slots = clients.map(|client| journal.write(SERVER, client, &query(62)).unwrap());
        assert_eq!(slots, [0, 1, 2]);
        journal.clear(1);
        let next = journal.descriptor().try_clone_to_owned().unwrap();
        assert!(Journal::is_one(&next));
        let next = Journal::resume(next);
        let found = next.entries();
        let shown: Vec<_> =
            found.iter().map(|entry| (entry.slot, entry.asked, entry.client, &*entry.query)).collect();
        let written = query(62).written();
        assert_eq!(shown, [(0, SERVER, clients[0], &*written), (2, SERVER, clients[2], &*written)]);
        assert_eq!(next.write(SERVER, clients[1], &query(1)), Some(1), "the free one");
    }

    #[test]
    fn the_journal_has_a_bound() {
        let journal = Journal::new().unwrap();
        let client: SocketAddr = "10.88.0.5:1000".parse().unwrap();
        assert!((0..SLOTS).all(|_| journal.write(client.ip(), client, &query(1)).is_some()));
        assert_eq!(journal.write(client.ip(), client, &query(1)), None);
        journal.clear(7);
        assert_eq!(journal.write(client.ip(), client, &query(1)), Some(7));
        let more = memfd_create(c"more", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&more, (SLOTS * SLOT) as u64).unwrap();
        assert!(!Journal::is_one(&more), "without seals");
        fcntl_add_seals(&more, SEALS | SealFlags::FUTURE_WRITE).unwrap();
        assert!(Journal::is_one(&more), "with a further seal");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(!Journal::is_one(&file.into()));
    }
}
