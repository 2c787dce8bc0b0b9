//! The proxy between this process and a registry, of the variables `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, which mean
//! what they mean for podman, containerd and kubelets.

use std::fmt;
use std::net::{IpAddr, TcpStream};

use nodlet_cluster::pod_cidrs::{contains, parse_range};
use nodlet_kube::base64;
use nodlet_wire::http::{Connection, HttpError, Request, Stream};
use nodlet_wire::timeout::within;
use smol::Async;

use super::{CONNECT_WITHIN, RemoteError};

/// A proxy, which speaks HTTP without TLS.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Proxy {
    /// The host and the port.
    pub(super) address: String,
    /// The base64 of `user:password` for the proxy.
    user: Option<String>,
}

/// The proxy for a server: `host` with a port, if the URL has one, and its `name` or address alone. `None` for a direct
/// connection.
///
/// # Errors
/// The variable names a proxy that cannot be used. The text does not contain its password.
pub(super) fn of(
    host: &str,
    name: &str,
    is_plain: bool,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<Proxy>, RemoteError> {
    let get = |names: [&str; 2]| names.into_iter().filter_map(variable).find(|value| !value.is_empty());
    let names = if is_plain { ["HTTP_PROXY", "http_proxy"] } else { ["HTTPS_PROXY", "https_proxy"] };
    let Some(url) = get(names) else { return Ok(None) };
    if is_direct(host, name, &get(["NO_PROXY", "no_proxy"]).unwrap_or_default()) {
        return Ok(None);
    }
    let rest = url.strip_prefix("http://").unwrap_or(&url).trim_end_matches('/');
    let (user, address) = match rest.rsplit_once('@') {
        Some((user, address)) => (Some(base64::encode(&decoded(user))), address),
        None => (None, rest),
    };
    match address.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()) {
        Some(_) if !rest.contains('/') => Ok(Some(Proxy { address: address.to_owned(), user })),
        _ => Err(RemoteError::Invalid(format!("{}: the proxy must be http://HOST:PORT", names[0]))),
    }
}

/// Whether `NO_PROXY` names the server, or it is this machine.
fn is_direct(host: &str, name: &str, exceptions: &str) -> bool {
    let address: Option<IpAddr> = name.parse().ok();
    let is_it = |exception: &str| {
        if let (Some(range), Some(address)) = (parse_range(exception), address) {
            return contains(range, address);
        }
        let suffix = exception.trim_start_matches('*');
        // An exception with a port is for that port alone.
        let ends = [host, name].into_iter().filter_map(|host| host.strip_suffix(suffix)).any(|rest| {
            rest.is_empty() || address.is_none() && (rest.ends_with('.') || suffix.starts_with('.'))
        });
        exception == "*" || !suffix.is_empty() && ends
    };
    name == "localhost"
        || address.is_some_and(|address| address.is_loopback())
        || exceptions.split(',').map(str::trim).any(is_it)
}

/// A part of a URL without `%`.
fn decoded(text: &str) -> Vec<u8> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let code = part.get(..2).and_then(|code| u8::from_str_radix(code, 16).ok());
        bytes.push(code.unwrap_or(b'%'));
        bytes.extend_from_slice(&part.as_bytes()[if code.is_some() { 2 } else { 0 }..]);
    }
    bytes
}

