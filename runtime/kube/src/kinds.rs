//! The one table of kinds: what an object of each kind is called, where the API serves it, how it is printed and
//! described. Pure, except for descriptions: they print ages and local times, by the clock and the time zone of the
//! machine on which the command line runs.
//!
//! The API (`api/route.rs`, `api/discovery.rs`, `api/table.rs`), the reader of manifests (`manifest/kind.rs`), the
//! engine and the command line look kinds up here; none of them has a list of its own.
//!
//! A new kind is a variant of [`Kind`] and a row of [`KINDS`] in this file, and a file below `kinds/` with its columns,
//! its cells, its description, and, if clients may create its objects, its rules, as `kinds/limit_range.rs`. (The rules
//! of some older kinds are below `manifest/`, which their rows name.) For such a
//! kind, `cargo xtask schema` adds its type to the table of [`crate::schema`]; a kind that Kubernetes has removed is
//! checked against another type, as in `manifest/preset.rs`. Tests and the compiler report what is missing.

use serde_json::Value;

use crate::manifest::definition::Reader;
use crate::manifest::{class, config, persistent, preset, runtime_class};
use crate::protobuf::Message;
use nodlet_core::time::Timestamp;

mod cells;
mod config_map;
mod describe;
mod event;
mod generic;
pub mod limit_range;
mod namespace;
mod node;
mod persistent_volume;
mod pod;
mod priority_class;
mod secret;

pub use describe::escaped;
pub use describe::events::interval;

/// The kinds that the API serves, in the order of [`KINDS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each is the kind of that name")]
pub enum Kind {
    #[default]
    Pod,
    Event,
    Namespace,
    Node,
    ConfigMap,
    Secret,
    PodPreset,
    PriorityClass,
    LimitRange,
    RuntimeClass,
    PersistentVolume,
    PersistentVolumeClaim,
}

/// A row of [`KINDS`].
pub struct Row {
    /// The kind that the row is of.
    pub kind: Kind,
    /// `kind` of its objects.
    pub name: &'static str,
    /// `apiVersion` of its objects: the group and its version, or the version of the core group.
    pub version: &'static str,
    /// The resource, as in URLs.
    pub plural: &'static str,
    /// The name of one object's kind on the command line.
    pub singular: &'static str,
    /// Further names on the command line.
    pub short_names: &'static [&'static str],
    /// The text by which the UIDs of definitions from files differ between kinds. It never changes: each object would
    /// become another one.
    pub uid_text: &'static str,
    /// Whether objects of the kind are namespaced.
    pub namespaced: bool,
    /// The verbs that clients may use on objects of the kind.
    pub verbs: &'static [&'static str],
    /// The subresources of objects of the kind.
    pub subresources: &'static [Subresource],
    /// The fields that a `fieldSelector` may name.
    pub fields: &'static [&'static str],
    /// The columns of tables of the kind.
    pub columns: &'static [Column],
    /// The cells of an object's row, one for each column.
    pub cells: fn(&Value, Timestamp) -> Vec<Value>,
    /// `conditions` of an object's row, or null.
    pub row_conditions: fn(&Value) -> Value,
    /// How an object is described.
    pub describe: Describe,
    /// How manifests of the kind are read; `None` for Pods, and for kinds that only the agent creates.
    pub(crate) reader: Option<Reader>,
    /// The fields of an object in protobuf. Empty for a kind whose objects are read as JSON only.
    pub protobuf: Message,
}

/// A part of an object with a URL of its own.
pub struct Subresource {
    /// The last segment of the subresource's URL.
    pub name: &'static str,
    /// `kind` of the object in requests and responses.
    pub kind: &'static str,
    /// The verbs that clients may use on the subresource.
    pub verbs: &'static [&'static str],
}

