use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;
use crate::rows::sim::*;
use crate::rows::{Key, OutsideEntry, Row, neighbours};

const MS: Duration = Duration::from_millis(1);

/// What arrives: when, in which order, at whom, on which of its links.
type Arrival = (Instant, u64, usize, LinkId, Vec<u8>);

/// A mesh in virtual time. A message takes 20 ms to 120 ms.
struct World {
    now: Instant,
    relays: Vec<Relay>,
    coming: BinaryHeap<Reverse<Arrival>>,
    sent: u64,
    /// A link's other end.
    ends: HashMap<(usize, LinkId), (usize, LinkId)>,
}

struct Relay {
    table: Table,
    exchange: Exchange,
}

impl World {
    fn new(n: usize) -> Self {
        let now = Instant::now();
        let list = members(n);
        let relays = (0..n)
            .map(|i| Relay {
                table: Table::new(&name(i), &list),
                exchange: Exchange::new(now),
            })
            .collect();
        let mut world = Self {
            now,
            relays,
            coming: BinaryHeap::new(),
            sent: 0,
            ends: HashMap::new(),
        };
        for from in 0..n {
            for to in neighbours(&name(from), &list, |_| false) {
                let to = (0..n).find(|i| name(*i) == to).unwrap();
                let linked =
                    |((a, _), (b, _)): (&(usize, LinkId), &(usize, LinkId))| (*a, *b) == (from, to);
                if !world.ends.iter().any(linked) {
                    world.link(from, to);
                }
            }
        }
        world
    }

    fn link(&mut self, a: usize, b: usize) {
        let at_a = self.relays[a].exchange.open(self.now).unwrap();
        let at_b = self.relays[b].exchange.open(self.now).unwrap();
        self.ends.insert((a, at_a), (b, at_b));
        self.ends.insert((b, at_b), (a, at_a));
    }

    fn publish(&mut self, of: usize, row: Row) {
        let relay = &mut self.relays[of];
        relay.table.publish(row.sign(&name(of), &key(of)), self.now);
        relay.exchange.changed(id(of), &relay.table);
    }

    /// Runs until every relay has each of these versions, or for `limit`. Returns the time that it
    /// took.
    fn run(&mut self, limit: Duration, versions: &[u64]) -> Option<Duration> {
        let start = self.now;
        while !self.have(versions) {
            for i in 0..self.relays.len() {
                self.flush(i);
            }
            let next = self.relays.iter().filter_map(|r| r.exchange.next(self.now));
            let arrival = self.coming.peek().map(|Reverse((at, ..))| *at);
            self.now = next.chain(arrival).min()?.max(self.now);
            if self.now > start + limit {
                return None;
            }
            while let Some(Reverse((at, ..))) = self.coming.peek()
                && *at <= self.now
            {
                let Some(Reverse((_, _, at, link, bytes))) = self.coming.pop() else {
                    break;
                };
                let Relay { table, exchange } = &mut self.relays[at];
                exchange.receive(link, &bytes, self.now, table).unwrap();
            }
        }
        Some(self.now - start)
    }

    fn flush(&mut self, i: usize) {
        let Relay { table, exchange } = &mut self.relays[i];
        while let Some((link, bytes)) = exchange.poll(self.now, table) {
            let (to, its) = self.ends[&(i, link)];
            self.sent += 1;
            // In order on each link: the delay depends on its ends alone.
            let delay = 20 * MS + MS * u32::try_from((i * 7 + to * 13) % 100).unwrap();
            self.coming
                .push(Reverse((self.now + delay, self.sent, to, its, bytes)));
        }
    }

    /// Returns the bytes and the rows that all relays have sent.
    fn traffic(&self) -> (u64, u64) {
        let all = self.relays.iter().map(|relay| relay.exchange.traffic());
        all.fold((0, 0), |(bytes, rows), t| {
            (bytes + t.sent, rows + t.rows_sent)
        })
    }

    fn have(&self, versions: &[u64]) -> bool {
        self.relays.iter().all(|relay| {
            (0..).zip(versions).all(|(i, version)| {
                relay
                    .table
                    .row(id(i))
                    .is_some_and(|row| row.version == *version)
            })
        })
    }
}

#[test]
fn the_rows_of_all_relays_arrive_at_all_and_then_what_has_changed() {
    let n = 30;
    let mut world = World::new(n);
    for i in 0..n {
        world.publish(i, row(1, (0..n).filter(|to| *to != i), 20));
    }
    let all = world.run(Duration::from_secs(60), &vec![1; n]).unwrap();
    // What was on its way twice arrives, and each may send at once again.
    world.run(Duration::from_secs(30), &vec![u64::MAX; n]);
    let before = world.traffic();
    let mut changed = row(2, (1..n).collect::<Vec<_>>(), 20);
    changed.members[3].figure = figure(300);
    world.publish(0, changed.clone());
    let mut versions = vec![1; n];
    versions[0] = 2;
    let one = world.run(Duration::from_secs(60), &versions).unwrap();
    let after = world.traffic();
    let (bytes, rows) = (after.0 - before.0, after.1 - before.1);
    println!(
        "rows: {n} relays know all rows after {all:?}, a change after {one:?} ({bytes} bytes in all)"
    );
    for relay in &world.relays {
        assert_eq!(relay.table.row(id(0)), Some(&changed));
        assert_eq!(relay.exchange.traffic().refused, 0);
    }
    assert!(one < Duration::from_secs(1), "{one:?}");
    assert!(bytes / rows < 200, "a change is not sent as a whole row");
}

