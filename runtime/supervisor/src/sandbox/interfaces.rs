//! The network interfaces of a pod: its end of the veth pair, and interfaces of the host that it takes.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::sched::{CloneFlags, setns};
use nodlet_host::launch::NetworkConfig;
use nodlet_host::netlink::{LinkSettings, Netlink, link_index};
use nodlet_host::network::{filter, guard, hardware_address};
use nodlet_kernel::own_file;

use super::SandboxError;

/// The name of the pod's end of the veth pair.
const POD_LINK: &str = "eth0";

/// Connects the new network namespace to the bridge. The pod's end is set up last, so that it sends nothing
/// before the host's side is guarded against it.
pub(super) fn connect(
    host: &mut Netlink,
    host_namespace: &File,
    network: &NetworkConfig,
    bridge: u32,
) -> Result<(), SandboxError> {
    let link = |source: io::Error| SandboxError::Link { name: network.host_link.clone(), source };
    let namespace = File::open("/proc/self/ns/net").map_err(SandboxError::Namespace)?;
    let hardware = hardware_address(network.address);
    // The bridge was made with the gateway of the range of that time, and keeps its hardware address when the range
    // changes: pods that began before have it in their neighbour entries.
    let of_bridge = host.hardware_address(bridge).map_err(link)?;
    let mut add = || host.add_veth(&network.host_link, bridge, (POD_LINK, hardware), namespace.as_raw_fd());
    match add() {
        // The name belongs to this pod: the kernel has not removed the link of an earlier sandbox yet.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let _ = host.remove_link(&network.host_link);
            host.add_veth(&network.host_link, bridge, (POD_LINK, hardware), namespace.as_raw_fd())
        }
        other => other,
    }
    .map_err(|error| match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => {
            let why = "this kernel has no veth; load the module veth, or use a kernel with CONFIG_VETH \
                       (pods with hostNetwork need neither)";
            io::Error::new(io::ErrorKind::Unsupported, why)
        }
        Some(_) | None => error,
    })
    .map_err(link)?;
    // IPv6 settings are files, which show the network namespace of the process that opens them.
    let enter = |namespace: &File| setns(namespace, CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
    enter(host_namespace).and_then(|()| guard_host(host, network, bridge)).map_err(link)?;
    enter(&namespace).map_err(SandboxError::Namespace)?;
    let mut pod = Netlink::open().map_err(SandboxError::Netlink)?;
    let mut set = || -> io::Result<()> {
        pod.set_up(link_index("lo")?)?;
        let link = link_index(POD_LINK)?;
        guard::refuse_ipv6_routers(POD_LINK)?;
        pod.add_address(link, network.address, network.prefix, None)?;
        pod.set_up(link)?;
        pod.add_neighbour(link, network.gateway, of_bridge)?;
        pod.add_default_route(link, network.gateway)?;
        let Some(ipv6) = network.ipv6 else { return Ok(()) };
        guard::enable_ipv6(POD_LINK)?;
        pod.add_address(link, ipv6.address, ipv6.prefix, None)?;
        pod.add_neighbour(link, ipv6.gateway, of_bridge)?;
        pod.add_default_route(link, ipv6.gateway)
    };
    set().map_err(SandboxError::Address)?;
    // As in containerd 2: a pod has its own network, so ports and pings in it are not privileged.
    for (name, value) in
        [("net/ipv4/ip_unprivileged_port_start", "0"), ("net/ipv4/ping_group_range", "0 2147483647")]
    {
        match fs::write(Path::new("/proc/sys").join(name), value) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(SandboxError::Sysctl { name: name.to_owned(), source: error });
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// The file in the pod's directory with the interfaces that the pod has: name, index in the pod, and the line of
/// [`LinkSettings`], each followed by a space but the last.
pub(crate) const INTERFACES: &str = "interfaces";

/// Moves interfaces of the host into the network namespace of the caller, and sets them up. An interface that
/// needs settings first, such as a bit rate of CAN, stays down; the containers can set it.
pub(super) fn take_interfaces(
    host: &mut Netlink,
    interfaces: &[(&str, u32)],
    scratch: &Path,
    taken: &mut String,
) -> Result<(), SandboxError> {
    if interfaces.is_empty() {
        return Ok(());
    }
    let namespace = File::open("/proc/self/ns/net").map_err(SandboxError::Namespace)?;
    let mut pod = Netlink::open().map_err(SandboxError::Netlink)?;
    for (name, index) in interfaces {
        let mut take = || -> io::Result<()> {
            let settings = host.settings(*index)?.to_line();
            host.move_link(*index, name, namespace.as_raw_fd())?;
            let index = link_index(name)?;
            *taken += &format!("{name} {index} {settings}\n");
            own_file::write(&scratch.with_file_name(INTERFACES), &taken)?;
            let _ = pod.set_up(index);
            Ok(())
        };
        take().map_err(|source| SandboxError::Interface { name: (*name).to_owned(), source })?;
    }
    Ok(())
}

/// Moves the interfaces that a pod has to the host, under their names there, with the settings that they had. The caller
/// is in the pod's network namespace, in which no container runs any more. A container may have renamed the interfaces,
/// so they are known by their index. A container that has removed one can have made another of the same index, but none
/// of the kind of hardware: only a link of the same kind is moved. `taken` is a text like that of the file; `host` belongs
/// to the host's network namespace, whose descriptor is `namespace`.
///
/// Returns what differs from before, for the agent: see [`RENAMED_FILE`](crate::RENAMED_FILE).
pub(crate) fn give_back_interfaces(taken: &str, host: &mut Netlink, namespace: &File) -> String {
    let mut report = String::new();
    let mut pod = Netlink::open();
    for (name, link) in taken.lines().filter_map(|line| line.split_once(' ')) {
        // The helper of an earlier version wrote no settings, or no kind either.
        let (index, settings) =
            link.split_once(' ').map_or((link, None), |(index, line)| (index, Some(line)));
        let Ok(index) = index.parse() else { continue };
        let kind = settings.and_then(|line| line.split(' ').next());
        let before = settings.and_then(LinkSettings::parse);
        let moved = match &mut pod {
            Ok(pod) => give_back(pod, (name, index, kind), before.as_ref(), namespace),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        match moved {
            Ok((new, differs)) => {
                if new != name {
                    report += &format!("{name} {new}\n");
                }
                let names = before.is_none_or(|before| host.add_alternative_names(&new, &before));
                let names = if names { "" } else { "alternative names" };
                let comma = if differs.is_empty() || names.is_empty() { "" } else { ", " };
                if !differs.is_empty() || !names.is_empty() {
                    report += &format!("{name} changed {differs}{comma}{names}\n");
                }
            }
            Err(error) => report += &format!("{name} lost {error}\n"),
        }
    }
    report
}

/// Moves one interface to the host: name, index and kind. Returns its name there, and the settings that it did not get
/// back. If its name is taken there, it gets the first free one of `dev0`, `dev1` and so on.
fn give_back(
    pod: &mut Netlink,
    (name, index, kind): (&str, u32, Option<&str>),
    before: Option<&LinkSettings>,
    host: &File,
) -> io::Result<(String, String)> {
    let is_own = |pod: &mut Netlink| {
        let found = pod.settings(index);
        found.is_ok_and(|found| kind.is_none_or(|kind| found.kind == kind))
    };
    if !is_own(pod) {
        return Err(io::Error::other("it was removed in the pod"));
    }
    let differs = pod.restore(index, before)?;
    // Otherwise an interface whose name is taken on the host would keep there the name that the pod chose.
    if pod.rename(index, name).is_err() {
        pod.rename(index, "dev%d")?;
    }
    let inside = pod.settings(index)?.name;
    let free = (0..u16::MAX).map(|number| format!("dev{number}"));
    for name in std::iter::once(name.to_owned()).chain(free) {
        match pod.move_link(index, &name, host.as_raw_fd()) {
            Ok(()) => return Ok((name, differs)),
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            // The kernel may have moved the link before it noticed that the name is taken.
            Err(_) if !is_own(pod) => return Ok((inside, differs)),
            Err(_) => {}
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Sets the host's end of the link up, so that the pod can neither configure the host through it nor send
/// under another address.
fn guard_host(host: &mut Netlink, network: &NetworkConfig, bridge: u32) -> io::Result<()> {
    let port = link_index(&network.host_link)?;
    let hardware = hardware_address(network.address);
    guard::refuse_ipv6(&network.host_link)?;
    let filtered =
        filter::attach(host, port, (network.address, network.ipv6.map(|ipv6| ipv6.address)), hardware)?;
    host.set_port_up(port, network.hairpin, &guard::PORT_IPV4)?;
    host.add_forwarding(port, hardware)?;
    if let Some(ipv6) = network.ipv6 {
        host.add_neighbour(bridge, ipv6.address, hardware)?;
    }
    if filtered {
        return Ok(());
    }
    // No ARP message of another pod must change the entry. It outlives the pod; the next pod with this
    // address has the same hardware address.
    host.add_neighbour(bridge, network.address, hardware)
}
