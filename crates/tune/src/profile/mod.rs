//! Profiles: settings other than buffers, which are changed only on request.
//!
//! [`settings`] decides which settings are too lax and is pure. [`visit`] examines one namespace
//! and [`setting_file`] its files, [`undo`] restores settings, and [`watch`] remembers the examined
//! namespaces.

pub mod interface_name;
pub(crate) mod setting_file;
pub mod settings;
pub(crate) mod undo;
pub(crate) mod visit;
pub(crate) mod watch;

#[cfg(test)]
mod testing;
