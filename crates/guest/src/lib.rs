//! `taut guest`, the part that needs no module: congestion controls in BPF for guests whose CPU is taken away.
//!
//! `taut_bbr` and `taut_cubic` call the kernel's own BBR and Cubic, and correct what those would make of a gap, a time in which the
//! machine was off its CPU. [`load`] loads and pins them, [`preset`] makes one the default, [`watch`] reads what they have
//! counted, and what all of that means is pure: [`figures`], [`verdict`], [`report`]. docs/design/guest.md says how and why.

#![forbid(unsafe_code)]

pub mod control;
pub mod figures;
pub mod load;
pub mod module;
mod pins;
pub mod preset;
pub mod report;
mod since;
pub mod verdict;
pub mod watch;
