use std::sync::Arc;

use super::*;
use crate::acceptor::Limits;
use crate::identity::PrivateKey;
use crate::members::Member;

const BOUNDS: Bounds = Bounds {
    unproven: 2,
    ready: 4,
};

/// A mesh port at which connections are numbered. Members connect as in a trusted network.
struct Port {
    arrivals: Arrivals<u32>,
    now: Instant,
    admitted: u32,
}

impl Port {
    fn new() -> Self {
        Self {
            arrivals: Arrivals::default(),
            now: Instant::now(),
            admitted: 0,
        }
    }

    fn admit(&mut self, from: u8, member: Option<&str>) -> Result<ArrivalId, u32> {
        self.admitted += 1;
        self.now += Duration::from_millis(1);
        let acceptor = Acceptor::new(self.now, &Limits::default(), member.map(named));
        let from = IpAddr::from([192, 0, 2, from]);
        self.arrivals
            .admit(self.admitted, from, acceptor, BOUNDS, self.now)
    }

    fn member(&mut self, name: &str) -> ArrivalId {
        self.admit(1, Some(name)).unwrap()
    }

    fn expire_after(&mut self, time: Duration) -> Vec<Action<u32>> {
        self.now += time;
        self.arrivals.expire(self.now);
        self.actions()
    }

    fn actions(&mut self) -> Vec<Action<u32>> {
        std::iter::from_fn(|| self.arrivals.next_action()).collect()
    }

    fn counts(&self) -> (usize, usize, usize) {
        let counts = self.arrivals.counts();
        (counts.unproven, counts.ready, counts.withdrawn)
    }
}

fn named(name: &str) -> Arc<Member> {
    Arc::new(Member {
        name: name.parse().unwrap(),
        keys: vec![PrivateKey::from_seed(&[1; 32]).public()],
        addresses: Vec::new(),
        site: None,
        cloud: None,
        price: None,
    })
}

#[test]
fn a_connection_without_a_proof_makes_room_or_finds_none() {
    let mut port = Port::new();
    port.admit(1, None).unwrap();
    port.admit(1, None).unwrap();
    // Of one source, a young one is worth as much as a new one.
    assert_eq!(port.admit(1, None), Err(3));
    // The oldest of the source with the most makes room for another source.
    port.admit(2, None).unwrap();
    assert_eq!(port.actions(), [Action::Close(1, Closing::Evicted)]);
    assert_eq!(port.counts(), (2, 0, 0));
    // Members need no such room.
    port.member("fra1");
    assert_eq!(port.counts(), (2, 1, 0));
}

#[test]
fn a_handshake_has_its_time() {
    let mut port = Port::new();
    port.admit(1, None).unwrap();
    let time = Limits::default().handshake;
    assert_eq!(port.expire_after(time - Duration::from_millis(1)), []);
    let why = Closing::Expired(Rejection::TimedOutHandshake);
    let closed = port.expire_after(Duration::from_millis(1));
    assert_eq!(closed, [Action::Close(1, why)]);
    assert!(port.arrivals.is_empty() && port.arrivals.next().is_none());
}

#[test]
fn the_member_with_the_most_ready_connections_makes_room_and_is_told() {
    let mut port = Port::new();
    let oldest = port.member("fra1");
    for _ in 0..3 {
        port.member("fra1");
    }
    assert_eq!(port.actions(), []);
    port.member("nyc1");
    let (greatest, full) = ("fra1".parse().unwrap(), Withdrawal::Full);
    let told = [Action::Full(greatest), Action::Withdraw(oldest, full)];
    assert_eq!(port.actions(), told);
    assert_eq!(port.counts(), (0, 4, 1));
    // A hello that is on its way is served; without one, the connection closes.
    assert!(port.arrivals.get_mut(oldest).is_some());
    let closed = port.expire_after(GRACE);
    assert_eq!(closed, [Action::Close(1, Closing::Withdrawn)]);
    assert_eq!(port.counts(), (0, 4, 0));
}

#[test]
fn few_connections_without_a_place_wait_for_hellos_that_are_on_their_way() {
    let mut port = Port::new();
    for _ in 0..4 {
        port.member("fra1");
    }
    for _ in 0..3 {
        port.member("fra1");
        let (_, ready, withdrawn) = port.counts();
        assert_eq!((ready, withdrawn), (4, BOUNDS.ready.div_ceil(WITHDRAWN)));
    }
    let actions = port.actions();
    let closed = actions.iter().filter_map(|action| match action {
        Action::Close(connection, Closing::Withdrawn) => Some(*connection),
        _ => None,
    });
    assert_eq!(closed.collect::<Vec<_>>(), [5, 6]);
}

#[test]
fn a_relay_that_drains_tells_all_and_closes_those_that_stay() {
    let mut port = Port::new();
    let id = port.member("fra1");
    assert_eq!(port.arrivals.drain(port.now), [id]);
    assert_eq!(port.arrivals.drain(port.now), []);
    assert!(!port.arrivals.advanced(id, true, BOUNDS, port.now));
    let told = [Action::Withdraw(id, Withdrawal::Draining)];
    assert_eq!(port.actions(), told);
    let closed = port.expire_after(GRACE);
    assert_eq!(closed, [Action::Close(1, Closing::Undrained)]);
}

#[test]
fn a_connection_of_a_former_member_closes() {
    let mut port = Port::new();
    port.member("fra1");
    port.member("nyc1");
    let is_current = |_: &u32, acceptor: &Acceptor| {
        let member = acceptor.member().unwrap();
        member.name.as_str() != "fra1"
    };
    port.arrivals.drop_old(is_current);
    assert_eq!(port.actions(), [Action::Close(1, Closing::Dropped)]);
    assert_eq!(port.counts(), (0, 1, 0));
}

#[test]
fn a_connection_whose_hello_has_come_leaves_nothing() {
    let mut port = Port::new();
    let id = port.member("fra1");
    assert!(port.arrivals.take(id).is_some_and(|(taken, _)| taken == 1));
    assert!(port.arrivals.take(id).is_none());
    assert_eq!((port.counts(), port.arrivals.next()), ((0, 0, 0), None));
    // The slot is used again; the former ID does not reach it.
    let again = port.member("fra1");
    assert_eq!(again.slot, id.slot);
    assert!(port.arrivals.get_mut(id).is_none());
}
