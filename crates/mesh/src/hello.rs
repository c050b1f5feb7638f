//! The hello: whose session a connection carries, where it goes, and by which relays.

mod route;
mod target;

use std::fmt;
use std::net::SocketAddr;

pub use self::target::{Target, TargetError};
use crate::proxy::{self, Command};
use crate::rejection::Rejection;
use crate::wire::{Sealed, VERSION, kind};

/// Relays that a hello may name beside the one that it is sent to.
pub const MAX_ROUTE: usize = 8;

/// Relays that a session may pass, unless it is said otherwise.
pub const DEFAULT_HOPS: u8 = 8;

/// Whose session it is and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Where the client connected from, as the first relay saw it. The scope and flow label of an
    /// IPv6 address are not carried.
    pub source: SocketAddr,
    /// Where the session is to arrive.
    pub destination: Target,
    /// The relays that are to come after the one this is sent to, at most [`MAX_ROUTE`]. Without
    /// one, that relay connects to the destination.
    pub route: Vec<Target>,
    /// How many relays may still take this session, the one it is sent to among them. With 0 it is
    /// refused, so that a loop comes to an end.
    pub hops_left: u8,
    /// The session's name in the logs of every relay that it passes.
    pub session: SessionId,
}

/// The name of a session, the same at each relay it passes: 16 random bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(pub [u8; 16]);

/// Why a hello would be refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// The destination is none.
    #[error("the destination {0}")]
    Destination(TargetError),
    /// A relay of the route is none.
    #[error("relay {index} of the route {error}", index = index + 1)]
    Relay {
        /// Its place, from 0.
        index: usize,
        /// What is wrong with it.
        error: TargetError,
    },
    /// Too many relays.
    #[error("the route has {0} relays, and there can be {MAX_ROUTE}")]
    Route(usize),
    /// No relay may take it.
    #[error("the session has passed as many relays as it may")]
    NoHops,
}

// === impl Hello ===

impl Hello {
    /// Whether the acceptor can take it.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(&self) -> Result<(), HelloError> {
        self.destination.check().map_err(HelloError::Destination)?;
        if self.route.len() > MAX_ROUTE {
            return Err(HelloError::Route(self.route.len()));
        }
        for (index, relay) in self.route.iter().enumerate() {
            relay
                .check()
                .map_err(|error| HelloError::Relay { index, error })?;
        }
        if self.hops_left == 0 {
            return Err(HelloError::NoHops);
        }
        Ok(())
    }

    /// The next relay and the hello for it, at a relay that took this one; `None` when that relay is
    /// the last and connects to the destination.
    ///
    /// # Errors
    /// [`Rejection::NoHops`] when no further relay may take it.
    pub fn onward(&self) -> Result<Option<(Target, Self)>, Rejection> {
        let Some((next, rest)) = self.route.split_first() else {
            return Ok(None);
        };
        if self.hops_left <= 1 {
            return Err(Rejection::NoHops);
        }
        let hello = Self {
            route: rest.to_vec(),
            hops_left: self.hops_left - 1,
            ..self.clone()
        };
        Ok(Some((next.clone(), hello)))
    }

    /// The message up to its MAC. What breaks a rule is cut so that it still does: no hello is
    /// ever about another destination than the one that was meant.
    pub(crate) fn unsealed(&self) -> Vec<u8> {
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
        proxy::push_tlv(&mut message, kind::HOPS, &[self.hops_left]);
        proxy::push_tlv(&mut message, proxy::kind::UNIQUE_ID, &self.session.0);
        if let Some(name) = name {
            proxy::push_tlv(&mut message, proxy::kind::AUTHORITY, name);
        }
        if !self.route.is_empty() {
            proxy::push_tlv(&mut message, kind::ROUTE, &route::encode(&self.route));
        }
        message
    }

    /// From a message whose MAC and version are right.
    pub(crate) fn from_sealed(sealed: &Sealed<'_>) -> Result<Self, Rejection> {
        if sealed.frame.command != Command::Proxy {
            return Err(Rejection::BadFrame);
        }
        let (source, address) = sealed.frame.addresses().ok_or(Rejection::BadFrame)?;
        let destination = match sealed.optional_field(proxy::kind::AUTHORITY)? {
            None => Target::Addr(address),
            // An address beside the name would leave open which of them was meant.
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
            route: match sealed.optional_field(kind::ROUTE)? {
                Some(route) => route::decode(route).ok_or(Rejection::BadRoute)?,
                None => Vec::new(),
            },
            hops_left: u8::from_be_bytes(sealed.field(kind::HOPS)?),
            session: SessionId(sealed.field(proxy::kind::UNIQUE_ID)?),
        };
        hello.check().map_err(|error| match error {
            HelloError::Destination(_) => Rejection::BadDestination,
            HelloError::Relay { .. } | HelloError::Route(_) => Rejection::BadRoute,
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
