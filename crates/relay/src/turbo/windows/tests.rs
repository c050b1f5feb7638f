use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
const INITIAL: u64 = INITIAL_WINDOW as u64;

fn name(name: &str) -> MemberName {
    name.parse().unwrap()
}

/// Returns windows after a scan in which a connection to `far` with a window of `window` carried `bytes` in a
/// round trip, at `now`.
fn after(budget: u64, window: u64, bytes: u64, now: Instant) -> Windows {
    let mut windows = Windows::new(budget);
    let mut scan = Scan::default();
    scan.carried(&name("far"), window, bytes);
    windows.on_scan(scan, now);
    windows
}

#[test]
fn an_unknown_peer_has_the_initial_window() {
    let mut windows = Windows::new(1 << 30);
    assert_eq!(windows.dial(&name("far")), INITIAL_WINDOW);
    assert_eq!(windows.listener(), INITIAL_WINDOW);
    assert_eq!((windows.promised, windows.refused), (0, 0));
}

#[test]
fn a_peer_that_fills_its_window_has_a_larger_one_next_and_one_that_does_not_has_twice_its_need() {
    let now = Instant::now();
    let mut windows = after(1 << 30, 4 * MIB, 4 * MIB, now);
    assert_eq!(windows.of(&name("far")), 16 << 20);
    assert_eq!(windows.listener(), 16 << 20);
    assert_eq!(windows.of(&name("other")), INITIAL_WINDOW);
    // As far as the kernel's largest window.
    let windows = after(1 << 40, 200 * MIB, 200 * MIB, now);
    assert_eq!(windows.of(&name("far")), 256 << 20);
    // Less than three quarters of the window do not fill it.
    let windows = after(1 << 30, 16 * MIB, 9 * MIB, now);
    assert_eq!(windows.of(&name("far")), 18 << 20);
    let windows = after(1 << 30, 4 * MIB, MIB, now);
    assert_eq!(windows.of(&name("far")), INITIAL_WINDOW);
}

#[test]
fn a_need_that_is_not_shown_is_halved_every_ten_minutes_and_forgotten() {
    let start = Instant::now();
    let mut windows = after(1 << 30, 16 * MIB, 16 * MIB, start);
    let far = name("far");
    let at = |windows: &mut Windows, minutes: u64| {
        windows.on_scan(Scan::default(), start + Duration::from_secs(60 * minutes));
        windows.of(&far)
    };
    assert_eq!(at(&mut windows, 9), 64 << 20);
    assert_eq!(at(&mut windows, 10), 32 << 20);
    assert_eq!(at(&mut windows, 19), 32 << 20);
    assert_eq!(at(&mut windows, 20), 16 << 20);
    assert_eq!(at(&mut windows, 40), INITIAL_WINDOW);
    assert!(windows.needs.is_empty());
    // After a pause, all of it at once.
    let mut windows = after(1 << 30, 16 * MIB, 16 * MIB, start);
    assert_eq!(at(&mut windows, 25), 16 << 20);
}

#[test]
fn a_need_that_is_shown_again_stays() {
    let start = Instant::now();
    let mut windows = after(1 << 30, 32 * MIB, 20 * MIB, start);
    for minute in 1..60 {
        let mut scan = Scan::default();
        scan.carried(&name("far"), 40 * MIB, 20 * MIB);
        windows.on_scan(scan, start + Duration::from_secs(60 * minute));
        assert_eq!(windows.of(&name("far")), 40 << 20);
    }
}

#[test]
fn grants_beyond_the_initial_window_leave_most_of_the_budget_to_the_next() {
    let mut windows = after(800 * MIB, 64 * MIB, 64 * MIB, Instant::now());
    let grants: Vec<_> = (0..1000)
        .map(|_| u64::from(windows.dial(&name("far"))))
        .collect();
    assert_eq!(grants[0], INITIAL + 100 * MIB);
    assert!(grants.is_sorted_by(|a, b| a >= b));
    // Each takes less than the one before: the hundredth connection still has more than the initial window.
    assert!(grants[99] > INITIAL + MIB / 2, "{}", grants[99]);
    assert!(windows.promised < 800 * MIB);
    assert_eq!(windows.refused, 1000);
}

