//! Looks up the names of destinations and of relays.

use std::net::IpAddr;
use std::sync::Arc;

use taut_mesh::members::{Member, MemberName, Members};

use super::at_once::at_once;
use super::holdings::Holdings;
use crate::config::{Config, Forward, ResolveRequired};
use crate::net::addr::Destination;
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
/// `needed`, unless their addresses are known. The names of other relays are looked up later. A destination
/// behind other relays is looked up by the last of them.
///
/// Several look-ups run at a time, so that a resolver that does not answer costs its time-out only once for
/// up to [`AT_ONCE`] names. Once none of so many has an address, the others are left to the look-ups in the
/// background, unless the configuration requires more addresses than were found.
///
/// With `is_new`, the configuration is one that the node has not had yet. Otherwise names that have no address
/// are left to the next look-up in the background.
///
/// # Errors
/// The first look-up that failed, if a new configuration requires more addresses than were found.
pub(super) fn resolve_all(
    config: &Config,
    relays: Vec<Arc<Member>>,
    needed: &[MemberName],
    is_new: bool,
    before: &Holdings,
) -> Result<Resolved, ResolveError> {
    let is_needed = |relay: &Arc<Member>| needed.contains(&relay.name);
    let of_relays = relays.iter().filter(|relay| is_needed(relay));
    let wanted = config.forwards.iter().flat_map(dialled_by);
    let wanted = wanted.chain(of_relays.flat_map(|relay| addresses_of(relay)));
    let is_sought = |to: &Destination| {
        let known = before.target(to);
        known.is_none_or(|known| is_new && !known.has_address())
    };
    let (sought, known): (Vec<_>, Vec<_>) = wanted.partition(is_sought);
    let sought = addresses_first(sought);
    let look_up = |to: &Destination| Targets::resolve(to.clone(), &before.backends).map(Arc::new);
    let is_required = |has_address| is_new && is_required(config, !known.is_empty() || has_address);
    let found = look_up_each(&sought, look_up, is_required);
    let has_address = found.iter().any(Result::is_ok);
    let targets = |to: Destination| {
        let known = before.target(&to);
        known.unwrap_or_else(|| Arc::new(Targets::without_look_up(to, &before.backends)))
    };
    let mut new = Vec::with_capacity(sought.len());
    let mut found = found.into_iter();
    for to in sought {
        new.push(match found.next() {
            None => targets(to),
            Some(Ok(found)) => found,
            Some(Err(error)) if is_required(has_address) => return Err(error),
            Some(Err(error)) => {
                tracing::debug!(%error, "starting without its address");
                let targets = targets(to);
                targets.look_up_failed();
                targets
            }
        });
    }
    let targets = |to: Destination| {
        let new = new.iter().find(|new| *new.destination() == to).cloned();
        new.unwrap_or_else(|| targets(to))
    };
    let all = |to: Vec<Destination>| to.into_iter().map(targets).collect::<Vec<_>>();
    Ok(Resolved {
        forwards: config.forwards.iter().map(|f| all(dialled_by(f))).collect(),
        relays: relays
            .iter()
            .map(|relay| (relay.clone(), all(addresses_of(relay))))
            .collect(),
    })
}

/// Returns the destinations of a forward that this node dials itself.
pub(super) fn dialled_by(forward: &Forward) -> Vec<Destination> {
    match !forward.uses_mesh() || forward.direct {
        true => forward.destinations().cloned().collect(),
        false => Vec::new(),
    }
}

/// Returns whether a look-up that failed keeps the node from a new configuration. `has_address`: another one has
/// succeeded.
pub(super) fn is_required(config: &Config, has_address: bool) -> bool {
    let listens_to_mesh = || config.mesh.iter().any(|mesh| !mesh.listen.is_empty());
    let intercepts = || config.forwards.iter().any(|f| f.transparent.is_some());
    match config.resolve_required {
        ResolveRequired::Any => !has_address && !listens_to_mesh() && !intercepts(),
        ResolveRequired::All => true,
        ResolveRequired::None => false,
    }
}

/// Looks up the destinations of forwards and the relays that the configuration names, several at a time, so that
/// [`resolve_all`] finds them known, or known to fail, and waits for no server.
pub(super) fn look_up_ahead(config: &Config, members: Option<&Members>) {
    let is_required = |has_address| is_required(config, has_address);
    look_up_each(&sought_ahead(config, members), look_up, is_required);
}

/// Returns the destinations and the addresses of relays that [`look_up_ahead`] looks up.
fn sought_ahead(config: &Config, members: Option<&Members>) -> Vec<Destination> {
    let named = named_relays(config);
    let relays = named
        .iter()
        .filter_map(|name| members?.by_name(name.as_str()));
    let relays = relays.flat_map(|relay| addresses_of(relay));
    let destinations = config.forwards.iter().flat_map(dialled_by);
    addresses_first(destinations.chain(relays).collect())
}

/// Returns the addresses of a relay in the list of members.
fn addresses_of(relay: &Member) -> Vec<Destination> {
    relay.addresses.iter().map(Destination::from).collect()
}

/// Puts what needs no look-up first, so that it is known soon whether the configuration has an address.
fn addresses_first(mut wanted: Vec<Destination>) -> Vec<Destination> {
    wanted.sort_by_key(|to| to.host.parse::<IpAddr>().is_err());
    wanted
}

