//! Network devices: what a lab's world, and a guest's host, are wired from.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

use super::module::unless_it_loads;
use super::{Answer, network};
use crate::netlink::{ACK, CREATE, EXCL, Message, REQUEST, ROUTE};

/// Network namespaces.
pub fn namespaces() -> Answer {
    network::try_one()
}

/// Pairs of virtual Ethernet devices.
pub fn veth() -> Answer {
    unless_it_loads(&["veth"], || {
        network::in_private(|| Answer::of(add("veth")).about("a veth link"))
    })
}

/// The software bridge.
pub fn bridge() -> Answer {
    unless_it_loads(&["bridge"], || {
        network::in_private(|| Answer::of(add("bridge")).about("a bridge link"))
    })
}

/// TAP devices: a guest's end of its link.
pub fn tap() -> Answer {
    tap_that(|| open_tap(0).map(drop))
}

/// TAP devices whose frames carry a virtio-net header, so that whole 64 KiB segments with
/// unfinished checksums can be read and written (`IFF_VNET_HDR`, `TUNSETOFFLOAD`).
pub fn tap_with_offload() -> Answer {
    tap_that(tap_with_whole_segments)
}

fn tap_that(probe: fn() -> io::Result<()>) -> Answer {
    unless_it_loads(&["tun"], || {
        network::in_private(|| Answer::of(probe()).about("/dev/net/tun"))
    })
}

/// Adds a link of a kind, with a name of the kernel's choice.
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
        .ask(ROUTE, 1)
}

/// Makes a TAP device, with more flags, which goes away when the file is closed.
fn open_tap(flags: libc::c_int) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    // SAFETY: an all-zero `ifreq` is a valid one: integers, bytes and unions of them.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The flags are bits of a C short; none of them is its sign.
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | flags) as libc::c_short;
    // SAFETY: `file` is open and TUNSETIFF reads and writes one `ifreq`, which outlives the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    Ok(file)
}

fn tap_with_whole_segments() -> io::Result<()> {
    let file = open_tap(libc::IFF_VNET_HDR)?;
    let offload = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    // SAFETY: TUNSETOFFLOAD takes the flags by value and touches no memory of ours.
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
