//! Of one name there is one: which file's word counts.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::{Refusal, Sources, Wanted, WantedByName};
use crate::manifest::{Definition, Kind};
use crate::spec::Uid;

/// What is defined besides pods, by kind, namespace and name, with the file of each.
pub type DefinitionsByName = BTreeMap<(Kind, Rc<str>, Rc<str>), (Rc<Definition>, PathBuf)>;

impl Sources {
    /// Every pod that is wanted, by namespace and name: a later directory wins
    /// over an earlier one; within one, the first file in the order of names.
    pub fn wanted(&self) -> (WantedByName, Vec<Refusal>) {
        let mut wanted: BTreeMap<_, Rc<Wanted>> = BTreeMap::new();
        let mut refusals = Vec::new();
        for directory in &self.directories {
            let mut here: BTreeMap<_, Rc<Wanted>> = BTreeMap::new();
            refusals.extend(directory.unread.clone());
            for file in directory.files.values() {
                refusals.extend(file.refusal.clone());
                for pod in &file.wanted {
                    let name = (pod.pod.namespace.clone(), pod.pod.name.clone());
                    if let Some(first) = here.get(&name) {
                        refusals.push(Refusal {
                            source: pod.source.clone(),
                            pod: Some((name.0.to_string(), name.1.to_string())),
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
            wanted.append(&mut here);
        }
        refusals.extend(self.refuse_repeated_uids(&mut wanted));
        (wanted, refusals)
    }

    /// All that is defined besides pods: a later directory wins over an earlier one; within one,
    /// the first file in the order of names.
    pub fn definitions(&self) -> (DefinitionsByName, Vec<Refusal>) {
        let mut definitions = DefinitionsByName::new();
        let mut refusals = Vec::new();
        for directory in &self.directories {
            let mut here = DefinitionsByName::new();
            for (file, read) in &directory.files {
                let source = directory.path.join(file);
                for definition in &read.definitions {
                    let key = definition.key();
                    if let Some((_, first)) = here.get(&key) {
                        let message = format!(
                            "{}: {} {}{}{} is ignored: {} has one of that name already",
                            source.display(),
                            key.0.as_str().to_lowercase(),
                            key.1,
                            if key.1.is_empty() { "" } else { "/" },
                            key.2,
                            first.display()
                        );
                        refusals.push(Refusal { source: source.clone(), pod: None, message });
                    } else {
                        here.insert(key, (definition.clone(), source.clone()));
                    }
                }
            }
            definitions.append(&mut here);
        }
        (definitions, refusals)
    }

    /// A uid is one pod: of several that give themselves the same one, as copies of a file that
    /// somebody got from a server do, the first is taken, in the order of directories and files.
    fn refuse_repeated_uids(&self, wanted: &mut WantedByName) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        let mut taken: BTreeMap<&Uid, &Wanted> = BTreeMap::new();
        let files = self.directories.iter().flat_map(|directory| directory.files.values());
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
                pod: Some((name.0.to_string(), name.1.to_string())),
                message: format!(
                    "{}: The Pod \"{}\" is invalid: metadata.uid: Duplicate value: \"{}\": the pod {}/{} of {} has it already: leave the field out",
                    pod.source.display(), name.1, pod.pod.uid, first.pod.namespace, first.pod.name, first.source.display()
                ),
            });
            wanted.remove(&name);
        }
        refusals
    }

    /// The file that says what the pod of a name is, and not `source`, whether that says it or will.
    pub fn overriding(&self, source: &Path, namespace: &str, name: &str) -> Option<PathBuf> {
        let (wanted, _) = self.wanted();
        let winner = &wanted.get(&(Rc::from(namespace), Rc::from(name)))?.source;
        let rank =
            |file: &Path| self.directories.iter().position(|directory| file.starts_with(&directory.path));
        let wins = match rank(winner).cmp(&rank(source)) {
            Ordering::Greater => true,
            Ordering::Equal => winner.file_name() < source.file_name(),
            Ordering::Less => false,
        };
        wins.then(|| winner.clone())
    }
}
