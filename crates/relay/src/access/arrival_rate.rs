//! Limits the rate at which each source opens connections.
//!
//! A source is an IPv4 address or an IPv6 /64; a /48 may have four times the rate. All workers share
//! one table.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | connections of a source | the rate, and at once what it allows in [`BURST`] | [`ArrivalRate::admit`] returns `false` |
//! | sources | those that have connected in the last [`BURST`], and about as many again | |
//!
//! The algorithm is GCRA (ITU-T I.371): for each source, the time at which its connections so far would
//! have arrived at exactly the rate. So an entry is one instant, and one in the past says nothing.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::session_quota::UNLIMITED;
use super::source::{SITE, Shards, Source, shrink};

/// A source may open as many connections at once as in this time at the rate: a page of a browser, or
/// the clients behind a NAT after an outage, come together.
pub const BURST: Duration = Duration::from_secs(10);

/// When the connections of each source would have arrived at the rate.
#[derive(Debug)]
pub struct ArrivalRate {
    table: Shards<Instant>,
    /// Connections a second; [`UNLIMITED`]: no limit.
    rate: AtomicU32,
}

// === impl ArrivalRate ===

impl ArrivalRate {
    /// Returns a limit of `rate` connections a second of a source.
    pub fn new(rate: u32) -> Self {
        Self {
            table: Shards::new(),
            rate: AtomicU32::new(rate),
        }
    }

    /// Changes the rate.
    pub fn set_rate(&self, rate: u32) {
        self.rate.store(rate, Ordering::Relaxed);
    }

    /// Returns the rate.
    pub fn rate(&self) -> u32 {
        self.rate.load(Ordering::Relaxed)
    }

    /// Counts a connection of the source that `ip` belongs to. Returns `false`, and does not count it, if
    /// the source exceeds the rate.
    pub fn admit(&self, ip: IpAddr, now: Instant) -> bool {
        let rate = self.rate();
        if rate == UNLIMITED {
            return true;
        }
        let source = Source::of(ip);
        // What a network is refused must not count against its site, nor the reverse.
        if !self.count(source, rate, now) {
            return false;
        }
        let is_admitted = source
            .site()
            .is_none_or(|site| self.count(site, rate.saturating_mul(SITE), now));
        if !is_admitted && let Some(due) = self.table.of(source).get_mut(&source) {
            *due -= each(rate);
        }
        is_admitted
    }

    /// Counts a connection no longer that [`ArrivalRate::admit`] has admitted.
    pub fn forgive(&self, ip: IpAddr) {
        let (source, rate) = (Source::of(ip), self.rate());
        let sites = source.site().map(|site| (site, rate.saturating_mul(SITE)));
        for (source, rate) in std::iter::once((source, rate)).chain(sites) {
            if let Some(due) = self.table.of(source).get_mut(&source) {
                *due -= each(rate);
            }
        }
    }

    fn count(&self, source: Source, rate: u32, now: Instant) -> bool {
        let mut table = self.table.of(source);
        let due = table.get(&source).map_or(now, |&due| due.max(now)) + each(rate);
        if due > now + BURST {
            return false;
        }
        if table.len() == table.capacity() {
            table.retain(|_, due| *due > now);
            shrink(&mut table);
            // Otherwise a nearly full table would be searched for each new source.
            let more = table.len();
            table.reserve(more);
        }
        table.insert(source, due);
        true
    }
}

/// Returns the time between two connections at exactly the rate.
fn each(rate: u32) -> Duration {
    Duration::from_secs(1) / rate.max(1)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn admitted(rate: &ArrivalRate, addr: &str, now: Instant) -> usize {
        (0..1000).take_while(|_| rate.admit(ip(addr), now)).count()
    }

    #[test]
    fn a_source_gets_its_rate_and_at_once_what_that_is_in_ten_seconds() {
        let (rate, start) = (ArrivalRate::new(5), Instant::now());
        assert_eq!(admitted(&rate, "192.0.2.1", start), 50);
        // Another source is not affected.
        assert_eq!(admitted(&rate, "192.0.2.2", start), 50);
        let mut later = start;
        for _ in 0..3 {
            later += Duration::from_secs(1);
            assert_eq!(admitted(&rate, "192.0.2.1", later), 5);
        }
        assert_eq!(admitted(&rate, "192.0.2.1", later + 3 * BURST), 50);
    }

    #[test]
    fn a_48_has_four_times_the_rate_of_a_64() {
        let (rate, now) = (ArrivalRate::new(1), Instant::now());
        for net in 1..=4 {
            assert_eq!(admitted(&rate, &format!("2001:db8:0:{net}::1"), now), 10);
            assert_eq!(admitted(&rate, &format!("2001:db8:0:{net}::2"), now), 0);
        }
        assert!((0..100).all(|_| !rate.admit(ip("2001:db8:0:5::1"), now)));
        assert_eq!(admitted(&rate, "2001:db8:1:1::1", now), 10);
        // What the /48 refused has not counted against the /64.
        assert_eq!(admitted(&rate, "2001:db8:0:5::1", now + BURST / 2), 10);
    }

    #[test]
    fn without_a_rate_all_are_admitted_and_none_is_kept() {
        let (rate, now) = (ArrivalRate::new(UNLIMITED), Instant::now());
        assert_eq!(admitted(&rate, "192.0.2.1", now), 1000);
        assert!(rate.table.all().all(|table| table.is_empty()));
        rate.set_rate(1);
        assert_eq!(admitted(&rate, "192.0.2.1", now), 10);
    }

    #[test]
    fn connections_that_are_forgiven_leave_room_for_others() {
        let (rate, now) = (ArrivalRate::new(1), Instant::now());
        for addr in ["192.0.2.1", "2001:db8::1"] {
            for _ in 0..1000 {
                assert!(rate.admit(ip(addr), now));
                rate.forgive(ip(addr));
            }
            assert_eq!(admitted(&rate, addr, now), 10);
            rate.forgive(ip(addr));
            assert_eq!(admitted(&rate, addr, now), 1);
        }
    }

    #[test]
    fn sources_that_no_longer_connect_are_forgotten() {
        let (rate, start) = (ArrivalRate::new(100), Instant::now());
        for i in 0..200_000u32 {
            let now = start + Duration::from_millis(i.into());
            assert!(rate.admit(Ipv4Addr::from(i).into(), now));
        }
        let kept: usize = rate.table.all().map(|table| table.capacity()).sum();
        assert!(kept <= super::super::source::ROOM, "room for {kept}");
    }
}
