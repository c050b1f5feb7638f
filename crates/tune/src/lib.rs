//! `taut tune`: every connection gets the buffer that its path can use.
//!
//! What decides is pure: [`demand`] says what a connection wants, and [`plan`] what is to be changed. [`actuate`] makes changes after
//! [`journal`] has them, and [`tuner`] puts all of it together; [`log`] tells others of it. [`allocate`] shares a budget out, and [`hysteresis`] keeps what is granted
//! from changing with every breath of a connection: docs/design/tune.md says what they are for. [`profile`] has settings that are not about buffers.

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
pub mod routes;
mod sysctl;
mod trusted_file;
pub mod tuner;
