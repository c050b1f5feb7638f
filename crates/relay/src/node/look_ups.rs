//! Looks up the names of destinations and of relays.

use std::sync::Arc;

use taut_mesh::members::{Member, MemberName};

use super::holdings::Holdings;
use crate::config::{Config, Forward};
use crate::net::addr::Destination;
use crate::net::targets::{ResolveError, Targets};

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

/// The addresses of each forward's destinations that this node dials, and of each relay.
pub(super) struct Resolved {
    pub(super) forwards: Vec<Vec<Arc<Targets>>>,
    pub(super) relays: Vec<(Arc<Member>, Vec<Arc<Targets>>)>,
}

/// A look-up in progress, or an earlier result.
enum LookUp<'s> {
    Known(Arc<Targets>),
    Started(std::thread::ScopedJoinHandle<'s, Result<Arc<Targets>, ResolveError>>),
}

/// Looks up every destination and relay that is not known yet. The look-ups run concurrently, so a
/// resolver that does not answer costs its time-out only once. A destination behind other relays is
/// looked up by the last of them.
pub(super) fn resolve_all(
    config: &Config,
    relays: Vec<Arc<Member>>,
    before: &Holdings,
) -> Result<Resolved, ResolveError> {
    let destinations = |f: &Forward| match !f.uses_mesh() || f.direct {
        true => f.destinations().cloned().collect(),
        false => Vec::new(),
    };
    let table = &*before.backends;
    std::thread::scope(|scope| {
        let look_up = |to: Destination| match before.target(&to) {
            Some(known) => LookUp::Known(known),
            None => LookUp::Started(scope.spawn(move || Targets::resolve(to, table).map(Arc::new))),
        };
        let forwards: Vec<_> = config
            .forwards
            .iter()
            .map(|f| destinations(f).into_iter().map(look_up).collect::<Vec<_>>())
            .collect();
        let relays: Vec<_> = relays
            .into_iter()
            .map(|relay| {
                let addresses = relay.addresses.iter();
                let addresses: Vec<_> = addresses.map(|a| look_up(a.into())).collect();
                (relay, addresses)
            })
            .collect();
        let join = |one: LookUp<'_>| match one {
            LookUp::Known(targets) => Ok(targets),
            LookUp::Started(thread) => thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        };
        let forwards = forwards
            .into_iter()
            .map(|f| f.into_iter().map(join).collect());
        let forwards = forwards.collect::<Result<_, _>>()?;
        let relays = relays.into_iter().map(|(relay, addresses)| {
            let targets = addresses.into_iter().map(join).collect::<Result<_, _>>()?;
            Ok((relay, targets))
        });
        let relays = relays.collect::<Result<_, _>>()?;
        Ok(Resolved { forwards, relays })
    })
}
