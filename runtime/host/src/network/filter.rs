//! An eBPF program at the host's end of a pod's link, which drops what the pod sends under another pod's
//! address: frames with another hardware address, IPv4 packets and ARP messages with another IPv4 address. It
//! also drops ICMP redirects, and packets to loopback addresses.
//!
//! The program is attached as a classifier, which needs CONFIG_NET_SCH_INGRESS and CONFIG_NET_CLS_BPF.
//! Without these it is attached as tcx, which needs Linux 6.6: then the kernel waits until no processor
//! handles a packet any more, some 9 ms, during which no link of the host can be changed. On a kernel that
//! supports neither, `network/guard.rs` is the only protection.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use crate::bpf::{self, EXIT, Instruction, MOVE, instruction};
use crate::netlink::Netlink;

// From linux/bpf.h and linux/if_ether.h.
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_TCX_INGRESS: u32 = 46;
const TCX_PASS: i32 = 0;
const TCX_DROP: i32 = 2;
const ETH_P_IP: i32 = 0x0800;
const ETH_P_ARP: i32 = 0x0806;
const ETH_P_IPV6: i32 = 0x86dd;
const ETH_P_8021Q: i32 = 0x8100;
const ETH_P_8021AD: i32 = 0x88a8;

/// The first four bytes of the addresses that no bridge forwards (IEEE 802.1D): a frame to some of them
/// reaches the host's end of the link itself.
const BRIDGE_GROUP: i32 = 0x0180_c200;

const IPPROTO_ICMP: i32 = 1;
const ICMP_REDIRECT: i32 = 5;
/// IP_OFFSET: the offset of a fragment in its packet.
const IP_OFFSET: i32 = 0x1fff;

/// BPF_LD | BPF_ABS | BPF_B
const PACKET_BYTE: u8 = 0x30;
/// BPF_LD | BPF_IND | BPF_B: the byte at the offset in a register plus the immediate.
const INDEXED_BYTE: u8 = 0x50;
/// BPF_ALU | BPF_AND | BPF_K
const AND: u8 = 0x54;
/// BPF_ALU | BPF_LSH | BPF_K
const SHIFT_LEFT: u8 = 0x64;
/// BPF_LD | BPF_ABS | BPF_W: four bytes of the packet, in the processor's byte order.
const PACKET_WORD: u8 = 0x20;
/// BPF_LD | BPF_ABS | BPF_H
const PACKET_HALF: u8 = 0x28;
/// BPF_ALU64 | BPF_MOV | BPF_X
const MOVE_REGISTER: u8 = 0xbf;
/// BPF_JMP | BPF_JA
const JUMP: u8 = 0x05;
/// BPF_JMP32 | BPF_JEQ | BPF_K: compares 32 bits, because a 64-bit comparison would sign-extend the
/// immediate.
const JUMP_IF: u8 = 0x16;
/// BPF_JMP32 | BPF_JNE | BPF_K
const JUMP_IF_NOT: u8 = 0x56;

const RESULT: u8 = 0;
const CONTEXT: u8 = 1;
/// The register in which packet loads expect the context.
const KEPT_CONTEXT: u8 = 6;

/// Whether this kernel can filter the incoming packets of the link with `index`, which must have no filter.
pub fn is_supported(host: &mut Netlink, index: u32) -> bool {
    let pass = [instruction(MOVE, RESULT, 0, 0, TCX_PASS), instruction(EXIT, 0, 0, 0, 0)];
    let classified = bpf::load(BPF_PROG_TYPE_SCHED_CLS, &pass)
        .and_then(|program| host.add_classifier(index, program.as_fd()));
    match classified {
        Ok(()) => host.remove_classifier(index).is_ok(),
        Err(_) => bpf::can_attach(index, BPF_TCX_INGRESS),
    }
}

/// Attaches the filter for the pod with `address` and `hardware` to the link with `index`, in the network
/// namespace of `host` and of the calling thread. Returns `false` if this kernel cannot.
pub fn attach(
    host: &mut Netlink,
    index: u32,
    (address, ipv6): (Ipv4Addr, Option<Ipv6Addr>),
    hardware: [u8; 6],
) -> io::Result<bool> {
    let program = match bpf::load(BPF_PROG_TYPE_SCHED_CLS, &program(address, ipv6, hardware)) {
        // Without CONFIG_BPF_SYSCALL, and where the kernel is locked down.
        Err(error) if is_unsupported(&error) => return Ok(false),
        loaded => loaded?,
    };
    match host.add_classifier(index, program.as_fd()) {
        Err(error) if is_unsupported(&error) => {}
        added => return added.map(|()| true),
    }
    match bpf::attach(index, &program, BPF_TCX_INGRESS, 0) {
        // Before Linux 6.6.
        Err(error) if is_unsupported(&error) => Ok(false),
        attached => attached.map(|()| true),
    }
}

/// Whether an error means that the kernel was built without a feature, or does not allow it.
fn is_unsupported(error: &io::Error) -> bool {
    let kinds = [libc::ENOSYS, libc::EINVAL, libc::EPERM, libc::ENOENT, libc::EOPNOTSUPP];
    error.raw_os_error().is_some_and(|number| kinds.contains(&number))
}

/// The target of a jump.
#[derive(Clone, Copy)]
enum To {
    Arp,
    Ipv6,
    Drop,
    Pass,
}

