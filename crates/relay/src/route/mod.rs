//! Where a listener's sessions go.

pub(crate) mod table;
