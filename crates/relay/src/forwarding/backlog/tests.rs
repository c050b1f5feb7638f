//! Backlogs between a source that has as much as its window allows, and a sink with a rate, in virtual time.

use std::cell::Cell;
use std::collections::VecDeque;

use super::*;

const TICK: Duration = Duration::from_millis(5);
const MIB: u64 = 1 << 20;

/// The bytes that one read takes at most.
const READ: u64 = 64 << 10;

/// The first interval of probes of a window that has no room for a segment. It doubles with each that brings nothing.
const PROBES: Duration = Duration::from_millis(200);

/// The doublings until the interval is the longest, two minutes.
const BACK_OFF: u32 = 9;

/// The interval of delayed acknowledgements.
const DELAYED_ACK: Duration = Duration::from_millis(40);

/// The reads of one turn.
const READS: usize = 8;

/// The payload of a segment.
const SEGMENT: u64 = 1448;

/// The least clamp of Linux, half of SOCK_MIN_RCVBUF.
const LEAST_CLAMP: u64 = 1152;

/// A connection whose peer sends whatever the window allows, as Linux does.
struct Source {
    buffer: Cell<u64>,
    /// Whether it acknowledges each segment, as Linux does for a peer that sends one at a time.
    is_quick: bool,
    /// What came without room in the buffer.
    dropped: u64,
    round_trip: Duration,
    clamp: Cell<u64>,
    /// `rcv_ssthresh`: the window that the kernel advertises at most until more arrives.
    slow_start: Cell<u64>,
    arrived: u64,
    /// The tick of the last arrival.
    arrived_at: u32,
    acknowledged: u64,
    read: u64,
    sent: u64,
    /// The tick of the last transmission or probe.
    sent_at: u32,
    back_off: u32,
    /// The stream up to here may be sent.
    edge: u64,
    /// Ends of parts of the stream that are under way, by the tick of their arrival.
    under_way: VecDeque<(u32, u64)>,
}

#[derive(Default)]
struct Sink {
    unsent: u64,
    limit: Cell<u64>,
}

struct Stream {
    source: Source,
    sink: Sink,
    backlog: Backlog,
    start: Instant,
    tick: u32,
    limited: u32,
}

impl Buffered for Source {
    fn unread(&self) -> u64 {
        self.arrived - self.read
    }

    fn path(&self) -> (Duration, u64) {
        (self.round_trip, SEGMENT)
    }

    fn largest_window(&self) -> Option<u64> {
        Some(self.clamp.get())
    }

    fn limit_window(&self, bytes: u64) {
        let clamp = bytes.max(LEAST_CLAMP);
        let slow_start = match clamp < self.clamp.replace(clamp) {
            true => self.slow_start.get().min(clamp),
            false => self
                .slow_start
                .get()
                .max(clamp.min(self.edge - self.arrived)),
        };
        self.slow_start.set(slow_start);
    }

    fn unlimit_window(&self) {
        self.limit_window(u64::MAX);
    }

    fn buffer(&self) -> Option<Buffer> {
        Some(Buffer {
            used: self.unread(),
            size: self.buffer.get(),
            window: self.edge - self.arrived,
            may_limit: true,
        })
    }

    fn limit_buffer(&self, bytes: u64) -> bool {
        self.buffer.set(bytes);
        true
    }

    fn unlimit_buffer(&self, bytes: u64) {
        self.buffer.set(bytes);
    }

    fn limit_unsent(&self, _: u64) {
        panic!("nothing is sent to it");
    }
}

impl Buffered for Sink {
    fn unread(&self) -> u64 {
        panic!("nothing is read from it");
    }

    fn path(&self) -> (Duration, u64) {
        panic!("nothing comes from it");
    }

    fn largest_window(&self) -> Option<u64> {
        panic!("nothing comes from it");
    }

    fn limit_window(&self, _: u64) {
        panic!("nothing comes from it");
    }

    fn unlimit_window(&self) {
        panic!("nothing comes from it");
    }

    fn buffer(&self) -> Option<Buffer> {
        panic!("nothing comes from it");
    }

    fn limit_buffer(&self, _: u64) -> bool {
        panic!("nothing comes from it");
    }

    fn unlimit_buffer(&self, _: u64) {
        panic!("nothing comes from it");
    }

    fn limit_unsent(&self, bytes: u64) {
        self.limit.set(bytes);
    }
}

impl Source {
    /// Sends an acknowledgement, which tells the window.
    fn advertise(&mut self) {
        self.edge = self.edge.max(self.arrived + self.window());
        self.acknowledged = self.arrived;
    }

