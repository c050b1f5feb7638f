//! Chooses the idle session that ends for a new one when `max_sessions` are open: that of the source with the
//! most sessions which has been idle the longest.
//!
//! It has been idle for `evict_after` at least. Its source is that of the new session, or has more sessions: among
//! sources with equally many, a session that exists is worth more than a new one.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | searches of a worker's sessions | one in [`SEARCH_EVERY`] | new clients are refused if no session is left that the last one found |
//! | sessions that a search finds | [`MAX_FOUND`] | the others are found by a later one |

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use super::session_table::Sessions;
use super::slots::slot;
use crate::access::source::Source;
use crate::event::token::{Generation, Slot};

/// A search looks at each session of the worker, which forwards nothing meanwhile.
const SEARCH_EVERY: Duration = Duration::from_secs(1);
/// The number of new sessions for which one search makes room.
const MAX_FOUND: usize = 256;

/// The idle sessions that the last search has found.
#[derive(Default)]
pub(super) struct Evictable {
    /// The first to be ended comes last.
    found: Vec<(Slot, Generation)>,
    searched: Option<Instant>,
}

// === impl Evictable ===

impl Evictable {
    /// Returns whether a search is due, or the last one has found sessions that may be ended.
    pub(super) fn may_have_one(&self, now: Instant) -> bool {
        !self.found.is_empty() || self.is_out_of_date(now)
    }

    /// Returns an idle session to end for a new one of this source, which would have `count` with it.
    pub(super) fn choose(
        &mut self,
        sessions: &mut Sessions,
        (source, count): (Source, u32),
        sessions_of: &impl Fn(Source) -> u32,
        now: Instant,
    ) -> Option<Slot> {
        if self.is_out_of_date(now) {
            self.search(sessions, sessions_of, now);
        }
        while let Some(&(slot, generation)) = self.found.last() {
            if let Some(entry) = sessions.get_mut(slot)
                && entry.generation == generation
                && let Some(time) = entry.timeouts.evict
                && entry.session.has_been_idle(time, now)
            {
                let of = entry.admission.permit.source();
                if !(of == source || sessions_of(of) > count) {
                    return None;
                }
                self.found.pop();
                return Some(slot);
            }
            // It has ended, or is in use again.
            self.found.pop();
        }
        None
    }

    /// Returns whether a new search is due. What is left of the last one may be sessions that stay idle and
    /// make room for none of the clients that come now.
    fn is_out_of_date(&self, now: Instant) -> bool {
        { self.searched }.is_none_or(|at| now >= at + SEARCH_EVERY)
    }

    fn search(&mut self, sessions: &Sessions, sessions_of: &impl Fn(Source) -> u32, now: Instant) {
        let idle = sessions.entries.iter().filter_map(|(key, entry)| {
            let since = entry.session.idle_since()?;
            (now >= since + entry.timeouts.evict?).then(|| {
                let order = (Reverse(sessions_of(entry.admission.permit.source())), since);
                (order, (slot(key), entry.generation))
            })
        });
        let found = first(idle.collect());
        self.found = found.into_iter().rev().collect();
        self.searched = Some(now);
    }
}

/// Returns the first [`MAX_FOUND`] in their order.
fn first<K: Ord + Copy, T>(mut all: Vec<(K, T)>) -> Vec<T> {
    if all.len() > MAX_FOUND {
        all.select_nth_unstable_by_key(MAX_FOUND, |(order, _)| *order);
        all.truncate(MAX_FOUND);
    }
    all.sort_unstable_by_key(|(order, _)| *order);
    all.into_iter().map(|(_, item)| item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_that_were_found_do_not_keep_others_from_being_found() {
        let start = Instant::now();
        assert!(Evictable::default().is_out_of_date(start));
        let evictable = Evictable {
            found: vec![(Slot(0), Generation::default())],
            searched: Some(start),
        };
        assert!(!evictable.is_out_of_date(start + SEARCH_EVERY / 2));
        assert!(evictable.is_out_of_date(start + SEARCH_EVERY));
    }

    #[test]
    fn the_idlest_of_the_source_with_the_most_comes_first() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let all = vec![
            ((Reverse(2), at(0)), "the idlest of two"),
            ((Reverse(9), at(5)), "one of nine"),
            ((Reverse(9), at(3)), "the idlest of nine"),
        ];
        assert_eq!(
            first(all),
            ["the idlest of nine", "one of nine", "the idlest of two"]
        );
        let many: Vec<_> = (0..10_000).rev().map(|i| (i, i)).collect();
        let expected: Vec<_> = (0..MAX_FOUND).collect();
        assert_eq!(first(many), expected);
    }
}
