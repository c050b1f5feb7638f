//! How a session ended, or why it was refused.

pub mod refusal;
pub mod session_end;
