//! Queueing disciplines at the root of a device.
//!
//! Options are kept as the kernel encodes them: each kind has other options, some options are not
//! attributes (`pfifo`), and the restored discipline must equal the original.

use std::io;

use futures_util::StreamExt as _;
use rtnetlink::packet_core::{
    DefaultNla, Emitable as _, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST,
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
    Nla as _, NlasIterator,
};
use rtnetlink::proto::{self, ConnectionHandle};
use rtnetlink::sys::{SocketAddr, protocols::NETLINK_ROUTE};

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

/// TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS).
const CLSACT_EGRESS: u32 = 0xffff_fff3;

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
    replace(&Qdisc::named(ifindex, "pfifo")).await?;
    let mut nameless = Qdisc::named(ifindex, "");
    nameless.attributes.clear();
    ask(DELETE, nameless.encode(), NLM_F_ACK).await.map(drop)
}

/// Counts the filters at the egress of clsact, except those of priority `but`. 0 without clsact.
///
/// # Errors
/// An error of netlink.
pub(crate) async fn egress_filters(ifindex: i32, but: u32) -> io::Result<usize> {
    let mut body = vec![0; HEADER];
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    body[12..16].copy_from_slice(&CLSACT_EGRESS.to_ne_bytes());
    let answers = match ask(GET_FILTER, body, NLM_F_DUMP).await {
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
    let (connection, handle, _) = proto::new_connection::<Raw>(NETLINK_ROUTE)?;
    let connection = tokio::spawn(connection);
    let answers = answers(handle, kind, body, flags).await;
    connection.abort();
    answers
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
            _ => {}
        }
    }
    Ok(answers)
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
        }
    }
}
