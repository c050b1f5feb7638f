//! Acknowledgement offload: the host acknowledges for a guest that waits for its CPU (vSnoop, as
//! BPF programs at the guest's tap). [`program`] loads the two programs of a tap and reads their
//! maps; [`tap_supervisor`] serves taps; `docs/design/snoop.md` explains when an early ACK is safe.
//!
//! The settings are those of `[snoop]` in the configuration file:
//!
//! ```
//! use taut_snoop::config::{ConfigFile, Settings};
//!
//! let text = "[snoop]\ntaps = [\"vnet*\"]\nring = 4096";
//! let settings = Settings::of_file(&ConfigFile::new("taut.toml".as_ref(), text.into()))?;
//! settings.check()?;
//! assert_eq!(settings.ring, Some(4096));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod config;
pub mod copies;
pub mod cost;
pub mod device;
pub mod error;
mod foreign_hooks;
mod frame;
pub mod hook;
mod log_limits;
mod metrics;
pub mod program;
pub mod protocol;
mod qdisc;
pub mod qmp;
pub mod records;
pub mod retransmit;
pub mod serve;
pub mod tap;
pub mod tap_supervisor;
mod trust;
pub mod wire;
