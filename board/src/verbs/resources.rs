//! Resource types as users name them, and the API paths of their objects.

use nodlet_kube::kinds::{self, Kind, Row};

use crate::client::encode;
use crate::failure::Failure;

/// The kind of a type that was named.
pub(crate) fn kind(name: &str) -> Result<Kind, Failure> {
    kinds::on_command_line(name).map(|row| row.kind).ok_or_else(|| {
        Failure::new(format!(
            "the server doesn't have a resource type {name:?}: there are {}",
            plurals(kinds::KINDS)
        ))
    })
}

/// The plurals of kinds, as a sentence has them: `pods, events and nodes`.
pub(crate) fn plurals<'a>(rows: impl IntoIterator<Item = &'a Row>) -> String {
    let plurals: Vec<&str> = rows.into_iter().map(|row| row.plural).collect();
    match plurals.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => plurals.concat(),
    }
}

/// Returns the API path of the objects of a kind, in one namespace or in all.
pub(crate) fn collection(row: &Row, namespace: Option<&str>) -> String {
    match namespace.filter(|_| row.namespaced) {
        Some(namespace) => format!("/{}/namespaces/{}/{}", row.root(), encode(namespace), row.plural),
        None => format!("/{}/{}", row.root(), row.plural),
    }
}
