//! Destinations, what relays permit, and how sessions are told apart.

use std::net::{IpAddr, SocketAddr};

use taut_mesh::hello::{SessionId, Target};
use taut_mesh::members::MemberName;
use taut_mesh::onward::Policy;

use crate::world::{DESTINATIONS, Relay, name};

/// What a relay permits.
pub(crate) struct Permissions<'a> {
    pub(crate) relay: &'a Relay,
    /// A rule that is broken on purpose.
    pub(crate) allows_all: bool,
}

impl Policy for Permissions<'_> {
    fn may_speak_for(&self, _: &MemberName, client: IpAddr) -> bool {
        matches!(client, IpAddr::V4(client) if client.octets()[0] == 10)
    }

    fn leads_to(&self, relay: &MemberName) -> bool {
        let mut peers = self.relay.peers.iter();
        let peer = peers.position(|peer| name(usize::from(peer.node)) == *relay);
        peer.is_some_and(|peer| self.relay.dials.is_dialled(peer))
    }

    fn may_reach(&self, _: &MemberName, destination: SocketAddr) -> bool {
        self.allows_all || self.relay.may_reach(destination)
    }

    fn may_look_up(&self, _: &MemberName, host: &str, port: u16) -> bool {
        self.allows_all || (host.ends_with(".example") && port == PORT)
    }
}

impl Relay {
    /// Returns whether the relay's configuration allows this address.
    pub(crate) fn may_reach(&self, address: SocketAddr) -> bool {
        destination_number(address).is_some_and(|number| self.allows & 1 << number != 0)
    }
}

// === destinations ===

pub(crate) const PORT: u16 = 443;

/// Returns a destination, by its address or its name.
pub(crate) fn target(number: usize, by_name: bool) -> Target {
    match by_name {
        true => Target::Name {
            host: format!("d{number}.example"),
            port: PORT,
        },
        false => Target::Addr(address_of(number)),
    }
}

fn address_of(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 77, 0, number as u8], PORT))
}

/// Returns the number of the destination with this address, if it is one.
pub(crate) fn destination_number(address: SocketAddr) -> Option<usize> {
    let IpAddr::V4(ip) = address.ip() else {
        return None;
    };
    let [10, 77, 0, number] = ip.octets() else {
        return None;
    };
    let number = usize::from(number);
    (number < DESTINATIONS && address.port() == PORT).then_some(number)
}

/// Returns the address that a name leads to: `d7.example` to destination 7, others to where nobody may go.
pub(crate) fn look_up(host: &str) -> SocketAddr {
    let number = host
        .strip_prefix('d')
        .and_then(|rest| rest.strip_suffix(".example"));
    let number = number.and_then(|number| number.parse().ok());
    match number {
        Some(number) if number < DESTINATIONS => address_of(number),
        _ => SocketAddr::from(([169, 254, 169, 254], 80)),
    }
}

pub(crate) fn session_id(number: usize) -> SessionId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&(number as u64).to_le_bytes());
    SessionId(id)
}

pub(crate) fn session_number(id: SessionId) -> usize {
    let number: [u8; 8] = id.0[..8].try_into().expect("8 bytes");
    usize::try_from(u64::from_le_bytes(number)).unwrap_or(usize::MAX)
}
