//! What a worker is told to listen on.

use std::sync::Arc;

use taut_sys::socket::{LegOptions, Listener};

use super::table::Route;

/// The number of an address that is listened on, the same at every worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ListenerId(pub(crate) u32);

/// A worker's share of an address that is to be listened on.
#[derive(Debug)]
pub(crate) struct NewListener {
    pub(crate) id: ListenerId,
    /// `None`: the worker has it already.
    pub(crate) socket: Option<Arc<Listener>>,
    pub(crate) purpose: Purpose,
    /// What is asked of the sockets of accepted connections.
    pub(crate) options: LegOptions,
}

/// What the connections of a listener are for.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// Each is a session of this forward.
    Forward(Arc<Route>),
    /// They come from other relays, which will ask for sessions.
    Mesh,
}
