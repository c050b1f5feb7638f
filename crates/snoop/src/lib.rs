//! The host acknowledges for a guest that is waiting for its CPU (vSnoop, as BPF on the guest's
//! tap). [`program`] has the two programs at a tap and what they keep; `docs/design/snoop.md` says
//! when it is safe.

#![forbid(unsafe_code)]

pub mod config;
pub mod copies;
pub mod cost;
mod frame;
mod metrics;
pub mod program;
mod qdisc;
pub mod qmp;
pub mod records;
pub mod retransmit;
pub mod serve;
pub mod tap;
pub mod tap_supervisor;
mod trust;
pub mod wire;
