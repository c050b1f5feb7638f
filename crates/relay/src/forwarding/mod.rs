//! The data path of a session: its two legs, the bytes of each direction, and the pipes for splice.

pub(crate) mod backlog;
pub(crate) mod direction;
pub(crate) mod leg;
pub(crate) mod session;
#[cfg(test)]
pub(crate) mod sim;
pub(crate) mod splice_pipes;
pub(crate) mod user_timeout;
