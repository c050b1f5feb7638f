mod model;
mod properties;
mod table;

use std::time::Duration;

use super::*;

fn ms(ms: u64) -> Path {
    Path::new(Duration::from_millis(ms), 0.0, None)
}

fn relay(name: &str) -> Relay {
    Relay {
        name: name.parse().expect("a name"),
        cloud: None,
        price: None,
        usable: true,
    }
}

/// The route of pied-piper 3.3, and its direct path of the same round trip.
fn papers_route() -> (Network, Ends) {
    let tenths = |tenths: u64| Path::new(Duration::from_micros(tenths * 100), 0.0, None);
    let mut network = Network::new(vec![relay("near"), relay("far")]);
    network.set(0, 1, tenths(2_150));
    network.set(1, 0, tenths(2_150));
    let ends = Ends {
        from: vec![tenths(327), tenths(2_477)],
        to: vec![tenths(2_410), tenths(260)],
        direct: tenths(2_737),
    };
    (network, ends)
}

fn choose(network: &Network, ends: &Ends, options: Options) -> Ranking {
    Planner::new(network, options).choose(ends, None)
}

fn only(ranking: &Ranking, kind: Kind) -> &Candidate {
    let mut routes = ranking.routes.iter();
    routes
        .find(|route| route.kind == kind)
        .expect("such a route")
}

#[test]
fn a_path_keeps_what_it_is_made_of() {
    let path = Path::new(Duration::from_micros(32_700), 0.001, Some(100_000_000));
    assert_eq!(path.rtt(), Some(Duration::from_micros(32_700)));
    assert!((path.loss() - 0.001).abs() < 1e-9);
    assert_eq!(path.rate(), Some(100_000_000));
    assert_eq!(size_of::<Path>(), 8);
}

#[test]
fn extreme_values_of_a_path_become_the_largest_that_it_can_hold() {
    let path = Path::new(Duration::MAX, 7.0, Some(u64::MAX));
    assert!(path.is_known() && path.rtt() > Some(Duration::from_secs(4_000)));
    assert!(path.loss() < 1.0 && path.rate() > Some(6_000_000_000));
    assert_eq!(Path::new(Duration::ZERO, f64::NAN, None), Path::ZERO);
    assert_eq!(Path::UNKNOWN.rtt(), None);
}

#[test]
fn the_first_byte_through_two_relays_takes_a_handshake_with_the_near_one_and_one_round_trip() {
    let (network, ends) = papers_route();
    let ranking = choose(&network, &ends, Options::default());
    let choice = &ranking.routes[0];
    assert_eq!(choice.kind, Kind::Baseline);
    // 32.7 ms + 273.7 ms (pied-piper 3.2), and 0.2 ms in each relay.
    let first_byte = choice.first_byte.as_secs_f64() * 1e3;
    assert!((first_byte - 306.8).abs() < 0.01, "{first_byte}");
    let direct = only(&ranking, Kind::Direct).first_byte.as_secs_f64() * 1e3;
    assert!((direct - 547.4).abs() < 0.01, "{direct}");
}

#[test]
fn without_early_syn_and_a_pool_handshakes_follow_one_another() {
    let (network, ends) = papers_route();
    let first_byte = |early_syn, pool| {
        let options = Options {
            early_syn,
            pool,
            relay_delay: Duration::ZERO,
            ..Options::default()
        };
        let planner = Planner::new(&network, options);
        let route = planner.predict(&ends, &[0, 1]).expect("known");
        (route.first_byte.as_secs_f64() * 1e4).round() / 10.0
    };
    assert_eq!(first_byte(true, true), 306.4);
    // A handshake with the server besides.
    assert_eq!(first_byte(false, true), 332.4);
    // TCP's and TLS' round trips between the relays besides.
    assert_eq!(first_byte(false, false), 762.4);
}