/// The program for a pod. A packet that ends before a field that is read passes: no receiver treats it as
/// complete.
fn program(address: Ipv4Addr, ipv6: Option<Ipv6Addr>, hardware: [u8; 6]) -> Vec<Instruction> {
    let [a, b, c, d, e, f] = hardware;
    let vendor = i32::from(u16::from_be_bytes([a, b]));
    let device = i32::from_be_bytes([c, d, e, f]);
    let address = i32::from_be_bytes(address.octets());
    let ethernet = [
        (PACKET_WORD, 0, None),
        (JUMP_IF, BRIDGE_GROUP, Some(To::Drop)),
        // The sender's hardware address.
        (PACKET_HALF, 6, None),
        (JUMP_IF_NOT, vendor, Some(To::Drop)),
        (PACKET_WORD, 8, None),
        (JUMP_IF_NOT, device, Some(To::Drop)),
        // The protocol.
        (PACKET_HALF, 12, None),
        (JUMP_IF, ETH_P_ARP, Some(To::Arp)),
        // The kernel has removed one tag. After the filter it would remove a second one of VLAN 0, and read
        // the packet behind it.
        (JUMP_IF, ETH_P_8021Q, Some(To::Drop)),
        (JUMP_IF, ETH_P_8021AD, Some(To::Drop)),
        (JUMP_IF, ETH_P_IPV6, Some(To::Ipv6)),
        (JUMP_IF_NOT, ETH_P_IP, Some(To::Pass)),
        // The sender's IPv4 address.
        (PACKET_WORD, 26, None),
        (JUMP_IF_NOT, address, Some(To::Drop)),
        // The receiver's: 127.0.0.0/8 of the host, which the bridge may route for a hostPort.
        (PACKET_BYTE, 30, None),
        (JUMP_IF, 127, Some(To::Drop)),
        // ICMP, if its header is in this fragment.
        (PACKET_BYTE, 23, None),
        (JUMP_IF_NOT, IPPROTO_ICMP, Some(To::Pass)),
        (PACKET_HALF, 20, None),
        (AND, IP_OFFSET, None),
        (JUMP_IF_NOT, 0, Some(To::Pass)),
        // The ICMP type, after the IPv4 header, whose length is in words. The host accepts a redirect if any
        // of its links does, unless it forwards.
        (PACKET_BYTE, 14, None),
        (AND, 0xf, None),
        (SHIFT_LEFT, 2, None),
        (INDEXED_BYTE, 14, None),
        (JUMP_IF, ICMP_REDIRECT, Some(To::Drop)),
        (JUMP, 0, Some(To::Pass)),
    ];
    let arp = [
        (PACKET_HALF, 22, None),
        (JUMP_IF_NOT, vendor, Some(To::Drop)),
        (PACKET_WORD, 24, None),
        (JUMP_IF_NOT, device, Some(To::Drop)),
        (PACKET_WORD, 28, None),
        (JUMP_IF, address, Some(To::Pass)),
        // A probe for whether an address is in use claims none.
        (JUMP_IF, 0, Some(To::Pass)),
    ];
    // A pod without an IPv6 address of the board has only those that it gives itself.
    let ipv6 = ipv6.map_or_else(Vec::new, |address| {
        let [a, b, c, d] = [0, 4, 8, 12].map(|at| {
            let octets = address.octets();
            i32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
        });
        vec![
            // The sender's address: none yet, one of its link alone, or its own.
            (PACKET_WORD, 22, None),
            (JUMP_IF, 0, Some(To::Pass)),
            (AND, 0xffc0_0000_u32.cast_signed(), None),
            (JUMP_IF, 0xfe80_0000_u32.cast_signed(), Some(To::Pass)),
            (PACKET_WORD, 22, None),
            (JUMP_IF_NOT, a, Some(To::Drop)),
            (PACKET_WORD, 26, None),
            (JUMP_IF_NOT, b, Some(To::Drop)),
            (PACKET_WORD, 30, None),
            (JUMP_IF_NOT, c, Some(To::Drop)),
            (PACKET_WORD, 34, None),
            (JUMP_IF_NOT, d, Some(To::Drop)),
        ]
    });
    let at_ipv6 = 1 + ethernet.len();
    let at_arp = at_ipv6 + ipv6.len() + 1;
    let at_drop = at_arp + arp.len();
    let ipv6 = ipv6.into_iter().chain([(JUMP, 0, Some(To::Pass))]);
    let mut program = vec![instruction(MOVE_REGISTER, KEPT_CONTEXT, CONTEXT, 0, 0)];
    for (operation, value, to) in ethernet.into_iter().chain(ipv6).chain(arp) {
        let target = match to {
            None => program.len() + 1,
            Some(To::Arp) => at_arp,
            Some(To::Ipv6) => at_ipv6,
            Some(To::Drop) => at_drop,
            Some(To::Pass) => at_drop + 2,
        };
        let offset = (target - program.len() - 1) as i16;
        program.push(instruction(operation, RESULT, 0, offset, value));
    }
    for result in [TCX_DROP, TCX_PASS] {
        program.extend([instruction(MOVE, RESULT, 0, 0, result), instruction(EXIT, 0, 0, 0, 0)]);
    }
    program
}
