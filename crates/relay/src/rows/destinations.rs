//! The destinations that this relay measures for others, and for itself.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use taut_mesh::hello::Target;
use taut_mesh::members::MemberName;
use taut_mesh::rows::Key;

use crate::access;

/// The number of destinations that are measured.
pub(crate) const MAX_DESTINATIONS: usize = 256;

/// The number of SYNs of a measurement, and the time between them (pied-piper 2.2).
const SYNS: u32 = 20;
const GAP: Duration = Duration::from_millis(100);

/// The time between two measurements of a destination.
const AGAIN: Duration = Duration::from_secs(300);

/// The time until the next measurement after one without an answer. It doubles with each further
/// one, up to [`AGAIN`]. So a destination that was down for seconds, such as one that starts at the
/// same time as the relay, is measured soon, and one that stays down costs few SYNs.
const AGAIN_AFTER_SILENCE: Duration = Duration::from_secs(10);

/// The number of destinations that are measured at the same time: at most twenty SYNs a second
/// leave this relay for all of them.
const AT_ONCE: usize = 2;

/// The destinations that are measured.
#[derive(Default)]
pub(super) struct MeasuredDestinations {
    all: HashMap<Key, MeasuredDestination>,
}

struct MeasuredDestination {
    addr: SocketAddr,
    /// The SYNs of the present measurement that are left.
    left: u32,
    next_at: Instant,
    /// The SYNs without an answer since the last answer.
    failures: u32,
}

/// Returns the destinations that this relay measures, and the number of those that it refuses to
/// measure for others.
///
/// `direct` are those that its own forwards may reach directly. Their keys are this relay's own, and
/// no other relay looks for them, because a forward does not permit sessions of others to go there.
/// `asked` are those that other members ask for. They are measured if the `access` of that member
/// permits. Members take turns, in the order of their names, so that a member with many does not
/// displace the others.
pub(super) fn to_measure<'a>(
    own: &MemberName,
    direct: Vec<Target>,
    mut asked: Vec<(MemberName, Target)>,
    by_member: bool,
    access: impl Fn(&MemberName) -> &'a access::Destinations,
    mut addrs_of: impl FnMut(&Target) -> Vec<SocketAddr>,
) -> (Vec<(Key, SocketAddr)>, u64) {
    let (mut wanted, mut refused) = (Vec::new(), 0);
    for target in direct {
        let addr = addrs_of(&target).first().copied();
        wanted.extend(addr.map(|addr| (Key::destination(&target, Some(own)), addr)));
    }
    asked.sort_by(|(a, _), (b, _)| a.cmp(b));
    let turns = asked.chunk_by(|(a, _), (b, _)| a == b);
    let turns = turns.flat_map(|of_one| of_one.iter().enumerate());
    let mut turns: Vec<_> = turns.collect();
    turns.sort_by_key(|(turn, _)| *turn);
    for (_, (of, target)) in turns {
        let access = access(of);
        let host = match target {
            Target::Addr(_) => None,
            Target::Name { host, port } if access.check_name(host, *port).is_allowed() => {
                Some(host.as_str())
            }
            Target::Name { .. } => {
                refused += 1;
                continue;
            }
        };
        let addrs = addrs_of(target);
        let allowed = |addr: &&SocketAddr| access.check_addr(**addr, host).is_allowed();
        match addrs.iter().find(allowed) {
            Some(addr) => {
                let key = Key::destination(target, by_member.then_some(of));
                wanted.push((key, *addr));
            }
            None => refused += u64::from(!addrs.is_empty()),
        }
    }
    (wanted, refused)
}

// === impl MeasuredDestinations ===

impl MeasuredDestinations {
    /// Replaces the destinations: keys and their addresses. Beyond [`MAX_DESTINATIONS`], the last
    /// ones are ignored. Returns the keys that are no longer measured.
    pub(super) fn adopt(&mut self, wanted: Vec<(Key, SocketAddr)>, now: Instant) -> Vec<Key> {
        let mut former = std::mem::take(&mut self.all);
        for (key, addr) in wanted {
            if self.all.len() >= MAX_DESTINATIONS {
                break;
            }
            let known = former.remove(&key).filter(|known| known.addr == addr);
            let fresh = MeasuredDestination {
                addr,
                left: SYNS,
                next_at: now,
                failures: 0,
            };
            self.all.entry(key).or_insert(known.unwrap_or(fresh));
        }
        former
            .into_keys()
            .filter(|key| !self.all.contains_key(key))
            .collect()
    }

