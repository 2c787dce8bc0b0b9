//! Services among the other parts of the pods' network: forwarding, and the links of pods.

use std::io;
use std::net::IpAddr;

use nix::net::if_::if_nameindex;
use nodlet_services::data_path::DataPath;

use super::Changes;
use super::rules::Pods;
use crate::netlink::{Netlink, link_index};
use crate::network::firewall::Table;
use crate::network::{Network, NetworkError, TableState, UNTRANSLATED, Warning};

impl Network {
    pub(in crate::network) fn restore_services(&mut self) -> Result<(), NetworkError> {
        let failed = |source| NetworkError::Services { source };
        let [pods, of_cluster] = self.service_pods();
        let socket = self.firewall.socket().map_err(failed)?;
        self.services.restore(socket, pods).map_err(failed)?;
        self.cluster_services.restore(socket, of_cluster).map_err(failed)
    }

    /// The pods that reach the Services of the board, and those that reach the Services of the cluster.
    pub(in crate::network) fn service_pods(&self) -> [Pods; 2] {
        let Table { ranges, bridges_translate, cluster, .. } = &self.firewall.table;
        let of_board =
            Pods { ranges: ranges.clone(), bridges_translate: *bridges_translate, elsewhere: Vec::new() };
        let elsewhere = cluster.as_ref().map(|cluster| cluster.pods.clone()).unwrap_or_default();
        [of_board.clone(), Pods { elsewhere, ..of_board }]
    }

    /// Sends connections to Services where `path` says. `ranges` are those of the addresses of Services: connections to
    /// addresses of which no Service has any are dropped. Without ports, nothing of it is in the kernel.
    ///
    /// # Errors
    /// The kernel refuses a change: connections go where they went before, and the next call sends all again.
    pub fn apply_services(
        &mut self,
        path: &DataPath,
        ranges: &[(IpAddr, u8)],
    ) -> Result<Changes, NetworkError> {
        let has_others = self.cluster_services.has_ports();
        if !self.prepare_services(!path.ports.is_empty(), has_others)? {
            return Ok(Changes::default());
        }
        let failed = |source| NetworkError::Services { source };
        let [pods, _] = self.service_pods();
        let socket = self.firewall.socket().map_err(failed)?;
        self.services.apply(socket, path, pods, ranges).map_err(failed)
    }

    /// The same for the Services of the cluster that the board has joined, the ranges of whose addresses are unknown. They
    /// have a table of their own, and are tried after those of the board.
    ///
    /// # Errors
    /// As those of [`Network::apply_services`].
    pub fn apply_cluster_services(&mut self, path: &DataPath) -> Result<Changes, NetworkError> {
        let has_others = self.services.has_ports();
        if !self.prepare_services(!path.ports.is_empty(), has_others)? {
            return Ok(Changes::default());
        }
        let failed = |source| NetworkError::Services { source };
        let [_, pods] = self.service_pods();
        let socket = self.firewall.socket().map_err(failed)?;
        self.cluster_services.apply(socket, path, pods, &[]).map_err(failed)
    }

    /// Sends the next part of a table of the board's Services of which [`Changes::has_more`]: the caller lets others run in
    /// between. Does nothing if there is no such table.
    ///
    /// # Errors
    /// As those of [`Network::apply_services`].
    pub fn proceed_with_services(&mut self) -> Result<Changes, NetworkError> {
        let failed = |source| NetworkError::Services { source };
        self.services.proceed(self.firewall.socket().map_err(failed)?).map_err(failed)
    }

    /// As [`Network::proceed_with_services`], with the Services of the cluster.
    ///
    /// # Errors
    /// As those of [`Network::apply_services`].
    pub fn proceed_with_cluster_services(&mut self) -> Result<Changes, NetworkError> {
        let failed = |source| NetworkError::Services { source };
        self.cluster_services.proceed(self.firewall.socket().map_err(failed)?).map_err(failed)
    }

    /// Makes the pods' network ready for a table of Services, if this one has Services or the other one. Returns whether
    /// the kernel may have to be changed: without a table of this boot, an empty one need not be removed.
    fn prepare_services(&mut self, has_services: bool, has_others: bool) -> Result<bool, NetworkError> {
        if !has_services && !self.forwarding.has_begun() {
            return Ok(false);
        }
        let has_any = has_services || has_others;
        let is_current = self.table == TableState::Installed && !self.is_for_other_bridges();
        let had_any = std::mem::replace(&mut self.firewall.table.has_services, has_any);
        if has_any && (!had_any || !is_current) {
            self.install()?;
            self.set_hairpins().map_err(|source| NetworkError::Services { source })?;
        }
        Ok(true)
    }

    /// Lets the pods that began before the first Service get back what they send to themselves.
    fn set_hairpins(&self) -> io::Result<()> {
        let mut netlink = Netlink::open()?;
        for link in &if_nameindex()? {
            let name = link.name().to_string_lossy();
            if name.len() > self.bridge.len()
                && name.starts_with(&self.bridge)
                && let Err(error) = netlink.set_hairpin(link.index())
                // The link of a pod that was removed meanwhile.
                && link_index(&name).is_ok()
            {
                return Err(error);
            }
        }
        Ok(())
    }

    /// A warning, once, about what the kernel cannot do for Services.
    pub fn services_warning(&mut self) -> Option<Warning> {
        let warning = self.services.warning().or_else(|| self.cluster_services.warning());
        warning.map(|text| (UNTRANSLATED, text))
    }
}
