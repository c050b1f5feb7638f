//! The library behind `taut tune`, which gives each connection the buffers that its path can use.
//!
//! [`tuner`] runs one scan after another. The decisions are pure: [`demand`] computes the needs of
//! a connection, [`budget`] divides memory with [`allocate`] and [`hysteresis`], [`pressure`]
//! selects idle buffers to shrink, and [`plan`] defines the changes. [`actuate`] makes a change
//! after writing it to the [`journal`]. [`routes`] sets initial windows, and [`profile`] changes
//! settings other than buffers. `report` and `render` describe the changes, and [`log`] keeps them
//! for `taut why`. docs/design/tune.md explains the design.
//!
//! A budget is divided by max-min fairness:
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
pub mod metrics;
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
