//! The pod engine.