#[test]
fn windows_shrink_as_the_memory_in_use_comes_near_the_budget() {
    let mut windows = after(100 * MIB, 64 * MIB, 64 * MIB, Instant::now());
    let mut with_used = |used| {
        windows.used = used;
        windows.of(&name("far"))
    };
    assert!(with_used(0) > INITIAL_WINDOW);
    assert!(with_used(40 * MIB) > INITIAL_WINDOW);
    assert!((2 << 20..3 << 20).contains(&with_used(75 * MIB)));
    assert_eq!(with_used(100 * MIB), 64 << 10);
    assert_eq!(with_used(u64::MAX), 64 << 10);
    windows.used = 100 * MIB;
    assert_eq!(windows.listener(), 64 << 10);
}

#[test]
fn the_mesh_port_leaves_room_for_as_many_connections_as_it_has() {
    let mut windows = after(800 * MIB, 64 * MIB, 64 * MIB, Instant::now());
    assert_eq!(u64::from(windows.listener()), INITIAL + 100 * MIB);
    windows.accepted = 80;
    assert_eq!(u64::from(windows.listener()), INITIAL + 10 * MIB);
}

#[test]
fn the_number_of_peers_is_bounded() {
    let mut windows = Windows::new(1 << 40);
    let mut scan = Scan::default();
    for i in 0..=MAX_PEERS {
        scan.carried(&name(&format!("r{i}")), 8 * MIB, 8 * MIB);
    }
    windows.on_scan(scan, Instant::now());
    assert_eq!(windows.needs.len(), MAX_PEERS);
}

/// What happens to windows.
#[derive(Clone, Debug)]
enum Event {
    Dial(u8),
    Listen,
    /// The connections, each with its window, memory and what it carried; and the seconds since the last.
    Scan(Vec<(u8, u64, u64, u64)>, u64),
    Budget(u64),
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![0..(1u64 << 30), any::<u64>()]
}

fn event() -> impl Strategy<Value = Event> {
    let connection = (0..4u8, bytes(), bytes(), bytes());
    prop_oneof![
        8 => (0..4u8).prop_map(Event::Dial),
        2 => Just(Event::Listen),
        2 => (prop::collection::vec(connection, 0..6), 0..4000u64)
            .prop_map(|(connections, seconds)| Event::Scan(connections, seconds)),
        1 => bytes().prop_map(Event::Budget),
    ]
}

proptest! {
    #[test]
    fn dialled_connections_are_never_promised_more_than_is_left(
        budget in bytes(),
        events in prop::collection::vec(event(), 0..80),
    ) {
        let mut windows = Windows::new(budget);
        let mut now = Instant::now();
        for event in events {
            let left = windows.budget.saturating_sub(windows.used).saturating_sub(windows.promised);
            let promised = windows.promised;
            let window = match event {
                Event::Dial(peer) => Some(windows.dial(&name(&format!("r{peer}")))),
                Event::Listen => Some(windows.listener()),
                Event::Scan(connections, seconds) => {
                    now += Duration::from_secs(seconds);
                    let mut scan = Scan::default();
                    for (peer, window, memory, carried) in connections {
                        scan.add(window, memory, peer % 2 == 0);
                        scan.carried(&name(&format!("r{peer}")), window, carried);
                    }
                    windows.on_scan(scan, now);
                    continue;
                }
                Event::Budget(bytes) => {
                    windows.set_budget(bytes);
                    None
                }
            };
            let Some(window) = window.map(u64::from) else { continue };
            prop_assert!(WINDOW.contains(&window), "{window}");
            prop_assert!(window.saturating_sub(INITIAL) <= left / SHARE);
            prop_assert!(windows.promised - promised <= left / SHARE);
        }
    }

    #[test]
    fn a_window_is_no_larger_with_more_memory_in_use_or_promised_and_no_smaller_with_a_larger_need(
        budget in bytes(), used in bytes(), promised in bytes(), need in bytes(), more in bytes(),
    ) {
        let windows = Windows { used, promised, ..Windows::new(budget) };
        let window = windows.granted(need, SHARE);
        prop_assert!(windows.granted(need.saturating_add(more), SHARE) >= window);
        let fuller = Windows { used: used.saturating_add(more), ..Windows { promised, ..Windows::new(budget) } };
        prop_assert!(fuller.granted(need, SHARE) <= window);
        let fuller = Windows { used, promised: promised.saturating_add(more), ..Windows::new(budget) };
        prop_assert!(fuller.granted(need, SHARE) <= window);
    }
}
