//! The plan: the downloads, their number, and their order.

use std::collections::VecDeque;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::download::{Size, Way};
use super::path::Path;
use crate::experiment::Request;

/// A way, a size, and the number of the measurement. The n-th measurements of a size have the same
/// seed of losses in all ways.
pub(super) type Job = (Way, Size, u64);

/// Downloads that worlds of one kind make.
pub(super) struct Batch {
    pub(super) path: Path,
    /// One way end to end, because it sets the server's and the client's kernel; or ways over the
    /// relays.
    pub(super) ways: Vec<Way>,
    /// The downloads, in order.
    pub(super) jobs: VecDeque<Job>,
    /// The number of worlds side by side.
    pub(super) lanes: usize,
}

/// The sizes of a path, each with the number of measurements.
struct Part {
    path: Path,
    sizes: &'static [(Size, usize)],
    /// The worlds side by side for each way that loss keeps slow.
    slow_lanes: usize,
}

/// The long form. The other paths have the file of figure 2, one of 10 MB, and the better one 100 MB.
const FULL: [Part; 4] = [
    Part {
        path: Path::EuropeUsEast,
        sizes: &[
            (Size::KB10, 9),
            (Size::KB100, 9),
            (Size::MB1, 9),
            (Size::MB4, 9),
            (Size::MB10, 9),
            (Size::MB100, 5),
        ],
        slow_lanes: 9,
    },
    Part {
        path: Path::EuropeUsEastGood,
        sizes: &[(Size::MB4, 9), (Size::MB10, 5), (Size::MB100, 3)],
        slow_lanes: 5,
    },
    Part {
        path: Path::UsEastWest,
        sizes: &[(Size::MB4, 9), (Size::MB10, 5)],
        slow_lanes: 5,
    },
    Part {
        path: Path::IndiaUsWest,
        sizes: &[(Size::MB4, 9), (Size::MB10, 5)],
        slow_lanes: 5,
    },
];

/// The short form. It leaves out 100 MB, which take minutes end to end.
const QUICK: [Part; 1] = [Part {
    path: Path::EuropeUsEast,
    sizes: &[(Size::KB10, 2), (Size::MB4, 7)],
    slow_lanes: 7,
}];

/// The smallest form.
const SMOKE: [Part; 1] = [Part {
    path: Path::EuropeUsEast,
    sizes: &[(Size::KB10, 1)],
    slow_lanes: 1,
}];

/// Returns the downloads of a run.
pub(super) fn of(request: &Request) -> Vec<Batch> {
    let parts: &[Part] = request.form.pick(&FULL, &QUICK, &SMOKE);
    let mut random = Pcg64Mcg::seed_from_u64(request.seed);
    parts
        .iter()
        .flat_map(|part| part.batches(request, &mut random))
        .collect()
}

impl Part {
    fn batches(&self, request: &Request, random: &mut Pcg64Mcg) -> Vec<Batch> {
        let (over_relays, end_to_end): (Vec<Way>, Vec<Way>) = Way::ALL
            .into_iter()
            .filter(|way| way.is_available())
            .partition(|way| way.is_over_relays());
        let end_to_end = end_to_end.into_iter().map(|way| vec![way]);
        end_to_end
            .chain([over_relays])
            .map(|ways| self.batch(ways, request, random))
            .collect()
    }

    fn batch(&self, ways: Vec<Way>, request: &Request, random: &mut Pcg64Mcg) -> Batch {
        let most = self.sizes.iter().map(|(_, runs)| *runs).max().unwrap_or(0);
        let mut jobs = VecDeque::new();
        for run in 0..request.runs.unwrap_or(most) {
            // A round has every way and size at most once, in random order, so that a drift of the
            // machine affects all of them equally.
            let mut round: Vec<Job> = Vec::new();
            for &(size, runs) in self.sizes {
                if run < request.runs.unwrap_or(runs) {
                    round.extend(ways.iter().map(|way| (*way, size, run as u64)));
                }
            }
            for i in (1..round.len()).rev() {
                round.swap(i, (random.next_u64() % (i as u64 + 1)) as usize);
            }
            jobs.extend(round);
        }
        // The longest downloads come first, so that the run does not end with one world waiting for a
        // long download.
        jobs.make_contiguous()
            .sort_by_key(|(_, size, _)| std::cmp::Reverse(*size));
        let lanes = if ways.iter().any(|way| way.fills_its_link()) {
            1
        } else {
            self.slow_lanes
        };
        Batch {
            path: self.path,
            ways,
            lanes: lanes.min(jobs.len()),
            jobs,
        }
    }
}

// === impl Batch ===

impl Batch {
    /// Returns the sizes of its downloads.
    pub(super) fn sizes(&self) -> Vec<Size> {
        let mut sizes: Vec<Size> = self.jobs.iter().map(|(_, size, _)| *size).collect();
        sizes.sort();
        sizes.dedup();
        sizes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::experiment::Form;

    fn request(quick: bool) -> Request {
        Request {
            seed: 7,
            ..Request::of_test(Form::of(quick))
        }
    }

    fn counts(quick: bool) -> BTreeMap<(Path, Way, Size), usize> {
        let mut counts = BTreeMap::new();
        for batch in of(&request(quick)) {
            for (way, size, _) in batch.jobs {
                *counts.entry((batch.path, way, size)).or_default() += 1;
            }
        }
        counts
    }

    #[test]
    fn every_way_makes_as_many_downloads_as_the_others() {
        let counts = counts(false);
        for ((path, way, size), count) in &counts {
            assert_eq!(
                counts.get(&(*path, Way::Taut, *size)),
                Some(count),
                "{way:?}"
            );
        }
    }

    #[test]
    fn a_way_end_to_end_has_worlds_of_its_own() {
        for batch in of(&request(false)) {
            let end_to_end = batch.ways.iter().filter(|way| !way.is_over_relays());
            assert!(end_to_end.count() == usize::from(batch.ways.len() == 1));
        }
    }

    #[test]
    fn the_short_form_has_the_file_of_the_headline() {
        let counts = counts(true);
        for way in [Way::EndToEnd, Way::Ssh, Way::Taut] {
            assert!(counts[&(Path::EuropeUsEast, way, Size::MB4)] > 0);
        }
    }
}