#[test]
fn slow_start_over_a_short_leg_governs_rather_than_over_the_long_one() {
    let (network, ends) = papers_route();
    let ranking = choose(&network, &ends, Options::default());
    let choice = &ranking.routes[0];
    // 1 MB is 70 initial windows: six round trips of the client's leg until the last window leaves.
    let slowest = choice.slowest_leg().expect("a leg");
    assert_eq!(
        (slowest.from, slowest.to),
        (LegEnd::Client, LegEnd::Relay(0))
    );
    let transfer = slowest.transfer.as_secs_f64() * 1e3;
    assert!((transfer - 6.0 * 32.7).abs() < 1.0, "{transfer}");
    let direct = only(&ranking, Kind::Direct);
    let transfer = direct.legs[0].transfer.as_secs_f64() * 1e3;
    assert!((transfer - 6.0 * 273.7).abs() < 8.0, "{transfer}");
}

#[test]
fn a_window_a_rate_and_loss_bound_a_leg() {
    let time = |path: Path, options: &Options| leg::plain(path, options);
    let options = Options {
        size: 100_000_000,
        ..Options::default()
    };
    let rtt = Duration::from_millis(100);
    // 100 MB at 100 Mbit/s take 8 s, and slow start a little more.
    let rated = time(Path::new(rtt, 0.0, Some(100_000_000)), &options);
    assert!((8_000.0..8_700.0).contains(&rated), "{rated}");
    // 64 kB in 100 ms.
    let small = Options {
        end_window: 65_536,
        ..options.clone()
    };
    let windowed = time(Path::new(rtt, 0.0, None), &small);
    assert!((152_000.0..153_500.0).contains(&windowed), "{windowed}");
    // Reno at 1 % loss sends 12.2 segments a round trip (Mathis et al.), and CUBIC does not send
    // more here.
    let lossy = time(Path::new(rtt, 0.01, None), &options);
    assert!((563_000.0..565_000.0).contains(&lossy), "{lossy}");
}

#[test]
fn a_leg_with_turbo_start_sends_a_window_at_its_rate() {
    let path = Path::new(Duration::from_millis(200), 0.0, None);
    // 1 MB at 1 Gbit/s.
    let settings = LegSettings::default();
    let within = leg::mesh(path, settings, &Options::default());
    assert!((within - 8.0).abs() < 0.01, "{within}");
    // 4 MiB at once and 5.8 MB more, 4 MiB each 200 ms.
    let large = Options {
        size: 10_000_000,
        ..Options::default()
    };
    let beyond = leg::mesh(path, settings, &large);
    assert!((beyond - (33.55 + 276.8)).abs() < 0.5, "{beyond}");
    // Half of the transfers lose one segment and wait a round trip for it.
    let lossy = Path::new(Duration::from_millis(200), 0.001, None);
    let lossy = leg::mesh(lossy, settings, &Options::default());
    assert!((107.0..109.0).contains(&lossy), "{lossy}");
    // Without a window's bound, 10 MB at 1 Gbit/s.
    let unbounded = LegSettings {
        window: None,
        ..settings
    };
    let whole = leg::mesh(path, unbounded, &large);
    assert!((whole - 80.0).abs() < 0.01, "{whole}");
}

#[test]
fn a_leg_with_settings_of_its_own_is_predicted_by_them_and_can_lose_the_choice() {
    // From `near` the server is as far through `slow` as through `far`.
    let ms = |ms| Path::new(Duration::from_millis(ms), 0.0, None);
    let mut network = Network::new(vec![relay("near"), relay("far"), relay("slow")]);
    network.set(0, 1, ms(101));
    network.set(0, 2, ms(100));
    let to = vec![Path::UNKNOWN, ms(10), ms(10)];
    let ends = Ends::at_relay(&network, 0, to);
    let relays = |network: &Network| {
        let ranking = choose(network, &ends, Options::default());
        let choice = &ranking.routes[0];
        (choice.relays.clone(), choice.legs[1].transfer)
    };
    let (before, fast) = relays(&network);
    assert_eq!(before, [0, 2]);
    let settings = LegSettings {
        rate: 10_000_000,
        ..LegSettings::default()
    };
    network.set_leg(0, 2, settings);
    assert_eq!(relays(&network).0, [0, 1]);
    let planner = Planner::new(&network, Options::default());
    let slow = planner.predict(&ends, &[0, 2]).expect("known").legs[1].transfer;
    // 1 MB at 10 Mbit/s instead of 1 Gbit/s.
    let times = slow.as_secs_f64() / fast.as_secs_f64();
    assert!((99.0..101.0).contains(&times), "{times}");
}

