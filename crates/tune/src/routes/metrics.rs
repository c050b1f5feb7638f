//! The two metrics of a route that set the initial windows of connections, and their owners. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The maximum initial window, in segments: 1.4 MB. RFC 6928 specifies 10; large networks use some
/// tens.
pub const MAX_INITIAL_WINDOW: u32 = 1000;

/// linux/rtnetlink.h.
const RTAX_INITCWND: u16 = 11;
const RTAX_INITRWND: u16 = 14;

/// Both metrics, in the kernel's order.
pub(super) const ATTRIBUTES: [(u16, &str); 2] =
    [(RTAX_INITCWND, "initcwnd"), (RTAX_INITRWND, "initrwnd")];

/// The initial windows of connections over a route, in segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// Segments sent before the first acknowledgement; `None`: the kernel's default, 10.
    pub initcwnd: Option<u32>,
    /// Segments that the peer may send at first; `None`: the kernel's default, up to 64 KiB.
    pub initrwnd: Option<u32>,
}

/// How to change a route's metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The route already has the requested metrics.
    Keep,
    /// Set the metrics.
    Set {
        /// All metrics of the new route.
        to: Metrics,
        /// The metrics that Taut owns afterwards and takes back at the end.
        ours: Metrics,
    },
    /// Another program or an administrator has set the metrics.
    Foreign,
}

/// How to restore a route's metrics at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restoration {
    /// All metrics of the restored route.
    pub to: Metrics,
    /// Whether another program has changed a metric since; that metric stays as it is.
    pub is_foreign: bool,
}

// === impl Metrics ===

impl Metrics {
    pub(super) fn values(self) -> [Option<u32>; 2] {
        [self.initcwnd, self.initrwnd]
    }

    pub(super) fn of([initcwnd, initrwnd]: [Option<u32>; 2]) -> Self {
        Self { initcwnd, initrwnd }
    }

    /// Returns these metrics, restricted to those that are set in `others`.
    #[must_use]
    pub fn among(self, others: Self) -> Self {
        let (these, others) = (self.values(), others.values());
        Self::of([0, 1].map(|at| others[at].and(these[at])))
    }

    /// Decides how to change a route with the metrics `now` if these metrics are requested.
    ///
    /// `made`: the values that this program has set on the route; any of them may be in place.
    pub fn step(self, now: Self, made: &[Self]) -> Step {
        let (requested, now) = (self.values(), now.values());
        let is_made = |at: usize| {
            let is = |made: &Self| made.values()[at] == now[at];
            now[at].is_some() && made.iter().any(is)
        };
        let is_foreign = |at: usize| {
            let differs = requested[at].is_some() && now[at].is_some() && now[at] != requested[at];
            differs && !is_made(at)
        };
        if is_foreign(0) || is_foreign(1) {
            return Step::Foreign;
        }
        let to = Self::of([0, 1].map(|at| requested[at].or(now[at])));
        if to.values() == now {
            return Step::Keep;
        }
        let is_ours = |at: usize| to.values()[at] != now[at] || is_made(at);
        let ours = [0, 1].map(|at| to.values()[at].filter(|_| is_ours(at)));
        Step::Set {
            to,
            ours: Self::of(ours),
        }
    }

    /// Decides how to restore a route with the metrics `now`. These metrics are the ones from
    /// before this program set `made`.
    pub fn restore(self, now: Self, made: &[Self]) -> Restoration {
        let (before, now) = (self.values(), now.values());
        let mut to = now;
        let mut is_foreign = false;
        for at in 0..2 {
            let mut made = made.iter().filter_map(|made| made.values()[at]).peekable();
            if made.peek().is_none() || now[at] == before[at] {
                continue;
            }
            match made.any(|made| now[at] == Some(made)) {
                true => to[at] = before[at],
                false => is_foreign = true,
            }
        }
        Restoration {
            to: Self::of(to),
            is_foreign,
        }
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut values = ATTRIBUTES.iter().zip(self.values());
        let mut between = "";
        values.try_for_each(|((_, name), value)| match value {
            None => Ok(()),
            Some(value) => write!(f, "{}{name} {value}", std::mem::replace(&mut between, ", ")),
        })
    }
}

#[cfg(test)]
mod tests;
