//! This relay's own row: made of its samples, and told again when a change is worth it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::figure::Figure;
use super::key::{Key, MemberId};
use super::meter::Meter;
use super::row::{MAX_OUTSIDE, MAX_WANTED, MemberEntry, OutsideEntry, Row};
use crate::hello::Target;

/// The interval at which a row is signed again although nothing has changed.
const RENEW: Duration = Duration::from_secs(300);

/// The shortest interval between two rows whose difference changes routes: a member that is
/// unreachable, a destination that can be reached.
const URGENT: Duration = Duration::from_millis(200);

/// The shortest interval between other rows is a second, and this for each member: all relays
/// together tell at most 20 rows a second, which each of them receives.
const EACH: Duration = Duration::from_millis(50);

/// The shortest interval before a row that only takes a higher version than a row of another
/// process with this relay's key. Otherwise two such processes would overtake each other without a
/// pause.
const OVERTAKE: Duration = Duration::from_secs(1);

/// The prefixes and destinations of all rows together.
const OUTSIDE: usize = 128_000;

/// The prefixes and destinations that are measured at a time. Beyond, new ones are ignored until
/// others have had no sample for [`IDLE`].
const METERS: usize = 4096;

/// See [`METERS`].
const IDLE: Duration = Duration::from_secs(60);

/// This relay's own row.
#[derive(Debug, Default)]
pub struct OwnRow {
    members: HashMap<MemberId, Path>,
    outside: HashMap<Key, Meter>,
    wanted: Vec<Target>,
    by_member: bool,
    /// The row that was told last.
    told: Row,
    at: Option<Instant>,
    overtakings: u64,
}

/// The path to a member.
#[derive(Debug, Default)]
struct Path {
    meter: Option<Meter>,
    down: bool,
    passes: bool,
}

/// How soon a change is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    None,
    Ordinary,
    Urgent,
}

// === impl OwnRow ===

impl OwnRow {
    /// Adopts the list of the other members, and to which of them this relay passes sessions on.
    pub fn adopt(&mut self, members: impl Iterator<Item = (MemberId, bool)>) {
        let mut former = std::mem::take(&mut self.members);
        for (id, passes) in members {
            let path = former.remove(&id).unwrap_or_default();
            self.members.insert(id, Path { passes, ..path });
        }
    }

    /// Sets what other relays are asked to measure, at most [`MAX_WANTED`] destinations, and
    /// whether this relay's entries for destinations are of single members.
    pub fn set_destinations(&mut self, wanted: Vec<Target>, by_member: bool) {
        self.wanted = wanted;
        self.wanted.truncate(MAX_WANTED);
        self.by_member = by_member;
    }

    /// Adds a sample of the path to a member: the least and the smoothed round-trip time of a
    /// connection.
    pub fn sample(&mut self, id: MemberId, least: Duration, smoothed: Duration, now: Instant) {
        if let Some(path) = self.members.get_mut(&id) {
            let meter = path.meter.get_or_insert_with(|| Meter::new(smoothed, now));
            meter.sample(least, smoothed, now);
        }
    }

    /// Adds segments that were sent to a member, and those of them that were lost.
    pub fn segments(&mut self, id: MemberId, sent: u32, lost: u32, now: Instant) {
        let meter = self
            .members
            .get_mut(&id)
            .and_then(|path| path.meter.as_mut());
        if let Some(meter) = meter {
            meter.segments(sent, lost, now);
        }
    }

    /// Records whether a member can be reached. One that cannot has no entry in the row.
    pub fn set_down(&mut self, id: MemberId, down: bool) {
        if let Some(path) = self.members.get_mut(&id) {
            path.down = down;
        }
    }

    /// Returns whether a member is known to be unreachable.
    pub fn is_down(&self, id: MemberId) -> bool {
        self.members.get(&id).is_some_and(|path| path.down)
    }

