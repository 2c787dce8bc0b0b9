//! The sources of desired objects, and the precedence among objects of one name.
//!
//! A source is a directory of manifests. The agent's `sources.rs` reads the files and passes their contents:
//! this module opens no file. A file that becomes invalid disturbs no pod, because its last valid contents
//! remain until it is corrected or removed.

mod owner;

use std::cmp::Ordering;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::set_aside::{Handled, hash};
use super::wanted::shorten;
use super::{Refusal, Wanted, WantedByName};
use nodlet_core::sorted::SortedMap;
use nodlet_core::spec::{Pod, Uid};
use nodlet_kube::kinds::{self, Kind};
use nodlet_kube::manifest::{self, Definition, ManifestError, Validation};
pub use owner::{Owner, SourceDirectory};

/// The maximum size of a manifest in bytes: the same as for requests to the API, and more than a cluster
/// stores of an object. A kubelet reads ten times as much, on a machine with memory for it.
pub const MAX_BYTES: u64 = 1 << 20;

/// The maximum number of files of one source, the first by name; the log has the number of the others.
pub const MAX_FILES: usize = 1024;

/// The quota of all files together, which suffices for the pods of a node with several times the manifests
/// that people write. Objects beyond it are rejected by name, and read once the quota allows it.
const QUOTA: Size = Size { pods: 1024, bytes: 4 << 20 };

/// Definitions by kind, namespace and name, with the file of each.
pub(crate) type DefinitionsByName = SortedMap<(Kind, Rc<str>, Rc<str>), (Rc<Definition>, PathBuf)>;

/// All sources, lowest precedence first, and the quota that their objects share.
#[derive(Debug, Default)]
pub struct Sources {
    list: Vec<Source>,
    /// Whether a file has become smaller or was removed since [`Sources::take_freed_room`].
    is_room_freed: bool,
}

/// A source with its files.
#[derive(Debug)]
struct Source {
    directory: SourceDirectory,
    files: SortedMap<OsString, SourceFile>,
    /// The reason why the directory cannot be read; `files` is then its last known content.
    unread: Option<Refusal>,
}

/// The last valid contents of one file, and the rejection of its current contents.
#[derive(Debug, Default)]
pub struct SourceFile {
    pub(crate) wanted: Vec<Rc<Wanted>>,
    pub(crate) definitions: Vec<Rc<Definition>>,
    refusal: Option<Refusal>,
    /// Whether its current contents exceed the quota, beside those of the other files.
    lacks_room: bool,
    /// The number of its last valid text.
    content: u64,
}

/// A share of the quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// The number of objects.
    pub(crate) pods: usize,
    /// The size of the objects as JSON.
    pub(crate) bytes: usize,
}

impl Sources {
    /// Creates these sources, lowest precedence first, without any files.
    pub fn new(directories: Vec<SourceDirectory>) -> Sources {
        let source = |directory| Source { directory, files: SortedMap::new(), unread: None };
        Sources { list: directories.into_iter().map(source).collect(), is_room_freed: false }
    }

    /// The source that has a file.
    fn source(&self, file: &Path) -> Option<&Source> {
        self.list.iter().find(|source| file.parent() == Some(&source.directory.path))
    }

    /// The directory of the source that has a file.
    pub(crate) fn directory_of(&self, file: &Path) -> Option<&SourceDirectory> {
        self.source(file).map(|source| &source.directory)
    }

    /// The owner of a file.
    pub fn owner_of(&self, file: &Path) -> Option<Owner> {
        self.directory_of(file).map(|directory| directory.owner)
    }

    /// The path of the object of a client, whose file has this name.
    pub(crate) fn applied_path(&self, file: &str) -> PathBuf {
        let mut all = self.list.iter().map(|source| &source.directory);
        let directory = all.find(|directory| directory.owner == Owner::Client);
        directory.map(|directory| directory.path.join(file)).unwrap_or_default()
    }

    /// The quota that all files but this one use.
    pub(crate) fn used_beside(&self, path: &Path) -> Size {
        let known = self.file(path).map(SourceFile::size).unwrap_or_default();
        let all = self.list.iter().flat_map(|source| source.files.values()).map(SourceFile::size);
        let (pods, bytes) = all.fold((0, 0), |(pods, bytes), one| (pods + one.pods, bytes + one.bytes));
        Size { pods: pods - known.pods, bytes: bytes - known.bytes }
    }

