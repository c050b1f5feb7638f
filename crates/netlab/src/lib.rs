//! Networks on one machine, for tests and measurements of programs that use them.
//!
//! A [`world::World`] is a set of hosts (network namespaces) joined by links. Each direction of a
//! link has a delay, a rate, random loss and a queue; its counters show what it dropped and whether
//! it was itself the bottleneck. Real programs and real sockets run on the hosts. When a world is
//! dropped, its processes end and its namespaces go; after a `kill -9` the next world that is built,
//! or [`world::World::sweep`], cleans up. Building a world needs root.
//!
//! ```no_run
//! use std::io::{Read, Write};
//! use std::net::{TcpListener, TcpStream};
//! use std::time::Duration;
//!
//! use taut_netlab::link::shape::{LinkSpec, Shape};
//! use taut_netlab::units::BitsPerSecond;
//! use taut_netlab::world::WorldBuilder;
//!
//! // Ctrl-C tears the world down, too.
//! taut_netlab::interrupt::tear_down_on_signals()?;
//! let path = Shape::delay(Duration::from_millis(20))
//!     .rate(BitsPerSecond::mega(100))
//!     .loss(0.001);
//! let world = WorldBuilder::new("example")
//!     .host("client")
//!     .host("server")
//!     .link("client", "server", LinkSpec::both(path))
//!     .build()?;
//!
//! // A process on a host.
//! let mut ping = std::process::Command::new("ping");
//! ping.args(["-c", "1", &world.addr("server").to_string()]);
//! world.host("client").spawn(ping)?.wait()?;
//!
//! // A socket on a host: open it in a closure that runs there, use it anywhere.
//! let address = (world.addr("server"), 8080);
//! let listener = world.host("server").run(|| TcpListener::bind(address))??;
//! let mut client = world.host("client").run(|| TcpStream::connect(address))??;
//! client.write_all(b"hello")?;
//! listener.accept()?.0.read_exact(&mut [0; 5])?;
//!
//! let link = &world.link_reports()?[0];
//! println!("{} segments lost", link.a_to_b.path.loss_drops);
//! assert!(!link.overrun(), "the link was the bottleneck");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`link::path`] is the model of one direction and needs no kernel: it can be used by itself, in
//! virtual time.
#![forbid(unsafe_code)]

pub mod interrupt;
pub mod link;
pub mod netlink;
pub mod units;
pub mod world;
