//! The hello: the client, destination and route of the session on a connection.

mod route;
mod target;

use std::fmt;
use std::net::SocketAddr;

pub use self::target::{Target, TargetError};
use crate::name::MemberName;
use crate::proxy::{self, Command, Tlvs};
use crate::rejection::Rejection;
use crate::wire::{self, Fields, VERSION, kind};

/// The largest number of relays in a hello's route, besides the one that it is sent to.
pub const MAX_ROUTE: usize = 8;

/// The number of relays that a session may pass, by default.
pub const DEFAULT_HOPS: u8 = 8;

/// The purpose of a connection that carries rows.
const ROWS: u8 = 1;

/// The client, destination and route of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Address of the client, as seen by the first relay. The scope and flow label of an IPv6 address
    /// are not carried.
    pub source: SocketAddr,
    /// Destination of the session.
    pub destination: Target,
    /// The relay that the hello is for. Another relay refuses it.
    pub receiver: MemberName,
    /// The relays after the receiver, at most [`MAX_ROUTE`]. If empty, the receiver connects to the
    /// destination.
    pub route: Vec<MemberName>,
    /// The number of relays that may still accept the session, including the receiver. A relay refuses
    /// 0, so that a loop ends.
    pub hops_left: u8,
    /// The ID of the session, which every relay on its path logs.
    pub session: SessionId,
    /// The fields of the PROXY protocol header that the client's connection began with, for a header
    /// to the destination.
    pub passed: Tlvs,
}

/// The ID of a session, the same at each relay on its path: 16 random bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(pub [u8; 16]);

/// A rule that a hello breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// The destination is invalid.
    #[error("the destination {0}")]
    Destination(TargetError),
    /// The route has too many relays.
    #[error("the route has {0} relays; at most {MAX_ROUTE} are allowed")]
    Route(usize),
    /// No hops are left.
    #[error("the session has reached its limit of relays")]
    NoHops,
}

// === impl Hello ===

