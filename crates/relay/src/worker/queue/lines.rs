//! Waiting clients in round-robin order: forwards take turns, and within a forward its *parties*,
//! so a long queue of one delays the others by only one turn in each round.
//!
//! A party is an IPv4 address, with one client per turn, or an IPv6 /48, with [`SITE`] clients per
//! turn: a site can use any number of its /64 networks.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::access::source::{SITE, Source};

/// The waiting clients of a node. `T` is a client.
#[derive(Debug)]
pub(super) struct Lines<T> {
    /// The forward whose turn it is comes first.
    lines: VecDeque<Line<T>>,
    len: usize,
}

/// The waiting clients of one forward.
#[derive(Debug)]
struct Line<T> {
    forward: usize,
    /// The forward's `max_sessions`.
    limit: Option<u32>,
    /// The party whose turn it is comes first.
    parties: VecDeque<Party<T>>,
    len: usize,
}

#[derive(Debug)]
struct Party<T> {
    party: Source,
    /// The number of clients it may still start in this turn.
    turn: u32,
    clients: VecDeque<Waiting<T>>,
}

#[derive(Debug)]
pub(super) struct Waiting<T> {
    pub(super) source: Source,
    pub(super) until: Instant,
    pub(super) client: T,
}

/// A client that found no room.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoRoom<T> {
    /// It is the client to be added.
    New(T),
    /// It was already in the queue.
    Displaced(T),
}

/// The capacity of the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) all: usize,
    /// The number of forwards that share `all`.
    pub(super) forwards: usize,
}

// === impl Lines ===

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self {
            lines: VecDeque::new(),
            len: 0,
        }
    }
}

impl<T> Lines<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a client. If the queue is full, returns the client that must go: the new one, or the
    /// newest of its forward's largest party.
    pub(super) fn push(
        &mut self,
        forward: usize,
        limit: Option<u32>,
        new: Waiting<T>,
        room: Room,
    ) -> Option<NoRoom<T>> {
        let known = self.lines.iter().position(|line| line.forward == forward);
        let of_forward = known.map_or(0, |index| self.lines[index].len);
        let mut displaced = None;
        if self.len >= room.all || of_forward >= room.of_a_forward() {
            let Some(line) = known.map(|index| &mut self.lines[index]) else {
                return Some(NoRoom::New(new.client));
            };
            let Some(client) = line.displace(party_of(new.source)) else {
                return Some(NoRoom::New(new.client));
            };
            displaced = Some(NoRoom::Displaced(client));
            self.len -= 1;
        }
        let index = known.unwrap_or_else(|| {
            self.lines.push_back(Line {
                forward,
                limit,
                parties: VecDeque::new(),
                len: 0,
            });
            self.lines.len() - 1
        });
        self.lines[index].limit = limit;
        self.lines[index].push(new);
        self.len += 1;
        displaced
    }

    /// Removes and returns the next client whose forward is below its `max_sessions`, with the
    /// place from `place`. Removes nothing if `place` returns `None`.
    pub(super) fn next<P>(
        &mut self,
        sessions: impl Fn(&T) -> u64,
        place: impl FnOnce() -> Option<P>,
    ) -> Option<(T, P)> {
        let index = self
            .lines
            .iter()
            .position(|line| line.has_room(&sessions))?;
        let place = place()?;
        let mut line = self.lines.remove(index)?;
        let next = line.next();
        self.len -= usize::from(next.is_some());
        if line.len > 0 {
            self.lines.push_back(line);
        }
        Some((next?, place))
    }

    /// Returns whether a new client of `forward` must queue: a client of the same forward waits, or
    /// one of any forward below its `max_sessions`.
    pub(super) fn is_before(&self, forward: usize, sessions: impl Fn(&T) -> u64) -> bool {
        let mut lines = self.lines.iter();
        lines.any(|line| line.forward == forward || line.has_room(&sessions))
    }

    /// Returns the source of the client that [`Lines::next`] would try.
    pub(super) fn next_source(&self, sessions: impl Fn(&T) -> u64) -> Option<Source> {
        let line = self.lines.iter().find(|line| line.has_room(&sessions))?;
        Some(line.parties.front()?.clients.front()?.source)
    }

    /// Skips the next party: moves it behind the other parties of its forward, and its forward
    /// behind the others.
    pub(super) fn pass(&mut self, sessions: impl Fn(&T) -> u64) {
        let line = self.lines.iter().position(|line| line.has_room(&sessions));
        let Some(mut line) = line.and_then(|index| self.lines.remove(index)) else {
            return;
        };
        if let Some(mut party) = line.parties.pop_front() {
            party.turn = turn_of(party.party);
            line.parties.push_back(party);
        }
        self.lines.push_back(line);
    }

    /// Returns the number of parties.
    pub(super) fn parties(&self) -> usize {
        self.lines.iter().map(|line| line.parties.len()).sum()
    }

    /// Removes and returns the clients that have disconnected, and those whose wait has expired.
    pub(super) fn take_late(
        &mut self,
        now: Instant,
        has_left: impl Fn(&T) -> bool,
    ) -> (Vec<T>, Vec<T>) {
        let (mut left, mut late) = (Vec::new(), Vec::new());
        for line in &mut self.lines {
            for party in &mut line.parties {
                for waiting in std::mem::take(&mut party.clients) {
                    if has_left(&waiting.client) {
                        left.push(waiting.client);
                    } else if now >= waiting.until {
                        late.push(waiting.client);
                    } else {
                        party.clients.push_back(waiting);
                    }
                }
            }
            line.parties.retain(|party| !party.clients.is_empty());
            line.len = line.parties.iter().map(|party| party.clients.len()).sum();
        }
        self.lines.retain(|line| line.len > 0);
        self.len = self.lines.iter().map(|line| line.len).sum();
        (left, late)
    }

    /// Removes and returns all clients.
    pub(super) fn take_all(&mut self) -> Vec<T> {
        let lines = std::mem::take(self).lines.into_iter();
        let parties = lines.flat_map(|line| line.parties);
        let waiting = parties.flat_map(|party| party.clients);
        waiting.map(|waiting| waiting.client).collect()
    }

    /// Returns the number of waiting clients of each source.
    pub(super) fn by_source(&self) -> HashMap<Source, u32> {
        let mut counts = HashMap::new();
        let parties = self.lines.iter().flat_map(|line| &line.parties);
        for waiting in parties.flat_map(|party| &party.clients) {
            *counts.entry(waiting.source).or_default() += 1;
        }
        counts
    }

    /// Updates each forward's limit; `of` returns it from one of the forward's clients.
    pub(super) fn set_limits(&mut self, of: impl Fn(&T) -> Option<u32>) {
        for line in &mut self.lines {
            if let Some(client) = line.first() {
                line.limit = of(client);
            }
        }
    }
}

