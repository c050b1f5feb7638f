//! Looks up the names of destinations and of relays.

use std::sync::Arc;

use super::holdings::Holdings;
use crate::config::{Config, Forward};
use crate::net::addr::Destination;
use crate::net::targets::{ResolveError, Targets};

/// Returns the relays that this node dials: the first relay of every route, and the relays that
/// hellos may name.
pub(super) fn dialled_relays(config: &Config) -> Vec<Destination> {
    let mut relays: Vec<Destination> = Vec::new();
    let first = config.forwards.iter().filter_map(|f| f.via.first());
    let named = config.mesh.iter().flat_map(|mesh| &mesh.peers);
    for relay in first.chain(named) {
        if !relays.contains(relay) {
            relays.push(relay.clone());
        }
    }
    relays
}

/// The addresses of each forward's destinations that this node dials, and of each relay.
type Resolved = (Vec<Vec<Arc<Targets>>>, Vec<Arc<Targets>>);

/// A look-up in progress, or an earlier result.
enum LookUp<'s> {
    Known(Arc<Targets>),
    Started(std::thread::ScopedJoinHandle<'s, Result<Arc<Targets>, ResolveError>>),
}

/// Looks up every destination and relay that is not known yet. The look-ups run concurrently, so a
/// resolver that does not answer costs its time-out only once. A destination behind other relays is
/// looked up by the last of them.
pub(super) fn resolve_all(config: &Config, before: &Holdings) -> Result<Resolved, ResolveError> {
    let destinations = |f: &Forward| match f.via.is_empty() {
        true => f.to.clone(),
        false => Vec::new(),
    };
    let table = &*before.backends;
    let relays = dialled_relays(config);
    std::thread::scope(|scope| {
        let look_up = |to: Destination, known: Option<Arc<Targets>>| match known {
            Some(known) => LookUp::Known(known),
            None => LookUp::Started(scope.spawn(move || Targets::resolve(to, table).map(Arc::new))),
        };
        let direct = |to: Destination| {
            let known = before.target(&to);
            look_up(to, known)
        };
        let relay = |to: Destination| {
            let known = before.peer(&to).map(|peer| peer.targets.clone());
            look_up(to, known)
        };
        let forwards: Vec<_> = config
            .forwards
            .iter()
            .map(|f| destinations(f).into_iter().map(direct).collect::<Vec<_>>())
            .collect();
        let relays: Vec<_> = relays.into_iter().map(relay).collect();
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
        let relays = relays.into_iter().map(join).collect::<Result<_, _>>()?;
        Ok((forwards, relays))
    })
}
