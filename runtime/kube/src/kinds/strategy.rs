//! The strategy of each kind: all differences between kinds besides names.

use serde_json::Value;

use super::cells::{age, text, timestamp};
use super::definition::Reader;
use super::describe::{Tabs, events};
use nodlet_core::time::Timestamp;

/// How objects of one kind are read, printed and described.
pub struct Strategy {
    /// The columns of tables of the kind.
    pub columns: &'static [Column],
    /// `conditions` of an object's row, or null.
    pub row_conditions: fn(&Value) -> Value,
    /// The other objects that a description needs.
    pub related: Related,
    /// Whether a description ends with the events of the object.
    pub has_events: bool,
    /// Describes an object with its related objects.
    pub(super) describe: fn(&mut Tabs, &Value, &[Value]),
    /// How manifests of the kind are read; `None` for Pods, and for kinds that only the agent creates.
    pub(crate) reader: Option<Reader>,
}

/// Objects that the description of another object needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Related {
    /// None.
    Nothing,
    /// The LimitRanges in a Namespace.
    LimitRanges,
    /// The unfinished pods of a Node. The involved object of the Node's events has the Node's name as UID.
    UnfinishedPods,
    /// The pods in the namespace of a claim.
    Pods,
    /// The EndpointSlices of a Service.
    EndpointSlices,
}

impl Strategy {
    /// A strategy with these columns for objects that only the agent creates, described with their events.
    pub(super) const fn new(
        columns: &'static [Column],
        describe: fn(&mut Tabs, &Value, &[Value]),
    ) -> Strategy {
        let row_conditions = |_: &Value| Value::Null;
        Strategy {
            columns,
            row_conditions,
            related: Related::Nothing,
            has_events: true,
            describe,
            reader: None,
        }
    }

    /// The cells of an object's row, one for each column.
    pub fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        self.columns.iter().map(|column| (column.cell)(object, column.field, now)).collect()
    }

    /// Describes an object with its related objects and, if they are requested, its events.
    pub fn describe(&self, object: &Value, related: &[Value], events: Option<Vec<Value>>) -> String {
        let mut out = Tabs::default();
        (self.describe)(&mut out, object, related);
        if let Some(events) = events {
            events::describe(&mut out, events);
        }
        out.finish()
    }
}

/// A column of a table.
pub struct Column {
    /// The title.
    pub name: &'static str,
    /// The type of the cells in OpenAPI.
    pub kind: &'static str,
    /// The format of the cells in OpenAPI; may be empty.
    pub format: &'static str,
    /// 0, or 1 for the columns of `-o wide`.
    pub priority: u8,
    /// A JSON pointer to the field with the value, or another argument of `cell`.
    field: &'static str,
    cell: fn(&Value, &str, Timestamp) -> Value,
}

/// The columns of most kinds.
pub(super) const NAME: Column = Column { format: "name", ..column("Name", "/metadata/name") };
pub(super) const AGE: Column = of("Age", "/metadata/creationTimestamp", |object, field, now| {
    age(object.pointer(field).and_then(timestamp), now).into()
});

/// A column with the texts of a field.
pub(super) const fn column(name: &'static str, field: &'static str) -> Column {
    of(name, field, |object, field, _| object.pointer(field).map_or("", text).into())
}

/// A column whose cells are worked out from the object, from this argument and from the time.
pub(super) const fn of(
    name: &'static str,
    field: &'static str,
    cell: fn(&Value, &str, Timestamp) -> Value,
) -> Column {
    Column { name, kind: "string", format: "", priority: 0, field, cell }
}

impl Column {
    /// The cells have this type of OpenAPI.
    pub(super) const fn with_kind(self, kind: &'static str) -> Column {
        Column { kind, ..self }
    }

    /// The column is shown with `-o wide` alone.
    pub(super) const fn wide(self) -> Column {
        Column { priority: 1, ..self }
    }
}
