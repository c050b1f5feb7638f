//! Connections between relays that carry no session yet: dialled ones and accepted ones.

pub(crate) mod inbound;
pub(crate) mod pool;
