//! Parts that the readers of all kinds share: the fields of an object and their errors, the check against the schema, rules
//! for strings, and JSON. Pure. This module knows no kind besides its name, and no file.

pub(crate) mod cdi;
pub(crate) mod check;
pub(crate) mod error;
pub(crate) mod field;
pub mod json;
pub(crate) mod rules;
pub(crate) mod value;
pub(crate) mod walk;