impl Proxy {
    /// Makes the proxy forward a connection to a host and a port. Returns the connection.
    ///
    /// # Errors
    /// The proxy refuses, or does not answer in time.
    pub(super) async fn tunnel(
        &self,
        socket: Async<TcpStream>,
        to: &str,
    ) -> Result<Async<TcpStream>, RemoteError> {
        let failed =
            |why: &dyn fmt::Display| RemoteError::Connect(format!("the proxy {}: {why}", self.address));
        let user = self.user.as_ref().map(|user| format!("Basic {user}"));
        let headers: Vec<_> = user.iter().map(|value| ("Proxy-Authorization", value.as_str())).collect();
        let request = Request { method: "CONNECT", target: to, host: to, headers: &headers, body: &[] };
        let mut connection = Connection::new(Stream::Plain(socket));
        let head = within(CONNECT_WITHIN, connection.send(&request)).await;
        let head = head.ok_or_else(|| failed(&"it does not respond"))?.map_err(|error| match error {
            HttpError::Ended => failed(&"it closed the connection"),
            HttpError::Io(error) => failed(&error),
            HttpError::Tls(_) | HttpError::TooLarge | HttpError::Malformed(_) => {
                failed(&"it does not respond with HTTP")
            }
        })?;
        if !(200..300).contains(&head.status) {
            return Err(failed(&format_args!("it responded with status {}", head.status)));
        }
        match connection.into_stream() {
            Some(Stream::Plain(socket)) => Ok(socket),
            Some(Stream::Tls(_)) | None => Err(failed(&"it sends more than a response")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::connect;
    use super::*;

    fn proxy(host: &str, is_plain: bool, variables: &[(&str, &str)]) -> Result<Option<Proxy>, String> {
        let variable =
            |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        let (name, _) = connect::parts(host);
        of(host, name, is_plain, &variable).map_err(|error| error.to_string())
    }

    #[test]
    fn the_variable_of_the_protocol_names_the_proxy() {
        let at = |address: &str, user: Option<&[u8]>| {
            Ok(Some(Proxy { address: address.to_owned(), user: user.map(base64::encode) }))
        };
        let wrong = || Err("HTTPS_PROXY: the proxy must be http://HOST:PORT".to_owned());
        for (variables, expected) in [
            (&[][..], Ok(None)),
            (&[("HTTP_PROXY", "http://a:1")], Ok(None)),
            (&[("HTTPS_PROXY", "http://a:1"), ("https_proxy", "http://b:1")], at("a:1", None)),
            (&[("HTTPS_PROXY", ""), ("https_proxy", "http://b:1/")], at("b:1", None)),
            (&[("HTTPS_PROXY", "a:3128")], at("a:3128", None)),
            (&[("HTTPS_PROXY", "http://me:p%40ss%@[fd00::1]:1")], at("[fd00::1]:1", Some(b"me:p@ss%"))),
            (&[("HTTPS_PROXY", "socks5://a:1")], wrong()),
            (&[("HTTPS_PROXY", "https://me:secret@a:1")], wrong()),
            (&[("HTTPS_PROXY", "http://a:1\r\nB: c")], wrong()),
            (&[("HTTPS_PROXY", "http://a")], wrong()),
        ] {
            assert_eq!(proxy("registry.example", false, variables), expected, "{variables:?}");
        }
        let variables = [("HTTP_PROXY", "http://a:1"), ("HTTPS_PROXY", "http://b:1")];
        assert_eq!(proxy("registry.example", true, &variables), at("a:1", None));
    }

    #[test]
    fn exceptions_are_names_domains_addresses_and_ranges() {
        for (host, exceptions, is_direct) in [
            ("localhost:5000", "", true),
            ("127.0.0.1:5000", "", true),
            ("[::1]:5000", "", true),
            ("a.example.com", "", false),
            ("a.example.com", "*", true),
            ("a.example.com", " x, example.com ", true),
            ("example.com", "example.com", true),
            ("notexample.com", "example.com", false),
            ("example.com", ".example.com", false),
            ("a.example.com", ".example.com", true),
            ("a.example.com", "*.example.com", true),
            ("a.example.com", "example.com:5000", false),
            ("a.example.com:5000", "example.com:5000", true),
            ("a.example.com", ",,.,", false),
            ("192.0.2.7:5000", "192.0.2.0/24", true),
            ("192.0.2.7", "192.0.3.0/24", false),
            ("192.0.2.7", "0.0.0.0/0", true),
            ("192.0.2.7", "192.0.2.7/33", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "2.7", false),
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
