//! Compares the BPF programs with a model of them, in random sequences of packets.
//!
//! The kernel runs the programs for the test (BPF_PROG_TEST_RUN). Frames that they deliver go into
//! the rings of real taps, and a small TCP sender and a small TCP receiver (`peer`, `guest`) react
//! to the output. After each packet two parts check the programs:
//!
//! - The model (`reference`) is the state machine of docs/design/snoop.md, written a second time.
//!   It predicts what happens to each packet, and the programs' state of the flow afterwards. That
//!   needs one early ACK per segment (`awake_ticks` of 0), because stretch ACKs depend on the time
//!   of day.
//! - The observer (`observer`) sees only packets, and checks the rules for every case: no early ACK
//!   is beyond the guest's right edge, outside its ring, or without a copy; exposure stays within
//!   its limit; a guest's contradiction passes unchanged. In the end the guest has everything that
//!   the sender has an ACK of, if necessary after the host has retransmitted copies.
//!
//! A sequence is a function of its seed. A failure prints the seed and the shortest sequence that fails.
//!
//! - `TAUT_MODEL_SEED=n` runs only the sequence with this seed,
//! - `TAUT_MODEL_SEQUENCES=1000000` runs so many, from seed 0 on,
//! - `TAUT_MODEL_FROM=n` starts with this seed, and `TAUT_MODEL_FROM=random` with one that it prints.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]
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

/// How many sequences run by default.
const USUAL: u64 = 20_000;

fn said(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(match &*value {
        "random" => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_millis() as u64,
        number => number.parse().expect("a number, or `random`"),
    })
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

/// Checks that each packet was counted once, and at the exit that was expected.
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
        println!("from seed {from} on:");
        run_all(machine, from..from + sequences, awake);
        for side in [Side::ToGuest, Side::FromGuest] {
            println!("{side:?}: {}", machine.exits(side).shown());
        }
    });
}

#[test]
fn the_programs_match_the_model() {
    run_form(false);
}

#[test]
fn the_observers_rules_hold_with_stretch_acks() {
    run_form(true);
}
