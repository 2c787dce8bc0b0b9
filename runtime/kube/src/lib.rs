//! The grammar of the Kubernetes API. No code here, only the tour.
//!
//! * [`kind`]: the one table of kinds: their names, scopes and verbs.
//! * [`kinds`]: the rules, columns and descriptions of each kind, one file for each.
//! * [`schema`]: the fields of a Pod and what nodlet does with each.
//! * [`manifest`]: bytes to objects, checked against the schema, defaulted and validated, and then a
//!   typed [`nodlet_core::spec::Pod`].
//! * [`protobuf`]: objects as typed clients send them.
//!
//! Used by the agent and by the command line. This crate opens no file. It is pure, except for descriptions,
//! which print ages and times by the clock and in the time zone of the reader, as kubectl does.

pub mod kind;
pub mod kinds;
pub mod manifest;
mod object;
pub mod protobuf;
pub mod schema;
