//! socat as a TCP relay, with a process for each connection.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::{PeerError, Service, program};
use taut_netlab::world::Host;

/// The port that socat listens on.
pub const PORT: u16 = 8083;

/// Relays connections that arrive on `host` at [`PORT`] to `to`.
///
/// # Errors
/// [`PeerError`].
pub fn relay(host: &Host, to: SocketAddr, dir: &Path) -> Result<Service, PeerError> {
    let addr = SocketAddr::from((host.addr(), PORT));
    let mut command = Command::new(program::SOCAT.name);
    // The default backlog of 5 would refuse connections that wait for a fork. The other relays set
    // nodelay too.
    command.arg(format!(
        "TCP-LISTEN:{PORT},bind={},reuseaddr,fork,backlog=4096,nodelay",
        addr.ip()
    ));
    command.arg(format!("TCP:{to},nodelay"));
    Service::start(host, "socat", command, addr, dir)
}
