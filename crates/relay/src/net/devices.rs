//! The machine's network devices.

use std::collections::BTreeMap;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// Returns the names of the devices that are up, except loopback.
pub(crate) fn devices_up() -> std::io::Result<Vec<String>> {
    let listed = getifaddrs()?;
    // getifaddrs lists a device once for itself and once for each of its addresses.
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
