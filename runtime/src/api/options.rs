//! The options of requests, checked as Kubernetes checks `ListOptions`, `CreateOptions` and their like.

use serde_json::{Value, json};

use super::{Accepted, FieldValidation, Query, Status};
use nodlet_kube::kinds::Row;
use nodlet_kube::manifest::go_quoted;

/// The errors of the options of a request: field, reason and text.
pub(super) type Wrong = Vec<(&'static str, &'static str, String)>;

/// 422, if there are errors in options of this kind.
pub(super) fn refuse(kind: &str, wrong: &Wrong) -> Result<(), Status> {
    let texts: Vec<String> = wrong.iter().map(|(field, _, text)| format!("{field}: {text}")).collect();
    let all = match &texts[..] {
        [] => return Ok(()),
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    };
    let causes: Vec<Value> = wrong
        .iter()
        .map(|(field, reason, text)| json!({"reason": reason, "message": text, "field": field}))
        .collect();
    let message = format!("{kind}.meta.k8s.io \"\" is invalid: {all}");
    let mut status = Status::invalid(kind, "", message, Vec::new());
    status.details = Some(json!({"group": "meta.k8s.io", "kind": kind, "causes": causes}));
    Err(status)
}

/// An error of a value that is none of the supported ones, which are quoted already.
pub(super) fn unsupported(value: &str, supported: &str) -> (&'static str, String) {
    ("FieldValueNotSupported", format!("Unsupported value: {value}: supported values: {supported}"))
}

/// The options of a request that creates or changes an object.
#[derive(Clone, Copy)]
pub(super) struct WriteOptions {
    pub(super) validation: FieldValidation,
    pub(super) dry_run: bool,
}

impl WriteOptions {
    /// `ValidateCreateOptions` and its like. `kind` is that of the options.
    pub(super) fn of(kind: &str, query: &Query) -> Result<WriteOptions, Status> {
        const MANAGER: &str = "fieldManager";
        let mut wrong = Wrong::new();
        let manager = query.get(MANAGER).unwrap_or("");
        if manager.len() > 128 {
            let text = "Too long: may not be more than 128 bytes".to_owned();
            wrong.push((MANAGER, "FieldValueTooLong", text));
        }
        let is_hidden = |c: char| c.is_control() || c.is_whitespace() && c != ' ';
        for (at, c) in manager.char_indices().filter(|(_, c)| is_hidden(*c)) {
            let (value, code) = (go_quoted(manager), u32::from(c));
            let text = format!("Invalid value: {value}: invalid character U+{code:04X} (at position {at})");
            wrong.push((MANAGER, "FieldValueInvalid", text));
        }
        if kind == "PatchOptions" {
            let is_given = query.get("force").is_some();
            forbid(&mut wrong, "force", is_given, "may not be specified for non-apply patch");
        }
        let given: Vec<&str> = query.all("dryRun").collect();
        let dry_run = dry_run(&given, &mut wrong);
        let validation = match query.get("fieldValidation") {
            Some("Strict") => FieldValidation::Strict,
            None | Some("" | "Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some(other) => {
                let (reason, text) = unsupported(&go_quoted(other), r#""", "Ignore", "Strict", "Warn""#);
                wrong.push(("fieldValidation", reason, text));
                FieldValidation::Strict
            }
        };
        refuse(kind, &wrong)?;
        Ok(WriteOptions { validation, dry_run })
    }
}

/// Fields that occur twice in an object from a client, which a parsed object no longer shows.
pub(super) struct Repeated {
    /// A text for each.
    pub(super) texts: Vec<String>,
    pub(super) options: WriteOptions,
}

impl Repeated {
    /// Whether nothing is to be changed: also if [`Repeated::finish`] will refuse the request.
    pub(super) fn dry_run(&self) -> bool {
        let is_refused = self.options.validation == FieldValidation::Strict && !self.texts.is_empty();
        self.options.dry_run || is_refused
    }

    /// Adds what is said of these fields to the reply to a request, with what the reply says of unknown fields.
    pub(super) fn finish(self, row: &Row, reply: Result<Accepted, Status>) -> Result<Accepted, Status> {
        const STRICT: &str = "strict decoding error: ";
        let mut texts = self.texts;
        match (self.options.validation, reply) {
            (_, reply) if texts.is_empty() => reply,
            (FieldValidation::Strict, reply) => {
                let unknown = reply.err().and_then(|status| {
                    status.message.split_once(STRICT).map(|(_, unknown)| unknown.to_owned())
                });
                texts.extend(unknown);
                let (kind, version, all) = (row.name, row.version, texts.join(", "));
                Err(Status::bad_request(format!(
                    "{kind} in version {version:?} cannot be handled as a {kind}: {STRICT}{all}"
                )))
            }
            (FieldValidation::Warn, Ok(mut accepted)) => {
                accepted.warnings.splice(0..0, texts);
                Ok(accepted)
            }
            (FieldValidation::Warn | FieldValidation::Ignore, reply) => reply,
        }
    }
}

/// `ValidateDryRun`: whether nothing is to be changed.
pub(super) fn dry_run(values: &[&str], wrong: &mut Wrong) -> bool {
    if values.iter().any(|value| *value != "All") {
        let (reason, text) = unsupported(&json!(values).to_string(), "\"All\"");
        wrong.push(("dryRun", reason, text));
    }
    !values.is_empty()
}

/// Returns the number in a parameter, with the error of Go's `strconv.ParseInt`.
pub(super) fn integer(query: &Query, name: &str) -> Result<Option<i64>, Status> {
    let Some(text) = query.get(name) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| {
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let why = if is_number { "value out of range" } else { "invalid syntax" };
        Status::bad_request(format!("strconv.ParseInt: parsing {}: {why}", go_quoted(text)))
    })
}

