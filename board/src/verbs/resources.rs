//! Resource types as users name them, and the API paths of their objects.

use nodlet_kube::kinds::{self, Kind, Row};

use crate::client::encode;
use crate::error::VerbError;

/// Types of clusters that have a template of Pods, singular or short.
const WORKLOADS: &[&str] = &[
    "deployment",
    "deploy",
    "daemonset",
    "ds",
    "statefulset",
    "sts",
    "replicaset",
    "rs",
    "replicationcontroller",
    "rc",
    "job",
    "cronjob",
    "cj",
];

/// The kind of a type that was named.
pub(crate) fn kind(name: &str) -> Result<Kind, VerbError> {
    kinds::on_command_line(name).map(|row| row.kind).ok_or_else(|| {
        VerbError::new(format!("the server doesn't have a resource type {name:?}{}", instead_of(name)))
    })
}

/// What a user can do who named a type that is none, after the error.
fn instead_of(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let is = |type_name: &str| lower == type_name || lower.strip_suffix('s') == Some(type_name);
    if name.contains(',') {
        return ": name one type in each call".to_owned();
    }
    if WORKLOADS.iter().any(|workload| is(workload)) {
        return ": nodlet runs Pods, which 'nodlet get pods' shows".to_owned();
    }
    if lower == "all" {
        return ": 'nodlet get pods' shows all that runs".to_owned();
    }
    format!(". For the pod of this name write 'pod/{name}'; the types are {}", plurals(kinds::KINDS))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_that_a_board_lacks_is_answered_with_what_it_has_instead() {
        let refused = |name: &str| kind(name).unwrap_err().to_string();
        for (name, hint) in [
            ("deploy", ": nodlet runs Pods, which 'nodlet get pods' shows"),
            ("CronJobs", ": nodlet runs Pods, which 'nodlet get pods' shows"),
            ("ds", ": nodlet runs Pods, which 'nodlet get pods' shows"),
            ("all", ": 'nodlet get pods' shows all that runs"),
            ("pods,cm", ": name one type in each call"),
        ] {
            let text = format!("error: the server doesn't have a resource type \"{name}\"{hint}");
            assert_eq!(refused(name), text);
        }
        let text = refused("web");
        assert!(
            text.contains("\"web\". For the pod of this name write 'pod/web'; the types are pods, "),
            "{text}"
        );
    }
}
