//! Which relays a session should pass: the planner.
//!
//! Between a client and a destination there are many routes: the direct path, any single relay, the
//! relay nearest to each end (the paper's baseline of two), three relays, four (pied-piper 4.1).
//! The planner predicts two times of each, from measured round trips, loss and rates: to the first
//! byte of an answer, and to the last of a file of [`Options::size`] bytes. The route with the
//! least sum of both is the choice ([`Planner::choose`]). `docs/design/plan.md` explains the model
//! and its limits.
//!
//! [`Network`] and [`Ends`] hold the measured paths; [`Choices`] keeps the routes of many pairs and
//! changes one only for a clear gain. [`Table`] reads measurements from a file.
//!
//! ```
//! use std::time::Duration;
//! use taut_mesh::plan::{Ends, Network, Options, Path, Planner, Relay};
//!
//! # fn main() -> Result<(), taut_mesh::members::NameError> {
//! let relay = |name: &str| -> Result<Relay, taut_mesh::members::NameError> {
//!     Ok(Relay { name: name.parse()?, cloud: None, price: None, usable: true })
//! };
//! let mut network = Network::new(vec![relay("near")?, relay("far")?]);
//! let ms = |ms| Path::new(Duration::from_millis(ms), 0.0, None);
//! network.set(0, 1, ms(200));
//! let ends = Ends { from: vec![ms(10), ms(210)], to: vec![ms(210), ms(10)], direct: ms(220) };
//! let ranking = Planner::new(&network, Options::default()).choose(&ends, None);
//! assert_eq!(ranking.routes[0].relays, [0, 1]);
//! # Ok(())
//! # }
//! ```

mod bounds;
mod candidate;
mod choices;
mod leg;
mod network;
mod path;
mod ranking;
mod search;
mod table;
mod terms;

use std::time::Duration;

pub use candidate::{Candidate, Kind, Leg, LegEnd};
pub use choices::Choices;
pub use network::{Ends, Network, Relay, RelayId};
pub use path::Path;
pub use ranking::{Change, Planner, Ranking};
pub use table::{Endpoint, EndpointError, MAX_PATHS, MAX_TABLE, Table, TableError, TableFault};

/// The largest number of relays of a route (pied-piper 4.4 tries up to four).
pub const MAX_RELAYS: usize = 4;

/// The routes that are allowed, and how their legs behave.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The clouds whose relays may be used; empty for all.
    pub clouds: Vec<String>,
    /// The largest number of relays of a route, at most [`MAX_RELAYS`]. With 0 only the direct path
    /// is left.
    pub max_relays: usize,
    /// The highest price per GB: the sum of the prices of a route's relays, each of which sends
    /// every byte once.
    pub max_price: Option<f64>,
    /// Whether relays dial upstream at the client's SYN.
    pub early_syn: bool,
    /// Whether relays hold connections to each other ready.
    pub pool: bool,
    /// How legs between relays begin, except those with settings of their own
    /// ([`Network::set_leg`]).
    pub legs: LegSettings,
    /// The window of clients and destinations, in bytes.
    pub end_window: u64,
    /// The initial congestion window of every other leg, in bytes.
    pub initial_window: u64,
    /// The size of the file whose time is predicted, in bytes.
    pub size: u64,
    /// The time that passing a relay adds to a round trip.
    pub relay_delay: Duration,
    /// The share of its score by which a route must beat the one in use to replace it.
    ///
    /// With 0.12, round trips that vary by 5 % either way never change a choice: a route that is
    /// within 1 % of the best one is at least 0.95 / (1.05 x 1.01) = 0.896 times as good as any
    /// other then, and another must be below 1 - 0.12 = 0.88.
    pub hysteresis: f64,
}

/// How a leg between two relays begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegSettings {
    /// Whether it has turbo start. Otherwise it begins like any connection.
    pub turbo: bool,
    /// The rate at which it begins with turbo start, in bit/s.
    pub rate: u64,
    /// Its window with turbo start, in bytes; `None` if the window does not bound it.
    pub window: Option<u64>,
}

impl Default for LegSettings {
    /// The defaults of `taut relay`.
    fn default() -> Self {
        Self {
            turbo: true,
            rate: 1_000_000_000,
            window: Some(4 << 20),
        }
    }
}

impl Default for Options {
    /// The defaults of `taut relay`, and of Linux: an initial window of ten segments (RFC 6928),
    /// and half of the default maximum of `net.ipv4.tcp_rmem`.
    fn default() -> Self {
        Self {
            clouds: Vec::new(),
            max_relays: MAX_RELAYS,
            max_price: None,
            early_syn: true,
            pool: true,
            legs: LegSettings::default(),
            end_window: 3 << 20,
            initial_window: 14_480,
            size: 1_000_000,
            relay_delay: Duration::from_micros(200),
            hysteresis: 0.12,
        }
    }
}

#[cfg(test)]
mod tests;