// === impl Line ===

impl<T> Line<T> {
    fn first(&self) -> Option<&T> {
        let waiting = self.parties.front()?.clients.front()?;
        Some(&waiting.client)
    }

    fn has_room(&self, sessions: impl Fn(&T) -> u64) -> bool {
        match (self.limit, self.first()) {
            (Some(limit), Some(client)) => sessions(client) < limit.into(),
            (None, Some(_)) => true,
            (_, None) => false,
        }
    }

    fn push(&mut self, new: Waiting<T>) {
        let party = party_of(new.source);
        self.len += 1;
        match self.parties.iter_mut().find(|known| known.party == party) {
            Some(known) => known.clients.push_back(new),
            None => self.parties.push_back(Party {
                party,
                turn: turn_of(party),
                clients: VecDeque::from([new]),
            }),
        }
    }

    /// Removes the newest client of the party with the most clients per turn, if that is more than
    /// `party` would have with one client more.
    fn displace(&mut self, party: Source) -> Option<T> {
        let share = |clients: usize, party: Source| clients.div_ceil(turn_of(party) as usize);
        let own = self.parties.iter().find(|known| known.party == party);
        let own = share(own.map_or(0, |own| own.clients.len()) + 1, party);
        let shares = self.parties.iter().map(|p| share(p.clients.len(), p.party));
        let (index, most) = shares.enumerate().max_by_key(|(_, share)| *share)?;
        if most <= own {
            return None;
        }
        let displaced = self.parties[index].clients.pop_back()?;
        self.len -= 1;
        Some(displaced.client)
    }

    fn next(&mut self) -> Option<T> {
        let mut party = self.parties.pop_front()?;
        let next = party.clients.pop_front()?;
        self.len -= 1;
        party.turn -= 1;
        match (party.clients.is_empty(), party.turn) {
            (true, _) => {}
            (false, 0) => {
                party.turn = turn_of(party.party);
                self.parties.push_back(party);
            }
            (false, _) => self.parties.push_front(party),
        }
        Some(next.client)
    }
}

// === impl Room ===

impl Room {
    fn of_a_forward(self) -> usize {
        (self.all / self.forwards.max(1)).max(1)
    }
}

fn party_of(source: Source) -> Source {
    source.site().unwrap_or(source)
}

