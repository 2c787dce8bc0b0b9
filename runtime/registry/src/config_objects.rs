//! The ConfigMaps and Secrets that pods refer to, and whether a change of objects concerns a pod.

use std::cell::OnceCell;
use std::rc::Rc;

use super::{DefinitionName, Registry};
use nodlet_core::spec::Pod;
use nodlet_core::spec::reference::{ConfigKind, ObjectReference};
use nodlet_kube::kinds::Kind;
use nodlet_kube::manifest::Definition;

pub use nodlet_kube::manifest::ConfigData;

/// The ConfigMaps and Secrets that a pod refers to, as they were defined at one time. Each is decoded at most once.
#[derive(Debug, Default)]
pub struct ConfigObjects(Vec<(Rc<Definition>, OnceCell<Rc<ConfigData>>)>);

impl ConfigObjects {
    /// The data of an object; `None` if there is no such object.
    pub fn get(&self, object: &ObjectReference) -> Option<Rc<ConfigData>> {
        let kind = kind_of(object.kind);
        let mut all = self.0.iter();
        let (definition, data) = all.find(|(known, _)| known.kind == kind && *known.name == *object.name)?;
        Some(data.get_or_init(|| Rc::new(ConfigData::of(definition))).clone())
    }
}

impl FromIterator<Rc<Definition>> for ConfigObjects {
    fn from_iter<T: IntoIterator<Item = Rc<Definition>>>(definitions: T) -> Self {
        ConfigObjects(definitions.into_iter().map(|definition| (definition, OnceCell::new())).collect())
    }
}

impl Registry {
    /// The objects that `pod` refers to, as they are defined now.
    pub fn config_objects(&self, pod: &Pod) -> ConfigObjects {
        let mut found: Vec<Rc<Definition>> = Vec::new();
        for object in pod.spec.object_references() {
            let key = (kind_of(object.kind), pod.namespace.clone(), Rc::from(&*object.name));
            if let Some((definition, _)) = self.definitions.get(&key)
                && !found.iter().any(|known| Rc::ptr_eq(known, definition))
            {
                found.push(definition.clone());
            }
        }
        found.into_iter().collect()
    }
}

/// Whether `pod` refers to one of these objects.
pub fn refers_to(pod: &Pod, changed: &[DefinitionName]) -> bool {
    let of_pod = |(of, namespace, _): &&DefinitionName| {
        *of == Kind::PersistentVolumeClaim && *namespace == pod.namespace
    };
    let mut claims = changed.iter().filter(of_pod).map(|(.., name)| name);
    if claims.any(|changed| pod.claims().any(|(_, claim, _)| *claim == **changed)) {
        return true;
    }
    pod.spec.object_references().any(|object| {
        let kind = kind_of(object.kind);
        changed
            .iter()
            .any(|(of, namespace, name)| *of == kind && *namespace == pod.namespace && **name == *object.name)
    })
}

fn kind_of(kind: ConfigKind) -> Kind {
    match kind {
        ConfigKind::ConfigMap => Kind::ConfigMap,
        ConfigKind::Secret => Kind::Secret,
    }
}
