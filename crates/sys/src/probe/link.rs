//! Probes of virtual network devices, from which the lab builds its worlds and hosts connect
//! guests.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

use super::module::unless_it_loads;
use super::{Answer, network};
use crate::netlink::{ACK, CREATE, EXCL, Message, REQUEST, ROUTE};

/// Probes for network namespaces.
pub fn namespaces() -> Answer {
    network::try_one()
}

/// Probes for pairs of virtual Ethernet devices (veth(4)).
pub fn veth() -> Answer {
    unless_it_loads(&["veth"], || {
        network::in_private(|| Answer::of(add("veth")).about("a veth link"))
    })
}

/// Probes for the software bridge.
pub fn bridge() -> Answer {
    unless_it_loads(&["bridge"], || {
        network::in_private(|| Answer::of(add("bridge")).about("a bridge link"))
    })
}

/// Probes for TAP devices.
pub fn tap() -> Answer {
    probe_tap(|| open_tap(0).map(drop))
}

/// Probes for TAP devices whose frames carry a virtio-net header, so that 64 KiB super-frames with
/// partial checksums can be read and written (`IFF_VNET_HDR`, `TUNSETOFFLOAD`).
pub fn tap_with_offload() -> Answer {
    probe_tap(open_tap_with_offload)
}

fn probe_tap(probe: fn() -> io::Result<()>) -> Answer {
    unless_it_loads(&["tun"], || {
        network::in_private(|| Answer::of(probe()).about("/dev/net/tun"))
    })
}

/// Adds a link of this kind under a name that the kernel chooses.
fn add(kind: &str) -> io::Result<()> {
    const RTM_NEWLINK: u16 = 16;
    const IFLA_LINKINFO: u16 = 18;
    const IFLA_INFO_KIND: u16 = 1;
    const IFINFOMSG: [u8; 16] = [0; 16];
    Message::default()
        .message(RTM_NEWLINK, REQUEST | ACK | CREATE | EXCL, 1, |m| {
            m.raw(&IFINFOMSG).nest(IFLA_LINKINFO, |m| {
                m.attribute(IFLA_INFO_KIND, kind.as_bytes())
            })
        })
        .send(ROUTE, 1)
}

/// Creates a TAP device with additional flags. Closing the file removes it.
fn open_tap(flags: libc::c_int) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    // SAFETY: `ifreq` is plain data for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The flags fit the 15 value bits of a C short.
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | flags) as libc::c_short;
    // SAFETY: `file` is open; TUNSETIFF reads and writes one `ifreq`, which outlives the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    Ok(file)
}

fn open_tap_with_offload() -> io::Result<()> {
    let file = open_tap(libc::IFF_VNET_HDR)?;
    let offload = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    check(unsafe {
        libc::ioctl(
            file.as_raw_fd(),
            libc::TUNSETOFFLOAD,
            libc::c_ulong::from(offload),
        )
    })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
