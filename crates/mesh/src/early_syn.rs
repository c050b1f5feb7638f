//! Early SYN (pied-piper 3.2, improvement 1): which SYNs may make a relay begin an upstream leg before the client's
//! handshake is done.
//!
//! Anyone can forge a SYN, so [`Limiter`] bounds what SYNs may cause ([`Limits`]).
//! [`Pool::take_early`](crate::pool::Pool::take_early) and
//! [`Pool::may_dial_ahead`](crate::pool::Pool::may_dial_ahead) decide what such a leg gets.
//! `docs/design/early-syn.md` describes the limits and the worst that an attacker can do.

mod deadlines;
mod limiter;
mod limits;
mod rate;

use std::net::SocketAddr;

pub use self::limiter::{Admission, Counts, Limiter};
pub use self::limits::Limits;
pub use self::rate::Rate;

/// A client's SYN that has reached this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynEvent {
    /// The client's address. Unverified: a SYN is easily forged.
    pub client: SocketAddr,
    /// The SYN's destination: the address that `getsockname` returns for the accepted connection.
    pub listener_addr: SocketAddr,
    /// The number that identifies the listener.
    pub listener: u32,
}

/// The two ends of a connection, which the SYN and the accepted connection share.
///
/// [`FourTuple::new`] normalises the addresses, so that the SYN's and the accepted connection's are
/// equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FourTuple {
    client: SocketAddr,
    local: SocketAddr,
}

// === impl FourTuple ===

impl FourTuple {
    /// Returns the connection from `client` to `local`, which is an address of this machine.
    ///
    /// An IPv4-mapped address becomes IPv4; flow labels and scopes, which differ between a SYN and
    /// `getpeername`, are removed.
    pub fn new(client: SocketAddr, local: SocketAddr) -> Self {
        let plain = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
        Self {
            client: plain(client),
            local: plain(local),
        }
    }

    /// Returns the client's end.
    pub fn client(&self) -> SocketAddr {
        self.client
    }

    /// Returns this machine's end.
    pub fn local(&self) -> SocketAddr {
        self.local
    }
}

// === impl SynEvent ===

impl SynEvent {
    /// Returns the connection that the SYN would open.
    pub fn connection(&self) -> FourTuple {
        FourTuple::new(self.client, self.listener_addr)
    }
}
