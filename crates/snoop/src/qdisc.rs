//! Queueing disciplines at the root of a device, and what others have at its hooks.
//!
//! Options are kept as the kernel encodes them: each kind has other options, some options are not
//! attributes (`pfifo`), and the restored discipline must equal the original.

use std::io;
use std::time::Duration;

use futures_util::StreamExt as _;
use rtnetlink::packet_core::{
    DefaultNla, Emitable as _, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST,
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
    Nla as _, NlasIterator,
};
use rtnetlink::proto::{self, ConnectionHandle};
use rtnetlink::sys::SocketAddr;
use rtnetlink::sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use rustix::io::Errno;
use tokio::time::timeout;

/// How long the kernel's answers are waited for. It answers at once, unless others hold its lock of devices.
/// An answer for which it had no memory (ENOBUFS) never comes. The early ACKs stop if snoop hangs for 10 s.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// RTM_* of `linux/rtnetlink.h`.
const NEW: u16 = 36;
const DELETE: u16 = 37;
const GET: u16 = 38;
const NEW_FILTER: u16 = 44;
const GET_FILTER: u16 = 46;

/// TCA_* of `linux/rtnetlink.h`: the name, the options, and the table of sizes.
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const STAB: u16 = 8;

/// TC_H_ROOT.
const ROOT: u32 = u32::MAX;

/// TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS), and TC_H_MIN_INGRESS, which also stands for the discipline
/// `ingress`.
pub(crate) const CLSACT_EGRESS: u32 = 0xffff_fff3;
pub(crate) const CLSACT_INGRESS: u32 = 0xffff_fff2;

/// NFT_MSG_NEWCHAIN and NFT_MSG_GETCHAIN of NFNL_SUBSYS_NFTABLES, the families whose chains can be at devices
/// (NFPROTO_NETDEV, and since Linux 5.10 NFPROTO_INET), and attributes of a chain: its hook, the hook's device
/// and list of devices, and how a name in the list begins (`linux/netfilter/nf_tables.h`).
const NEW_CHAIN: u16 = 10 << 8 | 3;
const GET_CHAIN: u16 = 10 << 8 | 4;
const FAMILIES: [u8; 2] = [5, 1];
const CHAIN_HOOK: u16 = 4;
const HOOK_DEVICE: u16 = 3;
const HOOK_DEVICES: u16 = 4;
const DEVICE_PREFIX: u16 = 2;

/// Bytes of `struct nfgenmsg`.
const NETFILTER_HEADER: usize = 4;

/// The handle of the discipline that [`reset`] puts in between ("ta").
const BETWEEN: u32 = 0x7461_0000;

/// Bytes of `struct tcmsg`.
const HEADER: usize = 20;

/// A queueing discipline at the root of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Qdisc {
    ifindex: i32,
    /// 0 for the kernel's default discipline.
    handle: u32,
    attributes: Vec<DefaultNla>,
}

/// An rtnetlink message about queueing disciplines, as encoded on the wire.
#[derive(Clone, Debug)]
struct Raw {
    kind: u16,
    body: Vec<u8>,
}

/// A socket of netlink, and the task that serves it.
#[derive(Debug)]
pub(crate) struct Netlink {
    handle: ConnectionHandle<Raw>,
    connection: tokio::task::JoinHandle<()>,
}

/// A chain of nftables, as encoded on the wire.
#[derive(Debug)]
pub(crate) struct Chain {
    body: Vec<u8>,
}

// === impl Qdisc ===

impl Qdisc {
    /// Returns the discipline of this name, without options.
    pub(crate) fn named(ifindex: i32, name: &str) -> Self {
        let mut name = name.as_bytes().to_vec();
        name.push(0);
        Self {
            ifindex,
            handle: 0,
            attributes: vec![DefaultNla::new(KIND, name)],
        }
    }

    /// Decodes a message. Returns `None` if it is about another device, or not about the root.
    pub(crate) fn decode(body: &[u8], of: i32) -> Option<Self> {
        let word = |at: usize| Some(*body.get(at..)?.first_chunk::<4>()?);
        let ifindex = i32::from_ne_bytes(word(4)?);
        let handle = u32::from_ne_bytes(word(8)?);
        if ifindex != of || u32::from_ne_bytes(word(12)?) != ROOT {
            return None;
        }
        let attributes = NlasIterator::new(body.get(HEADER..)?).flatten();
        let kept = attributes.filter(|a| [KIND, OPTIONS, STAB].contains(&a.kind()));
        Some(Self {
            ifindex,
            handle,
            attributes: kept
                .map(|a| DefaultNla::new(a.kind(), a.value().to_vec()))
                .collect(),
        })
    }

