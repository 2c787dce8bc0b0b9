//! The spool: the directory that stores the layers of a push until all of them have arrived.
//!
//! ```text
//! <root>/var/lib/nodlet/push/         locked by the one running push
//!   <blob>.part                       a partial layer, as stored in the sender's archive
//!   <diff ID>-unpacked.part           a partial layer, if the archive does not name its digest
//!   <diff ID>-<base>.changes.part     pieces that make the layer, each after its length
//!   archives/<number>/                an archive, assembled from documents and layers
//!   redo.json                         see redo.rs
//! ```
//!
//! Partial files remain for the next push, which removes those of layers that it does not send. They are not
//! synced: what a power cut leaves of one is continued, or rejected by its digest.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nodlet_core::sorted::SortedSet;
use nodlet_kernel::durable::discard;
use nodlet_kernel::own_file;
use nodlet_rootfs::changes::PIECE_MAX;
use nodlet_rootfs::parcel::{self, Part};
use nodlet_rootfs::{BASES_MAX, Digest, Image, Source, Store};

use super::base::Base;
use super::end::{End, refused};
use super::missing::{Missing, Transfer};
use super::offer::Offer;
use crate::error::VerbError;
use crate::output;
use crate::verbs::push::frames::invalid;

/// One divided by this is the part of the free space that no push may take.
const RESERVED: u64 = 16;

const PART: &str = ".part";

/// The directory of an archive in which the loader looks for changed blocks.
const CHANGES: &str = "changes";

/// The locked spool. Only one push at a time has it.
pub(super) struct Spool {
    pub(super) directory: PathBuf,
    _lock: Flock<File>,
}

impl Spool {
    pub(super) fn open(directory: &Path) -> Result<Spool, End> {
        let failed = refused("make the spool");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(&failed)?;
        let lock = Flock::lock(File::open(directory).map_err(&failed)?, FlockArg::LockExclusiveNonblock);
        let lock = lock.map_err(|_| End::Busy)?;
        Ok(Spool { directory: directory.to_owned(), _lock: lock })
    }

    pub(super) fn part(&self, part: &Part) -> PathBuf {
        self.directory.join(name_of(part))
    }

    /// Returns how many bytes of a layer the complete pieces in the spool make, and the length of these
    /// pieces.
    pub(super) fn rebuilt(&self, part: &Part, base: &Base) -> (u64, u64) {
        let path = self.directory.join(name_of_changes(part, base));
        let Ok(file) = own_file::open(&path) else { return (0, 0) };
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let (mut rebuilt, mut end) = (0u64, 0);
        let mut head = [0; 12];
        while file.read_exact_at(&mut head, end).is_ok() {
            let (size, makes) = head.split_at(size_of::<u32>());
            let size = u32::from_be_bytes(size.try_into().expect("four bytes"));
            let makes = u64::from_be_bytes(makes.try_into().expect("eight bytes"));
            let next = end + size_of::<u32>() as u64 + u64::from(size);
            if next > length || size as usize > PIECE_MAX || makes == 0 {
                break;
            }
            (rebuilt, end) = (rebuilt.saturating_add(makes), next);
        }
        (rebuilt, end)
    }

    /// Opens the file for the pieces that make a layer from its base. Keeps the pieces that are already
    /// there, unless `rebuilt` is 0. Removes the partial file of the whole layer.
    pub(super) fn changes(&self, missing: &Missing, rebuilt: u64) -> Result<File, End> {
        let failed = refused("keep the changed blocks of a layer");
        let Some(base) = &missing.base else { return Err(invalid("changed blocks without a base").into()) };
        let length = if rebuilt > 0 { self.rebuilt(&missing.part, base).1 } else { 0 };
        discard(&self.part(&missing.part)).map_err(&failed)?;
        let path = self.directory.join(name_of_changes(&missing.part, base));
        let file = own_file::open_with(&path, File::options().create(true).append(true)).map_err(&failed)?;
        file.set_len(length).map_err(&failed)?;
        Ok(file)
    }

    /// Removes the changed blocks of a layer that is sent whole.
    pub(super) fn forget_changes(&self, missing: &Missing) -> io::Result<()> {
        match &missing.base {
            Some(base) => discard(&self.directory.join(name_of_changes(&missing.part, base))),
            None => Ok(()),
        }
    }

    fn tree(&self) -> PathBuf {
        self.directory.join("archives")
    }

