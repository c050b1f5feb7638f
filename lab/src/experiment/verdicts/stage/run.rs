//! A run: the steps from a world to what the commands said.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{OTHER_PORT, Stage};
use crate::experiment::verdicts::case::Case;
use crate::experiment::verdicts::cause::{Cause, End};
use crate::experiment::verdicts::family::Family;
use crate::experiment::verdicts::mode::{Mode, Statement};
use crate::experiment::{ExperimentError, Request};

/// The time for which the other flow runs before the observed one begins, so that it has filled the
/// queue.
const OTHER_FIRST: Duration = Duration::from_secs(3);
/// The time for which data flows in a world without its limit, before what it carries is measured,
/// and the time of the measurement.
const WITHOUT_LIMIT_START: Duration = Duration::from_secs(5);
const WITHOUT_LIMIT: Duration = Duration::from_secs(5);
/// The share of a full frame that is payload: 1448 of 1514 bytes.
const PAYLOAD_SHARE: f64 = 1448.0 / 1514.0;

/// The results of a run.
pub(in crate::experiment::verdicts) struct Shown {
    /// What `taut why` said.
    pub(in crate::experiment::verdicts) why: Statement,
    /// What the other commands said.
    pub(in crate::experiment::verdicts) others: BTreeMap<Mode, Statement>,
    /// The share of the bottleneck that was used during the observation.
    pub(in crate::experiment::verdicts) used: f64,
    /// How long a segment waited in its queue, on average.
    pub(in crate::experiment::verdicts) wait: Duration,
    /// The share of the time in which a sender that pauses had data.
    pub(in crate::experiment::verdicts) busy: Option<f64>,
}

/// Runs a case, which `taut why` and the commands of these modes observe.
pub(in crate::experiment::verdicts) fn run(
    case: &Case,
    modes: &[Mode],
    request: &Request,
) -> Result<Shown, ExperimentError> {
    let short = |time| shortened(time, request);
    let mut stage = Stage::build(case)?;
    if case.cause == Cause::NoAnswer {
        stage.cut();
    }
    if case.family == Family::Standing {
        stage.fetch(OTHER_PORT)?;
        // The observed connection finds a path with a queue.
        std::thread::sleep(OTHER_FIRST);
    }
    if let Some(time) = case.cause.warm_up() {
        stage.talk()?;
        // The observation covers only what happens after this time.
        std::thread::sleep(short(time));
    }
    if case.cause == Cause::Cut {
        stage.cut();
    }
    let began = Instant::now();
    let before = stage.bottleneck()?;
    let watch = short(case.watch());
    let has_both = modes.contains(&Mode::BothEnds) && Mode::BothEnds.can_tell(case);
    let why = match has_both {
        true => stage.observe(Mode::BothEnds, request, watch)?,
        false => stage.observe(Mode::Why, request, watch)?,
    };
    let others = || {
        let others = modes.iter();
        let others = others.filter(|mode| !matches!(mode, Mode::Why | Mode::BothEnds));
        others.filter(|mode| mode.can_tell(case))
    };
    // In a guest, which has little CPU time, one command would slow down the other.
    let is_guest = case.cause.watched() == End::Guest;
    let mut beside = Vec::new();
    if !is_guest {
        for mode in others() {
            beside.push(stage.observe(*mode, request, watch)?);
        }
    }
    if case.cause.warm_up().is_none() {
        stage.talk()?;
    }
    let from = Instant::now();
    let why = why.finish()?;
    let busy = stage
        .writing
        .as_ref()
        .map(|writer| writer.busy(from, Instant::now()));
    // The commands take some time to start.
    let watched = watch.max(began.elapsed()).as_secs_f64();
    let after = stage.bottleneck()?;
    let mut said = BTreeMap::new();
    if has_both {
        said.insert(Mode::BothEnds, Mode::BothEnds.statement(&why, false)?);
    }
    if is_guest {
        for mode in others() {
            let observer = stage.observe(*mode, request, watch)?;
            said.insert(*mode, mode.statement(&observer.finish()?, false)?);
        }
    }
    // `taut watch` comes last, because it needs the connection's end.
    beside.sort_by_key(|observer| observer.mode);
    for observer in beside {
        let mode = observer.mode;
        said.insert(mode, stage.finish(observer)?);
    }
    let bits = 8.0 * (after.delivered_bytes - before.delivered_bytes) as f64;
    Ok(Shown {
        why: Mode::Why.statement(&why, false)?,
        others: said,
        used: bits / (case.rate.0 as f64 * watched),
        wait: after.mean_wait_since(&before),
        busy,
    })
}

/// Runs a case without its limit. Returns the payload that its bottleneck carries after the start,
/// in bytes a second.
pub(in crate::experiment::verdicts) fn carried_without_limit(
    case: &Case,
    request: &Request,
) -> Result<f64, ExperimentError> {
    let case = case.without_limit();
    let mut stage = Stage::build(&case)?;
    stage.talk()?;
    std::thread::sleep(shortened(WITHOUT_LIMIT_START, request));
    let (began, before) = (Instant::now(), stage.bottleneck()?);
    std::thread::sleep(shortened(WITHOUT_LIMIT, request));
    let (took, after) = (began.elapsed(), stage.bottleneck()?);
    let bytes = (after.delivered_bytes - before.delivered_bytes) as f64;
    Ok(bytes * PAYLOAD_SHARE / took.as_secs_f64())
}

/// Returns a time of the plan, or in the smallest form a second.
fn shortened(time: Duration, request: &Request) -> Duration {
    request
        .form
        .pick(time, time, Duration::from_secs(1).min(time))
}
