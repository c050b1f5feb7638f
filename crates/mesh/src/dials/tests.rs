use super::*;

const TIMES: Times = Times {
    connect: Duration::from_secs(10),
    patience: Duration::from_secs(2),
    max_age: Duration::from_secs(300),
};

/// No connection is dialled ahead, so that a test sees only what it asks for.
const BOUNDS: Bounds = Bounds {
    floor: 0,
    ceiling: 4,
};

const SETUP: Duration = Duration::from_millis(50);

type Session = &'static str;

/// Dials to one peer. Connections are numbered as they are dialled.
struct Rig {
    dials: Dials<u32, Session>,
    now: Instant,
    begun: u32,
}

impl Rig {
    fn new() -> Self {
        let mut rig = Self {
            dials: Dials::new(1),
            now: Instant::now(),
            begun: 0,
        };
        rig.adopt(keys(&[1], 9));
        rig
    }

    fn adopt(&mut self, keys: Keys) {
        let terms = PeerTerms {
            keys: Arc::new(keys),
            bounds: BOUNDS,
            keepalive: Duration::from_secs(15),
        };
        self.dials.adopt(TIMES, [Some(terms)], self.now);
    }

    /// Has a session ask, and returns the action that follows, if one does.
    fn asks(&mut self, session: Session) -> (Asked<u32>, Option<Action<u32, Session>>) {
        let asking = Asking {
            session,
            attempt: &mut Attempt::new(1),
            at_first: true,
            may_leave: false,
        };
        let asked = self.dials.ask(0, asking, self.now);
        (asked, self.dials.next_action())
    }

    /// Begins the dial that a session waits for.
    fn dials_for(&mut self, session: Session) -> DialId {
        let (Asked::Waits(Wait::Dial), Some(Action::Dial { id, .. })) = self.asks(session) else {
            panic!("no dial for {session}");
        };
        self.begin(id)
    }

    fn begin(&mut self, id: DialId) -> DialId {
        self.begun += 1;
        self.dials.begun(id, self.begun);
        self.dials.connected(id);
        id
    }

    /// Puts a connection into the pool.
    fn ready(&mut self) -> DialId {
        assert!(self.dials.dial_ahead(0, self.now));
        let Some(Action::Dial { id, .. }) = self.dials.next_action() else {
            panic!("no dial");
        };
        self.begin(id);
        assert_eq!(self.proves(id, 1), Some((SETUP, true)));
        id
    }

    fn proves(&mut self, id: DialId, key: u8) -> Option<(Duration, bool)> {
        self.now += SETUP;
        self.dials.proven(id, Some(public(key)), self.now)
    }

    fn poll_after(&mut self, time: Duration) {
        self.now += time;
        self.dials.poll(|_| BOUNDS, self.now);
    }

    fn actions(&mut self) -> Vec<Action<u32, Session>> {
        std::iter::from_fn(|| self.dials.next_action()).collect()
    }
}

fn public(number: u8) -> PublicKey {
    crate::identity::PrivateKey::from_seed(&[number; 32]).public()
}

fn keys(peer: &[u8], own: u8) -> Keys {
    Keys {
        peer: peer.iter().map(|number| public(*number)).collect(),
        own: public(own),
    }
}

fn close(connection: u32, why: Closing) -> Action<u32, Session> {
    Action::Close {
        connection,
        peer: 0,
        why,
    }
}

#[test]
fn a_session_gets_the_connection_that_is_dialled_for_it() {
    let mut rig = Rig::new();
    let id = rig.dials_for("a");
    assert_eq!(rig.proves(id, 1), Some((SETUP, false)));
    assert_eq!(rig.actions(), [Action::Serve("a", 1)]);
    // It is the session's: what happens to it is none of the pool's business.
    assert_eq!(rig.dials.get_mut(id), None);
    rig.dials.lost(id, Errno::CONNRESET, rig.now);
    assert_eq!(rig.actions(), []);
}

#[test]
fn a_ready_connection_is_given_away_once() {
    let mut rig = Rig::new();
    rig.ready();
    assert_eq!(rig.asks("a"), (Asked::Ready(1), None));
    let (asked, dial) = rig.asks("b");
    assert_eq!(asked, Asked::Waits(Wait::Dial));
    assert!(matches!(dial, Some(Action::Dial { .. })));
}

#[test]
fn a_dial_that_fails_at_once_fails_the_session_that_waits() {
    let mut rig = Rig::new();
    let (_, Some(Action::Dial { id, .. })) = rig.asks("a") else {
        panic!("no dial");
    };
    rig.dials.lost(id, Errno::HOSTUNREACH, rig.now);
    assert_eq!(rig.actions(), [Action::Fail("a", Errno::HOSTUNREACH)]);
}

