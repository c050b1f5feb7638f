//! Checks a configuration without starting a node.

use std::sync::Arc;

use nix::net::if_::if_nametoindex;
use taut_mesh::members::{Member, Members};
use taut_sys::Errno;
use taut_sys::plural::counted;
use taut_sys::socket::{Listener, is_local};

use super::at_once::at_once;
use super::bind::listen_problem;
use super::descriptors::ceilings;
use super::error::StartError;
use super::kernel_tls::TlsPlace;
use super::legs::{check_mesh_legs, legs_of};
use super::look_ups::{dialled_by, is_required, named_relays};
use super::mesh::{Identity, MeshError};
use super::start::{available_cpus, doubts};
use crate::access::Destinations;
use crate::config::{Config, Forward, MeshConfig};
use crate::early_syn::{Devices, EarlySynError};
use crate::etcd;
use crate::intercept::InterceptError;
use crate::net::addr::{Destination, Listen, ListenAddr};
use crate::net::forward_loops::{self, Edge};
use crate::net::names::{Addrs, look_up};
use crate::session_log;

/// The number of names that are looked up at a time.
const LOOK_UPS: usize = 16;

/// What a check of a configuration found. Each entry is one sentence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Reasons why the node would not start.
    pub errors: Vec<String>,
    /// What the node would start with, but what is probably not wanted.
    pub warnings: Vec<String>,
    /// What the node would do here and not everywhere.
    pub notes: Vec<String>,
}

/// Checks what a start of `config` needs: names, keys, lists, congestion controls, addresses and
/// descriptors. Unlike a start, it goes on after an error, and it does not mind that a port is in
/// use, because the relay may be running. Blocks for as long as the resolver takes.
pub fn check(config: &Config) -> Findings {
    let mut errors = Vec::new();
    let mut note = |error: StartError| errors.push(error.to_string());
    let workers = config.workers.map_or_else(available_cpus, usize::from);
    ceilings(config, workers)
        .map(drop)
        .unwrap_or_else(&mut note);
    legs_of(config, true).map(drop).unwrap_or_else(&mut note);
    check_mesh_legs(config).unwrap_or_else(&mut note);
    let of_mesh = config.mesh.iter().map(|mesh| (&mesh.allow, &mesh.deny));
    let transparent = config
        .forwards
        .iter()
        .filter_map(|f| f.transparent.as_ref());
    let of_forwards = transparent.map(|t| (&t.allow, &t.deny));
    for (allow, deny) in of_mesh.chain(of_forwards) {
        if let Err(error) = Destinations::new(allow.clone(), deny.clone()) {
            note(error.into());
        }
    }
    let place = TlsPlace::of(config);
    let mut of_list = ListFindings::default();
    let relays = match &config.mesh {
        Some(mesh) => {
            of_list = check_list(mesh);
            of_list
                .identity(mesh, &place)
                .and_then(|identity| identity.dialled(config))
        }
        None => Ok(Vec::new()),
    };
    let relays = relays.unwrap_or_else(|error| {
        note(error.into());
        Vec::new()
    });
    let of_mesh = config.mesh.iter().flat_map(|mesh| &mesh.listen);
    let listens = config
        .forwards
        .iter()
        .flat_map(|f| &f.listen)
        .chain(of_mesh);
    for listen in listens {
        for addr in listen.addrs_here() {
            match Listener::probe(addr) {
                Ok(()) | Err(Errno::ADDRINUSE) => {}
                Err(error) => note(StartError::Listen {
                    addr,
                    reason: listen_problem(addr, error),
                }),
            }
        }
    }
    if let Some(session_log::Target::File(path)) = &config.session_log {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        if folder.is_some_and(|folder| !folder.is_dir()) {
            errors.push(format!(
                "relay.session_log: the directory of {} does not exist; create it",
                path.display()
            ));
        }
    }
    let LookUps {
        found,
        failed,
        failed_of_others,
    } = look_ups(config, &relays);
    let mut without_address = Vec::new();
    if is_required(config, !found.is_empty()) {
        errors.extend(failed);
    } else {
        let reset = |error| format!("{error}; until it has an address, its sessions are reset");
        without_address.extend(failed.into_iter().map(reset));
    }
    errors.extend(looped(config, &found));
    errors.extend(missing_devices(config));
    let place = config.mesh.iter().map(|_| place.to_string());
    Findings {
        errors,
        warnings: doubts(config)
            .into_iter()
            .chain(of_list.warning)
            .chain(without_address)
            .chain(failed_of_others)
            .collect(),
        notes: place.chain(of_list.note).collect(),
    }
}

