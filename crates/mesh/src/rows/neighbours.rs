//! Which relays a relay has a link with.

use std::cmp::Reverse;

use super::key::pair_hash;
use crate::members::{Member, Members};
use crate::name::MemberName;

/// The number of links that a relay makes.
pub const LINKS: usize = 8;

/// Returns the relays that `own` makes a link to, at most [`LINKS`] of those with an address that
/// are not `down`. The first is the next one in the order of names, so that all relays that work
/// are connected: each is linked to the next. The others differ from relay to relay, which keeps
/// the way between any two short.
pub fn neighbours(
    own: &MemberName,
    members: &Members,
    down: impl Fn(&MemberName) -> bool,
) -> Vec<MemberName> {
    let works = |member: &&Member| {
        member.name != *own && !member.addresses.is_empty() && !down(&member.name)
    };
    let all: Vec<&MemberName> = members
        .iter()
        .map(|member| &**member)
        .filter(works)
        .map(|member| &member.name)
        .collect();
    let Some(next) = all
        .iter()
        .min_by_key(|name| (**name < own, **name))
        .copied()
    else {
        return Vec::new();
    };
    let mut others: Vec<_> = all.into_iter().filter(|name| *name != next).collect();
    if others.len() >= LINKS {
        others.sort_by_cached_key(|name| Reverse(pair_hash(own, name)));
        others.truncate(LINKS - 1);
    }
    let chosen = std::iter::once(next).chain(others);
    chosen.cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::identity::PublicKey;

    fn members(n: usize) -> Members {
        let member = |i: usize| {
            let mut key = [1; 32];
            key[..8].copy_from_slice(&(i as u64).to_be_bytes());
            let key = PublicKey::new(key);
            format!(
                "[[member]]\nname = \"r{i:04}\"\nkeys = [\"{key}\"]\naddresses = [\"192.0.2.1:7440\"]\n"
            )
        };
        let list: Vec<_> = (0..n).map(member).collect();
        Members::parse(&list.concat()).unwrap()
    }

    /// Returns how many links the farthest relay is away from the first, and how many are connected
    /// to it.
    fn reach(members: &Members, down: &HashSet<MemberName>) -> (usize, usize) {
        let alive: Vec<_> = members
            .iter()
            .map(|m| &m.name)
            .filter(|n| !down.contains(*n))
            .collect();
        let links = |name: &MemberName| neighbours(name, members, |n| down.contains(n));
        let mut links: Vec<Vec<usize>> = alive
            .iter()
            .map(|name| {
                let place = |n: MemberName| alive.iter().position(|a| **a == n).unwrap();
                links(name).into_iter().map(place).collect()
            })
            .collect();
        for from in 0..links.len() {
            for to in links[from].clone() {
                links[to].push(from);
            }
        }
        let (mut seen, mut level, mut far) = (HashSet::from([0]), vec![0], 0);
        while !level.is_empty() {
            let next = level.iter().flat_map(|i: &usize| &links[*i]);
            level = next.copied().filter(|i| seen.insert(*i)).collect();
            far += usize::from(!level.is_empty());
        }
        (far, seen.len())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn relays_that_work_are_connected_whichever_others_do_not(
            n in 2_usize..120, dead in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        ) {
            let members = members(n);
            let names: Vec<_> = members.iter().map(|m| m.name.clone()).collect();
            let mut down: HashSet<_> = dead.iter().map(|i| i.get(&names).clone()).collect();
            down.remove(&names[0]);
            let (_, connected) = reach(&members, &down);
            prop_assert_eq!(connected, n - down.len());
        }
    }

    #[test]
    fn in_a_small_mesh_each_is_linked_to_all_and_in_a_large_one_all_are_near() {
        let small = members(LINKS + 1);
        let own = "r0003".parse().unwrap();
        assert_eq!(neighbours(&own, &small, |_| false).len(), LINKS);
        let (far, connected) = reach(&members(1000), &HashSet::new());
        assert_eq!(connected, 1000);
        assert!(far <= 5, "{far}");
    }
}
