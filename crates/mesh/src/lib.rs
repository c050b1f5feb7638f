//! The protocol between relays, and the sizing of their pools of ready connections.
//!
//! Relays open TCP connections to each other before they are needed and use each once (pied-piper
//! 3.2, improvement 3). Each relay has a key pair ([`identity`]) and a list of the others ([`members`]).
//! A connection begins with a handshake of TLS 1.3 in which both ends prove their keys ([`tls`],
//! [`channel`]). When a session needs the connection, one [`hello`] names its client and destination, and
//! the client's bytes follow. The hello is a header of the PROXY protocol ([`proxy`]). [`acceptor`] and
//! [`dialler`] are the two ends. [`pool`] decides how many connections to hold ready, [`dials`] what becomes
//! of each, [`arrivals`] which ones have room at the other end, [`ways`] which relay a session asks for one, [`answer`]
//! what its silence means, and [`onward`] where a session goes that another relay requests.
//! [`plan`] chooses the relays of a route, and [`auto`] those of automatic routes, by the rows of all relays.
//! [`unproven`] and [`early_syn`] bound what strangers cause. The list of members may be signed and come from
//! etcd; [`etcd`] has the messages. `docs/design/mesh-hello.md` specifies the bytes and the attacks that they withstand.
//!
//! This crate has no sockets and no clock: bytes and `now` are arguments. The randomness of TLS is the
//! kernel's. Only [`identity::PrivateKey`] reads and writes a file.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::{Duration, Instant};
//! use taut_mesh::acceptor::{Acceptor, Event, Limits, Local};
//! use taut_mesh::dialler::Dialler;
//! use taut_mesh::hello::{DEFAULT_HOPS, Hello, SessionId};
//! use taut_mesh::identity::PrivateKey;
//! use taut_mesh::members::Members;
//! use taut_mesh::tls::{AcceptTls, DialTls};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Two relays that know each other's public key.
//! let (fra, nyc) = (PrivateKey::from_seed(&[1; 32]), PrivateKey::from_seed(&[2; 32]));
//! let members = Arc::new(Members::parse(&format!(
//!     r#"
//!     [[member]]
//!     name = "fra1"
//!     keys = ["{}"]
//!
//!     [[member]]
//!     name = "nyc1"
//!     keys = ["{}"]
//!     "#,
//!     fra.public(),
//!     nyc.public(),
//! ))?);
//! let local = Local {
//!     name: "nyc1".parse()?,
//!     tls: AcceptTls::new(&nyc, members.clone()),
//!     members: members.clone(),
//! };
//!
//! // fra1 dials nyc1. What one end appends to its output is the other end's input.
//! let now = Instant::now();
//! let tls = DialTls::new(&fra, &members.by_name("nyc1").expect("a member").keys);
//! let (mut to_nyc, mut to_fra, mut plain) = (Vec::new(), Vec::new(), vec![0; 1 << 16]);
//! let mut dialler = Dialler::new(&tls, now, Duration::from_secs(5), &mut to_nyc)?;
//! let mut acceptor = Acceptor::new(now, &Limits::default(), None);
//!
//! let event = acceptor.receive(&mut to_nyc, &mut plain, now, &local, &mut to_fra)?;
//! assert_eq!(event, Event::More);
//! to_nyc.clear();
//! assert!(dialler.receive(&mut to_fra, &mut plain, now, &mut to_nyc)?);
//! to_fra.clear();
//! let event = acceptor.receive(&mut to_nyc, &mut plain, now, &local, &mut to_fra)?;
//! assert_eq!(event, Event::Proven);
//! assert_eq!(acceptor.member().expect("proven").name.as_str(), "fra1");
//!
//! // Both ends are ready; a session may take the connection now or minutes later.
//! let hello = Hello {
//!     source: "192.0.2.1:40000".parse()?,
//!     destination: "example.org:443".parse()?,
//!     receiver: "nyc1".parse()?,
//!     route: Vec::new(),
//!     hops_left: DEFAULT_HOPS,
//!     session: SessionId([3; 16]),
//!     passed: Default::default(),
//! };
//! let (mut sealed, _channel) = dialler.ready().expect("a handshake").hello(&hello)?;
//! assert_eq!(
//!     acceptor.receive(&mut sealed, &mut plain, now, &local, &mut to_fra)?,
//!     Event::Hello {
//!         hello: Box::new(hello),
//!         early: Vec::new(),
//!     },
//! );
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod acceptor;
pub mod answer;
pub mod arrivals;
pub mod auto;
pub mod channel;
pub mod client_hello;
mod crypto;
mod deadline;
pub mod deadlines;
pub mod dialler;
pub mod dials;
pub mod early_syn;
pub mod etcd;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod hello;
pub mod identity;
pub mod member_quota;
pub mod members;
mod name;
pub mod name_cache;
mod occupancy;
pub mod onward;
pub mod places;
pub mod plan;
pub mod pool;
pub mod proxy;
mod rejection;
pub mod rows;
#[cfg(test)]
mod sim;
pub mod tls;
pub mod unproven;
pub mod unused;
pub mod ways;
mod wire;
