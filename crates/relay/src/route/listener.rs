//! The listeners that a worker must have.

use std::sync::Arc;

use taut_sys::socket::{LegOptions, Listener};

use super::table::Route;

/// The number of a listener, the same at every worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ListenerId(pub(crate) u32);

/// A listener that a worker must have.
#[derive(Debug)]
pub(crate) struct NewListener {
    pub(crate) id: ListenerId,
    /// The socket; `None` if the worker has it already.
    pub(crate) socket: Option<Arc<Listener>>,
    pub(crate) purpose: Purpose,
    /// The options of accepted connections.
    pub(crate) options: LegOptions,
}

/// The purpose of a listener's connections.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// Clients of this forward.
    Forward(Arc<Route>),
    /// Other relays, which request sessions.
    Mesh,
}
