//! Routes: the meaning of a URL.

use super::Status;
use nodlet_kube::kinds::{KINDS, Row};
use nodlet_registry::objects::Key;

/// The maximum number of parameters in one query.
const MAX_PARAMETERS: usize = 512;

/// The target of a request.
pub(super) enum Target {
    Version,
    Healthy,
    /// `/api`
    Versions,
    /// `/apis`
    Groups,
    /// `/apis/settings.k8s.io`: the group with this version.
    Group(&'static str),
    /// `/api/v1`, or the corresponding path of the group with this version.
    Resources(&'static str),
    /// `/openapi/v3`
    OpenApi,
    /// `/openapi/v3/api/v1`, or the corresponding path of the group with this version.
    OpenApiOf(&'static str),
    /// `/api/v1/nodes/{node}/proxy/debug/ring`
    Ring {
        node: String,
    },
    /// `/nodlet/push`, which has no counterpart in Kubernetes.
    Push,
    /// `/nodlet/cluster`, with which `nodlet join` and `nodlet leave` notify the agent.
    Cluster,
    Objects(Objects),
}

/// Whether a client of this target stays connected until it has ended, independent of the rest of the
/// request.
pub(super) fn stays(target: &Target) -> bool {
    let Target::Objects(Objects { subresource: Some(subresource), .. }) = target else { return false };
    matches!(&**subresource, "exec" | "attach" | "portforward")
}

/// All objects of a resource, one object, or a subresource of one.
pub(super) struct Objects {
    pub(super) row: &'static Row,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) subresource: Option<String>,
}

/// The decoded segments of a path.
pub(super) fn segments(path: &str) -> Result<Vec<String>, Status> {
    path.split('/')
        .filter(|segment| !segment.is_empty())
        .map(|segment| decode(segment, false))
        .collect::<Option<_>>()
        .ok_or_else(|| Status::bad_request("the path is not percent-encoded UTF-8"))
}

pub(super) fn parse(path: &str) -> Result<Target, Status> {
    let segments = segments(path)?;
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    Ok(match segments[..] {
        ["version"] => Target::Version,
        ["healthz" | "livez" | "readyz", ..] => Target::Healthy,
        ["api"] => Target::Versions,
        ["apis"] => Target::Groups,
        ["openapi", "v3"] => Target::OpenApi,
        ["openapi", "v3", "api", "v1"] => Target::OpenApiOf("v1"),
        ["openapi", "v3", "apis", group, number] => Target::OpenApiOf(version(group, Some(number))?),
        ["nodlet", "push"] => Target::Push,
        ["nodlet", "cluster"] => Target::Cluster,
        ["apis", group] => Target::Group(version(group, None)?),
        // Kubernetes serves a node's data other than objects through the node's proxy.
        ["api", "v1", "nodes", node, "proxy", "debug", "ring"] => Target::Ring { node: node.into() },
        ["api", "v1", ref rest @ ..] => of_group("v1", rest, 2)?,
        ["apis", group, number, ref rest @ ..] => of_group(version(group, Some(number))?, rest, 1)?,
        _ => return Err(Status::no_such_path()),
    })
}

/// The meaning of the rest of a path below a version. `most` is how many segments may follow those of a resource.
fn of_group(version: &'static str, rest: &[&str], most: usize) -> Result<Target, Status> {
    let row = |name: &str| KINDS.iter().find(|row| row.version == version && row.plural == name);
    let (row, namespace, rest) = match rest {
        [] => return Ok(Target::Resources(version)),
        // A namespace is an object, and contains others.
        ["namespaces", namespace, resource, rest @ ..] => {
            (row(resource).filter(|row| row.namespaced), Some(*namespace), rest)
        }
        [resource, rest @ ..] => (row(resource).filter(|row| rest.is_empty() || !row.namespaced), None, rest),
    };
    let row = row.filter(|_| rest.len() <= most).ok_or_else(Status::no_such_path)?;
    Ok(Target::Objects(Objects {
        row,
        namespace: namespace.map(Into::into),
        name: rest.first().map(|&name| name.into()),
        subresource: rest.get(1).map(|&part| part.into()),
    }))
}

/// Returns the `apiVersion` of a group in the requested version.
fn version(group: &str, number: Option<&str>) -> Result<&'static str, Status> {
    let is_it = |version: &&'static str| {
        version
            .split_once('/')
            .is_some_and(|(of, its)| of == group && number.is_none_or(|number| number == its))
    };
    super::fixed::groups().find(is_it).ok_or_else(Status::no_such_path)
}

/// Returns the key of one object.
pub(super) fn key(row: &'static Row, namespace: Option<&str>, name: &str) -> Result<Key, Status> {
    match namespace {
        None if row.namespaced => Err(Status::no_such_path()),
        _ => Ok(Key::new(row.plural, namespace.unwrap_or(""), name)),
    }
}

/// The query of a URL, after `?`.
#[derive(Debug, Default)]
pub(super) struct Query {
    parameters: Vec<(String, String)>,
}

impl Query {
    pub(super) fn parse(text: &str) -> Result<Query, Status> {
        let mut parameters = Vec::new();
        for parameter in text.split('&').filter(|parameter| !parameter.is_empty()) {
            if parameters.len() == MAX_PARAMETERS {
                return Err(Status::bad_request(format!(
                    "a query can have at most {MAX_PARAMETERS} parameters"
                )));
            }
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let (Some(name), Some(value)) = (decode(name, true), decode(value, true)) else {
                return Err(Status::bad_request("the query is not percent-encoded UTF-8"));
            };
            parameters.push((name, value));
        }
        Ok(Query { parameters })
    }

