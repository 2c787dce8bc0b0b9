//! The node's view of the pod that a request is about.

use std::rc::Rc;

use serde_json::Value;

use super::Wanted;
use nodlet_core::facts::ClientCondition;

/// What the node knows of the pod in whose place an object is applied.
#[derive(Debug, Default)]
pub struct Known {
    /// The pod that is published under its name.
    pub published: Option<Rc<Wanted>>,
    /// Its newest version, if that waits for images.
    pub waiting: Option<Rc<Wanted>>,
    /// The pod that is desired, or that waits, is over.
    pub is_over: bool,
}

/// A pod that is published, for requests that change it.
#[derive(Debug)]
pub struct Present {
    /// The pod.
    pub wanted: Rc<Wanted>,
    /// The object as it is published.
    pub object: Value,
    /// It ends, and nothing of it starts again.
    pub is_unwanted: bool,
    /// A change of it is being written: what is changed next has to see it.
    pub is_updating: bool,
    /// Another version of it waits for images.
    pub waiting: Option<Rc<Wanted>>,
    /// The conditions that others gave it.
    pub client_conditions: Rc<[ClientCondition]>,
}
