//! The split-TCP relay node: accepts each connection, dials its destination or the next relay, and
//! moves bytes both ways, so that each leg is a short control loop of its own (pied-piper 2.1).
//!
//! [`serve::run`] is the process, [`node::Node`] the node inside it. A node has one worker per CPU:
//! a thread with its own listeners, poller, sessions and pipes. A session (`forwarding/session.rs`)
//! decides how an event on one leg affects the other; a direction (`forwarding/direction.rs`) moves
//! the bytes of one direction and decides when FIN may follow. `docs/design/relay.md` describes the
//! state machines.
//!
//! A node relays from the return of [`node::Node::start`] until it is dropped:
//!
//! ```no_run
//! use std::path::Path;
//! use taut_relay::config::Config;
//! use taut_relay::node::Node;
//!
//! let text = r#"
//!     [[relay.forward]]
//!     listen = "127.0.0.1:8080"
//!     to = "192.0.2.1:80"
//! "#;
//! let config = Config::parse(text, Path::new("taut.toml"))?;
//! let node = Node::start(&config)?;
//! println!("listening at {:?}", node.listen_addrs());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod access;
pub mod admin;
mod condition;
pub mod config;
pub mod control;
mod counters;
pub mod early_syn;
mod etcd;
mod event;
mod forwarding;
pub mod handover;
pub mod intercept;
mod kept_file;
mod mesh;
pub mod metrics;
pub mod net;
pub mod node;
pub mod outcome;
pub mod route;
mod rows;
mod rows_mailbox;
pub mod serve;
mod session_list;
pub mod session_log;
pub mod turbo;
mod worker;

pub use taut_mesh::{identity, members, plan};
