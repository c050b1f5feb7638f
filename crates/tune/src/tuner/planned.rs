//! A planned change of a connection.

use taut_observe::observer::Observed;
use taut_observe::window::Window;

use crate::actuate::{OwnerlessBuffer, max_size};
use crate::demand::{Demand, Direction, WindowCap, demand, idle};
use crate::plan::{Change, without_owner};
use crate::report::Connection;

/// A planned change of a connection.
pub(super) struct Planned {
    pub(super) change: Change,
    pub(super) connection: Connection,
    pub(super) netns: String,
    pub(super) inode: u32,
}

// === impl Planned ===

impl Planned {
    pub(super) fn new(change: Change, seen: &Observed<'_>) -> Self {
        let connection = &seen.tracked.last().connection;
        let change = match seen.process {
            Some(_) => change,
            None => without_owner(change, max_size),
        };
        Self {
            change,
            connection: Connection {
                cookie: seen.cookie,
                local: connection.local,
                remote: connection.remote,
                process: seen
                    .process
                    .map(|process| (process.name.to_string(), process.pid)),
            },
            netns: seen.tracked.netns.to_string(),
            inode: connection.inode,
        }
    }

    /// Returns the change as one for a socket without an owner; `None` if a process has the socket,
    /// or if the change needs an owner.
    pub(super) fn ownerless(&self) -> Option<OwnerlessBuffer> {
        let (Change::Enlarge {
            cookie,
            direction,
            demand,
            to,
        }
        | Change::Resize {
            cookie,
            direction,
            demand,
            to,
        }) = self.change
        else {
            return None;
        };
        // A buffer that the kernel tunes would be locked, and could not be unlocked again.
        let is_possible = self.connection.process.is_none()
            && demand.is_fixed == Some(true)
            && (self.change.grows() || matches!(self.change, Change::Resize { .. }));
        is_possible.then(|| OwnerlessBuffer {
            cookie,
            inode: self.inode,
            direction,
            size: u32::try_from(demand.size).unwrap_or(u32::MAX),
            to: u32::try_from(to).unwrap_or(u32::MAX),
        })
    }
}

/// Returns the demand of one direction of a connection, as far as it is known; `None` if the kernel
/// does not report enough.
pub(super) fn demand_of(
    seen: &Observed<'_>,
    window: Option<&Window<'_>>,
    direction: Direction,
    cap: WindowCap,
) -> Option<Demand> {
    match window {
        Some(window) if !seen.tracked.is_idle() => demand(window, direction, cap),
        // All samples show the connection idle, or there are too few.
        _ => idle(&seen.tracked.last().connection, direction),
    }
}
