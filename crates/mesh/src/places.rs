//! The places of a node's sessions: `max_sessions`. All workers share them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The places of a node's sessions.
#[derive(Debug)]
pub struct SessionPlaces {
    taken: AtomicU32,
    max: AtomicU32,
}

/// A session's place, given back when dropped.
#[derive(Debug)]
#[must_use = "the place is given back when this is dropped"]
pub struct SessionPlace(Arc<SessionPlaces>);

// === impl SessionPlaces ===

impl SessionPlaces {
    /// Returns `max` free places.
    pub fn new(max: u32) -> Arc<Self> {
        Arc::new(Self {
            taken: AtomicU32::new(0),
            max: AtomicU32::new(max),
        })
    }

    /// Returns the number of places.
    pub fn max(&self) -> u32 {
        self.max.load(Ordering::Relaxed)
    }

    /// Changes the number of places. Sessions beyond it stay open.
    pub fn set_max(&self, max: u32) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// Takes a place, if one is free.
    pub fn take(self: &Arc<Self>) -> Option<SessionPlace> {
        let max = self.max();
        let more = |taken: u32| (taken < max).then_some(taken + 1);
        let taken = { &self.taken }.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        taken.is_ok().then(|| SessionPlace(self.clone()))
    }
}

// === impl SessionPlace ===

impl Drop for SessionPlace {
    fn drop(&mut self) {
        // Ordered with the length of the queue: either the client that is added sees the free place, or the worker
        // whose session has ended sees the client.
        self.0.taken.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_once_it_is_dropped() {
        let places = SessionPlaces::new(2);
        let first = places.take();
        let second = places.take();
        assert!(first.is_some() && second.is_some() && places.take().is_none());
        drop(second);
        assert!(places.take().is_some());
        places.set_max(1);
        assert!(places.take().is_none());
    }
}
