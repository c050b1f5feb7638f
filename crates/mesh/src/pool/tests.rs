use proptest::prelude::*;

use super::*;
use crate::ways::{Attempt, Prospect, Step};

const SECOND: Duration = Duration::from_secs(1);
const SETUP: Duration = Duration::from_millis(100);
const BOUNDS: Bounds = Bounds {
    floor: 2,
    ceiling: 4,
};

type Numbers = Pool<u32, &'static str>;

fn pool(now: Instant) -> Numbers {
    Pool::new(BOUNDS, now, 1)
}

/// Dials a connection, which is ready after [`SETUP`].
fn dial(pool: &mut Numbers, connection: u32, now: Instant) -> Given<&'static str> {
    pool.on_dial();
    pool.on_dial_succeeded(SETUP, now);
    pool.give(connection)
}

fn fail(pool: &mut Numbers, now: Instant) -> Option<&'static str> {
    let tried = pool.on_dial();
    pool.on_dial_failed(tried, now)
}

#[test]
fn a_new_pool_dials_up_to_its_floor() {
    let now = Instant::now();
    let mut pool = pool(now);
    assert_eq!(pool.dials_wanted(now), 2);
    pool.on_dial();
    assert_eq!(pool.dials_wanted(now), 1);
}

#[test]
fn a_session_takes_the_youngest_connection() {
    let now = Instant::now();
    let mut pool = pool(now);
    for connection in [1, 2] {
        assert_eq!(dial(&mut pool, connection, now), Given::Kept);
    }
    assert_eq!(pool.take(now), Some(2));
    assert_eq!(pool.take(now), Some(1));
    assert_eq!(pool.take(now), None);
}

#[test]
fn the_session_that_has_waited_longest_gets_the_next_connection() {
    let now = Instant::now();
    let mut pool = pool(now);
    for session in ["first", "second", "third"] {
        assert_eq!(pool.wait(session), Wait::Dial);
        pool.on_dial();
    }
    pool.forget("second");
    pool.on_dial_succeeded(SETUP, now);
    assert_eq!(pool.give(1), Given::To("first"));
    pool.on_dial_succeeded(SETUP, now);
    assert_eq!(pool.give(2), Given::To("third"));
    pool.on_dial_succeeded(SETUP, now);
    assert_eq!(pool.give(3), Given::Kept);
}

#[test]
fn dials_of_waiting_sessions_do_not_count_towards_the_size() {
    let now = Instant::now();
    let mut pool = pool(now);
    pool.wait("session");
    pool.on_dial();
    assert_eq!(pool.dials_wanted(now), 2);
}

#[test]
fn sessions_beyond_the_dials_that_may_be_in_progress_are_postponed() {
    let now = Instant::now();
    let mut pool = pool(now);
    for _ in 0..DIALS_AT_ONCE {
        assert_eq!(pool.wait("session"), Wait::Dial);
        pool.on_dial();
    }
    assert_eq!(pool.wait("late"), Wait::Postponed);
    assert!(!pool.is_dial_awaited());
    assert_eq!(pool.dials_wanted(now), 0);
    pool.on_dial_succeeded(SETUP, now);
    assert_eq!(pool.give(1), Given::To("session"));
    assert!(pool.is_dial_awaited());
}

#[test]
fn a_session_waits_for_the_dial_that_was_begun_ahead_of_it() {
    let now = Instant::now();
    let mut pool = pool(now);
    assert!(pool.may_dial_ahead(now));
    pool.on_dial();
    assert_eq!(pool.wait("session"), Wait::DialledAhead);
    assert_eq!(pool.wait("another"), Wait::Dial);
}

#[test]
fn dials_ahead_stay_within_the_size_of_the_pool_and_its_pauses() {
    let now = Instant::now();
    let mut pool = pool(now);
    for _ in 0..BOUNDS.ceiling {
        assert!(pool.may_dial_ahead(now));
        pool.on_dial();
    }
    assert!(!pool.may_dial_ahead(now));
    for _ in 0..BOUNDS.ceiling {
        pool.on_dial_failed(0, now);
    }
    assert!(!pool.may_dial_ahead(now));
    assert!(pool.may_dial_ahead(pool.retry_at().unwrap()));
}

