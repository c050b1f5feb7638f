//! A mesh in virtual time: many relays around the real pure parts of this crate, a network that loses and cuts,
//! relays that die, return, change their keys and are removed, and hostile parties. Each run has a seed and
//! ends at the first broken invariant, with the command that replays it.
//!
//! It is a test of its own, and not a module of the crate, so that it reaches no more of the crate than the
//! relay does. `docs/design/mesh-simulation.md` says what in it is real.

mod accepting;
mod asking;
mod connection;
mod destination;
mod dialling;
mod early;
mod engine;
mod faults;
mod hostile;
mod membership;
mod network;
mod oracle;
mod routes;
mod row_faults;
mod rows;
mod serving;
mod session;
mod shares;
mod trace;
mod world;

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use faults::Kind;
use oracle::{RECOVERY, Rule, Violation};
use rows::{RowRule, RowWorld};
use world::{DIAL_PATIENCE, PATIENCE, Size, World};

/// A hundred relays for a minute.
const HUNDRED: Size = Size {
    relays: 100,
    forwards: 60,
    sessions: 250,
    faults: (1, 3),
    length: Duration::from_secs(60),
};

/// A thousand relays for a minute.
const THOUSAND: Size = Size {
    relays: 1_000,
    forwards: 600,
    sessions: 2_500,
    faults: (40, 40),
    length: Duration::from_secs(60),
};

/// The number of seeds, unless `TAUT_SIM_SEEDS` says another.
const SEEDS: u64 = 1_000;

/// The number of seeds of small meshes that exchange rows.
const SEEDS_OF_ROWS: u64 = 20;

/// The number of seeds with broken rules after which the search ends.
const SHOWN: usize = 5;

/// The number of seeds within which a rule that is broken on purpose must be found.
const SEEDS_FOR_ONE: u64 = 300;

/// The number of these seeds in which it may break another rule first.
const MAX_OTHERS: usize = 5;

#[test]
fn the_invariants_hold_in_a_thousand_meshes_of_a_hundred_relays() {
    if number("TAUT_SIM_SEED").is_some() {
        // Another test replays it.
        return;
    }
    let seeds = number("TAUT_SIM_SEEDS").unwrap_or(SEEDS);
    let (began, next) = (Instant::now(), AtomicU64::new(0));
    let (total, found) = (Mutex::new(Total::default()), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds || found.lock().unwrap().len() >= SHOWN {
                return;
            }
            let world = World::new(seed, HUNDRED, None, false).run();
            total.lock().unwrap().add(&world);
            if let Some(violation) = world.oracle.violation {
                found.lock().unwrap().push((seed, violation));
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(4));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    println!(
        "{seeds} seeds on {threads} threads: {:.1?}",
        began.elapsed()
    );
    println!("{}", total.into_inner().unwrap());
    let found = found.into_inner().unwrap();
    for (seed, violation) in &found {
        println!("{violation}\nreplay it with\n\n{}\n", replay_command(*seed));
    }
    assert!(found.is_empty(), "a rule is broken");
}

#[test]
fn the_invariants_hold_in_a_mesh_of_a_thousand_relays() {
    let seed = 1_000_000;
    let world = World::new(seed, THOUSAND, None, false).run();
    let mut total = Total::default();
    total.add(&world);
    println!("{total}");
    assert_eq!(world.oracle.violation, None, "seed {seed}");
}

/// Tells what happens in the world of `TAUT_SIM_SEED`.
#[test]
fn replay() {
    let Some(seed) = number("TAUT_SIM_SEED") else {
        return;
    };
    let world = World::new(seed, HUNDRED, None, true).run();
    println!("{}", world.trace.text());
    if let Some(violation) = world.oracle.violation {
        panic!("seed {seed}: {violation}");
    }
}

#[test]
fn each_rule_that_is_broken_on_purpose_is_found_and_its_seed_replays() {
    for rule in Rule::ALL {
        let broken = |seed, tells| World::new(seed, HUNDRED, Some(rule), tells).run();
        // In some worlds it breaks another rule first: a relay that keeps an old list loses sessions, too.
        let mut others = 0;
        let found = (0..SEEDS_FOR_ONE).find_map(|seed| {
            let violation = broken(seed, false).oracle.violation?;
            others += usize::from(violation.rule != rule);
            (violation.rule == rule).then_some((seed, violation))
        });
        assert!(others <= MAX_OTHERS, "{rule:?} breaks other rules first");
        let (seed, violation) = found.unwrap_or_else(|| panic!("nobody finds {rule:?}"));
        println!("{rule:?}: found at seed {seed}: {violation}");
        let again = broken(seed, true);
        assert_eq!(again.oracle.violation, Some(violation));
        assert!(again.trace.text().contains("BROKEN"));
    }
}

#[test]
fn rows_are_true_and_agree_after_any_faults() {
    let mut total = rows::Outcome::default();
    for seed in 0..SEEDS_OF_ROWS {
        let outcome = RowWorld::new(seed, None).run();
        assert_eq!(outcome.broken, None, "seed {seed}");
        total.news += outcome.news;
        total.refused += outcome.refused;
        total.sent = total.sent.max(outcome.sent);
        total.bytes = total.bytes.max(outcome.bytes);
        total.agreed = total.agreed.max(outcome.agreed);
        total.choices += outcome.choices;
        total.deaths += outcome.deaths;
        total.avoided = total.avoided.max(outcome.avoided);
        total.settled = total.settled.max(outcome.settled);
    }
    println!("{total}");
}

#[test]
fn each_rule_of_rows_that_is_broken_on_purpose_is_found_and_its_seed_replays() {
    for rule in [RowRule::Truth, RowRule::Agreement, RowRule::Routes] {
        let run = |seed| RowWorld::new(seed, Some(rule)).run();
        let found = (0..SEEDS_OF_ROWS).find_map(|seed| {
            let outcome = run(seed);
            outcome.broken.is_some().then_some((seed, outcome))
        });
        let (seed, outcome) = found.unwrap_or_else(|| panic!("nobody finds {rule:?}"));
        assert_eq!(outcome.broken.as_ref().map(|(rule, _)| *rule), Some(rule));
        println!("{rule:?}: found at seed {seed}: {:?}", outcome.broken);
        assert_eq!(run(seed), outcome);
    }
}

#[test]
fn a_seed_always_gives_the_same_run() {
    let trace = |seed| World::new(seed, HUNDRED, None, true).run().trace.text();
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
}

/// Returns the number in an environment variable.
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} must be a number, not `{text}`")))
}

