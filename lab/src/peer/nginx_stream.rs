//! nginx as a TCP relay, with its stream module.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::{PeerError, Service, program};
use taut_netlab::world::Host;

/// The port that nginx listens on.
pub const PORT: u16 = 8082;
/// The module's path in Debian's package; nginx loads it at run time.
pub(super) const MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";
/// The maximum number of a worker's connections. A session has two connections, and one worker may
/// get all sessions.
pub(super) const CONNECTIONS: usize = 19_000;

/// Checks that nginx has its stream module.
///
/// # Errors
/// [`PeerError::Missing`], naming the package to install.
pub fn available() -> Result<(), PeerError> {
    fs::metadata(MODULE)
        .map(drop)
        .map_err(|source| PeerError::Missing {
            program: "nginx's stream module",
            package: "libnginx-mod-stream",
            source,
        })
}

/// Relays connections that arrive on `host` at [`PORT`] to `to`, with a worker for each of `cpus`.
///
/// # Errors
/// [`PeerError`].
pub fn relay(host: &Host, to: SocketAddr, cpus: usize, dir: &Path) -> Result<Service, PeerError> {
    let addr = SocketAddr::from((host.addr(), PORT));
    let config = dir.join("nginx-stream.conf");
    let here = dir.display();
    // The default backlog of 511 would refuse bursts that the other relays accept.
    let text = format!(
        "load_module {MODULE};\n\
         daemon off;\n\
         user root;\n\
         worker_processes {cpus};\n\
         worker_rlimit_nofile {CONNECTIONS};\n\
         pid {here}/nginx-stream.pid;\n\
         error_log stderr error;\n\
         events {{ worker_connections {CONNECTIONS}; }}\n\
         stream {{\n\
           server {{ listen {addr} backlog=4096; proxy_pass {to}; }}\n\
         }}\n"
    );
    fs::write(&config, text).map_err(|source| PeerError::Prepare {
        what: "nginx's configuration".into(),
        source,
    })?;
    let mut command = Command::new(program::NGINX.name);
    command
        .arg("-e")
        .arg("stderr")
        .arg("-p")
        .arg(dir)
        .arg("-c")
        .arg(&config);
    Service::start(host, "nginx-stream", command, addr, dir)
}
