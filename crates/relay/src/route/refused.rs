//! Routes that have lately refused the sessions of a client's network. Pure.
//!
//! A relay may permit another to speak for some clients only (`clients` of `[[relay.mesh.peer]]`).
//! Rows do not tell for which: a refusal shows only as a reset before the first byte of an answer.
//! New sessions of that client's network then try the other routes first.
//!
//! A destination that resets its connections looks the same, and a client can provoke that. So a
//! route is avoided only after two refusals, at least [`APART`] from each other, and only if it has
//! answered no session of the network in between. A single client cannot divert a network whose
//! other sessions the route answers.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use taut_mesh::auto::MAX_WAYS;
use taut_mesh::members::MemberName;
use taut_mesh::rows::Key;

/// The number of networks that are remembered for a destination, each with [`MAX_WAYS`] routes.
/// Further ones are not.
pub(crate) const MAX_NETWORKS: usize = 1024;

/// How long a refusal is remembered, and a route avoided.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);

/// The shortest time between two refusals that count as two.
const APART: Duration = Duration::from_millis(500);

/// The shortest interval between two removals of expired refusals.
const FORGET_EVERY: Duration = Duration::from_secs(1);

/// The refusals of the routes to one destination.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// By the client's network (IPv4 /24, IPv6 /48).
    networks: HashMap<Key, Vec<Refused>>,
    /// When the last refusal expires.
    until: Option<Instant>,
    forget_at: Option<Instant>,
}

/// A route that has refused a session.
#[derive(Debug)]
struct Refused {
    relays: Vec<MemberName>,
    first: Instant,
    until: Instant,
    is_avoided: bool,
}

// === impl Refusals ===

impl Refusals {
    /// Records that a session of `client` was reset on the route through these relays before the
    /// first byte of an answer. Returns `false` if there is no room to remember it.
    pub(crate) fn add(&mut self, client: IpAddr, relays: Vec<MemberName>, now: Instant) -> bool {
        self.forget_old(now);
        let (key, until) = (Key::prefix(client), now + REMEMBERED_FOR);
        if self.networks.len() >= MAX_NETWORKS && !self.networks.contains_key(&key) {
            return false;
        }
        let routes = self.networks.entry(key).or_default();
        routes.retain(|refused| now < refused.until);
        if let Some(refused) = routes.iter_mut().find(|refused| refused.relays == relays) {
            if now >= refused.first + APART {
                refused.is_avoided = true;
                refused.until = until;
            }
        } else if routes.len() < MAX_WAYS {
            routes.push(Refused {
                relays,
                first: now,
                until,
                is_avoided: false,
            });
        } else {
            return false;
        }
        self.until = Some(until);
        true
    }

    /// Records that a session of `client` has had an answer on this route, so that earlier resets
    /// were not the route's refusals.
    pub(crate) fn answered(&mut self, client: IpAddr, relays: &[MemberName]) {
        let key = Key::prefix(client);
        if let Some(routes) = self.networks.get_mut(&key) {
            routes.retain(|refused| refused.relays != relays);
            if routes.is_empty() {
                self.networks.remove(&key);
            }
        }
    }

    /// Returns whether a route has refused sessions of the client's network.
    pub(crate) fn has(&self, client: IpAddr) -> bool {
        self.networks.contains_key(&Key::prefix(client))
    }

    /// Returns whether sessions of `client` try this route after others.
    pub(crate) fn avoids(&self, client: IpAddr, relays: &[MemberName], now: Instant) -> bool {
        let routes = self.networks.get(&Key::prefix(client));
        routes
            .into_iter()
            .flatten()
            .any(|refused| refused.is_avoided && now < refused.until && refused.relays == relays)
    }

    /// Returns whether all refusals have expired.
    pub(crate) fn have_expired(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// Removes expired refusals.
    fn forget_old(&mut self, now: Instant) {
        if self.forget_at.is_some_and(|at| now < at) {
            return;
        }
        self.forget_at = Some(now + FORGET_EVERY);
        self.networks.retain(|_, routes| {
            routes.retain(|refused| now < refused.until);
            !routes.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relays(names: &[&str]) -> Vec<MemberName> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    /// Has this route refuse the client at `now` and before.
    fn refuse(refusals: &mut Refusals, client: [u8; 4], names: &[&str], now: Instant) {
        for at in [now.checked_sub(APART).unwrap(), now] {
            assert!(refusals.add(client.into(), relays(names), at));
        }
    }

    #[test]
    fn a_route_is_avoided_by_the_refused_network_alone_and_for_a_minute() {
        let (now, mut refusals) = (Instant::now(), Refusals::default());
        let (refused, neighbour, other) = ([192, 0, 2, 1], [192, 0, 2, 9], [198, 51, 100, 1]);
        refuse(&mut refusals, refused, &["mid", "far"], now);
        let avoids = |client: [u8; 4], names: &[&str], now| {
            refusals.avoids(client.into(), &relays(names), now)
        };
        assert!(avoids(refused, &["mid", "far"], now));
        assert!(avoids(neighbour, &["mid", "far"], now));
        assert!(!avoids(other, &["mid", "far"], now));
        assert!(!avoids(refused, &["mid"], now));
        let later = now + REMEMBERED_FOR;
        assert!(!avoids(refused, &["mid", "far"], later));
        assert!(!refusals.have_expired(now) && refusals.have_expired(later));
    }

    #[test]
    fn a_client_that_provokes_resets_does_not_divert_a_network_whose_other_sessions_are_answered() {
        let (mut now, mut refusals) = (Instant::now(), Refusals::default());
        let (client, neighbour) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 9]));
        let mid = relays(&["mid"]);
        for _ in 0..100 {
            // However many at a time.
            for _ in 0..10 {
                assert!(refusals.add(client, mid.clone(), now));
                assert!(!refusals.avoids(neighbour, &mid, now));
            }
            assert!(refusals.has(neighbour));
            refusals.answered(neighbour, &mid);
            assert!(!refusals.has(neighbour));
            now += APART;
        }
    }

    #[test]
    fn an_answer_on_one_route_says_nothing_of_another() {
        let (now, mut refusals) = (Instant::now(), Refusals::default());
        let client = [192, 0, 2, 1];
        refuse(&mut refusals, client, &["mid"], now);
        refusals.answered(client.into(), &relays(&["far"]));
        assert!(refusals.avoids(client.into(), &relays(&["mid"]), now));
    }

    #[test]
    fn the_number_of_refusals_is_bounded_and_those_without_room_are_told() {
        let (now, mut refusals) = (Instant::now(), Refusals::default());
        let client = |n: usize| IpAddr::from(u32::to_be_bytes(u32::try_from(n << 8).unwrap()));
        for n in 0..2 * MAX_NETWORKS {
            let is_kept = refusals.add(client(n), relays(&["mid"]), now);
            assert_eq!(is_kept, n < MAX_NETWORKS);
        }
        for n in 1..2 * MAX_WAYS {
            let is_kept = refusals.add(client(0), relays(&[&format!("r{n}")]), now);
            assert_eq!(is_kept, n < MAX_WAYS);
        }
        let later = now + REMEMBERED_FOR;
        assert!(refusals.add(client(MAX_NETWORKS), relays(&["mid"]), later));
        assert_eq!(refusals.networks.len(), 1);
    }
}