/// A column of a table: name, type, format, and 1 for those of `-o wide`.
pub type Column = (&'static str, &'static str, &'static str, u8);

/// The function that describes an object, by its inputs besides the object itself.
pub enum Describe {
    /// Describes the object without other inputs.
    Alone(fn(&Value) -> String),
    /// Describes a Namespace with the LimitRanges in it.
    Namespace(fn(&Value, &[Value]) -> String),
    /// Describes the object with its events, if they are requested.
    WithEvents(fn(&Value, Option<Vec<Value>>) -> String),
    /// Describes a Node with its unfinished pods and its events, whose involved object has the Node's name as UID.
    Node(fn(&Value, &[Value], Option<Vec<Value>>) -> String),
}

/// All kinds, in the order of discovery.
pub static KINDS: [Row; 12] = [
    Row {
        kind: Kind::Pod,
        name: "Pod",
        version: "v1",
        plural: "pods",
        singular: "pod",
        short_names: &["po"],
        uid_text: "pods",
        namespaced: true,
        verbs: ALL_VERBS,
        subresources: &[
            Subresource { name: "attach", kind: "PodAttachOptions", verbs: &["create", "get"] },
            Subresource { name: "ephemeralcontainers", kind: "Pod", verbs: &["get", "patch", "update"] },
            Subresource { name: "exec", kind: "PodExecOptions", verbs: &["create", "get"] },
            Subresource { name: "log", kind: "Pod", verbs: &["get"] },
            Subresource { name: "portforward", kind: "PodPortForwardOptions", verbs: &["create", "get"] },
            Subresource { name: "resize", kind: "Pod", verbs: &["get", "patch", "update"] },
            Subresource { name: "status", kind: "Pod", verbs: &["get", "patch", "update"] },
        ],
        fields: &[
            "metadata.name",
            "metadata.namespace",
            "spec.nodeName",
            "spec.restartPolicy",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
            "spec.schedulerName",
            "spec.serviceAccountName",
        ],
        columns: pod::COLUMNS,
        cells: pod::cells,
        row_conditions: pod::row_conditions,
        describe: Describe::WithEvents(pod::describe::describe),
        reader: None,
        protobuf: &[],
    },
    Row {
        kind: Kind::Event,
        name: "Event",
        version: "v1",
        plural: "events",
        singular: "event",
        short_names: &["ev"],
        uid_text: "events",
        namespaced: true,
        verbs: READ_VERBS,
        subresources: &[],
        fields: &[
            "metadata.name",
            "metadata.namespace",
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "type",
            "reportingComponent",
        ],
        columns: event::COLUMNS,
        cells: event::cells,
        row_conditions: no_conditions,
        describe: Describe::WithEvents(generic::describe),
        reader: None,
        protobuf: &[],
    },
    Row {
        kind: Kind::Namespace,
        name: "Namespace",
        version: "v1",
        plural: "namespaces",
        singular: "namespace",
        short_names: &["ns"],
        uid_text: "namespaces",
        namespaced: false,
        verbs: READ_VERBS,
        subresources: &[],
        fields: &["metadata.name", "status.phase"],
        columns: namespace::COLUMNS,
        cells: namespace::cells,
        row_conditions: no_conditions,
        describe: Describe::Namespace(namespace::describe),
        reader: None,
        protobuf: &[],
    },
    Row {
        kind: Kind::Node,
        name: "Node",
        version: "v1",
        plural: "nodes",
        singular: "node",
        short_names: &["no"],
        uid_text: "nodes",
        namespaced: false,
        verbs: READ_VERBS,
        subresources: &[],
        fields: &["metadata.name"],
        columns: node::COLUMNS,
        cells: node::cells,
        row_conditions: no_conditions,
        describe: Describe::Node(node::describe::describe),
        reader: None,
        protobuf: &[],
    },
    Row {
        kind: Kind::ConfigMap,
        name: "ConfigMap",
        version: "v1",
        plural: "configmaps",
        singular: "configmap",
        short_names: &["cm"],
        uid_text: "configmaps",
        namespaced: true,
        verbs: ALL_VERBS,
        subresources: &[],
        fields: &["metadata.name", "metadata.namespace"],
        columns: config_map::COLUMNS,
        cells: config_map::cells,
        row_conditions: no_conditions,
        describe: Describe::WithEvents(config_map::describe),
        reader: Some(config::READER),
        protobuf: config_map::FIELDS,
    },
    Row {
        kind: Kind::Secret,
        name: "Secret",
        version: "v1",
        plural: "secrets",
        singular: "secret",
        short_names: &[],
        uid_text: "secrets",
        namespaced: true,
        verbs: ALL_VERBS,
        subresources: &[],
        fields: &["metadata.name", "metadata.namespace", "type"],
        columns: secret::COLUMNS,
        cells: secret::cells,
        row_conditions: no_conditions,
        describe: Describe::Alone(secret::describe),
        reader: Some(config::SECRET_READER),
        protobuf: secret::FIELDS,
    },
    Row {
        kind: Kind::PodPreset,
        name: "PodPreset",
        // The only version that Kubernetes ever had.
        version: "settings.k8s.io/v1alpha1",
        plural: "podpresets",
        singular: "podpreset",
        short_names: &[],
        uid_text: "podpresets",
        namespaced: true,
        verbs: &["create", "delete", "deletecollection", "get", "list", "update", "watch"],
        subresources: &[],
        fields: &["metadata.name", "metadata.namespace"],
        columns: generic::COLUMNS,
        cells: generic::cells,
        row_conditions: no_conditions,
        describe: Describe::WithEvents(generic::describe),
        reader: Some(preset::READER),
        protobuf: &[],
    },
    Row {
        kind: Kind::PriorityClass,
        name: "PriorityClass",
        version: "scheduling.k8s.io/v1",
        plural: "priorityclasses",
        singular: "priorityclass",
        short_names: &["pc"],
        // As in versions in which it was the only definition.
        uid_text: "class",
        namespaced: false,
        verbs: ALL_VERBS,
        subresources: &[],
        fields: &["metadata.name"],
        columns: priority_class::COLUMNS,
        cells: priority_class::cells,
        row_conditions: no_conditions,
        describe: Describe::WithEvents(priority_class::describe),
        reader: Some(class::READER),
        protobuf: &[],
    },
    Row {
        kind: Kind::LimitRange,
        name: "LimitRange",
        version: "v1",
        plural: "limitranges",
        singular: "limitrange",
        short_names: &["limits"],
        uid_text: "limitranges",
        namespaced: true,
        verbs: ALL_VERBS,
        subresources: &[],
        fields: &["metadata.name", "metadata.namespace"],
        columns: generic::COLUMNS,
        cells: generic::cells,
        row_conditions: no_conditions,
        describe: Describe::Alone(limit_range::describe),
        reader: Some(limit_range::READER),
        protobuf: &[],
    },
    Row {
        kind: Kind::RuntimeClass,
        name: "RuntimeClass",
        version: "node.k8s.io/v1",
        plural: "runtimeclasses",
        singular: "runtimeclass",
        short_names: &[],
        uid_text: "runtimeclasses",
        namespaced: false,
        verbs: ALL_VERBS,
        subresources: &[],
        fields: &["metadata.name"],
        columns: generic::RUNTIME_CLASS_COLUMNS,
        cells: generic::runtime_class_cells,
        row_conditions: no_conditions,
        describe: Describe::WithEvents(generic::describe),
        reader: Some(runtime_class::READER),
        protobuf: &[],
    },
    Row {
        kind: Kind::PersistentVolume,
        name: "PersistentVolume",
        version: "v1",
        plural: "persistentvolumes",
        singular: "persistentvolume",
        short_names: &["pv"],
        uid_text: "persistentvolumes",
        namespaced: false,
        verbs: ALL_VERBS,
        subresources: &[],
        fields: &["metadata.name"],
        columns: persistent_volume::COLUMNS,
        cells: persistent_volume::cells,
        row_conditions: no_conditions,
        describe: Describe::WithEvents(generic::describe),
        reader: Some(persistent::VOLUME_READER),
        protobuf: &[],
    },
    Row {
        kind: Kind::PersistentVolumeClaim,
        name: "PersistentVolumeClaim",
        version: "v1",
        plural: "persistentvolumeclaims",
        singular: "persistentvolumeclaim",
        short_names: &["pvc"],
        uid_text: "persistentvolumeclaims",
        namespaced: true,
        verbs: ALL_VERBS,
        subresources: &[],
        fields: &["metadata.name", "metadata.namespace"],
        columns: persistent_volume::CLAIM_COLUMNS,
        cells: persistent_volume::claim_cells,
        row_conditions: no_conditions,
        describe: Describe::WithEvents(generic::describe),
        reader: Some(persistent::CLAIM_READER),
        protobuf: &[],
    },
];

const READ_VERBS: &[&str] = &["get", "list", "watch"];
const ALL_VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

fn no_conditions(_: &Value) -> Value {
    Value::Null
}

/// The groups besides the core group, with their versions.
pub fn groups() -> impl Iterator<Item = &'static str> {
    let is_first = |place: usize, version: &str| KINDS[..place].iter().all(|row| row.version != version);
    let versions = KINDS.iter().map(|row| row.version).enumerate();
    versions
        .filter(move |(place, version)| version.contains('/') && is_first(*place, version))
        .map(|(_, version)| version)
}

