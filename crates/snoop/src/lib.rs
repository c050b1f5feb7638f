//! The host acknowledges for a guest that is waiting for its CPU (vSnoop, as BPF on the guest's
//! tap). [`program`] has the two programs at a tap and what they keep; `docs/design/snoop.md` says
//! when it is safe.
//!
//! The settings are those of `[snoop]` in the configuration file:
//!
//! ```
//! use taut_snoop::config::Settings;
//!
//! let settings = Settings::parse("[snoop]\ntaps = [\"vnet*\"]\nring = 4096")?;
//! settings.check()?;
//! assert_eq!(settings.ring, Some(4096));
//! # Ok::<(), taut_snoop::config::ConfigError>(())
//! ```

#![forbid(unsafe_code)]

pub mod config;
pub mod copies;
pub mod cost;
pub mod device;
mod frame;
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
