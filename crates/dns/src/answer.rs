//! The answer to a query. Pure: bytes in, bytes out.
//!
//! Queries are strict: one question, nothing else but an OPT record, no byte after it. Whatever else
//! arrives gets a header with an error, or nothing. Over UDP no answer is larger than
//! [`AMPLIFICATION`] times its query, whatever the query.

mod question;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use hickory_proto::rr::{DNSClass, Name, RecordType};
use hickory_proto::serialize::binary::{BinEncodable as _, BinEncoder};
use strum::IntoStaticStr;

use self::question::{Question, Unanswered};
use crate::cookie::{Cookies, LENGTH, Proof};
use crate::nearness::{Nearness, RelayId};
use crate::zone::{self, Family, Found, INFRASTRUCTURE_TTL, NEGATIVE_TTL, Node, Zone};

/// The most bytes of an answer over UDP for each byte of the query: numerator and denominator.
pub const AMPLIFICATION: (usize, usize) = (3, 2);

/// The length of a header (RFC 1035 section 4.1.1), and so of the shortest query and answer.
pub const HEADER: usize = 12;

/// The largest answer over UDP, which fits into any path without fragments (RFC 9715).
const UDP_PAYLOAD: u16 = 1232;

/// The largest answer over UDP to a query without EDNS (RFC 1035 section 4.2.1).
const CLASSIC_PAYLOAD: usize = 512;

/// A relay that clients can be led to.
#[derive(Debug)]
pub struct Relay {
    /// The name.
    pub name: String,
    /// The address for clients over IPv4.
    pub v4: Option<std::net::Ipv4Addr>,
    /// The address for clients over IPv6.
    pub v6: Option<std::net::Ipv6Addr>,
    /// Whether it is up.
    pub up: Arc<AtomicBool>,
}

/// Everything that answers depend on.
#[derive(Debug)]
pub struct Answers {
    /// The names.
    pub zone: Zone,
    /// The relays, in the fallback order: it decides where nothing has been measured.
    pub relays: Vec<Relay>,
    /// The round-trip times.
    pub nearness: Arc<Nearness>,
    /// How long resolvers may keep the address of a relay, in seconds.
    pub ttl: u32,
    /// The cookies that clients get.
    pub cookies: Cookies,
}

/// Who sent a query, how, and when.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// The address that it came from.
    pub source: IpAddr,
    /// How it arrived.
    pub transport: Transport,
    /// When, in seconds since 1970.
    pub now: u32,
}

/// How a query arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Over UDP: the source may be forged.
    Udp,
    /// Over UDP from a network that has used its rate: the answer only sends it to TCP.
    UdpTruncated,
    /// Over TCP.
    Tcp,
}

/// The kind of answer, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The response code; `None`: there is no answer.
    pub code: Option<ResponseCode>,
    /// Whether the answer only says that it is too large (TC).
    pub truncated: bool,
    /// Whether the query names the client's subnet.
    pub subnet: bool,
    /// What the query's cookie proves, if it has one.
    pub cookie: Option<Proof>,
    /// The relay in the answer.
    pub choice: Option<Choice>,
}

/// A relay for a client, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The relay.
    pub relay: RelayId,
    /// The basis of the choice.
    pub by: By,
    /// Whether no relay is up, so that the choice ignores it.
    pub blind: bool,
}

/// The basis of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum By {
    /// Times to the client's subnet, which the query names.
    Subnet,
    /// Times to the network of the resolver.
    Resolver,
    /// Nothing has been measured: the fallback order.
    Fallback,
}

/// Where a client is.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// The address of its subnet, if the query names it.
    pub subnet: Option<IpAddr>,
    /// The client, as far as the query tells.
    pub resolver: IpAddr,
}

// === impl Answers ===

impl Answers {
    /// Answers `query` from `asker`. Afterwards `answer` has the answer, or is empty if the query gets
    /// none.
    pub fn respond(&self, query: &[u8], asker: Asker, answer: &mut Vec<u8>) -> Reply {
        answer.clear();
        let mut reply = Reply {
            code: None,
            truncated: false,
            subnet: false,
            cookie: None,
            choice: None,
        };
        let (mut response, payload, cookie) = match Question::read(query) {
            Ok(question) => {
                reply.subnet = question.subnet.is_some();
                self.response(question, asker, &mut reply)
            }
            Err(Unanswered::Nothing) => return reply,
            Err(Unanswered::Code { code, with_opt }) => {
                write_header(query, code, with_opt, answer);
                reply.code = Some(code);
                return reply;
            }
        };
        let limit = match asker.transport {
            Transport::Tcp => usize::from(u16::MAX),
            // The source is not forged.
            _ if reply.cookie == Some(Proof::Proven) => payload,
            Transport::Udp | Transport::UdpTruncated => {
                let (most, of) = AMPLIFICATION;
                payload.min(query.len() * most / of)
            }
        };
        let mut fits = |response: &mut Message, cookie| {
            set_cookie(response, cookie);
            write(response, answer).is_some() && answer.len() <= limit
        };
        // A client that has sent a cookie takes no answer without one (RFC 7873 section 5.3).
        if response.metadata.truncation || !fits(&mut response, cookie) {
            response.metadata.truncation = true;
            response.answers.clear();
            response.authorities.clear();
            if !fits(&mut response, cookie) {
                // A question is as long as it was in the query, and an OPT record with a cookie fits, so this does
                // not happen; the limit holds all the same.
                let with_opt = response.edns.is_some();
                write_header(query, ResponseCode::ServFail, with_opt, answer);
                response.metadata.response_code = ResponseCode::ServFail;
                response.metadata.truncation = false;
            }
            reply.choice = None;
        }
        reply.truncated = response.metadata.truncation;
        reply.code = Some(response.metadata.response_code);
        reply
    }

