//! Jobs as processes: what they do, say, export and may do.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod admin;
mod browser;
mod check;
mod dns;
mod etcd;
mod families;
mod hooks;
#[path = "../shared/host.rs"]
mod host;
#[path = "../shared/jobs.rs"]
mod jobs;
mod json;
mod mesh_plan;
mod metrics;
mod page;
mod privileges;
mod relay;
mod snoop;