#[test]
fn dials_that_fail_together_advance_the_address_once() {
    let now = Instant::now();
    let mut pool = pool(now);
    let tried = (pool.on_dial(), pool.on_dial());
    assert_eq!(tried, (0, 0));
    pool.on_dial_failed(0, now);
    pool.on_dial_failed(0, now);
    assert_eq!(pool.on_dial(), 1);
}

#[test]
fn a_failed_dial_fails_the_session_that_has_waited_longest() {
    let now = Instant::now();
    let mut pool = pool(now);
    pool.wait("first");
    pool.wait("second");
    assert_eq!(fail(&mut pool, now), Some("first"));
    assert!(pool.is_dial_awaited(), "the second still waits");
}

#[test]
fn a_failed_dial_fails_no_session_that_waits_for_the_next_address() {
    let now = Instant::now();
    let mut pool = pool(now);
    assert_eq!(pool.wait("session"), Wait::Dial);
    let (its_own, of_the_pool) = (pool.on_dial(), pool.on_dial());
    assert_eq!(pool.on_dial_failed(its_own, now), Some("session"));
    assert_eq!(pool.wait("session"), Wait::Dial);
    let next = pool.on_dial();
    assert_eq!(pool.on_dial_failed(of_the_pool, now), None);
    assert_eq!(pool.on_dial_failed(next, now), Some("session"));
}

/// What happens to a pool next. Places are taken modulo the number of sessions or dials.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Session,
    ClientLeaves(usize),
    PoolDials,
    DialAhead,
    DialEnds(usize),
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        3 => Just(Turn::Session),
        1 => any::<usize>().prop_map(Turn::ClientLeaves),
        1 => Just(Turn::PoolDials),
        1 => Just(Turn::DialAhead),
        6 => any::<usize>().prop_map(Turn::DialEnds),
    ]
}

/// A pool to a peer whose first address refuses connections and whose second one accepts them.
struct DeadAddress {
    now: Instant,
    pool: Pool<u32, usize>,
    /// The addresses that are dialled.
    dials: Vec<usize>,
    sessions: Vec<Attempt>,
    /// Those that have no connection yet.
    without: Vec<usize>,
    connections: u32,
}

impl DeadAddress {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            now,
            pool: Pool::new(BOUNDS, now, 1),
            dials: Vec::new(),
            sessions: Vec::new(),
            without: Vec::new(),
            connections: 0,
        }
    }

    fn take(&mut self, turn: Turn) {
        match turn {
            Turn::Session => {
                self.sessions.push(Attempt::new(2));
                self.without.push(self.sessions.len() - 1);
                self.step(self.sessions.len() - 1, true);
            }
            Turn::ClientLeaves(place) => {
                if let Some(place) = place.checked_rem(self.without.len()) {
                    self.pool.forget(self.without.swap_remove(place));
                }
            }
            Turn::PoolDials => {
                for _ in 0..self.pool.dials_wanted(self.now) {
                    self.dial();
                }
            }
            Turn::DialAhead => {
                if self.pool.may_dial_ahead(self.now) {
                    self.dial();
                }
            }
            Turn::DialEnds(place) => {
                if let Some(place) = place.checked_rem(self.dials.len()) {
                    let address = self.dials.swap_remove(place);
                    self.dial_ends(address);
                }
            }
        }
    }

    fn dial(&mut self) {
        let address = self.pool.on_dial();
        self.dials.push(address);
    }

    fn dial_ends(&mut self, address: usize) {
        if address.is_multiple_of(2) {
            if let Some(session) = self.pool.on_dial_failed(address, self.now) {
                self.step(session, false);
            }
        } else {
            self.pool.on_dial_succeeded(SETUP, self.now);
            self.connections += 1;
            if let Given::To(session) = self.pool.give(self.connections) {
                self.without.retain(|&waiting| waiting != session);
            }
        }
        while self.pool.is_dial_awaited() {
            self.dial();
        }
    }

    fn step(&mut self, session: usize, at_first: bool) {
        let has_no_other_way = Prospect {
            is_peer: true,
            is_broken: false,
            may_leave: false,
        };
        let step = self.sessions[session].step(at_first, has_no_other_way);
        assert_ne!(step, Step::Leave, "session {session} fails");
        if step == Step::Take && self.pool.take(self.now).is_some() {
            self.without.retain(|&waiting| waiting != session);
        } else if self.pool.wait(session) == Wait::Dial {
            self.dial();
        }
    }
}

