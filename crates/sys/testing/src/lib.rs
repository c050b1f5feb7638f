//! Kernel interfaces that only tests use. They are beside `taut-sys`, so that no job has them.

pub mod faults;
pub mod stalled_receive;
