//! The relay node in network namespaces, with links between them.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod auto_routes;
mod backlog;
mod early_syn;
mod intercept;
mod killed;
#[path = "../shared/members.rs"]
mod members;
#[path = "../shared/poll.rs"]
mod poll;
mod route_metrics;
mod silent_leg;
#[path = "../shared/wait.rs"]
mod wait;

use std::time::Duration;

use taut_relay::turbo::route_metrics::LOOK_AT_LEAST;

/// A test that waits longer than this for something has failed. It is less than the interval between two
/// checks of routes without a notification: the changes that tests wait for must be noticed.
const PATIENCE: Duration = Duration::from_secs(29);
const _: () = assert!(PATIENCE.as_secs() < LOOK_AT_LEAST.as_secs());
