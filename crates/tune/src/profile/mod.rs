//! Settings that are not about buffers.

pub mod settings;
pub(crate) mod visit;
pub(crate) mod watch;
