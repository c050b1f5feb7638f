//! Network devices, as netlink describes them.

use rtnetlink::packet_core::Nla as _;
use rtnetlink::packet_route::link::{InfoData, InfoKind, LinkAttribute, LinkInfo, LinkMessage};

/// The discipline that has no queue.
pub(crate) const NO_QUEUE: &str = "noqueue";

/// IFLA_TUN_* of `linux/if_link.h`, and IFF_TAP of `linux/if_tun.h`.
const IFLA_TUN_TYPE: u16 = 3;
const IFLA_TUN_MULTI_QUEUE: u16 = 7;
const IFF_TAP: u8 = 2;

/// A device, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its number, which no later device of this network namespace is given soon.
    pub index: u32,
    /// Places of its ring.
    pub ring: u32,
    /// The name of its queueing discipline.
    pub qdisc: String,
    /// Its own Ethernet address, which is not the guest's.
    pub mac: Option<[u8; 6]>,
    /// What drives it.
    pub kind: Kind,
}

/// What drives a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A TAP.
    Tap {
        /// It was made to have more than one queue (IFF_MULTI_QUEUE), whether it has them now or not.
        many_queues: bool,
    },
    /// A TUN: packets without Ethernet headers.
    Tun,
    /// Something else, by its name if it has one.
    Other(Option<String>),
}

// === impl Device ===

impl Device {
    /// Whether something stands before the ring that may drop what it has taken.
    pub fn has_queue(&self) -> bool {
        self.qdisc != NO_QUEUE
    }

    /// The guest's Ethernet address, if libvirt made the tap: it gives the tap the guest's, and 0xfe for the first byte.
    /// (By chance a tap's address begins so once in 2^24 times.)
    pub fn guest_mac(&self) -> Option<[u8; 6]> {
        match self.mac? {
            [0xfe, 0x54, 0, x, y, z] => Some([0x52, 0x54, 0, x, y, z]),
            _ => None,
        }
    }

    /// What a link message says of a device.
    pub(crate) fn from_link(link: LinkMessage) -> Option<Self> {
        let (mut name, mut mac) = (None, None);
        let (mut ring, mut qdisc, mut kind) = (0, String::new(), Kind::Other(None));
        for attribute in link.attributes {
            match attribute {
                LinkAttribute::IfName(is) => name = Some(is),
                LinkAttribute::TxQueueLen(places) => ring = places,
                LinkAttribute::Qdisc(is) => qdisc = is,
                LinkAttribute::Address(is) => mac = is.try_into().ok(),
                LinkAttribute::LinkInfo(info) => kind = kind_of(&info),
                _ => {}
            }
        }
        Some(Self {
            name: name?,
            index: link.header.index,
            ring,
            qdisc,
            mac,
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