    /// Records the new, valid contents of a file.
    ///
    /// # Errors
    /// The contents exceed the quota, beside the other files. Then the file keeps its last contents.
    pub fn put(&mut self, path: &Path, new: SourceFile) -> Result<(), String> {
        if !self.used_beside(path).has_room_for(new.size()) {
            if let Some((source, name)) = self.source_of(path) {
                source.files.entry(name.to_owned()).or_default().lacks_room = true;
            }
            return Err(no_room());
        }
        self.put_written(path, new);
        Ok(())
    }

    /// Whether files must be read again because they exceed the quota, and other files have become smaller or were
    /// removed since the last call.
    pub fn take_freed_room(&mut self) -> bool {
        std::mem::take(&mut self.is_room_freed)
            && self.list.iter().any(|source| source.files.values().any(|file| file.lacks_room))
    }

    /// Records the contents of a file that the agent has written, whose share of the quota was checked before.
    pub(crate) fn put_written(&mut self, path: &Path, new: SourceFile) {
        if let Some((source, name)) = self.source_of(path) {
            let size = new.size();
            let before =
                source.files.insert(name.to_owned(), new).map(|file| file.size()).unwrap_or_default();
            self.is_room_freed |= before.pods > size.pods || before.bytes > size.bytes;
        }
    }

    /// Records that a file is gone.
    pub fn remove(&mut self, path: &Path) {
        if let Some((source, name)) = self.source_of(path) {
            self.is_room_freed |= source.files.remove(name).is_some();
        }
    }

