//! All Services with their EndpointSlices, and the namespaces that exist.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

use crate::service::{EndpointSlice, Service};

/// All Services with their slices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    /// By namespace and name.
    pub services: BTreeMap<(Box<str>, Box<str>), Entry>,
    /// The namespaces that exist, with or without Services.
    pub namespaces: BTreeSet<Box<str>>,
}

/// One Service with its slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The Service.
    pub service: Service,
    /// Its slices.
    pub slices: Vec<EndpointSlice>,
}

impl Catalog {
    /// The Service with this address of the cluster.
    pub fn of_cluster_ip(&self, address: IpAddr) -> Option<&Service> {
        self.services
            .values()
            .map(|entry| &entry.service)
            .find(|service| service.cluster_ips.contains(&address))
    }
}
