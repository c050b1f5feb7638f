//! HAProxy as a TCP relay.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::{PeerError, Service, program};
use crate::world::Host;

/// The port it listens on.
pub const PORT: u16 = 8081;
/// Sessions it has room for. It takes two descriptors for each and some more, which has to stay
/// below the 20,000 that some machines allow.
const SESSIONS: usize = 9_000;
/// Pipes for splicing, as many as `taut relay` allows itself. By default HAProxy wants descriptors
/// for a quarter of its sessions.
const PIPES: usize = 128;

/// Relays what comes to `host` at [`PORT`] to `to`, with a thread for each of `cpus`.
///
/// # Errors
/// [`PeerError`].
pub fn relay(host: &Host, to: SocketAddr, cpus: usize, dir: &Path) -> Result<Service, PeerError> {
    let addr = SocketAddr::from((host.addr(), PORT));
    let config = dir.join("haproxy.conf");
    // `splice-auto` is what its manual advises for relaying in bulk: splice(2) where HAProxy
    // finds that a stream is worth it. Timeouts only have to be longer than any measurement.
    let text = format!(
        "global\n\
         \x20   maxconn {SESSIONS}\n\
         \x20   maxpipes {PIPES}\n\
         \x20   nbthread {cpus}\n\
         defaults\n\
         \x20   mode tcp\n\
         \x20   option splice-auto\n\
         \x20   maxconn {SESSIONS}\n\
         \x20   timeout connect 10s\n\
         \x20   timeout client 10m\n\
         \x20   timeout server 10m\n\
         listen relay\n\
         \x20   bind {addr}\n\
         \x20   server onward {to}\n"
    );
    fs::write(&config, text).map_err(|source| PeerError::Prepare {
        what: "HAProxy's configuration".into(),
        source,
    })?;
    let mut command = Command::new(program::HAPROXY.name);
    // -db: in the foreground.
    command.arg("-db").arg("-f").arg(&config);
    Service::start(host, "haproxy", command, addr, dir)
}
