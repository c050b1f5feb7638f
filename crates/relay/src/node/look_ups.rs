//! Looks up the names of destinations and of relays.

use std::sync::Arc;

use taut_mesh::members::{Member, MemberName};

use super::at_once::at_once;
use super::holdings::Holdings;
use crate::config::{Config, Forward};
use crate::net::addr::Destination;
use crate::net::backend::BackendTable;
use crate::net::names::{ResolveError, look_up};
use crate::net::targets::Targets;

/// Returns the relays that the configuration names: the first relay of every route, and the relays that
/// hellos may name.
pub(super) fn named_relays(config: &Config) -> Vec<MemberName> {
    let mut relays: Vec<MemberName> = Vec::new();
    let routes = config.forwards.iter().flat_map(|f| &f.via);
    let first = routes.filter_map(|route| route.first());
    let named = config.mesh.iter().flat_map(|mesh| &mesh.peers);
    for relay in first.chain(named) {
        if !relays.contains(relay) {
            relays.push(relay.clone());
        }
    }
    relays
}

/// Returns the relays that this node dials: those that the configuration names, and with automatic routes, or
/// if sessions of other relays may go anywhere, every other member that has an address.
pub(super) fn dialled_relays<'a>(
    config: &Config,
    members: impl Iterator<Item = &'a Arc<Member>>,
    own: Option<&MemberName>,
) -> Vec<MemberName> {
    let mut relays = named_relays(config);
    let all = config.mesh.as_ref().is_some_and(|mesh| mesh.pass_to_all)
        || config.forwards.iter().any(|forward| forward.auto);
    let others = members.filter(|m| all && Some(&m.name) != own && !m.addresses.is_empty());
    for member in others {
        if !relays.contains(&member.name) {
            relays.push(member.name.clone());
        }
    }
    relays
}

/// The largest number of names that are looked up at a time for a configuration.
const AT_ONCE: usize = 32;

/// The addresses of each forward's destinations that this node dials, and of each relay.
pub(super) struct Resolved {
    pub(super) forwards: Vec<Vec<Arc<Targets>>>,
    pub(super) relays: Vec<(Arc<Member>, Vec<Arc<Targets>>)>,
}

/// Returns the addresses of every destination and of every relay. Looks up the destinations and the relays in
/// `needed`, unless their addresses are known. The names of other relays are looked up later: a name that
/// does not resolve must not keep this relay from a start or from a list of members. A destination behind
/// other relays is looked up by the last of them.
///
/// Several look-ups run at a time, so that a resolver that does not answer costs its time-out only once for
/// up to [`AT_ONCE`] names.
pub(super) fn resolve_all(
    config: &Config,
    relays: Vec<Arc<Member>>,
    needed: &[MemberName],
    before: &Holdings,
) -> Result<Resolved, ResolveError> {
    let destinations = |f: &Forward| -> Vec<Destination> {
        match !f.uses_mesh() || f.direct {
            true => f.destinations().cloned().collect(),
            false => Vec::new(),
        }
    };
    let addresses = |relay: &Member| -> Vec<Destination> {
        let addresses = relay.addresses.iter();
        addresses.map(Destination::from).collect()
    };
    let is_needed = |relay: &Arc<Member>| needed.contains(&relay.name);
    let of_relays = relays.iter().filter(|relay| is_needed(relay));
    let wanted = config.forwards.iter().flat_map(destinations);
    let wanted = wanted.chain(of_relays.flat_map(|relay| addresses(relay)));
    let wanted = wanted.filter(|to| before.target(to).is_none_or(|known| !known.has_address()));
    let new = look_up_each(&wanted.collect::<Vec<_>>(), &before.backends)?;
    let targets = |to: Destination| {
        let new = new.iter().find(|new| *new.destination() == to).cloned();
        let known = new.or_else(|| before.target(&to));
        known.unwrap_or_else(|| Arc::new(Targets::without_look_up(to, &before.backends)))
    };
    let all = |to: Vec<Destination>| to.into_iter().map(targets).collect::<Vec<_>>();
    Ok(Resolved {
        forwards: config
            .forwards
            .iter()
            .map(|f| all(destinations(f)))
            .collect(),
        relays: relays
            .iter()
            .map(|relay| (relay.clone(), all(addresses(relay))))
            .collect(),
    })
}

/// Looks up the destinations of forwards, several at a time, so that [`resolve_all`] finds them known, or known
/// to fail, and waits for no server.
pub(super) fn look_up_ahead(config: &Config) {
    let dialled = config
        .forwards
        .iter()
        .filter(|f| !f.uses_mesh() || f.direct);
    let destinations: Vec<_> = dialled.flat_map(Forward::destinations).cloned().collect();
    for some in destinations.chunks(AT_ONCE) {
        at_once(some, |to| drop(look_up(to)));
    }
}

/// Looks up each destination, several at a time.
fn look_up_each(
    wanted: &[Destination],
    table: &BackendTable,
) -> Result<Vec<Arc<Targets>>, ResolveError> {
    let mut found = Vec::with_capacity(wanted.len());
    for some in wanted.chunks(AT_ONCE) {
        let look_up = |to: &Destination| Targets::resolve(to.clone(), table).map(Arc::new);
        let some: Result<Vec<_>, _> = at_once(some, look_up).into_iter().collect();
        found.extend(some?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use taut_mesh::identity::PrivateKey;
    use taut_mesh::members::Members;

    /// Two members: the address of one is a name that cannot be looked up.
    fn members() -> Members {
        let member = |name: &str, address: &str| {
            let key = PrivateKey::from_seed(&[u8::try_from(name.len()).unwrap(); 32]).public();
            format!(
                "[[member]]\nname = \"{name}\"\nkeys = [\"{key}\"]\naddresses = [\"{address}\"]\n"
            )
        };
        let list = member("good", "192.0.2.1:7") + &member("bad", "no-such-relay.invalid:7");
        Members::parse(&list).unwrap()
    }

    #[test]
    fn the_name_of_another_member_that_cannot_be_looked_up_stops_nothing() {
        let members: Vec<_> = members().iter().cloned().collect();
        let (config, before) = (Config::new(Vec::new()), Holdings::default());
        let good: MemberName = "good".parse().unwrap();
        let resolved = resolve_all(
            &config,
            members.clone(),
            std::slice::from_ref(&good),
            &before,
        );
        let relays = resolved.unwrap().relays;
        let has_address = |name: &str| {
            let (_, targets) = relays
                .iter()
                .find(|(m, _)| m.name.as_str() == name)
                .unwrap();
            targets.iter().map(|t| t.has_address()).collect::<Vec<_>>()
        };
        assert_eq!(has_address("good"), [true]);
        assert_eq!(has_address("bad"), [false], "it is looked up later");
        let bad: MemberName = "bad".parse().unwrap();
        assert!(resolve_all(&config, members, &[good, bad], &before).is_err());
    }
}