    /// The source that a file is in, and the name of the file.
    fn source_of<'a>(&mut self, path: &'a Path) -> Option<(&mut Source, &'a OsStr)> {
        let source = self.list.iter_mut().find(|source| path.parent() == Some(&source.directory.path))?;
        Some((source, path.file_name()?))
    }

    /// The last contents of a file.
    fn file(&self, path: &Path) -> Option<&SourceFile> {
        self.source(path)?.files.get(path.file_name()?)
    }

    /// Whether a file has the manifests of other pods than that with this UID, and not the manifest of that pod.
    pub fn is_of_others(&self, path: &Path, uid: &Uid) -> bool {
        let pods = self.file(path).map_or(&[][..], |file| &file.wanted);
        !pods.is_empty() && pods.iter().all(|other| other.pod.uid != *uid)
    }

    /// The warnings about the contents of a file.
    pub fn warnings(&self, path: &Path) -> impl Iterator<Item = &String> {
        let file = self.file(path);
        let of_pods = file.into_iter().flat_map(|file| &file.wanted).flat_map(|wanted| &wanted.warnings);
        let of_others = file.into_iter().flat_map(|file| &file.definitions).flat_map(|other| &other.warnings);
        of_pods.chain(of_others)
    }

    /// Records that a file is invalid because of `message`: it keeps its last contents. Returns `None` if
    /// that was the reason before.
    pub fn refuse(&mut self, path: &Path, message: String) -> Option<&Refusal> {
        let (source, name) = self.source_of(path)?;
        let file = source.files.entry(name.to_owned()).or_default();
        let object = file.object().or_else(|| {
            let (kind, namespace, name) = kinds::definition_of_file(name.to_str()?)?;
            Some((kind, namespace.into(), name.into()))
        });
        let refusal = Refusal { source: path.to_owned(), object, message: shorten(message) };
        if file.refusal.as_ref() == Some(&refusal) {
            return None;
        }
        Some(file.refusal.insert(refusal))
    }

    /// Records that a source cannot be read because of `message`, or can be read again. Its objects stay as they
    /// are. Returns `None` if the state has not changed.
    pub fn set_unreadable(&mut self, source: usize, message: Option<String>) -> Option<&Refusal> {
        let Source { directory, unread, .. } = &mut self.list[source];
        let refusal =
            message.map(|message| Refusal { source: directory.path.clone(), object: None, message });
        if *unread == refusal {
            return None;
        }
        *unread = refusal;
        unread.as_ref()
    }

    /// All desired pods, by namespace and name: a later directory overrides an earlier one; within one
    /// directory, the first file in the order of names counts.
    pub fn wanted(&self) -> (WantedByName, Vec<Refusal>) {
        let mut wanted: SortedMap<_, Rc<Wanted>> = SortedMap::new();
        let mut refusals = Vec::new();
        for source in &self.list {
            let mut here: SortedMap<_, Rc<Wanted>> = SortedMap::new();
            refusals.extend(source.unread.clone());
            for file in source.files.values() {
                refusals.extend(file.refusal.clone());
                for pod in &file.wanted {
                    let name = (pod.pod.namespace.clone(), pod.pod.name.clone());
                    if let Some(first) = here.get(&name) {
                        refusals.push(Refusal {
                            source: pod.source.clone(),
                            object: Some((Kind::Pod, name.0.clone(), name.1.clone())),
                            message: format!(
                                "Error validating pod {}_{} from file due to duplicate pod name \"{}\", ignoring {}: {} has it already",
                                name.1, name.0, name.1, pod.source.display(), first.source.display()
                            ),
                        });
                    } else {
                        here.insert(name, pod.clone());
                    }
                }
            }
            wanted.extend(here);
        }
        refusals.extend(self.refuse_repeated_uids(&mut wanted));
        (wanted, refusals)
    }

    /// All definitions: a later directory overrides an earlier one; within one directory, the first file in
    /// the order of names counts.
    pub fn definitions(&self) -> (DefinitionsByName, Vec<Refusal>) {
        let mut definitions = DefinitionsByName::new();
        let mut refusals = Vec::new();
        for source in &self.list {
            let mut here = DefinitionsByName::new();
            for (file, read) in &source.files {
                let path = source.directory.path.join(file);
                for definition in &read.definitions {
                    let key = definition.key();
                    if let Some((_, first)) = here.get(&key) {
                        let message = format!(
                            "{}: {} {}{}{} is ignored: {} already defines it",
                            path.display(),
                            key.0.as_str().to_ascii_lowercase(),
                            key.1,
                            if key.1.is_empty() { "" } else { "/" },
                            key.2,
                            first.display()
                        );
                        refusals.push(Refusal { source: path.clone(), object: Some(key), message });
                    } else {
                        here.insert(key, (definition.clone(), path.clone()));
                    }
                }
            }
            definitions.extend(here);
        }
        (definitions, refusals)
    }

    /// Rejects pods with the UID of another pod, such as copies of a file that was downloaded from a server:
    /// the first one in the order of directories and files counts.
    fn refuse_repeated_uids(&self, wanted: &mut WantedByName) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        let mut taken: SortedMap<&Uid, &Wanted> = SortedMap::new();
        let files = self.list.iter().flat_map(|source| source.files.values());
        for pod in files.flat_map(|file| &file.wanted) {
            let name = (pod.pod.namespace.clone(), pod.pod.name.clone());
            if !wanted.get(&name).is_some_and(|winner| Rc::ptr_eq(winner, pod)) {
                continue;
            }
            let Some(first) = taken.get(&pod.pod.uid) else {
                taken.insert(&pod.pod.uid, pod);
                continue;
            };
            refusals.push(Refusal {
                source: pod.source.clone(),
                object: Some((Kind::Pod, name.0.clone(), name.1.clone())),
                message: format!(
                    "{}: The Pod \"{}\" is invalid: metadata.uid: Duplicate value: \"{}\": the pod {}/{} of {} has this uid already: remove the field",
                    pod.source.display(), name.1, pod.pod.uid, first.pod.namespace, first.pod.name, first.source.display()
                ),
            });
            wanted.remove(&name);
        }
        refusals
    }

    /// The file whose pod of this name overrides the pod of `source`, which may not be written yet.
    pub(crate) fn overriding(&self, source: &Path, namespace: &str, name: &str) -> Option<PathBuf> {
        let (wanted, _) = self.wanted();
        let winner = &wanted.get(&(Rc::from(namespace), Rc::from(name)))?.source;
        let rank = |file: &Path| self.list.iter().position(|other| file.starts_with(&other.directory.path));
        let wins = match rank(winner).cmp(&rank(source)) {
            Ordering::Greater => true,
            Ordering::Equal => winner.file_name() < source.file_name(),
            Ordering::Less => false,
        };
        wins.then(|| winner.clone())
    }

    /// A file with its last valid text, as the agent marks it while it handles the file's objects.
    pub fn handled(&self, file: &Path) -> Option<Handled> {
        Some(Handled { object: Handled::object_of(file), content: self.file(file)?.content })
    }

    /// Checks that the quota suffices for an object of `bytes` in the file `path`, which has `text` bytes.
    ///
    /// # Errors
    /// The file would not be read, because existing files use up the quota.
    pub fn check_room(&self, path: &Path, bytes: usize, text: usize) -> Result<(), String> {
        if text as u64 > MAX_BYTES {
            return Err("its manifest is larger than 1 MiB".to_owned());
        }
        let is_full = |source: &Source| source.files.len() >= MAX_FILES;
        if self.file(path).is_none() && self.source(path).is_some_and(is_full) {
            return Err(format!(
                "quota exceeded: a directory can have at most {MAX_FILES} manifests; delete some"
            ));
        }
        if !self.used_beside(path).has_room_for(Size { pods: 1, bytes }) {
            return Err(format!("{}; delete some", no_room()));
        }
        Ok(())
    }

    /// Whether `source` is an existing file that cannot be read or parsed, so that its previous objects
    /// remain.
    pub fn is_refused(&self, source: &Path) -> bool {
        let is_empty = |file: &SourceFile| file.wanted.is_empty() && file.definitions.is_empty();
        self.source(source).is_some_and(|list| list.unread.is_some())
            || self.file(source).is_some_and(|file| file.refusal.is_some() && is_empty(file))
    }
}