    /// Adds a sample of the path to a prefix or destination, with segments that were sent and lost.
    pub fn sample_outside(
        &mut self,
        key: Key,
        least: Duration,
        smoothed: Duration,
        segments: (u32, u32),
        now: Instant,
    ) {
        if self.outside.len() >= METERS && !self.outside.contains_key(&key) {
            self.outside.retain(|_, meter| meter.idle(now) < IDLE);
            if self.outside.len() >= METERS {
                return;
            }
        }
        let meter = self
            .outside
            .entry(key)
            .or_insert_with(|| Meter::new(smoothed, now));
        meter.sample(least, smoothed, now);
        meter.segments(segments.0, segments.1, now);
    }

    /// Forgets a destination that is no longer measured or allowed.
    pub fn forget(&mut self, key: Key) {
        self.outside.remove(&key);
    }

    /// Returns how long ago the path to a member was sampled; `None` if never.
    pub fn idle(&self, id: MemberId, now: Instant) -> Option<Duration> {
        Some(self.members.get(&id)?.meter.as_ref()?.idle(now))
    }

    /// Returns the next row if it is time to tell it. Its version is `wall`, the milliseconds since
    /// 1970, or one more than both the last version and `floor`.
    pub fn poll(&mut self, wall: u64, floor: u64, now: Instant) -> Option<Row> {
        let mut row = self.row(now);
        let waited = self
            .at
            .map_or(RENEW, |at| now.saturating_duration_since(at));
        let due = match self.urgency(&row) {
            Urgency::Urgent => URGENT,
            Urgency::Ordinary => self.interval(),
            Urgency::None => RENEW,
        };
        // Another row of this relay with a higher version would hide this one for ever.
        let is_hidden = floor > self.told.version;
        if waited < due && !(is_hidden && waited >= OVERTAKE) {
            return None;
        }
        self.overtakings += u64::from(is_hidden);
        row.version = wall.max(self.told.version + 1).max(floor.saturating_add(1));
        self.told = row.clone();
        self.at = Some(now);
        Some(row)
    }

    /// Returns how many rows had to take a higher version than a row of this relay that another
    /// process had made. A restart causes one; more show another process with the same key.
    pub fn overtakings(&self) -> u64 {
        self.overtakings
    }

    fn interval(&self) -> Duration {
        let members = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        EACH.saturating_mul(members).max(Duration::from_secs(1))
    }

    /// Returns the row of the present figures. A figure that has hardly changed stays what it was.
    fn row(&self, now: Instant) -> Row {
        let settle = |before: Option<Figure>, figure: Figure| match before {
            Some(before) if !before.differs_from(figure) => before,
            _ => figure,
        };
        let member = |(&id, path): (&MemberId, &Path)| {
            let figure = path.meter.as_ref()?.figure(now)?;
            let before = self.told.member(id).map(|entry| entry.figure);
            let figure = settle(before, figure);
            let passes = path.passes;
            (!path.down).then_some(MemberEntry { id, figure, passes })
        };
        let mut members: Vec<_> = self.members.iter().filter_map(member).collect();
        members.sort_unstable_by_key(|entry| entry.id);
        let known =
            |(&key, meter): (&Key, &Meter)| Some((key, meter.figure(now)?, meter.idle(now)));
        let mut outside: Vec<_> = self.outside.iter().filter_map(known).collect();
        let limit = MAX_OUTSIDE.min(OUTSIDE / self.members.len().max(1));
        if outside.len() > limit {
            // Destinations first: they were asked for.
            outside.sort_unstable_by_key(|(key, _, idle)| (key.network().is_some(), *idle));
            outside.truncate(limit);
        }
        outside.sort_unstable_by_key(|(key, ..)| *key);
        let outside = outside.into_iter().map(|(key, figure, _)| OutsideEntry {
            key,
            figure: settle(self.told.outside(key), figure),
        });
        Row {
            version: 0,
            by_member: self.by_member,
            members: members.into(),
            outside: outside.collect(),
            wanted: self.wanted.clone().into(),
        }
    }

