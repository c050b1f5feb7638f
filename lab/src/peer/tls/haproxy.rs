//! Two HAProxy with TLS between them.

use super::CIPHER_SUITE;
use super::certificates::{Certificates, FAR, NEAR};
use crate::peer::haproxy::SESSIONS;
use crate::peer::two_relays::{Layout, TwoRelays};
use crate::peer::{PeerError, Service, program};

/// The size of HAProxy's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// 16 KiB, HAProxy's default.
    Default,
    /// 64 KiB, for bulk transfers. Every session needs two of them while it has data.
    Large,
}

/// Starts the pair.
///
/// Sessions of TLS are resumed, as they are by default. HAProxy keeps connections to servers ready
/// only in its HTTP mode (`http-reuse`, `pool-max-conn`).
///
/// # Errors
/// [`PeerError`].
pub fn pair(
    layout: &Layout<'_>,
    certificates: &Certificates,
    buffers: Buffers,
) -> Result<TwoRelays, PeerError> {
    let Layout {
        near, between, to, ..
    } = layout;
    let authority = certificates.authority();
    let authority = authority.display();
    let [near_key, far_key] = [NEAR, FAR].map(|name| certificates.both(name));
    let (near_key, far_key) = (near_key.display(), far_key.display());
    let far = format!(
        "listen far\n\
         \x20   bind {between} ssl crt {far_key} ca-file {authority} verify required\n\
         \x20   server upstream {to}\n"
    );
    let near = format!(
        "listen near\n\
         \x20   bind {near}\n\
         \x20   server far {between} ssl crt {near_key} ca-file {authority} verify required \
                verifyhost {FAR} sni str({FAR})\n"
    );
    Ok(TwoRelays {
        far: start(layout, "far", buffers, &far)?,
        near: start(layout, "near", buffers, &near)?,
    })
}

fn start(
    layout: &Layout<'_>,
    side: &str,
    buffers: Buffers,
    section: &str,
) -> Result<Service, PeerError> {
    let (name, size) = match buffers {
        Buffers::Default => (format!("haproxy-tls-{side}"), ""),
        Buffers::Large => (
            format!("haproxy-tls-large-{side}"),
            "    tune.bufsize 65536\n",
        ),
    };
    let cpus = layout.cpus;
    // The timeouts are longer than any measurement.
    let text = format!(
        "global\n\
         \x20   maxconn {SESSIONS}\n\
         \x20   nbthread {cpus}\n\
         {size}\
         \x20   ssl-default-bind-options ssl-min-ver TLSv1.3\n\
         \x20   ssl-default-server-options ssl-min-ver TLSv1.3\n\
         \x20   ssl-default-bind-ciphersuites {CIPHER_SUITE}\n\
         \x20   ssl-default-server-ciphersuites {CIPHER_SUITE}\n\
         defaults\n\
         \x20   mode tcp\n\
         \x20   maxconn {SESSIONS}\n\
         \x20   timeout connect 10s\n\
         \x20   timeout client 10m\n\
         \x20   timeout server 10m\n\
         {section}"
    );
    let mut command = program::HAPROXY.command();
    // -db keeps HAProxy in the foreground.
    command
        .arg("-db")
        .arg("-f")
        .arg(layout.write(&name, &text)?);
    let addr = if side == "near" {
        layout.near
    } else {
        layout.between
    };
    Service::start(layout.host, &name, command, addr, layout.dir)
}
