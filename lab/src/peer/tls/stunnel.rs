//! Two stunnel: one wraps a connection in TLS, the other unwraps it. Each connection has a thread.

use super::CIPHER_SUITE;
use super::certificates::{Certificates, FAR, NEAR};
use crate::peer::two_relays::{Layout, TwoRelays};
use crate::peer::{PeerError, Service, program};

/// Starts the pair. Sessions of TLS are resumed, as they are by default.
///
/// # Errors
/// [`PeerError`].
pub fn pair(layout: &Layout<'_>, certificates: &Certificates) -> Result<TwoRelays, PeerError> {
    let Layout {
        near, between, to, ..
    } = layout;
    let far = format!(
        "[far]\n\
         accept = {between}\n\
         connect = {to}\n\
         requireCert = yes\n"
    );
    let near = format!(
        "[near]\n\
         client = yes\n\
         accept = {near}\n\
         connect = {between}\n\
         sni = {FAR}\n\
         checkHost = {FAR}\n"
    );
    Ok(TwoRelays {
        far: start(layout, certificates, FAR, &far)?,
        near: start(layout, certificates, NEAR, &near)?,
    })
}

fn start(
    layout: &Layout<'_>,
    certificates: &Certificates,
    side: &str,
    section: &str,
) -> Result<Service, PeerError> {
    let name = format!("stunnel-{side}");
    let (authority, certificate, key) = (
        certificates.authority(),
        certificates.certificate(side),
        certificates.key(side),
    );
    // Without nodelay, stunnel's own messages of TLS would wait for acknowledgements. The other
    // relays set it too.
    let text = format!(
        "foreground = yes\n\
         pid =\n\
         syslog = no\n\
         debug = err\n\
         socket = l:TCP_NODELAY=1\n\
         socket = r:TCP_NODELAY=1\n\
         {section}\
         verifyChain = yes\n\
         CAfile = {}\n\
         cert = {}\n\
         key = {}\n\
         sslVersionMin = TLSv1.3\n\
         ciphersuites = {CIPHER_SUITE}\n",
        authority.display(),
        certificate.display(),
        key.display(),
    );
    let mut command = program::STUNNEL.command();
    command.arg(layout.write(&name, &text)?);
    let addr = if side == NEAR {
        layout.near
    } else {
        layout.between
    };
    Service::start(layout.host, &name, command, addr, layout.dir)
}