    /// Encodes the discipline as a message body.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = vec![0; HEADER + self.attributes.as_slice().buffer_len()];
        body[4..8].copy_from_slice(&self.ifindex.to_ne_bytes());
        body[8..12].copy_from_slice(&self.handle.to_ne_bytes());
        body[12..16].copy_from_slice(&ROOT.to_ne_bytes());
        self.attributes.as_slice().emit(&mut body[HEADER..]);
        body
    }

    /// Returns the discipline's name.
    pub(crate) fn name(&self) -> String {
        let kind = self.attributes.iter().find(|a| a.kind() == KIND);
        let mut name = kind.map_or(Vec::new(), |kind| {
            let mut value = vec![0; kind.value_len()];
            kind.emit_value(&mut value);
            value
        });
        name.retain(|byte| *byte != 0);
        String::from_utf8_lossy(&name).into_owned()
    }

    /// Returns whether the discipline is the kernel's default rather than a configured one.
    pub(crate) fn is_kernels_choice(&self) -> bool {
        self.handle == 0
    }

    /// Returns whether a [`reset`] got no further than to its first step.
    pub(crate) fn is_half_reset(&self) -> bool {
        self.handle == BETWEEN
    }
}

/// Returns the discipline at the root of this device, if the kernel reports one.
///
/// # Errors
/// An error of netlink or of the kernel.
pub(crate) async fn root(ifindex: i32) -> io::Result<Option<Qdisc>> {
    let mut body = vec![0; HEADER];
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    let answers = ask(GET, body, NLM_F_DUMP).await?;
    let found = answers.iter().filter(|answer| answer.kind == NEW);
    Ok(found.filter_map(|a| Qdisc::decode(&a.body, ifindex)).next())
}

/// Sets this as the discipline of its device.
///
/// # Errors
/// An error of netlink or of the kernel.
pub(crate) async fn replace(qdisc: &Qdisc) -> io::Result<()> {
    let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
    ask(NEW, qdisc.encode(), flags).await.map(drop)
}

/// Restores the kernel's default.
///
/// # Errors
/// An error of netlink or of the kernel.
pub(crate) async fn reset(ifindex: i32) -> io::Result<()> {
    // `noqueue` has no name and cannot be deleted, but a named one can.
    let mut between = Qdisc::named(ifindex, "pfifo");
    between.handle = BETWEEN;
    replace(&between).await?;
    let mut nameless = Qdisc::named(ifindex, "");
    nameless.attributes.clear();
    ask(DELETE, nameless.encode(), NLM_F_ACK).await.map(drop)
}

