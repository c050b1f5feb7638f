//! Settings that are not about buffers.

pub mod interface_name;
pub(crate) mod setting_file;
pub mod settings;
pub(crate) mod undo;
pub(crate) mod visit;
pub(crate) mod watch;

#[cfg(test)]
mod testing;
