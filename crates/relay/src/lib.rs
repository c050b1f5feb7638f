//! The split-TCP relay node: takes each connection, makes one to its destination or to the next
//! relay, and moves bytes both ways, so that each leg is a short control loop of its own
//! (pied-piper 2.1).
//!
//! [`serve::run`] is the process, [`node::Node`] the node inside it. From the bottom up:
//! [`direction`] moves one direction's bytes and knows when its FIN may be forwarded, [`session`]
//! decides what a session's two legs mean for each other, [`worker`] is a thread with its
//! poller, and a node is as many of those as there are CPUs. `docs/design/relay.md` has the
//! state machines.
#![forbid(unsafe_code)]

pub mod access;
pub mod addr;
mod alarms;
mod arrivals;
pub mod config;
mod direction;
mod early;
pub mod early_syn;
pub mod end;
pub mod handover;
mod histogram;
pub mod identity;
mod inbox;
pub mod intercept;
mod loops;
pub mod metrics;
mod netlink;
pub mod node;
pub mod pipe;
mod pipes;
mod pool;
pub mod refused;
mod resolver;
pub mod route_metrics;
pub mod serve;
mod session;
pub mod session_log;
pub mod setup;
#[cfg(test)]
mod sim;
pub mod sources;
mod targets;
mod token;
mod turbo;
mod worker;