/// Returns the chains of nftables that may be at devices. `None` if the kernel has no nftables.
///
/// # Errors
/// An error of netlink.
pub(crate) async fn chains() -> io::Result<Option<Vec<Chain>>> {
    let mut chains = Vec::new();
    let netlink = match Netlink::open(NETLINK_NETFILTER) {
        Ok(netlink) => netlink,
        Err(error) if is_absence(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    for family in FAMILIES {
        let body = vec![family, 0, 0, 0];
        let found = match netlink.ask(GET_CHAIN, body, NLM_F_DUMP).await {
            Ok(found) => found,
            Err(error) if is_absence(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let found = found.into_iter().filter(|chain| chain.kind == NEW_CHAIN);
        chains.extend(found.map(|chain| Chain { body: chain.body }));
    }
    Ok(Some(chains))
}

/// Returns whether the kernel has no nfnetlink (EPROTONOSUPPORT), or no nftables in it.
fn is_absence(error: &io::Error) -> bool {
    [Errno::PROTONOSUPPORT, Errno::OPNOTSUPP, Errno::INVAL]
        .iter()
        .any(|absent| error.raw_os_error() == Some(absent.raw_os_error()))
}

fn is_chain_at(body: &[u8], device: &[u8]) -> bool {
    let inside = |value: &[u8], kind: u16| -> Vec<(u16, Vec<u8>)> {
        let attributes = NlasIterator::new(value).flatten();
        let kept = attributes.filter(|a| kind == 0 || a.kind() == kind);
        kept.map(|a| (a.kind(), a.value().to_vec())).collect()
    };
    let is_name = |name: &[u8]| name.split(|byte| *byte == 0).next() == Some(device);
    let attributes = body.get(NETFILTER_HEADER..).unwrap_or_default();
    let hooks = inside(attributes, CHAIN_HOOK);
    let mut parts = hooks.iter().flat_map(|(_, hook)| inside(hook, 0));
    parts.any(|(kind, value)| match kind {
        HOOK_DEVICE => is_name(&value),
        HOOK_DEVICES => inside(&value, 0).iter().any(|(kind, name)| match *kind {
            DEVICE_PREFIX => {
                let end = name
                    .iter()
                    .position(|byte| *byte == 0)
                    .unwrap_or(name.len());
                device.starts_with(&name[..end])
            }
            _ => is_name(name),
        }),
        _ => false,
    })
}

/// Counts the filters at one end of clsact, except those of priority `but`. 0 without clsact.
///
/// # Errors
/// An error of netlink.
pub(crate) async fn filters(
    netlink: &Netlink,
    ifindex: i32,
    parent: u32,
    but: u32,
) -> io::Result<usize> {
    let mut body = vec![0; HEADER];
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    body[12..16].copy_from_slice(&parent.to_ne_bytes());
    let answers = match netlink.ask(GET_FILTER, body, NLM_F_DUMP).await {
        Ok(answers) => answers,
        // The device has no clsact.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(0),
        Err(error) => return Err(error),
    };
    let others = answers.iter().filter(|answer| {
        let info = answer
            .body
            .get(16..)
            .and_then(|info| info.first_chunk::<4>());
        let priority = info.map_or(0, |info| u32::from_ne_bytes(*info) >> 16);
        answer.kind == NEW_FILTER && priority != but
    });
    Ok(others.count())
}

async fn ask(kind: u16, body: Vec<u8>, flags: u16) -> io::Result<Vec<Raw>> {
    Netlink::open(NETLINK_ROUTE)?.ask(kind, body, flags).await
}

// === impl Netlink ===

impl Netlink {
    /// Opens a socket of this protocol, within a runtime.
    pub(crate) fn open(protocol: isize) -> io::Result<Self> {
        let (mut connection, handle, _) = proto::new_connection::<Raw>(protocol)?;
        // They tell an answer that is complete from one that was lost.
        connection.set_forward_ack(true);
        connection.set_forward_done(true);
        let connection = tokio::spawn(connection);
        Ok(Self { handle, connection })
    }

    async fn ask(&self, kind: u16, body: Vec<u8>, flags: u16) -> io::Result<Vec<Raw>> {
        let answers = answers(self.handle.clone(), kind, body, flags);
        let answered = timeout(PATIENCE, answers).await;
        answered.unwrap_or_else(|_| Err(lost()))
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

// === impl Chain ===

impl Chain {
    /// Returns whether the chain is at this device, at ingress or egress.
    pub(crate) fn is_at(&self, device: &str) -> bool {
        is_chain_at(&self.body, device.as_bytes())
    }
}

async fn answers(
    handle: ConnectionHandle<Raw>,
    kind: u16,
    body: Vec<u8>,
    flags: u16,
) -> io::Result<Vec<Raw>> {
    let mut request = NetlinkMessage::from(Raw { kind, body });
    request.header.flags = NLM_F_REQUEST | flags;
    let kernel = SocketAddr::new(0, 0);
    let mut stream = handle.request(request, kernel).map_err(io::Error::other)?;
    let mut answers = Vec::new();
    while let Some(answer) = stream.next().await {
        match answer.payload {
            NetlinkPayload::InnerMessage(raw) => answers.push(raw),
            NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
            NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(answers),
            _ => {}
        }
    }
    Err(lost())
}

/// Returns the error of a request whose answer ended before its end.
pub(crate) fn lost() -> io::Error {
    io::Error::other("the kernel's answer over netlink was lost")
}

// === impl Raw ===

impl NetlinkSerializable for Raw {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.body.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer[..self.body.len()].copy_from_slice(&self.body);
    }
}

impl NetlinkDeserializable for Raw {
    type Error = std::convert::Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Self::Error> {
        Ok(Self {
            kind: header.message_type,
            body: payload.to_vec(),
        })
    }
}

impl From<Raw> for NetlinkPayload<Raw> {
    fn from(raw: Raw) -> Self {
        Self::InnerMessage(raw)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn options_that_are_not_attributes_survive_a_round_trip() {
        let mut pfifo = Qdisc::named(7, "pfifo");
        pfifo.handle = 0x8001_0000;
        let options = DefaultNla::new(OPTIONS, 77u32.to_ne_bytes().to_vec());
        pfifo.attributes.push(options);
        assert_eq!(Qdisc::decode(&pfifo.encode(), 7).unwrap(), pfifo);
        assert_eq!(pfifo.name(), "pfifo");
        assert_eq!(Qdisc::decode(&pfifo.encode(), 8), None);
    }

    proptest! {
        #[test]
        fn no_input_makes_the_decoder_panic(body: Vec<u8>) {
            let _ = Qdisc::decode(&body, 1).map(|qdisc| qdisc.name());
            let _ = is_chain_at(&body, b"vnet0");
        }
    }
}
