//! The proxy between this process and a registry, of the variables `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, as
//! Go reads them for podman, containerd and kubelets.

use std::net::IpAddr;

use nodlet_base64 as base64;

use super::{Origin, RemoteError};

/// The header with the user of a proxy.
pub(super) const AUTHORIZATION: &str = "Proxy-Authorization";

/// A proxy, which speaks HTTP without TLS.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Proxy {
    /// The host and the port.
    pub(super) address: String,
    /// `user:password` for the proxy.
    user: Option<Vec<u8>>,
}

impl Proxy {
    /// The value of [`AUTHORIZATION`].
    pub(super) fn authorization(&self) -> Option<String> {
        self.user.as_ref().map(|user| format!("Basic {}", base64::encode(user)))
    }
}

/// The proxy for a server; `None` for a direct connection. Variables with names in lower case count where those in
/// upper case are not set.
///
/// # Errors
/// The variable names a proxy that cannot be used. The text does not contain its password.
pub(super) fn of(
    origin: &Origin,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Proxy>, RemoteError> {
    let get = |name: &str| {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        set(name).or_else(|| set(&name.to_ascii_lowercase()))
    };
    let name = if origin.is_plain { "HTTP_PROXY" } else { "HTTPS_PROXY" };
    let Some(url) = get(name) else { return Ok(None) };
    if is_direct(origin, &get("NO_PROXY").unwrap_or_default()) {
        return Ok(None);
    }
    let rest = match url.split_once("://") {
        Some(("http", rest)) => rest,
        Some(_) => "",
        None => &url,
    };
    let rest = rest.split('/').next().unwrap_or_default();
    let (user, address) = match rest.rsplit_once('@') {
        Some((user, address)) => (Some(decoded(user)), address),
        None => (None, rest),
    };
    if address.is_empty() || !address.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(RemoteError::Invalid(format!("{name}: the proxy must be http://HOST:PORT")));
    }
    let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let address = if has_port { address.to_owned() } else { format!("{address}:80") };
    Ok(Some(Proxy { address, user }))
}

/// The name or the address of a host, and its port.
pub(super) fn parts(origin: &Origin) -> (&str, u16) {
    let split = origin.host.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse().ok()?)));
    let (name, port) = split.unwrap_or((&origin.host, if origin.is_plain { 80 } else { 443 }));
    (name.trim_start_matches('[').trim_end_matches(']'), port)
}

/// Whether `NO_PROXY` names the server, or it is this machine.
fn is_direct(origin: &Origin, exceptions: &str) -> bool {
    let (name, port) = parts(origin);
    let name = name.to_ascii_lowercase();
    let address: Option<IpAddr> = name.parse().ok();
    if name == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    exceptions.split(',').map(|entry| entry.trim().to_ascii_lowercase()).any(|entry| {
        if let (Some((range, bits)), Some(address)) = (entry.split_once('/'), address) {
            return is_in(address, range, bits);
        }
        let (entry, only) = match entry.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>())) {
            Some((host, Ok(only))) if !host.contains(':') || host.ends_with(']') => (host, Some(only)),
            _ => (&entry[..], None),
        };
        let entry = entry.trim_start_matches('[').trim_end_matches(']');
        let entry = entry.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(entry);
        let is_it = match entry.strip_prefix('.') {
            Some(domain) => !domain.is_empty() && name.ends_with(entry),
            None => {
                entry == "*"
                    || name == entry
                    || (!entry.is_empty() && name.strip_suffix(entry).is_some_and(|rest| rest.ends_with('.')))
            }
        };
        is_it && only.is_none_or(|only| only == port)
    })
}

/// Whether an address has the first `bits` of `range`.
fn is_in(address: IpAddr, range: &str, bits: &str) -> bool {
    let number = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)) << 96, 32),
        IpAddr::V6(address) => (u128::from(address), 128),
    };
    let (Ok(range), Ok(bits)) = (range.parse(), bits.parse::<u32>()) else { return false };
    let ((address, size), (range, of)) = (number(address), number(range));
    size == of && bits <= size && (address ^ range).checked_shr(128 - bits).unwrap_or(0) == 0
}

