//! Checks a configuration without starting a node.

use std::sync::Arc;

use taut_mesh::members::{Member, Members};
use taut_sys::Errno;
use taut_sys::socket::Listener;

use super::StartError;
use super::assemble::{check_mesh_legs, legs_of};
use super::bind::listen_problem;
use super::descriptors::session_ceiling;
use super::kernel_tls::TlsPlace;
use super::look_ups::named_relays;
use super::mesh::Identity;
use super::start::{available_cpus, doubts};
use crate::access::Destinations;
use crate::config::{Config, MeshConfig};
use crate::etcd;
use crate::net::addr::Destination;
use crate::net::targets::look_up;
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
    session_ceiling(config, workers)
        .map(drop)
        .unwrap_or_else(&mut note);
    legs_of(config).map(drop).unwrap_or_else(&mut note);
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
            let identity = match &of_list.first {
                Some(members) => Identity::with_members(mesh, &place, members.clone()),
                None => Identity::load(mesh, &place),
            };
            identity.and_then(|identity| identity.dialled(config))
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
        for addr in listen.addrs.iter().map(|addr| addr.0) {
            match Listener::probe(addr) {
                Ok(()) | Err(Errno::ADDRINUSE) => {}
                Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if listen.any && addr.is_ipv6() => {}
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
    let (failed, of_others) = failed_look_ups(config, &relays);
    errors.extend(failed);
    let place = config.mesh.iter().map(|_| place.to_string());
    Findings {
        errors,
        warnings: doubts(config)
            .into_iter()
            .chain(of_list.warning)
            .chain(of_others)
            .collect(),
        notes: place.chain(of_list.note).collect(),
    }
}

/// The result of a check of the list of members in etcd.
#[derive(Default)]
struct ListFindings {
    /// The list, if a start would use it because the file does not exist.
    first: Option<Arc<Members>>,
    warning: Option<String>,
    note: Option<String>,
}

/// Reads the list of members in etcd, if the configuration names servers of it. A start needs it only without
/// a file.
fn check_list(mesh: &MeshConfig) -> ListFindings {
    let Some(etcd) = &mesh.etcd else {
        return ListFindings::default();
    };
    match etcd::check(mesh, etcd) {
        Ok(members) => {
            let serial = members.statement().map_or(0, |s| s.serial);
            let count = members.iter().len();
            ListFindings {
                note: Some(format!(
                    "the list of members in etcd has {count} members, serial {serial}"
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

/// Looks up every name that the node dials. Returns the errors that would stop a start, and those that would
/// not: of relays that the configuration does not name.
fn failed_look_ups(config: &Config, relays: &[Arc<Member>]) -> (Vec<String>, Vec<String>) {
    let direct = config.forwards.iter();
    let direct = direct.filter(|f| !f.uses_mesh() || f.direct);
    let to = direct.flat_map(|f| f.to.iter().cloned());
    let named = named_relays(config);
    let (needed, others): (Vec<_>, Vec<_>) =
        relays.iter().partition(|relay| named.contains(&relay.name));
    let addresses = |relays: Vec<&Arc<Member>>| -> Vec<Destination> {
        let all = relays.into_iter().flat_map(|relay| &relay.addresses);
        all.map(Destination::from).collect()
    };
    let needed = to.chain(addresses(needed)).collect();
    (failed(needed), failed(addresses(others)))
}

fn failed(mut names: Vec<Destination>) -> Vec<String> {
    names.sort_by_key(ToString::to_string);
    names.dedup();
    let mut errors = Vec::new();
    for names in names.chunks(LOOK_UPS) {
        std::thread::scope(|scope| {
            let started = names.iter().map(|name| scope.spawn(|| look_up(name)));
            for look_up in started.collect::<Vec<_>>() {
                let found = look_up
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                if let Err(error) = found {
                    errors.push(StartError::from(error).to_string());
                }
            }
        });
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Forward;

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
}
