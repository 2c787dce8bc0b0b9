//! Classifiers: eBPF programs that see the incoming packets of a link (`linux/pkt_sched.h`, `linux/pkt_cls.h`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcBpfFlags, TcFilterBpfOption, TcHandle, TcMessage, TcOption};

use super::Netlink;

/// The place of incoming packets at a link: TC_H_MIN_INGRESS of TC_H_CLSACT.
const INCOMING: TcHandle = TcHandle { major: u16::MAX, minor: TcHandle::MIN_INGRESS };
/// The first one, for every protocol: ETH_P_ALL in network byte order.
const PRIORITY_AND_PROTOCOL: u32 = 1 << 16 | 3_u16.to_be() as u32;

impl Netlink {
    /// Attaches an eBPF program, which decides for each incoming packet of the link with `index` whether it
    /// passes.
    pub(crate) fn add_classifier(&mut self, index: u32, program: BorrowedFd) -> io::Result<()> {
        let mut queue = queue(index);
        queue.attributes.push(TcAttribute::Kind("clsact".to_owned()));
        self.change(RouteNetlinkMessage::NewQueueDiscipline(queue), NLM_F_CREATE | NLM_F_EXCL)?;
        let options = [
            TcFilterBpfOption::ProgFd(program.as_raw_fd().cast_unsigned()),
            TcFilterBpfOption::ProgName("nodlet".to_owned()),
            TcFilterBpfOption::Flags(TcBpfFlags::DirectAction),
        ];
        let mut filter = TcMessage::with_index(index.cast_signed());
        filter.header.parent = INCOMING;
        filter.header.info = PRIORITY_AND_PROTOCOL;
        filter.attributes.push(TcAttribute::Kind("bpf".to_owned()));
        filter.attributes.push(TcAttribute::Options(options.into_iter().map(TcOption::Bpf).collect()));
        self.change(RouteNetlinkMessage::NewTrafficFilter(filter), NLM_F_CREATE | NLM_F_EXCL)
            .inspect_err(|_| drop(self.remove_classifier(index)))
    }

    /// Removes the program that [`Netlink::add_classifier`] attached.
    pub(crate) fn remove_classifier(&mut self, index: u32) -> io::Result<()> {
        self.change(RouteNetlinkMessage::DelQueueDiscipline(queue(index)), 0)
    }
}

/// A message about the classifiers of a link.
fn queue(index: u32) -> TcMessage {
    let mut message = TcMessage::with_index(index.cast_signed());
    message.header.handle = TcHandle { major: u16::MAX, minor: 0 };
    message.header.parent = TcHandle::CLSACT;
    message
}