#[test]
fn a_slow_dial_first_makes_the_peer_doubted_and_then_fails() {
    let mut rig = Rig::new();
    rig.ready();
    rig.now += SETUP;
    let begun = rig.now;
    let asking = Asking {
        session: "a",
        attempt: &mut Attempt::new(1),
        at_first: false,
        may_leave: true,
    };
    let asked = rig.dials.ask(0, asking, rig.now);
    let Some(Action::Dial { id, .. }) = rig.dials.next_action() else {
        panic!("no dial, but {asked:?}");
    };
    rig.begin(id);
    rig.poll_after(TIMES.patience);
    let fault = Fault {
        peer: 0,
        error: Errno::TIMEDOUT,
        since: begun,
    };
    let works = false;
    assert_eq!(
        rig.actions(),
        [
            Action::Slow,
            close(1, Closing::Useless),
            Action::Fault { fault, works }
        ]
    );
    assert!(rig.dials.is_broken(0, rig.now));
    rig.poll_after(TIMES.connect);
    let failed = rig.actions();
    assert_eq!(
        failed[..2],
        [
            close(2, Closing::Failed(Errno::TIMEDOUT)),
            Action::Fail("a", Errno::TIMEDOUT)
        ]
    );
    assert_eq!(rig.dials.get_mut(id), None);
}

#[test]
fn a_slow_dial_beside_one_that_succeeds_has_lost_its_syn() {
    let mut rig = Rig::new();
    rig.dials_for("a");
    let id = rig.dials_for("b");
    rig.proves(id, 1);
    assert_eq!(rig.actions(), [Action::Serve("a", 2)]);
    rig.poll_after(TIMES.patience);
    let is_dial = |action: &Action<u32, Session>| matches!(action, Action::Dial { .. });
    assert!(rig.actions().iter().all(is_dial));
}

#[test]
fn a_connection_whose_keepalive_fails_makes_older_ones_useless() {
    let mut rig = Rig::new();
    rig.ready();
    let id = rig.ready();
    rig.now += Duration::from_secs(30);
    rig.dials.lost(id, Errno::TIMEDOUT, rig.now);
    let fault = Fault {
        peer: 0,
        error: Errno::TIMEDOUT,
        since: rig.now - Duration::from_secs(15),
    };
    let (error, is_refusal, works) = (Errno::TIMEDOUT, false, false);
    assert_eq!(
        rig.actions(),
        [
            close(2, Closing::Lost { error, is_refusal }),
            close(1, Closing::Useless),
            Action::Fault { fault, works }
        ]
    );
    // Another worker of the relay that hears of it has nothing to add.
    assert!(!rig.dials.adopt_fault(fault, rig.now));
}

#[test]
fn a_peer_that_refuses_this_relays_key_is_dialled_after_a_pause() {
    for (error, after, pauses) in [
        (Errno::ACCESS, Duration::from_secs(60), true),
        // So soon after the handshake it may have been a refusal.
        (Errno::CONNRESET, Duration::ZERO, true),
        (Errno::CONNRESET, Duration::from_secs(60), false),
    ] {
        let mut rig = Rig::new();
        let id = rig.ready();
        rig.now += after;
        rig.dials.lost(id, error, rig.now);
        let is_refusal = pauses;
        assert_eq!(
            rig.actions(),
            [close(1, Closing::Lost { error, is_refusal })]
        );
        let pool = rig.dials.pool(0).unwrap();
        assert_eq!(pool.retry_at().is_some(), pauses, "{error}");
    }
}

#[test]
fn a_peer_that_drains_at_once_is_dialled_after_a_pause() {
    for (after, pauses) in [(Duration::ZERO, true), (Duration::from_secs(60), false)] {
        let mut rig = Rig::new();
        let id = rig.ready();
        rig.now += after;
        rig.dials.withdrawn(id, rig.now);
        assert_eq!(rig.actions(), [close(1, Closing::Withdrawn)]);
        assert_eq!(rig.dials.pool(0).unwrap().retry_at().is_some(), pauses);
    }
}

#[test]
fn a_peer_without_room_works_and_nothing_is_dialled_ahead_to_it() {
    let mut rig = Rig::new();
    let id = rig.ready();
    rig.dials.full(id, rig.now);
    assert_eq!(rig.actions(), [close(1, Closing::Full)]);
    assert!(!rig.dials.is_broken(0, rig.now) && !rig.dials.dial_ahead(0, rig.now));
    rig.dials_for("a");
}

#[test]
fn a_handshake_with_keys_that_have_been_replaced_is_repeated_for_its_session() {
    for (new, shown) in [
        // The list of members has other keys of the peer, or this relay has another one.
        (keys(&[2], 9), 1),
        (keys(&[1], 8), 1),
    ] {
        let mut rig = Rig::new();
        let id = rig.dials_for("a");
        rig.adopt(new);
        assert_eq!(rig.proves(id, shown), Some((SETUP, false)));
        let actions = rig.actions();
        assert_eq!(actions[0], close(1, Closing::Outdated));
        assert!(matches!(actions[1..], [Action::Dial { .. }]), "{actions:?}");
    }
}

