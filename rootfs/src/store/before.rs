//! The state of the store before a load, so that the load can be rolled back if it was part of a larger
//! operation that failed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Store;
use super::area::Entry;
use super::directory::lock;
use super::error::StoreError;
use crate::content;
use crate::reference::Digest;

/// The index entries, before a load, of the images to be loaded and of the images that had their names.
/// Images without an entry did not exist.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StoreSnapshot(BTreeMap<Digest, Entry>);

impl Store {
    /// Records the state of these images, each with its names, before they are loaded.
    pub fn before(&self, images: &[(Digest, Vec<String>)]) -> Result<StoreSnapshot, StoreError> {
        let mut index = self.writable.index_or_records()?.0;
        index.images.retain(|id, entry| {
            images
                .iter()
                .any(|(image, names)| image == id || names.iter().any(|name| entry.names.contains(name)))
        });
        Ok(StoreSnapshot(index.images))
    }

    /// Rolls back a load of these images, each with its names: names refer to their previous images again,
    /// and new images are removed. Returns whether anything changed. Repeating it has no effect.
    ///
    /// Leases are ignored: a running pod has its layers open, and the caller also rolls back the pods for
    /// which the load was made. If somebody has meanwhile given a name to another image, the name stays
    /// there; if somebody has given an image another name, the image stays with that name.
    pub fn take_back(
        &self,
        before: &StoreSnapshot,
        images: &[(Digest, Vec<String>)],
    ) -> Result<bool, StoreError> {
        if !self.writable.directory.is_dir() {
            return Ok(false);
        }
        let _lock = lock(&self.writable.directory)?;
        let mut index = self.writable.index_or_records()?.0;
        let now = index.clone();
        for name in images.iter().flat_map(|(_, names)| names) {
            let mut holders = index.images.iter().filter(|(_, entry)| entry.names.contains(name));
            let holder = holders.next().map(|(id, _)| *id);
            if holder.is_some_and(|id| images.iter().all(|(image, _)| *image != id)) {
                continue;
            }
            if let Some(entry) = holder.and_then(|id| index.images.get_mut(&id)) {
                entry.names.remove(name);
            }
            let mut held = before.0.iter().filter(|(_, entry)| entry.names.contains(name));
            if let Some(entry) = held.next().and_then(|(id, _)| index.images.get_mut(id)) {
                entry.names.insert(name.clone());
            }
        }
        for (id, _) in images {
            match (before.0.get(id), index.images.get_mut(id)) {
                (Some(then), Some(entry)) => entry.repo_digests.clone_from(&then.repo_digests),
                (None, Some(entry)) if entry.names.is_empty() => drop(index.images.remove(id)),
                _ => {}
            }
        }
        if index == now {
            return Ok(false);
        }
        let staged = self.writable.staging().join("index.json");
        content::create_directories(&self.writable.staging())?;
        content::remove(&staged)?;
        content::replace(&staged, &self.writable.index_path(), &self.writable.encode(&index)?)?;
        content::sync_directory(&self.writable.directory)?;
        self.sweep(&index)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Scratch, TestImage, amd64, oci_archive, tar};

    const NAME: &str = "docker.io/library/app:1";

    fn image(text: &str) -> TestImage {
        let layer = |text: &str| tar().file("text", text).finish();
        TestImage::new("app:1", vec![layer("base"), layer(text)])
    }

    fn load(store: &Store, image: TestImage) {
        store.load(&oci_archive(&[image]).finish(), &amd64()).unwrap();
    }

    /// All files of the store, except the staging directory.
    fn files(store: &Store) -> Vec<(String, Vec<u8>)> {
        let mut files = Vec::new();
        for directory in [store.writable.layers(), store.writable.records()] {
            for name in super::super::directory::names_in(&directory).unwrap() {
                files.push((name.clone(), std::fs::read(directory.join(name)).unwrap()));
            }
        }
        files.push(("index".into(), std::fs::read(store.writable.index_path()).unwrap()));
        files
    }

    #[test]
    fn a_load_that_is_undone_restores_the_previous_image() {
        let scratch = Scratch::new();
        let store = Store::open(scratch.path()).unwrap();
        let of = |image: &TestImage| [(image.id(), vec![NAME.to_owned()])];
        let (old, new) = (image("old"), image("new"));
        // Load into an empty store; nothing must be left.
        let before = store.before(&of(&old)).unwrap();
        assert!(!store.take_back(&before, &of(&old)).unwrap(), "nothing was loaded");
        load(&store, image("old"));
        store.lease(&old.id(), "pod", "default/pod").unwrap();
        assert!(store.take_back(&before, &of(&old)).unwrap());
        assert_eq!(store.images().unwrap().len(), 0);
        assert_eq!(files(&store).len(), 1, "the index");
        // Load in place of another image, whose name must be restored.
        load(&store, image("old"));
        let (files_before, before) = (files(&store), store.before(&of(&new)).unwrap());
        load(&store, image("new"));
        assert!(store.take_back(&before, &of(&new)).unwrap());
        assert!(!store.take_back(&before, &of(&new)).unwrap(), "once more");
        assert!(files(&store) == files_before);
        // Load the same image again; it must stay.
        let before = store.before(&of(&old)).unwrap();
        load(&store, image("old"));
        assert!(!store.take_back(&before, &of(&old)).unwrap());
        // The recorded state survives serialisation.
        let text = serde_json::to_string(&before).unwrap();
        assert_eq!(serde_json::from_str::<StoreSnapshot>(&text).unwrap(), before);
    }

    #[test]
    fn taking_back_a_load_keeps_the_changes_of_later_loads() {
        let scratch = Scratch::new();
        let store = Store::open(scratch.path()).unwrap();
        let (old, new, third) = (image("old"), image("new"), image("third"));
        load(&store, image("old"));
        let of_new = [(new.id(), vec![NAME.to_owned()])];
        let before = store.before(&of_new).unwrap();
        load(&store, image("new"));
        load(&store, TestImage { name: Some("kept:1"), ..image("new") });
        load(&store, image("third"));
        assert!(!store.take_back(&before, &of_new).unwrap());
        let named = |image: &TestImage| {
            let images = store.images().unwrap();
            images.iter().find(|found| found.id == image.id()).map(|found| found.names.join(" "))
        };
        assert_eq!(named(&old).as_deref(), Some(""));
        assert_eq!(named(&new).as_deref(), Some("docker.io/library/kept:1"));
        assert_eq!(named(&third).as_deref(), Some(NAME));
    }
}
