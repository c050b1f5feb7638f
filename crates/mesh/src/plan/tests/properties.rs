//! What holds for every network.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::ranking::TIE;
use super::super::*;
use super::model::{World, any_path, any_world, every_route};

fn any_options() -> impl Strategy<Value = Options> {
    (any::<bool>(), any::<bool>(), any::<bool>(), 1..=MAX_RELAYS).prop_map(
        |(early_syn, pool, turbo, max_relays)| Options {
            early_syn,
            pool,
            legs: LegSettings {
                turbo,
                ..LegSettings::default()
            },
            max_relays,
            ..Options::default()
        },
    )
}

fn score(route: &Candidate) -> f64 {
    route.score().as_secs_f64()
}

/// Rounding of the search's sums, which have 24 bits.
const ROUNDING: f64 = 1e-5;

/// Returns the path with its round trip multiplied.
fn scaled(path: Path, by: f64) -> Path {
    match path.rtt() {
        Some(rtt) => Path::new(rtt.mul_f64(by), path.loss(), path.rate()),
        None => path,
    }
}

/// Returns the world with round trips that differ from it by up to 5 %.
fn jittered(world: &World, by: &[f64]) -> World {
    let mut jitter = by.iter().cycle();
    let mut path = |path| scaled(path, jitter.next().copied().unwrap_or(1.0));
    let mut network = world.network.clone();
    for a in world.network.ids() {
        for b in world.network.ids() {
            network.set(a, b, path(world.network.path(a, b)));
        }
    }
    let ends = Ends {
        from: world.ends.from.iter().map(|p| path(*p)).collect(),
        to: world.ends.to.iter().map(|p| path(*p)).collect(),
        direct: path(world.ends.direct),
    };
    World { network, ends }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_search_finds_the_best_of_all_routes(world in any_world(6), options in any_options()) {
        let ranking = Planner::new(&world.network, options.clone()).choose(&world.ends, None);
        let every = every_route(&world, &options, options.max_relays);
        let best = every.iter().map(score).fold(f64::INFINITY, f64::min);
        prop_assert_eq!(ranking.routes.is_empty(), every.is_empty());
        prop_assert!(ranking.is_complete);
        if let Some(choice) = ranking.routes.first() {
            let found = ranking.routes.iter().map(score).fold(f64::INFINITY, f64::min);
            prop_assert!(found <= best * (1.0 + ROUNDING), "{found} {best}");
            // Only a cheaper or shorter route may be chosen instead, if it is about as good.
            prop_assert!(score(choice) <= found * (1.0 + TIE));
        }
        // The best of each number of relays is there, too.
        for relays in 1..=options.max_relays {
            let of = |routes: &[Candidate]| {
                let same = routes.iter().filter(|r| r.relays.len() == relays);
                same.map(score).fold(f64::INFINITY, f64::min)
            };
            prop_assert!(of(&ranking.routes) <= of(&every) * (1.0 + ROUNDING) || of(&every).is_infinite());
        }
    }

    #[test]
    fn no_choice_is_worse_than_the_direct_path_or_the_baseline(
        world in any_world(8),
        options in any_options(),
    ) {
        let ranking = Planner::new(&world.network, options).choose(&world.ends, None);
        let Some(choice) = ranking.routes.first() else { return Ok(()) };
        for other in &ranking.routes {
            match other.kind {
                Kind::Direct => prop_assert!(score(choice) <= score(other)),
                Kind::Baseline => prop_assert!(
                    score(choice) <= score(other)
                        || (score(choice) <= score(other) * (1.0 + TIE)
                            && (choice.price, choice.relays.len()) < (other.price, 2))
                ),
                _ => {}
            }
        }
    }

    #[test]
    fn no_route_passes_a_relay_twice_or_an_unusable_one(
        world in any_world(8),
        options in any_options(),
    ) {
        let ranking = Planner::new(&world.network, options.clone()).choose(&world.ends, None);
        for route in &ranking.routes {
            let mut ids = route.relays.clone();
            ids.sort_unstable();
            ids.dedup();
            prop_assert_eq!(ids.len(), route.relays.len());
            prop_assert!(ids.len() <= options.max_relays);
            prop_assert!(ids.iter().all(|&id| world.network.relay(id).usable));
        }
    }

    #[test]
    fn round_trips_that_vary_by_5_percent_change_no_choice(
        world in any_world(6),
        options in any_options(),
        by in vec(0.95..1.05, 40),
    ) {
        let before = Planner::new(&world.network, options.clone()).choose(&world.ends, None);
        let Some(choice) = before.routes.first() else { return Ok(()) };
        let world = jittered(&world, &by);
        let after = Planner::new(&world.network, options).choose(&world.ends, Some(&choice.relays));
        prop_assert_eq!(&after.routes[0].relays, &choice.relays);
    }

    #[test]
    fn a_leg_takes_longer_with_its_round_trip_but_at_most_in_proportion(
        path in any_path(),
        by in 1.0..3.0,
        options in any_options(),
    ) {
        prop_assume!(path.is_known());
        let mesh: fn(Path, &Options) -> f64 = |path, options| leg::mesh(path, options.legs, options);
        for time in [mesh, leg::plain] {
            let (short, long) = (time(path, &options), time(scaled(path, by), &options));
            // A microsecond of rounding.
            prop_assert!(long >= short * (1.0 - 1e-3), "{short} {long}");
            prop_assert!(long <= short * by * (1.0 + 1e-3) + 0.1, "{short} {long}");
        }
    }

    #[test]
    fn kept_choices_are_those_of_the_planner_and_as_stable(
        world in any_world(6),
        options in any_options(),
        by in vec(0.95..1.05, 40),
    ) {
        let ingress: Vec<RelayId> = world.network.ids().collect();
        let mut choices = Choices::new(ingress.clone(), options.clone());
        let destinations = [world.ends.to.clone()];
        choices.update(&world.network, &destinations);
        prop_assert_eq!(choices.incomplete(), 0);
        let planner = Planner::new(&world.network, options);
        let mut known = 0;
        for (at, &me) in ingress.iter().enumerate() {
            let ends = Ends::at_relay(&world.network, me, world.ends.to.clone());
            let ranking = planner.choose(&ends, None);
            let kept = choices.route(at, 0);
            prop_assert_eq!(kept.is_some(), !ranking.routes.is_empty());
            let Some(kept) = kept else { continue };
            known += 1;
            let kept = planner.predict(&ends, kept).expect("a known route");
            let best = ranking.routes.iter().map(score).fold(f64::INFINITY, f64::min);
            prop_assert!(score(&kept) <= best * (1.0 + TIE) * (1.0 + ROUNDING));
        }
        let jittered = jittered(&world, &by);
        prop_assert_eq!(choices.update(&jittered.network, &[jittered.ends.to]), 0);
        // Every route is given up when its relay is.
        let mut network = jittered.network.clone();
        for id in network.ids() {
            network.set_usable(id, false);
        }
        prop_assert_eq!(choices.update(&network, &destinations), known);
    }

    #[test]
    fn a_route_that_is_beaten_clearly_is_left(extra in 20_u64..200) {
        let mut network = Network::new(vec![super::relay("a"), super::relay("b")]);
        let mut to = vec![Path::UNKNOWN, super::ms(10)];
        network.set(0, 1, super::ms(100));
        let mut choices = Choices::new(vec![0], Options::default());
        choices.update(&network, &[to.clone()]);
        prop_assert_eq!(choices.route(0, 0), Some(&[0, 1][..]));
        to[0] = Path::new(Duration::from_millis(1), 0.0, None);
        network.set(0, 1, super::ms(100 + extra));
        prop_assert_eq!(choices.update(&network, &[to]), 1);
        prop_assert_eq!(choices.route(0, 0), Some(&[0][..]));
    }
}
