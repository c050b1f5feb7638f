use std::net::Ipv4Addr;
use std::time::Instant;

use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_source_gets_its_limit_and_its_place_back_when_a_session_ends() {
    let sources = SessionQuota::new(2);
    let a = ip("192.0.2.1");
    let first = sources.admit(a).unwrap();
    let second = sources.admit(a).unwrap();
    assert!(sources.admit(a).is_none());
    assert_eq!((sources.open(a), sources.refused()), (2, 1));
    // The limit of one source does not affect another.
    let other = sources.admit(ip("192.0.2.2")).unwrap();
    drop(first);
    let third = sources.admit(a).unwrap();
    drop((second, third, other));
    assert_eq!(sources.open(a), 0);
    assert!(sources.is_empty());
}

#[test]
fn a_64_is_one_source_and_so_are_the_spellings_of_an_ipv4_address() {
    let sources = SessionQuota::new(1);
    let _one = sources.admit(ip("2001:db8::1")).unwrap();
    assert!(sources.admit(ip("2001:db8::ffff:1")).is_none());
    let _two = sources.admit(ip("2001:db8:0:1::1")).unwrap();

    let _v4 = sources.admit(ip("192.0.2.1")).unwrap();
    assert!(sources.admit(ip("::ffff:192.0.2.1")).is_none());
    assert!(sources.admit(ip("64:ff9b::192.0.2.1")).is_none());
    let _next = sources.admit(ip("64:ff9b::192.0.2.2")).unwrap();
}

#[test]
fn a_48_has_four_times_as_many_sessions_as_a_64() {
    let sources = SessionQuota::new(2);
    let of = |net: u16| ip(&format!("2001:db8:0:{net:x}::1"));
    let admit = |net: u16| sources.admit(of(net));
    let mut open: Vec<_> = (0..4).flat_map(|net| [admit(net), admit(net)]).collect();
    assert!(open.iter().all(Option::is_some));
    assert!(admit(4).is_none());
    assert_eq!(sources.open(of(4)), 0, "a refusal takes no place");
    // Another site is not affected.
    let other = sources.admit(ip("2001:db8:1::1"));
    assert!(other.is_some());
    open.pop();
    assert!(admit(4).is_some());
    drop((open, other));
    assert!(sources.is_empty());
}

#[test]
fn one_source_gets_an_eighth_of_the_sessions_of_a_large_relay() {
    assert_eq!(default_limit(65_536), 8192);
    assert_eq!(default_limit(10), 100);
}

#[test]
fn a_lower_limit_keeps_open_sessions() {
    let sources = SessionQuota::new(UNLIMITED);
    let a = ip("192.0.2.1");
    let inside: Vec<_> = (0..5).map(|_| sources.admit(a).unwrap()).collect();
    sources.set_limits(3, 3);
    assert!(sources.admit(a).is_none());
    assert_eq!(sources.open(a), 5);
    drop(inside);
    assert!(sources.admit(a).is_some());
    sources.set_limits(0, 0);
    assert!(sources.admit(a).is_none());
}

#[test]
fn a_flood_of_sources_leaves_nothing_behind() {
    let sources = SessionQuota::new(1);
    let flood: Vec<_> = (0..100_000u32)
        .map(|i| sources.admit(Ipv4Addr::from(i).into()).unwrap())
        .collect();
    assert_eq!(sources.len(), flood.len());
    drop(flood);
    assert!(sources.is_empty());
    let room: usize = sources.table.all().map(|table| table.capacity()).sum();
    assert!(
        room <= super::super::source::ROOM,
        "room for {room} sources is kept"
    );
}

#[test]
fn threads_never_exceed_the_limit_together() {
    let sources = SessionQuota::new(3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10_000 {
                    let permit = sources.admit(ip("192.0.2.1"));
                    assert!(sources.open(ip("192.0.2.1")) <= 3);
                    drop(permit);
                }
            });
        }
    });
    assert!(sources.is_empty());
}

/// Prints the cost; asserts no time.
#[test]
fn the_cost_of_an_admission() {
    const ROUNDS: u32 = 200_000;
    for threads in [1u32, 2] {
        let sources = SessionQuota::new(UNLIMITED);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for t in 0..threads {
                let sources = &sources;
                scope.spawn(move || {
                    for i in 0..ROUNDS {
                        let source = Ipv4Addr::from((t << 24) | (i % 10_000));
                        drop(sources.admit(source.into()));
                    }
                });
            }
        });
        let each = start.elapsed() / ROUNDS;
        println!("{threads} threads: {each:?} for each admission and its release");
    }
}

proptest! {
    #[test]
    fn counts_are_what_a_plain_table_counts(
        steps in prop::collection::vec((0u8..6, any::<bool>()), 0..200), limit in 1u32..4,
    ) {
        let sources = SessionQuota::new(limit);
        let mut open: Vec<Vec<Permit>> = (0..6).map(|_| Vec::new()).collect();
        for (who, comes) in steps {
            let addr = IpAddr::from([192, 0, 2, who]);
            let held = &mut open[usize::from(who)];
            if comes {
                let permit = sources.admit(addr);
                prop_assert_eq!(permit.is_some(), held.len() < limit as usize);
                held.extend(permit);
            } else {
                held.pop();
            }
            prop_assert_eq!(sources.open(addr) as usize, held.len());
        }
        prop_assert_eq!(sources.len(), open.iter().filter(|held| !held.is_empty()).count());
    }
}

#[test]
fn addresses_that_may_stand_for_many_clients_have_a_limit_of_their_own() {
    let sources = SessionQuota::new(1);
    sources.set_limits(1, UNLIMITED);
    let client = IpAddr::from([192, 0, 2, 1]);
    let one = sources.admit(client);
    assert!(one.is_some() && sources.admit(client).is_none());
    assert!(sources.admit_shared(client).is_some());
    for local in [
        IpAddr::from([127, 0, 0, 1]),
        "::ffff:127.0.0.1".parse().unwrap(),
    ] {
        let all = [0; 3].map(|_| sources.admit(local));
        assert!(all.iter().all(Option::is_some), "{local}");
    }
    sources.set_limits(1, 1);
    assert!(sources.admit_shared(client).is_none());
}
