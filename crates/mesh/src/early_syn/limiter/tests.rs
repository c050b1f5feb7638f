#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::early_syn::Rate;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Returns a SYN of the `n`th client; a prefix has 256 clients.
fn syn(n: u32) -> SynEvent {
    syn_to(n, 0)
}

fn syn_to(n: u32, listener: u32) -> SynEvent {
    SynEvent {
        client: SocketAddr::from((Ipv4Addr::from_bits(0x0a00_0000 + n), 5000)),
        listener_addr: SocketAddr::from(([192, 0, 2, 1], 80)),
        listener,
    }
}

/// Returns the first client of the `n`th prefix.
fn from_prefix(n: u32) -> SynEvent {
    syn(n << 8)
}

/// Returns limits that allow everything, except what `adjust` changes.
fn limiter(adjust: impl FnOnce(&mut Limits)) -> Limiter {
    let mut limits = Limits {
        source: Rate::new(1_000_000, 1_000_000),
        listener: Rate::new(1_000_000, 1_000_000),
        pending: 1_000_000,
        ..Limits::default()
    };
    adjust(&mut limits);
    Limiter::new(limits)
}

/// Sends `syns` in order and returns how many are admitted.
fn admitted(limiter: &mut Limiter, syns: impl Iterator<Item = SynEvent>, now: Instant) -> usize {
    syns.filter(|syn| limiter.admit(syn, now) == Admission::Admit)
        .count()
}

#[test]
fn a_retransmitted_syn_is_merged_and_does_not_extend_its_time_to_live() {
    let mut limiter = limiter(|_| {});
    let start = Instant::now();
    assert_eq!(limiter.admit(&syn(1), start), Admission::Admit);
    assert_eq!(limiter.next_deadline(), Some(start + ms(3000)));
    assert_eq!(limiter.admit(&syn(1), start + ms(1000)), Admission::Merged);
    assert_eq!(limiter.expire(start + ms(2999)), []);
    assert_eq!(limiter.expire(start + ms(3000)), [syn(1).connection()]);
    assert_eq!(limiter.next_deadline(), None);
    assert_eq!(limiter.pending(), 0);
    assert_eq!(limiter.admit(&syn(1), start + ms(3001)), Admission::Admit);
    let counts = limiter.counts();
    assert_eq!((counts.admitted, counts.merged, counts.expired), (2, 1, 1));
}

#[test]
fn a_settled_connection_makes_room_once() {
    let mut limiter = limiter(|l| l.pending = 1);
    let now = Instant::now();
    assert_eq!(limiter.admit(&syn(1), now), Admission::Admit);
    assert_eq!(limiter.admit(&syn(2), now), Admission::TooManyPending);
    // The result does not depend on the form in which the worker learnt the addresses.
    let mapped = |addr: &str| addr.parse::<SocketAddr>().unwrap();
    let accepted = FourTuple::new(
        mapped("[::ffff:10.0.0.1]:5000"),
        mapped("[::ffff:192.0.2.1]:80"),
    );
    assert!(limiter.settled(accepted));
    assert!(!limiter.settled(accepted));
    assert_eq!(limiter.admit(&syn(2), now), Admission::Admit);
    assert_eq!(limiter.counts().settled, 1);
}

#[test]
fn an_accept_that_came_first_makes_the_syn_late_for_a_while() {
    let mut limiter = limiter(|l| l.accepted_remembered = 2);
    let now = Instant::now();
    limiter.accepted_without(syn(1).connection(), now);
    assert_eq!(limiter.admit(&syn(1), now + ms(999)), Admission::Late);
    assert_eq!(limiter.admit(&syn(1), now + ms(1000)), Admission::Admit);

    // The memory is bounded: the oldest entry is forgotten, and counted.
    let now = now + ms(2000);
    for n in 10..13 {
        limiter.accepted_without(syn(n).connection(), now + ms(u64::from(n)));
    }
    let verdicts = [10, 11, 12].map(|n| limiter.admit(&syn(n), now + ms(100)));
    assert_eq!(
        verdicts,
        [Admission::Admit, Admission::Late, Admission::Late]
    );
    assert_eq!(limiter.counts().accepted_forgotten, 1);
}

