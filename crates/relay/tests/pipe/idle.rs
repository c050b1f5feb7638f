//! Idle connections, and how much they may send afterwards.

use std::time::Duration;

use taut_netlab::link::shape::Shape;
use taut_sys::socket::{LegOptions, Stream};

use crate::rig::{
    Relays, WINDOW, congestion, mesh, pipe, plain, receive, send, wait_until, window,
};

/// So long that 2 MB at the pipe's rate (16 ms) are sent before any of it is acknowledged, whatever
/// else this machine does.
const DELAY: Duration = Duration::from_millis(300);

/// Idle times after which a connection must be as good as new. They have to pass, because the
/// kernel's reduction of a window in idle time is the subject here: it halves one that has been idle
/// for a retransmission time-out (1.2 s here or less, RFC 2861 section 3.2).
const IDLE: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_secs(1),
    Duration::from_secs(5),
];

fn relays(name: &str) -> Relays {
    Relays::new(name, 0, Shape::delay(DELAY), Shape::delay(DELAY))
}

fn announced(stream: &Stream) -> u32 {
    stream.info().unwrap().snd_wnd.unwrap()
}

/// Sends 2 MB at once, and asserts that all of it was sent before any was acknowledged.
fn sends_two_megabytes_in_one_go(from: &Stream, to: &Stream) {
    let len = WINDOW as usize * 9 / 10;
    let before = from.info().unwrap().delivered;
    send(from, len);
    wait_until("everything to be sent", || from.unsent() == 0);
    let info = from.info().unwrap();
    assert_eq!(
        info.delivered, before,
        "segments acknowledged before the last was sent"
    );
    assert_eq!(receive(to, len), len);
}

#[test]
fn an_idle_mesh_leg_sends_two_megabytes_at_once_after_0_1_and_5_seconds() {
    let mut relays = relays("pipe-idle");
    let listener = relays.listen(&mesh());
    let pairs = IDLE.map(|idle| (idle, relays.connect(&listener, &mesh())));
    for (_, (near, _)) in &pairs {
        // Never used so far: the far end has sent only a SYN-ACK.
        assert!(announced(near) <= 0xFFFF);
        near.probe_peer_window().unwrap();
    }
    std::thread::scope(|scope| {
        for (idle, (near, far)) in &pairs {
            scope.spawn(move || {
                wait_until("the window", || announced(near) >= WINDOW);
                std::thread::sleep(*idle);
                for (from, to) in [(near, far), (far, near)] {
                    assert!(window(from) >= WINDOW - from.info().unwrap().snd_mss);
                    assert!(announced(from) >= WINDOW, "{}", announced(from));
                    sends_two_megabytes_in_one_go(from, to);
                    assert!(window(from) >= WINDOW - from.info().unwrap().snd_mss);
                }
            });
        }
    });
}

#[test]
fn a_byte_from_either_end_announces_the_window() {
    let mut relays = relays("pipe-byte");
    let listener = relays.listen(&mesh());
    for talks in 0..2 {
        let (near, far) = relays.connect(&listener, &mesh());
        assert!(announced(&near) <= 0xFFFF);
        assert!(
            announced(&far) >= WINDOW,
            "the handshake's last segment carries it"
        );
        [&near, &far][talks].send(b"x").unwrap();
        wait_until("the window", || announced(&near) >= WINDOW);
    }
}

/// The kernel's defaults of a socket.
#[test]
fn a_leg_without_a_profile_has_the_kernels_defaults() {
    // The pipe is loaded, but not used by it.
    pipe();
    let mut relays = relays("pipe-plain");
    let listener = relays.listen(&plain());
    let (near, far) = relays.connect(&listener, &plain());
    let default = relays.near_sysctl("net.ipv4.tcp_congestion_control");
    let second = |key| -> usize {
        let all = relays.near_sysctl(key);
        all.split(' ').nth(1).unwrap().parse().unwrap()
    };
    for stream in [&near, &far] {
        let info = stream.info().unwrap();
        assert_eq!(info.snd_cwnd, 10, "RFC 6928");
        assert!(info.rcv_ssthresh < 1 << 16);
        assert!(announced(stream) < 1 << 16);
        assert_eq!(congestion(stream), default);
        let receive = rustix::net::sockopt::socket_recv_buffer_size(stream).unwrap();
        assert_eq!(receive, second("net.ipv4.tcp_rmem"));
    }
    // So it takes many round trips for what a mesh leg sends in one.
    let before = near.info().unwrap().delivered;
    near.send(&vec![0; 1 << 20]).unwrap();
    wait_until("an acknowledgement", || {
        near.info().unwrap().delivered > before
    });
    assert!(near.unsent() > 0);
}

#[test]
fn a_pacing_ceiling_lowers_the_rate_of_a_mesh_leg() {
    let mut relays = relays("pipe-ceiling");
    let listener = relays.listen(&mesh());
    let ceiling = 1_000_000;
    let slow = LegOptions {
        pacing_ceiling: Some(ceiling),
        ..mesh()
    };
    let (near, far) = relays.connect(&listener, &slow);
    assert_eq!(near.info().unwrap().pacing_rate, Some(ceiling));
    assert_eq!(far.info().unwrap().pacing_rate, Some(125_000_000));
    send(&near, 1 << 16);
    receive(&far, 1 << 16);
    assert_eq!(near.info().unwrap().pacing_rate, Some(ceiling));
}
