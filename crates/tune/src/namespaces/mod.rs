//! Network namespaces by cookie: those that exist, and those that have ended.

pub(crate) mod ended;
pub(crate) mod index;
