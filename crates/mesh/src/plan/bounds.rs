//! The least that the rest of a route can cost, from every relay, by the number of relays that are
//! left.
//!
//! Computed backwards from the destination (Bellman's recursion): the least weight and,
//! independently, the least largest transfer time. No route has less than both together, so a
//! search that leaves out what cannot beat its best route by this bound loses nothing.

use super::terms::{LastTerms, MeshTerms};

/// The lower bounds for one destination. With `h` relays left, the relay itself included, they are
/// at `h - 1`.
#[derive(Debug)]
pub(super) struct Bounds {
    weights: Vec<Vec<f32>>,
    times: Vec<Vec<f32>>,
}

// === impl Bounds ===

impl Bounds {
    /// Computes the bounds of every destination, for routes of at most `relays` relays. The
    /// destinations share each row of the mesh while it is in the cache.
    pub(super) fn of(mesh: &MeshTerms, last: &[LastTerms], relays: usize) -> Vec<Self> {
        let mut all: Vec<Self> = last.iter().map(Self::last).collect();
        for _ in 1..relays {
            let mut next: Vec<_> = all
                .iter()
                .map(|_| {
                    (
                        Vec::with_capacity(mesh.len()),
                        Vec::with_capacity(mesh.len()),
                    )
                })
                .collect();
            for from in 0..mesh.len() {
                let (weights, times) = (mesh.weights(from), mesh.times(from));
                for (bounds, (next_weights, next_times)) in all.iter().zip(&mut next) {
                    next_weights.push(least(weights, bounds.last_weights(), |a, b| a + b));
                    next_times.push(least(times, bounds.last_times(), larger));
                }
            }
            for (bounds, (weights, times)) in all.iter_mut().zip(next) {
                bounds.weights.push(weights);
                bounds.times.push(times);
            }
        }
        all
    }

    fn last(last: &LastTerms) -> Self {
        Self {
            weights: vec![last.weights.clone()],
            times: vec![last.times.clone()],
        }
    }

    fn last_weights(&self) -> &[f32] {
        &self.weights[self.weights.len() - 1]
    }

    fn last_times(&self) -> &[f32] {
        &self.times[self.times.len() - 1]
    }

    /// Returns the least weight from each relay with `left` relays, itself included.
    pub(super) fn weights(&self, left: usize) -> &[f32] {
        &self.weights[left - 1]
    }

    /// Returns the least of the largest transfer times.
    pub(super) fn times(&self, left: usize) -> &[f32] {
        &self.times[left - 1]
    }
}

pub(super) fn larger(a: f32, b: f32) -> f32 {
    // `f32::max` has more cases, which keep the compiler from using one instruction.
    if a > b { a } else { b }
}

/// Returns the least of `combine(a[i], b[i])`. In lanes, so that it is computed for several `i` at
/// a time.
fn least(a: &[f32], b: &[f32], combine: impl Fn(f32, f32) -> f32) -> f32 {
    const LANES: usize = 16;
    let mut least = [f32::INFINITY; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            let value = combine(a[lane], b[lane]);
            least[lane] = if value < least[lane] {
                value
            } else {
                least[lane]
            };
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(&a, &b)| combine(a, b));
    rest.chain(least).fold(f32::INFINITY, f32::min)
}
