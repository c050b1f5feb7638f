//! The end of a session, or the reason for its refusal.

pub(crate) mod client_hello;
pub(crate) mod kernel_tls;
pub(crate) mod peer;
pub(crate) mod proxy;
pub mod refusal;
pub mod session_end;
