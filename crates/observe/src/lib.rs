//! `taut top` and `taut why`: what each TCP connection of the machine is doing, and what limits it.
//!
//! Instruments ([`scan`], [`owner`], [`namespaces`]) read what the kernel has; all that is made of it
//! ([`window`], [`table`], [`verdict`], [`filter`], [`view`]) is pure. [`observer`] puts both together.

#![forbid(unsafe_code)]

mod bpf_iter;
mod collector;
mod descheduled;
mod event_delta;
pub mod explain;
pub mod filter;
pub mod instruments;
pub mod namespaces;
pub mod observer;
pub mod owner;
pub mod record;
pub mod sanitize;
pub mod scan;
pub mod screen;
mod steal;
pub mod table;
pub mod verdict;
pub mod view;
pub mod watch;
pub mod window;
