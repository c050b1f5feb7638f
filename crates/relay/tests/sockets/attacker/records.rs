//! Attacks on the records of a connection.

use taut_mesh::hello::{Hello, SessionId, Target};

use super::path::{Direction, Kind, Mode};
use super::rig::Rig;

/// The numbers of the records that are attacked: that which ends the handshake, the hello, which the
/// dialler sends next, and bytes of the session.
const PLACES: [usize; 6] = [0, 1, 2, 3, 8, 16];

/// Attacks one record after the other, in either direction. Returns how many sessions were whole all the
/// same.
fn attack(rig: &Rig, kind: &Kind) -> usize {
    let mut whole = 0;
    for direction in [Direction::ToFar, Direction::ToNear] {
        for at in PLACES {
            let before = rig.path.attacked();
            let kind = kind.clone();
            let mode = Mode::Attack {
                kind,
                direction,
                at,
            };
            whole += usize::from(rig.session(&mode));
            assert!(
                rig.path.attacked() > before,
                "no attack took place: {mode:?}"
            );
        }
    }
    // The relays are none the worse.
    assert!(rig.session(&Mode::Pass));
    whole
}

/// Returns what looks like a record of a session.
fn forged() -> Vec<u8> {
    let mut record = vec![23, 3, 3, 0, 64];
    record.extend((0..64).map(|n: u8| n.wrapping_mul(37)));
    record
}

/// Returns a hello without TLS, for a destination that the far relay allows.
fn plain_hello(rig: &Rig) -> Vec<u8> {
    let hello = Hello {
        source: "192.0.2.1:1234".parse().unwrap(),
        destination: Target::Addr(rig.server.local_addr().unwrap()),
        receiver: "far".parse().unwrap(),
        route: Vec::new(),
        hops_left: 8,
        session: SessionId([7; 16]),
        passed: Default::default(),
    };
    hello.encode()
}

#[test]
fn without_an_attack_both_streams_arrive_whole() {
    let rig = Rig::new();
    for _ in 0..3 {
        assert!(rig.session(&Mode::Pass));
    }
    // The places that are attacked exist.
    let [to_far, to_near] = [rig.path.recorded_to_far(), rig.path.recorded_to_near()];
    assert!(to_far.len() > 20 && to_near.len() > 20);
}

#[test]
fn altered_records() {
    assert_eq!(attack(&Rig::new(), &Kind::Alter), 0);
}

#[test]
fn dropped_records() {
    assert_eq!(attack(&Rig::new(), &Kind::Drop), 0);
}

#[test]
fn duplicated_records() {
    assert_eq!(attack(&Rig::new(), &Kind::Duplicate), 0);
}

#[test]
fn records_in_another_order() {
    assert_eq!(attack(&Rig::new(), &Kind::Delay), 0);
}

#[test]
fn streams_cut_between_records() {
    assert_eq!(attack(&Rig::new(), &Kind::CutBehind), 0);
}

#[test]
fn streams_cut_within_records() {
    assert_eq!(attack(&Rig::new(), &Kind::CutWithin), 0);
}

#[test]
fn injected_records() {
    assert_eq!(attack(&Rig::new(), &Kind::Inject(forged())), 0);
}

#[test]
fn injected_plaintext() {
    let rig = Rig::new();
    let hello = plain_hello(&rig);
    assert_eq!(attack(&rig, &Kind::Inject(hello)), 0);
}

#[test]
fn records_of_another_connection() {
    let rig = Rig::new();
    assert!(rig.session(&Mode::Pass));
    let recorded = [rig.path.recorded_to_far(), rig.path.recorded_to_near()];
    for (direction, recorded) in [Direction::ToFar, Direction::ToNear]
        .into_iter()
        .zip(recorded)
    {
        let protected: Vec<_> = recorded.into_iter().filter(|r| r[0] == 23).collect();
        for at in PLACES {
            let kind = Kind::Replace(protected[at].clone());
            let mode = Mode::Attack {
                kind,
                direction,
                at,
            };
            assert!(!rig.session(&mode));
        }
    }
    assert!(rig.session(&Mode::Pass));
}

#[test]
fn an_attacker_who_resets_one_end_and_goes_on_in_its_place() {
    let rig = Rig::new();
    assert_eq!(attack(&rig, &Kind::TakeOver(forged())), 0);
    let hello = plain_hello(&rig);
    assert_eq!(attack(&rig, &Kind::TakeOver(hello)), 0);
}

#[test]
fn records_sent_back_to_their_sender() {
    let rig = Rig::new();
    assert_eq!(attack(&rig, &Kind::Reflect), 0);
    for at in PLACES {
        let mode = Mode::Attack {
            kind: Kind::Reflect,
            direction: Direction::Both,
            at,
        };
        assert!(!rig.session(&mode));
    }
    assert!(rig.session(&Mode::Pass));
}

#[test]
fn hellos_without_tls() {
    use std::io::{Read, Write};
    let rig = Rig::new();
    for bytes in [plain_hello(&rig), forged()] {
        let mut far = rig.far_port();
        far.write_all(&bytes).unwrap();
        let _ = far.write_all(b"bytes of a client");
        let mut answer = Vec::new();
        let _ = far.read_to_end(&mut answer);
        // An alert at most.
        assert!(answer.is_empty() || answer[0] == 21);
        super::rig::wait_until("quiet", || rig.is_quiet());
        assert!(rig.accept().is_none());
    }
    assert_eq!(rig.hellos(), 0);
    assert!(rig.session(&Mode::Pass));
}
