//! The network devices at which SYNs are seen.

use nix::net::if_::if_nametoindex;

use super::EarlySynError;
use crate::net::devices::devices_up;

/// The devices to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// The devices with these names.
    Named(Vec<String>),
    /// Every device that is up, except loopback.
    AllUp,
}

/// A network device of the calling thread's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The name at the time of listing.
    pub name: String,
    /// The interface index, constant for the device's lifetime.
    pub ifindex: u32,
}

// === impl Devices ===

impl Devices {
    /// Returns the devices that exist.
    ///
    /// # Errors
    /// If a named device is missing, or the kernel cannot list its devices.
    pub(super) fn find(&self) -> Result<Vec<Device>, EarlySynError> {
        let names = match self {
            Self::Named(names) => names.clone(),
            Self::AllUp => devices_up().map_err(EarlySynError::List)?,
        };
        let mut found = Vec::new();
        for name in names {
            match if_nametoindex(name.as_str()) {
                Ok(ifindex) => found.push(Device { name, ifindex }),
                // The device was up a moment ago and is gone now.
                Err(_) if *self == Self::AllUp => {}
                Err(_) => return Err(EarlySynError::NoSuchDevice(name)),
            }
        }
        Ok(found)
    }
}