    /// Returns what the cookie of a query proves; `None` if it has none, or is no query.
    pub fn proof(&self, query: &[u8], source: IpAddr, now: u32) -> Option<Proof> {
        let cookie = Question::read(query).ok()?.cookie?;
        Some(self.cookies.check(&cookie, source, now))
    }

    /// Returns the response without its cookie, the largest that the sender takes over UDP, and the cookie.
    fn response(
        &self,
        question: Question,
        asker: Asker,
        reply: &mut Reply,
    ) -> (Message, usize, Option<[u8; LENGTH]>) {
        let Asker {
            source,
            transport,
            now,
        } = asker;
        let Question {
            id,
            recursion_desired,
            query,
            edns,
            subnet,
            cookie,
        } = question;
        let mut response = Message::response(id, OpCode::Query);
        response.metadata.recursion_desired = recursion_desired;
        let payload = edns.as_ref().map_or(CLASSIC_PAYLOAD, |edns| {
            usize::from(edns.max_payload().min(UDP_PAYLOAD)).max(CLASSIC_PAYLOAD)
        });
        let is_known_version = edns.as_ref().is_none_or(|edns| edns.version() == 0);
        let cookie = cookie.filter(|_| is_known_version);
        reply.cookie = cookie.map(|cookie| self.cookies.check(&cookie, source, now));
        let mut scope = 0;
        if !is_known_version {
            response.metadata.response_code = ResponseCode::BADVERS;
        } else if transport == Transport::UdpTruncated {
            response.metadata.truncation = true;
        } else if let Some(query) = &query {
            let client = Client {
                // A source prefix of length 0 says that the subnet is to stay unknown (RFC 7871
                // section 7.1.2).
                subnet: subnet
                    .filter(|subnet| subnet.source_prefix() > 0)
                    .map(|subnet| subnet.addr()),
                resolver: source,
            };
            scope = self.fill(&mut response, query, client, reply);
        }
        if let Some(asked) = edns {
            let mut edns = Edns::new();
            edns.set_max_payload(UDP_PAYLOAD);
            edns.set_dnssec_ok(asked.flags().dnssec_ok);
            if let Some(subnet) = subnet.filter(|_| is_known_version) {
                let mut subnet = subnet;
                subnet.set_scope_prefix(if subnet.source_prefix() > 0 { scope } else { 0 });
                edns.options_mut().insert(EdnsOption::Subnet(subnet));
            }
            response.set_edns(edns);
        }
        response.add_queries(query);
        let cookie = cookie.map(|cookie| self.cookies.answer(&cookie, source, now));
        (response, payload, cookie)
    }

    /// Fills in code and records. Returns the length of the prefix around the client's subnet for which
    /// they hold.
    fn fill(&self, response: &mut Message, query: &Query, client: Client, reply: &mut Reply) -> u8 {
        let (name, kind) = (&query.name, query.query_type);
        let refused = matches!(kind, RecordType::AXFR | RecordType::IXFR);
        let node = match self.zone.find(name) {
            Found::Here(node) if query.query_class == DNSClass::IN && !refused => Some(node),
            Found::Missing if query.query_class == DNSClass::IN && !refused => None,
            _ => {
                response.metadata.response_code = ResponseCode::Refused;
                return 0;
            }
        };
        response.metadata.authoritative = true;
        let Some(node) = node else {
            response.metadata.response_code = ResponseCode::NXDomain;
            response.add_authority(self.zone.soa(name, NEGATIVE_TTL));
            return 0;
        };
        let is_origin = self.zone.is_origin(name);
        let mut scope = 0;
        match (kind, node) {
            (RecordType::SOA, _) if is_origin => {
                response.add_answer(self.zone.soa(name, INFRASTRUCTURE_TTL));
            }
            (RecordType::NS, _) if is_origin => {
                response.add_answers(self.zone.name_servers(name));
            }
            (_, Node::NameServer(addresses)) => {
                let asked = addresses.iter().filter(|a| asks_for(kind, Family::of(**a)));
                response.add_answers(asked.map(|a| zone::address(name, *a, INFRASTRUCTURE_TTL)));
            }
            (_, Node::Steered(relays)) => {
                // Of several types, one is enough for ANY (RFC 8482 section 4.1).
                for family in [Family::V4, Family::V6] {
                    if asks_for(kind, family) && response.answers.is_empty() {
                        let subnet = client.subnet.map(|address| self.nearness.find(address));
                        scope = subnet.map_or(0, |found| found.scope);
                        self.steer(response, name, relays, family, client, reply);
                    }
                }
            }
            (_, Node::Empty) => {}
        }
        if response.answers.is_empty() {
            response.add_authority(self.zone.soa(name, NEGATIVE_TTL));
            scope = 0;
        }
        scope
    }

