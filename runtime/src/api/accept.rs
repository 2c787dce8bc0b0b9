//! The header `Accept`: the form in which a client wants objects.

use hyper::{HeaderMap, Response, header};
use serde_json::{Value, json};

use super::body::Body;
use super::{Query, Status, table};
use nodlet_kube::kinds::Row;

/// The form of the objects in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The objects.
    Whole,
    /// A `Table`.
    Table(table::Include),
    /// `PartialObjectMetadata`, or a list of them.
    Metadata {
        /// Whether the client asked for a list.
        list: bool,
    },
}

impl Form {
    /// The form that a client wants. Like Kubernetes, this first requires a media type that there is, and then
    /// takes the first form that there is.
    ///
    /// # Errors
    /// 406: there is none.
    pub(super) fn of(headers: &HeaderMap, query: &Query) -> Result<Form, Status> {
        let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
        let mut is_json = accept.is_empty();
        for clause in accept.split(',') {
            let mut parts = clause.split(';').map(str::trim);
            if !matches!(parts.next(), Some("application/json" | "*/*")) {
                continue;
            }
            is_json = true;
            let mut kind = ["", "", ""];
            for part in parts {
                let (name, value) = part.split_once('=').unwrap_or((part, ""));
                if let Some(at) = ["as", "g", "v"].iter().position(|known| *known == name) {
                    kind[at] = value;
                }
            }
            match kind {
                ["", "", ""] => return Ok(Form::Whole),
                ["Table", "meta.k8s.io", "v1"] => return include(query).map(Form::Table),
                ["PartialObjectMetadata", "meta.k8s.io", "v1"] => return Ok(Form::Metadata { list: false }),
                ["PartialObjectMetadataList", "meta.k8s.io", "v1"] => {
                    return Ok(Form::Metadata { list: true });
                }
                _ => {}
            }
        }
        if accept.is_empty() {
            return Ok(Form::Whole);
        }
        Err(Status::not_acceptable(if is_json {
            "only the following media types are accepted: application/json"
        } else {
            "406: Not Acceptable\n\nAvailable representations: application/json"
        }))
    }

    /// Checks that metadata is asked for in the form that the response has: of one object, or of a list.
    ///
    /// # Errors
    /// 406: it is not.
    pub(super) fn require(self, is_list: bool, row: &Row) -> Result<(), Status> {
        match self {
            Form::Metadata { list } if list != is_list => {
                let (asked, is) = if list { ("List", "not a list") } else { ("", "a list") };
                Err(Status::not_acceptable(&format!(
                    "you requested PartialObjectMetadata{asked}, but the requested object is {is} ({})",
                    row.name
                )))
            }
            Form::Whole | Form::Table(_) | Form::Metadata { .. } => Ok(()),
        }
    }

    /// Returns an object in this form, as JSON.
    pub(super) fn show(self, row: &Row, object: Value) -> String {
        match self {
            Form::Whole => object.to_string(),
            Form::Metadata { .. } => table::metadata_of(object).to_string(),
            Form::Table(include) => {
                let list = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                let now = nodlet_host::clock::timestamp();
                table::table(row, &mut std::iter::once(object), list, include, now)
            }
        }
    }

    /// Returns the response of one object in this form.
    pub(super) fn apply(self, row: &Row, mut response: Response<Body>) -> Response<Body> {
        if self == Form::Whole || !response.status().is_success() {
            return response;
        }
        if let Body::Whole(Some(bytes)) = response.body_mut()
            && let Ok(object) = serde_json::from_slice::<Value>(bytes)
            && object["kind"] != "Status"
        {
            *bytes = self.show(row, object).into();
        }
        response
    }
}

/// The part of each object in a row of a table.
fn include(query: &Query) -> Result<table::Include, Status> {
    match query.get("includeObject") {
        None | Some("" | "Metadata") => Ok(table::Include::Metadata),
        Some("None") => Ok(table::Include::None),
        Some("Object") => Ok(table::Include::Object),
        Some(other) => Err(Status::bad_request(format!(
            "includeObject: Unsupported value: {other:?}: supported values: \"Metadata\", \"None\", \"Object\""
        ))),
    }
}
