//! Frames that reach the tap from two CPUs at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use taut_snoop::wire::Mode;
use taut_sys::tap::Tap;

use crate::conn::{Conn, Terms};
use crate::early_ack::ON;
use crate::rig::{Rig, Segment, marker};

/// How long a frame may take to a program or to the peer: a busy CPU forwards it later.
const PATIENCE: Duration = Duration::from_secs(30);

const WIDE: Terms = Terms {
    scale: Some(7),
    timestamps: true,
    mss: 1460,
    window: 1 << 20,
    peer_isn: 0u32.wrapping_sub(50_000),
    guest_isn: 9_000_000,
    port: 5000,
};

/// Returns two CPUs, or reports the test as skipped.
fn two_cpus() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).unwrap();
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let two = [cpus.next(), cpus.next()];
    let [Some(first), Some(second)] = two else {
        taut_sys_testing::skip::skip("this process may use one CPU only, and the test takes two");
        return None;
    };
    Some([first, second])
}

/// Each writes its frames from a CPU of its own, the n-th frames of both at the same time.
fn write_at_once(cpus: [usize; 2], work: [(&Tap, &[Vec<u8>]); 2]) {
    let ready = AtomicUsize::new(0);
    let write_all = |cpu: usize, tap: &Tap, frames: &[Vec<u8>]| {
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only).unwrap();
        let mut written = Ok(());
        for (before, frame) in frames.iter().enumerate() {
            ready.fetch_add(1, Ordering::AcqRel);
            while ready.load(Ordering::Acquire) < 2 * (before + 1) {
                std::hint::spin_loop();
            }
            written = written.and(tap.write(frame));
        }
        written
    };
    assert_eq!(
        work[0].1.len(),
        work[1].1.len(),
        "else one waits for the other"
    );
    thread::scope(|scope| {
        let writers = [0, 1].map(|n| {
            let (tap, frames) = work[n];
            scope.spawn(move || write_all(cpus[n], tap, frames))
        });
        for writer in writers {
            writer.join().unwrap().unwrap();
        }
    });
}

/// Waits until the programs have acknowledged `count` segments early.
fn await_acked(rig: &Rig, before: u64, count: u32) {
    let until = Instant::now() + PATIENCE;
    while rig.exits("acked") - before < u64::from(count) {
        let acked = rig.exits("acked") - before;
        assert!(Instant::now() < until, "{acked} of {count}");
        thread::yield_now();
    }
}

/// Returns what the peer received once all early ACKs have arrived.
fn acks_at_peer(rig: &mut Rig, acked_before: u64) -> Vec<Segment> {
    let acked = rig.exits("acked") - acked_before;
    let until = Instant::now() + PATIENCE;
    let mut seen = Vec::new();
    while (seen.len() as u64) < acked {
        assert!(Instant::now() < until, "{} of {acked} came", seen.len());
        seen.extend(rig.at_peer());
        thread::yield_now();
    }
    seen.extend(rig.at_peer());
    seen
}

/// Returns the acknowledgment numbers in order.
fn numbers(seen: &[Segment], from: u32) -> Vec<u32> {
    let mut numbers: Vec<_> = seen.iter().map(|ack| ack.ack).collect();
    numbers.sort_by_key(|ack| ack.wrapping_sub(from));
    numbers
}

/// The guest acknowledges everything.
fn guest_takes(rig: &mut Rig, conn: &mut Conn) {
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
}

#[test]
fn two_flows_on_two_cpus_do_not_disturb_each_other() {
    const SEGMENTS: u32 = 200;
    let Some(cpus) = two_cpus() else { return };
    let mut rig = Rig::new(500, ON);
    let mut conns = [5000, 5001].map(|port| Conn::new(Terms { port, ..WIDE }));
    for conn in &mut conns {
        conn.open_and_prove(&mut rig);
    }
    for round in 1..=10 {
        let before = rig.exits("acked");
        let starts = [0, 1].map(|n| conns[n].peer_seq);
        let frames = conns.each_mut().map(|conn| {
            // (The programs verify the checksum.)
            let frame = |_| rig.frame(false, &conn.data(1000));
            (0..SEGMENTS).map(frame).collect::<Vec<_>>()
        });
        write_at_once(cpus, [(&rig.peer, &frames[0]), (&rig.peer, &frames[1])]);
        let acks = acks_at_peer(&mut rig, before);
        let seen = rig.at_guest();
        rig.checker.settle();
        for (conn, start) in conns.iter().zip(starts) {
            let port = conn.terms.port;
            let ends: Vec<_> = (1..=SEGMENTS)
                .map(|n| start.wrapping_add(n * 1000))
                .collect();
            let own: Vec<_> = acks
                .iter()
                .filter(|ack| ack.ports.1 == port)
                .cloned()
                .collect();
            assert_eq!(numbers(&own, start), ends, "round {round}, port {port}");
            let got: Vec<_> = seen
                .iter()
                .filter(|segment| segment.ports.0 == port)
                .map(|segment| segment.seq.wrapping_add(1000))
                .collect();
            assert_eq!(got, ends, "round {round}, port {port}: the guest's stream");
        }
        for conn in &mut conns {
            guest_takes(&mut rig, conn);
        }
    }
}