#[test]
fn an_unknown_key_is_the_fault_of_the_peer_unless_its_keys_have_been_replaced() {
    let mut rig = Rig::new();
    let id = rig.dials_for("a");
    assert!(!rig.dials.proved_no_key(id, rig.now));
    let error = Errno::PROTO;
    assert_eq!(
        rig.actions(),
        [close(1, Closing::Failed(error)), Action::Fail("a", error)]
    );
    let id = rig.dials_for("b");
    rig.adopt(keys(&[1, 2], 9));
    assert!(rig.dials.proved_no_key(id, rig.now));
    let actions = rig.actions();
    assert_eq!(actions[0], close(2, Closing::Outdated));
    assert!(matches!(actions[1..], [Action::Dial { .. }]), "{actions:?}");
}

#[test]
fn no_ready_connection_outlives_its_key() {
    let mut rig = Rig::new();
    rig.ready();
    rig.adopt(keys(&[1, 2], 9));
    rig.dials.drop_old_keys(|_| true, rig.now);
    assert_eq!(rig.actions(), []);
    rig.adopt(keys(&[2], 9));
    rig.dials.drop_old_keys(|_| true, rig.now);
    assert_eq!(rig.actions(), [close(1, Closing::Dropped)]);
    // This relay's own key.
    let mut rig = Rig::new();
    rig.ready();
    rig.adopt(keys(&[1], 8));
    assert_eq!(rig.actions(), [close(1, Closing::Dropped)]);
}

#[test]
fn a_plain_connection_lasts_while_its_network_is_trusted() {
    let mut rig = Rig::new();
    assert!(rig.dials.dial_ahead(0, rig.now));
    let Some(Action::Dial { id, .. }) = rig.dials.next_action() else {
        panic!("no dial");
    };
    rig.begin(id);
    assert!(rig.dials.proven(id, None, rig.now).is_some());
    rig.dials.drop_old_keys(|_| true, rig.now);
    assert_eq!(rig.actions(), []);
    rig.dials.drop_old_keys(|_| false, rig.now);
    assert_eq!(rig.actions(), [close(1, Closing::Dropped)]);
}

#[test]
fn sessions_that_wait_leave_a_peer_that_is_removed() {
    let mut rig = Rig::new();
    rig.ready();
    assert_eq!(rig.asks("a"), (Asked::Ready(1), None));
    let id = rig.dials_for("b");
    rig.dials.adopt(TIMES, [None], rig.now);
    assert_eq!(rig.actions(), [Action::Fail("b", Errno::HOSTUNREACH)]);
    let (asked, _) = rig.asks("b");
    assert_eq!(asked, Asked::Leaves { is_broken: false });
    // No session gets the connection that was dialled for it.
    rig.proves(id, 1);
    assert_eq!(rig.actions(), [close(2, Closing::Surplus)]);
}

#[test]
fn nothing_is_dialled_ahead_once_the_dials_are_closed() {
    let mut rig = Rig::new();
    rig.ready();
    rig.dials.close();
    assert_eq!(rig.actions(), [close(1, Closing::Dropped)]);
    assert_eq!(rig.dials.next(), None);
    let floor = 2;
    rig.dials.poll(|_| Bounds { floor, ..BOUNDS }, rig.now);
    assert!(!rig.dials.dial_ahead(0, rig.now));
    assert_eq!(rig.actions(), []);
    // A session that waits still gets one.
    rig.dials_for("a");
}

#[test]
fn a_ready_connection_is_replaced_when_it_is_too_old() {
    let mut rig = Rig::new();
    let id = rig.ready();
    rig.poll_after(TIMES.max_age.mul_f64(0.79));
    assert_eq!(rig.actions(), []);
    assert!(rig.dials.get_mut(id).is_some());
    rig.now += TIMES.max_age.mul_f64(0.21);
    let floor = 1;
    rig.dials.poll(|_| Bounds { floor, ..BOUNDS }, rig.now);
    let actions = rig.actions();
    assert_eq!(actions[0], close(1, Closing::Expired));
    assert!(matches!(actions[1..], [Action::Dial { .. }]), "{actions:?}");
}

#[test]
fn dials_that_are_decided_together_leave_an_address_that_fails_at_once() {
    let mut rig = Rig::new();
    let floor = 3;
    rig.now += POLL_EVERY;
    rig.dials.poll(|_| Bounds { floor, ..BOUNDS }, rig.now);
    let mut addresses = Vec::new();
    while let Some(Action::Dial { id, address, .. }) = rig.dials.next_action() {
        addresses.push(address);
        match address {
            0 => rig.dials.lost(id, Errno::NETUNREACH, rig.now),
            _ => {
                rig.begin(id);
            }
        }
    }
    assert_eq!(addresses, [0, 1, 1]);
}
