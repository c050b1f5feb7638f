//! The outcome of a run: figures and their accepted ranges.

use super::EXPERIMENT;
use super::cell::Part;
use super::plan::{Hazard, Plan, Way};
use super::rig::LOSS;
use crate::experiment::Request;
use crate::experiment::guests::snooping::told;
use crate::experiment::outcome::{Calibration, Check, Environment, Outcome, Series};

/// All observations.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) parts: Vec<Part>,
}

/// Selects the cells that a figure covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Forwarding,
    TtlKept,
    Rcvbuf,
    Controls,
}

pub(super) fn outcome(found: &Found, plan: &Plan, request: &Request) -> Outcome {
    let incomplete = |group| found.sum(group, Part::incomplete);
    let complete = found.parts.iter().map(|part| part.complete).sum::<u64>();
    let groups = [
        ("forwarding_incomplete", Group::Forwarding),
        ("forwarding_ttl_kept_incomplete", Group::TtlKept),
        ("rcvbuf_incomplete", Group::Rcvbuf),
        ("controls_incomplete", Group::Controls),
    ];
    let mut checks = vec![(
        "complete",
        Check::exactly(complete as f64, plan.transfers() as f64),
    )];
    let mut headline = vec![("complete", complete as f64)];
    for (key, group) in groups.into_iter().filter(|(_, group)| found.has(*group)) {
        checks.push((key, Check::none(incomplete(group))));
        headline.push((key, incomplete(group) as f64));
    }
    let snooped = |of: fn(&Part) -> u64| found.parts.iter().map(of).sum::<u64>();
    checks.push(("lost_after_early_ack", Check::none(snooped(|p| p.lost))));
    checks.push((
        "taps_unfit",
        Check::none(snooped(|p| p.faults.len() as u64)),
    ));
    // The host can see that these guests forward.
    let early = Part::acked_early;
    if found.has(Group::Forwarding) {
        let early = found.sum(Group::Forwarding, early);
        checks.push(("forwarding_acked_early", Check::none(early)));
    }
    // If a count is 0, the hazard was not tested.
    let tried = [
        (
            "forwarding_lost_behind",
            Group::Forwarding,
            found.sum(Group::Forwarding, |p| p.lost_behind),
        ),
        (
            "ttl_kept_acked_early",
            Group::TtlKept,
            found.sum(Group::TtlKept, early),
        ),
        (
            "ttl_kept_repaired",
            Group::TtlKept,
            found.sum(Group::TtlKept, |p| p.repaired),
        ),
        (
            "rcvbuf_acked_early",
            Group::Rcvbuf,
            found.sum(Group::Rcvbuf, early),
        ),
        (
            "rcvbuf_repaired",
            Group::Rcvbuf,
            found.sum(Group::Rcvbuf, |p| p.repaired),
        ),
    ];
    for (key, group, count) in tried {
        if found.has(group) {
            checks.push((key, Check::at_least(count as f64, 1.0)));
            headline.push((key, count as f64));
        }
    }
    headline.extend([
        ("exits_forwarded", snooped(|p| p.exits("forwarded")) as f64),
        (
            "exits_contradicted",
            snooped(|p| p.exits("contradicted")) as f64,
        ),
        ("exits_doubt", snooped(|p| p.exits("doubt")) as f64),
        ("retransmitted", snooped(|p| p.retransmitted) as f64),
    ]);
    let link = format!("{} % of segments lost, each way", LOSS * 100.0);
    let links = [
        ("peer-host", "1 Gbit/s, 50 us each way".to_owned()),
        (
            "host-guest",
            "a tap's ring of 500 frames; paused: emptied for 30 ms in each 90".to_owned(),
        ),
        ("guest-behind", link),
    ];
    Outcome {
        environment: Environment {
            links: links.map(|(name, text)| (name.to_owned(), text)).into(),
            ..Environment::here()
        },
        calibration: Calibration::of(checks),
        headline: headline
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
        series: found.parts.iter().flat_map(series).collect(),
        notes: found.parts.iter().flat_map(notes).collect(),
        ..Outcome::new(EXPERIMENT.name, request)
    }
}

