//! Automatic routes: which relays the sessions to a destination pass, chosen from the rows of all relays.
//!
//! [`planned`](planned()) takes from the rows the part of the mesh from which routes are chosen, [`choose`] chooses with the
//! planner, and [`Replan`] says when to choose again.

mod planned;
mod replan;

use std::collections::HashSet;
use std::time::Duration;

use crate::hello::Target;
use crate::name::MemberName;
use crate::plan::{Candidate, Ends, Path, Planner};
use crate::rows::{Key, MemberId, Table};

use self::planned::path;
pub use self::planned::{MAX_PLANNED, Planned, planned};
pub use self::replan::Replan;

/// The number of routes of a destination that sessions try.
pub const MAX_WAYS: usize = 8;

/// A route with its predicted time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Predicted {
    /// The relays after this one; none for the direct path.
    pub relays: Vec<MemberName>,
    /// The time to the first byte.
    pub first_byte: Duration,
}

/// The relay and the destination between which routes are chosen.
#[derive(Clone, Copy, Debug)]
pub struct RouteQuery<'a> {
    /// The relay that chooses, at which the routes begin.
    pub own: &'a MemberName,
    /// The destination at which they end.
    pub destination: &'a Target,
    /// Whether the direct path is one of them.
    pub direct: bool,
    /// The routes of the last choice, the best first: the first stays unless another is clearly better.
    pub before: &'a [Predicted],
}

/// Returns the routes to a destination, the best first; each has another first relay, and `is_peer` tells whether
/// sessions may be sent to it. At most [`MAX_WAYS`] pass relays.
pub fn choose(
    query: RouteQuery<'_>,
    planner: &Planner<'_>,
    table: &Table,
    is_peer: impl Fn(&MemberName) -> bool,
) -> Vec<Predicted> {
    let network = planner.network();
    let Some(me) = network.find(query.own.as_str()) else {
        return Vec::new();
    };
    let to = network.ids().map(|id| {
        let row = table.row(MemberId::of(&network.relay(id).name));
        let figure = match id == me {
            // A forward may go where sessions of other relays may not, so its entry has a key of its own.
            true if query.direct => {
                let key = Key::destination(query.destination, Some(query.own));
                row.and_then(|row| row.outside(key))
            }
            true => None,
            false => row.and_then(|row| row.destination(query.destination, query.own)),
        };
        figure.map_or(Path::UNKNOWN, path)
    });
    let ends = Ends::at_relay(network, me, to.collect());
    let current = query.before.first().and_then(|first| {
        let relays = first.relays.iter();
        let relays = relays.map(|relay| network.find(relay.as_str()));
        std::iter::once(Some(me))
            .chain(relays)
            .collect::<Option<Vec<_>>>()
    });
    let ranking = planner.choose(&ends, current.as_deref());
    let routes = ranking.routes.iter();
    let routes = routes.filter(|route| route.relays.first() == Some(&me));
    let after = |route: &Candidate| -> Vec<MemberName> {
        let relays = route.relays[1..].iter();
        relays.map(|id| network.relay(*id).name.clone()).collect()
    };
    let (mut predicted, mut first) = (Vec::new(), HashSet::new());
    for route in routes {
        let relays = after(route);
        if let Some(next) = relays.first() {
            // A relay that an operator has drained is not a peer.
            let is_usable = first.len() < MAX_WAYS && is_peer(next);
            if !is_usable || !first.insert(next.clone()) {
                continue;
            }
        }
        predicted.push(Predicted {
            relays,
            first_byte: route.first_byte,
        });
    }
    predicted
}

/// Says which route is the choice, and by how much.
pub fn why(predicted: &[Predicted]) -> String {
    let name = |route: &Predicted| match &route.relays[..] {
        [] => "the direct path".to_owned(),
        relays => {
            let names: Vec<_> = relays.iter().map(MemberName::as_str).collect();
            format!("through {}", names.join(" > "))
        }
    };
    let [first, others @ ..] = predicted else {
        return "no route: no relay has measured the path to the destination yet, or `allow` refuses it on every relay"
            .to_owned();
    };
    let time = |route: &Predicted| format!("{:.1} ms", route.first_byte.as_secs_f64() * 1e3);
    match others.first() {
        None => format!(
            "{}: first byte after {}; no other route is known",
            name(first),
            time(first)
        ),
        Some(second) => format!(
            "{}: first byte after {}; {}: after {}",
            name(first),
            time(first),
            name(second),
            time(second)
        ),
    }
}
