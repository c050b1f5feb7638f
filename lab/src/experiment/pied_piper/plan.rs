//! The plan: the downloads, their number, and their order.

use std::collections::{BTreeMap, VecDeque};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::download::{Condition, Size, Way};
use crate::experiment::Request;

/// A way, a size, and the number of the measurement. The n-th measurements of a size have the same
/// losses in all ways.
pub(super) type Job = (Way, Size, u64);

/// The downloads under one condition.
pub(super) struct Batch {
    pub(super) condition: Condition,
    /// The downloads, in order.
    pub(super) jobs: VecDeque<Job>,
    /// The number of worlds side by side.
    pub(super) lanes: usize,
}

/// The ways and sizes of a condition.
struct Part {
    condition: Condition,
    lanes: usize,
    runs: usize,
    ways: &'static [Way],
    sizes: &'static [Size],
}

/// The long form. With loss, times vary by an order of magnitude. The paper's figures 7 and 8 show
/// 50 runs; its figure 9 shows 30.
const FULL: [Part; 3] = [
    Part {
        condition: Condition::Clean,
        lanes: 4,
        runs: 50,
        ways: &[
            Way::EndToEnd,
            Way::Routed,
            Way::Ssh,
            Way::Split,
            Way::EarlySyn,
            Way::Pool,
            Way::Taut,
        ],
        sizes: &Size::ALL,
    },
    Part {
        condition: Condition::Lossy,
        lanes: 4,
        runs: 20,
        ways: &[Way::EndToEnd, Way::Ssh, Way::Split, Way::Taut, Way::TautBbr],
        sizes: &[Size::Mb10],
    },
    Part {
        condition: Condition::Window,
        lanes: 5,
        runs: 50,
        ways: &[Way::EndToEnd, Way::Pool, Way::Taut],
        sizes: &[Size::Kb10, Size::Mb1, Size::Mb10],
    },
];

/// The short form. It leaves out 10 MB end to end through a window of 64 kB, which would take 42 s.
const QUICK: [Part; 3] = [
    Part {
        condition: Condition::Clean,
        lanes: 3,
        runs: 2,
        ways: &[Way::EndToEnd, Way::Split, Way::Taut],
        sizes: &[Size::Kb10, Size::Mb1, Size::Mb10],
    },
    Part {
        condition: Condition::Lossy,
        lanes: 3,
        runs: 2,
        ways: &[Way::EndToEnd, Way::Split, Way::Taut],
        sizes: &[Size::Mb10],
    },
    Part {
        condition: Condition::Window,
        lanes: 1,
        runs: 1,
        ways: &[Way::EndToEnd, Way::Taut],
        sizes: &[Size::Mb1],
    },
];

/// The smallest form: one download by the simplest way and one by the fullest, and one to the small
/// window.
const SMOKE: [Part; 2] = [
    Part {
        condition: Condition::Clean,
        lanes: 1,
        runs: 1,
        ways: &[Way::EndToEnd, Way::Taut],
        sizes: &[Size::Kb10],
    },
    Part {
        condition: Condition::Window,
        lanes: 1,
        runs: 1,
        ways: &[Way::EndToEnd],
        sizes: &[Size::Kb10],
    },
];

/// Returns the downloads of a run, in a batch for each condition.
pub(super) fn of(request: &Request) -> Vec<Batch> {
    let parts: &[Part] = request.form.pick(&FULL, &QUICK, &SMOKE);
    let mut random = Pcg64Mcg::seed_from_u64(request.seed);
    parts
        .iter()
        .map(|part| part.batch(request, &mut random))
        .collect()
}

impl Part {
    fn batch(&self, request: &Request, random: &mut Pcg64Mcg) -> Batch {
        let ways: Vec<Way> = self
            .ways
            .iter()
            .copied()
            .filter(|w| w.available())
            .collect();
        let mut jobs = VecDeque::new();
        for run in 0..request.runs.unwrap_or(self.runs) as u64 {
            // A round includes every way and size once, in random order, so that a drift of the
            // machine affects all of them equally.
            let mut round: Vec<Job> = ways
                .iter()
                .flat_map(|&way| self.sizes.iter().map(move |&size| (way, size, run)))
                .collect();
            for i in (1..round.len()).rev() {
                round.swap(i, (random.next_u64() % (i as u64 + 1)) as usize);
            }
            jobs.extend(round);
        }
        if request.form.is_short() {
            // The longest downloads come first, so that the run does not end with one lane waiting
            // for a long download.
            jobs.make_contiguous()
                .sort_by_key(|(way, size, _)| std::cmp::Reverse((*way == Way::EndToEnd, *size)));
        }
        Batch {
            condition: self.condition,
            lanes: self.lanes.min(jobs.len()),
            jobs,
        }
    }
}

// === impl Batch ===

impl Batch {
    /// Returns the ways in use.
    pub(super) fn ways(&self) -> Vec<Way> {
        let ways: BTreeMap<Way, ()> = self.jobs.iter().map(|(way, ..)| (*way, ())).collect();
        ways.into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::experiment::Form;

    fn request(quick: bool, seed: u64) -> Request {
        Request {
            seed,
            ..Request::of_test(Form::of(quick))
        }
    }

    #[test]
    fn every_round_has_every_way_and_size_once() {
        for batch in of(&request(false, 7)) {
            let round: BTreeSet<(Way, Size)> =
                batch.jobs.iter().map(|(w, s, _)| (*w, *s)).collect();
            let jobs: Vec<Job> = batch.jobs.into_iter().collect();
            for (run, part) in jobs.chunks(round.len()).enumerate() {
                let of_part: BTreeSet<_> = part.iter().map(|(w, s, _)| (*w, *s)).collect();
                assert_eq!(of_part, round);
                assert!(part.iter().all(|(.., r)| *r == run as u64));
            }
        }
    }

    #[test]
    fn a_seed_is_an_order() {
        let order = |seed| -> Vec<_> {
            let batches = of(&request(false, seed));
            batches.into_iter().map(|batch| batch.jobs).collect()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn the_short_form_measures_what_the_headline_needs() {
        let batches = of(&request(true, 1));
        for way in [Way::EndToEnd, Way::Taut] {
            for (condition, size) in [
                (Condition::Clean, Size::Kb10),
                (Condition::Clean, Size::Mb1),
                (Condition::Lossy, Size::Mb10),
                (Condition::Window, Size::Mb1),
            ] {
                let batch = batches.iter().find(|b| b.condition == condition).unwrap();
                let there = batch.jobs.iter().any(|(w, s, _)| (*w, *s) == (way, size));
                assert!(there, "{way:?} {size:?} {condition:?}");
            }
        }
    }
}
