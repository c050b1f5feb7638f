//! HAProxy as a TCP relay.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::{PeerError, Service, program};
use taut_netlab::world::Host;

/// When HAProxy moves bytes with splice(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Splice {
    /// When HAProxy detects that a stream benefits from splicing (`option splice-auto`, as its
    /// manual advises). It seldom does: on a loopback, version 2.6 keeps copying a flow of 2 GB/s.
    Auto,
    /// Always, through pipes as large as those of `taut relay`.
    Always,
}

/// The maximum number of sessions. HAProxy needs two descriptors for each session and some more.
/// Their number must stay below 20,000, the limit on some machines.
pub(super) const SESSIONS: usize = 9_000;
/// The number of pipes for splicing, the same as in `taut relay`. By default HAProxy reserves
/// descriptors for a quarter of its sessions.
const PIPES: usize = 128;
/// The pipe size of `taut relay`, in bytes; the kernel's default is 64 KiB.
const PIPE_SIZE: usize = 256 << 10;

/// Relays connections that arrive on `host` at the port of `splice` to `to`, with a thread for each
/// of `cpus`.
///
/// # Errors
/// [`PeerError`].
pub fn relay(
    host: &Host,
    to: SocketAddr,
    splice: Splice,
    cpus: usize,
    dir: &Path,
) -> Result<Service, PeerError> {
    let addr = SocketAddr::from((host.addr(), splice.port()));
    let name = splice.name();
    let config = dir.join(format!("{name}.conf"));
    let option = match splice {
        Splice::Auto => "option splice-auto",
        Splice::Always => "option splice-request\n    option splice-response",
    };
    let pipes = match splice {
        Splice::Auto => String::new(),
        Splice::Always => format!("    tune.pipesize {PIPE_SIZE}\n"),
    };
    // The timeouts are longer than any measurement.
    let text = format!(
        "global\n\
         \x20   maxconn {SESSIONS}\n\
         \x20   maxpipes {PIPES}\n\
         \x20   nbthread {cpus}\n\
         {pipes}\
         defaults\n\
         \x20   mode tcp\n\
         \x20   {option}\n\
         \x20   maxconn {SESSIONS}\n\
         \x20   timeout connect 10s\n\
         \x20   timeout client 10m\n\
         \x20   timeout server 10m\n\
         listen relay\n\
         \x20   bind {addr}\n\
         \x20   server upstream {to}\n"
    );
    fs::write(&config, text).map_err(|source| PeerError::Prepare {
        what: "HAProxy's configuration".into(),
        source,
    })?;
    let mut command = Command::new(program::HAPROXY.name);
    // -db keeps HAProxy in the foreground.
    command.arg("-db").arg("-f").arg(&config);
    Service::start(host, name, command, addr, dir)
}

// === impl Splice ===

impl Splice {
    fn port(self) -> u16 {
        match self {
            Self::Auto => 8081,
            Self::Always => 8084,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "haproxy",
            Self::Always => "haproxy-splice",
        }
    }
}
