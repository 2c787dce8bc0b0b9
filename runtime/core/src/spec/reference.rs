//! References of a pod to objects of its namespace and to resources of its containers.

use super::Quantity;

/// `resourceFieldRef`: a request or limit of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceField {
    /// `containerName`; `None` for the container itself.
    pub container: Option<String>,
    /// `resource`, such as `limits.cpu`.
    pub resource: String,
    /// `divisor`; `None` for 1.
    pub divisor: Option<Quantity>,
}

/// The kinds of objects that provide configuration to pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigKind {
    /// ConfigMap.
    ConfigMap,
    /// Secret.
    Secret,
}

impl ConfigKind {
    /// The kind as in `kind` of an object.
    pub fn as_str(self) -> &'static str {
        match self {
            ConfigKind::ConfigMap => "ConfigMap",
            ConfigKind::Secret => "Secret",
        }
    }

    /// The kind as in messages of Kubernetes' API about objects that are not found.
    pub fn resource(self) -> &'static str {
        match self {
            ConfigKind::ConfigMap => "configmap",
            ConfigKind::Secret => "secret",
        }
    }
}

/// A reference of a pod to an object of its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectReference {
    /// The object's kind.
    pub kind: ConfigKind,
    /// `name`, or `secretName` of a volume.
    pub name: String,
    /// `optional`: a missing object or key is skipped.
    pub optional: bool,
}

/// `imagePullPolicy` of a container, `pullPolicy` of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// Ask the registry at every start.
    Always,
    /// Ask the registry only if the image is absent.
    IfNotPresent,
    /// Never ask the registry.
    Never,
}
