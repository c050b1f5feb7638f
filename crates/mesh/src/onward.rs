//! The decision on a session that another relay requests: where it goes from here, or why it is refused.

use std::net::{IpAddr, SocketAddr};

use strum::{IntoStaticStr, VariantArray};

use crate::hello::{Hello, Target};
use crate::name::MemberName;

/// The rules of a relay for the members that request sessions.
pub trait Policy {
    /// Returns whether `member` may request sessions for this client.
    fn may_speak_for(&self, member: &MemberName, client: IpAddr) -> bool;

    /// Returns whether sessions may be forwarded to the relay of this name.
    fn leads_to(&self, relay: &MemberName) -> bool;

    /// Returns whether sessions of `member` may reach this address.
    fn may_reach(&self, member: &MemberName, destination: SocketAddr) -> bool;

    /// Returns whether the name of a destination may be looked up for `member`. Each address that is found
    /// must then be one that the member [may reach](Self::may_reach).
    fn may_look_up(&self, member: &MemberName, host: &str, port: u16) -> bool;
}

/// The next step of a session that is permitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Onward {
    /// Send this hello to its receiver, the next relay.
    Relay(Hello),
    /// Connect to this address: this relay is the last.
    Address(SocketAddr),
    /// Look up this name, and connect to one of its addresses that the member may reach.
    LookUp(Target),
}

/// The reason for refusing a session that another relay requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum SessionRefusal {
    /// The configuration does not allow the destination.
    Destination,
    /// The relay may not speak for the client.
    Client,
    /// The next relay of its route is not a peer of this relay.
    NextRelay,
    /// The session has already passed through the maximum number of relays.
    HopLimit,
}

/// Decides where the session goes that `member` requests by `hello`.
///
/// The client is checked first, at every relay of a route. The destination is checked by the last relay only,
/// which connects to it.
///
/// # Errors
/// [`SessionRefusal`], by the first rule that the session breaks.
pub fn onward(
    member: &MemberName,
    hello: &Hello,
    policy: &impl Policy,
) -> Result<Onward, SessionRefusal> {
    if !policy.may_speak_for(member, hello.source.ip()) {
        return Err(SessionRefusal::Client);
    }
    if let Some(next) = hello.next_hop().map_err(|_| SessionRefusal::HopLimit)? {
        return match policy.leads_to(&next.receiver) {
            true => Ok(Onward::Relay(next)),
            false => Err(SessionRefusal::NextRelay),
        };
    }
    match &hello.destination {
        Target::Addr(addr) if policy.may_reach(member, *addr) => Ok(Onward::Address(*addr)),
        name @ Target::Name { host, port } if policy.may_look_up(member, host, *port) => {
            Ok(Onward::LookUp(name.clone()))
        }
        Target::Addr(_) | Target::Name { .. } => Err(SessionRefusal::Destination),
    }
}

// === impl SessionRefusal ===

impl SessionRefusal {
    /// Every cause.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the label in metrics and logs.
    pub fn label(self) -> &'static str {
        self.into()
    }

    /// Returns the position in [`SessionRefusal::ALL`], for arrays of counters.
    pub fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{hello, name};

    /// Allows everything but what is named.
    #[derive(Default)]
    struct Allowing {
        client: bool,
        peer: bool,
        destination: bool,
    }

    const ALL: Allowing = Allowing {
        client: true,
        peer: true,
        destination: true,
    };

    impl Policy for Allowing {
        fn may_speak_for(&self, _: &MemberName, _: IpAddr) -> bool {
            self.client
        }
        fn leads_to(&self, _: &MemberName) -> bool {
            self.peer
        }
        fn may_reach(&self, _: &MemberName, _: SocketAddr) -> bool {
            self.destination
        }
        fn may_look_up(&self, _: &MemberName, _: &str, _: u16) -> bool {
            self.destination
        }
    }

    fn last() -> Hello {
        Hello {
            route: Vec::new(),
            ..hello()
        }
    }

    #[test]
    fn the_last_relay_connects_to_an_allowed_destination() {
        let named = onward(&name("b"), &last(), &ALL);
        assert_eq!(named, Ok(Onward::LookUp(hello().destination)));
        let addr: SocketAddr = "192.0.2.9:80".parse().unwrap();
        let hello = Hello {
            destination: Target::Addr(addr),
            ..last()
        };
        assert_eq!(onward(&name("b"), &hello, &ALL), Ok(Onward::Address(addr)));
        let policy = Allowing {
            destination: false,
            ..ALL
        };
        for hello in [hello, last()] {
            assert_eq!(
                onward(&name("b"), &hello, &policy),
                Err(SessionRefusal::Destination)
            );
        }
    }

    #[test]
    fn a_session_goes_on_to_the_next_relay_of_its_route_only_if_that_is_a_peer() {
        let next = hello().next_hop().unwrap().unwrap();
        assert_eq!(
            onward(&name("b"), &hello(), &ALL),
            Ok(Onward::Relay(next.clone()))
        );
        let policy = Allowing {
            // Only the last relay of a route knows which destinations it allows.
            destination: false,
            ..ALL
        };
        assert_eq!(
            onward(&name("b"), &hello(), &policy),
            Ok(Onward::Relay(next))
        );
        let policy = Allowing { peer: false, ..ALL };
        assert_eq!(
            onward(&name("b"), &hello(), &policy),
            Err(SessionRefusal::NextRelay)
        );
    }

    #[test]
    fn a_session_ends_at_its_limit_of_relays() {
        let hello = Hello {
            hops_left: 1,
            ..hello()
        };
        assert_eq!(
            onward(&name("b"), &hello, &ALL),
            Err(SessionRefusal::HopLimit)
        );
    }

    #[test]
    fn a_relay_that_may_not_speak_for_the_client_is_refused_first() {
        let refused = onward(&name("b"), &hello(), &Allowing::default());
        assert_eq!(refused, Err(SessionRefusal::Client));
    }
}