/// Looks up each destination, several at a time. After as many of which none has an address, it leaves the others
/// out, unless more are required, given whether there is an address so far.
fn look_up_each<T: Send>(
    wanted: &[Destination],
    look_up: impl Fn(&Destination) -> Result<T, ResolveError> + Sync,
    is_required: impl Fn(bool) -> bool,
) -> Vec<Result<T, ResolveError>> {
    let mut found = Vec::with_capacity(wanted.len());
    for some in wanted.chunks(AT_ONCE) {
        found.extend(at_once(some, &look_up));
        let has_address = |found: &[Result<_, _>]| found.iter().any(Result::is_ok);
        let is_answered = has_address(&found[found.len() - some.len()..]);
        if !is_answered && !is_required(has_address(&found)) {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use taut_mesh::identity::PrivateKey;

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

    fn has_address(resolved: &Resolved, name: &str) -> Vec<bool> {
        let mut relays = resolved.relays.iter();
        let (_, targets) = relays.find(|(m, _)| m.name.as_str() == name).unwrap();
        targets.iter().map(|t| t.has_address()).collect()
    }

    #[test]
    fn the_names_of_destinations_and_of_relays_are_looked_up_ahead() {
        let forward = |to: &str| Forward::new(vec![":1".parse().unwrap()], to.parse().unwrap());
        let mut config = Config::new(vec![forward("web.invalid:80"), forward("192.0.2.2:80")]);
        config.forwards[0].via = vec![vec!["bad".parse().unwrap()]];
        config.forwards[0].direct = true;
        let sought = |members| {
            let all = sought_ahead(&config, members).into_iter();
            all.map(|to| to.to_string()).collect::<Vec<_>>()
        };
        let of_forwards = ["192.0.2.2:80", "web.invalid:80"];
        assert_eq!(sought(None), of_forwards);
        let relay = ["no-such-relay.invalid:7"];
        assert_eq!(
            sought(Some(&members())),
            [&of_forwards[..], &relay].concat()
        );
    }

    #[test]
    fn the_name_of_another_member_that_cannot_be_looked_up_stops_nothing() {
        let members: Vec<_> = members().iter().cloned().collect();
        let (mut config, before) = (Config::new(Vec::new()), Holdings::default());
        let [good, bad] = ["good", "bad"].map(|name| name.parse::<MemberName>().unwrap());
        config.resolve_required = ResolveRequired::All;
        let needed = std::slice::from_ref(&good);
        let resolved = resolve_all(&config, members.clone(), needed, true, &before).unwrap();
        assert_eq!(has_address(&resolved, "good"), [true]);
        assert_eq!(
            has_address(&resolved, "bad"),
            [false],
            "it is looked up later"
        );
        let both = [good, bad];
        assert!(resolve_all(&config, members.clone(), &both, true, &before).is_err());
        // A list of members is adopted as it is: a relay that was removed must lose its sessions.
        assert!(resolve_all(&config, members, &both, false, &before).is_ok());
    }

    #[test]
    fn a_resolver_that_does_not_answer_is_waited_for_once_unless_its_answers_are_required() {
        let wanted: Vec<Destination> = (0..AT_ONCE * 3)
            .map(|i| format!("host{i}.example:80").parse().unwrap())
            .chain(["192.0.2.1:80".parse().unwrap()])
            .collect();
        let ask = |to: &Destination| match to.host.parse::<IpAddr>() {
            Ok(_) => Ok(()),
            Err(_) => Err(ResolveError::Nothing(to.clone())),
        };
        let wanted = addresses_first(wanted);
        assert_eq!(wanted[0].host, "192.0.2.1");
        let any = |has_address: bool| !has_address;
        // The first ones have an address among them.
        assert_eq!(look_up_each(&wanted, ask, any).len(), AT_ONCE * 2);
        assert_eq!(look_up_each(&wanted, ask, |_| true).len(), wanted.len());
        let names = &wanted[1..];
        assert_eq!(look_up_each(names, ask, |_| false).len(), AT_ONCE);
        assert_eq!(look_up_each(names, ask, any).len(), names.len());
    }

    #[test]
    fn a_destination_without_an_address_keeps_the_others_from_nothing() {
        let forward = |to: &str| {
            let listen = "127.0.0.1:0".parse().unwrap();
            Forward::new(vec![listen], to.parse().unwrap())
        };
        let resolve = |to: &[&str], required| {
            let mut config = Config::new(to.iter().copied().map(forward).collect());
            config.resolve_required = required;
            let resolved = resolve_all(&config, Vec::new(), &[], true, &Holdings::default());
            resolved.map(|resolved| {
                let all = resolved.forwards.into_iter().flatten();
                all.map(|targets| targets.has_address()).collect::<Vec<_>>()
            })
        };
        let (good, bad) = ("192.0.2.1:80", "no-such-name.invalid:80");
        let (any, all, none) = (
            ResolveRequired::Any,
            ResolveRequired::All,
            ResolveRequired::None,
        );
        assert_eq!(resolve(&[bad, good], any).unwrap(), [false, true]);
        assert!(resolve(&[bad, good], all).is_err());
        // With nothing to serve, the service manager tries again, and in a handover the former process goes on.
        assert!(resolve(&[bad], any).is_err());
        assert_eq!(resolve(&[bad], none).unwrap(), [false]);
    }
}
