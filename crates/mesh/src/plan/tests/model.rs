//! Random networks, and a search that tries everything.

use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::super::*;
use super::relay;

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) network: Network,
    pub(super) ends: Ends,
}

/// A path that exists mostly, from 1 to 400 ms, sometimes with loss or a known rate.
pub(super) fn any_path() -> impl Strategy<Value = Path> {
    let known = (
        1_000_u64..400_000,
        prop_oneof![Just(0.0), 0.0..0.02],
        option::of(1_000_000_u64..2_000_000_000),
    )
        .prop_map(|(us, loss, rate)| Path::new(Duration::from_micros(us), loss, rate));
    prop_oneof![1 => Just(Path::UNKNOWN), 9 => known]
}

pub(super) fn any_world(relays: usize) -> impl Strategy<Value = World> {
    (1..=relays).prop_flat_map(|n| {
        let relays = vec((option::of(0.0..0.3), prop::bool::weighted(0.9)), n);
        let paths = vec(any_path(), n * n);
        let ends = (vec(any_path(), n), vec(any_path(), n), any_path());
        (relays, paths, ends).prop_map(move |(relays, paths, (from, to, direct))| {
            let relays = relays.into_iter().enumerate();
            let relays = relays.map(|(number, (price, usable))| Relay {
                price,
                usable,
                ..relay(&format!("r{number}"))
            });
            let mut network = Network::new(relays.collect());
            for (at, path) in paths.into_iter().enumerate() {
                let (a, b) = ((at / n) as RelayId, (at % n) as RelayId);
                if a != b {
                    network.set(a, b, path);
                }
            }
            World {
                network,
                ends: Ends { from, to, direct },
            }
        })
    })
}

/// Predicts every route of at most `most` usable relays.
pub(super) fn every_route(world: &World, options: &Options, most: usize) -> Vec<Candidate> {
    let mut all = Vec::new();
    let mut routes: Vec<Vec<RelayId>> = vec![Vec::new()];
    while let Some(route) = routes.pop() {
        all.extend(Candidate::predict(
            &world.network,
            &world.ends,
            options,
            &route,
        ));
        if route.len() == most {
            continue;
        }
        for id in world.network.ids() {
            if world.network.relay(id).usable && !route.contains(&id) {
                let mut longer = route.clone();
                longer.push(id);
                routes.push(longer);
            }
        }
    }
    all
}
