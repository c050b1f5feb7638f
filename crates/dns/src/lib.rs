//! Steers clients to the nearest relay: an authoritative DNS server whose answers depend on where the
//! client is (pied-piper 6.1).
//!
//! A query for a configured name is answered with the addresses of the relay that has the shortest
//! round trip to the client's prefix and is up. The client's prefix is that of the EDNS Client Subnet
//! option ([RFC 7871](https://www.rfc-editor.org/rfc/rfc7871)) if the query has one, otherwise that of
//! the resolver. The server is not recursive: it knows one zone and refuses everything else.
//!
//! What decides is pure and gets the time as an argument: [`nearness`], [`zone`], [`answer`],
//! [`rate_limit`], [`health`]. What acts has no policy: `udp`, `tcp`, `probe`, [`serve`].
//! `docs/design/mesh-dns.md` explains the rules.

#![forbid(unsafe_code)]

pub mod answer;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
mod control;
pub mod cookie;
#[cfg(feature = "server")]
mod error;
pub mod fuzzing;
pub mod health;
#[cfg(feature = "server")]
mod live;
#[cfg(feature = "server")]
mod measured;
#[cfg(feature = "server")]
mod metrics;
pub mod nearness;
#[cfg(feature = "server")]
mod probe;
pub mod rate_limit;
#[cfg(feature = "server")]
mod reading;
#[cfg(feature = "server")]
pub mod serve;
#[cfg(feature = "server")]
mod state;
#[cfg(feature = "server")]
mod tcp;
#[cfg(feature = "server")]
mod udp;
pub mod zone;
