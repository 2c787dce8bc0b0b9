//! Keeps nodlet's nftables table in the kernel as it is to be: restores it when the agent starts and when somebody
//! else has changed it, and follows the addresses of the machine's links. Two netlink sockets report the changes; nothing
//! is polled. Nothing is watched until a pod needs the table. Read next: `host/src/network/firewall.rs`.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use smol::Async;

use nodlet_host::error::chain;
use nodlet_host::network::{TableNews, Warning, Watch};
use nodlet_registry::NodeEvent;

use crate::engine::machine::Machine;
use crate::engine::message::Message;
use crate::engine::publication::Publication;
use crate::engine::services::Services;
use crate::engine::tasks::Tasks;

/// nodlet's nftables table.
pub(in crate::engine) struct Firewall {
    machine: Rc<Machine>,
    publication: Rc<Publication>,
    services: Rc<Services>,
    tasks: Rc<Tasks>,
    /// Whether changes of the table are watched.
    is_watched: Cell<bool>,
}

impl Firewall {
    pub(in crate::engine) fn new(
        machine: Rc<Machine>,
        publication: Rc<Publication>,
        services: Rc<Services>,
        tasks: Rc<Tasks>,
    ) -> Rc<Firewall> {
        Rc::new(Firewall { machine, publication, services, tasks, is_watched: Cell::default() })
    }

    /// Restores the table for the pods that an earlier agent left.
    pub(in crate::engine) fn restore(self: &Rc<Self>) {
        let warning = self.machine.network.borrow_mut().restore();
        self.follow(warning);
    }

    /// Publishes a warning about the table, if there is one, and watches the table from now on, if it is in the kernel.
    pub(in crate::engine) fn follow(self: &Rc<Self>, warning: Option<Warning>) {
        if let Some((reason, warning)) = warning {
            self.publication.emit_of_node(NodeEvent::Machine(reason, &warning));
        }
        if self.is_watched.get() {
            return;
        }
        let Some(watch) = self.machine.network.borrow_mut().watch() else { return };
        match watch.and_then(Awaited::new) {
            Ok(watch) => {
                self.is_watched.set(true);
                let firewall = self.clone();
                self.tasks.spawn(async move {
                    if let Err(error) = watch.run(&firewall).await {
                        log::error!("failed to watch nodlet's nftables table: {error}");
                        firewall.is_watched.set(false);
                    }
                });
            }
            Err(error) => log::error!("failed to watch nodlet's nftables table: {error}"),
        }
    }
}

/// What was logged about the links that nodlet makes forward. A link that loses its address again and again is logged
/// once.
#[derive(Default)]
struct LoggedLinks {
    /// The links of the last line that names links.
    links: Vec<String>,
    /// A line has said that there are none.
    without: bool,
}

impl LoggedLinks {
    /// The line for the log after the links have changed; `None` if it would repeat an earlier one.
    fn line(&mut self, links: &[String]) -> Option<String> {
        if links.is_empty() {
            let is_new = !std::mem::replace(&mut self.without, true);
            return is_new
                .then(|| "no link has to be changed to forward packets to and from pods".to_owned());
        }
        if self.links == links {
            return None;
        }
        self.links = links.to_vec();
        Some(format!("packets to and from pods are forwarded by {}", links.join(", ")))
    }
}

/// A watch whose sockets are registered with the executor.
struct Awaited {
    watch: Watch,
    tables: Async<OwnedFd>,
    links: Async<OwnedFd>,
}

impl Awaited {
    fn new(watch: Watch) -> io::Result<Awaited> {
        let tables = Async::new_nonblocking(watch.tables().try_clone_to_owned()?)?;
        let links = Async::new_nonblocking(watch.links().try_clone_to_owned()?)?;
        Ok(Awaited { watch, tables, links })
    }

    /// Runs until a socket fails.
    async fn run(&self, firewall: &Rc<Firewall>) -> io::Result<()> {
        let mut logged = LoggedLinks::default();
        loop {
            let tables = async { self.tables.readable().await.map(|()| true) };
            let links = async { self.links.readable().await.map(|()| false) };
            let network = &firewall.machine.network;
            if smol::future::or(tables, links).await? {
                let news = self.watch.read_tables();
                if news.has_foreign_chains {
                    firewall.follow(network.borrow_mut().foreign_warning());
                }
                if !news.is_foreign && !news.is_incomplete {
                    continue;
                }
                let repaired = network.borrow_mut().repair();
                // The kernel reports the repair, too. This report may be incomplete, and requires no second repair.
                let news = if repaired.is_ok() && self.watch.read_tables().is_foreign {
                    let _ = network.borrow_mut().repair();
                    TableNews { is_foreign: true, ..news }
                } else {
                    news
                };
                if !news.is_foreign && repaired.is_ok() {
                    continue;
                }
                let failure = repaired.err().map(|error| chain(&error));
                let event = NodeEvent::FirewallTable(failure.as_deref().map_or(Ok(()), Err));
                firewall.publication.emit_of_node(event);
            } else {
                self.watch.read_links();
                let followed = network.borrow_mut().follow_links();
                firewall.services.repair_routes();
                // Load balancers and pods with hostNetwork have the addresses of the board. The loop that is behind looks at
                // them later.
                if firewall.services.are_there() {
                    let _ = firewall.tasks.messages.try_send(Message::AddressesChanged);
                }
                match followed {
                    Ok(false) => {}
                    Ok(true) => {
                        if let Some(line) = logged.line(network.borrow().forwarding_links()) {
                            log::info!("{line}");
                        }
                    }
                    Err(error) => log::error!("failed to {}", chain(&error)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_come_and_go_are_logged_once() {
        let mut logged = LoggedLinks::default();
        let (none, one) = (Vec::new(), vec!["eth0".to_owned()]);
        let both = vec!["eth0".to_owned(), "wlan0".to_owned()];
        let sets = [&none, &one, &none, &one, &none, &both, &none, &both, &one];
        let lines: Vec<String> = sets.into_iter().filter_map(|links| logged.line(links)).collect();
        assert_eq!(
            lines,
            [
                "no link has to be changed to forward packets to and from pods",
                "packets to and from pods are forwarded by eth0",
                "packets to and from pods are forwarded by eth0, wlan0",
                "packets to and from pods are forwarded by eth0",
            ]
        );
    }
}