/// The options of a list.
pub(super) struct ListOptions {
    /// The most objects of the answer; zero for all.
    pub(super) limit: usize,
    /// The version of the first part of a list, and namespace and name of the last object of the parts so far.
    pub(super) after: Option<(u64, String, String)>,
    /// The version that the list must have exactly.
    pub(super) exactly: Option<u64>,
    /// The version that must have been reached.
    pub(super) version: Option<u64>,
}

impl ListOptions {
    /// `ValidateListOptions`, and what the store of Kubernetes checks.
    pub(super) fn of(query: &Query) -> Result<ListOptions, Status> {
        let text = |name| query.get(name).unwrap_or("");
        let limit = integer(query, "limit")?.unwrap_or(0);
        integer(query, "timeoutSeconds")?;
        check_version_match(query, false)?;
        let (given, token) = (text("resourceVersion"), text("continue"));
        let invalid = |why: &str| Status::bad_request(why.to_owned());
        let mut after = None;
        if !token.is_empty() {
            let parsed = token.split_once('/');
            let parsed =
                parsed.and_then(|(version, rest)| Some((version.parse().ok()?, rest.split_once('/')?)));
            let (version, (namespace, name)) =
                parsed.ok_or_else(|| invalid("invalid continue token: continue key is not valid"))?;
            if !["", "0"].contains(&given) {
                return Err(invalid("specifying resource version is not allowed when using continue"));
            }
            after = Some((version, namespace.to_owned(), name.to_owned()));
        }
        let version =
            version(query).map_err(|why| Status::bad_request(format!("invalid resource version: {why}")))?;
        // A list of any age may be that of a cache, which has no parts.
        let limit = if version == Some(0) { 0 } else { usize::try_from(limit).unwrap_or(0) };
        let exactly = version.filter(|_| text(MATCH) == "Exact");
        Ok(ListOptions { limit, after, exactly, version })
    }
}

const MATCH: &str = "resourceVersionMatch";

/// `ValidateListOptions`, of a list or a watch.
pub(super) fn check_version_match(query: &Query, watches: bool) -> Result<(), Status> {
    let text = |name| query.get(name).unwrap_or("");
    let (version, asked) = (text("resourceVersion"), text(MATCH));
    let initial = query.get("sendInitialEvents").is_some_and(|text| !text.is_empty());
    let mut wrong = Wrong::new();
    let given = !asked.is_empty();
    // A watch from no version asks for the initial state, which has a match of its own.
    let is_matched = given || watches && ["", "0"].contains(&version);
    let continues = is_matched && !text("continue").is_empty();
    let with_continue = "resourceVersionMatch is forbidden when continue is provided";
    let supported = if watches {
        let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        forbid(&mut wrong, MATCH, initial && asked != "NotOlderThan", why);
        let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
        forbid(&mut wrong, MATCH, given && !initial, why);
        r#""NotOlderThan""#
    } else {
        let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
        forbid(&mut wrong, MATCH, given && version.is_empty(), why);
        forbid(&mut wrong, MATCH, continues, with_continue);
        r#""Exact", "NotOlderThan", """#
    };
    if given && asked != "NotOlderThan" && (watches || asked != "Exact") {
        let (reason, text) = unsupported(&go_quoted(asked), supported);
        wrong.push((MATCH, reason, text));
    }
    if watches {
        forbid(&mut wrong, MATCH, continues, with_continue);
    } else {
        let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
        forbid(&mut wrong, MATCH, asked == "Exact" && version == "0", why);
        forbid(&mut wrong, "sendInitialEvents", initial, "sendInitialEvents is forbidden for list");
    }
    refuse("ListOptions", &wrong)
}

fn forbid(wrong: &mut Wrong, field: &'static str, is_wrong: bool, why: &str) {
    if is_wrong {
        wrong.push((field, "FieldValueForbidden", format!("Forbidden: {why}")));
    }
}

/// Returns `resourceVersion`, or Kubernetes' text about a value that is no version.
fn version(query: &Query) -> Result<Option<u64>, String> {
    let Some(text) = query.get("resourceVersion").filter(|text| !text.is_empty()) else { return Ok(None) };
    nodlet_registry::parse_version(text)
        .map(Some)
        .map_err(|why| format!("resourceVersion: Invalid value: {}: {why}", go_quoted(text)))
}

/// Returns `resourceVersion` of a request other than a list, whose errors Kubernetes does not expect.
pub(super) fn version_of_one(query: &Query) -> Result<Option<u64>, Status> {
    version(query).map_err(|message| Status { message, reason: "", ..Status::internal("") })
}

/// Checks that a version has been reached.
pub(super) fn require_reached(asked: Option<u64>, current: u64) -> Result<(), Status> {
    let Some(asked) = asked.filter(|asked| *asked > current) else { return Ok(()) };
    let mut status =
        Status::timeout(format!("Timeout: Too large resource version: {asked}, current: {current}"));
    let causes = json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]);
    status.details = Some(json!({"causes": causes, "retryAfterSeconds": 1}));
    Err(status)
}
