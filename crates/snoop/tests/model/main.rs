//! The BPF programs beside a model of them: random sequences of packets, and after each packet what the programs
//! did, what they keep, and what must hold whatever they do.
//!
//! The kernel runs the programs for the test (BPF_PROG_TEST_RUN) and puts frames into the rings of real taps. Two
//! things watch them. The model (`reference`) is the design's state machine, written a second time; with
//! `--awake-ticks` of 0 it says of each packet exactly what becomes of it. The observer knows packets only, and
//! says what must hold in any case: nothing is acknowledged early that is beyond the guest's edge or not in its
//! ring, no more than the bound of exposure, and nothing without a copy; what the guest says against it passes
//! unchanged; in the end a guest that was sent the copies has all that the sender was told of.
//!
//! Every sequence comes from its seed, and a report of a failure says which:
//!
//! - `TAUT_MODEL_SEED=n` runs this one,
//! - `TAUT_MODEL_SEQUENCES=1000000` so many (and then some by the time of day),
//! - `TAUT_MODEL_FROM=n` from this seed on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "frames are shorter than 64 KiB"
)]

mod act;
mod action;
mod draw;
mod guest;
mod kept;
mod layout;
mod machine;
mod maps;
mod observer;
mod peer;
mod reference;
mod run;
mod search;
mod segment;
mod seq;
mod setup;

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::machine::{Machine, Side, with_machine};
use crate::run::Counts;

/// Sequences, if it is not said how many, and by the time of day.
const USUAL: u64 = 20_000;
const BY_TIME: u64 = 5_000;

fn said(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("a number"))
}

/// Runs sequences with these seeds.
fn run_all(machine: &mut Machine, seeds: impl Iterator<Item = u64>, awake: bool) {
    let begun = Instant::now();
    let mut all = Counts::default();
    let mut sequences = 0;
    for seed in seeds {
        match search::try_seed(machine, seed, awake) {
            Ok(counts) => {
                all.packets += counts.packets;
                all.early_acks += counts.early_acks;
            }
            Err(report) => panic!("after {sequences} sequences: {report}"),
        }
        sequences += 1;
        if !awake && sequences % 64 == 0 {
            all_looked_at(machine, seed);
        }
    }
    println!(
        "{sequences} sequences, {} packets, {} early ACKs, {:.1} s",
        all.packets,
        all.early_acks,
        begun.elapsed().as_secs_f64()
    );
}

/// Each packet was counted once, and by the way out that was expected.
fn all_looked_at(machine: &mut Machine, seed: u64) {
    for side in [Side::ToGuest, Side::FromGuest] {
        let left = machine.exits(side).left_by();
        assert!(
            left.is_empty(),
            "{side:?}: {left:?} too often, before seed {seed}"
        );
    }
}

fn run_form(awake: bool) {
    with_machine(|machine| {
        if let Some(seed) = said("TAUT_MODEL_SEED") {
            return run_all(machine, seed..=seed, awake);
        }
        let sequences = said("TAUT_MODEL_SEQUENCES").unwrap_or(USUAL);
        let from = said("TAUT_MODEL_FROM").unwrap_or(0);
        run_all(machine, from..from + sequences, awake);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let from = now.as_millis() as u64;
        println!("from seed {from} on:");
        run_all(machine, from..from + BY_TIME, awake);
        for side in [Side::ToGuest, Side::FromGuest] {
            println!("{side:?}: {}", machine.exits(side).shown());
        }
    });
}

#[test]
fn the_programs_do_what_the_model_does() {
    run_form(false);
}

#[test]
fn what_must_hold_holds_where_an_ack_is_of_several_segments() {
    run_form(true);
}
