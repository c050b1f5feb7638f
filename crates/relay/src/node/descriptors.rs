//! The number of file descriptors that a node needs, and of sessions that the limit allows.

use std::net::IpAddr;

use taut_exposition::CONNECTIONS;
use taut_mesh::name_cache::MAX_LOOK_UPS;
use taut_mesh::rows::MAX_LINKS;
use taut_sys::limits::raise_open_file_limit;

use super::error::StartError;
use super::look_ups::named_relays;
use crate::config::{Config, Control, Forward, MeshConfig};
use crate::control::ASKERS;
use crate::net::addr::Destination;
use crate::net::devices::devices_up;
use crate::rows::MAX_PROBES;
use crate::worker::{MAX_EXTRA, MAX_HELLOS, MAX_QUEUED, MAX_WAITING};

/// The maximum number of sessions of a node without `max_sessions`.
const DEFAULT_MAX_SESSIONS: u64 = 65_536;

/// The maximum number of look-ups at intervals at a time.
pub(crate) const LOOK_UPS: usize = 16;

/// The maximum number of health checks at a time.
pub(crate) const CHECKS: usize = 32;

/// Descriptors that every node has: standard streams (3), the session log, a file that is read again
/// (configuration, key, list of members, certificate), the runtime of the control thread with its
/// signals (6), reports of changed addresses and routes (2), the locks of the namespace (2), those of
/// threads that exchange rows or wait for etcd (4), and one for each of the sockets that a change of
/// routes or rules opens (2).
const OF_NODE: u64 = 3 + 1 + 1 + 6 + 2 + 2 + 4 + 2;

/// Descriptors of a look-up at a time: sockets for both families, and a file.
const OF_A_LOOK_UP: u64 = 3;

/// Maps, programs and links of a BPF program, without the links to devices.
const OF_A_PROGRAM: u64 = 32;

/// Devices that may be added while a program is attached to all of them.
const NEW_DEVICES: u64 = 32;

/// The numbers that the limit of open descriptors allows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ceilings {
    /// Sessions; `max_sessions` if it is set.
    pub(super) sessions: u32,
    /// Clients that wait for the place of a session.
    pub(super) queued: usize,
}

/// Returns how many sessions the node may have, and how many clients may wait for one.
pub(super) fn ceilings(config: &Config, workers: usize) -> Result<Ceilings, StartError> {
    let limit = raise_open_file_limit().unwrap_or(0);
    ceilings_of(config.max_sessions, fixed(config, workers), limit)
}

fn ceilings_of(asked: Option<u32>, fixed: u64, limit: u64) -> Result<Ceilings, StartError> {
    let left = limit.saturating_sub(fixed);
    let most = MAX_QUEUED as u64;
    let sessions = match asked {
        Some(asked) => u64::from(asked),
        // Where descriptors are few, a quarter of them is for clients that wait.
        None => ((left - most.min(left / 4)) / 2).clamp(1, DEFAULT_MAX_SESSIONS),
    };
    let needed = fixed + 2 * sessions;
    if needed > limit {
        return Err(StartError::TooFewDescriptors {
            sessions,
            needed,
            limit,
        });
    }
    let queued = most.min(limit - needed);
    Ok(Ceilings {
        sessions: u32::try_from(sessions).unwrap_or(u32::MAX),
        queued: usize::try_from(queued).unwrap_or(MAX_QUEUED),
    })
}

/// Returns the maximum number of descriptors that are open besides those of sessions.
fn fixed(config: &Config, workers: usize) -> u64 {
    let mesh_listeners = config.mesh.iter().flat_map(|m| &m.listen);
    let listeners: usize = config
        .forwards
        .iter()
        .flat_map(|f| &f.listen)
        .chain(mesh_listeners)
        .map(|l| l.addrs().len())
        .sum();
    // Each worker has a poller, a waker and listeners. Sockets offered to the next process are held
    // twice.
    let hands_over = config.handover_path().is_some();
    let copies = if hands_over { 2 } else { 1 };
    OF_NODE
        + serving(config)
        + look_ups(config)
        + programs(config)
        + workers as u64 * (2 + copies * listeners as u64)
        + 2 * u64::from(config.data.max_pipes)
        + config.mesh.as_ref().map_or(0, |mesh| {
            mesh_descriptors(mesh, named_relays(config).len() as u64)
        })
        + extra_dials(config)
        + introduced_descriptors(config)
        + early_legs(config)
}