#[test]
fn the_direct_path_is_the_choice_where_it_is_best() {
    let (network, mut ends) = papers_route();
    ends.direct = ms(60);
    let ranking = choose(&network, &ends, Options::default());
    assert_eq!(ranking.routes[0].kind, Kind::Direct);
}

#[test]
fn both_of_the_papers_estimators_are_shown() {
    let mut network = Network::new(vec![relay("a"), relay("m"), relay("b")]);
    network.set(0, 1, ms(60));
    network.set(1, 2, ms(80));
    network.set(0, 2, ms(200));
    let ends = Ends {
        from: vec![ms(10), Path::UNKNOWN, Path::UNKNOWN],
        to: vec![Path::UNKNOWN, Path::UNKNOWN, ms(10)],
        direct: ms(320),
    };
    let ranking = choose(&network, &ends, Options::default());
    let three = only(&ranking, Kind::Three);
    assert_eq!(three.relays, [0, 1, 2]);
    assert_eq!(three.total_rtt_gain, Some(2.0));
    assert_eq!(three.slowest_leg_gain, Some(2.5));
    assert_eq!(only(&ranking, Kind::Baseline).slowest_leg_gain, None);
}

#[test]
fn the_cheaper_of_two_equally_good_relays_is_chosen() {
    let mut network = Network::new(vec![relay("dear"), relay("cheap")]);
    let ends = Ends {
        from: vec![ms(50), ms(50)],
        to: vec![ms(50), ms(50)],
        direct: ms(300),
    };
    let priced = |network: &mut Network, prices: [f64; 2]| {
        let relays = network.ids().zip(prices).map(|(id, price)| Relay {
            price: Some(price),
            ..network.relay(id).clone()
        });
        *network = Network::new(relays.collect());
        choose(network, &ends, Options::default()).routes[0]
            .relays
            .clone()
    };
    assert_eq!(priced(&mut network, [0.12, 0.02]), [1]);
    assert_eq!(priced(&mut network, [0.01, 0.02]), [0]);
}

#[test]
fn clouds_relays_and_the_price_of_a_route_can_be_limited() {
    let (_, ends) = papers_route();
    let in_cloud = |name, cloud: &str, price| Relay {
        cloud: Some(cloud.to_owned()),
        price: Some(price),
        ..relay(name)
    };
    let mut network = Network::new(vec![
        in_cloud("near", "one", 0.1),
        in_cloud("far", "two", 0.2),
    ]);
    network.set(0, 1, ms(215));
    let kinds = |options: Options| {
        let ranking = choose(&network, &ends, options);
        let mut relays: Vec<_> = ranking.routes.iter().map(|r| r.relays.clone()).collect();
        relays.sort();
        relays
    };
    let all: [&[RelayId]; 4] = [&[], &[0], &[0, 1], &[1]];
    assert_eq!(kinds(Options::default()), all);
    let one = Options {
        clouds: vec!["two".to_owned()],
        ..Options::default()
    };
    assert_eq!(kinds(one), [&[][..], &[1]]);
    let few = Options {
        max_relays: 1,
        ..Options::default()
    };
    assert_eq!(kinds(few), [&[][..], &[0], &[1]]);
    let cheap = Options {
        max_price: Some(0.25),
        ..Options::default()
    };
    assert_eq!(kinds(cheap), [&[][..], &[0], &[1]]);
    let none = Options {
        max_relays: 0,
        ..Options::default()
    };
    let direct: [&[RelayId]; 1] = [&[]];
    assert_eq!(kinds(none), direct);
}

#[test]
fn a_session_that_is_at_a_relay_leaves_through_it() {
    let (network, ends) = papers_route();
    let ends = Ends::at_relay(&network, 1, ends.to);
    let ranking = choose(&network, &ends, Options::default());
    assert_eq!(ranking.routes[0].relays, [1]);
    assert!(ranking.routes.iter().all(|route| route.relays[0] == 1));
}

