//! Two nginx with TLS between them, by the stream module.

use std::net::SocketAddr;

use super::CIPHER_SUITE;
use super::certificates::{Certificates, FAR, NEAR};
use crate::peer::nginx_stream::{CONNECTIONS, MODULE};
use crate::peer::two_relays::{Layout, TwoRelays};
use crate::peer::{PeerError, Service, program};

/// Starts the pair. Sessions of TLS are resumed.
///
/// # Errors
/// [`PeerError`].
pub fn pair(layout: &Layout<'_>, certificates: &Certificates) -> Result<TwoRelays, PeerError> {
    let Layout {
        near, between, to, ..
    } = layout;
    let authority = certificates.authority();
    let authority = authority.display();
    let [near_certificate, far_certificate] =
        [NEAR, FAR].map(|name| certificates.certificate(name));
    let [near_key, far_key] = [NEAR, FAR].map(|name| certificates.key(name));
    // The default backlog of 511 would refuse bursts that the other relays accept.
    let far = format!(
        "listen {between} ssl backlog=4096;\n\
         proxy_pass {to};\n\
         ssl_protocols TLSv1.3;\n\
         ssl_conf_command Ciphersuites {CIPHER_SUITE};\n\
         ssl_certificate {};\n\
         ssl_certificate_key {};\n\
         ssl_client_certificate {authority};\n\
         ssl_verify_client on;\n\
         ssl_session_cache shared:far:10m;\n",
        far_certificate.display(),
        far_key.display(),
    );
    let near = format!(
        "listen {near} backlog=4096;\n\
         proxy_pass {between};\n\
         proxy_ssl on;\n\
         proxy_ssl_protocols TLSv1.3;\n\
         proxy_ssl_conf_command Ciphersuites {CIPHER_SUITE};\n\
         proxy_ssl_certificate {};\n\
         proxy_ssl_certificate_key {};\n\
         proxy_ssl_trusted_certificate {authority};\n\
         proxy_ssl_verify on;\n\
         proxy_ssl_name {FAR};\n\
         proxy_ssl_server_name on;\n\
         proxy_ssl_session_reuse on;\n",
        near_certificate.display(),
        near_key.display(),
    );
    Ok(TwoRelays {
        far: start(layout, "nginx-tls-far", layout.between, &far)?,
        near: start(layout, "nginx-tls-near", layout.near, &near)?,
    })
}

fn start(
    layout: &Layout<'_>,
    name: &str,
    addr: SocketAddr,
    server: &str,
) -> Result<Service, PeerError> {
    let (cpus, here) = (layout.cpus, layout.dir.display());
    let text = format!(
        "load_module {MODULE};\n\
         daemon off;\n\
         user root;\n\
         worker_processes {cpus};\n\
         worker_rlimit_nofile {CONNECTIONS};\n\
         pid {here}/{name}.pid;\n\
         error_log stderr error;\n\
         events {{ worker_connections {CONNECTIONS}; }}\n\
         stream {{ server {{\n{server}}} }}\n"
    );
    let config = layout.write(name, &text)?;
    let mut command = program::NGINX.command();
    command.args(["-e", "stderr", "-p"]).arg(layout.dir);
    command.arg("-c").arg(config);
    Service::start(layout.host, name, command, addr, layout.dir)
}