impl Hello {
    /// Checks that an acceptor would accept the hello.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(&self) -> Result<(), HelloError> {
        self.destination.check().map_err(HelloError::Destination)?;
        if self.route.len() > MAX_ROUTE {
            return Err(HelloError::Route(self.route.len()));
        }
        if self.hops_left == 0 {
            return Err(HelloError::NoHops);
        }
        Ok(())
    }

    /// Returns the hello for the next relay, at a relay that accepted this hello. Returns `None` if that
    /// relay is the last and must connect to the destination.
    ///
    /// # Errors
    /// [`Rejection::NoHops`] if the session may not pass another relay.
    pub fn next_hop(&self) -> Result<Option<Self>, Rejection> {
        let Some((next, rest)) = self.route.split_first() else {
            return Ok(None);
        };
        if self.hops_left <= 1 {
            return Err(Rejection::NoHops);
        }
        Ok(Some(Self {
            receiver: next.clone(),
            route: rest.to_vec(),
            hops_left: self.hops_left - 1,
            ..self.clone()
        }))
    }

    /// Encodes the message. An over-long field is truncated so that it still breaks the rule: the encoded
    /// hello never names another destination.
    pub fn encode(&self) -> Vec<u8> {
        let name;
        let destination = match &self.destination {
            Target::Addr(addr) => {
                name = None;
                *addr
            }
            Target::Name { host, port } => {
                name = Some(target::cut(host));
                proxy::unspecified(self.source, *port)
            }
        };
        let mut message = proxy::start(self.source, destination);
        proxy::push_tlv(&mut message, kind::VERSION, &[VERSION]);
        proxy::push_tlv(
            &mut message,
            kind::RECEIVER,
            self.receiver.as_str().as_bytes(),
        );
        proxy::push_tlv(&mut message, kind::HOPS, &[self.hops_left]);
        proxy::push_tlv(&mut message, proxy::kind::UNIQUE_ID, &self.session.0);
        if let Some(name) = name {
            proxy::push_tlv(&mut message, proxy::kind::AUTHORITY, name);
        }
        if !self.route.is_empty() {
            proxy::push_tlv(&mut message, kind::ROUTE, &route::encode(&self.route));
        }
        if !self.passed.is_empty() {
            proxy::push_tlv(&mut message, kind::PASSED, self.passed.as_bytes());
        }
        let len = message.len();
        proxy::set_length(&mut message, len);
        message
    }

    /// Returns the hello of a connection that carries no session but rows ([`crate::rows`]) between its two
    /// relays, for the relay `receiver`.
    pub fn for_rows(receiver: &MemberName) -> Vec<u8> {
        let mut message = proxy::bare_start(Command::Local);
        proxy::push_tlv(&mut message, kind::VERSION, &[VERSION]);
        proxy::push_tlv(&mut message, kind::RECEIVER, receiver.as_str().as_bytes());
        proxy::push_tlv(&mut message, kind::PURPOSE, &[ROWS]);
        let len = message.len();
        proxy::set_length(&mut message, len);
        message
    }

    /// Checks that a message that arrived at the relay `own` is a hello [for rows](Self::for_rows). Returns
    /// `false` if it is that of a session, which [`Hello::decode`] checks.
    pub(crate) fn is_for_rows(bytes: &[u8], own: &MemberName) -> Result<bool, Rejection> {
        let fields = Fields::parse(bytes)?;
        if fields.frame.command != Command::Local {
            return Ok(false);
        }
        fields.check_version()?;
        if fields.optional_field(kind::RECEIVER)? != Some(own.as_str().as_bytes()) {
            return Err(Rejection::Misdirected);
        }
        match fields.field(kind::PURPOSE)? {
            [ROWS] => Ok(true),
            _ => Err(Rejection::BadFrame),
        }
    }

    /// Decodes a message that arrived at the relay `own`.
    pub(crate) fn decode(bytes: &[u8], own: &MemberName) -> Result<Self, Rejection> {
        let fields = Fields::parse(bytes)?;
        fields.check_version()?;
        if fields.frame.command != Command::Proxy {
            return Err(Rejection::BadFrame);
        }
        let receiver = fields.optional_field(kind::RECEIVER)?;
        if receiver != Some(own.as_str().as_bytes()) {
            return Err(Rejection::Misdirected);
        }
        let (source, address) = fields.frame.addresses().ok_or(Rejection::BadFrame)?;
        let destination = match fields.optional_field(proxy::kind::AUTHORITY)? {
            None => Target::Addr(address),
            // With both a name and an address the destination would be ambiguous.
            Some(_) if !address.ip().is_unspecified() => return Err(Rejection::BadDestination),
            Some(host) => Target::Name {
                host: str::from_utf8(host)
                    .map_err(|_| Rejection::BadDestination)?
                    .to_owned(),
                port: address.port(),
            },
        };
        let hello = Self {
            source,
            destination,
            receiver: own.clone(),
            route: match fields.optional_field(kind::ROUTE)? {
                Some(route) => route::decode(route).ok_or(Rejection::BadRoute)?,
                None => Vec::new(),
            },
            hops_left: u8::from_be_bytes(fields.field(kind::HOPS)?),
            session: SessionId(fields.field(proxy::kind::UNIQUE_ID)?),
            passed: Tlvs::parse(fields.optional_field(kind::PASSED)?.unwrap_or_default())
                .map_err(wire::rejection)?,
        };
        hello.check().map_err(|error| match error {
            HelloError::Destination(_) => Rejection::BadDestination,
            HelloError::Route(_) => Rejection::BadRoute,
            HelloError::NoHops => Rejection::NoHops,
        })?;
        Ok(hello)
    }
}

// === impl SessionId ===

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", base16ct::HexDisplay(&self.0))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({self})")
    }
}

#[cfg(test)]
mod tests;
