//! An attacker on the path between two relays: it reads, changes, withholds, adds and redirects what they
//! send. Whatever it does, nothing arrives that was not sent, nothing looks whole that is not, and no
//! relay dials what no client asked for.

mod connections;
mod path;
mod records;
mod rig;
