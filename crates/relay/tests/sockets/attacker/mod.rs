//! An attacker on the path between two relays: it reads, changes, withholds, adds and redirects what they
//! send. Whatever it does, nothing arrives that was not sent, nothing looks whole that is not, and no
//! relay dials what no client asked for.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod connections;
mod path;
mod records;
mod rig;
