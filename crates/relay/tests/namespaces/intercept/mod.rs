//! Interception in three namespaces: a client, a router with the relay on it, a server.

mod cleanup;
mod handover;
mod rig;
mod taken;
mod untouched;
