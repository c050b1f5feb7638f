//! The plan: when sessions start, and the events at the relays. The seed determines all of it.

use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use crate::experiment::Request;
use crate::experiment::sessions::arrivals::arrivals;

/// A relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    Near,
    Far,
}

/// A link of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Line {
    ClientNear,
    NearFar,
    FarServer,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Act {
    /// SIGKILL, and a new process after `pause`.
    Kill { side: Side, pause: Duration },
    /// SIGTERM, and a new process once the old one has ended.
    Stop(Side),
    /// The link passes no frames for `time`.
    Cut { line: Line, time: Duration },
    /// A new key of one relay replaces the old one: it is added to the lists of members, the relay
    /// switches to it, and the old key is removed from the lists.
    Rotate(Side),
    /// The far relay's list lacks the near relay for `time`.
    Revoke { time: Duration },
    /// The configuration changes: its timeouts, and a forward that appears or disappears.
    Reload(Side),
}

/// An event and its time since the start of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) at: Duration,
    pub(super) act: Act,
}

/// A period in which an outsider attacks the mesh port repeatedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Storm {
    pub(super) at: Duration,
    pub(super) time: Duration,
    pub(super) connections: u32,
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// The duration for which sessions are started.
    pub(super) load: Duration,
    /// The average number of sessions per second.
    pub(super) rate: u32,
    /// The events in order. No relay is killed or stopped after the middle of the load, so that the
    /// memory of one process can be compared from there to the end.
    pub(super) events: Vec<Event>,
    pub(super) storms: Vec<Storm>,
}

/// The scale of a form of the experiment.
struct Scale {
    /// The duration of the load, in seconds.
    load: u64,
    /// The average number of sessions started per second.
    rate: u32,
    /// The pause before the first event and between two events, in ms.
    pause: u64,
    storms: u32,
    /// The duration of one storm, in seconds.
    storm: u64,
    /// The number of the outsider's connections in all storms together.
    connections: u32,
}

const FULL: Scale = Scale {
    load: 280,
    rate: 200,
    pause: 9_000,
    storms: 4,
    storm: 20,
    connections: 5_000,
};

/// The short form. It leaves time within a minute for the start, the last sessions and the end.
const QUICK: Scale = Scale {
    load: 30,
    rate: 200,
    pause: 2_500,
    storms: 2,
    storm: 4,
    connections: 5_000,
};

/// The smallest form: relays end three times, and each other event happens once.
const SMOKE: Scale = Scale {
    load: 8,
    rate: 50,
    pause: 800,
    storms: 1,
    storm: 2,
    connections: 500,
};

// === impl Plan ===

impl Plan {
    pub(super) fn of(request: &Request) -> Self {
        let scale = request.form.pick(FULL, QUICK, SMOKE);
        let load = Duration::from_secs(scale.load);
        let mut random = Pcg64Mcg::seed_from_u64(request.seed);
        let half = load / 2;
        // The last tenth has no event, because the end is measured there.
        let until = load * 9 / 10;
        let pause = Duration::from_millis(scale.pause);
        let times = (1..).map(|n| pause * n).take_while(|at| *at < until);
        let (early, late): (Vec<_>, Vec<_>) = times.partition(|at| *at + pause < half);
        // The short form only has time to end each process once in each way.
        let first = if request.form.is_short() {
            deadly
        } else {
            everything
        };
        let mut events = fill(&early, first, &mut random);
        events.extend(fill(&late, harmless, &mut random));
        let storms = (0..scale.storms).map(|n| Storm {
            // Spread evenly over the load, so that some storms meet relays that have just started.
            at: load * (2 * n + 1) / (2 * scale.storms),
            time: Duration::from_secs(scale.storm),
            connections: scale.connections / scale.storms,
        });
        Self {
            seed: request.seed,
            load,
            rate: scale.rate,
            events,
            storms: storms.collect(),
        }
    }

    /// Returns the start of each session, numbered from 0.
    pub(super) fn arrivals(&self) -> impl Iterator<Item = (u64, Duration)> + use<> {
        arrivals(self.seed, self.rate, self.load)
    }
}

type Draw<'a> = &'a mut dyn FnMut(u64) -> u64;

