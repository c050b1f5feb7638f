//! Two flows to one client over one bottleneck, a short one and a long one (pied-piper 6.3, figures
//! 14 and 15). One comes from the near relay's host, the other from the far server, and both are
//! requested at the same moment.

pub(super) mod share;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::download::{Size, Way};
use super::route::Setting;
use super::stage::Stage;
use crate::experiment::flows::Flow;
use crate::experiment::progress::Progress;
use crate::experiment::{ExperimentError, Request};
use crate::peer::nginx;
use share::Contest;

/// The largest difference between the starts of the two flows; the seed decides which starts first.
/// The difference is small enough to count as "the same moment", and gives no flow the same head
/// start in all measurements of a run.
const APART: Duration = Duration::from_millis(20);
/// The number of worlds side by side. Each world carries the full rate of its bottleneck all the
/// time.
const LANES: usize = 4;

/// The ways of the long flow: that of figure 14, and that of figure 15.
pub(super) const WAYS: [Way; 2] = [Way::Routed, Way::Taut];

/// The size of the files and the number of contests.
pub(super) struct Plan {
    pub(super) size: Size,
    runs: usize,
}

impl Plan {
    pub(super) fn of(request: &Request) -> Self {
        // 20 MB is the smallest file that gives the flows time to reach a balance.
        let (size, runs) = request
            .form
            .pick((Size::Mb50, 10), (Size::Mb20, 1), (Size::Mb1, 1));
        Self {
            size,
            runs: request.runs.unwrap_or(runs),
        }
    }

    pub(super) fn contests(&self) -> u64 {
        (self.runs * WAYS.len()) as u64
    }
}

/// All contests of each way, in order.
pub(super) type Contests = BTreeMap<Way, Vec<Contest>>;

/// Runs the plan.
pub(super) fn measure(
    plan: &Plan,
    request: &Request,
    progress: &Progress,
) -> Result<Contests, ExperimentError> {
    let jobs: VecDeque<(Way, u64)> = (0..plan.runs as u64)
        .flat_map(|run| WAYS.map(|way| (way, run)))
        .collect();
    let ring = Ring {
        size: plan.size,
        lanes: LANES.min(jobs.len()),
        jobs: Mutex::new(jobs),
        contests: Mutex::new(Contests::new()),
        request,
        progress,
    };
    std::thread::scope(|scope| {
        let ring = &ring;
        let lanes: Vec<_> = (0..ring.lanes)
            .map(|number| scope.spawn(move || ring.lane(number)))
            .collect();
        let results: Vec<_> = lanes.into_iter().map(|lane| lane.join()).collect();
        for result in results {
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok::<_, ExperimentError>(())
    })?;
    let contests = ring.contests.into_inner();
    Ok(contests.unwrap_or_else(PoisonError::into_inner))
}

/// State that the lanes share.
struct Ring<'a> {
    size: Size,
    lanes: usize,
    jobs: Mutex<VecDeque<(Way, u64)>>,
    contests: Mutex<Contests>,
    request: &'a Request,
    progress: &'a Progress,
}

impl Ring<'_> {
    /// Runs one world's share of the work.
    fn lane(&self, number: usize) -> Result<(), ExperimentError> {
        let setting = Setting::bottleneck();
        let stage = Stage::build(setting, &WAYS, &[self.size], number, self.request)?;
        let near = nginx::serve(stage.world().host("near"), stage.world().dir())?;
        loop {
            let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((way, run)) = jobs.pop_front() else {
                return Ok(());
            };
            drop(jobs);
            let contest = self.contest(&stage, near.addr, way, run)?;
            let mut contests = self.contests.lock().unwrap_or_else(PoisonError::into_inner);
            contests.entry(way).or_default().push(contest);
            drop(contests);
            self.progress.step();
        }
    }

    /// Runs both flows once.
    fn contest(
        &self,
        stage: &Stage,
        near: SocketAddr,
        way: Way,
        run: u64,
    ) -> Result<Contest, ExperimentError> {
        // Every way gets the same random delays.
        let mut random = Pcg64Mcg::seed_from_u64(self.request.seed << 20 ^ run);
        let mut delay = || APART.mul_f64((random.next_u64() >> 11) as f64 / (1u64 << 53) as f64);
        let digest = stage.digest(self.size)?;
        let flow = |at, delay| Flow {
            client: stage.world().host("client"),
            at,
            file: self.size.file(),
            digest,
            delay,
        };
        let short = flow(near, delay());
        let long = flow(stage.entrance(way)?, delay());
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let long = scope.spawn(|| long.run(begin));
            let short = short.run(begin);
            let long = long.join();
            Ok(Contest {
                short: short?,
                long: long.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?,
            })
        })
    }
}
