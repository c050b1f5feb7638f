//! Looks for a sequence that fails, and makes it short.

use std::time::{Duration, Instant};

use crate::action::{self, Action};
use crate::draw::Draw;
use crate::machine::Machine;
use crate::run::{Counts, Failure, run};
use crate::setup::Setup;

/// The programs' clock goes on while a sequence is carried out, and the model's does not: one that took longer is
/// carried out again.
const PROMPT: Duration = Duration::from_millis(40);

/// Tries at a sequence, until it was prompt.
const TRIES: u32 = 20;

/// How the sequence of this seed begins, and what happens in it.
fn drawn(seed: u64, awake: bool) -> (Setup, Vec<Action>) {
    let mut draw = Draw::new(seed);
    let number = seed as u32;
    let mut setup = Setup::draw(&mut draw, number);
    setup.awake = awake;
    let actions = action::sequence(&mut draw, &setup);
    (setup, actions)
}

/// Carries a sequence out, again if the machine was busy with something else meanwhile.
fn promptly(
    machine: &mut Machine,
    setup: &Setup,
    actions: &[Action],
    report: bool,
) -> (Result<Counts, Failure>, Vec<String>) {
    for _ in 1..TRIES {
        let begun = Instant::now();
        let (result, log) = run(machine, setup, actions, report);
        if result.is_ok() || begun.elapsed() < PROMPT {
            return (result, log);
        }
    }
    run(machine, setup, actions, report)
}

/// Leaves out of a sequence that fails what it fails without.
fn shorten(machine: &mut Machine, setup: &Setup, actions: &[Action], at: usize) -> Vec<Action> {
    let mut shortest = actions[..(at + 1).min(actions.len())].to_vec();
    let mut part = shortest.len() / 2;
    while part > 0 {
        let mut from = 0;
        let mut helped = false;
        while from < shortest.len() {
            let to = (from + part).min(shortest.len());
            let shorter = [&shortest[..from], &shortest[to..]].concat();
            if let (Err(failure), _) = promptly(machine, setup, &shorter, false) {
                shortest = shorter;
                shortest.truncate(failure.at + 1);
                helped = true;
            } else {
                from = to;
            }
        }
        if part == 1 && !helped {
            break;
        }
        part = (part / 2).max(usize::from(helped));
    }
    shortest
}

/// Carries out the sequence of a seed.
///
/// # Errors
/// A report of the failure.
pub(crate) fn try_seed(machine: &mut Machine, seed: u64, awake: bool) -> Result<Counts, String> {
    let (setup, actions) = drawn(seed, awake);
    let (result, _) = promptly(machine, &setup, &actions, false);
    let failure = match result {
        Ok(counts) => return Ok(counts),
        Err(failure) => failure,
    };
    let shortest = shorten(machine, &setup, &actions, failure.at);
    let (result, log) = promptly(machine, &setup, &shortest, true);
    let what = match result {
        Err(failure) => failure.what,
        Ok(_) => format!("{}\n(not so when it was repeated)", failure.what),
    };
    Err(format!(
        "{what}\n\nTAUT_MODEL_SEED={seed}{} replays the sequence, of {} actions; {} are enough:\n\n{setup:?}\n\n{}\n",
        if awake { " (awake)" } else { "" },
        actions.len(),
        shortest.len(),
        log.join("\n")
    ))
}
