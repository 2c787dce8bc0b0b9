//! `registries.conf`: where images are pulled from. nodlet reads the part of containers-registries.conf(5) that names
//! registries, their mirrors, and whether they speak plain HTTP.

use std::path::Path;

use nodlet_kernel::own_file;
use nodlet_rootfs::Reference;

use crate::error::VerbError;

/// The file below the root that lists the registries.
const FILE: &str = "etc/containers/registries.conf";

/// The most bytes of the file.
const FILE_MAX: usize = 256 * 1024;

/// Keys outside of `[[registry]]` that have no meaning for names that always have a registry.
const IRRELEVANT: [&str; 2] = ["unqualified-search-registries", "short-name-mode"];

/// A repository at a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The host of the registry, and its port if that is not the protocol's.
    pub(super) host: String,
    /// The repository.
    pub(super) path: String,
    /// Whether the registry speaks HTTP without TLS.
    pub(super) is_plain: bool,
}

impl Place {
    /// The repository with its registry, for messages and for the choice of credentials.
    pub(super) fn repository(&self) -> String {
        format!("{}/{}", self.host, self.path)
    }

    fn new(location: &str, is_plain: bool) -> Result<Place, String> {
        let (host, path) =
            location.split_once('/').ok_or_else(|| format!("{location:?} has no repository"))?;
        let is_safe = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:/[]".contains(&byte))
        };
        if is_safe(host) && is_safe(path) {
            Ok(Place { host: host.to_owned(), path: path.to_owned(), is_plain })
        } else {
            Err(format!("{location:?} is not a location of a repository"))
        }
    }
}

/// A `[[registry]]` or a `[[registry.mirror]]`.
#[derive(Debug, Default)]
struct Entry {
    prefix: Option<String>,
    location: Option<String>,
    insecure: bool,
    blocked: bool,
    by_digest_only: bool,
    mirrors: Vec<Entry>,
}

/// The places from which an image is pulled, in their order: mirrors first. With `only_listed`, a registry that the
/// file does not list is an error; otherwise it is contacted with TLS.
pub(super) fn places(root: &Path, image: &Reference, only_listed: bool) -> Result<Vec<Place>, VerbError> {
    let path = root.join(FILE);
    let wrong = |why: &dyn std::fmt::Display| VerbError::new(format!("{}: {why}", path.display()));
    let text = own_file::if_exists(own_file::read_linked(&path)).map_err(|error| wrong(&error))?;
    let text = text.unwrap_or_default();
    if text.len() > FILE_MAX {
        return Err(wrong(&format_args!("more than {FILE_MAX} bytes")));
    }
    choose(&text, image, only_listed).map_err(|error| wrong(&error))
}

fn choose(text: &str, image: &Reference, only_listed: bool) -> Result<Vec<Place>, String> {
    let entries = parse(text)?;
    let name = image.name();
    let found = entries.iter().filter_map(|entry| Some((rest_of(&name, entry.prefix()?)?, entry)));
    let Some((rest, entry)) = found.min_by_key(|(rest, _)| rest.len()) else {
        return if only_listed {
            Err(format!(
                "{name}: no [[registry]] with this prefix is listed, so no registry is asked: list it, or load the \
                 image with 'nodlet image load FILE'"
            ))
        } else {
            Ok(vec![Place::new(&real(&name), false)?])
        };
    };
    if entry.blocked {
        return Err(format!("{name}: its registry is blocked"));
    }
    let mut places = Vec::new();
    for mirror in &entry.mirrors {
        if mirror.by_digest_only && image.digest().is_none() {
            continue;
        }
        let location = mirror.location.as_deref().ok_or("a [[registry.mirror]] has no location")?;
        places.push(Place::new(&real(&format!("{location}{rest}")), mirror.insecure)?);
    }
    let location = match (&entry.location, entry.prefix()) {
        (Some(location), _) => format!("{location}{rest}"),
        (None, Some(_) | None) => name.clone(),
    };
    places.push(Place::new(&real(&location), entry.insecure)?);
    Ok(places)
}

impl Entry {
    fn prefix(&self) -> Option<&str> {
        self.prefix.as_deref().or(self.location.as_deref())
    }
}

/// Docker's registry has another host than its images' names say.
fn real(name: &str) -> String {
    match name.strip_prefix("docker.io/") {
        Some(rest) => format!("registry-1.docker.io/{rest}"),
        None => name.to_owned(),
    }
}

/// The rest of a name after a prefix. `*.example.com` stands for all hosts of that domain.
fn rest_of<'n>(name: &'n str, prefix: &str) -> Option<&'n str> {
    if let Some(domain) = prefix.strip_prefix("*.") {
        let (host, rest) = name.split_at(name.find('/')?);
        let below = host.strip_suffix(domain)?.strip_suffix('.')?;
        return (!below.is_empty()).then_some(rest);
    }
    let rest = name.strip_prefix(prefix)?;
    rest.is_empty().then_some(rest).or_else(|| rest.starts_with('/').then_some(rest))
}

