//! The rules for strings that many fields share, with their texts byte for byte. Each function returns the
//! details of the errors; none means that the value is valid.

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const LABEL_UNDERSCORE: &str = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
const NAME: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

/// A DNS label of RFC 1123: names of containers, volumes, namespaces.
pub(crate) fn dns_label(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 63 {
        errors.push(max_length(63));
    }
    if !is_label(value) {
        errors.push(if is_subdomain(value, is_label) {
            "must not contain dots".to_owned()
        } else {
            format!(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
                 and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{LABEL}')"
            )
        });
    }
    errors
}

/// A DNS subdomain of RFC 1123: names of pods and most other objects.
pub(crate) fn dns_subdomain(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 253 {
        errors.push(max_length(253));
    }
    if !is_subdomain(value, is_label) {
        errors.push(format!(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '{LABEL}(\\.{LABEL})*')"
        ));
    }
    errors
}

/// A DNS subdomain with underscores: search domains.
pub(crate) fn dns_subdomain_with_underscore(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 253 {
        errors.push(max_length(253));
    }
    let label = |label: &str| {
        let label = label.strip_prefix('_').unwrap_or(label);
        ends_with(label, is_lower) && label.bytes().all(|byte| is_lower(byte) || byte == b'-' || byte == b'_')
    };
    if !is_subdomain(value, label) {
        errors.push(format!(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and \
             must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '{LABEL_UNDERSCORE}(\\.{LABEL_UNDERSCORE})*')"
        ));
    }
    errors
}

/// A name with an optional DNS prefix: keys of labels and annotations, resources.
pub fn qualified_name(value: &str) -> Vec<String> {
    const MESSAGE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                           alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is ";
    let mut errors = Vec::new();
    let parts: Vec<&str> = value.split('/').collect();
    let name = match parts[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                errors.extend(
                    dns_subdomain(prefix).into_iter().map(|error| format!("prefix part {}", bytes(&error))),
                );
            }
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {MESSAGE}'{NAME}') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        errors.push("name part must be no more than 63 bytes".to_owned());
    }
    if !is_name(name) {
        errors.push(format!("name part {MESSAGE}'{NAME}')"));
    }
    errors
}

/// The value of a label.
pub fn label_value(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 63 {
        errors.push("must be no more than 63 bytes".to_owned());
    }
    if !value.is_empty() && !is_name(value) {
        errors.push(format!(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
             validation is '({NAME})?')"
        ));
    }
    errors
}

/// The name of a port.
pub(crate) fn port_name(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 15 {
        errors.push(max_length(15));
    }
    if value.is_empty() || !value.bytes().all(|byte| is_lower(byte) || byte == b'-') {
        errors.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !value.bytes().any(|byte| byte.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".to_owned());
    }
    if value.contains("--") {
        errors.push("must not contain consecutive hyphens".to_owned());
    }
    if value.starts_with('-') || value.ends_with('-') {
        errors.push("must not begin or end with a hyphen".to_owned());
    }
    errors
}

/// A key of a ConfigMap or Secret.
pub(crate) fn config_map_key(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 253 {
        errors.push(max_length(253));
    }
    if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
        errors.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
             'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                .to_owned(),
        );
    }
    match value {
        "." | ".." => errors.push(format!("must not be '{value}'")),
        _ if value.starts_with("..") => errors.push("must not start with '..'".to_owned()),
        _ => {}
    }
    errors
}

/// The name of an environment variable, as relaxed in Kubernetes 1.32.
pub(crate) fn env_name(value: &str) -> Vec<String> {
    if value.chars().all(|c| (' '..='~').contains(&c) && c != '=') {
        return Vec::new();
    }
    vec![
        "a valid environment variable name must consist only of printable ASCII characters other than '='"
            .to_owned(),
    ]
}

/// The name of an HTTP header.
pub(crate) fn http_header_name(value: &str) -> Vec<String> {
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Vec::new();
    }
    vec![
        "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for \
         validation is '[-A-Za-z0-9]+')"
            .to_owned(),
    ]
}

/// `must be between LOW and HIGH, inclusive`, if it is not.
pub(crate) fn range(value: i64, low: i64, high: i64) -> Option<String> {
    (!(low..=high).contains(&value)).then(|| format!("must be between {low} and {high}, inclusive"))
}

/// An IP address; with the texts for fields that existed before Kubernetes became strict.
pub(crate) fn ip(value: &str) -> Vec<String> {
    match value.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            vec!["must not be an IPv4-mapped IPv6 address".to_owned()]
        }
        Ok(_) => Vec::new(),
        Err(_) if leading_zeros(value) => vec!["must not have leading 0s".to_owned()],
        Err(_) => vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()],
    }
}

/// Whether the value is an IPv4 address except for leading zeros in its numbers.
fn leading_zeros(value: &str) -> bool {
    let parts: Vec<&str> = value.split('.').collect();
    parts.len() == 4
        && parts.iter().all(|part| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) && {
                let trimmed = part.trim_start_matches('0');
                trimmed.is_empty() || trimmed.parse::<u8>().is_ok()
            }
        })
}

fn max_length(length: usize) -> String {
    format!("must be no more than {length} characters")
}

/// Corrects a message: Kubernetes counts bytes in one of its two copies of the rule, and characters in the
/// other.
fn bytes(error: &str) -> String {
    error.strip_suffix(" characters").map_or_else(|| error.to_owned(), |text| format!("{text} bytes"))
}

fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Whether the value is not empty, and `such` accepts its first and its last byte.
fn ends_with(value: &str, such: fn(u8) -> bool) -> bool {
    let bytes = value.as_bytes();
    bytes.first().is_some_and(|byte| such(*byte)) && bytes.last().is_some_and(|byte| such(*byte))
}

fn is_label(value: &str) -> bool {
    ends_with(value, is_lower) && value.bytes().all(|byte| is_lower(byte) || byte == b'-')
}

fn is_subdomain(value: &str, label: impl Fn(&str) -> bool) -> bool {
    value.split('.').all(label)
}

fn is_name(value: &str) -> bool {
    ends_with(value, |byte| byte.is_ascii_alphanumeric())
        && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}