#[test]
fn a_relay_that_is_not_usable_is_in_no_route() {
    let (mut network, ends) = papers_route();
    network.set_usable(1, false);
    let planner = Planner::new(&network, Options::default());
    let ranking = planner.choose(&ends, Some(&[0, 1]));
    assert!(!ranking.routes.is_empty());
    assert!(
        ranking
            .routes
            .iter()
            .all(|route| !route.relays.contains(&1))
    );
}

#[test]
fn without_any_known_path_there_is_no_route() {
    let network = Network::new(vec![relay("a")]);
    let ends = Ends {
        from: vec![Path::UNKNOWN],
        to: vec![ms(1)],
        direct: Path::UNKNOWN,
    };
    let ranking = choose(&network, &ends, Options::default());
    assert_eq!(ranking.routes, []);
    let empty = Network::new(Vec::new());
    let ends = Ends {
        from: Vec::new(),
        to: Vec::new(),
        direct: ms(3),
    };
    assert_eq!(
        choose(&empty, &ends, Options::default()).routes[0].kind,
        Kind::Direct
    );
}

#[test]
fn a_leg_that_the_runner_up_shares_does_not_make_it_the_choice() {
    let (network, ends) = papers_route();
    let mut relays: Vec<Relay> = network.ids().map(|id| network.relay(id).clone()).collect();
    relays.push(relay("middle"));
    let mut network = Network::new(relays);
    for (a, b, rtt) in [(0, 1, 215), (0, 2, 120), (2, 1, 120)] {
        network.set(a, b, ms(rtt));
    }
    let ends = Ends {
        from: vec![ends.from[0], Path::UNKNOWN, Path::UNKNOWN],
        to: vec![Path::UNKNOWN, ends.to[1], Path::UNKNOWN],
        direct: Path::UNKNOWN,
    };
    let planner = Planner::new(&network, Options::default());
    let ranking = planner.choose(&ends, None);
    let [choice, runner_up] = &ranking.routes[..] else {
        panic!("{ranking:?}");
    };
    assert_eq!(
        (&choice.relays[..], &runner_up.relays[..]),
        (&[0, 1][..], &[0, 2, 1][..])
    );
    // Only the leg between the two relays differs.
    let changes = planner.changes(&ends, &ranking);
    let rising: Vec<usize> = changes
        .iter()
        .filter_map(|change| match change {
            Change::Rises { leg, then: 1, .. } => Some(*leg),
            _ => None,
        })
        .collect();
    assert_eq!(rising, [1]);
    let falling: Vec<usize> = changes
        .iter()
        .filter_map(|change| match change {
            Change::Falls { leg, .. } => Some(*leg),
            _ => None,
        })
        .collect();
    assert_eq!(falling, [1, 2]);
}

#[test]
fn the_changes_that_would_change_the_choice_do_change_it() {
    let (network, ends) = papers_route();
    let planner = Planner::new(&network, Options::default());
    let ranking = planner.choose(&ends, None);
    let changes = planner.changes(&ends, &ranking);
    let between = changes.iter().find_map(|change| match change {
        Change::Rises {
            leg: 1,
            rtt,
            then: 1,
        } => Some(*rtt),
        _ => None,
    });
    let between = between.expect("the leg between the relays may rise");
    for (rtt, stays) in [(between, true), (between + Duration::from_millis(1), false)] {
        let mut network = network.clone();
        network.set(0, 1, Path::new(rtt, 0.0, None));
        let options = Options::default();
        let candidate = Candidate::predict(&network, &ends, &options, &[0, 1]).expect("known");
        assert_eq!(
            candidate.score() <= ranking.routes[1].score(),
            stays,
            "{rtt:?}"
        );
    }
    let lost = changes.iter().find_map(|change| match change {
        Change::Lost { relay: 0, then } => then.as_ref(),
        _ => None,
    });
    assert_eq!(lost.expect("a route is left").relays, [1]);
}
