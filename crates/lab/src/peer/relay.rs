//! `taut relay` on a host of a world.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use super::{PeerError, Service};
use crate::world::Host;

/// The port that relays listen on.
pub const PORT: u16 = 8080;
/// The port of a second listener, towards whose clients BBR is used.
pub const BBR_PORT: u16 = 8081;
/// Where they serve their metrics.
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// Relays what comes to `host` at [`PORT`] to `to`, and, with `bbr`, what comes at [`BBR_PORT`]
/// too; `taut` is the binary.
///
/// # Errors
/// [`PeerError`].
pub fn relay(
    host: &Host,
    taut: &Path,
    to: SocketAddr,
    bbr: bool,
    dir: &Path,
) -> Result<Service, PeerError> {
    let addr = SocketAddr::from((host.addr(), PORT));
    let mut text = format!(
        "[relay]\nmetrics = \"{METRICS}\"\n\
         [[relay.forward]]\nlisten = \"{addr}\"\nto = \"{to}\"\n"
    );
    if bbr {
        let addr = SocketAddr::from((host.addr(), BBR_PORT));
        text.push_str(&format!(
            "[[relay.forward]]\nlisten = \"{addr}\"\nto = \"{to}\"\nclient_congestion = \"bbr\"\n"
        ));
    }
    let config = dir.join(format!("taut-{}.toml", host.name()));
    fs::write(&config, text).map_err(|source| PeerError::Prepare {
        what: "a relay's configuration".into(),
        source,
    })?;
    let mut command = Command::new(taut);
    command.arg("relay").arg("--config").arg(&config);
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
