//! The number of file descriptors that a node needs, and of sessions that the limit allows.

use std::net::IpAddr;

use taut_mesh::rows::MAX_LINKS;
use taut_sys::limits::raise_open_file_limit;

use super::StartError;
use super::look_ups::named_relays;
use crate::config::{Config, Forward, MeshConfig};
use crate::net::addr::Destination;
use crate::rows::MAX_PROBES;
use crate::worker::{MAX_EXTRA, MAX_HELLOS, MAX_WAITING};

/// The maximum number of sessions of a node without `max_sessions`.
const DEFAULT_MAX_SESSIONS: u64 = 65_536;

/// Descriptors besides those of sessions, pipes and listeners: standard streams, log, resolver,
/// metrics and a reserve.
const OTHER_DESCRIPTORS: u64 = 64;

/// Returns the number of sessions that the limit of open descriptors allows, or `max_sessions` if
/// it is set.
pub(super) fn session_ceiling(config: &Config, workers: usize) -> Result<u32, StartError> {
    let limit = raise_open_file_limit().unwrap_or(0);
    let fixed = fixed(config, workers);
    let sessions = match config.max_sessions {
        Some(asked) => u64::from(asked),
        None => (limit.saturating_sub(fixed) / 2).clamp(1, DEFAULT_MAX_SESSIONS),
    };
    let needed = fixed + 2 * sessions;
    if needed > limit {
        return Err(StartError::TooFewDescriptors {
            sessions,
            needed,
            limit,
        });
    }
    Ok(u32::try_from(sessions).unwrap_or(u32::MAX))
}

/// Returns the maximum number of descriptors that are open besides those of sessions.
fn fixed(config: &Config, workers: usize) -> u64 {
    let mesh_listeners = config.mesh.iter().flat_map(|m| &m.listen);
    let listeners: usize = config
        .forwards
        .iter()
        .flat_map(|f| &f.listen)
        .chain(mesh_listeners)
        .map(|l| l.addrs.len())
        .sum();
    // Each worker has a poller, a waker and listeners. Sockets offered to the next process are held
    // twice.
    let copies = if config.handover.is_some() { 2 } else { 1 };
    OTHER_DESCRIPTORS
        + workers as u64 * (2 + copies * listeners as u64)
        + 2 * u64::from(config.data.max_pipes)
        + config.mesh.as_ref().map_or(0, |mesh| {
            mesh_descriptors(mesh, named_relays(config).len() as u64)
        })
        + extra_dials(config)
        + introduced_descriptors(config)
        + early_legs(config)
}

/// Returns the maximum number of descriptors of mesh connections without a session.
fn mesh_descriptors(mesh: &MeshConfig, relays: u64) -> u64 {
    let inbound = match mesh.listen.is_empty() {
        true => 0,
        false => u64::from(mesh.inbound.max_unproven) + u64::from(mesh.inbound.max_ready),
    };
    // Row links, and measurements of paths.
    let rows = match mesh.measure {
        true => (MAX_LINKS + MAX_PROBES) as u64,
        false => 0,
    };
    inbound + rows + relays * u64::from(mesh.pool.max)
}

/// Returns the maximum number of descriptors of connection attempts besides the sessions' own.
fn extra_dials(config: &Config) -> u64 {
    let is_one = |to: &[Destination]| match to {
        [] => true,
        [to] => to.host.parse::<IpAddr>().is_ok(),
        _ => false,
    };
    let lists = config.forwards.iter().flat_map(|f| {
        let named = f.sni.iter().map(|(_, to)| to);
        std::iter::once(&f.to).chain(named)
    });
    let mut lists = lists.map(Vec::as_slice);
    let takes_names = config.mesh.as_ref().is_some_and(|m| !m.listen.is_empty());
    match takes_names || !lists.all(is_one) {
        true => u64::from(MAX_EXTRA),
        false => 0,
    }
}

/// Returns the maximum number of descriptors of connections without a complete PROXY protocol
/// header or TLS ClientHello.
fn introduced_descriptors(config: &Config) -> u64 {
    let introduced = |f: &Forward| f.identity.accept_proxy.is_some();
    let headers = match config.forwards.iter().any(introduced) {
        true => u64::from(MAX_WAITING),
        false => 0,
    };
    let hellos = match config.forwards.iter().any(|f| !f.sni.is_empty()) {
        true => u64::from(MAX_HELLOS),
        false => 0,
    };
    headers + hellos
}

/// Returns the maximum number of descriptors of upstream legs whose client's handshake is under way.
fn early_legs(config: &Config) -> u64 {
    match config.forwards.iter().any(|f| f.early_syn) {
        true => config.early_syn.limits.pending as u64,
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legs_of_early_syn_have_descriptors_of_their_own() {
        let listen = vec![":80".parse().expect("an address")];
        let forward = Forward::new(listen, "192.0.2.1:80".parse().expect("an address"));
        let mut config = Config::new(vec![forward]);
        let without = fixed(&config, 2);
        config.forwards[0].early_syn = true;
        let legs = config.early_syn.limits.pending as u64;
        assert_eq!(fixed(&config, 2), without + legs);
    }
}
