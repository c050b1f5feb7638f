//! Network namespaces: those that exist, those that have ended, and who tunes them.

pub(crate) mod ended;
pub(crate) mod index;
pub(crate) mod lock;
