//! What is to be changed, of what was seen: pure.
//!
//! The kernel goes on sizing every buffer. Those that an application has fixed, and that hold their connection, are given back to it, and
//! its maxima are raised to what long paths take.

use crate::actuate::most;
use crate::demand::{Cap, Demand, Direction};
use crate::profile::interface_name::InterfaceName;
use crate::profile::settings::Setting;
use crate::routes::message::Name;
use crate::routes::metrics::Metrics;

/// What the kernel may give a buffer, if it gives less as it comes, in bytes with overhead: so many times the widest window of most paths. (With 24 MB
/// 7.6 MB were on their way: its own account of a segment is three times what it carries.)
const READY: u64 = 5;

/// Something to change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// A buffer that was fixed: the kernel is to size it again.
    Free {
        /// Whose: the kernel's name of the socket.
        cookie: u64,
        /// Which.
        direction: Direction,
        /// Why.
        demand: Demand,
        /// From what on, in bytes with overhead. From what it is it would not grow: the kernel makes a receive buffer larger when more
        /// is read in a round trip than ever before, and no more than the buffer lets through can be.
        to: u64,
    },
    /// The same where nobody is known to have the socket: it is made larger, and stays fixed.
    Widen {
        /// Whose: the kernel's name of the socket.
        cookie: u64,
        /// Which.
        direction: Direction,
        /// Why.
        demand: Demand,
        /// How large, in bytes with overhead.
        to: u64,
    },
    /// A buffer that is to have its share of a budget: the kernel is to size it no more.
    Size {
        /// Whose: the kernel's name of the socket.
        cookie: u64,
        /// Which.
        direction: Direction,
        /// Why.
        demand: Demand,
        /// How large, in bytes with overhead.
        to: u64,
    },
    /// A buffer through which nothing goes is to hold no more than this, while memory is short.
    Shrink {
        /// Whose: the kernel's name of the socket.
        cookie: u64,
        /// Which.
        direction: Direction,
        /// What it has.
        demand: Demand,
        /// How large, in bytes with overhead.
        to: u64,
    },
    /// It is to be as it was before that.
    Restore {
        /// Whose: the kernel's name of the socket.
        cookie: u64,
        /// Which.
        direction: Direction,
    },
    /// The same maximum of send buffers, under a budget: what a connection may have before it has been looked at.
    Start {
        /// What it is.
        from: u64,
        /// What it is to be.
        to: u64,
    },
    /// The most that the kernel gives a buffer of a namespace: the third figure of `tcp_rmem` or `tcp_wmem`.
    Maximum {
        /// Which.
        direction: Direction,
        /// What it is.
        from: u64,
        /// What it is to be.
        to: u64,
    },
    /// A setting of a profile.
    Setting {
        /// Which.
        setting: Setting,
        /// What the interface is called whose it is.
        interface: Option<InterfaceName>,
        /// What it is.
        from: i64,
        /// What it is to be.
        to: i64,
    },
    /// With how much connections over a route begin.
    Route {
        /// Which.
        name: Name,
        /// What its metrics are.
        from: Metrics,
        /// What they are to be.
        to: Metrics,
    },
}

// === impl Change ===

impl Change {
    /// Whether a buffer may hold more after it than before.
    pub fn widens(&self) -> bool {
        match self {
            Self::Size { demand, to, .. }
            | Self::Free { demand, to, .. }
            | Self::Widen { demand, to, .. } => *to > demand.has,
            Self::Shrink { .. } => false,
            Self::Restore { .. } => true,
            Self::Maximum { from, to, .. } | Self::Start { from, to } => to > from,
            Self::Setting { .. } | Self::Route { .. } => false,
        }
    }
}

/// Whether this buffer is to be given back to the kernel.
pub fn free(cookie: u64, direction: Direction, demand: &Demand) -> Option<Change> {
    let is_held = demand.is_fixed == Some(true) && demand.is_held;
    // The socket's options are of 31 bits, and the kernel doubles them.
    let to = demand.wants.min(u64::from(u32::MAX / 4));
    (is_held && to > demand.has).then_some(Change::Free {
        cookie,
        direction,
        demand: *demand,
        to,
    })
}

/// The change that can be made without an owner: it is made as large as its path can use, since it does not grow.
pub fn without_owner(change: Change) -> Change {
    match change {
        Change::Free {
            cookie,
            direction,
            demand,
            to,
        } => Change::Widen {
            cookie,
            direction,
            demand,
            to: demand.most.max(to).min(most(direction).into()),
        },
        other => other,
    }
}

/// What the kernel may give a buffer, in bytes with overhead.
pub fn ready(cap: Cap) -> u64 {
    // In 31 bits.
    cap.window().saturating_mul(READY).min(i32::MAX as u64)
}

/// Whether a namespace's maximum is to be raised. It never is made less.
pub fn maximum(direction: Direction, from: u64, cap: Cap) -> Option<Change> {
    let to = ready(cap);
    (from < to).then_some(Change::Maximum {
        direction,
        from,
        to,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::demand::Because;

    #[test]
    fn a_fixed_buffer_is_freed_where_it_holds_its_connection() {
        let fixed = Demand {
            has: 128 << 10,
            queued: 0,
            promised: 0,
            segment: 0,
            wants: 1 << 20,
            most: 1 << 20,
            is_fixed: Some(true),
            is_held: true,
            because: Because::Grows {
                window: 64 << 10,
                round_trip: Duration::from_millis(100),
            },
        };
        let to = |demand: Demand| match free(1, Direction::Receive, &demand) {
            Some(Change::Free { to, .. }) => Some(to),
            _ => None,
        };
        assert_eq!(to(fixed), Some(1 << 20));
        assert_eq!(
            to(Demand {
                is_held: false,
                ..fixed
            }),
            None
        );
        assert_eq!(
            to(Demand {
                is_fixed: Some(false),
                ..fixed
            }),
            None
        );
        // Nobody says whether it is.
        assert_eq!(
            to(Demand {
                is_fixed: None,
                ..fixed
            }),
            None
        );
        assert_eq!(
            to(Demand {
                wants: 128 << 10,
                ..fixed
            }),
            None
        );
        assert_eq!(
            to(Demand {
                wants: u64::MAX,
                ..fixed
            }),
            Some((1 << 30) - 1)
        );
    }

    #[test]
    fn maxima_are_raised_and_never_made_less() {
        assert_eq!(
            maximum(Direction::Send, 4 << 20, Cap::default()),
            Some(Change::Maximum {
                direction: Direction::Send,
                from: 4 << 20,
                to: 60_000_000,
            })
        );
        assert_eq!(maximum(Direction::Receive, 64 << 20, Cap::default()), None);
        let cap = Cap::chosen(u64::MAX);
        assert!(matches!(
            maximum(Direction::Receive, 64 << 20, cap),
            Some(Change::Maximum {
                to: 0x7fff_ffff,
                ..
            })
        ));
    }
}