    fn window(&self) -> u64 {
        let room = self.buffer.get().saturating_sub(self.unread());
        room.min(self.clamp.get()).min(self.slow_start.get())
    }

    /// Reads a part, and tells the window if that has become twice as large.
    fn read(&mut self) -> u64 {
        let part = self.unread().min(READ);
        self.read += part;
        let told = self.edge - self.arrived;
        if 2 * told <= self.clamp.get() && self.window() >= 2 * told {
            self.advertise();
        }
        part
    }

    /// Lets a tick pass. The peer sends whole segments, and a part of one only as a probe.
    fn tick(&mut self, tick: u32) {
        let ticks = |time: Duration| u32::try_from(time.as_millis() / TICK.as_millis()).unwrap();
        let room = self.edge - self.sent;
        let is_due = tick >= self.sent_at + (ticks(PROBES) << self.back_off);
        let is_probe = self.under_way.is_empty() && room < SEGMENT && is_due;
        let len = if is_probe {
            room
        } else {
            room - room % SEGMENT
        };
        if len > 0 {
            self.sent += len;
            self.back_off = 0;
            let arrival = tick + ticks(self.round_trip).max(1);
            self.under_way.push_back((arrival, self.sent));
        } else if is_probe {
            self.back_off = (self.back_off + 1).min(BACK_OFF);
        }
        if len > 0 || is_probe {
            self.sent_at = tick;
        }
        while let Some(&(arrival, end)) = self.under_way.front()
            && arrival <= tick
        {
            self.under_way.pop_front();
            // The kernel widens the window by two segments for each that arrives.
            let room = self.buffer.get().saturating_sub(self.unread());
            self.dropped += (end - self.arrived).saturating_sub(room);
            let wider = self.slow_start.get() + 2 * (end - self.arrived);
            self.arrived = end;
            self.arrived_at = tick;
            self.slow_start.set(wider.min(self.clamp.get()));
        }
        let due = self.arrived - self.acknowledged;
        let is_late = self.is_quick || tick >= self.arrived_at + ticks(DELAYED_ACK);
        if due > SEGMENT || (due > 0 && is_late) {
            self.advertise();
        }
    }
}

impl Stream {
    /// A stream through a receive buffer and a send buffer of `buffer` bytes.
    fn new(buffer: u64, round_trip: Duration) -> Self {
        let source = Source {
            buffer: Cell::new(buffer),
            is_quick: false,
            dropped: 0,
            round_trip,
            clamp: Cell::new(buffer),
            slow_start: Cell::new(buffer),
            arrived: 0,
            arrived_at: 0,
            acknowledged: 0,
            read: 0,
            sent: 0,
            sent_at: 0,
            back_off: 0,
            edge: buffer,
            under_way: VecDeque::new(),
        };
        let sink = Sink {
            unsent: 0,
            limit: Cell::new(buffer),
        };
        Self {
            source,
            sink,
            backlog: Backlog::default(),
            start: Instant::now(),
            tick: 0,
            limited: 0,
        }
    }

    /// Runs with a sink that takes `rate` bytes per second. Returns how many it takes.
    fn run(&mut self, time: Duration, rate: u64) -> u64 {
        let mut taken = 0;
        for _ in 0..time.as_millis() / TICK.as_millis() {
            self.tick += 1;
            self.source.tick(self.tick);
            let mut capacity = in_time(rate, TICK);
            let now = self.start + self.tick * TICK;
            // The sink reports room again and again.
            loop {
                let sent = self.sink.unsent.min(capacity);
                self.sink.unsent -= sent;
                capacity -= sent;
                taken += sent;
                self.backlog.before_turn(&self.source);
                let before = self.source.read;
                for _ in 0..READS {
                    if self.sink.unsent >= self.sink.limit.get() {
                        break;
                    }
                    let part = self.source.read();
                    self.sink.unsent += part;
                }
                let moved = self.source.read;
                let limited = self
                    .backlog
                    .after_turn(moved, now, &self.source, &self.sink);
                self.limited += u32::from(limited);
                if moved == before || capacity == 0 {
                    break;
                }
            }
        }
        taken
    }

