//! `taut top`, `why`, `watch` and `tune` as processes, on connections of real kernels.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

#[path = "../shared/host.rs"]
mod host;
mod observe;
mod screen;
mod tune;
mod tune_routes;
mod watch;
mod why;
mod without_root;