#[test]
fn a_relay_that_was_away_gets_what_it_missed_and_its_own_former_row() {
    let mut world = World::new(3);
    for i in 0..3 {
        world.publish(i, row(7, [(i + 1) % 3], 20));
    }
    world.run(Duration::from_secs(10), &[7, 7, 7]).unwrap();
    // Relay 2 starts again with its clock set back.
    world.relays[2] = Relay {
        table: Table::new(&name(2), &members(3)),
        exchange: Exchange::new(world.now),
    };
    world.coming.clear();
    world.ends.clear();
    for relay in &mut world.relays[..2] {
        relay.exchange = Exchange::new(world.now);
    }
    world.link(0, 2);
    world.publish(2, row(3, [1], 20));
    let (mut own, end) = (None, world.now + Duration::from_secs(5));
    while own.is_none() && world.now < end {
        for i in 0..3 {
            world.flush(i);
        }
        let Some(Reverse((at, _, to, link, bytes))) = world.coming.pop() else {
            break;
        };
        world.now = at;
        let Relay { table, exchange } = &mut world.relays[to];
        let received = exchange.receive(link, &bytes, at, table).unwrap();
        own = own.or(received.into_iter().find(|r| matches!(r, Received::Own(_))));
    }
    assert_eq!(own, Some(Received::Own(7)));
    world.publish(2, row(8, [1], 20));
    world.run(Duration::from_secs(10), &[7, 7, 8]).map_or_else(
        || {
            // Relay 1 has no link to either.
            assert_eq!(world.relays[0].table.row(id(2)).unwrap().version, 8);
        },
        drop,
    );
}

#[test]
fn changes_that_do_not_fit_are_asked_for_as_a_whole() {
    let (now, list) = (Instant::now(), members(2));
    let mut table = Table::new(&name(0), &list);
    let mut exchange = Exchange::new(now);
    let link = exchange.open(now).unwrap();
    let part = RowMessage {
        base: 4,
        ..RowMessage::whole(id(1), &row(5, [0], 20).sign(&name(1), &key(1)), MS)
    };
    let received = exchange.receive(link, &Frame::Row(part.encode()).encode(), now, &mut table);
    assert_eq!(received.unwrap(), [Received::Refused(RowFault::NoBase)]);
    let mut frames = Vec::new();
    let mut sent = Frames::default();
    while let Some((_, bytes)) = exchange.poll(now, &table) {
        sent.receive(&bytes, &mut frames).unwrap();
    }
    // The summary of the start says it already.
    assert!(
        frames
            .iter()
            .any(|frame| matches!(frame, Frame::Summary(entries) if entries.is_empty()))
    );
    exchange
        .receive(link, &Frame::Row(part.encode()).encode(), now, &mut table)
        .unwrap();
    let (_, bytes) = exchange.poll(now, &table).unwrap();
    assert_eq!(
        bytes,
        Frame::Summary([&id(1).0[..], &[0; 8]].concat()).encode()
    );
}

/// A relay of 1,000 whose links all deliver as many changes as 1,000 relays may make.
#[test]
fn a_relay_of_a_thousand_sends_at_most_a_hundred_kbit_a_second() {
    let n = 1000;
    let (start, list) = (Instant::now(), members(n));
    let mut table = Table::new(&name(0), &list);
    let mut exchange = Exchange::new(start);
    let links: Vec<_> = (1..=16).map(|_| exchange.open(start).unwrap()).collect();
    for link in &links {
        let summary = Frame::Summary(Vec::new()).encode();
        exchange
            .receive(*link, &summary, start, &mut table)
            .unwrap();
    }
    let (mut now, mut version, mut arrived) = (start, 0, 0);
    let seconds = 40;
    while now < start + Duration::from_secs(seconds) {
        // Twenty rows a second, each with three changes; half of the links send each.
        now += 50 * MS;
        version += 1;
        let of = usize::try_from(version).unwrap() % n;
        let mut new = row(version, 1..n, 20);
        new.members[of].figure = figure(100);
        let message = RowMessage::whole(id(of), &new.sign(&name(of), &key(of)), MS);
        let bytes = Frame::Row(message.encode()).encode();
        exchange
            .receive(links[of % 16], &bytes, now, &mut table)
            .unwrap();
        arrived += bytes.len();
        while exchange.poll(now, &table).is_some() {}
    }
    let sent = exchange.traffic().sent;
    let rate = |bytes: u64| bytes * 8 / seconds / 1000;
    println!(
        "rows: a relay of 1,000 sends {} kbit/s after the burst while {} kbit/s arrive",
        rate(sent - 65_536),
        rate(arrived as u64),
    );
    // With TCP, IP and TLS around each row, and the probes, that is less than 100 kbit/s.
    assert!(rate(sent - 65_536) <= 66);
    let queued: usize = exchange.links.values().map(|link| link.queue.len()).sum();
    assert!(queued <= 16 * n, "each row waits once on each link");
}