    fn waiting(&self) -> u64 {
        self.source.unread() + self.sink.unsent
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// Round trips of sources in this machine's network, in a region, and far away.
const ROUND_TRIPS: [u64; 3] = [5, 20, 275];

fn streams(buffer: u64) -> impl Iterator<Item = Stream> {
    ROUND_TRIPS
        .map(|millis| Stream::new(buffer, Duration::from_millis(millis)))
        .into_iter()
}

#[test]
fn what_waits_for_a_slow_sink_is_what_it_takes_in_a_second() {
    for rate in [100_000, 500_000, 2_000_000] {
        for mut stream in streams(16 * MIB) {
            // What came at once, before its rate was known, has to go first. Meanwhile, a segment comes with each delayed
            // acknowledgement.
            let first = Duration::from_secs(17 * MIB / (rate - 25 * SEGMENT));
            stream.run(first + 5 * SECOND, rate);
            let taken = stream.run(20 * SECOND, rate);
            assert!(taken >= rate * 20 * 99 / 100, "{taken} of {}", rate * 20);
            // A window is adapted when it is off by an eighth, and a read may exceed what may be unsent.
            let least = LEAST + LEAST / 8 + LEAST + READ;
            let most = rate.max(least) + READ;
            assert!(stream.waiting() <= most, "{} > {most}", stream.waiting());
            assert_eq!((stream.limited, stream.source.dropped), (1, 0));
        }
    }
}

#[test]
fn a_near_source_does_not_fill_its_buffer_in_front_of_a_slow_sink() {
    for rate in [100_000, 200_000] {
        let mut stream = Stream::new(16 * MIB, Duration::from_millis(5));
        stream.source.is_quick = true;
        // A quarter of what the sink takes comes again.
        stream.run(Duration::from_secs(24 * MIB / rate) + 20 * SECOND, rate);
        let taken = stream.run(20 * SECOND, rate);
        assert!(taken >= rate * 20 * 99 / 100, "{taken} of {}", rate * 20);
        let most = 3 * LEAST + READ;
        assert!(stream.waiting() <= most, "{} > {most}", stream.waiting());
        assert_eq!((stream.limited, stream.source.dropped), (1, 0));
        // Its buffer is as large as before once the sink is fast.
        stream.run(20 * SECOND, 100_000_000);
        assert_eq!(stream.source.buffer.get(), 16 * MIB);
    }
}

#[test]
fn a_fast_sink_is_never_limited() {
    for mut stream in streams(16 * MIB) {
        stream.run(30 * SECOND, 1_000_000_000);
        assert_eq!(stream.limited, 0);
        assert_eq!(stream.source.clamp.get(), 16 * MIB);
    }
}

/// A sink in slow start takes twice as much in every round trip of its own.
#[test]
fn a_sink_in_slow_start_is_not_limited() {
    for sink_round_trip in [10, 100, 275] {
        for mut stream in streams(8 * MIB) {
            for round in 0..16 {
                let rate = (14_480 << round) * 1000 / sink_round_trip;
                stream.run(
                    Duration::from_millis(sink_round_trip),
                    rate.min(125_000_000),
                );
            }
            assert_eq!(stream.limited, 0);
        }
    }
}

/// A video player, say: it reads for a while, and pauses as long.
#[test]
fn a_sink_that_pauses_goes_on_as_fast_as_before() {
    let pauses = [300, 600, 900, 1000, 2000].into_iter();
    for (mut stream, millis) in pauses.flat_map(|ms| streams(16 * MIB).map(move |s| (s, ms))) {
        let pause = Duration::from_millis(millis);
        stream.run(60 * SECOND, 2_000_000);
        let mut taken = 0;
        for _ in 0..20_000 / millis {
            stream.run(pause, 0);
            taken += stream.run(pause, 2_000_000);
        }
        assert!(taken >= 34_000_000, "{taken} of 40 MB");
        assert!(stream.waiting() <= 1_500_000, "{}", stream.waiting());
    }
}

#[test]
fn a_sink_that_becomes_faster_is_followed() {
    for mut stream in streams(16 * MIB) {
        stream.run(60 * SECOND, 500_000);
        stream.run(5 * SECOND, 20_000_000);
        let taken = stream.run(10 * SECOND, 20_000_000);
        assert!(taken >= 190_000_000, "{taken}");
    }
}

#[test]
fn a_sink_that_stops_for_minutes_goes_on_at_once() {
    for mut stream in streams(16 * MIB) {
        stream.run(60 * SECOND, 500_000);
        assert_eq!(stream.run(600 * SECOND, 0), 0);
        assert_eq!(stream.backlog.next(), None);
        stream.run(2 * SECOND, 500_000);
        let taken = stream.run(10 * SECOND, 500_000);
        assert!(taken >= 4_950_000, "{taken}");
    }
}