/// Parses the part of TOML that the file needs: tables of strings and booleans, a value a line.
fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut entries: Vec<Entry> = Vec::new();
    let (mut number, mut lines) = (0, text.lines());
    while let Some(line) = lines.next() {
        number += 1;
        let wrong = |what: &str| Err(format!("line {number}: {what}"));
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with('[') {
            let table = line.split('#').next().unwrap_or_default().trim();
            match (table, entries.last_mut()) {
                ("[[registry]]", _) => entries.push(Entry::default()),
                ("[[registry.mirror]]", Some(entry)) => entry.mirrors.push(Entry::default()),
                _ => return wrong("only the tables [[registry]] and [[registry.mirror]] are supported"),
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { return wrong("expected KEY = VALUE") };
        let (key, value) = (key.trim(), value.trim());
        let Some(entry) = entries.last_mut() else {
            if !IRRELEVANT.contains(&key) {
                return wrong(&format!("the key {key} is not supported"));
            }
            let mut skipped = 0;
            let mut end = value.contains(']') || !value.starts_with('[');
            while !end {
                let Some(line) = lines.next() else { return wrong("the list has no end") };
                skipped += 1;
                end = line.contains(']');
            }
            number += skipped;
            continue;
        };
        let is_mirror = !entry.mirrors.is_empty();
        let entry = if is_mirror { entry.mirrors.last_mut() } else { Some(entry) };
        let Some(entry) = entry else { continue };
        let truth = || match value.split('#').next().unwrap_or_default().trim() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(format!("line {number}: {key} must be true or false")),
        };
        match key {
            "location" => entry.location = Some(string(value, key, number)?),
            "insecure" => entry.insecure = truth()?,
            "prefix" if !is_mirror => entry.prefix = Some(string(value, key, number)?),
            "blocked" if !is_mirror => entry.blocked = truth()?,
            "pull-from-mirror" if is_mirror => match string(value, key, number)?.as_str() {
                "all" => {}
                "digest-only" => entry.by_digest_only = true,
                _ => return wrong("pull-from-mirror must be \"all\" or \"digest-only\""),
            },
            _ => return wrong(&format!("the key {key} is not supported")),
        }
    }
    Ok(entries)
}

/// A TOML string without escapes.
fn string(value: &str, key: &str, number: usize) -> Result<String, String> {
    let quoted = ['"', '\''].into_iter().find_map(|quote| {
        let (text, rest) = value.strip_prefix(quote)?.split_once(quote)?;
        let rest = rest.trim_start();
        (rest.is_empty() || rest.starts_with('#')).then_some(text)
    });
    match quoted {
        Some(text) if !text.contains('\\') => Ok(text.to_owned()),
        Some(_) | None => Err(format!("line {number}: {key} must be a string in quotation marks")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
unqualified-search-registries = [
  \"docker.io\", # as Debian has it
]
[[registry]]
prefix = \"example.com\"
location = 'registry.example.com/all' # not escaped
[[registry.mirror]]
location = \"10.0.0.1:5000/mirror\"
insecure = true
[[registry.mirror]]
location = \"mirror.example.com\"
pull-from-mirror = \"digest-only\"
[[registry]]
location = \"example.com/team\"
[[registry]]
prefix = \"*.corp\"
[[registry]]
location = \"bad.example\"
blocked = true
[[registry]]
location = \"docker.io\"
";

    fn check(image: &str, expected: Result<&[&str], &str>) {
        let image = Reference::parse(image).expect("a name");
        let places = choose(FILE, &image, true).map(|places| {
            let show = |place: &Place| {
                let protocol = if place.is_plain { "http" } else { "https" };
                format!("{protocol}://{}", place.repository())
            };
            places.iter().map(show).collect::<Vec<_>>()
        });
        match (places, expected) {
            (Ok(places), Ok(expected)) => assert_eq!(places, expected, "{image}"),
            (Err(error), Err(part)) => assert!(error.contains(part), "{image}: {error}"),
            (places, expected) => panic!("{image}: {places:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn the_longest_prefix_decides_and_mirrors_come_first() {
        check(
            "example.com/a/b:1",
            Ok(&["http://10.0.0.1:5000/mirror/a/b", "https://registry.example.com/all/a/b"]),
        );
        let by_digest = format!("example.com/a@sha256:{}", "0".repeat(64));
        check(
            &by_digest,
            Ok(&[
                "http://10.0.0.1:5000/mirror/a",
                "https://mirror.example.com/a",
                "https://registry.example.com/all/a",
            ]),
        );
        check("example.com/team/app", Ok(&["https://example.com/team/app"]));
        check("r.corp/app", Ok(&["https://r.corp/app"]));
        check("nginx", Ok(&["https://registry-1.docker.io/library/nginx"]));
    }

    #[test]
    fn registries_that_are_not_listed_or_blocked_are_not_asked() {
        check("example.community/a", Err("no [[registry]] with this prefix is listed"));
        check("corp/a:1", Ok(&["https://registry-1.docker.io/corp/a"]));
        check("bad.example/a", Err("is blocked"));
        let image = Reference::parse("other.example/a").expect("a name");
        let place = Place { host: "other.example".into(), path: "a".into(), is_plain: false };
        assert_eq!(choose("", &image, false), Ok(vec![place]));
    }

    #[test]
    fn unsupported_settings_are_rejected_by_name() {
        for (text, expected) in [
            ("credential-helpers = []", "line 1: the key credential-helpers is not supported"),
            ("[aliases]", "line 1: only the tables [[registry]]"),
            ("[[registry]]\nmirror-by-digest-only = true", "line 2: the key mirror-by-digest-only"),
            ("[[registry]]\nlocation = a", "line 2: location must be a string in quotation marks"),
            ("[[registry]]\nlocation = \"a\\u0041\"", "line 2: location must be"),
            ("[[registry]]\ninsecure = 1", "line 2: insecure must be true or false"),
            ("[[registry.mirror]]", "line 1: only"),
            ("[[registry]]\nblocked", "line 2: expected KEY = VALUE"),
            ("short-name-mode = [", "line 1: the list has no end"),
        ] {
            let error = parse(text).map(|_| ()).expect_err(text);
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
