//! The service `network`: a child of process 1 that configures the links of the profile and sets the clock.
//! No other part of nodlet waits for it.
//!
//! One loop waits for the kernel (links and their carriers), for DHCP servers and for a time server. Whenever
//! a link appears, even hours after the boot, it is set up and given its address; the kernel handles IPv6.
//! The decisions are in `dhcp` and `sntp`, which know no socket. If the service ends, process 1 starts it
//! again, and the kernel keeps addresses until their leases expire. Read next: `ports.rs`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nodlet_host::netlink::{Netlink, News};

use super::identity;
use super::process::ABSENT;
use crate::board_json::Board;
use crate::boot::config as board_config;
use crate::boot::console::{leave_console, say};

pub(super) mod clock;
pub(super) mod config;
mod dhcp;
mod lookup;
mod ports;
mod random;
mod report;
mod sntp;
mod sockets;
mod time;
mod wire;

use lookup::Lookup;
use ports::Port;
use random::Random;
use report::{ClockStatus, Report};
use time::now;

/// The most links that are configured at the same time: a pattern must not make a board with a hundred links
/// send a hundred requests.
const MOST_PORTS: usize = 16;

/// Runs the service, in a child of process 1. Returns its exit code.
pub(super) fn run() -> u8 {
    leave_console();
    let _ = rustix::thread::set_name(c"nodlet:network");
    // This child does not use the descriptors of process 1.
    let _ = nodlet_kernel::process::close_range(3, u32::MAX);
    // Errors in the file were reported during the set-up.
    let mut board = board_config::read().unwrap_or_default();
    board.network = identity::links(board.network);
    if board.network.is_empty() && board.ntp.is_none() {
        return ABSENT;
    }
    match Service::new(&board) {
        Ok(mut service) => service.run(),
        Err(error) => {
            say(format_args!("failed to open a socket to the kernel: {error}"));
            1
        }
    }
}

/// A pending time request.
enum Request {
    /// The server's name is being looked up.
    Lookup { lookup: Lookup, server: String },
    /// The request was sent to the server.
    Asked { socket: UdpSocket, sent: sntp::Sent, server: String },
}

impl Request {
    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Request::Lookup { lookup, .. } => lookup.descriptor(),
            Request::Asked { socket, .. } => socket.as_fd(),
        }
    }
}

struct Service<'a> {
    board: &'a Board,
    host_name: String,
    netlink: Netlink,
    links_changed: News,
    ports: Vec<Port>,
    sntp: sntp::Client,
    request: Option<Request>,
    clock: ClockStatus,
    report: Report,
}

