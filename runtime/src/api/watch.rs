//! `watch`: a cursor in the store's ring of changes, which advances as fast as the client reads.

use std::rc::Rc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::Bytes;
use serde_json::{Value, json};

use super::accept::Form;
use super::body::{self, Body};
use super::place::Held;
use super::read::{self, parse};
use super::select::Selector;
use super::{Answered, Exchange, Status, options, table};
use nodlet_kube::kinds::Row;
use nodlet_registry::objects::{ChangeKind, Expired, Key, Object, ObjectChange, Objects};

/// The number of changes that are rendered at a time, and kept in memory for a slow client.
const CHANGES_AT_ONCE: usize = 16;

struct Watch {
    objects: Rc<Objects>,
    row: &'static Row,
    namespace: Option<Box<str>>,
    selector: Selector,
    form: Form,
    since: u64,
    /// The existing objects, which are sent before any change, and their share of memory.
    first: Option<First>,
    deadline: smol::Timer,
    ended: bool,
}

/// The initial state of a watch, which is shared with the store as long as nothing changes.
struct First {
    objects: std::vec::IntoIter<(Key, Object)>,
    version: u64,
    /// Whether to report the end of the initial state.
    bookmark: bool,
    _held: Held,
}

pub(super) fn watch(
    exchange: &Exchange<'_>,
    row: &'static Row,
    namespace: Option<&str>,
    form: Form,
) -> Answered {
    let (api, query) = (exchange.api, &exchange.query);
    let selector = read::selector(row, query)?;
    let timeout = options::integer(query, "timeoutSeconds")?;
    options::check_version_match(query, true)?;
    let given = options::version_of_one(query)?.filter(|version| *version != 0);
    // The client requests all existing objects first, and a bookmark after them.
    let initial = query.flag("sendInitialEvents");
    let mut watch = Watch {
        objects: api.objects.clone(),
        row,
        namespace: namespace.map(Into::into),
        selector,
        form,
        since: given.unwrap_or(0),
        first: None,
        deadline: timeout
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or_else(smol::Timer::never, |seconds| smol::Timer::after(Duration::from_secs(seconds))),
        ended: false,
    };
    if given.is_none() || initial {
        let (found, version) = read::all(api, row, namespace);
        watch.since = version;
        watch.first = Some(First {
            _held: api.places.hold(found.iter().map(|(_, object)| object.json.len()).sum())?,
            objects: found.into_iter(),
            version,
            bookmark: initial && query.flag("allowWatchBookmarks"),
        });
    }
    let pieces = futures_lite::stream::unfold(watch, |mut watch| async {
        let piece = watch.next().await?;
        Some((Bytes::from(piece), watch))
    });
    Ok(body::json(StatusCode::OK, Body::stream(pieces)))
}

impl Watch {
    async fn next(&mut self) -> Option<String> {
        while let Some(lines) = self.next_of_first() {
            if !lines.is_empty() {
                return Some(lines);
            }
        }
        loop {
            if self.ended {
                return None;
            }
            let changes = match self.objects.changes_since(self.since, CHANGES_AT_ONCE) {
                Ok(changes) => changes,
                Err(Expired { requested, oldest }) => {
                    self.ended = true;
                    let status = Status::expired(format!("too old resource version: {requested} ({oldest})"));
                    return Some(line("ERROR", &status.to_json().to_string()));
                }
            };
            let mut lines = String::new();
            for change in &changes {
                self.since = change.object.version;
                lines.extend(self.show(change));
            }
            if !lines.is_empty() {
                return Some(lines);
            }
            if changes.is_empty() && !self.wait().await {
                return None;
            }
        }
    }

    /// Returns the next lines of the initial state, which are empty if none of their objects is for this
    /// client, or `None` at its end.
    fn next_of_first(&mut self) -> Option<String> {
        let first = self.first.as_mut()?;
        let (version, bookmark) = (first.version, first.bookmark);
        let objects: Vec<(Key, Object)> = first.objects.by_ref().take(CHANGES_AT_ONCE).collect();
        let mut lines = String::new();
        for (_, Object { json, .. }) in &objects {
            if self.selector.is_empty() || self.selector.matches(&parse(json)) {
                lines.push_str(&self.event("ADDED", json, version));
            }
        }
        if objects.is_empty() {
            self.first = None;
            if bookmark {
                lines = self.initial_events_end(version);
            }
        }
        Some(lines)
    }

    /// Waits until something has changed. Returns false if the client's timeout ends first.
    async fn wait(&mut self) -> bool {
        let changed = async {
            self.objects.changed_since(self.since).await;
            true
        };
        let ended = async {
            (&mut self.deadline).await;
            false
        };
        smol::future::or(changed, ended).await
    }

    /// Returns the event of a change for the client, if any: for this client, an object that its selector no
    /// longer matches is deleted.
    fn show(&self, change: &ObjectChange) -> Option<String> {
        if change.key.resource != self.row.plural
            || self.namespace.as_deref().is_some_and(|namespace| *change.key.namespace != *namespace)
        {
            return None;
        }
        let matches = |json: &str| self.selector.is_empty() || self.selector.matches(&parse(json));
        let before = change.before.as_ref().is_some_and(|before| matches(&before.json));
        let after = change.kind != ChangeKind::Deleted && matches(&change.object.json);
        let kind = match (before, after) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        Some(self.event(kind, &change.object.json, change.object.version))
    }

    fn event(&self, kind: &str, json: &str, version: u64) -> String {
        match self.form {
            Form::Whole => line(kind, json),
            form @ (Form::Table(_) | Form::Metadata { .. }) => {
                let mut object = parse(json);
                object["metadata"]["resourceVersion"] = version.to_string().into();
                line(kind, &form.show(self.row, object))
            }
        }
    }

    fn initial_events_end(&self, version: u64) -> String {
        let metadata = json!({
            "resourceVersion": version.to_string(), "annotations": {"k8s.io/initial-events-end": "true"},
        });
        let object: Value = match self.form {
            Form::Whole => {
                json!({"kind": self.row.name, "apiVersion": self.row.version, "metadata": metadata})
            }
            Form::Metadata { .. } => table::metadata_of(json!({"metadata": metadata})),
            Form::Table(_) => json!({
                "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                "columnDefinitions": [],
                "rows": [{"cells": [], "object": {
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}}],
            }),
        };
        line("BOOKMARK", &object.to_string())
    }
}

fn line(kind: &str, object: &str) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}