/// The result of a check of the list of members in etcd.
#[derive(Default)]
pub(super) struct ListFindings {
    /// The list, if a start would use it because the file does not exist.
    first: Option<Arc<Members>>,
    warning: Option<String>,
    note: Option<String>,
}

impl ListFindings {
    /// Returns the identity that a start would have.
    pub(super) fn identity(
        &self,
        mesh: &MeshConfig,
        place: &TlsPlace,
    ) -> Result<Identity, MeshError> {
        match &self.first {
            Some(members) => Identity::with_members(mesh, place, members.clone()),
            None => Identity::load(mesh, place),
        }
    }
}

/// Reads the list of members in etcd, if the configuration names servers of it. A start needs it only without
/// a file.
pub(super) fn check_list(mesh: &MeshConfig) -> ListFindings {
    let Some(etcd) = &mesh.etcd else {
        return ListFindings::default();
    };
    match etcd::check(mesh, etcd) {
        Ok(members) => {
            let serial = members.statement().map_or(0, |s| s.serial);
            let count = counted(members.iter().len(), "member");
            ListFindings {
                note: Some(format!(
                    "the list of members in etcd has {count}, serial {serial}"
                )),
                first: Some(members).filter(|_| !mesh.members_file.exists()),
                warning: None,
            }
        }
        Err(problem) => ListFindings {
            warning: Some(problem),
            ..ListFindings::default()
        },
    }
}

/// The names that a node dials.
struct LookUps {
    found: Vec<(Destination, Addrs)>,
    /// Errors that would stop a start if it required all addresses.
    failed: Vec<String>,
    /// Errors that would not: of relays that the configuration does not name.
    failed_of_others: Vec<String>,
}

/// Looks up every name that the node dials.
fn look_ups(config: &Config, relays: &[Arc<Member>]) -> LookUps {
    let to = config.forwards.iter().flat_map(dialled_by);
    let named = named_relays(config);
    let (needed, others): (Vec<_>, Vec<_>) =
        relays.iter().partition(|relay| named.contains(&relay.name));
    let addresses = |relays: Vec<&Arc<Member>>| -> Vec<Destination> {
        let all = relays.into_iter().flat_map(|relay| &relay.addresses);
        all.map(Destination::from).collect()
    };
    let (found, failed) = look_up_all(to.chain(addresses(needed)).collect());
    let (_, failed_of_others) = look_up_all(addresses(others));
    LookUps {
        found,
        failed,
        failed_of_others,
    }
}

/// Returns the forwards whose sessions may go to the destination without another relay.
fn direct(config: &Config) -> impl Iterator<Item = &Forward> {
    config
        .forwards
        .iter()
        .filter(|f| !f.uses_mesh() || f.direct)
}

fn look_up_all(mut names: Vec<Destination>) -> (Vec<(Destination, Addrs)>, Vec<String>) {
    names.sort_by_key(ToString::to_string);
    names.dedup();
    let (mut addresses, mut errors) = (Vec::new(), Vec::new());
    for names in names.chunks(LOOK_UPS) {
        for (name, found) in names.iter().zip(at_once(names, look_up)) {
            match found {
                Ok(found) => addresses.push((name.clone(), found)),
                Err(error) => errors.push(StartError::from(error).to_string()),
            }
        }
    }
    (addresses, errors)
}

