//! The strategy of each kind: all differences between kinds besides names.

use serde_json::Value;

use super::definition::Reader;
use nodlet_core::time::Timestamp;

/// How objects of one kind are read, printed and described.
pub struct Strategy {
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
    /// Describes a PersistentVolumeClaim with the pods of its namespace and its events, if they are requested.
    Claim(fn(&Value, &[Value], Option<Vec<Value>>) -> String),
}
