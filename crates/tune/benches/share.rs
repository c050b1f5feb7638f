//! How long it takes to share a budget out, beside sorting as many numbers: both are O(n log n).
#![allow(
    missing_docs,
    reason = "what criterion's macros make is for nobody else"
)]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use taut_tune::allocate::{Want, allocate};
use taut_tune::budget::{Bounds, Budget, Claim};
use taut_tune::demand::{Because, Demand, Direction};

/// Numbers of connections.
const CONNECTIONS: [u64; 3] = [1_000, 10_000, 100_000];
/// Connections with one address.
const TOGETHER: u64 = 50;

/// A number that looks drawn by lot, the same each time (splitmix64).
fn drawn(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One in three rests, and the others want up to 16 MiB.
fn claim(number: u64) -> Claim {
    let wants = drawn(number) % (16 << 20);
    let rests = number.is_multiple_of(3);
    Claim {
        cookie: number,
        direction: Direction::Send,
        demand: Demand {
            has: 128 << 10,
            queued: wants / 8,
            promised: 0,
            segment: 0,
            wants,
            most: wants,
            is_fixed: Some(true),
            is_held: false,
            because: match rests {
                true => Because::Idle,
                false => Because::Shown {
                    window: wants / 2,
                    round_trip: Duration::from_millis(20),
                },
            },
        },
        is_left_alone: false,
        cgroup: Some(number % 7),
        destination: Ipv4Addr::from_bits((number / TOGETHER) as u32).into(),
    }
}

fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("connections");
    for connections in CONNECTIONS {
        group.throughput(Throughput::Elements(connections));
        let of = |name| BenchmarkId::new(name, connections);
        let claims: Vec<Claim> = (0..connections).map(claim).collect();
        // A third of what is wanted, and of that what one may have.
        let total = connections * (16 << 20) / 2 / 3;
        group.bench_function(of("share"), |bencher| {
            let mut budget = Budget::new(Bounds {
                total,
                per_cgroup: Some(total / 5),
                per_destination: Some(total * TOGETHER / connections * 2),
            });
            bencher.iter(|| budget.share(black_box(&claims)));
        });
        let wants: Vec<Want> = claims
            .iter()
            .map(|claim| Want {
                least: claim.demand.queued,
                most: claim.demand.wants,
                ..Want::default()
            })
            .collect();
        group.bench_function(of("allocate"), |bencher| {
            bencher.iter(|| allocate(black_box(&wants), &[], total));
        });
        let numbers: Vec<u64> = (0..connections).map(drawn).collect();
        group.bench_function(of("sort"), |bencher| {
            bencher.iter(|| {
                let mut numbers = numbers.clone();
                numbers.sort_unstable();
                numbers
            });
        });
    }
    group.finish();
}

criterion_group!(share, benches);
criterion_main!(share);
