//! Two nginx with TLS between them, by the stream module.

use std::net::SocketAddr;

use super::CIPHER_SUITE;
use super::certificates::{Certificates, FAR, NEAR};
use crate::peer::nginx_stream::{CONNECTIONS, MODULE};
use crate::peer::two_relays::{Place, TwoRelays};
use crate::peer::{PeerError, Service, program};

/// Starts the pair. Sessions of TLS are resumed.
///
/// # Errors
/// [`PeerError`].
pub fn pair(place: &Place<'_>, certificates: &Certificates) -> Result<TwoRelays, PeerError> {
    let Place {
        near, between, to, ..
    } = place;
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
        far: start(place, "nginx-tls-far", place.between, &far)?,
        near: start(place, "nginx-tls-near", place.near, &near)?,
    })
}

fn start(
    place: &Place<'_>,
    name: &str,
    addr: SocketAddr,
    server: &str,
) -> Result<Service, PeerError> {
    let (cpus, here) = (place.cpus, place.dir.display());
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
    let config = place.write(name, &text)?;
    let mut command = program::NGINX.command();
    command.args(["-e", "stderr", "-p"]).arg(place.dir);
    command.arg("-c").arg(config);
    Service::start(place.host, name, command, addr, place.dir)
}
