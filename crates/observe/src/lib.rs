//! Observes the TCP connections of the machine: what each connection is doing, and what limits it.
//! The library behind `taut top`, `taut why` and `taut watch`.
//!
//! Data flows in one direction. [`scan`] lists the connections of all network namespaces with
//! sock_diag and BPF. [`table`] keeps their last samples. [`window`] computes figures from the
//! samples of a connection, [`verdict`] judges what limits it, and [`view`], [`record`],
//! [`explain`] and [`watch`] format the result. [`owner`] finds processes, [`filter`] selects
//! connections, and [`observer`] combines all of these. Only `scan`, `owner`, [`namespaces`],
//! the meters of CPU time (`descheduled`, `steal`, `cpu_quota`) and `host_drops` read from the
//! kernel; the rest is pure.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use taut_observe::filter::Filter;
//! use taut_observe::observer::Observer;
//! use taut_observe::scan::{Scope, Wants};
//! use taut_observe::table::Retention;
//!
//! let filter: Filter = "dport 443".parse()?;
//! let retention = Retention { connections: 1000, samples: 6 };
//! let mut observer = Observer::new(Scope::Own, retention, Wants::EVENTS);
//! for _ in 0..5 {
//!     observer.scan(&filter)?;
//!     std::thread::sleep(Duration::from_secs(1));
//! }
//! for connection in observer.connections(&filter) {
//!     if let Some(verdict) = observer.verdict(&connection) {
//!         let remote = connection.tracked.last().connection.remote;
//!         println!("the connection to {remote} {}", verdict.factor.sentence());
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod both_ends;
mod bpf_iter;
mod collector;
mod cpu_quota;
mod descheduled;
pub mod ended;
mod event_delta;
pub mod explain;
pub mod filter;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod host_drops;
pub mod instruments;
pub mod limitation;
pub mod listeners;
pub mod namespaces;
pub mod observation;
pub mod observer;
pub mod owner;
mod path_rtt;
pub mod record;
pub mod sanitize;
pub mod scan;
pub mod screen;
mod steal;
pub mod table;
pub mod tcp_settings;
pub mod verdict;
pub mod versioned;
pub mod view;
pub mod watch;
pub mod window;