/// Returns how many clients a party has in a turn.
fn turn_of(party: Source) -> u32 {
    match party {
        Source::Site(_) => SITE,
        Source::V4(_) | Source::V6(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ROOM: Room = Room {
        all: 12,
        forwards: 3,
    };

    /// Adds client `n`, which waits for `n` seconds.
    fn add(lines: &mut Lines<u32>, forward: usize, source: u8, n: u32) -> Option<NoRoom<u32>> {
        let new = Waiting {
            source: Source::V4(source.into()),
            until: Instant::now() + Duration::from_secs(n.into()),
            client: n,
        };
        lines.push(forward, Some(1), new, ROOM)
    }

    fn all(mut lines: Lines<u32>) -> Vec<u32> {
        let all = std::iter::from_fn(|| Some(lines.next(|_| 0, || Some(()))?.0));
        let all = all.collect();
        assert_eq!((lines.len(), lines.lines.len()), (0, 0));
        all
    }

    #[test]
    fn forwards_and_the_parties_in_them_take_turns() {
        let mut lines = Lines::default();
        for n in 0..3 {
            assert_eq!(add(&mut lines, 1, 7, n), None);
        }
        assert_eq!(add(&mut lines, 1, 8, 3), None);
        for n in 4..6 {
            assert_eq!(add(&mut lines, 2, 7, n), None);
        }
        assert_eq!(all(lines), [0, 4, 3, 5, 1, 2]);
    }

    #[test]
    fn networks_of_one_site_are_one_party_with_more_in_its_turn() {
        let mut lines = Lines::default();
        let room = Room {
            all: 20,
            forwards: 1,
        };
        let mut push = |source: Source, n| {
            let until = Instant::now();
            let new = Waiting {
                source,
                until,
                client: n,
            };
            lines.push(1, None, new, room)
        };
        for n in 0..20 {
            // Each from a network of its own in one /48.
            assert_eq!(
                push(Source::V6(0x2001_0db8_0001_0000 + u64::from(n)), n),
                None
            );
        }
        assert_eq!(
            push(Source::V6(0x2001_0db8_0001_ffff), 20),
            Some(NoRoom::New(20))
        );
        assert_eq!(push(Source::V4(9), 21), Some(NoRoom::Displaced(19)));
        assert_eq!(all(lines)[..6], [0, 1, 2, 3, 21, 4]);
    }

    #[test]
    fn the_largest_party_loses_its_newest_client() {
        let mut lines = Lines::default();
        for n in 0..4 {
            assert_eq!(add(&mut lines, 1, 7, n), None);
        }
        assert_eq!(
            add(&mut lines, 1, 7, 4),
            Some(NoRoom::New(4)),
            "its own party is the largest"
        );
        assert_eq!(add(&mut lines, 1, 8, 5), Some(NoRoom::Displaced(3)));
        assert_eq!(add(&mut lines, 1, 8, 6), Some(NoRoom::Displaced(2)));
        assert_eq!(
            add(&mut lines, 1, 8, 7),
            Some(NoRoom::New(7)),
            "both have two"
        );
        assert!(matches!(
            add(&mut lines, 1, 9, 8),
            Some(NoRoom::Displaced(_))
        ));
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn a_forward_may_fill_its_share_and_all_together_the_total() {
        let mut lines = Lines::default();
        for n in 0..4 {
            assert_eq!(add(&mut lines, 1, 7, n), None);
        }
        assert_eq!(add(&mut lines, 2, 7, 4), None);
        assert_eq!(lines.len(), 5);
        let none = Room {
            all: 5,
            forwards: 9,
        };
        let new = Waiting {
            source: Source::V4(1),
            until: Instant::now(),
            client: 6,
        };
        assert_eq!(lines.push(3, None, new, none), Some(NoRoom::New(6)));
    }

    #[test]
    fn a_full_forward_holds_up_no_other() {
        let mut lines = Lines::default();
        assert_eq!(add(&mut lines, 1, 7, 100), None);
        assert_eq!(add(&mut lines, 2, 7, 200), None);
        let first_is_full = |client: &u32| u64::from(*client < 200);
        assert_eq!(lines.next(first_is_full, || None::<()>), None);
        assert_eq!(lines.next_source(first_is_full), Some(Source::V4(7)));
        assert!(
            lines.is_before(3, first_is_full),
            "the second waits only for a session place"
        );
        assert_eq!(lines.next(first_is_full, || Some(())), Some((200, ())));
        assert!(!lines.is_before(3, first_is_full) && lines.is_before(1, first_is_full));
        assert_eq!(lines.next(first_is_full, || Some(())), None);
        lines.set_limits(|_| Some(2));
        assert_eq!(lines.next(first_is_full, || Some(())), Some((100, ())));
    }

    #[test]
    fn a_skipped_party_is_served_after_the_others() {
        let mut lines = Lines::default();
        for (source, n) in [(7, 0), (8, 1), (7, 2)] {
            assert_eq!(add(&mut lines, 1, source, n), None);
        }
        assert_eq!(lines.parties(), 2);
        lines.pass(|_| 0);
        assert_eq!(lines.next_source(|_| 0), Some(Source::V4(8)));
        assert_eq!(all(lines), [1, 0, 2]);
    }

    #[test]
    fn disconnected_and_expired_clients_are_removed() {
        let mut lines = Lines::default();
        for (source, n) in [(7, 5), (7, 60), (8, 4), (9, 50)] {
            assert_eq!(add(&mut lines, 1, source, n), None);
        }
        let later = Instant::now() + Duration::from_secs(20);
        let (left, late) = lines.take_late(later, |n| *n == 50);
        assert_eq!((left, late), (vec![50], vec![5, 4]));
        assert_eq!(lines.by_source(), HashMap::from([(Source::V4(7), 1)]));
        assert_eq!(lines.take_all(), [60]);
        assert_eq!(lines.len(), 0);
    }
}