/// A part of a URL without `%`.
fn decoded(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, more @ ..] = rest {
        let code =
            more.get(..2).and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        match code {
            Some(code) if *first == b'%' => {
                bytes.push(code);
                rest = &more[2..];
            }
            _ => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(host: &str, is_plain: bool, variables: &[(&str, &str)]) -> Result<Option<Proxy>, String> {
        let origin = Origin { is_plain, host: host.to_owned() };
        let variable =
            |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        of(&origin, variable).map_err(|error| error.to_string())
    }

    #[test]
    fn the_variable_of_the_protocol_names_the_proxy() {
        let at = |address: &str, user: Option<&[u8]>| {
            Ok(Some(Proxy { address: address.to_owned(), user: user.map(<[u8]>::to_vec) }))
        };
        let wrong = || Err("HTTPS_PROXY: the proxy must be http://HOST:PORT".to_owned());
        for (variables, expected) in [
            (&[][..], Ok(None)),
            (&[("HTTP_PROXY", "http://a:1")], Ok(None)),
            (&[("HTTPS_PROXY", "http://a:1"), ("https_proxy", "http://b:1")], at("a:1", None)),
            (&[("HTTPS_PROXY", ""), ("https_proxy", "http://b/")], at("b:80", None)),
            (&[("HTTPS_PROXY", "a:3128")], at("a:3128", None)),
            (&[("HTTPS_PROXY", "http://me:p%40ss%@[fd00::1]:1")], at("[fd00::1]:1", Some(b"me:p@ss%"))),
            (&[("HTTPS_PROXY", "socks5://a:1")], wrong()),
            (&[("HTTPS_PROXY", "https://me:secret@a:1")], wrong()),
            (&[("HTTPS_PROXY", "http://a:1\r\nB: c")], wrong()),
        ] {
            assert_eq!(proxy("registry.example", false, variables), expected, "{variables:?}");
        }
        let variables = [("HTTP_PROXY", "http://a:1"), ("HTTPS_PROXY", "http://b:1")];
        assert_eq!(proxy("registry.example", true, &variables), at("a:1", None));
    }

    #[test]
    fn exceptions_are_those_of_go() {
        for (host, exceptions, is_direct) in [
            ("localhost:5000", "", true),
            ("127.0.0.1:5000", "", true),
            ("[::1]:5000", "", true),
            ("a.example.com", "", false),
            ("a.example.com", "*", true),
            ("A.example.com", " x, EXAMPLE.com ", true),
            ("example.com", "example.com", true),
            ("notexample.com", "example.com", false),
            ("example.com", ".example.com", false),
            ("a.example.com", ".example.com", true),
            ("a.example.com", "*.example.com", true),
            ("a.example.com", "example.com:443", true),
            ("a.example.com", "example.com:5000", false),
            ("a.example.com:5000", "example.com:5000", true),
            ("a.example.com", ",,.,", false),
            ("192.0.2.7:5000", "192.0.2.0/24", true),
            ("192.0.2.7", "192.0.3.0/24", false),
            ("192.0.2.7", "0.0.0.0/0", true),
            ("192.0.2.7", "192.0.2.7/33", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7:5000", "192.0.2.7:5000", true),
            ("[fd00::1]:5000", "fd00::/8", true),
            ("[fd00::1]:5000", "fd00::1", true),
            ("[fd00::1]:5000", "[fd00::1]:5000", true),
            ("[fd00::1]:5000", "[fd00::1]:5001", false),
            ("fd.example", "fd00::/8", false),
        ] {
            let variables = [("HTTPS_PROXY", "http://proxy:1"), ("NO_PROXY", exceptions)];
            let found = proxy(host, false, &variables).expect("valid");
            assert_eq!(found.is_none(), is_direct, "{host} {exceptions}");
        }
    }
}
