//! The time to share a budget out, beside the time to sort as many numbers: both are O(n log n).
#![allow(
    missing_docs,
    reason = "criterion's macros generate undocumented items"
)]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use taut_tune::allocate::{Want, allocate};
use taut_tune::budget::{Bounds, Budget, Claim};
use taut_tune::demand::{Demand, Direction, Reason};

/// The numbers of connections.
const CONNECTIONS: [u64; 3] = [1_000, 10_000, 100_000];
/// Connections with the same remote address.
const TOGETHER: u64 = 50;

/// Returns a pseudo-random number (splitmix64).
fn random(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns a claim. One in three is idle, and the others want up to 16 MiB.
fn claim(number: u64) -> Claim {
    let wants = random(number) % (16 << 20);
    let is_idle = number.is_multiple_of(3);
    Claim {
        cookie: number,
        direction: Direction::Send,
        demand: Demand {
            size: 128 << 10,
            queued: wants / 8,
            committed: 0,
            segment: 0,
            wanted: wants,
            useful: wants,
            is_fixed: Some(true),
            is_tunable: true,
            is_limiting: false,
            widest: None,
            is_at_widest: false,
            reason: match is_idle {
                true => Reason::Idle,
                false => Reason::Steady {
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
        // A third of what the connections want.
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
                min: claim.demand.queued,
                max: claim.demand.wanted,
                ..Want::default()
            })
            .collect();
        group.bench_function(of("allocate"), |bencher| {
            bencher.iter(|| allocate(black_box(&wants), &[], total));
        });
        let numbers: Vec<u64> = (0..connections).map(random).collect();
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
