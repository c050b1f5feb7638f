//! What relays say to each other, and how many connections they hold ready for it.
//!
//! Between relays, TCP connections are set up before they are needed and used once (pied-piper 3.2,
//! improvement 3). The two ends prove to each other that they hold a [`key`] of the mesh; when a
//! session needs the connection, one [`hello`] says whose it is and where it goes, and the
//! client's bytes follow. Every message is a header of the PROXY protocol ([`proxy`]).
//! [`acceptor`] and [`dialler`] are the two ends, [`pool`] says how many to hold ready.
//! `docs/design/mesh-hello.md` has the messages, field by field, and what they withstand.
//!
//! Nothing here has a socket or a clock: bytes, random numbers and `now` are arguments. Only
//! [`key::Keys::load`] reads a file.
#![forbid(unsafe_code)]

pub mod acceptor;
pub mod dialler;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod hello;
pub mod key;
pub mod pool;
pub mod proxy;
mod rejection;
#[cfg(test)]
mod sim;
mod wire;