    /// The layers that the store lacks, each once. Removes the partial files of all other layers.
    pub(super) fn missing(&self, offer: &Offer, store: &Store) -> Result<Vec<Missing>, End> {
        let mut missing: Vec<Missing> = Vec::new();
        let mut seen: SortedSet<Digest> = SortedSet::new();
        let here: Vec<Image> = if offer.blocks && !offer.dry_run {
            store.images().map_err(|error| VerbError::chain(&error))?
        } else {
            Vec::new()
        };
        for (archive, images) in offer.archives.iter().map(|archive| &archive.images).enumerate() {
            let mut bases = 0;
            for (image, part) in
                images.iter().flat_map(|image| image.layers.iter().map(move |part| (image, part)))
            {
                if store.layer_path(&part.diff_id).is_some() || !seen.insert(part.diff_id) {
                    continue;
                }
                let from = own_file::metadata(&self.part(part)).map_or(0, |metadata| metadata.len());
                let base = Base::find(store, &here, image, part).filter(|_| bases < BASES_MAX);
                bases += usize::from(base.is_some());
                let rebuilt = base.as_ref().map_or(0, |base| self.rebuilt(part, base).0);
                let transfer = Transfer::Whole(0);
                missing.push(Missing { archive, part: part.clone(), from, base, rebuilt, transfer });
            }
        }
        if !offer.dry_run {
            let changes = |missing: &Missing| Some(name_of_changes(&missing.part, missing.base.as_ref()?));
            let keep: SortedSet<String> = missing
                .iter()
                .flat_map(|missing| [Some(name_of(&missing.part)), changes(missing)])
                .flatten()
                .collect();
            self.clear()?;
            self.forget(|name| !keep.contains(name))?;
        }
        Ok(missing)
    }

    pub(super) fn forget(&self, which: impl Fn(&str) -> bool) -> Result<(), End> {
        let failed = refused("remove an earlier push");
        for entry in fs::read_dir(&self.directory).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            if entry.file_name().to_str().is_none_or(&which) {
                fs::remove_file(entry.path()).map_err(&failed)?;
            }
        }
        Ok(())
    }

    /// Checks whether there is space for this many bytes.
    pub(super) fn room_for(&self, bytes: u64) -> Result<(), End> {
        let stat = nix::sys::statvfs::statvfs(&self.directory)
            .map_err(|errno| refused("measure the free space")(errno.into()))?;
        let free = stat.blocks_available().saturating_mul(stat.fragment_size() as u64);
        let free = free - free / RESERVED;
        if bytes > free {
            Err(End::Refused(format!(
                "not enough space on the board's disk: the layers need {}, {} are free; remove images with nodlet image rm",
                output::size(bytes),
                output::size(free)
            )))
        } else {
            Ok(())
        }
    }

    /// Assembles the archives from documents and layers, as one directory each.
    pub(super) fn lay_out(&self, offer: &Offer, missing: &[Missing]) -> Result<Vec<Source>, End> {
        let failed = refused("assemble an archive");
        let mut sources = Vec::new();
        for (number, archive) in offer.archives.iter().enumerate() {
            let directory = self.tree().join(number.to_string());
            let place = |member: &str| -> Result<PathBuf, End> {
                let path = directory
                    .join(parcel::member_path(member).ok_or_else(|| invalid("a layer has an invalid name"))?);
                if let Some(parent) = path.parent() {
                    fs::create_dir_all(parent).map_err(&failed)?;
                }
                Ok(path)
            };
            fs::create_dir_all(&directory).map_err(&failed)?;
            for (name, bytes) in &archive.documents {
                own_file::write(&place(name)?, bytes).map_err(&failed)?;
            }
            let mut bases = BTreeMap::new();
            for missing in missing.iter().filter(|missing| missing.archive == number) {
                let part = &missing.part;
                let (from, to) = match (missing.transfer, &missing.base) {
                    (Transfer::Changes { .. }, Some(base)) => {
                        bases.insert(part.diff_id, base.file.try_clone().map_err(&failed)?);
                        let member = format!("{CHANGES}/{}", part.diff_id.hex());
                        (self.directory.join(name_of_changes(part, base)), place(&member)?)
                    }
                    _ => (self.part(part), place(&part.member)?),
                };
                fs::rename(from, to).map_err(&failed)?;
            }
            sources.push(Source { archive: File::open(&directory).map_err(&failed)?, bases });
        }
        Ok(sources)
    }

    /// Removes the assembled archives.
    pub(super) fn clear(&self) -> Result<(), End> {
        own_file::if_exists(fs::remove_dir_all(self.tree())).map_err(refused("remove an earlier push"))?;
        Ok(())
    }
}

/// The file name of a layer: the digest of the sent blob if the archive names it, else the diff ID.
fn name_of(part: &Part) -> String {
    match &part.blob {
        Some(blob) => format!("{}{PART}", blob.hex()),
        None => format!("{}-unpacked{PART}", part.diff_id.hex()),
    }
}

/// The file name of the pieces that make a layer from this base.
fn name_of_changes(part: &Part, base: &Base) -> String {
    format!("{}-{}.changes{PART}", part.diff_id.hex(), base.layer.hex())
}
