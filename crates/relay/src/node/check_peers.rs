//! Dials the relays of a configuration without starting a node.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use taut_mesh::dialler::{Dialler, Rejection};
use taut_mesh::members::Member;
use taut_mesh::tls::DialTls;

use super::at_once::at_once;
use super::check::check_list;
use super::kernel_tls::TlsPlace;
use super::mesh::Identity;
use crate::config::{Config, MeshConfig};
use crate::net::addr::Destination;
use crate::net::names::look_up;

/// The number of addresses that are dialled at a time.
const DIALS: usize = 16;

/// The least time for which a relay may refuse this one's key after the handshake. It does so a round trip
/// later.
const VERDICT: Duration = Duration::from_millis(200);

/// The number of bytes that are read at once.
const READ: usize = 16 << 10;

/// What a dial of one relay has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCheck {
    /// The relay's name.
    pub name: String,
    /// The address that was dialled, or the one in the list of members if it could not be looked up.
    pub address: String,
    /// The time to the end of the handshake, or what is wrong: the end of a sentence that begins with the
    /// name and address.
    pub outcome: Result<Duration, String>,
}

/// Dials each address of every relay that a node with `config` would dial, and waits until the relay has
/// accepted this one's key. No session is begun. Blocks for as long as the resolver and the relays take.
/// Returns nothing without a mesh, or if [`check`](super::check()) finds an error in its files.
pub fn check_peers(config: &Config) -> Vec<PeerCheck> {
    let Some(mesh) = &config.mesh else {
        return Vec::new();
    };
    let Ok(identity) = check_list(mesh).identity(mesh, &TlsPlace::of(config)) else {
        return Vec::new();
    };
    let relays = identity.dialled(config).unwrap_or_default();
    let mut checks = Vec::new();
    let mut dials = Vec::new();
    for relay in &relays {
        for address in &relay.addresses {
            let destination = Destination::from(address);
            match look_up(&destination) {
                Ok(found) => dials.extend(found.iter().map(|addr| (relay.clone(), addr.0))),
                Err(error) => checks.push(PeerCheck {
                    name: relay.name.to_string(),
                    address: destination.to_string(),
                    outcome: Err(format!("cannot be looked up: {error}")),
                }),
            }
        }
    }
    let patience = config.timeouts.connect;
    for dials in dials.chunks(DIALS) {
        checks.extend(at_once(dials, |(relay, addr)| PeerCheck {
            name: relay.name.to_string(),
            address: addr.to_string(),
            outcome: dial(relay, *addr, &identity, mesh, patience),
        }));
    }
    checks
}

/// Returns the time to the end of the handshake with a relay that accepts this one.
fn dial(
    relay: &Arc<Member>,
    addr: SocketAddr,
    identity: &Identity,
    mesh: &MeshConfig,
    patience: Duration,
) -> Result<Duration, String> {
    let begun = Instant::now();
    let late = || format!("does not answer within {} s", patience.as_secs_f64());
    let said = |error: io::Error| match error.kind() {
        ErrorKind::ConnectionRefused => {
            "refuses connections: no relay listens there, or a firewall rejects them".to_owned()
        }
        ErrorKind::TimedOut | ErrorKind::WouldBlock => late(),
        ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe => {
            "closes the connection: it may be full, or its `from` may not have this relay's address"
                .to_owned()
        }
        _ => format!("cannot be reached: {error}"),
    };
    let rejected = |rejection: Rejection| format!("cannot be used: {rejection}");
    let mut stream = TcpStream::connect_timeout(&addr, patience).map_err(said)?;
    let ip = addr.ip().to_canonical();
    if mesh.trusted_networks.iter().any(|net| net.contains(&ip)) {
        return Ok(begun.elapsed());
    }
    let tls = DialTls::new(&identity.key, &relay.keys);
    let mut out = Vec::new();
    let mut dialler = Dialler::new(&tls, begun, patience, &mut out).map_err(rejected)?;
    let mut plain = Vec::new();
    while !dialler.is_ready() {
        stream.write_all(&out).map_err(said)?;
        let left = patience.saturating_sub(begun.elapsed());
        let mut records = dialler.partial().to_vec();
        if read_on(&mut stream, left, &mut records).map_err(said)? == 0 {
            return Err(said(ErrorKind::UnexpectedEof.into()));
        }
        plain.resize(records.len().max(plain.len()), 0);
        out.clear();
        let outcome = dialler.receive(&mut records, &mut plain, Instant::now(), &mut out);
        outcome.map_err(rejected)?;
    }
    stream.write_all(&out).map_err(said)?;
    let took = begun.elapsed();
    let mut ready = dialler.ready().ok_or_else(late)?;
    let until = Instant::now() + took.max(VERDICT);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut records = ready.partial().to_vec();
        match read_on(&mut stream, left, &mut records) {
            Ok(0) => return Err(said(ErrorKind::UnexpectedEof.into())),
            Ok(_) => {
                plain.resize(records.len().max(plain.len()), 0);
                ready.receive(&mut records, &mut plain).map_err(rejected)?;
            }
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
                return Ok(took);
            }
            Err(error) => return Err(said(error)),
        }
    }
}

/// Appends what arrives within `patience` to `bytes`. Returns its length, 0 at the end of the stream.
fn read_on(stream: &mut TcpStream, patience: Duration, bytes: &mut Vec<u8>) -> io::Result<usize> {
    if patience.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(patience))?;
    let held = bytes.len();
    bytes.resize(held + READ, 0);
    let read = stream.read(&mut bytes[held..]);
    bytes.truncate(held + *read.as_ref().unwrap_or(&0));
    read
}
