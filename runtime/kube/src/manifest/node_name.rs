//! The names and labels that a Node may have. Pure.

use crate::object::rules;

/// Whether a Node may have this name. The name also appears in files of the node's pods.
pub fn is_node_name(name: &str) -> bool {
    is_object_name(name)
}

/// Whether an object may have this name, such as a Secret or a PersistentVolumeClaim. Pods may refer to others, too.
pub fn is_object_name(name: &str) -> bool {
    rules::dns_subdomain(name).is_empty()
}

/// Returns the name of the Node for a machine's host name: in lower case, and with `-` for characters that are valid
/// in host names of Linux and invalid in names of Nodes, such as `_`. `None` if no valid name is left.
pub fn node_name_of(host_name: &str) -> Option<String> {
    let allowed =
        |of: char| if of.is_ascii_alphanumeric() || of == '.' { of.to_ascii_lowercase() } else { '-' };
    let name: String = host_name.trim().chars().map(allowed).collect();
    let labels: Vec<&str> = name.split('.').map(|label| label.trim_matches('-')).collect();
    let labels: Vec<&str> = labels.into_iter().filter(|label| !label.is_empty()).collect();
    Some(labels.join(".")).filter(|name| is_node_name(name))
}

/// Validates the key and the value of a label.
///
/// # Errors
/// The key or the value is invalid, for the reason in the message.
pub fn check_label(key: &str, value: &str) -> Result<(), String> {
    let wrong = |what: &str, errors: Vec<String>| {
        errors.first().map_or(Ok(()), |error| Err(format!("labels; {what:?} is invalid: {error}")))
    };
    wrong(key, rules::qualified_name(key))?;
    wrong(value, rules::label_value(value))
}

#[cfg(test)]
mod tests {
    use super::node_name_of;

    #[test]
    fn a_host_name_of_linux_becomes_a_valid_node_name() {
        for (host, node) in [
            ("board", Some("board")),
            ("qemu-x86_64", Some("qemu-x86-64")),
            ("My_Host.Example.", Some("my-host.example")),
            ("_a_._b", Some("a.b")),
            ("(none)", Some("none")),
            ("___", None),
            ("", None),
        ] {
            assert_eq!(node_name_of(host).as_deref(), node, "{host}");
        }
    }
}
