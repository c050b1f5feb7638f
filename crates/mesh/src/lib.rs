//! The protocol between relays, and the sizing of their pools of ready connections.
//!
//! Relays open TCP connections to each other before they are needed and use each once (pied-piper
//! 3.2, improvement 3). Both ends prove that they hold a [`key`] of the mesh. When a session needs
//! the connection, one [`hello`] names its client and destination, and the client's bytes follow.
//! Every message is a header of the PROXY protocol ([`proxy`]). [`acceptor`] and [`dialler`] are the
//! two ends; [`pool`] decides how many connections to hold ready. `docs/design/mesh-hello.md`
//! specifies the messages and the attacks that they withstand.
//!
//! This crate has no sockets and no clock: bytes, random numbers and `now` are arguments. Only
//! [`key::Keys::load`] reads a file.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use taut_mesh::acceptor::{Acceptor, Event, Limits};
//! use taut_mesh::dialler::Dialler;
//! use taut_mesh::hello::{DEFAULT_HOPS, Hello, SessionId};
//! use taut_mesh::key::{Key, Keys};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (now, keys) = (Instant::now(), Keys::new(Key::new([7; 32]), None));
//! let (mut dialler, opening) = Dialler::new([1; 32], now, Duration::from_secs(5), &keys);
//! let mut acceptor = Acceptor::new([2; 32], now, &Limits::default());
//!
//! /// Hands a message to an acceptor, in pieces of the size that it asks for.
//! fn receive(
//!     acceptor: &mut Acceptor,
//!     mut bytes: &[u8],
//!     now: Instant,
//!     keys: &Keys,
//! ) -> Result<Event, taut_mesh::acceptor::Rejection> {
//!     loop {
//!         let space = acceptor.space();
//!         let n = space.len().min(bytes.len());
//!         space[..n].copy_from_slice(&bytes[..n]);
//!         bytes = &bytes[n..];
//!         match acceptor.advance(n, now, keys)? {
//!             Event::More if !bytes.is_empty() => {}
//!             event => return Ok(event),
//!         }
//!     }
//! }
//!
//! let Event::Greet(mut greeting) = receive(&mut acceptor, &opening, now, &keys)? else {
//!     panic!("the acceptor did not greet");
//! };
//! let proof = loop {
//!     let space = dialler.space();
//!     let n = space.len().min(greeting.len());
//!     space[..n].copy_from_slice(&greeting[..n]);
//!     greeting.drain(..n);
//!     if let Some(proof) = dialler.advance(n, now)? {
//!         break proof;
//!     }
//! };
//! assert_eq!(receive(&mut acceptor, &proof, now, &keys)?, Event::Proven);
//!
//! // Both ends are ready; a session may take the connection now or minutes later.
//! let hello = Hello {
//!     source: "192.0.2.1:40000".parse()?,
//!     destination: "example.org:443".parse()?,
//!     route: Vec::new(),
//!     hops_left: DEFAULT_HOPS,
//!     session: SessionId([3; 16]),
//! };
//! let message = dialler.ready().expect("proved").hello(&hello);
//! assert_eq!(
//!     receive(&mut acceptor, &message, now, &keys)?,
//!     Event::Hello(Box::new(hello)),
//! );
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod acceptor;
pub mod client_hello;
mod deadline;
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