proptest! {
    /// Each session has one try from the pool and one for each address.
    #[test]
    fn a_dead_address_costs_no_session(turns in prop::collection::vec(turn(), 1..400)) {
        let mut peer = DeadAddress::new();
        for turn in turns {
            peer.take(turn);
        }
        while !peer.dials.is_empty() {
            peer.take(Turn::DialEnds(0));
        }
        prop_assert!(peer.without.is_empty(), "{:?} wait for ever", peer.without);
    }
}

#[test]
fn an_outdated_dial_fails_no_session_and_says_nothing_about_the_peer() {
    let now = Instant::now();
    let mut pool = pool(now);
    pool.wait("session");
    pool.on_dial();
    pool.on_dial_outdated();
    assert!(!pool.is_broken(now));
    assert_eq!(pool.retry_at(), None);
    assert!(pool.is_dial_awaited());
    assert_eq!(dial(&mut pool, 1, now), Given::To("session"));
}

#[test]
fn a_peer_is_broken_from_a_failure_until_a_dial_has_succeeded_for_as_long_as_it_took() {
    let now = Instant::now();
    let mut pool = pool(now);
    assert!(!pool.is_broken(now));
    fail(&mut pool, now);
    assert!(pool.is_broken(now));
    assert!(pool.is_broken(now + 60 * SECOND), "its own dials find out");
    let back = now + 60 * SECOND;
    dial(&mut pool, 1, back);
    assert!(pool.is_broken(back), "it may refuse this relay's key");
    assert!(!pool.is_broken(back + SETUP));
}

#[test]
fn a_peer_that_refuses_the_key_of_each_connection_stays_broken() {
    let now = Instant::now();
    let mut pool = pool(now);
    fail(&mut pool, now);
    let mut now = now;
    for connection in 0..10 {
        now += 10 * SECOND;
        dial(&mut pool, connection, now);
        now += SETUP / 2;
        pool.on_failure(now);
        assert!(pool.remove(connection));
        assert!(pool.is_broken(now + SETUP));
    }
}

#[test]
fn a_fault_closes_the_ready_connections_once() {
    let now = Instant::now();
    let mut pool = pool(now);
    dial(&mut pool, 1, now);
    dial(&mut pool, 2, now);
    let all = |_: &u32| true;
    assert_eq!(pool.on_fault(now, now, all), Some(VecDeque::from([1, 2])));
    assert!(pool.is_broken(now));
    // Sessions that were sent before report the same.
    assert_eq!(pool.on_fault(now, now, all), None);
}

#[test]
fn a_fault_that_is_older_than_the_last_dial_closes_only_the_connections_that_are_older_too() {
    let now = Instant::now();
    let mut pool = pool(now);
    dial(&mut pool, 1, now);
    dial(&mut pool, 2, now + SECOND);
    let later = now + 2 * SECOND;
    let first = |connection: &u32| *connection == 1;
    assert_eq!(pool.on_fault(now, later, first), Some(VecDeque::from([1])));
    assert!(!pool.is_broken(later));
    assert_eq!(pool.dials_wanted(later), 1, "without a pause");
    // Other sessions find the same.
    assert_eq!(pool.on_fault(now, later, first), None);
    assert_eq!(pool.take(later), Some(2));
    assert!(!pool.is_broken(later));
}