/// The kinds that manifests may hold: those whose objects clients may create.
pub fn readable() -> impl Iterator<Item = &'static Row> {
    KINDS.iter().filter(|row| row.allows("create"))
}

/// The names of all kinds on the command line, for a text: `pods (po), events (ev)`.
pub fn types() -> String {
    let name = |row: &Row| match row.short_names {
        [] => row.plural.to_owned(),
        names => format!("{} ({})", row.plural, names.join(", ")),
    };
    KINDS.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// The kind that somebody names on the command line.
pub fn on_command_line(name: &str) -> Option<&'static Row> {
    let name = name.to_lowercase();
    KINDS.iter().find(|row| row.plural == name || row.singular == name || row.short_names.contains(&&*name))
}

/// Kind, namespace and name of the definition whose file has this name: the reverse of [`Row::file`].
pub fn definition_of_file(file: &str) -> Option<(Kind, &str, &str)> {
    let stem = file.strip_suffix(".json")?;
    readable().filter(|row| row.kind != Kind::Pod).find_map(|row| {
        let (namespace, name) = stem.strip_prefix(row.singular)?.strip_prefix('_')?.split_once('_')?;
        (row.namespaced != namespace.is_empty()).then_some((row.kind, namespace, name))
    })
}

impl Kind {
    /// The kind of a manifest, by `kind`.
    pub fn named(name: &str) -> Option<Kind> {
        readable().find(|row| row.name == name).map(|row| row.kind)
    }

