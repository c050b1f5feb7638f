//! Reading a query, strictly.

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::Name;
use hickory_proto::rr::rdata::opt::{ClientSubnet, EdnsCode, EdnsOption};

use super::HEADER;
use crate::cookie::Cookie;
use crate::zone::Family;

/// A query that can be answered.
pub(super) struct Question {
    pub(super) id: u16,
    pub(super) recursion_desired: bool,
    pub(super) query: Query,
    pub(super) edns: Option<Edns>,
    pub(super) subnet: Option<ClientSubnet>,
    pub(super) cookie: Option<Cookie>,
}

/// Why a query is not answered.
pub(super) enum Unanswered {
    /// It gets no answer: it is itself an answer, or no message.
    Nothing,
    /// It gets a header with this code.
    Code(ResponseCode),
}

// === impl Question ===

impl Question {
    /// Reads a query.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Unanswered> {
        // The counts come first: the library makes room for as many records as they say.
        let header = bytes.first_chunk::<HEADER>().ok_or(Unanswered::Nothing)?;
        if header[2] & 0x80 != 0 {
            return Err(Unanswered::Nothing);
        }
        let bad = Unanswered::Code(ResponseCode::FormErr);
        if header[2] & 0x78 != 0 {
            return Err(Unanswered::Code(ResponseCode::NotImp));
        }
        let [questions, answers, authorities, additionals] =
            [4, 6, 8, 10].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
        if questions != 1 || answers > 0 || authorities > 0 || additionals > 1 {
            return Err(bad);
        }
        let Ok(mut message) = Message::from_vec(bytes) else {
            return Err(bad);
        };
        let (Some(query), None) = (message.queries.pop(), message.additionals.pop()) else {
            return Err(bad);
        };
        let edns = message.edns.take();
        // So a compressed name, bytes after the message and an option of a wrong length are refused,
        // which the library accepts (RFC 7871 section 6 for the last).
        let length = HEADER + wire_len(&query.name) + 4 + edns.as_ref().map_or(0, opt_len);
        if length != bytes.len() {
            return Err(bad);
        }
        let subnet = match edns.as_ref().and_then(|edns| edns.option(EdnsCode::Subnet)) {
            Some(EdnsOption::Subnet(subnet)) if is_subnet(subnet) => Some(*subnet),
            Some(_) => return Err(bad),
            None => None,
        };
        let cookie = match edns.as_ref().and_then(|edns| edns.option(EdnsCode::Cookie)) {
            Some(EdnsOption::Unknown(_, option)) => Some(Cookie::read(option).ok_or(bad)?),
            Some(_) => return Err(bad),
            None => None,
        };
        Ok(Self {
            id: message.metadata.id,
            recursion_desired: message.metadata.recursion_desired,
            query,
            edns,
            subnet,
            cookie,
        })
    }
}

/// Returns the length of a name that is not compressed.
fn wire_len(name: &Name) -> usize {
    let labels = name.iter().map(|label| label.len() + 1);
    labels.sum::<usize>() + 1
}

/// Returns the length of an OPT record (RFC 6891 section 6.1).
fn opt_len(edns: &Edns) -> usize {
    let options = edns.options().as_ref().iter();
    11 + options
        .map(|(_, option)| 4 + usize::from(option.len()))
        .sum::<usize>()
}

/// Returns whether a query may have this option: no scope yet, no bit beyond the source prefix (RFC
/// 7871 section 6).
fn is_subnet(subnet: &ClientSubnet) -> bool {
    let family = Family::of(subnet.addr());
    let network = ipnet::IpNet::new(subnet.addr(), subnet.source_prefix());
    let is_network = network.is_ok_and(|net| match net.prefix_len() {
        0 => net.addr() == family.unspecified(),
        _ => net.network() == net.addr(),
    });
    subnet.scope_prefix() == 0 && is_network
}
