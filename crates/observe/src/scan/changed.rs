//! The connections of a namespace that a scan must read.

use rustc_hash::FxHashMap;
use taut_sys::Errno;
use taut_sys::sock_diag::{Connection, DumpStats, Internals, SockDiag, SocketId};

use crate::bpf_iter::Details;

/// The minimum ratio of known connections to the wanted ones at which the wanted ones are queried one
/// by one. Querying a connection costs about three times as much as listing it.
const FEW: usize = 4;

/// The connections that the BPF programs found in a namespace.
#[derive(Default)]
pub(crate) struct Changed {
    /// Connections to read.
    wanted: Vec<SocketId>,
    /// Data from the programs about these connections, and where it is by cookie. Apart, because a
    /// table of the large data would cost a cache miss for each.
    internals: Vec<Internals>,
    places: FxHashMap<u64, usize>,
    /// Number of other connections: unchanged, or with figures from a program.
    pub(crate) known: usize,
    /// Number of connections without a slot.
    pub(super) without_slot: usize,
}

// === impl Changed ===

impl Changed {
    /// Adds a connection to read.
    pub(crate) fn want(&mut self, details: &Details) {
        self.wanted.push(details.id);
        if let Some(internals) = details.internals {
            self.without_slot += usize::from(internals.events.is_none());
            self.places.insert(details.id.cookie, self.internals.len());
            self.internals.push(internals);
        }
    }

    /// Whether there is nothing to read.
    pub(crate) fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Reads the wanted connections, or all if that costs less.
    ///
    /// # Errors
    /// The error of the kernel.
    pub(crate) fn read(
        mut self,
        mut socket: SockDiag,
        netns: &str,
        mut each: impl FnMut(Connection),
    ) -> Result<DumpStats, Errno> {
        let mut each = |mut connection: Connection| {
            let place = self.places.remove(&connection.cookie);
            connection.internals = place.and_then(|place| self.internals.get(place).copied());
            each(connection);
        };
        if self.wanted.len() * FEW > self.known {
            return socket.dump(each);
        }
        match socket.query(&self.wanted, &mut each) {
            Ok(mut listed) => {
                listed.connections += self.known;
                Ok(listed)
            }
            // The socket buffer may be too small for the answers; a list still works.
            Err(error) => {
                tracing::debug!(%error, netns, "cannot ask for connections by name; all are listed");
                socket.dump(each)
            }
        }
    }
}
