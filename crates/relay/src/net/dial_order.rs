//! The order in which a session tries the addresses of its destinations: destinations with the
//! fewest sessions first, address families in turn (RFC 8305 section 4), dead addresses last.

use crate::net::failures::Health;

/// An address that a session may try.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// The destination that it belongs to, as an index into the forward's list.
    pub(crate) destination: usize,
    pub(crate) is_ipv6: bool,
    /// Open sessions of the whole node at this address.
    pub(crate) sessions: u32,
    pub(crate) health: Health,
}

/// Returns the indices of `candidates` in the order in which a session tries them. Candidates of
/// a destination must be in the order of the resolver (RFC 6724), whose first live address selects
/// the family to begin with.
///
/// - One address whose next try is due comes first: the session pays at most the attempt delay for
///   it.
/// - Among the addresses of a family, the one with the fewest sessions comes first; so does the
///   destination whose first address has the fewest. `turn` differs from session to session and
///   decides between equals.
/// - Dead addresses come last. They are tried, because all addresses may be dead.
pub(crate) fn order(candidates: &[Candidate], turn: usize) -> Vec<usize> {
    let at = |health| (0..candidates.len()).filter(move |&i| candidates[i].health == health);
    let mut order = Vec::with_capacity(candidates.len());
    let mut due = at(Health::Due);
    order.extend(due.next());
    order.extend(in_turn(
        candidates,
        by_load(candidates, at(Health::Alive).collect(), turn),
    ));
    order.extend(in_turn(candidates, due.chain(at(Health::Dead)).collect()));
    order
}

/// Sorts live candidates by their sessions, destination by destination.
fn by_load(candidates: &[Candidate], mut live: Vec<usize>, turn: usize) -> Vec<usize> {
    let n = candidates.len();
    let last = candidates.iter().map(|c| c.destination).max().unwrap_or(0);
    // The family to begin with, and the fewest sessions of an address of it.
    let mut firsts: Vec<Option<(bool, u32)>> = vec![None; last + 1];
    for &i in &live {
        let c = candidates[i];
        let (family, least) = firsts[c.destination].get_or_insert((c.is_ipv6, c.sessions));
        if *family == c.is_ipv6 {
            *least = c.sessions.min(*least);
        }
    }
    live.sort_by_key(|&i| {
        let c = candidates[i];
        let (family, least) = firsts[c.destination].unwrap_or_default();
        let rotated = |i: usize, n: usize| (i + n - turn % n) % n;
        (
            least,
            rotated(c.destination, last + 1),
            c.is_ipv6 != family,
            c.sessions,
            rotated(i, n),
        )
    });
    live
}

/// Puts the families in turn, beginning with the family of the first, and keeps the order within
/// each family.
fn in_turn(candidates: &[Candidate], sorted: Vec<usize>) -> impl Iterator<Item = usize> {
    let first = sorted.first().is_some_and(|&i| candidates[i].is_ipv6);
    let (one, other): (Vec<_>, Vec<_>) = sorted
        .into_iter()
        .partition(|&i| candidates[i].is_ipv6 == first);
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    std::iter::from_fn(move || {
        let next = one.next().or_else(|| other.next());
        std::mem::swap(&mut one, &mut other);
        next
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn live(destination: usize, is_ipv6: bool, sessions: u32) -> Candidate {
        Candidate {
            destination,
            is_ipv6,
            sessions,
            health: Health::Alive,
        }
    }

    fn with(health: Health, candidate: Candidate) -> Candidate {
        Candidate {
            health,
            ..candidate
        }
    }

    #[test]
    fn families_of_a_name_are_tried_in_turn_beginning_with_the_resolvers_first() {
        let candidates = [
            live(0, true, 0),
            live(0, true, 0),
            live(0, false, 0),
            live(0, false, 0),
        ];
        assert_eq!(order(&candidates, 0), [0, 2, 1, 3]);
        // More sessions at IPv6 do not change the family to begin with.
        let busy = candidates.map(|c| live(0, c.is_ipv6, 9 * u32::from(c.is_ipv6)));
        assert_eq!(order(&busy, 0), [0, 2, 1, 3]);
    }

    #[test]
    fn the_destination_with_the_fewest_sessions_comes_first_and_equals_take_turns() {
        let candidates = [live(0, false, 3), live(1, false, 1), live(2, true, 2)];
        assert_eq!(order(&candidates, 0), [1, 2, 0]);
        let equal = [live(0, false, 1), live(1, false, 1), live(2, false, 1)];
        let first = |turn| order(&equal, turn)[0];
        assert_eq!([first(0), first(1), first(2), first(3)], [0, 1, 2, 0]);
        // Several addresses of one name share its sessions too.
        let name = [live(0, false, 2), live(0, false, 1)];
        assert_eq!(order(&name, 0), [1, 0]);
    }

    #[test]
    fn dead_addresses_come_last_and_one_that_is_due_comes_first() {
        let candidates = [
            with(Health::Dead, live(0, false, 0)),
            live(1, false, 7),
            with(Health::Due, live(2, false, 0)),
            with(Health::Due, live(3, false, 0)),
        ];
        assert_eq!(order(&candidates, 0), [2, 1, 3, 0]);
        assert_eq!(order(&candidates[..1], 0), [0]);
    }

    fn any_candidate() -> impl Strategy<Value = Candidate> {
        let health = prop_oneof![Just(Health::Alive), Just(Health::Due), Just(Health::Dead)];
        (0..5_usize, any::<bool>(), 0..4_u32, health).prop_map(
            |(destination, is_ipv6, sessions, health)| Candidate {
                destination,
                is_ipv6,
                sessions,
                health,
            },
        )
    }

    proptest! {
        #[test]
        fn every_candidate_comes_once_and_the_dead_after_the_living(
            candidates in prop::collection::vec(any_candidate(), 0..20),
            turn: usize,
        ) {
            let order = order(&candidates, turn);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..candidates.len()).collect::<Vec<_>>());
            let health: Vec<_> = order.iter().map(|&i| candidates[i].health).collect();
            let any_due = health.contains(&Health::Due);
            prop_assert_eq!(health.first() == Some(&Health::Due), any_due);
            let rest = &health[usize::from(any_due)..];
            let living = rest.iter().take_while(|h| **h == Health::Alive).count();
            prop_assert!(!rest[living..].contains(&Health::Alive));
        }

        #[test]
        fn families_alternate_while_both_have_addresses(
            candidates in prop::collection::vec(any_candidate(), 0..20),
            turn: usize,
        ) {
            let living: Vec<_> = candidates.into_iter().map(|c| with(Health::Alive, c)).collect();
            let families: Vec<_> = order(&living, turn).iter().map(|&i| living[i].is_ipv6).collect();
            for (i, pair) in families.windows(2).enumerate() {
                let left = families[i + 1..].iter().collect::<std::collections::HashSet<_>>();
                prop_assert!(pair[0] != pair[1] || left.len() == 1, "{:?}", families);
            }
        }

        #[test]
        fn no_live_address_of_the_first_ones_family_and_destination_has_fewer_sessions(
            candidates in prop::collection::vec(any_candidate(), 1..20),
            turn: usize,
        ) {
            let living: Vec<_> = candidates.into_iter().map(|c| with(Health::Alive, c)).collect();
            let first = living[order(&living, turn)[0]];
            let same = |c: &&Candidate| c.destination == first.destination && c.is_ipv6 == first.is_ipv6;
            prop_assert!(living.iter().filter(same).all(|c| c.sessions >= first.sessions));
        }
    }
}