#[test]
fn nothing_is_admitted_while_cookies_are_sent_and_some_time_after() {
    let mut limiter = limiter(|_| {});
    let start = Instant::now();
    let at = |s| start + Duration::from_secs(s);
    // Cookies sent before this process started are not a sign of a flood now.
    limiter.note_cookies(500, start);
    assert_eq!(limiter.admit(&syn(1), start), Admission::Admit);
    for s in 1..5 {
        limiter.note_cookies(500 + s, at(s));
        assert_eq!(limiter.admit(&syn(2), at(s)), Admission::CookiesActive);
    }
    limiter.note_cookies(504, at(5));
    assert_eq!(limiter.admit(&syn(2), at(13)), Admission::CookiesActive);
    assert_eq!(limiter.admit(&syn(2), at(14)), Admission::Admit);
    // Pending connections expire as usual.
    assert_eq!(limiter.expire(at(5)), [syn(1).connection()]);
}

#[test]
fn one_prefix_gets_its_share_and_takes_none_from_others() {
    let mut limiter = limiter(|l| {
        l.source = Rate::new(20, 40);
        l.listener = Rate::new(1, 100);
    });
    let now = Instant::now();
    assert_eq!(admitted(&mut limiter, (0..256).map(syn), now), 40);
    // The refused SYNs did not use the listener's rate: it has lost 40 tokens, not 256.
    assert_eq!(
        admitted(&mut limiter, (1..=100).map(from_prefix), now),
        60,
        "what was refused to one is there for others"
    );
    let counts = limiter.counts();
    assert_eq!(counts.over_source_rate, 216);
    assert_eq!(counts.over_destination_rate, 40);
    assert_eq!(limiter.admit(&syn_to(1 << 16, 1), now), Admission::Admit);
}

#[test]
fn prefixes_are_slash_24_and_slash_48() {
    let mut limiter = limiter(|l| l.source = Rate::new(1, 1));
    let now = Instant::now();
    let mut verdict = |client: &str| {
        let syn = SynEvent {
            client: format!("{client}:1").parse().unwrap(),
            ..syn(0)
        };
        limiter.admit(&syn, now)
    };
    assert_eq!(verdict("198.51.100.1"), Admission::Admit);
    assert_eq!(verdict("198.51.100.255"), Admission::OverSourceRate);
    assert_eq!(verdict("198.51.101.1"), Admission::Admit);
    assert_eq!(verdict("[2001:db8:1::1]"), Admission::Admit);
    assert_eq!(verdict("[2001:db8:1:ffff::1]"), Admission::OverSourceRate);
    assert_eq!(verdict("[2001:db8:2::1]"), Admission::Admit);
    assert_eq!(verdict("[::ffff:198.51.101.2]"), Admission::OverSourceRate);
}

#[test]
fn a_flood_from_random_sources_does_not_erase_what_counts_against_one() {
    let mut limiter = limiter(|l| {
        l.source = Rate::new(1, 3);
        l.source_prefixes = 8;
    });
    let now = Instant::now();
    assert_eq!(admitted(&mut limiter, (0..256).map(syn), now), 3);
    // Seven prefixes have an entry; all others share the rate of one.
    let flood = (1..10_000).map(from_prefix);
    assert_eq!(admitted(&mut limiter, flood, now), 7 + 3);
    assert_eq!(limiter.counts().prefix_table_full, 10_000 - 1 - 7);
    assert_eq!(limiter.admit(&syn(255), now), Admission::OverSourceRate);
    // Entries with a full bucket make room; the entry whose bucket is not full stays.
    let later = now + ms(1000);
    let flood = (20_000..30_000).map(from_prefix);
    assert_eq!(admitted(&mut limiter, flood, later), 7 + 1);
    assert_eq!(admitted(&mut limiter, (1000..1256).map(syn), later), 0);
    assert_eq!(admitted(&mut limiter, (100..256).map(syn), later), 1);
}

#[test]
fn a_flood_from_random_sources_is_held_to_the_defaults() {
    let limits = Limits::default();
    let mut limiter = Limiter::new(limits);
    let start = Instant::now();
    let mut worst = 0;
    for n in 0..200_000u64 {
        // 20,000 SYNs a second (the ceiling) for 10 s. The relay gives up expired connections.
        let now = start + Duration::from_micros(50 * n);
        limiter.expire(now);
        limiter.admit(&from_prefix((n * 2_654_435_761 % (1 << 16)) as u32), now);
        worst = worst.max(limiter.pending());
    }
    assert_eq!(worst, limits.pending);
    // 256 at once, and 256 more every 3 s.
    assert_eq!(limiter.counts().admitted, 256 * 4);
}

