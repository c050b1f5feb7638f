//! Attacks with whole connections: replayed, led elsewhere, or answered by the attacker.

use std::io::{Read, Write};

use super::path::Mode;
use super::rig::{Rig, wait_until};

#[test]
fn a_recorded_connection_that_is_replayed() {
    let rig = Rig::new();
    assert!(rig.session(&Mode::Pass));
    let recorded = rig.path.recorded_to_far();
    let hellos = rig.hellos();
    // All at once, and one record at a time behind the answers of the relay.
    for at_once in [true, false] {
        let mut far = rig.far_port();
        if at_once {
            let _ = far.write_all(&recorded.concat());
        } else {
            for record in &recorded {
                if far.write_all(record).is_err() {
                    break;
                }
            }
        }
        let _ = far.shutdown(std::net::Shutdown::Write);
        let _ = far.read_to_end(&mut Vec::new());
        wait_until("quiet", || rig.is_quiet());
        assert!(rig.accept().is_none(), "the replay was dialled");
    }
    // Without its handshake, behind one that is under way.
    for skipped in 1..4 {
        let mut far = rig.far_port();
        let _ = far.write_all(&recorded[0]);
        let _ = far.read(&mut [0; 4096]);
        let _ = far.write_all(&recorded[skipped..].concat());
        let _ = far.shutdown(std::net::Shutdown::Write);
        let _ = far.read_to_end(&mut Vec::new());
        wait_until("quiet", || rig.is_quiet());
        assert!(rig.accept().is_none(), "the replay was dialled");
    }
    assert_eq!(rig.hellos(), hellos);
    assert!(rig.session(&Mode::Pass));
}

#[test]
fn a_connection_that_is_led_to_another_member() {
    let rig = Rig::new();
    let third = rig.third.mesh_addrs()[0].0;
    assert!(!rig.session(&Mode::Redirect(third)));
    assert!(rig.path.attacked() > 0);
    assert_eq!(rig.hellos(), 0);
    assert!(rig.session(&Mode::Pass));
}

#[test]
fn a_connection_that_is_led_back_to_its_sender() {
    let rig = Rig::new();
    assert!(!rig.session(&Mode::Redirect(rig.near_port())));
    assert!(rig.path.attacked() > 0);
    assert_eq!(rig.hellos(), 0);
    assert!(rig.session(&Mode::Pass));
}

#[test]
fn a_connection_that_is_answered_without_tls() {
    let rig = Rig::new();
    for answer in [&b""[..], b"HTTP/1.1 200 OK\r\n\r\n", &[23, 3, 3, 0, 1, 0]] {
        assert!(!rig.session(&Mode::Answer(answer.to_vec())));
        // The relay has sent no more than the start of a handshake, and no word of the session.
        let sent = rig.path.recorded_to_far().concat();
        let destination = rig.server.local_addr().unwrap();
        let hello_begins = b"\r\n\r\n\0\r\nQUIT\n";
        assert_eq!(sent[0], 22);
        assert!(!sent.windows(12).any(|w| w == hello_begins));
        let port = [&[127, 0, 0, 1][..], &destination.port().to_be_bytes()].concat();
        assert!(!sent.windows(6).any(|w| w == port));
    }
    assert_eq!(rig.hellos(), 0);
    assert!(rig.session(&Mode::Pass));
}
