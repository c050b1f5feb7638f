//! The ways of a session to its destination: which one it tries, and when it tries the next.
//!
//! A session has alternatives, tried in order: routes through the mesh, and perhaps the direct path
//! ([`Ways`]). On each route it asks the first relay, on a connection from the pool or on one that
//! is dialled for it ([`Attempt`]).

use std::sync::Arc;

/// The ways of a session that it has not tried yet. `R` stands for a route through the mesh, `D`
/// for the direct path.
#[derive(Debug)]
pub struct Ways<R, D> {
    routes: Option<Arc<[R]>>,
    next: usize,
    direct: Option<D>,
    /// The direct path comes before the routes, not after them.
    direct_first: bool,
}

/// A way to the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alternative<R, D> {
    /// Through the relays of this route.
    Route(R),
    /// Through no relay.
    Direct(D),
}

/// A session's attempt to get a connection to the first relay of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    tries_left: u8,
}

/// The state of the relay that a session asks, as far as the session knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prospect {
    /// Sessions may be forwarded to the relay.
    pub is_peer: bool,
    /// The relay [cannot be reached](crate::pool::Pool::is_broken) as far as is known.
    pub is_broken: bool,
    /// The session has another way.
    pub may_leave: bool,
}

/// The next thing that a session does to get a connection to a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Take a ready connection from the pool, or wait for one that is dialled if the pool has none.
    Take,
    /// Wait for a connection that is dialled: whatever broke a ready connection may have broken all
    /// of them.
    Dial,
    /// Take the next way, or end if there is none.
    Leave,
}

// === impl Ways ===

impl<R, D> Default for Ways<R, D> {
    fn default() -> Self {
        Self {
            routes: None,
            next: 0,
            direct: None,
            direct_first: false,
        }
    }
}

impl<R: Clone, D> Ways<R, D> {
    /// Returns these routes, in this order, and `direct` after them.
    pub fn new(routes: Arc<[R]>, direct: Option<D>) -> Self {
        Self {
            routes: Some(routes),
            next: 0,
            direct,
            direct_first: false,
        }
    }

    /// Returns the direct path, and these routes after it, in this order.
    pub fn direct_first(direct: D, routes: Arc<[R]>) -> Self {
        Self {
            direct_first: true,
            ..Self::new(routes, Some(direct))
        }
    }

    /// Returns whether a way is left.
    pub fn is_any_left(&self) -> bool {
        let routes = self.routes.as_ref().map_or(0, |routes| routes.len());
        self.next < routes || self.direct.is_some()
    }

    /// Removes and returns the next way.
    pub fn take_next(&mut self) -> Option<Alternative<R, D>> {
        if let Some(direct) = self.direct.take_if(|_| self.direct_first) {
            return Some(Alternative::Direct(direct));
        }
        let route = self.routes.as_ref().and_then(|all| all.get(self.next));
        match route {
            Some(route) => {
                self.next += 1;
                Some(Alternative::Route(route.clone()))
            }
            None => self.direct.take().map(Alternative::Direct),
        }
    }
}

// === impl Attempt ===

impl Attempt {
    /// Returns an attempt that tries one connection from the pool, and then each of the relay's
    /// `addresses`.
    pub fn new(addresses: usize) -> Self {
        Self {
            tries_left: u8::try_from(addresses).unwrap_or(u8::MAX).saturating_add(1),
        }
    }

    /// Returns the next step of the session. `at_first` tells whether it is the first.
    pub fn step(&mut self, at_first: bool, prospect: Prospect) -> Step {
        let is_hopeless = prospect.may_leave && prospect.is_broken;
        if self.tries_left == 0 || !prospect.is_peer || is_hopeless {
            return Step::Leave;
        }
        self.tries_left -= 1;
        match at_first {
            true => Step::Take,
            false => Step::Dial,
        }
    }

    /// Records that a connection from the pool was taken for the session ahead of its first step.
    pub fn taken_early(&mut self) {
        self.tries_left = self.tries_left.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: Prospect = Prospect {
        is_peer: true,
        is_broken: false,
        may_leave: true,
    };

    #[test]
    fn a_session_tries_its_routes_in_order_and_the_direct_path_last() {
        let mut ways = Ways::new(Arc::from(["a", "b"]), Some(()));
        for way in [
            Alternative::Route("a"),
            Alternative::Route("b"),
            Alternative::Direct(()),
        ] {
            assert!(ways.is_any_left());
            assert_eq!(ways.take_next(), Some(way));
        }
        assert!(!ways.is_any_left());
        assert_eq!(ways.take_next(), None);
    }

    #[test]
    fn a_session_that_prefers_the_direct_path_tries_the_routes_after_it() {
        let mut ways = Ways::direct_first((), Arc::from(["a", "b"]));
        for way in [
            Alternative::Direct(()),
            Alternative::Route("a"),
            Alternative::Route("b"),
        ] {
            assert!(ways.is_any_left());
            assert_eq!(ways.take_next(), Some(way));
        }
        assert!(!ways.is_any_left());
        assert_eq!(ways.take_next(), None);
    }

    #[test]
    fn a_session_passed_on_by_another_relay_has_no_other_way() {
        assert!(!Ways::<&str, ()>::default().is_any_left());
    }

    #[test]
    fn an_attempt_takes_from_the_pool_and_then_dials_each_address() {
        let mut attempt = Attempt::new(2);
        assert_eq!(attempt.step(true, WELL), Step::Take);
        assert_eq!(attempt.step(false, WELL), Step::Dial);
        assert_eq!(attempt.step(false, WELL), Step::Dial);
        assert_eq!(attempt.step(false, WELL), Step::Leave);
    }

    #[test]
    fn a_connection_taken_early_counts_as_the_first_try() {
        let mut attempt = Attempt::new(1);
        attempt.taken_early();
        assert_eq!(attempt.step(false, WELL), Step::Dial);
        assert_eq!(attempt.step(false, WELL), Step::Leave);
    }

    #[test]
    fn a_session_leaves_a_broken_relay_only_for_another_way() {
        let broken = Prospect {
            is_broken: true,
            ..WELL
        };
        assert_eq!(Attempt::new(1).step(true, broken), Step::Leave);
        let last = Prospect {
            may_leave: false,
            ..broken
        };
        assert_eq!(Attempt::new(1).step(true, last), Step::Take);
    }

    #[test]
    fn a_session_leaves_a_relay_that_is_no_longer_a_peer() {
        let removed = Prospect {
            is_peer: false,
            may_leave: false,
            ..WELL
        };
        assert_eq!(Attempt::new(1).step(true, removed), Step::Leave);
    }
}
