//! The table of kinds: what an object of each kind is called, its scope, and where and with which verbs the API serves
//! it. Pure, and the lowest module of the crate: it imports from no other.
//!
//! The API (`api/route.rs`, `api/discovery.rs`), the reader of manifests, the engine and the command line look kinds up
//! here; none of them has a list of its own. [`crate::kinds`] has the rules, the columns and the descriptions of each
//! kind, and describes what a new kind takes.

/// The kind of objects that a command is about before its arguments are read.
impl Default for Kind {
    fn default() -> Kind {
        Kind::Pod
    }
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
    /// Whether objects of the kind are namespaced.
    pub namespaced: bool,
    /// The verbs that clients may use on objects of the kind.
    pub verbs: &'static [&'static str],
    /// The subresources of objects of the kind.
    pub subresources: &'static [Subresource],
    /// The fields that a `fieldSelector` may name.
    pub fields: &'static [&'static str],
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

/// Makes [`Kind`] and [`KINDS`] of the rows, and `each_kind!`, which gives a macro all kinds with their files below
/// `kinds/`.
macro_rules! kinds {
    (($d:tt) $($kind:ident in $file:ident { $($row:tt)* })*) => {
        /// The kinds that the API serves, in the order of [`KINDS`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs, reason = "each is the kind of that name")]
        pub enum Kind {
            $($kind,)*
        }

        /// All kinds, in the order of discovery.
        pub static KINDS: &[Row] = &[$(Row { kind: Kind::$kind, name: stringify!($kind), $($row)* },)*];

        macro_rules! each_kind {
            ($d all:ident) => { $d all! { $($kind in $file,)* } };
        }
    };
}

kinds! {
    ($)
    Pod in pod {
        plural: "pods",
        singular: "pod",
        short_names: &["po"],
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
            "spec.hostNetwork",
            "spec.nodeName",
            "spec.restartPolicy",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
            "spec.schedulerName",
            "spec.serviceAccountName",
        ],
        ..ROW
    }
    Event in event {
        plural: "events",
        singular: "event",
        short_names: &["ev"],
        verbs: READ_VERBS,
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
        ..ROW
    }
    Namespace in namespace {
        plural: "namespaces",
        singular: "namespace",
        short_names: &["ns"],
        namespaced: false,
        verbs: READ_VERBS,
        fields: &["metadata.name", "status.phase"],
        ..ROW
    }
    Node in node {
        plural: "nodes",
        singular: "node",
        short_names: &["no"],
        namespaced: false,
        verbs: READ_VERBS,
        fields: &["metadata.name", "spec.unschedulable"],
        ..ROW
    }
    ConfigMap in config_map {
        plural: "configmaps",
        singular: "configmap",
        short_names: &["cm"],
        ..ROW
    }
    Secret in secret {
        plural: "secrets",
        singular: "secret",
        fields: &["metadata.name", "metadata.namespace", "type"],
        ..ROW
    }
    PodPreset in pod_preset {
        // The only version that Kubernetes ever had.
        version: "settings.k8s.io/v1alpha1",
        plural: "podpresets",
        singular: "podpreset",
        verbs: &["create", "delete", "deletecollection", "get", "list", "update", "watch"],
        ..ROW
    }
    PriorityClass in priority_class {
        version: "scheduling.k8s.io/v1",
        plural: "priorityclasses",
        singular: "priorityclass",
        short_names: &["pc"],
        namespaced: false,
        fields: &["metadata.name"],
        ..ROW
    }
    LimitRange in limit_range {
        plural: "limitranges",
        singular: "limitrange",
        short_names: &["limits"],
        ..ROW
    }
    RuntimeClass in runtime_class {
        version: "node.k8s.io/v1",
        plural: "runtimeclasses",
        singular: "runtimeclass",
        namespaced: false,
        fields: &["metadata.name"],
        ..ROW
    }
    PersistentVolume in persistent_volume {
        plural: "persistentvolumes",
        singular: "persistentvolume",
        short_names: &["pv"],
        namespaced: false,
        fields: &["metadata.name"],
        ..ROW
    }
    PersistentVolumeClaim in persistent_volume_claim {
        plural: "persistentvolumeclaims",
        singular: "persistentvolumeclaim",
        short_names: &["pvc"],
        ..ROW
    }
    Service in service {
        plural: "services",
        singular: "service",
        short_names: &["svc"],
        fields: &["metadata.name", "metadata.namespace", "spec.clusterIP", "spec.type"],
        ..ROW
    }
    EndpointSlice in endpoint_slice {
        version: "discovery.k8s.io/v1",
        plural: "endpointslices",
        singular: "endpointslice",
        ..ROW
    }
    Endpoints in endpoints {
        plural: "endpoints",
        singular: "endpoints",
        short_names: &["ep"],
        verbs: READ_VERBS,
        ..ROW
    }
}
pub(crate) use each_kind;

/// What most kinds have in common: those of the core group, in namespaces, that clients may create.
const ROW: Row = Row {
    kind: Kind::Pod,
    name: "",
    version: "v1",
    plural: "",
    singular: "",
    short_names: &[],
    namespaced: true,
    verbs: ALL_VERBS,
    subresources: &[],
    fields: &["metadata.name", "metadata.namespace"],
};

const READ_VERBS: &[&str] = &["get", "list", "watch"];
const ALL_VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

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
    let name = name.to_ascii_lowercase();
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
    /// The text by which the UIDs of definitions from files differ between kinds. It never changes: each object would
    /// become another one. That of PriorityClasses is from versions in which they were the only definitions.
    pub(crate) fn uid_text(&self) -> &'static str {
        if self.kind == Kind::PriorityClass { "class" } else { self.plural }
    }

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
