//! The data path of a session: its two legs, each direction's bytes, and the pipes they are spliced
//! through.

pub(crate) mod direction;
pub(crate) mod session;
#[cfg(test)]
pub(crate) mod sim;
pub(crate) mod splice_pipes;
