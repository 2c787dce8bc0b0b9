//! The grammar of the Kubernetes API. No code here, only the tour.
//!
//! * [`kind`]: the one table of kinds: their names, scopes and verbs.
//! * [`kinds`]: the rules, columns and descriptions of each kind, one file for each.
//! * [`schema`]: the fields of a Pod and what nodlet does with each.
//! * [`manifest`]: bytes to objects, checked against the schema, defaulted and validated; Pods become a typed
//!   [`nodlet_core::spec::Pod`].
//! * [`protobuf`]: objects as typed clients send them.
//! * [`base64`]: the values of Secrets, and the other texts in base64.
//!
//! Each module imports only from those before it: `base64`, `schema`, `protobuf`, `kind`; `object`, what the readers of all kinds
//! share; `pod`, which reads Pods; `kinds`; `manifest`.
//!
//! Used by the agent and by the command line. This crate opens no file. It is pure, except for descriptions,
//! which print ages and times by the clock and in the time zone of the reader, as kubectl does.

pub mod base64;
pub mod kind;
pub mod kinds;
pub mod manifest;
mod object;
mod pod;
pub mod protobuf;
pub mod schema;

#[cfg(test)]
mod long_lists_tests;

#[cfg(test)]
mod tests;