    /// The kind of a manifest, by its plural in URLs.
    pub fn of_resource(resource: &str) -> Option<Kind> {
        readable().find(|row| row.plural == resource).map(|row| row.kind)
    }

    /// The row of this kind.
    pub fn row(self) -> &'static Row {
        &KINDS[self as usize]
    }

    /// [`Row::name`]
    pub fn as_str(self) -> &'static str {
        self.row().name
    }

    /// [`Row::version`]
    pub fn version(self) -> &'static str {
        self.row().version
    }

    /// [`Row::plural`]
    pub fn resource(self) -> &'static str {
        self.row().plural
    }
}

impl Row {
    /// Whether clients may use `verb` on objects of the kind.
    pub fn allows(&self, verb: &str) -> bool {
        self.verbs.contains(&verb)
    }

    /// Returns the subresource with this name.
    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|subresource| subresource.name == name)
    }

    /// Returns the API group of the kind; empty for the core group.
    pub fn group(&self) -> &'static str {
        self.version.split_once('/').map_or("", |(group, _)| group)
    }

    /// Returns the path below which the group's version is served, without a leading slash.
    pub fn root(&self) -> String {
        let api = if self.group().is_empty() { "api" } else { "apis" };
        format!("{api}/{}", self.version)
    }

    /// Returns the plural with the group, such as `priorityclasses.scheduling.k8s.io`, for messages.
    pub fn qualified(&self) -> String {
        self.with_group(self.plural)
    }

    /// Returns the kind with the group, such as `PriorityClass.scheduling.k8s.io`, for messages.
    pub fn qualified_kind(&self) -> String {
        self.with_group(self.name)
    }

    /// Returns the singular with the group, such as `priorityclass.scheduling.k8s.io`, for the command line.
    pub fn qualified_singular(&self) -> String {
        self.with_group(self.singular)
    }

    fn with_group(&self, name: &str) -> String {
        let group = self.group();
        if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
    }

    /// Returns the name of the file in which the agent stores an applied object.
    pub fn file(&self, namespace: &str, name: &str) -> String {
        if self.kind == Kind::Pod {
            return format!("{namespace}_{name}.json");
        }
        let namespace = if self.namespaced { namespace } else { "" };
        format!("{}_{namespace}_{name}.json", self.singular)
    }
}

#[cfg(test)]
mod tests;