impl Service<'_> {
    fn new(board: &Board) -> std::io::Result<Service<'_>> {
        for link in &board.network {
            if let Some(why) = link.wrong() {
                say(format_args!("network: {} {why}", link.link));
            }
        }
        let host_name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        Ok(Service {
            board,
            host_name: host_name.unwrap_or_default(),
            netlink: Netlink::open()?,
            links_changed: News::open(libc::NETLINK_ROUTE, &[libc::RTNLGRP_LINK])?,
            ports: Vec::new(),
            sntp: sntp::Client::new(Random::seed()),
            request: None,
            clock: ClockStatus::default(),
            report: Report::default(),
        })
    }

    fn run(&mut self) -> ! {
        self.sync_ports();
        loop {
            self.tick();
            self.publish();
            self.wait();
        }
    }

    /// Synchronises the ports with the kernel's links.
    fn sync_ports(&mut self) {
        let now = now();
        let found = ports::present(&self.board.network);
        self.ports.retain(|port| {
            let stays = found.iter().any(|found| found.index == port.index && found.name == port.name);
            if !stays {
                say(format_args!("{}: gone", port.name));
            }
            stays
        });
        for found in found {
            let link = &self.board.network[found.entry];
            let known = self.ports.iter_mut().find(|port| port.index == found.index);
            if let Some(port) = known {
                port.carrier(now, found.carrier);
            } else if self.ports.len() < MOST_PORTS && link.wrong().is_none() {
                let mut port = Port::new(&found, link, &self.host_name);
                port.set_up(link, &mut self.netlink, now);
                port.carrier(now, found.carrier);
                self.ports.push(port);
            }
        }
        self.ports.sort_by_key(|port| (port.entry, port.index));
    }

    /// Performs everything that is due.
    fn tick(&mut self) {
        let now = now();
        let mut has_new_address = false;
        for port in &mut self.ports {
            has_new_address |= port.tick(now, &self.board.network[port.entry], &mut self.netlink);
        }
        let servers = match &self.board.ntp {
            Some(servers) => servers.clone(),
            None => self
                .ports
                .iter()
                .filter_map(Port::lease)
                .flat_map(|lease| &lease.ntp)
                .map(Ipv4Addr::to_string)
                .collect(),
        };
        self.sntp.set_servers(now, servers);
        if has_new_address {
            self.sntp.network_is_up(now);
        }
        // `poll` ends a request that has timed out.
        let server = self.sntp.poll(now).map(str::to_owned);
        if !self.sntp.waits() {
            self.request = None;
        }
        if let Some(server) = server {
            self.ask(server);
        }
    }

    /// Sends a request to a time server, or first looks up its name.
    fn ask(&mut self, server: String) {
        let address = server.parse::<SocketAddr>().ok();
        let address = address.or_else(|| Some(SocketAddr::new(server.parse().ok()?, sntp::PORT)));
        let request = match address {
            Some(address) => ask(address, server),
            None => Lookup::begin(&server).map(|lookup| Request::Lookup { lookup, server }),
        };
        self.proceed(request);
    }

    fn proceed(&mut self, request: std::io::Result<Request>) {
        match request {
            Ok(request) => self.request = Some(request),
            Err(error) => self.ask_later(format!("failed to ask a time server: {error}")),
        }
    }

    fn ask_later(&mut self, why: String) {
        self.request = None;
        self.sntp.failed(now());
        if self.clock.failure.as_ref() != Some(&why) {
            say(format_args!("{why}"));
            self.clock.failure = Some(why);
        }
    }

    /// Continues the pending time request, whose descriptor is readable.
    fn handle_response(&mut self) {
        match self.request.take() {
            Some(Request::Lookup { lookup, server }) => match lookup.end() {
                Some(address) => self.proceed(ask(SocketAddr::new(address, sntp::PORT), server)),
                None => self.ask_later(format!("the time server {server} has no address")),
            },
            Some(Request::Asked { socket, sent, server }) => {
                let mut bytes = [0; 128];
                let received = socket.recv(&mut bytes);
                let arrived = clock::now();
                let answer = received
                    .map_err(|error| error.to_string())
                    .and_then(|length| sntp::read(&bytes[..length], sent, arrived, self.board.built));
                match answer {
                    Ok(answer) => self.correct(server, &answer),
                    Err(why) => self
                        .ask_later(format!("the response of the time server {server} was rejected: {why}")),
                }
            }
            None => {}
        }
    }

    fn correct(&mut self, server: String, answer: &sntp::Answer) {
        let now = now();
        let correction = self.sntp.handle_response(now, answer);
        match clock::correct(correction) {
            Ok(()) => {
                if let sntp::Correction::Step(_) = correction {
                    say(format_args!("the clock was set by {server}"));
                }
                self.clock = ClockStatus {
                    set_by: Some((server, answer.stratum, answer.offset)),
                    answered: Some(now),
                    failure: None,
                };
            }
            Err(error) => self.clock.failure = Some(format!("failed to set the clock: {error}")),
        }
    }

    /// Writes changed state to the files that other programs read.
    fn publish(&mut self) {
        let links: Vec<_> = self.ports.iter().map(report::of_port).collect();
        let status = serde_json::json!({ "links": links, "clock": self.clock.value() });
        let usable = || self.ports.iter().filter(|port| port.carrier && port.wanted().is_some());
        let servers = usable().flat_map(|port| {
            let leased = port.lease().into_iter().flat_map(|lease| &lease.dns);
            self.board.network[port.entry].dns.iter().chain(leased).copied()
        });
        let domains = usable().filter_map(|port| port.lease()?.domain.as_deref());
        let resolv_conf = report::resolv_conf(servers, domains);
        self.report.write(&status, resolv_conf);
    }

    /// Waits until something happens or is due, and processes what happened.
    fn wait(&mut self) {
        let due = self.ports.iter().filter_map(Port::wake_at).chain(self.sntp.wake_at()).min();
        let timeout = due.map_or(PollTimeout::NONE, |due| {
            // Rounded up: a wake-up too early would wait again at once.
            let left = due.saturating_sub(now()).as_millis() + 1;
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        let mut descriptors = vec![PollFd::new(self.links_changed.as_fd(), PollFlags::POLLIN)];
        let sockets = self.ports.iter().filter_map(|port| port.socket.as_ref());
        descriptors.extend(sockets.map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)));
        let ports = descriptors.len();
        if let Some(request) = &self.request {
            descriptors.push(PollFd::new(request.descriptor(), PollFlags::POLLIN));
        }
        if poll(&mut descriptors, timeout).is_err() {
            return;
        }
        let happened = |descriptor: &PollFd| descriptor.any().unwrap_or(true);
        let links = happened(&descriptors[0]);
        let messages = descriptors[1..ports].iter().any(happened);
        let answer = descriptors[ports..].iter().any(happened);
        if links {
            // All links are inspected anyway, even if news were lost.
            let _ = self.links_changed.read(|_| {});
            self.sync_ports();
        }
        if messages {
            let now = now();
            self.ports.iter_mut().for_each(|port| port.receive(now));
        }
        if answer {
            self.handle_response();
        }
    }
}

fn ask(address: SocketAddr, server: String) -> std::io::Result<Request> {
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_nonblocking(true)?;
    // After `connect`, the socket receives only from this server.
    socket.connect(address)?;
    let (bytes, sent) = sntp::request(clock::now()).ok_or_else(|| std::io::Error::other("no request"))?;
    socket.send(&bytes)?;
    Ok(Request::Asked { socket, sent, server })
}
