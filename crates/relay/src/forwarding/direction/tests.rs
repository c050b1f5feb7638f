use proptest::prelude::*;
use taut_sys::Errno;
use taut_sys::epoll::Readiness;

use super::*;
use crate::forwarding::sim::{SimBuffers, SimLeg};

#[derive(Clone, Debug)]
enum Event {
    Arrive(usize),
    Urgent,
    /// The source is put into a sockmap.
    Sockmap,
    Room(usize),
    End,
    Reset,
    /// Gives the direction a turn although no event was reported.
    Turn,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        5 => (1usize..40).prop_map(Event::Arrive),
        1 => Just(Event::Urgent),
        1 => Just(Event::Sockmap),
        4 => (1usize..40).prop_map(Event::Room),
        1 => Just(Event::Turn),
    ]
}

fn last() -> impl Strategy<Value = Event> {
    prop_oneof![3 => Just(Event::End), 1 => Just(Event::Reset)]
}

/// A direction between two legs, and the bytes that it is expected to forward.
struct Bench {
    from: SimLeg,
    to: SimLeg,
    direction: Direction<crate::forwarding::sim::SimPipe>,
    io: SimBuffers,
    said: Vec<u8>,
    broken: bool,
}

impl Bench {
    fn new(splice_after: Option<u64>, pipes: usize, scratch: usize) -> Self {
        Self {
            from: SimLeg::default(),
            to: SimLeg::default(),
            direction: Direction::new(),
            io: SimBuffers::new(splice_after, pipes, scratch),
            said: Vec::new(),
            broken: false,
        }
    }

    fn play(&mut self, event: &Event) {
        match event {
            Event::Arrive(n) => {
                let from = self.said.len();
                self.said
                    .extend((from..from + n).map(|i| (i * 31 % 251) as u8));
                let ready = self.from.arrive(&self.said[from..]);
                self.direction.handle_source(ready);
            }
            Event::Urgent => {
                let ready = self.from.mark_urgent();
                self.direction.handle_source(ready);
            }
            Event::Sockmap => self.from.enter_sockmap(),
            Event::Room(n) => {
                let ready = self.to.make_room(*n);
                self.direction.handle_sink(ready);
            }
            Event::End => {
                let ready = self.from.end();
                self.direction.handle_source(ready);
            }
            Event::Reset => {
                let ready = self.from.fail(Errno::CONNRESET);
                self.direction.handle_source(ready);
            }
            Event::Turn => {}
        }
        self.turn();
    }

