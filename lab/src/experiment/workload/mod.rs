//! The work that experiments give to a relay, and what the relay needs for it.
//!
//! Each measurement drives both ends of the relayed connections from the thread that calls it, in the
//! namespace of that thread.

pub(in crate::experiment) mod bulk;
pub(in crate::experiment) mod echo;
pub(in crate::experiment) mod idle;
pub(in crate::experiment) mod measured;
pub(in crate::experiment) mod one_host;
pub(in crate::experiment) mod pair;
pub(in crate::experiment) mod storm;

use std::any::Any;
use std::net::{SocketAddr, TcpListener};

use crate::experiment::process_tree::ProcessTree;

/// What keeps relays alive: dropping it ends them.
pub(in crate::experiment) type Alive = Box<dyn Any + Send + Sync>;

/// The address for a client, and the listener at which the client's connection arrives. Dropping
/// this ends the relays in between.
pub(in crate::experiment) struct Entrance {
    pub(in crate::experiment) addr: SocketAddr,
    pub(in crate::experiment) server: TcpListener,
    /// The processes of the relays.
    pub(in crate::experiment) processes: ProcessTree,
    pub(in crate::experiment) _relays: Alive,
}
