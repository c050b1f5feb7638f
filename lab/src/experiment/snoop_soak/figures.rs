//! The outcome of a run: figures and their accepted ranges.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::chaos::Done;
use super::mangle::Mangled;
use super::plan::{Options, Phase};
use super::transfer::Streams;
use crate::experiment::Request;
use crate::experiment::guests::snooping::told;
use crate::experiment::outcome::{Calibration, Check, Environment, Outcome, Series};

/// The least share of segments that the host acknowledges early where it may. With a smaller share,
/// hardly anything was tested. Handshakes, holes, closed windows, full rings and restarts reduce
/// the share.
const LEAST_EARLY: f64 = 0.1;

/// The largest share of transfers that may hang in phases in which the process is killed while the
/// guest drops data.
const MOST_LOST_AT_KILL: f64 = 0.05;

/// All observations.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) planned: u64,
    pub(super) streams: Streams,
    pub(super) done: Done,
    pub(super) parts: Vec<Part>,
    /// Violations, in words.
    pub(super) described: Vec<String>,
    pub(super) violations: u64,
    pub(super) pauses: u64,
    pub(super) refused: u64,
    /// How often the guest's TCP memory ran out; `None` if this machine cannot limit it.
    pub(super) shortages: Option<u64>,
    /// Frames in which the guest shrinks its window.
    pub(super) retreats: u64,
    pub(super) mangled: [Mangled; 2],
}

/// The results of one phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) phase: Phase,
    pub(super) data: u64,
    pub(super) early: u64,
    pub(super) dropped: u64,
    /// Segments that the guest's kernel dropped for lack of memory or window.
    pub(super) guest_dropped: u64,
    /// Segments lost behind the guest.
    pub(super) lost_behind: u64,
    pub(super) time: Duration,
}

pub(super) fn outcome(found: &Found, request: &Request) -> Outcome {
    let once = |measured: u64| Check::at_least(measured as f64, 1.0);
    let (streams, done) = (&found.streams, &found.done);
    let transfers = streams.transfers.load(Ordering::Relaxed);
    let wrong = streams.wrong.load(Ordering::Relaxed);
    let hung = streams.hung.load(Ordering::Relaxed);
    let dropped = found.parts.iter().map(|part| part.dropped).sum();
    let mangled = |of: fn(&Mangled) -> u64| found.mangled.iter().map(of).sum::<u64>();
    let early = share(&found.parts, |options| options != Options::Off);
    let control = found
        .parts
        .iter()
        .filter(|p| p.phase.options == Options::Off);
    let control_early = control.map(|part| part.early).sum();
    let lost_at_kill = streams.lost_at_kill.load(Ordering::Relaxed);
    let exposed: u64 = found
        .parts
        .iter()
        .filter(|part| part.phase.may_lose())
        .map(|part| part.phase.transfers)
        .sum();
    let sum = |of: fn(&Part) -> u64| found.parts.iter().map(of).sum::<u64>();
    let guest_dropped = sum(|part| part.guest_dropped);
    let lost_behind = sum(|part| part.lost_behind);
    let mut checks = vec![
        (
            "transfers",
            Check::exactly((transfers + lost_at_kill) as f64, found.planned as f64),
        ),
        (
            "lost_at_kill",
            Check::at_most(lost_at_kill as f64, exposed as f64 * MOST_LOST_AT_KILL),
        ),
        ("streams_wrong", Check::none(wrong)),
        ("streams_hung", Check::none(hung)),
        ("violations", Check::none(found.violations)),
        ("lost_after_early_ack", Check::none(done.broken)),
        ("doubts", Check::none(done.doubts)),
        ("process_faults", Check::none(done.faults.len() as u64)),
        ("guest_refused", Check::none(found.refused)),
        (
            "acked_early_share",
            Check::at_least(early.unwrap_or(0.0), LEAST_EARLY),
        ),
        // Checks that the checker tells the guest's own ACKs from early ACKs.
        ("acked_early_control", Check::none(control_early)),
        ("kills", once(done.kills)),
        ("restarts", once(done.restarts)),
        ("offs", once(done.offs)),
        ("pauses", once(found.pauses)),
        ("ring_drops", once(dropped)),
        ("lost", once(mangled(|m| m.lost))),
        ("doubled", once(mangled(|m| m.doubled))),
        ("late", once(mangled(|m| m.late))),
        ("guest_drops", once(guest_dropped)),
        ("lost_behind", once(lost_behind)),
    ];
    if let Some(shortages) = found.shortages {
        checks.push(("shortages", once(shortages)));
    }
    let headline = [
        ("transfers", transfers as f64),
        ("streams_wrong", wrong as f64),
        ("streams_hung", hung as f64),
        ("violations", found.violations as f64),
        ("acked_early_share", early.unwrap_or(0.0)),
        ("kills", done.kills as f64),
        ("restarts", done.restarts as f64),
        ("offs", done.offs as f64),
        ("pauses", found.pauses as f64),
        ("ring_drops", dropped as f64),
        ("lost_at_kill", lost_at_kill as f64),
        ("guest_drops", guest_dropped as f64),
        ("lost_behind", lost_behind as f64),
        ("shortages", found.shortages.unwrap_or(0) as f64),
        ("window_retreats", found.retreats as f64),
    ];
    let links = [
        (
            "peer-host",
            "each way 0.5 % of frames lost, 0.5 % doubled, 0.5 % late by up to 8 frames or 3 ms",
        ),
        ("guest-behind", "each way 0.5 % of segments lost"),
        (
            "host-guest",
            "a tap's ring of 8 to 500 frames, emptied between pauses of 0 to 100 ms and now and then 1 s",
        ),
    ];
    Outcome {
        environment: Environment {
            links: links
                .map(|(name, text)| (name.to_owned(), text.to_owned()))
                .into(),
            ..Environment::here()
        },
        calibration: Calibration::of(checks),
        headline: headline.map(|(key, value)| (key.to_owned(), value)).into(),
        series: series(found),
        notes: notes(found),
        ..Outcome::new(super::EXPERIMENT.name, request)
    }
}

