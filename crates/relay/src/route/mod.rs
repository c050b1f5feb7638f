//! Where a listener's sessions go.

pub(crate) mod listener;
pub(crate) mod table;