#[derive(Clone, Debug)]
enum Step {
    Syn {
        client: u32,
        listener: u32,
        v6: bool,
    },
    Settle(u32),
    AcceptFirst(u32),
    Expire,
    Cookies(u64),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let client = 0..2000u32;
    prop_oneof![
        20 => (client.clone(), 0..2u32, any::<bool>())
            .prop_map(|(client, listener, v6)| Step::Syn { client, listener, v6 }),
        3 => client.clone().prop_map(Step::Settle),
        1 => client.prop_map(Step::AcceptFirst),
        2 => Just(Step::Expire),
        1 => (0..3u64).prop_map(Step::Cookies),
        4 => (0..400u64).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn no_order_of_things_gets_past_a_bound(steps in prop::collection::vec(step(), 0..600)) {
        const PENDING: usize = 12;
        const PREFIXES: usize = 3;
        // Rate per second and burst.
        const SOURCE: (u64, u64) = (4, 5);
        const LISTENER: (u64, u64) = (10, 15);
        let mut limiter = limiter(|l| {
            l.source = Rate::new(SOURCE.0 as u32, SOURCE.1 as u32);
            l.listener = Rate::new(LISTENER.0 as u32, LISTENER.1 as u32);
            l.source_prefixes = PREFIXES;
            l.pending = PENDING;
            l.accepted_remembered = 5;
        });
        let start = Instant::now();
        let mut now = start;
        let mut cookies = 0;
        let mut model: HashSet<FourTuple> = HashSet::new();
        let mut admitted_at: Vec<(Instant, Prefix, u32)> = Vec::new();
        for step in steps {
            match step {
                Step::Wait(n) => now += ms(n),
                Step::Cookies(more) => {
                    cookies += more;
                    limiter.note_cookies(cookies, now);
                }
                Step::Expire => for gone in limiter.expire(now) {
                    prop_assert!(model.remove(&gone));
                },
                Step::Settle(n) => {
                    let key = syn(n).connection();
                    prop_assert_eq!(limiter.settled(key), model.remove(&key));
                }
                Step::AcceptFirst(n) => limiter.accepted_without(syn(n).connection(), now),
                Step::Syn { client, listener, v6 } => {
                    let mut event = syn_to(client, listener);
                    if v6 {
                        let ip = Ipv6Addr::from_bits(u128::from(client) << 72);
                        event.client = SocketAddr::from((ip, 1));
                    }
                    let known = model.contains(&event.connection());
                    let verdict = limiter.admit(&event, now);
                    prop_assert_eq!(verdict == Admission::Merged, known);
                    if verdict == Admission::Admit {
                        model.insert(event.connection());
                        admitted_at.push((now, Prefix::of(event.client.ip()), listener));
                    }
                }
            }
            prop_assert_eq!(limiter.pending(), model.len());
            prop_assert!(model.len() <= PENDING);
            prop_assert!(limiter.prefixes.len() <= PREFIXES);
            prop_assert!(limiter.accepted.len() <= 5);
            prop_assert_eq!(limiter.next_deadline().is_some(), !model.is_empty());
        }
        // In every window that begins with an admission, no prefix or listener exceeds the burst
        // and what its rate adds.
        let share = |(per_second, burst): (u64, u64), window: Duration| {
            burst + (window.as_millis() as u64 * per_second).div_ceil(1000)
        };
        for (i, &(from, prefix, listener)) in admitted_at.iter().enumerate() {
            let (mut of_prefix, mut of_listener) = (0, 0);
            for &(at, p, l) in &admitted_at[i..] {
                of_prefix += u64::from(p == prefix);
                of_listener += u64::from(l == listener);
                prop_assert!(of_listener <= share(LISTENER, at - from));
                // The prefix has its own bucket, and used the shared one while it had no entry.
                prop_assert!(of_prefix <= 2 * share(SOURCE, at - from));
            }
        }
        let counts = limiter.counts();
        prop_assert_eq!(
            counts.admitted,
            counts.settled + counts.expired + limiter.pending() as u64
        );
    }
}
