//! The names of Services and pods in the DNS, as CoreDNS' plugin `kubernetes` answers them with `pods verified`, and
//! all that the name server of a board decides: [`names`] has the answers, [`message`] reads and writes them,
//! [`upstream`] forwards the other queries and [`cache`] keeps what came back; [`fairness`] and [`repeats`] regard clients. Nothing here has a socket or a clock:
//! `nodlet-runtime` does.

pub mod cache;
pub mod fairness;
pub mod message;
pub mod names;
pub mod repeats;
pub mod upstream;

#[cfg(test)]
mod fuzz_tests;
