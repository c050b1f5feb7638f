//! The time to plan for a mesh of 1,000 relays: 100,000 pairs of an ingress relay and a destination, and
//! one pair of a client and a destination.
//!
//! The relays are at random places of a disc of 150 ms; a path is up to half longer than the straight line,
//! one in ten loses up to 0.5 %, and one in five has a known rate, so that the slowest leg matters.
#![allow(
    missing_docs,
    reason = "criterion's macros generate undocumented items"
)]

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use taut_mesh::plan::{Choices, Ends, Network, Options, Path, Planner, Relay, RelayId};

const RELAYS: usize = 1_000;
const DESTINATIONS: usize = 100;

/// Returns a pseudo-random number from 0 to 1 (splitmix64).
fn random(number: u64) -> f64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Returns a place, in ms from the centre.
fn place(number: usize) -> (f64, f64) {
    let (angle, radius) = (random(2 * number as u64), random(2 * number as u64 + 1));
    let (angle, radius) = (angle * std::f64::consts::TAU, radius.sqrt() * 75.0);
    (angle.cos() * radius, angle.sin() * radius)
}

/// Returns the path between two places. `epoch` changes all of them a little.
fn path(a: usize, b: usize, epoch: u64) -> Path {
    let ((ax, ay), (bx, by)) = (place(a), place(b));
    let luck = |salt: u64| random(((a * 7_919 + b) as u64).wrapping_mul(31) + salt);
    let jitter = 0.97 + 0.06 * random((a * 104_729 + b) as u64 ^ (epoch << 40));
    let rtt = (2.0 * (ax - bx).hypot(ay - by) * (1.0 + 0.5 * luck(1)) + 0.5) * jitter;
    let loss = if luck(2) < 0.1 { 0.005 * luck(3) } else { 0.0 };
    let rate = (luck(4) < 0.2).then(|| 50_000_000 + (luck(5) * 1e9) as u64);
    Path::new(Duration::from_secs_f64(rtt / 1e3), loss, rate)
}

fn network() -> Network {
    let relay = |number: usize| Relay {
        name: format!("r{number}").parse().expect("a name"),
        cloud: None,
        price: None,
        usable: true,
    };
    let mut network = Network::new((0..RELAYS).map(relay).collect());
    for a in 0..RELAYS {
        set_row(&mut network, a, 0);
    }
    network
}

/// Sets the paths from a relay to all others.
fn set_row(network: &mut Network, from: usize, epoch: u64) {
    for to in (0..RELAYS).filter(|&to| to != from) {
        network.set(from as RelayId, to as RelayId, path(from, to, epoch));
    }
}

fn outside(number: usize) -> Vec<Path> {
    (0..RELAYS)
        .map(|relay| path(relay, 1_000_000 + number, 0))
        .collect()
}

/// Returns the most memory that this process has had resident so far, in bytes (`VmHWM`, proc_pid_status(5)).
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.and_then(|kib| kib.parse::<u64>().ok()).expect("VmHWM") << 10
}

fn benches(criterion: &mut Criterion) {
    let at_start = peak();
    let mut network = network();
    let destinations: Vec<Vec<Path>> = (0..DESTINATIONS).map(outside).collect();
    let ingress: Vec<RelayId> = network.ids().collect();
    let mut choices = Choices::new(ingress.clone(), Options::default());
    choices.update(&network, &destinations);
    println!(
        "memory of the network, the destinations and the routes, and of planning: {:.1} MB at the most",
        (peak() - at_start) as f64 / 1e6
    );
    let mut group = criterion.benchmark_group("plan");
    group.sample_size(10);
    group.bench_function("100,000 pairs from nothing", |bench| {
        bench.iter(|| {
            let mut choices = Choices::new(ingress.clone(), Options::default());
            choices.update(&network, &destinations);
            assert_eq!(choices.incomplete(), 0);
        });
    });
    let mut epoch = 0;
    group.bench_function("100,000 pairs after a row changed", |bench| {
        bench.iter(|| {
            epoch += 1;
            set_row(&mut network, epoch as usize % RELAYS, epoch);
            choices.update(&network, &destinations)
        });
    });
    let planner = Planner::new(&network, Options::default());
    let ends = Ends {
        from: outside(DESTINATIONS),
        to: destinations[0].clone(),
        direct: path(2_000_000, 2_000_001, 0),
    };
    group.bench_function("one pair of a client and a destination", |bench| {
        bench.iter(|| {
            let ranking = planner.choose(&ends, None);
            assert!(ranking.is_complete);
            ranking
        });
    });
    group.finish();
}

criterion_group!(plan, benches);
criterion_main!(plan);
