//! How a registry wants to be asked for credentials.

/// How a registry wants to be asked: the header `WWW-Authenticate`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// With a token from `realm`, which is asked with this query.
    Bearer { realm: String, query: String },
    /// With name and password.
    Basic,
}

impl Challenge {
    pub(super) fn parse(header: &str) -> Option<Challenge> {
        let (scheme, mut rest) = header.split_once(' ').unwrap_or((header, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Challenge::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut query) = (None, Vec::new());
        while let Some((key, after)) = rest.split_once('=') {
            let (value, after) = match after.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => after.split_at(after.find(',').unwrap_or(after.len())),
            };
            match key.trim().trim_start_matches(',').trim() {
                "realm" => realm = Some(value.to_owned()),
                key @ ("service" | "scope") => query.push(format!("{key}={}", escaped(value))),
                _ => {}
            }
            rest = after.trim_start_matches([',', ' ']);
        }
        Some(Challenge::Bearer { realm: realm?, query: query.join("&") })
    }
}

/// Escapes a value of a query.
pub(super) fn escaped(value: &str) -> String {
    let mut text = String::new();
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b':' | b',' => {
                text.push(byte.into());
            }
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_as_registries_send_them() {
        let bearer = |realm: &str, query: &str| {
            Some(Challenge::Bearer { realm: realm.to_owned(), query: query.to_owned() })
        };
        for (header, expected) in [
            (
                "Bearer realm=\"https://auth.example/token\",service=\"registry.example\",scope=\"repository:a/b:pull\"",
                bearer("https://auth.example/token", "service=registry.example&scope=repository:a/b:pull"),
            ),
            ("bearer realm=\"http://x/t\", service=a b, error=\"e\"", bearer("http://x/t", "service=a%20b")),
            ("Basic realm=\"Registry\"", Some(Challenge::Basic)),
            ("Bearer service=\"a\"", None),
            ("Bearer realm=\"open", None),
            ("Negotiate", None),
            ("", None),
        ] {
            assert_eq!(Challenge::parse(header), expected, "{header}");
        }
    }
}