    fn turn(&mut self) {
        for _ in 0..10_000 {
            match self
                .direction
                .turn(&mut self.from, &mut self.to, &mut self.io)
            {
                Ok(Turn::Yielded) => {}
                Ok(Turn::Blocked | Turn::Ended) => return,
                Err(Fault::From(_)) => {
                    self.broken = true;
                    self.direction.break_off();
                }
                Err(Fault::To(e)) => panic!("the sink failed: {e}"),
            }
        }
        panic!("the direction never stops");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// In any order of events: the bytes that come out are those that went in, no byte that could
    /// move is held back, and FIN comes once and last, and never after a reset.
    #[test]
    fn the_bytes_that_come_out_are_those_that_went_in(
        events in prop::collection::vec(event(), 0..60),
        last in last(),
        splice_after in prop::option::of(0u64..60),
        pipes in 0usize..2,
        scratch in 1usize..50,
    ) {
        let mut bench = Bench::new(splice_after, pipes, scratch);
        for event in &events {
            bench.play(event);
            let sent = bench.to.sent();
            prop_assert_eq!(&sent[..], &bench.said[..sent.len()]);
            prop_assert!(!bench.to.fin_sent());
        }
        // There is unlimited room, and every edge has been reported.
        bench.play(&Event::Room(1 << 20));
        prop_assert_eq!(bench.to.sent(), bench.said.clone());
        bench.play(&last);
        prop_assert_eq!(bench.to.sent(), bench.said.clone());
        prop_assert_eq!(bench.to.fin_sent(), matches!(last, Event::End));
        prop_assert!(bench.direction.finished());
        prop_assert_eq!(bench.broken, matches!(last, Event::Reset));
        prop_assert_eq!(bench.io.lent, 0);
        prop_assert_eq!(bench.direction.moved(), bench.said.len() as u64);
    }
}

#[test]
fn no_byte_is_read_without_room_for_it() {
    let mut bench = Bench::new(None, 0, 16);
    bench.play(&Event::Room(10));
    bench.play(&Event::Arrive(100));
    // Ten bytes were written and at most one chunk is held. The rest stays in the receive queue,
    // where it closes the window.
    assert_eq!(bench.to.sent().len(), 10);
    assert!(bench.from.unread() >= 100 - 10 - 16);

    // Without room for a chunk, none is read.
    let mut bench = Bench::new(None, 0, 16);
    bench.play(&Event::Arrive(5));
    assert_eq!(bench.from.unread(), 5);
}

#[test]
fn a_pipe_is_held_only_while_bytes_are_in_it() {
    let mut bench = Bench::new(Some(0), 1, 16);
    bench.play(&Event::Room(10));
    bench.play(&Event::Arrive(20));
    assert_eq!(bench.io.lent, 1);
    bench.play(&Event::Room(10));
    assert_eq!(bench.io.lent, 0);
}

#[test]
fn what_splice_does_not_see_is_copied() {
    let mut bench = Bench::new(Some(10), 1, 16);
    bench.play(&Event::Room(1 << 20));
    bench.play(&Event::Arrive(40));
    assert!(bench.direction.spliced());
    bench.play(&Event::Sockmap);
    // More than a read takes at once.
    bench.play(&Event::Arrive(100));
    bench.play(&Event::Arrive(7));
    assert_eq!(bench.to.sent(), bench.said);
    bench.play(&Event::End);
    assert!(bench.to.fin_sent());
    assert_eq!(bench.io.lent, 0);
}

#[test]
fn what_splice_does_not_see_is_copied_when_splice_takes_over() {
    let mut bench = Bench::new(Some(32), 1, 16);
    bench.play(&Event::Sockmap);
    bench.play(&Event::Room(1 << 20));
    // Two reads copy the first 32 bytes, and no other edge follows for the rest.
    bench.play(&Event::Arrive(100));
    assert_eq!(bench.to.sent(), bench.said);
    assert!(!bench.direction.spliced());
}

#[test]
fn a_long_stream_yields_to_others() {
    let mut bench = Bench::new(None, 0, 64 << 10);
    bench.to.make_room(usize::MAX / 2);
    bench.direction.handle_sink(Readiness::ROOM);
    let segment = vec![7; 64 << 10];
    for _ in 0..20 {
        let ready = bench.from.arrive(&segment);
        bench.direction.handle_source(ready);
    }
    let turn = bench
        .direction
        .turn(&mut bench.from, &mut bench.to, &mut bench.io)
        .unwrap();
    assert_eq!(turn, Turn::Yielded);
    assert_eq!(bench.direction.moved(), TURN);
}

#[test]
fn a_failed_sink_is_distinguished_from_a_failed_source() {
    let mut bench = Bench::new(None, 0, 16);
    bench.play(&Event::Room(10));
    bench.to.fail(Errno::PIPE);
    let ready = bench.from.arrive(b"x");
    bench.direction.handle_source(ready);
    let fault = bench
        .direction
        .turn(&mut bench.from, &mut bench.to, &mut bench.io);
    assert_eq!(fault, Err(Fault::To(Errno::PIPE)));
}

/// A workload that is the same in every run, with no I/O and on one thread: half of its bytes are copied, the
/// others spliced.
#[test]
#[ignore = "run under callgrind by scripts/instructions"]
fn copy_loop_for_instruction_count() {
    const STEPS: usize = 100_000;
    let mut state = 1u64;
    let mut random = move |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % below
    };
    for splice_after in [None, Some(0)] {
        let mut bench = Bench::new(splice_after, 1, 50);
        for _ in 0..STEPS / 2 {
            let n = 1 + random(40);
            bench.play(&match random(2) {
                0 => Event::Arrive(n),
                _ => Event::Room(n),
            });
        }
        bench.play(&Event::Room(1 << 30));
        bench.play(&Event::End);
        assert_eq!(bench.to.sent(), bench.said);
        assert!(bench.direction.finished() && bench.direction.spliced() == splice_after.is_some());
    }
}
