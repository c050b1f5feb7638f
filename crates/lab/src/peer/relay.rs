//! `taut relay` on a host of a world.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use super::{PeerError, Service};
use crate::world::Host;

/// The port that relays listen on.
pub const PORT: u16 = 8080;
/// Where they serve their metrics.
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// Relays what comes to `host` at [`PORT`] to `to`; `taut` is the binary.
///
/// # Errors
/// [`PeerError`].
pub fn relay(host: &Host, taut: &Path, to: SocketAddr, dir: &Path) -> Result<Service, PeerError> {
    let addr = SocketAddr::from((host.addr(), PORT));
    let mut command = Command::new(taut);
    command.args([
        "relay",
        "--listen",
        &addr.to_string(),
        "--to",
        &to.to_string(),
    ]);
    command.args(["--metrics", &METRICS.to_string()]);
    Service::start(host, "taut-relay", command, addr, dir)
}

/// Sessions that the relay on this host says are open. To be called inside the host.
///
/// # Errors
/// The system's, or that the relay does not say.
pub fn open_sessions() -> io::Result<u64> {
    let mut scrape = TcpStream::connect(METRICS)?;
    scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    scrape.read_to_string(&mut answer)?;
    answer
        .lines()
        .find_map(|line| line.strip_prefix("taut_relay_sessions ")?.parse().ok())
        .ok_or_else(|| io::Error::other("the relay's metrics do not have taut_relay_sessions"))
}