#[test]
fn two_copies_of_a_segment_on_two_cpus_get_one_early_ack() {
    const SEGMENTS: u32 = 200;
    let Some(cpus) = two_cpus() else { return };
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(WIDE);
    conn.open_and_prove(&mut rig);
    for round in 1..=10 {
        let before = rig.exits("acked");
        let start = conn.peer_seq;
        let frames: Vec<_> = (0..SEGMENTS)
            .map(|_| rig.frame(false, &conn.data(1000)))
            .collect();
        write_at_once(cpus, [(&rig.peer, &frames), (&rig.peer, &frames)]);
        let acks = acks_at_peer(&mut rig, before);
        let ends: Vec<_> = (1..=SEGMENTS)
            .map(|n| start.wrapping_add(n * 1000))
            .collect();
        assert_eq!(numbers(&acks, start), ends, "round {round}");
        assert_eq!(rig.flow().next_seq, conn.peer_seq);
        assert_eq!(rig.at_guest().len() as u32, 2 * SEGMENTS, "both passed");
        rig.checker.settle();
        guest_takes(&mut rig, &mut conn);
        assert_eq!(rig.flow().exposure(), 0);
    }
}

#[test]
fn neighbouring_segments_that_race_are_acknowledged_in_order_only() {
    let Some(cpus) = two_cpus() else { return };
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(WIDE);
    conn.open_and_prove(&mut rig);
    let mut early_acked = 0;
    for round in 0..300 {
        let before = rig.exits("acked");
        let start = conn.peer_seq;
        let pair = [conn.data(1000), conn.data(500)];
        let mut frames = pair.each_ref().map(|data| vec![rig.frame(false, data)]);
        // The first takes longer, because it is copied: the second comes a little later.
        for _ in 0..round % 8 {
            frames[0].push(marker(false));
            frames[1].insert(0, marker(false));
        }
        write_at_once(cpus, [(&rig.peer, &frames[0]), (&rig.peer, &frames[1])]);
        let acks = acks_at_peer(&mut rig, before);
        let first = start.wrapping_add(1000);
        let told = numbers(&acks, start);
        // No ACK, if the second overtook the first and made it old (PAWS); otherwise for the first,
        // and for its neighbour if that came later.
        assert!(
            [first, conn.peer_seq].starts_with(&told),
            "{told:?} from {start}"
        );
        early_acked += told.len();
        assert_eq!(rig.at_guest().len(), 2);
        rig.checker.settle();
        guest_takes(&mut rig, &mut conn);
    }
    assert!(early_acked > 0, "nothing was tried");
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
    assert_eq!(rig.flow().mode, Mode::Active);
}

#[test]
fn a_concurrent_ack_of_the_guest_revokes_no_early_ack() {
    const SEGMENTS: u32 = 100;
    let Some(cpus) = two_cpus() else { return };
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(WIDE);
    conn.open_and_prove(&mut rig);
    for round in 1..=20 {
        let before = rig.exits("acked");
        let start = conn.peer_seq;
        // Of the previous round, segment by segment; its application does not read. (Before the first round
        // it has nothing to acknowledge, and an ACK that it repeats for 100 ms contradicts an early ACK.)
        let words: Vec<_> = (0..SEGMENTS)
            .map(|n| {
                if round == 1 {
                    return marker(true);
                }
                let ack = conn.guest_acks(start.wrapping_sub((SEGMENTS - 1 - n) * 1000));
                rig.checker.guest_sends(&ack);
                rig.frame(true, &ack)
            })
            .collect();
        let data: Vec<_> = (0..SEGMENTS)
            .map(|_| rig.frame(false, &conn.data(1000)))
            .collect();
        write_at_once(cpus, [(&rig.peer, &data), (&rig.guest, &words)]);
        await_acked(&rig, before, SEGMENTS);
        assert_eq!(rig.flow().next_seq, conn.peer_seq, "round {round}");
        let told = acks_at_peer(&mut rig, before);
        let highest = numbers(&told, start.wrapping_sub(1 << 30)).pop();
        assert_eq!(highest, Some(conn.peer_seq));
        assert_eq!(rig.at_guest().len() as u32, SEGMENTS);
        rig.checker.settle();
    }
}
