//! A network of its own for a test, so that no other process takes its ports; and its settings.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

use rustix::thread::UnshareFlags;

/// Moves the calling thread into a new network namespace in which only `lo` exists and is up. Threads
/// and processes that it starts afterwards are in it too; the namespace ends with the last of them.
///
/// Every port in it is free, and stays free after a socket on it is closed. Call it before the test
/// starts anything.
///
/// # Panics
/// Without root.
pub fn enter_private_network() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test makes a network namespace and must run as root, as `make test` does"
    );
    // SAFETY: unsharing is unsound only for the descriptor table (CLONE_FILES).
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
        .expect("a new network namespace");
    loopback_up().expect("lo can be set up in a new network namespace");
}

/// Returns the settings of the calling thread's network namespace and of its interfaces, by path below `/proc/sys/net`: all that a write
/// changes in it. (What cannot be written counts something or says what the kernel has. The congestion controls that users may choose
/// are the whole kernel's: other tests register some.)
///
/// # Panics
/// If a directory cannot be read.
pub fn settings() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    read_settings("", &mut all).expect("/proc/sys/net can be read");
    all.remove("ipv4/tcp_allowed_congestion_control");
    // Random until it is set.
    all.remove("ipv4/tcp_fastopen_key");
    all
}

fn read_settings(directory: &str, all: &mut BTreeMap<String, String>) -> io::Result<()> {
    for entry in fs::read_dir(format!("/proc/sys/net/{directory}"))? {
        let entry = entry?;
        let name = format!("{directory}{}", entry.file_name().display());
        if entry.file_type()?.is_dir() {
            read_settings(&(name + "/"), all)?;
        } else if !entry.metadata()?.permissions().readonly()
            // Some can only be written.
            && let Ok(text) = fs::read_to_string(entry.path())
        {
            all.insert(name, text.trim().to_owned());
        }
    }
    Ok(())
}

fn loopback_up() -> io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: `ifreq` is plain data for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(*b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: the descriptor is open, and the kernel reads one `ifreq`, which outlives the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    #[test]
    fn a_port_that_another_process_has_is_free() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let test = move || {
            super::enter_private_network();
            drop(TcpListener::bind(address).expect("the port is free"));
            TcpListener::bind(address).expect("the port stays free");
        };
        std::thread::spawn(test).join().unwrap();
    }
}
