//! `taut top` and `taut why`: what each TCP connection of the machine is doing, and what limits it.
//!
//! Instruments ([`look`], [`owner`], [`namespaces`]) read what the kernel has; all that is made of it
//! ([`window`], [`table`], [`verdict`], [`filter`], [`view`]) is pure. [`observer`] puts both together.

#![forbid(unsafe_code)]

mod away;
pub mod explain;
pub mod filter;
mod happened;
mod inside;
pub mod instruments;
pub mod look;
pub mod namespaces;
pub mod observer;
pub mod owner;
pub mod plain;
pub mod record;
pub mod screen;
mod steal;
pub mod table;
pub mod verdict;
pub mod view;
pub mod watch;
pub mod window;