    /// Gives parameters of a name another one.
    pub(super) fn rename(&mut self, from: &str, to: &str) {
        for (name, _) in self.parameters.iter_mut().filter(|(name, _)| name == from) {
            to.clone_into(name);
        }
    }

    /// Sets a parameter, whatever it was before.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.parameters.retain(|(known, _)| known != name);
        self.parameters.push((name.to_owned(), value.to_owned()));
    }

    /// Returns the first parameter of this name.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.parameters.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Whether a flag is set, as in Kubernetes: it is present, and neither `false` nor `0`.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !matches!(value, "false" | "0" | "False" | "FALSE" | "f" | "F"))
    }

    /// Returns a number, which must be at least `least`.
    pub(super) fn number(&self, name: &str, least: i64) -> Result<Option<u64>, Status> {
        let Some(text) = self.get(name).filter(|text| !text.is_empty()) else { return Ok(None) };
        match text.parse::<i64>() {
            Ok(number) if number >= least => Ok(u64::try_from(number).ok()),
            _ => Err(Status::bad_request(format!(
                "{name}: Invalid value: {text:?}: must be a number greater than or equal to {least}"
            ))),
        }
    }
}

/// Decodes percent-encoding; in a query, `+` is a space.
fn decode(text: &str, query: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                let high = char::from(digits[0]).to_digit(16)?;
                let low = char::from(digits[1]).to_digit(16)?;
                (high * 16 + low) as u8
            }
            b'+' if query => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use nodlet_fuzz::cases;

    use super::*;

    fn show(path: &str) -> String {
        match parse(path) {
            Ok(Target::Objects(objects)) => format!(
                "{} {} {} {}",
                objects.row.plural,
                objects.namespace.as_deref().unwrap_or("*"),
                objects.name.as_deref().unwrap_or("*"),
                objects.subresource.as_deref().unwrap_or("-")
            ),
            Ok(_) => "fixed".into(),
            Err(status) => status.code.to_string(),
        }
    }

    #[test]
    fn paths_are_routed_as_in_kubernetes() {
        const CASES: &str = "
            /version => fixed
            /livez/ping => fixed
            /api/v1 => fixed
            /api/v1/pods => pods * * -
            /api/v1/namespaces/default/pods => pods default * -
            /api/v1/namespaces/default/pods/web => pods default web -
            /api/v1/namespaces/default/pods/web/log => pods default web log
            /api/v1/namespaces/default/pods/w%65b => pods default web -
            /api/v1/namespaces => namespaces * * -
            /api/v1/namespaces/default => namespaces * default -
            /api/v1/nodes/board => nodes * board -
            /api/v1/nodes/board/proxy/debug/ring => fixed
            /api/v1/nodes/board/proxy/debug => 404
            /api/v1/pods/web => 404
            /api/v1/namespaces/default/nodes => 404
            /api/v1/namespaces/default/pods/web/log/more => 404
            /api/v1/services => services * * -
            /api/v1/namespaces/default/services/web/status => services default web status
            /apis/apps/v1/deployments => 404
            /apis/settings.k8s.io => fixed
            /apis/settings.k8s.io/v1alpha1 => fixed
            /apis/settings.k8s.io/v1alpha1/podpresets => podpresets * * -
            /apis/settings.k8s.io/v1alpha1/namespaces/a/podpresets => podpresets a * -
            /apis/settings.k8s.io/v1alpha1/namespaces/a/podpresets/b => podpresets a b -
            /apis/settings.k8s.io/v1alpha1/namespaces/a/podpresets/b/status => 404
            /apis/settings.k8s.io/v1alpha1/podpresets/b => 404
            /apis/settings.k8s.io/v1alpha1/pods => 404
            /api/v1/podpresets => 404
            /apis/scheduling.k8s.io => fixed
            /apis/scheduling.k8s.io/v1 => fixed
            /apis/scheduling.k8s.io/v1alpha1 => 404
            /apis/scheduling.k8s.io/v1/priorityclasses => priorityclasses * * -
            /apis/scheduling.k8s.io/v1/priorityclasses/high => priorityclasses * high -
            /apis/scheduling.k8s.io/v1/namespaces/a/priorityclasses/high => 404
            /apis/scheduling.k8s.io/v1/podpresets => 404
            / => 404
            /api/v1/namespaces/%ff/pods => 400
            /api/v1/namespaces/%2/pods => 400
        ";
        for [path, expected] in cases::<2>(CASES) {
            assert_eq!(show(path), expected, "{path}");
        }
    }

    #[test]
    fn queries_are_decoded_and_bounded() {
        let query = Query::parse("command=sh&command=-c&command=echo+a%26b&follow&watch=false&tailLines=5")
            .expect("well-formed");
        assert_eq!(query.all("command").collect::<Vec<_>>(), ["sh", "-c", "echo a&b"]);
        assert!(query.flag("follow"));
        assert!(!query.flag("watch"));
        assert!(!query.flag("none"));
        assert_eq!(query.number("tailLines", 0), Ok(Some(5)));
        assert_eq!(query.number("none", 0), Ok(None));
        let refused = query.number("command", 1).expect_err("no number");
        assert_eq!(
            refused.message,
            "command: Invalid value: \"sh\": must be a number greater than or equal to 1"
        );
        assert!(Query::parse("a=%zz").is_err());
        assert!(Query::parse(&"a&".repeat(MAX_PARAMETERS + 1)).is_err());
    }
}
