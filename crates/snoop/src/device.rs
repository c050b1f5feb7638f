//! Network devices, as reported by netlink.

use rtnetlink::packet_core::Nla as _;
use rtnetlink::packet_route::link::{
    InfoData, InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, LinkXdp, XdpAttached,
};

/// The queueing discipline without a queue.
pub(crate) const NO_QUEUE: &str = "noqueue";

/// IFLA_TUN_* of `linux/if_link.h`, and IFF_TAP of `linux/if_tun.h`.
const IFLA_TUN_TYPE: u16 = 3;
const IFLA_TUN_MULTI_QUEUE: u16 = 7;
const IFF_TAP: u8 = 2;

/// A network device, with the attributes that matter to snoop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The device's name.
    pub name: String,
    /// The device's index, which the kernel does not reuse soon in the same network namespace.
    pub index: u32,
    /// `txqueuelen`: the length of a tap's ring, in frames.
    pub ring: u32,
    /// Name of the root queueing discipline.
    pub qdisc: String,
    /// Ethernet address of the device itself, not of the guest.
    pub mac: Option<[u8; 6]>,
    /// Whether it has an XDP program.
    pub xdp: bool,
    /// Whether it is up.
    pub up: bool,
    /// The kind of the device.
    pub kind: Kind,
}

/// The kind of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A TAP.
    Tap {
        /// Whether it was created with `IFF_MULTI_QUEUE`, even if only one queue is attached.
        many_queues: bool,
    },
    /// A TUN, whose packets have no Ethernet headers.
    Tun,
    /// Another kind, by its netlink name if it has one.
    Other(Option<String>),
}

// === impl Device ===

impl Device {
    /// Returns whether a queueing discipline that may drop frames is in front of the ring.
    pub fn has_queue(&self) -> bool {
        self.qdisc != NO_QUEUE
    }

    /// Returns the guest's Ethernet address if libvirt created the tap: the tap's address is then
    /// the guest's with 0xfe as the first byte. (A random address matches once in 2^24 times.)
    pub fn guest_mac(&self) -> Option<[u8; 6]> {
        match self.mac? {
            [0xfe, 0x54, 0, x, y, z] => Some([0x52, 0x54, 0, x, y, z]),
            _ => None,
        }
    }

    /// Reads a link message. Returns `None` if it has no name.
    pub(crate) fn from_link(link: LinkMessage) -> Option<Self> {
        let (mut name, mut mac, mut xdp) = (None, None, false);
        let (mut ring, mut qdisc, mut kind) = (0, String::new(), Kind::Other(None));
        for attribute in link.attributes {
            match attribute {
                LinkAttribute::IfName(is) => name = Some(is),
                LinkAttribute::TxQueueLen(places) => ring = places,
                LinkAttribute::Qdisc(is) => qdisc = is,
                LinkAttribute::Address(is) => mac = is.try_into().ok(),
                LinkAttribute::LinkInfo(info) => kind = kind_of(&info),
                LinkAttribute::Xdp(state) => {
                    let none = LinkXdp::Attached(XdpAttached::None);
                    let attached = |part: &LinkXdp| matches!(part, LinkXdp::Attached(_));
                    xdp = state.iter().any(|part| attached(part) && *part != none);
                }
                _ => {}
            }
        }
        Some(Self {
            name: name?,
            index: link.header.index,
            ring,
            qdisc,
            mac,
            xdp,
            up: link.header.flags.contains(LinkFlags::Up),
            kind,
        })
    }
}

fn kind_of(info: &[LinkInfo]) -> Kind {
    let name = info.iter().find_map(|info| match info {
        LinkInfo::Kind(kind) => Some(kind.clone()),
        _ => None,
    });
    if name != Some(InfoKind::Tun) {
        return Kind::Other(name.map(|kind| kind.to_string()));
    }
    let data = info.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Tun(data)) => Some(data),
        _ => None,
    });
    let attribute = |number: u16| {
        data.into_iter().flatten().find_map(|attribute| {
            let mut value = vec![0; attribute.value_len()];
            attribute.emit_value(&mut value);
            (attribute.kind() == number).then_some(value)
        })
    };
    if attribute(IFLA_TUN_TYPE).is_none_or(|value| value != [IFF_TAP]) {
        return Kind::Tun;
    }
    Kind::Tap {
        many_queues: attribute(IFLA_TUN_MULTI_QUEUE).is_some_and(|value| value == [1]),
    }
}
