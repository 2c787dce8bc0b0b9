//! Kubernetes' kinds and fields as data: one generated table of types, fields and
//! merge rules, and one hand-written column that says what nodlet does with each
//! field of a Pod.
//!
//! A table and not Rust types, because each typed field costs 0.8 KB of code and
//! each input format multiplies it; the table of all fields is some 20 KB. Only
//! what the core decides on becomes a struct ([`nodlet_core::spec`]); everything else is
//! kept as it came.
//!
//! `table.rs` is written by `cargo xtask schema` and never by hand. `acts.rs` is
//! written by hand; tests hold it to the table in both directions.
//! Next: [`crate::manifest`], which walks objects against this.

mod acts;
#[cfg(test)]
mod docs;
#[rustfmt::skip]
mod table;

pub use acts::{NO_LSM, Verdict, verdict};
pub use table::KUBERNETES;

/// A type of the API: a name and its fields.
#[derive(Debug)]
pub struct Type {
    /// Kubernetes' name, such as `Container`.
    pub name: &'static str,
    /// The fields, sorted by name.
    pub fields: &'static [Field],
}

/// A field of a type.
#[derive(Debug)]
pub struct Field {
    /// Its name in JSON.
    pub name: &'static str,
    /// One value, a list or a map.
    pub shape: Shape,
    /// What the value, or each element, is.
    pub value: Value,
}

/// How many values a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One.
    One,
    /// A list; the number leads to [`Field::merge`].
    List(u8),
    /// A map with string keys.
    Map,
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// A string.
    String,
    /// `true` or `false`.
    Bool,
    /// An integer of 32 bits.
    Int32,
    /// An integer of 64 bits.
    Int64,
    /// `resource.Quantity`, a string or a number.
    Quantity,
    /// A string or an integer of 32 bits.
    IntOrString,
    /// A time as RFC 3339 writes it.
    Time,
    /// Any object, unchecked.
    Any,
    /// An object of a type; the number leads to [`Field::object`].
    Object(u16),
}

/// How two versions of a list become one.
#[derive(Debug, PartialEq, Eq)]
pub struct Merge {
    /// `x-kubernetes-list-type`.
    pub list: ListType,
    /// `x-kubernetes-list-map-keys`: what tells elements apart in a server-side apply.
    pub map_keys: &'static [&'static str],
    /// `x-kubernetes-patch-strategy` has `merge`.
    pub patch_merge: bool,
    /// `x-kubernetes-patch-strategy` has `retainKeys`.
    pub patch_retain_keys: bool,
    /// `x-kubernetes-patch-merge-key`: what tells elements apart in a strategic merge patch.
    pub patch_merge_key: &'static str,
}

/// `x-kubernetes-list-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListType {
    /// Replaced as a whole.
    Atomic,
    /// Scalars, each once.
    Set,
    /// Objects told apart by keys.
    Map,
}

/// The type of that name.
pub fn find(name: &str) -> Option<&'static Type> {
    table::TYPES.binary_search_by(|entry| entry.name.cmp(name)).ok().map(|index| &table::TYPES[index])
}

impl Type {
    /// The field of that name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.binary_search_by(|field| field.name.cmp(name)).ok().map(|index| &self.fields[index])
    }
}

impl Field {
    /// The type of the value, or of each element, if it is an object of a known type.
    pub fn object(&self) -> Option<&'static Type> {
        match self.value {
            Value::Object(index) => Some(&table::TYPES[usize::from(index)]),
            Value::String
            | Value::Bool
            | Value::Int32
            | Value::Int64
            | Value::Quantity
            | Value::IntOrString
            | Value::Time
            | Value::Any => None,
        }
    }

    /// How a list merges; `None` for what is no list.
    pub fn merge(&self) -> Option<&'static Merge> {
        match self.shape {
            Shape::List(index) => Some(&table::MERGES[usize::from(index)]),
            Shape::One | Shape::Map => None,
        }
    }
}

/// One line of the table.
const fn field(name: &'static str, shape: Shape, value: Value) -> Field {
    Field { name, shape, value }
}
