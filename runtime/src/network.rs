//! Addresses and links.

pub mod netlink;
