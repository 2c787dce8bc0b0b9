//! The latest observations and actions of the core, for `nodlet ring`.

use hyper::body::Bytes;

use super::body::{self, Body};
use super::{Answered, Api, Query, Status};
use crate::ring::Format;

/// The number of entries that are rendered at a time, and kept in memory for a slow client.
const ENTRIES_AT_ONCE: usize = 16;

/// Returns all entries of the ring; with `follow`, also future ones.
pub(super) fn show(api: &Api, node: &str, query: &Query) -> Answered {
    if node != api.node_name {
        return Err(Status::not_found("nodes", node));
    }
    let format = match query.get("output") {
        None | Some("") => Format::Text,
        Some("json") => Format::Json,
        Some(other) => {
            return Err(Status::bad_request(format!(
                "output: Unsupported value: {other:?}: supported values: \"json\""
            )));
        }
    };
    let (ring, follow) = (api.ring.clone(), query.flag("follow"));
    let lines = futures_lite::stream::unfold((ring, 0), move |(ring, number)| async move {
        if follow {
            ring.added(number).await;
        }
        let (lines, next) = ring.lines(number, ENTRIES_AT_ONCE, format);
        (!lines.is_empty()).then(|| (Bytes::from(lines), (ring, next)))
    });
    Ok(body::text(Body::stream(lines)))
}
