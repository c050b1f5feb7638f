//! Profiles: settings that are not about buffers, and that are changed only on request.
//!
//! [`settings`] decides what is too lax and is pure. [`visit`] examines one namespace and
//! [`setting_file`] its files, [`undo`] takes changes back, and [`watch`] remembers what was
//! examined.

pub mod interface_name;
pub(crate) mod setting_file;
pub mod settings;
pub(crate) mod undo;
pub(crate) mod visit;
pub(crate) mod watch;

#[cfg(test)]
mod testing;
