//! Which network devices SYNs are looked for on.

use std::collections::BTreeMap;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};

use super::EarlySynError;

/// The devices that are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// These, by name.
    Named(Vec<String>),
    /// Every one that is up, but for loopback.
    AllUp,
}

/// A network device of the calling thread's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name at the time.
    pub name: String,
    /// Its number, which stays its own for as long as it exists.
    pub ifindex: u32,
}

// === impl Devices ===

impl Devices {
    /// Those of them that there are.
    ///
    /// # Errors
    /// When one that was named is missing, or the kernel does not list them.
    pub(super) fn find(&self) -> Result<Vec<Device>, EarlySynError> {
        let names = match self {
            Self::Named(names) => names.clone(),
            Self::AllUp => Self::up().map_err(EarlySynError::List)?,
        };
        let mut found = Vec::new();
        for name in names {
            match if_nametoindex(name.as_str()) {
                Ok(ifindex) => found.push(Device { name, ifindex }),
                // One that was up a moment ago has gone since.
                Err(_) if *self == Self::AllUp => {}
                Err(_) => return Err(EarlySynError::NoSuchDevice(name)),
            }
        }
        Ok(found)
    }

    /// The names of the devices that are up, but for loopback.
    pub(crate) fn up() -> std::io::Result<Vec<String>> {
        let listed = getifaddrs()?;
        // A device is listed once for itself and once for each of its addresses.
        let flags: BTreeMap<_, _> = listed.map(|a| (a.interface_name, a.flags)).collect();
        let wanted = |flags: InterfaceFlags| {
            flags.contains(InterfaceFlags::IFF_UP) && !flags.contains(InterfaceFlags::IFF_LOOPBACK)
        };
        Ok(flags
            .into_iter()
            .filter(|(_, flags)| wanted(*flags))
            .map(|(name, _)| name)
            .collect())
    }
}
