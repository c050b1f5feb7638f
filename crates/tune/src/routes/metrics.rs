//! The two metrics of a route that say how connections over it begin, and whose they are. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The most segments that a connection may be begun with: 1.4 MB. RFC 6928 has 10, and what large networks serve with is some tens.
pub const MOST: u32 = 1000;

/// linux/rtnetlink.h.
const RTAX_INITCWND: u16 = 11;
const RTAX_INITRWND: u16 = 14;

/// With how much a connection over a route begins, in segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// It sends so much before anything is acknowledged; nothing: what the kernel has for all, 10.
    pub initcwnd: Option<u32>,
    /// It lets its peer send so much at first; nothing: what the kernel has for all, up to 64 KiB.
    pub initrwnd: Option<u32>,
}

/// What is to be done with a route's metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// They are as they should be.
    Nothing,
    /// They are to be set.
    Set {
        /// What they are to be.
        to: Metrics,
        /// Which of them are Taut's then.
        ours: Metrics,
    },
    /// Somebody has chosen them.
    Others,
}

/// What is to be done with a route's metrics to undo what was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Back {
    /// What they are to be.
    pub to: Metrics,
    /// One of them was changed by somebody else, and stays as it is.
    pub others: bool,
}

// === impl Metrics ===

/// Each of them, in the kernel's order.
pub(super) const EACH: [(u16, &str); 2] =
    [(RTAX_INITCWND, "initcwnd"), (RTAX_INITRWND, "initrwnd")];

impl Metrics {
    pub(super) fn values(self) -> [Option<u32>; 2] {
        [self.initcwnd, self.initrwnd]
    }

    pub(super) fn of([initcwnd, initrwnd]: [Option<u32>; 2]) -> Self {
        Self { initcwnd, initrwnd }
    }

    /// These, of those that `others` has.
    #[must_use]
    pub fn among(self, others: Self) -> Self {
        let (these, others) = (self.values(), others.values());
        Self::of([0, 1].map(|at| others[at].and(these[at])))
    }

    /// What is to be done where these were asked for. `made`: what this program has made them, and may be there.
    pub fn step(self, now: Self, made: &[Self]) -> Step {
        let (asked, now) = (self.values(), now.values());
        let is_made = |at: usize| {
            let is = |made: &Self| made.values()[at] == now[at];
            now[at].is_some() && made.iter().any(is)
        };
        let is_others = |at: usize| {
            let is_other = asked[at].is_some() && now[at].is_some() && now[at] != asked[at];
            is_other && !is_made(at)
        };
        if is_others(0) || is_others(1) {
            return Step::Others;
        }
        let to = Self::of([0, 1].map(|at| asked[at].or(now[at])));
        if to.values() == now {
            return Step::Nothing;
        }
        let is_ours = |at: usize| to.values()[at] != now[at] || is_made(at);
        let ours = [0, 1].map(|at| to.values()[at].filter(|_| is_ours(at)));
        Step::Set {
            to,
            ours: Self::of(ours),
        }
    }

    /// What is to be done where these were there before, and `made` was made of them.
    pub fn back(self, now: Self, made: &[Self]) -> Back {
        let (before, now) = (self.values(), now.values());
        let mut to = now;
        let mut others = false;
        for at in 0..2 {
            let mut made = made.iter().filter_map(|made| made.values()[at]).peekable();
            if made.peek().is_none() || now[at] == before[at] {
                continue;
            }
            match made.any(|made| now[at] == Some(made)) {
                true => to[at] = before[at],
                false => others = true,
            }
        }
        Back {
            to: Self::of(to),
            others,
        }
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = EACH.iter().zip(self.values());
        let mut between = "";
        said.try_for_each(|((_, name), value)| match value {
            None => Ok(()),
            Some(value) => write!(f, "{}{name} {value}", std::mem::replace(&mut between, ", ")),
        })
    }
}

#[cfg(test)]
mod tests;
