//! How a session ended, or why it was refused.

pub(crate) mod mesh;
pub(crate) mod proxy;
pub mod refusal;
pub mod session_end;