fn series(part: &Part) -> Vec<Series> {
    let name = part.cell.name();
    let times = Series::of(&name, "time", "s", part.times.clone());
    let incomplete = vec![part.incomplete() as f64];
    let incomplete = Series::of(&name, "incomplete", "transfers", incomplete);
    times.into_iter().chain(incomplete).collect()
}

fn notes(part: &Part) -> Vec<String> {
    let name = part.cell.name();
    let mut notes = vec![format!(
        "{name}: {} complete, {} wrong, {} hung; {} segments lost behind the guest.",
        part.complete, part.wrong, part.hung, part.lost_behind
    )];
    if part.cell.snoop {
        notes.push(format!(
            "{name}: {} segments acknowledged early, at most {} bytes at a time; {} flows repaired with {} \
             segments; towards the guest: {}; from it: {}.",
            part.acked_early(),
            part.exposure_most,
            part.repaired,
            part.retransmitted,
            told(&part.to_guest),
            told(&part.from_guest)
        ));
    }
    notes.extend(part.faults.iter().cloned());
    notes.extend(part.described.iter().cloned());
    notes
}

// === impl Found ===

impl Found {
    fn of(&self, group: Group) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(move |part| part.group() == group)
    }

    fn has(&self, group: Group) -> bool {
        self.of(group).next().is_some()
    }

    fn sum(&self, group: Group, of: impl Fn(&Part) -> u64) -> u64 {
        self.of(group).map(of).sum()
    }
}

// === impl Part ===

impl Part {
    fn group(&self) -> Group {
        match self.cell.hazard {
            _ if !self.cell.snoop => Group::Controls,
            Hazard::Forwarding(Way::TtlKept) => Group::TtlKept,
            Hazard::Forwarding(_) => Group::Forwarding,
            Hazard::Rcvbuf(_) => Group::Rcvbuf,
        }
    }

    /// Returns the number of the guest's segments that left the BPF program by this exit.
    fn exits(&self, exit: &str) -> u64 {
        self.from_guest.get(exit).copied().unwrap_or(0)
    }

    /// Returns the number of segments that `taut snoop` has acknowledged.
    fn acked_early(&self) -> u64 {
        let count = |name| self.to_guest.get(name).copied().unwrap_or(0);
        count("acked") + count("held")
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Cell;
    use super::*;
    use crate::experiment::Form;

    fn request() -> Request {
        Request {
            form: Form::Quick,
            seed: 1,
            runs: None,
            only: None,
            taut: std::path::PathBuf::new(),
        }
    }

    fn found(incomplete: u64) -> Found {
        let plan = Plan::of(&request());
        let part = |cell: &Cell| {
            let mut part = Part::new(*cell);
            part.complete = cell.transfers;
            part.hung = incomplete * u64::from(part.group() == Group::Rcvbuf);
            let acked = u64::from(part.group() != Group::Forwarding);
            part.to_guest = [("acked".to_owned(), 5 * acked)].into();
            part.repaired = 1;
            part.lost_behind = 3;
            part
        };
        Found {
            parts: plan.cells.iter().map(part).collect(),
        }
    }

    #[test]
    fn a_run_in_which_all_transfers_complete_is_in_order() {
        let outcome = outcome(&found(0), &Plan::of(&request()), &request());
        assert!(outcome.calibration.ok, "{:?}", outcome.calibration);
        assert_eq!(outcome.headline["rcvbuf_incomplete"], 0.0);
    }

    #[test]
    fn transfers_that_hang_are_counted_where_they_belong() {
        let outcome = outcome(&found(2), &Plan::of(&request()), &request());
        assert!(!outcome.calibration.ok);
        assert!(outcome.headline["rcvbuf_incomplete"] >= 2.0);
        assert_eq!(outcome.headline["forwarding_incomplete"], 0.0);
        assert_eq!(outcome.headline["controls_incomplete"], 0.0);
    }

    #[test]
    fn a_run_without_transfers_is_not() {
        let outcome = outcome(&Found::default(), &Plan::of(&request()), &request());
        assert!(!outcome.calibration.ok);
    }
}