    fn steer(
        &self,
        response: &mut Message,
        name: &Name,
        relays: &[RelayId],
        family: Family,
        client: Client,
        reply: &mut Reply,
    ) {
        let Some(choice) = self.choose(relays, family, client) else {
            return;
        };
        let relay = self.relays.get(usize::from(choice.relay));
        if let Some(address) = relay.and_then(|relay| relay.address(family)) {
            response.add_answer(zone::address(name, address, self.ttl));
            reply.choice = Some(choice);
        }
    }

    /// Chooses among `relays` (none: all) the one for `client`: the nearest that is up and has an
    /// address of the family. If none is up, the choice is made as if all were: the probes may be what
    /// is broken. Returns `None` if no relay has such an address.
    pub fn choose(&self, relays: &[RelayId], family: Family, client: Client) -> Option<Choice> {
        let usable = |id: RelayId| {
            let relay = self.relays.get(usize::from(id))?;
            let is_meant = relays.is_empty() || relays.binary_search(&id).is_ok();
            (is_meant && relay.address(family).is_some()).then_some(relay)
        };
        let mut order = self.order(client);
        let up = order.find(|(id, _)| usable(*id).is_some_and(Relay::is_up));
        let chosen = match up {
            Some(chosen) => Some((chosen, false)),
            None => {
                let any = self.order(client).find(|(id, _)| usable(*id).is_some());
                any.map(|chosen| (chosen, true))
            }
        };
        chosen.map(|((relay, by), blind)| Choice { relay, by, blind })
    }

    /// Returns the relays in the order of preference for `client`. A relay may occur several times.
    pub fn order(&self, client: Client) -> impl Iterator<Item = (RelayId, By)> {
        let near = |address: IpAddr, by: By| {
            let prefixes = self.nearness.find(address).prefixes();
            prefixes.flat_map(move |near| near.relays.iter().map(move |(id, _)| (*id, by)))
        };
        let all = 0..RelayId::try_from(self.relays.len()).unwrap_or(RelayId::MAX);
        let subnet = client.subnet.into_iter();
        subnet
            .flat_map(move |address| near(address, By::Subnet))
            .chain(near(client.resolver, By::Resolver))
            .chain(all.map(|id| (id, By::Fallback)))
    }
}

/// Returns whether a query of type `kind` asks for addresses of `family`.
fn asks_for(kind: RecordType, family: Family) -> bool {
    match kind {
        RecordType::A => family == Family::V4,
        RecordType::AAAA => family == Family::V6,
        RecordType::ANY => true,
        _ => false,
    }
}

// === impl Relay ===

impl Relay {
    /// Returns the address of a family.
    pub fn address(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.v4.map(IpAddr::V4),
            Family::V6 => self.v6.map(IpAddr::V6),
        }
    }

    fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }
}

// === impl By ===

impl By {
    /// Returns the label in metrics.
    pub fn label(self) -> &'static str {
        self.into()
    }
}

/// Sets or removes the cookie of a response.
fn set_cookie(response: &mut Message, cookie: Option<[u8; LENGTH]>) {
    let Some(edns) = &mut response.edns else {
        return;
    };
    edns.options_mut().remove(EdnsCode::Cookie);
    if let Some(cookie) = cookie {
        let option = EdnsOption::Unknown(EdnsCode::Cookie.into(), cookie.to_vec());
        edns.options_mut().insert(option);
    }
}

fn write(response: &Message, answer: &mut Vec<u8>) -> Option<()> {
    answer.clear();
    response.emit(&mut BinEncoder::new(answer)).ok()
}

/// Writes an answer of a header, and an OPT record if the query has one.
fn write_header(query: &[u8], code: ResponseCode, with_opt: bool, answer: &mut Vec<u8>) {
    answer.clear();
    let id = query.first_chunk().map_or(0, |id| u16::from_be_bytes(*id));
    let flags = query.get(2).copied().unwrap_or(0);
    let op_code = OpCode::from_u8((flags >> 3) & 0xf);
    let mut metadata = Metadata::new(id, MessageType::Response, op_code);
    metadata.response_code = code;
    metadata.recursion_desired = flags & 1 != 0;
    let mut message = Message::response(id, op_code);
    message.metadata = metadata;
    if with_opt {
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_PAYLOAD);
        message.set_edns(edns);
    }
    // A header alone cannot fail.
    let _ = message.emit(&mut BinEncoder::new(answer));
}

#[cfg(test)]
mod tests;