/// Returns the error of a forward that leads back to this relay.
fn looped(config: &Config, found: &[(Destination, Addrs)]) -> Option<String> {
    let forwards: Vec<_> = direct(config).collect();
    let ends: Vec<(Vec<_>, Vec<_>)> = forwards
        .iter()
        .map(|forward| {
            let listen = forward
                .listen
                .iter()
                .flat_map(Listen::addrs)
                .map(ListenAddr);
            let is_its = |name| forward.destinations().any(|to| to == name);
            let to = found.iter().filter(|(name, _)| is_its(name));
            let to = to.flat_map(|(_, addrs)| addrs.iter());
            (listen.collect(), to.copied().collect())
        })
        .collect();
    let edges = ends
        .iter()
        .map(|(listen, upstream)| Edge { listen, upstream });
    let edges: Vec<_> = edges.collect();
    let first = forward_loops::find(&edges, is_local)?;
    let returns = |to: &&Destination| {
        let addrs = { found.iter() }.filter(|(name, _)| name == *to);
        let addrs: Vec<_> = addrs.flat_map(|(_, addrs)| addrs.to_vec()).collect();
        forward_loops::returns(&edges, first, &addrs, is_local)
    };
    let to = forwards[first].destinations().filter(returns).cloned();
    Some(StartError::looped(&to.collect::<Vec<_>>()).to_string())
}

/// Returns an error for each network device that the configuration names and that does not exist.
fn missing_devices(config: &Config) -> Vec<String> {
    let missing = |name: &&String| if_nametoindex(name.as_str()).is_err();
    let transparent = config
        .forwards
        .iter()
        .filter_map(|f| f.transparent.as_ref());
    let of_transparent = transparent.flat_map(|transparent| &transparent.devices);
    let of_early_syn = match &config.early_syn.devices {
        Devices::Named(names) if config.forwards.iter().any(|f| f.early_syn) => names.as_slice(),
        _ => &[],
    };
    let intercept = of_transparent
        .filter(missing)
        .map(|name| InterceptError::NoSuchDevice(name.clone()).to_string());
    let early_syn = of_early_syn
        .iter()
        .filter(missing)
        .map(|name| EarlySynError::NoSuchDevice(name.clone()).to_string());
    intercept.chain(early_syn).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(listen: &str, to: &str) -> Config {
        Config::new(vec![Forward::new(
            vec![listen.parse().unwrap()],
            to.parse().unwrap(),
        )])
    }

    #[test]
    fn a_port_in_use_is_no_error_and_every_other_error_is_found() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = taken.local_addr().unwrap().to_string();
        assert_eq!(check(&config(&taken, "127.0.0.1:9")), Findings::default());
        let mut bad = config("192.0.2.1:80", "nowhere.invalid:80");
        bad.forwards[0].upstream_congestion = Some("no-such".into());
        bad.session_log = Some(session_log::Target::File("/no/such/dir/log".into()));
        let errors = check(&bad).errors;
        for part in [
            "not an address of this machine",
            "cannot look up `nowhere.invalid:80`",
            "congestion control `no-such`",
            "the directory of /no/such/dir/log",
        ] {
            assert_eq!(
                errors.iter().filter(|e| e.contains(part)).count(),
                1,
                "{part}: {errors:?}"
            );
        }
        assert_eq!(errors.len(), 4, "{errors:?}");
    }

    #[test]
    fn a_forward_to_itself_and_a_device_that_is_missing_are_errors() {
        let mut bad = config("127.0.0.1:8", "127.0.0.1:8");
        bad.forwards[0].early_syn = true;
        bad.early_syn.devices = Devices::Named(vec!["lo".into(), "no-such0".into()]);
        let errors = check(&bad).errors;
        assert!(
            errors[0].contains("forwarding to 127.0.0.1:8 leads back to this relay"),
            "{errors:?}"
        );
        assert!(
            errors[1].contains("no network device `no-such0`"),
            "{errors:?}"
        );
        assert_eq!(errors.len(), 2, "{errors:?}");
    }
}
