//! The machine's network devices.

use std::ffi::CString;
use std::io;

use nix::net::if_::InterfaceFlags;
use taut_sys::interface::InterfaceLookup;

/// The devices of the calling thread's network namespace, one a line below two lines of headings.
const DEVICES: &str = "/proc/thread-self/net/dev";

/// Returns the names of the devices that are up, except loopback.
///
/// Does not list them by netlink, as getifaddrs(3) does: that waits for the lock of all network
/// settings of the machine (RTNL), which the kernel holds while it removes namespaces.
pub(crate) fn devices_up() -> io::Result<Vec<String>> {
    let listed = std::fs::read(DEVICES)?;
    let lookup = InterfaceLookup::open()?;
    let mut up = Vec::new();
    for line in String::from_utf8_lossy(&listed).lines() {
        let Some((name, _)) = line.split_once(':') else {
            continue;
        };
        let name = name.trim();
        // A device may be gone since.
        let flags = lookup.flags(&CString::new(name)?)?.unwrap_or(0);
        let flags = InterfaceFlags::from_bits_truncate(i32::from(flags));
        if flags.contains(InterfaceFlags::IFF_UP) && !flags.contains(InterfaceFlags::IFF_LOOPBACK) {
            up.push(name.to_owned());
        }
    }
    Ok(up)
}