    /// Returns the measurements that are due.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(Key, SocketAddr)> {
        let mut due = Vec::new();
        let mut running = self.all.values().filter(|d| d.left < SYNS).count();
        let mut all: Vec<_> = self.all.iter_mut().collect();
        // Those that have waited longest first.
        all.sort_unstable_by_key(|(key, destination)| (destination.next_at, **key));
        for (key, destination) in all {
            let begins = destination.left == SYNS;
            if now < destination.next_at || (begins && running >= AT_ONCE) {
                continue;
            }
            running += usize::from(begins);
            due.push((*key, destination.addr));
            destination.left -= 1;
            destination.next_at = now + GAP;
            if destination.left == 0 {
                destination.left = SYNS;
                destination.next_at = now + AGAIN;
            }
        }
        due
    }

    /// Records that a destination has answered. Returns whether it is still measured.
    pub(super) fn answered(&mut self, key: Key) -> bool {
        let Some(destination) = self.all.get_mut(&key) else {
            return false;
        };
        destination.failures = 0;
        true
    }

    /// Records that a destination has not answered a SYN. Returns whether it has answered none of as
    /// many SYNs as a measurement has. Then routes must not rely on an earlier measurement, and the
    /// destination is measured again soon.
    pub(super) fn failed(&mut self, key: Key, now: Instant) -> bool {
        let Some(destination) = self.all.get_mut(&key) else {
            return false;
        };
        destination.failures = destination.failures.saturating_add(1);
        let Some(further) = (destination.failures / SYNS).checked_sub(1) else {
            return false;
        };
        let wait = AGAIN_AFTER_SILENCE.saturating_mul(2u32.saturating_pow(further));
        destination.next_at = destination.next_at.min(now + wait.min(AGAIN));
        true
    }

    /// Returns when [`MeasuredDestinations::due`] has something to return.
    pub(super) fn next(&self) -> Option<Instant> {
        self.all
            .values()
            .map(|destination| destination.next_at)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_syns_are_a_tenth_of_a_second_apart_and_two_destinations_are_measured_at_a_time() {
        let start = Instant::now();
        let key = |n: u8| Key::prefix([192, 0, n, 1].into());
        let addr = |n: u8| SocketAddr::from(([192, 0, n, 1], 80));
        let mut all = MeasuredDestinations::default();
        let wanted = (0..5).map(|n| (key(n), addr(n))).collect();
        assert_eq!(all.adopt(wanted, start), []);
        let (mut now, mut sent) = (start, HashMap::<Key, Vec<Instant>>::new());
        while now < start + Duration::from_secs(20) {
            let due = all.due(now);
            assert!(due.len() <= AT_ONCE);
            for (key, _) in due {
                sent.entry(key).or_default().push(now);
            }
            now += Duration::from_millis(10);
        }
        assert_eq!(sent.len(), 5);
        for times in sent.values() {
            assert_eq!(times.len(), SYNS as usize);
            assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= GAP));
        }
        assert_eq!(all.adopt(vec![(key(1), addr(1))], now).len(), 4);
        assert!(all.next().unwrap() > start + AGAIN);
    }

    fn name(name: &str) -> MemberName {
        name.parse().unwrap()
    }

    fn addrs_of(target: &Target) -> Vec<SocketAddr> {
        match target {
            Target::Addr(addr) => vec![*addr],
            Target::Name { .. } => Vec::new(),
        }
    }

    fn target(n: usize) -> Target {
        format!("192.0.2.{n}:80").parse().unwrap()
    }

    #[test]
    fn a_destination_of_its_own_forwards_is_offered_to_no_other_relay() {
        let none = access::Destinations::default();
        for by_member in [false, true] {
            let asked = vec![(name("b"), target(1))];
            let direct = vec![target(1)];
            let (wanted, refused) =
                to_measure(&name("a"), direct, asked, by_member, |_| &none, addrs_of);
            let keys: Vec<_> = wanted.iter().map(|(key, _)| *key).collect();
            assert_eq!(keys, [Key::destination(&target(1), Some(&name("a")))]);
            assert_eq!(refused, 1);
        }
    }

    #[test]
    fn a_member_with_many_destinations_does_not_displace_those_of_another() {
        let all =
            access::Destinations::new(vec!["192.0.2.0/24:*".parse().unwrap()], Vec::new()).unwrap();
        let mut asked: Vec<_> = (1..100).map(|n| (name("b"), target(n))).collect();
        asked.push((name("c"), target(200)));
        let (wanted, _) = to_measure(&name("a"), vec![], asked, true, |_| &all, addrs_of);
        let second = Key::destination(&target(200), Some(&name("c")));
        assert_eq!(wanted[1].0, second);
        assert_eq!(wanted.len(), 100);
    }

    #[test]
    fn a_destination_without_an_answer_in_a_whole_measurement_is_forgotten() {
        let key = Key::prefix([192, 0, 2, 1].into());
        let addr = SocketAddr::from(([192, 0, 2, 1], 80));
        let mut all = MeasuredDestinations::default();
        let now = Instant::now();
        all.adopt(vec![(key, addr)], now);
        let failures = SYNS as usize - 1;
        assert!((0..failures).all(|_| !all.failed(key, now)));
        assert!(all.answered(key));
        assert!((0..failures).all(|_| !all.failed(key, now)));
        assert!(all.failed(key, now));
    }

    #[test]
    fn a_destination_that_was_down_is_measured_again_soon_and_more_seldom_while_it_stays_so() {
        let key = Key::prefix([192, 0, 2, 1].into());
        let addr = SocketAddr::from(([192, 0, 2, 1], 80));
        let (mut all, mut now) = (MeasuredDestinations::default(), Instant::now());
        all.adopt(vec![(key, addr)], now);
        let mut measure = |all: &mut MeasuredDestinations, answers: bool| {
            now = now.max(all.next().unwrap());
            for _ in 0..SYNS {
                assert_eq!(all.due(now), [(key, addr)]);
                match answers {
                    true => assert!(all.answered(key)),
                    false => _ = all.failed(key, now),
                }
                now += GAP;
            }
            (all.next().unwrap() + GAP - now).as_secs()
        };
        let waits: Vec<_> = (0..7).map(|_| measure(&mut all, false)).collect();
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(measure(&mut all, true), AGAIN.as_secs());
        assert_eq!(measure(&mut all, false), 10);
    }

    #[test]
    fn a_measurement_that_ends_after_its_permission_is_ignored() {
        let now = Instant::now();
        let key = Key::prefix([192, 0, 2, 1].into());
        let addr = SocketAddr::from(([192, 0, 2, 1], 80));
        let mut all = MeasuredDestinations::default();
        all.adopt(vec![(key, addr)], now);
        assert_eq!(all.adopt(Vec::new(), now), [key]);
        assert!(!all.answered(key));
        assert!(!all.failed(key, now));
    }
}
