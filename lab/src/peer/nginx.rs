//! nginx as the HTTP server of a world.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use super::{PeerError, Service, program};
use taut_netlab::world::Host;

/// Additions to a server's default configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Own<'a> {
    /// Parameters after the address in `listen`, such as ` sndbuf=16384`.
    pub listen: &'a str,
    /// Directives of the server, such as `limit_rate 10000;`.
    pub server: &'a str,
}

/// Serves the files of `DIR/www` on port 80 of `host`. Several hosts may share `dir`.
///
/// # Errors
/// [`PeerError`].
pub fn serve(host: &Host, dir: &Path) -> Result<Service, PeerError> {
    serve_with(host, dir, &Own::default())
}

/// Like [`serve`], with additions to the configuration.
///
/// # Errors
/// [`PeerError`].
pub fn serve_with(host: &Host, dir: &Path, with: &Own<'_>) -> Result<Service, PeerError> {
    let Own { listen, server } = with;
    let addr = SocketAddr::from((host.addr(), 80));
    let config = dir.join(format!("nginx-{}.conf", host.name()));
    let (here, own) = (dir.display(), dir.join(format!("nginx-{}", host.name())));
    let own = own.display();
    // Debian's defaults apply where they matter (sendfile, no tcp_nopush). The user is root,
    // because Debian's user for nginx could not read the world's directory. Temporary files stay in
    // that directory.
    let text = format!(
        "daemon off;\n\
         user root;\n\
         worker_processes 1;\n\
         pid \"{own}.pid\";\n\
         error_log stderr warn;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n\
           access_log off;\n\
           sendfile on;\n\
           default_type application/octet-stream;\n\
           client_body_temp_path \"{own}-body\";\n\
           proxy_temp_path \"{own}-proxy\";\n\
           fastcgi_temp_path \"{own}-fastcgi\";\n\
           uwsgi_temp_path \"{own}-uwsgi\";\n\
           scgi_temp_path \"{own}-scgi\";\n\
           server {{ listen {addr}{listen}; root \"{here}/www\"; {server} }}\n\
         }}\n"
    );
    fs::write(&config, text).map_err(|source| PeerError::Prepare {
        what: "nginx's configuration".into(),
        source,
    })?;
    let mut command = program::NGINX.command();
    command
        .arg("-e")
        .arg("stderr")
        .arg("-p")
        .arg(dir)
        .arg("-c")
        .arg(&config);
    Service::start(host, "nginx", command, addr, dir)
}