fn replay_command(seed: u64) -> String {
    format!(
        "    TAUT_SIM_SEED={seed} cargo test -p taut-mesh --test simulation -- --nocapture replay"
    )
}

// === Total ===

/// The parts that many runs share.
#[derive(Default)]
struct Total {
    events: u64,
    connected: u64,
    lost: u64,
    served: u64,
    refused: u64,
    rejected: u64,
    evicted: u64,
    expired: u64,
    unshared: [u64; 2],
    detours: [Duration; 2],
    recoveries: [(u32, Duration); Kind::ALL.len()],
    most: (usize, usize),
}

impl Total {
    fn add(&mut self, world: &World) {
        let oracle = &world.oracle;
        self.events += world.queue.count();
        self.connected += oracle.connected;
        self.lost += oracle.lost;
        self.served += oracle.served;
        self.refused += oracle.refused;
        self.rejected += oracle.rejected;
        self.evicted += oracle.evicted;
        self.expired += oracle.expired;
        for (all, one) in self.unshared.iter_mut().zip(oracle.unshared) {
            *all += one;
        }
        for (all, one) in self.detours.iter_mut().zip(oracle.detours) {
            *all = (*all).max(one);
        }
        for (all, one) in self.recoveries.iter_mut().zip(oracle.recoveries) {
            *all = (all.0 + one.0, all.1.max(one.1));
        }
        self.most = (
            self.most.0.max(oracle.most.0),
            self.most.1.max(oracle.most.1),
        );
    }
}

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} events; {} sessions connected, {} failed with their routes; {} hellos served, {} refused; {} connections rejected",
            self.events, self.connected, self.lost, self.served, self.refused, self.rejected
        )?;
        writeln!(
            f,
            "{} connections made room for others at a mesh port; {} legs were begun at SYNs that no client followed",
            self.evicted, self.expired
        )?;
        let [sessions, names] = self.unshared;
        writeln!(
            f,
            "members that take all were refused {sessions} sessions and {names} look-ups beyond their shares"
        )?;
        let [hello, dial] = self.detours;
        writeln!(
            f,
            "sessions with another way were sent to a dead relay until at most {:.3} s after the first hello (bound {PATIENCE:?}), {:.3} s after the first dial (bound {DIAL_PATIENCE:?})",
            hello.as_secs_f64(),
            dial.as_secs_f64()
        )?;
        let (connections, legs) = self.most;
        writeln!(
            f,
            "at most {connections} connections and {legs} legs in a mesh at one time"
        )?;
        writeln!(
            f,
            "the longest time from the end of a fault until all works again (bound {RECOVERY:?}):"
        )?;
        for (kind, (count, longest)) in Kind::ALL.iter().zip(self.recoveries) {
            let kind = format!("{kind:?}");
            writeln!(
                f,
                "    {kind:<14} {:>6.1} s   {count} times",
                longest.as_secs_f64()
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.as_secs_f64();
        write!(
            f,
            "broken after {at:.3} s: {}: {}",
            self.rule.text(),
            self.what
        )
    }
}
