//! Reading a query, strictly.

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::RecordType;
use hickory_proto::rr::rdata::opt::{ClientSubnet, EdnsCode, EdnsOption};

use super::HEADER;
use crate::cookie::Cookie;
use crate::zone::Family;

/// A query that can be answered.
pub(super) struct Question {
    pub(super) id: u16,
    pub(super) recursion_desired: bool,
    /// `None`: the client only asks for a cookie (RFC 7873 section 5.4).
    pub(super) query: Option<Query>,
    pub(super) edns: Option<Edns>,
    pub(super) subnet: Option<ClientSubnet>,
    pub(super) cookie: Option<Cookie>,
}

/// Why a query is not answered.
#[derive(Clone, Copy)]
pub(super) enum Unanswered {
    /// It gets no answer: it is itself an answer, or no message.
    Nothing,
    /// It gets a header with this code, and an OPT record if it has one itself (RFC 6891 section 6.1.1).
    Code {
        /// The code.
        code: ResponseCode,
        /// Whether the query has an OPT record.
        with_opt: bool,
    },
}

/// The option of a client's subnet (RFC 7871 section 6) of no family, with an empty address, as `dig +subnet=0`
/// sends it: its code and length, the family, both prefix lengths.
const EMPTY_SUBNET: [u8; 8] = [0, 8, 0, 4, 0, 0, 0, 0];

/// The length of an OPT record without options: an empty name, type, class, TTL and length (RFC 6891 section 6.1).
const OPT: usize = 1 + 2 + 2 + 4 + 2;

// === impl Question ===

impl Question {
    /// Reads a query.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Unanswered> {
        // The counts come first: the library makes room for as many records as they say.
        let header = bytes.first_chunk::<HEADER>().ok_or(Unanswered::Nothing)?;
        if header[2] & 0x80 != 0 {
            return Err(Unanswered::Nothing);
        }
        let opt = find_opt(bytes);
        let refused = |code| Unanswered::Code {
            code,
            with_opt: opt.is_some(),
        };
        let bad = refused(ResponseCode::FormErr);
        if header[2] & 0x78 != 0 {
            return Err(refused(ResponseCode::NotImp));
        }
        let [questions, answers, authorities, additionals] =
            [4, 6, 8, 10].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
        if questions > 1 || answers > 0 || authorities > 0 || additionals > 1 {
            return Err(bad);
        }
        // The library refuses a subnet of no family, which says that the subnet is to stay unknown.
        let stripped = opt.and_then(|at| without_empty_subnet(bytes, at));
        let bytes = stripped.as_deref().unwrap_or(bytes);
        let Ok(mut message) = Message::from_vec(bytes) else {
            return Err(bad);
        };
        let (query, None) = (message.queries.pop(), message.additionals.pop()) else {
            return Err(bad);
        };
        let edns = message.edns.take();
        // So a compressed name, bytes after the message and an option of a wrong length are refused,
        // which the library accepts (RFC 7871 section 6 for the last).
        let question_end = match query {
            Some(_) => name_end(bytes).ok_or(bad)? + 4,
            None => HEADER,
        };
        if question_end + edns.as_ref().map_or(0, opt_len) != bytes.len() {
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
        if query.is_none() && cookie.is_none() {
            return Err(bad);
        }
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

/// Returns where the OPT record of a query begins, if it has a whole one: after at most one question, whose name is
/// not compressed.
fn find_opt(bytes: &[u8]) -> Option<usize> {
    let count = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let at = match count(4)? {
        0 => HEADER,
        _ => name_end(bytes)? + 4,
    };
    let fixed = bytes.get(at..at + OPT)?;
    let is_opt = fixed[0] == 0 && count(at + 1)? == u16::from(RecordType::OPT);
    (is_opt && count(10)? > 0).then_some(at)
}

/// Returns the query without its [`EMPTY_SUBNET`]; `None` if its OPT record, at `opt`, has none.
fn without_empty_subnet(bytes: &[u8], opt: usize) -> Option<Vec<u8>> {
    let length_at = opt + OPT - 2;
    let mut at = opt + OPT;
    while bytes.get(at..at + EMPTY_SUBNET.len())? != EMPTY_SUBNET {
        let length = u16::from_be_bytes([*bytes.get(at + 2)?, *bytes.get(at + 3)?]);
        at += 4 + usize::from(length);
    }
    let mut without = bytes.to_vec();
    without.drain(at..at + EMPTY_SUBNET.len());
    let length = without.get_mut(length_at..length_at + 2)?;
    let shorter = u16::from_be_bytes([length[0], length[1]]).checked_sub(8)?;
    length.copy_from_slice(&shorter.to_be_bytes());
    Some(without)
}

/// Returns where the name of the first question ends, if it is not compressed.
fn name_end(bytes: &[u8]) -> Option<usize> {
    let mut at = HEADER;
    loop {
        match *bytes.get(at)? {
            0 => return Some(at + 1),
            label @ 1..64 => at += 1 + usize::from(label),
            _ => return None,
        }
    }
}

/// Returns the length of an OPT record.
fn opt_len(edns: &Edns) -> usize {
    let options = edns.options().as_ref().iter();
    OPT + options
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
