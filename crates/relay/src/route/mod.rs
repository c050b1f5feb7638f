//! Where the connections of a listener go.

pub(crate) mod listener;
pub(crate) mod table;