/// Returns the early ACKs as a share of all data segments, in the phases whose options satisfy
/// `of`.
fn share(parts: &[Part], of: impl Fn(Options) -> bool) -> Option<f64> {
    let parts = || parts.iter().filter(|part| of(part.phase.options));
    let data: u64 = parts().map(|part| part.data).sum();
    let early: u64 = parts().map(|part| part.early).sum();
    (data > 0).then(|| early as f64 / data as f64)
}

fn series(found: &Found) -> Vec<Series> {
    let mut by: BTreeMap<_, Vec<&Part>> = BTreeMap::new();
    for part in &found.parts {
        by.entry(part.phase.options).or_default().push(part);
    }
    let mut series = Vec::new();
    for (options, parts) in by {
        let shares = parts
            .iter()
            .filter_map(|part| share(std::slice::from_ref(*part), |_| true));
        let name = options.name();
        series.extend(Series::of(name, "acked early", "share", shares.collect()));
        let times = parts.iter().map(|part| part.time.as_secs_f64());
        series.extend(Series::of(name, "time", "s", times.collect()));
    }
    series
}

fn notes(found: &Found) -> Vec<String> {
    let done = &found.done;
    let [to, from] = &found.mangled;
    let bytes = found.streams.bytes.load(Ordering::Relaxed);
    let data: u64 = found.parts.iter().map(|part| part.data).sum();
    let mut notes = vec![
        format!(
            "{bytes} bytes of streams, {data} frames of data for the guest; lost {} and {}, \
             duplicated {} and {}, late {} and {} (towards the guest, and from it).",
            to.lost, from.lost, to.doubled, from.doubled, to.late, from.late
        ),
        match found.shortages {
            Some(_) => "A memory cgroup limits the guest's TCP memory.".to_owned(),
            None => "The guest's TCP memory is not limited: this machine has no memory cgroup of version 1."
                .to_owned(),
        },
        format!("The longest `--off` took {:?}.", done.longest_off),
        format!(
            "Counters of the processes towards the guest: {}; from the guest: {}.",
            told(&done.to_guest),
            told(&done.from_guest)
        ),
    ];
    notes.extend(found.parts.iter().map(|part| {
        format!(
            "Phase {} ({}): {} transfers in {:.1} s, {} of {} frames acknowledged early, {} dropped by the \
             ring, {} by the guest, {} lost behind it.",
            part.phase.number,
            part.phase.name(),
            part.phase.transfers,
            part.time.as_secs_f64(),
            part.early,
            part.data,
            part.dropped,
            part.guest_dropped,
            part.lost_behind
        )
    }));
    notes.extend(found.described.iter().cloned());
    notes.extend(found.streams.described());
    notes.extend(done.faults.iter().cloned());
    notes
}

#[cfg(test)]
mod tests {
    use super::super::plan::Plan;
    use super::*;
    use crate::experiment::Form;

    fn part(options: Options, data: u64, early: u64) -> Part {
        Part {
            phase: Phase {
                options,
                ..Plan::of(&request()).phases[0]
            },
            data,
            early,
            dropped: 0,
            guest_dropped: 0,
            lost_behind: 0,
            time: Duration::ZERO,
        }
    }

    #[test]
    fn the_share_is_of_the_phases_with_a_process() {
        let parts = [
            part(Options::Plain, 100, 50),
            part(Options::Grow, 300, 150),
            part(Options::Off, 1_000, 0),
        ];
        let on = |options| options != Options::Off;
        assert_eq!(share(&parts, on), Some(0.5));
        assert_eq!(share(&[], on), None);
    }

    #[test]
    fn nothing_done_is_no_success() {
        assert!(!outcome(&Found::default(), &request()).calibration.ok);
    }

    fn request() -> Request {
        Request {
            form: Form::Quick,
            seed: 1,
            runs: None,
            only: None,
            taut: std::path::PathBuf::new(),
        }
    }
}