/// Returns the maximum number of descriptors of what the node serves besides sessions: pages, commands,
/// the handover, and health checks.
fn serving(config: &Config) -> u64 {
    let pages = [config.metrics, config.admin].iter().flatten().count();
    // With the listener.
    let pages = pages as u64 * (1 + CONNECTIONS as u64);
    let commands = match config.control {
        Control::Off => 0,
        Control::Default | Control::At(_) => 1 + ASKERS as u64,
    };
    let handover = match config.handover_path() {
        None => 0,
        // With the lock of interception.
        Some(_) => 3,
    };
    let checks = match config.forwards.iter().any(|f| f.check.is_some()) {
        true => CHECKS as u64,
        false => 0,
    };
    pages + commands + handover + checks
}

/// Returns the maximum number of descriptors of look-ups.
fn look_ups(config: &Config) -> u64 {
    let is_name = |to: &Destination| to.host.parse::<IpAddr>().is_err();
    let mut destinations = config.forwards.iter().flat_map(Forward::destinations);
    match config.mesh.is_some() || destinations.any(is_name) {
        true => OF_A_LOOK_UP * MAX_LOOK_UPS as u64,
        false => 0,
    }
}

/// Returns the maximum number of descriptors of BPF programs.
fn programs(config: &Config) -> u64 {
    let turbo = config.mesh.as_ref().is_some_and(MeshConfig::wants_turbo);
    let early = config.forwards.iter().any(|f| f.early_syn);
    let intercept = config.forwards.iter().any(|f| f.transparent.is_some());
    let attached = u64::from(early) + u64::from(intercept);
    if attached == 0 && !turbo {
        return 0;
    }
    let devices = devices_up().map_or(0, |devices| devices.len() as u64);
    (u64::from(turbo) + attached) * OF_A_PROGRAM + attached * (devices + NEW_DEVICES)
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
    use crate::config::{Handover, HealthCheck};

    #[test]
    fn clients_that_wait_have_the_descriptors_that_sessions_leave() {
        let of = |asked, limit| {
            let ceilings = ceilings_of(asked, 100, limit).ok()?;
            Some((ceilings.sessions, ceilings.queued))
        };
        assert_eq!(of(None, 1 << 20), Some((65_536, MAX_QUEUED)));
        assert_eq!(of(None, 1100), Some((375, 250)));
        assert_eq!(of(Some(450), 1100), Some((450, 100)));
        assert_eq!(of(Some(500), 1100), Some((500, 0)));
        assert_eq!(of(Some(501), 1100), None);
        assert_eq!(of(None, 102), Some((1, 0)));
        assert_eq!(of(None, 101), None);
    }

    #[test]
    fn legs_of_early_syn_have_descriptors_of_their_own() {
        let listen = vec![":80".parse().expect("an address")];
        let forward = Forward::new(listen, "192.0.2.1:80".parse().expect("an address"));
        let mut config = Config::new(vec![forward]);
        let without = fixed(&config, 2);
        config.forwards[0].early_syn = true;
        let legs = config.early_syn.limits.pending as u64;
        assert_eq!(fixed(&config, 2), without + legs + programs(&config));
    }

    #[test]
    fn what_a_configuration_adds_has_descriptors_of_its_own() {
        let forward = |to: &str| {
            let listen = vec![":80".parse().expect("an address")];
            Forward::new(listen, to.parse().expect("a destination"))
        };
        let of = |adjust: &dyn Fn(&mut Config)| {
            let mut config = Config::new(vec![forward("192.0.2.1:80")]);
            config.handover = Handover::Off;
            adjust(&mut config);
            fixed(&config, 2)
        };
        let without = of(&|_| {});
        assert_eq!(of(&|c| c.control = Control::Off), without - 9);
        // Two workers listen on two addresses.
        let handover = Handover::At("/run/handover".into());
        assert_eq!(of(&|c| c.handover = handover.clone()), without + 3 + 4);
        let page = "127.0.0.1:1".parse().ok();
        assert_eq!(of(&|c| c.metrics = page), without + 17);
        let check = Some(HealthCheck::every(std::time::Duration::from_secs(1)));
        assert_eq!(of(&|c| c.forwards[0].check = check), without + 32);
        let named = of(&|c| c.forwards = vec![forward("origin.example:80")]);
        // Its addresses may be dialled at the same time, too.
        assert_eq!(named, without + 3 * 256 + u64::from(MAX_EXTRA));
    }
}