#[test]
fn a_ping_measures_the_path_and_a_silent_link_is_found() {
    let (start, list) = (Instant::now(), members(2));
    let mut tables = [0, 1].map(|i| Table::new(&name(i), &list));
    let mut ends = [0, 1].map(|_| Exchange::new(start));
    let links = [0, 1].map(|i| ends[i].open(start).unwrap());
    let (mut now, mut rtt) = (start, None);
    for _ in 0..4 {
        for i in 0..2 {
            while let Some((_, bytes)) = ends[i].poll(now, &tables[i]) {
                let got =
                    ends[1 - i].receive(links[1 - i], &bytes, now + 10 * MS, &mut tables[1 - i]);
                rtt = rtt.or(got
                    .unwrap()
                    .into_iter()
                    .find(|r| matches!(r, Received::Rtt(_))));
            }
        }
        now += 10 * MS;
    }
    assert!(
        matches!(rtt, Some(Received::Rtt(time)) if time <= 20 * MS),
        "{rtt:?}"
    );
    assert!(ends[0].silent(now + PATIENCE - 100 * MS).is_empty());
    assert_eq!(ends[0].silent(now + PATIENCE + 100 * MS), [links[0]]);
}

#[test]
fn a_link_that_brings_false_rows_is_ended_and_the_rows_cost_a_bounded_number_of_checks() {
    let mut now = Instant::now();
    let mut table = Table::new(&name(0), &members(3));
    let mut exchange = Exchange::new(now);
    let link = exchange.open(now).unwrap();
    let false_row = |version| {
        // Relay 1 signs in the name of relay 2.
        let signed = row(version, [1], 20).sign(&name(2), &key(1));
        Frame::Row(RowMessage::whole(id(2), &signed, Duration::ZERO).encode()).encode()
    };
    let mut version = 0;
    let mut bring = |exchange: &mut Exchange, now| {
        version += 1;
        exchange.receive(link, &false_row(version), now, &mut table)
    };
    for _ in 0..1000 {
        now += FORGIVEN_IN;
        let received = bring(&mut exchange, now).unwrap();
        assert_eq!(received, [Received::Refused(RowFault::Signature)]);
    }
    let ended = (1..1000).find(|_| bring(&mut exchange, now).is_err());
    assert_eq!(ended, Some(MAX_FALSE as usize));
}

#[test]
fn large_rows_of_one_relay_do_not_delay_the_rows_of_others() {
    let (large, small, reader) = (0, 1, 2);
    let list = members(3);
    let mut now = Instant::now();
    let mut table = Table::new(&name(reader), &list);
    let mut exchange = Exchange::new(now);
    let links: Vec<_> = (0..8).map(|_| exchange.open(now).unwrap()).collect();
    for link in &links {
        let nothing = Frame::Summary(Vec::new()).encode();
        exchange.receive(*link, &nothing, now, &mut table).unwrap();
    }
    let learn = |table: &mut Table, of, row: Row, now| {
        let signed = row.sign(&name(of), &key(of));
        let message = RowMessage::whole(id(of), &signed, Duration::ZERO);
        table.learn(message, now).unwrap();
    };
    let with_prefixes = |version: u64| {
        let outside = (0..1000_u32).map(|n| OutsideEntry {
            key: Key::prefix(std::net::Ipv4Addr::from(0x0a00_0000 + n * 256).into()),
            figure: figure(1 + version % 100),
        });
        Row {
            outside: outside.collect(),
            ..row(version, [small], 20)
        }
    };
    // The small row is told on all links. Its age there is the time since it changed.
    let (mut changed, mut waited, mut told) = (now, Duration::ZERO, 0);
    for step in 0..1200_u64 {
        if step.is_multiple_of(10) {
            learn(&mut table, large, with_prefixes(step + 1), now);
            exchange.changed(id(large), &table);
        }
        if step.is_multiple_of(100) {
            learn(
                &mut table,
                small,
                row(step + 1, [large], 20 + step % 7),
                now,
            );
            exchange.changed(id(small), &table);
            changed = now;
        }
        let mut frames = Frames::default();
        let mut sent = Vec::new();
        while let Some((_, bytes)) = exchange.poll(now, &table) {
            frames.receive(&bytes, &mut sent).unwrap();
        }
        for frame in sent {
            if let Frame::Row(message) = frame
                && RowMessage::decode(&message).unwrap().origin == id(small)
            {
                waited = waited.max(now - changed);
                told += 1;
            }
        }
        now += 100 * MS;
    }
    assert_eq!(told, 12 * links.len());
    // One large row may be on its way when the small one changes: 1.9 s at the rate of all links.
    assert!(waited <= 3000 * MS, "{waited:?}");
}
