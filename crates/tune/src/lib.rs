//! `taut tune`: gives each connection the buffers that its path can use.
//!
//! [`tuner`] runs a scan after another. What decides is pure: [`demand`] computes what a connection
//! needs, [`budget`] shares memory out by [`allocate`] and [`hysteresis`], [`pressure`] picks idle
//! buffers to shrink, and [`plan`] has the changes. [`actuate`] makes a change after the
//! [`journal`] has it. [`routes`] sets initial windows, and [`profile`] settings that are not about
//! buffers. `report` and `render` tell what was done, and [`log`] keeps it for `taut why`.
//! docs/design/tune.md explains why it is done like this.
//!
//! A budget is shared by max-min fairness:
//!
//! ```
//! use taut_tune::allocate::{Want, allocate};
//!
//! let want = |max| Want { max, ..Want::default() };
//! let shares = allocate(&[want(10), want(100), want(500)], &[], 300);
//! assert_eq!(shares.grants, [10, 100, 190]);
//! ```

#![forbid(unsafe_code)]

pub mod actuate;
pub mod allocate;
pub mod budget;
pub mod demand;
pub mod hysteresis;
pub mod journal;
pub mod log;
mod namespaces;
pub mod pace;
pub mod plan;
pub mod pressure;
pub mod profile;
mod render;
pub mod report;
pub mod routes;
mod sysctl;
#[cfg(test)]
mod testing;
mod trusted_file;
pub mod tuner;
pub mod undo;
