//! Network namespaces.

pub(crate) mod ended;
