//! `taut guest` without its kernel module: congestion controls in BPF for virtual machines that are
//! descheduled.
//!
//! `taut_bbr` and `taut_cubic` call the kernel's own BBR and Cubic, and correct the conclusions
//! that those would draw from an off-CPU gap: a time in which the hypervisor ran something else on
//! the machine's CPU, so that nothing that arrived was handled. [`load`] loads and pins the
//! controls, [`default_control`] makes one the default, and [`watch`] reads the counters. The
//! evaluation is pure: [`gaps`], [`counts`], [`verdict`], [`report`]. docs/design/guest.md explains
//! the design.
//!
//! ```
//! use std::time::Duration;
//! use taut_guest::gaps::Gaps;
//! use taut_guest::verdict::Descheduling;
//!
//! // 250 gaps of 30 ms in ten seconds: BBR loses its rate.
//! let cpu = Gaps { count: 250, total: Duration::from_millis(7500), ticks: 1000, ..Gaps::default() };
//! assert_eq!(Descheduling::of(&[cpu], Duration::from_secs(10)), Ok(Descheduling::Mostly));
//! ```

#![forbid(unsafe_code)]

pub mod control;
pub mod counts;
pub mod default_control;
mod error;
pub mod gaps;
mod kernel;
pub mod load;
pub mod module;
mod operations;
mod pins;
pub mod report;
mod since;
pub mod textfile;
pub mod verdict;
pub mod watch;

taut_bpf::bindings!(mod raw from "guest");