impl Size {
    /// Whether the quota suffices for this share and another one.
    fn has_room_for(self, new: Size) -> bool {
        self.pods + new.pods <= QUOTA.pods && self.bytes + new.bytes <= QUOTA.bytes
    }
}

fn no_room() -> String {
    let (pods, bytes) = (QUOTA.pods, QUOTA.bytes >> 20);
    format!("quota exceeded: all manifests together can have at most {pods} objects and {bytes} MiB")
}

impl SourceFile {
    /// Reads the contents of a file of this owner on the node of this name.
    ///
    /// # Errors
    /// The contents are invalid.
    pub fn parse(path: &Path, owner: Owner, bytes: &[u8], node: &str) -> Result<SourceFile, ManifestError> {
        let mut contents = manifest::contents(&path.to_string_lossy(), bytes, Validation::Strict, node)?;
        if owner == Owner::Cluster {
            for pod in &mut contents.pods {
                manifest::remove_warnings_of_cluster(&mut pod.warnings);
            }
        }
        let wanted = |manifest| Rc::new(Wanted::new(manifest, path));
        Ok(SourceFile {
            wanted: contents.pods.into_iter().map(wanted).collect(),
            definitions: contents.definitions.into_iter().map(Rc::new).collect(),
            content: hash(bytes),
            ..SourceFile::default()
        })
    }

    /// Its pods.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.wanted.iter().map(|wanted| &*wanted.pod)
    }

    /// The contents of a file with one pod.
    pub(crate) fn of_pod(pod: Rc<Wanted>) -> SourceFile {
        SourceFile { wanted: vec![pod], ..SourceFile::default() }
    }

    /// The same contents, in a file with this text.
    pub(crate) fn with_text(self, text: &[u8]) -> SourceFile {
        SourceFile { content: hash(text), ..self }
    }

    /// The contents of a file with one definition.
    pub(crate) fn of_definition(definition: Definition) -> SourceFile {
        SourceFile { definitions: vec![Rc::new(definition)], ..SourceFile::default() }
    }

    /// Kind, namespace and name of the first of its objects.
    fn object(&self) -> Option<(Kind, Rc<str>, Rc<str>)> {
        let of_pod = |wanted: &Rc<Wanted>| (Kind::Pod, wanted.pod.namespace.clone(), wanted.pod.name.clone());
        let definition = || self.definitions.first().map(|definition| definition.key());
        self.wanted.first().map(of_pod).or_else(definition)
    }

    fn size(&self) -> Size {
        let of_pods: usize = self.wanted.iter().map(|wanted| wanted.object.get().len()).sum();
        let of_others: usize = self.definitions.iter().map(|other| other.json.get().len()).sum();
        Size { pods: self.wanted.len() + self.definitions.len(), bytes: of_pods + of_others }
    }
}
