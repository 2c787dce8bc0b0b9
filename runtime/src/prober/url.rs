//! The URLs of probes, and how redirects resolve against them. Pure.

use std::fmt;
use std::net::IpAddr;

/// A URL with the scheme `http` or `https`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    /// Whether the scheme is `https`.
    secure: bool,
    /// The host, without the brackets of an IPv6 address.
    host: String,
    /// The port in the URL; `None` means 80 or 443.
    port: Option<u16>,
    /// The path and the query, escaped.
    target: String,
}

/// Joins a host and a port, as Go's `net.JoinHostPort` does.
pub(super) fn join(host: &str, port: u16) -> String {
    format!("{}:{port}", bracketed(host))
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

impl Url {
    /// Creates a URL; `path` is the path of a manifest, with its query.
    pub(super) fn new(secure: bool, host: &str, port: u16, path: &str) -> Url {
        Url { secure, host: host.to_owned(), port: Some(port), target: target(path) }
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn port(&self) -> u16 {
        self.port.unwrap_or(if self.secure { 443 } else { 80 })
    }

    pub(super) fn target(&self) -> &str {
        &self.target
    }

    pub(super) fn is_secure(&self) -> bool {
        self.secure
    }

    /// Returns the authority, which is the `Host` of a request.
    pub(super) fn authority(&self) -> String {
        match self.port {
            Some(port) => join(&self.host, port),
            None => bracketed(&self.host),
        }
    }

    /// Resolves a redirect to `location`; `None` if that is no URL of HTTP.
    pub(super) fn join(&self, location: &str) -> Option<Url> {
        let lower = location.to_ascii_lowercase();
        let (secure, rest) = if lower.starts_with("http://") {
            (false, &location["http://".len()..])
        } else if lower.starts_with("https://") {
            (true, &location["https://".len()..])
        } else if let Some(rest) = location.strip_prefix("//") {
            (self.secure, rest)
        } else {
            return self.relative(location);
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let (host, port) = match authority.strip_prefix('[') {
            Some(inner) => {
                let (host, port) = inner.split_once(']')?;
                host.parse::<IpAddr>().ok()?;
                (host, port.strip_prefix(':').or(if port.is_empty() { Some("") } else { None })?)
            }
            None => authority.split_once(':').unwrap_or((authority, "")),
        };
        if host.is_empty() || host.bytes().any(|byte| byte <= b' ' || byte >= 0x7f) {
            return None;
        }
        let port = if port.is_empty() { None } else { Some(port.parse().ok()?) };
        Some(Url { secure, host: host.to_owned(), port, target: target(path) })
    }

    fn relative(&self, location: &str) -> Option<Url> {
        // A colon before the path means another scheme, as in `mailto:x`.
        let first = location.split(['/', '?', '#']).next().unwrap_or_default();
        if first.contains(':') {
            return None;
        }
        let path = self.target.split('?').next().unwrap_or_default();
        let target = if location.is_empty() || location.starts_with('#') {
            self.target.clone()
        } else if location.starts_with('/') {
            target(location)
        } else if location.starts_with('?') {
            target(&format!("{path}{location}"))
        } else {
            let directory = &path[..=path.rfind('/').unwrap_or(0)];
            target(&format!("{directory}{location}"))
        };
        Some(Url { target: without_dots(&target), ..self.clone() })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.target)
    }
}

/// Returns the path and the query for a request line. Bytes that a request line cannot contain are escaped, and
/// existing escapes stay. The fragment is removed.
fn target(path: &str) -> String {
    let path = path.split('#').next().unwrap_or_default();
    let mut target = String::with_capacity(path.len() + 1);
    if !path.starts_with('/') {
        target.push('/');
    }
    for byte in path.bytes() {
        if byte <= b' ' || byte >= 0x7f || b"\"<>\\^`{|}".contains(&byte) {
            target.push_str(&format!("%{byte:02X}"));
        } else {
            target.push(char::from(byte));
        }
    }
    target
}

/// Removes dot segments: `/a/../b/./c` becomes `/b/c`.
fn without_dots(target: &str) -> String {
    let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
    let mut kept: Vec<&str> = Vec::new();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    for (at, part) in parts.iter().enumerate() {
        let last = at + 1 == parts.len();
        match *part {
            ".." => {
                kept.pop();
                if last {
                    kept.push("");
                }
            }
            "." if last => kept.push(""),
            "." => {}
            part => kept.push(part),
        }
    }
    let path = format!("/{}", kept.join("/"));
    query.map_or(path.clone(), |query| format!("{path}?{query}"))
}

#[cfg(test)]
mod tests {
    use nodlet_fuzz::cases;

    use super::*;

    #[test]
    fn a_path_is_escaped_for_the_request_line() {
        for (path, expected) in [
            ("", "http://10.0.0.1:80/"),
            ("/", "http://10.0.0.1:80/"),
            ("healthz", "http://10.0.0.1:80/healthz"),
            ("/a?b=c&d=%20#f", "http://10.0.0.1:80/a?b=c&d=%20"),
            ("?x=1", "http://10.0.0.1:80/?x=1"),
            ("/a b\r\nX: y", "http://10.0.0.1:80/a%20b%0D%0AX:%20y"),
            ("/ü", "http://10.0.0.1:80/%C3%BC"),
        ] {
            assert_eq!(Url::new(false, "10.0.0.1", 80, path).to_string(), expected, "{path:?}");
        }
        assert_eq!(Url::new(false, "fd00::1", 8080, "/x").to_string(), "http://[fd00::1]:8080/x");
    }

    #[test]
    fn a_redirect_is_resolved_against_the_requested_url() {
        let base = Url::new(false, "10.0.0.1", 8080, "/a/b?q=1");
        const CASES: &str = "
            http://10.0.0.1:8080/x => /x
            http://10.0.0.1:8080/a/x => x
            http://10.0.0.1:8080/x?y => ../x?y
            http://10.0.0.1:8080/x/ => ../../../x/.
            http://10.0.0.1:8080/a/c => /a/./b/../c
            http://10.0.0.1:8080/a/b?z => ?z
            http://10.0.0.1:8080/a/b?q=1 => #f
            http://10.0.0.1:9/y => http://10.0.0.1:9/y
            http://other/ => HTTP://other
            https://10.0.0.1/ => https://10.0.0.1/
            http://h:1/z => //h:1/z
            http://h/z => http://u:p@h/z
            http://[fd00::1]:81/z => http://[fd00::1]:81/z
            - => mailto:x
            - => http://
            - => http://h:x/
            - => http://[fd00::1]x/
            - => http://a b/
        ";
        for [expected, location] in cases::<2>(CASES) {
            let url = base.join(location).map_or("-".to_owned(), |url| url.to_string());
            assert_eq!(url, expected, "{location:?}");
        }
    }
}
