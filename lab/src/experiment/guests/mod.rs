//! Guests and the machine that they share: the common parts of experiments with guests.
//!
//! Each guest is a separate kernel (User Mode Linux) on a tap. A gate plays the hypervisor's
//! scheduler. See `docs/design/lab-worlds.md`.

pub(super) mod configuration;
pub(super) mod cores;
pub mod driver;
pub(super) mod gate;
pub mod guest;
pub(super) mod hog;
pub mod kernel;
pub(super) mod network;
pub(super) mod qemu;
pub(super) mod sender;
pub(super) mod slices;
pub(super) mod snooping;
pub(super) mod transfer;
pub(super) mod uml;