    /// Returns how soon the difference between the last row and `new` is told.
    fn urgency(&self, new: &Row) -> Urgency {
        let told = &self.told;
        let reach =
            |row: &Row| -> Vec<_> { row.members.iter().map(|e| (e.id, e.passes)).collect() };
        let destinations = |row: &Row| -> Vec<_> {
            let keys = row.outside.iter().map(|entry| entry.key);
            keys.filter(|key| key.network().is_none()).collect()
        };
        if (told.by_member, &told.wanted) != (new.by_member, &new.wanted)
            || reach(told) != reach(new)
            || destinations(told) != destinations(new)
        {
            return Urgency::Urgent;
        }
        match told.members == new.members && told.outside == new.outside {
            true => Urgency::None,
            false => Urgency::Ordinary,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::MemberName;

    const MS: Duration = Duration::from_millis(1);

    fn id(name: &str) -> MemberId {
        MemberId::of(&name.parse::<MemberName>().unwrap())
    }

    fn own(names: &[&str]) -> OwnRow {
        let mut own = OwnRow::default();
        own.adopt(names.iter().map(|name| (id(name), true)));
        own
    }

    #[test]
    fn a_row_is_told_at_once_when_a_member_is_lost_and_later_when_a_path_is_longer() {
        let mut now = Instant::now();
        let mut own = own(&["a", "b"]);
        own.sample(id("a"), 20 * MS, 21 * MS, now);
        own.sample(id("b"), 30 * MS, 31 * MS, now);
        let first = own.poll(1000, 0, now).unwrap();
        assert_eq!((first.version, first.members.len()), (1000, 2));
        assert_eq!(own.poll(1001, 0, now), None);
        for _ in 0..200 {
            own.sample(id("a"), 20 * MS, 60 * MS, now);
        }
        now += URGENT;
        assert_eq!(own.poll(1002, 0, now), None, "it is not urgent");
        now += own.interval();
        assert!(own.poll(1003, 0, now).is_some());
        own.set_down(id("b"), true);
        now += URGENT;
        let lost = own.poll(1, 0, now).unwrap();
        assert_eq!(
            (lost.version, lost.members.len()),
            (1004, 1),
            "the clock was set back"
        );
        now += RENEW - MS;
        own.sample(id("a"), 20 * MS, 60 * MS, now);
        assert_eq!(own.poll(2000, 0, now), None);
        now += MS;
        assert!(own.poll(2000, 0, now).is_some(), "it is renewed");
    }

    #[test]
    fn a_row_overtakes_one_of_a_former_life() {
        let now = Instant::now();
        let mut own = own(&["a"]);
        own.poll(1000, 0, now).unwrap();
        let later = now + OVERTAKE;
        assert_eq!(own.poll(1001, 5000, later).unwrap().version, 5001);
        assert_eq!(own.poll(1002, 5000, later + OVERTAKE), None);
        assert_eq!(own.overtakings(), 1);
    }

    #[test]
    fn two_processes_with_one_key_overtake_each_other_once_a_second() {
        let start = Instant::now();
        let mut both = [own(&["a"]), own(&["a"])];
        let mut newest = 0;
        let mut told = 0;
        for step in 0..1000 {
            let now = start + step * 10 * MS;
            for own in &mut both {
                if let Some(row) = own.poll(1000, newest, now) {
                    newest = row.version;
                    told += 1;
                }
            }
        }
        assert!((10..=22).contains(&told), "{told} rows in 10 s");
    }

    #[test]
    fn prefixes_are_bounded_and_destinations_come_first() {
        let now = Instant::now();
        let mut own = own(&["a"]);
        let target: Target = "192.0.2.1:80".parse().unwrap();
        let destination = Key::destination(&target, None);
        own.sample_outside(destination, MS, MS, (0, 0), now);
        for n in 0..8000_u32 {
            let ip = std::net::Ipv4Addr::from(0x0a00_0000 + n * 256);
            own.sample_outside(Key::prefix(ip.into()), MS, MS, (0, 0), now);
        }
        assert_eq!(own.outside.len(), METERS);
        let row = own.poll(1, 0, now).unwrap();
        assert_eq!(row.outside.len(), MAX_OUTSIDE);
        assert!(row.outside(destination).is_some());
        let later = now + IDLE;
        own.sample_outside(Key::prefix([192, 0, 2, 1].into()), MS, MS, (0, 0), later);
        assert_eq!(own.outside.len(), 1);
    }
}