/// Returns an event for each of these times. Each kind occurs once before any kind repeats, in a
/// new random order each time.
fn fill(times: &[Duration], kinds: fn(Draw<'_>) -> Vec<Act>, random: &mut Pcg64Mcg) -> Vec<Event> {
    let mut draw = |below: u64| random.next_u64() % below;
    let mut bag: Vec<Act> = Vec::new();
    let mut events = Vec::with_capacity(times.len());
    for &at in times {
        if bag.is_empty() {
            bag = kinds(&mut draw);
        }
        let index = usize::try_from(draw(bag.len() as u64)).unwrap_or(0);
        let act = bag.swap_remove(index);
        events.push(Event { at, act });
    }
    events
}

fn ms(range: std::ops::Range<u64>, draw: Draw<'_>) -> Duration {
    Duration::from_millis(range.start + draw(range.end - range.start))
}

/// Returns the kinds of events that end processes.
fn deadly(draw: Draw<'_>) -> Vec<Act> {
    let mut kill = |side| Act::Kill {
        side,
        pause: ms(100..1_000, draw),
    };
    vec![
        kill(Side::Near),
        kill(Side::Far),
        Act::Stop(Side::Near),
        Act::Stop(Side::Far),
    ]
}

/// Returns the kinds of events that do not end processes.
fn harmless(draw: Draw<'_>) -> Vec<Act> {
    let lines = [Line::ClientNear, Line::NearFar, Line::FarServer];
    let line = lines[usize::try_from(draw(3)).unwrap_or(0)];
    let side = Side::BOTH[usize::try_from(draw(2)).unwrap_or(0)];
    vec![
        Act::Cut {
            line,
            time: ms(200..3_000, draw),
        },
        Act::Rotate(side),
        Act::Revoke {
            time: ms(200..1_500, draw),
        },
        Act::Reload(Side::Near),
        Act::Reload(Side::Far),
    ]
}

fn everything(draw: Draw<'_>) -> Vec<Act> {
    let mut all = deadly(draw);
    all.extend(harmless(draw));
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::experiment::Form;

    fn plan(quick: bool, seed: u64) -> Plan {
        Plan::of(&Request {
            seed,
            ..Request::of_test(Form::of(quick))
        })
    }

    fn kind(act: &Act) -> String {
        if let Act::Rotate(_) = act {
            return "Rotate".to_owned();
        }
        let text = format!("{act:?}");
        text.split(" {").next().unwrap_or_default().to_owned()
    }

    #[test]
    fn both_forms_have_every_kind_of_event_in_order() {
        for quick in [false, true] {
            let plan = plan(quick, 1);
            let kinds: BTreeSet<String> = plan.events.iter().map(|e| kind(&e.act)).collect();
            for wanted in [
                "Cut",
                "Kill",
                "Reload(Far)",
                "Reload(Near)",
                "Revoke",
                "Rotate",
                "Stop(Far)",
            ] {
                assert!(kinds.contains(wanted), "{wanted} in {kinds:?}");
            }
            assert!(plan.events.is_sorted_by_key(|e| e.at));
            assert!(plan.events.last().unwrap().at < plan.load);
            let connections: u32 = plan.storms.iter().map(|s| s.connections).sum();
            assert_eq!(connections, 5_000);
            assert!(plan.storms.iter().all(|s| s.at + s.time < plan.load));
        }
    }

    #[test]
    fn the_keys_of_both_relays_are_rotated() {
        let plan = plan(false, 1);
        let rotated: BTreeSet<Side> = plan
            .events
            .iter()
            .filter_map(|event| match event.act {
                Act::Rotate(side) => Some(side),
                _ => None,
            })
            .collect();
        assert_eq!(rotated.len(), 2, "{rotated:?}");
    }

    #[test]
    fn no_process_ends_in_the_second_half() {
        for seed in 0..20 {
            let plan = plan(false, seed);
            for event in &plan.events {
                if matches!(event.act, Act::Kill { .. } | Act::Stop(_)) {
                    assert!(event.at < plan.load / 2, "{event:?}");
                }
            }
        }
    }

    #[test]
    fn a_seed_is_a_plan() {
        assert_eq!(plan(false, 1).events, plan(false, 1).events);
        assert_ne!(plan(false, 1).events, plan(false, 2).events);
    }
}
