//! What of a namespace's connections is to be read.

use std::io;
use std::time::Instant;

use rustc_hash::FxHashMap;
use taut_sys::Errno;
use taut_sys::sock_diag::{Connection, DumpStats, Internals, SockDiag, SocketId};

use super::ScanSink;
use crate::bpf_iter::{Found, List};
use crate::namespaces::Namespace;

/// For each connection that has changed so many must rest for them to be asked for by name: that costs some three times as
/// much each as a list does.
const FEW: usize = 4;

/// What the programs in the kernel found in a namespace.
#[derive(Default)]
pub(super) struct Changed {
    /// These are to be read.
    wanted: Vec<SocketId>,
    /// By cookie: what was told of them.
    inside: FxHashMap<u64, Internals>,
    /// How many others there are.
    pub(super) rest: usize,
    /// How many have no place.
    pub(super) without_place: usize,
}

// === impl Changed ===

impl Changed {
    /// Of a list of the whole namespace. `anew`: all of them are to be read.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn of(
        list: List,
        namespace: &Namespace,
        at: Instant,
        anew: bool,
        to: &mut impl ScanSink,
    ) -> io::Result<Self> {
        let mut changed = Self::default();
        list.read(|found| {
            if anew || !rests(&found, namespace, at, to) {
                changed.want(&found);
            } else {
                changed.rest += 1;
            }
        })?;
        Ok(changed)
    }

    /// One more. `false`: it was not seen before, and nothing is told of it.
    pub(super) fn add(
        &mut self,
        found: &Found,
        namespace: &Namespace,
        at: Instant,
        to: &mut impl ScanSink,
    ) -> bool {
        if rests(found, namespace, at, to) {
            self.rest += 1;
            return true;
        }
        self.want(found)
    }

    fn want(&mut self, found: &Found) -> bool {
        let Some(told) = found.told else {
            return false;
        };
        self.wanted.push(told.id);
        if let Some(internals) = told.internals {
            self.without_place += usize::from(internals.events.is_none());
            self.inside.insert(found.cookie, internals);
        }
        true
    }

    /// Nothing is to be read.
    pub(super) fn is_none(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Reads what is to be read, or everything where that is much.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn read(
        mut self,
        mut socket: SockDiag,
        namespace: &Namespace,
        at: Instant,
        to: &mut impl ScanSink,
    ) -> Result<DumpStats, Errno> {
        let mut each = |mut connection: Connection| {
            connection.internals = self.inside.remove(&connection.cookie);
            to.see(namespace, at, connection);
        };
        if self.wanted.len() * FEW > self.rest {
            return socket.dump(each);
        }
        match socket.query(&self.wanted, &mut each) {
            Ok(mut listed) => {
                listed.connections += self.rest;
                Ok(listed)
            }
            // Their answers found no room, say: a list is another way.
            Err(error) => {
                tracing::debug!(%error, netns = %namespace.name, "connections are listed that were asked for by name");
                socket.dump(each)
            }
        }
    }
}

fn rests(found: &Found, namespace: &Namespace, at: Instant, to: &mut impl ScanSink) -> bool {
    let since = found.since;
    since.is_some_and(|since| to.rests(namespace, at, found.cookie, since))
}