#[test]
fn a_fault_closes_the_connections_that_were_ready_when_a_dial_failed() {
    let now = Instant::now();
    let mut pool = pool(now);
    dial(&mut pool, 1, now);
    fail(&mut pool, now);
    let all = |_: &u32| true;
    assert_eq!(pool.on_fault(now, now, all), Some(VecDeque::from([1])));
    assert_eq!(pool.on_fault(now, now, all), None);
}

#[test]
fn without_a_pool_one_session_at_a_time_tries_a_broken_peer() {
    let now = Instant::now();
    let none = Bounds {
        floor: 0,
        ceiling: 0,
    };
    let mut pool: Numbers = Pool::new(none, now, 1);
    pool.wait("first");
    fail(&mut pool, now);
    assert!(pool.is_broken(now));
    let later = pool.retry_at().unwrap();
    assert!(!pool.is_broken(later), "the next session tries");
    pool.wait("second");
    pool.on_dial();
    assert!(pool.is_broken(later), "the others do not");
}

#[test]
fn sessions_that_wait_leave_a_retired_pool() {
    let now = Instant::now();
    let mut pool = pool(now);
    dial(&mut pool, 1, now);
    pool.wait("session");
    assert_eq!(pool.retire(), (VecDeque::from([1]), vec!["session"]));
    assert_eq!(pool.dials_wanted(now), 0);
    assert!(!pool.may_dial_ahead(now));
    assert!(!pool.is_dial_awaited());
    assert_eq!(dial(&mut pool, 2, now), Given::Surplus);
    pool.adopt(BOUNDS);
    assert_eq!(pool.dials_wanted(now), 2);
}

#[test]
fn connections_of_sessions_that_have_left_do_not_make_the_pool_larger_than_its_limit() {
    let now = Instant::now();
    let mut pool = pool(now);
    let sessions = ["1", "2", "3", "4", "5", "6"];
    for session in sessions {
        assert_eq!(pool.wait(session), Wait::Dial);
        pool.on_dial();
    }
    for session in sessions {
        pool.forget(session);
    }
    let given = (0..6).map(|connection| {
        pool.on_dial_succeeded(SETUP, now);
        pool.give(connection)
    });
    let kept = given.filter(|given| *given == Given::Kept).count();
    assert_eq!((kept, pool.ready()), (4, BOUNDS.ceiling));
}

#[test]
fn early_clients_leave_sessions_their_connections() {
    let now = Instant::now();
    let mut pool = pool(now);
    dial(&mut pool, 1, now);
    assert_eq!(pool.take_early(now), None, "half of the floor is reserved");
    dial(&mut pool, 2, now);
    assert_eq!(pool.take_early(now), Some(2));
}

#[test]
fn a_dial_without_an_answer_is_judged_by_the_dials_that_have_succeeded_since() {
    let now = Instant::now();
    let mut pool = pool(now);
    assert!(!pool.has_connected_since(now));
    dial(&mut pool, 1, now + SECOND);
    assert!(pool.has_connected_since(now));
    assert!(!pool.has_connected_since(now + 2 * SECOND));
}

#[test]
fn a_peer_without_room_is_dialled_for_sessions_only_and_is_not_broken() {
    let now = Instant::now();
    let mut pool = pool(now);
    dial(&mut pool, 1, now);
    pool.on_full(now);
    assert!(pool.remove(1));
    assert_eq!(
        (pool.dials_wanted(now), pool.may_dial_ahead(now)),
        (0, false)
    );
    assert!(!pool.is_broken(now));
    assert_eq!(pool.wait("session"), Wait::Dial);
    assert_eq!(dial(&mut pool, 2, now), Given::To("session"));
    let later = now + FULL_PAUSE;
    assert_eq!(
        (pool.dials_wanted(later), pool.may_dial_ahead(later)),
        (2, true)
    );
}
