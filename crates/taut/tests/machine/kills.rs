//! Each job that changes something beyond its process is killed at seeded moments. What it leaves,
//! `taut doctor` finds and `taut doctor --repair` removes.

use std::process::Stdio;
use std::time::{Duration, Instant};

use taut_sys_testing::skip::has_programs;

use crate::programs;
use crate::rig::{Machine, TAUT, congestion_controls, jobs, start};

/// The number of kills of each job, unless `TAUT_KILLS` gives another one. `TAUT_JOB` is the first word of
/// the jobs that are killed, if not all are.
const KILLS: u64 = 4;
/// The last moment of a kill of a job that does not say when it is ready.
const LAST: Duration = Duration::from_secs(1);

/// Starts a job and kills it at this moment. Returns what it has said.
fn kill(machine: &Machine, args: &[&str], at: Duration) -> String {
    let mut job = machine.command(TAUT, args);
    let mut job = job
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Not a wait for anything: the moment is what is tested.
    std::thread::sleep(at);
    job.kill().unwrap();
    let output = job.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the last moment of a kill: a little after the job is ready or has ended. (A job that changes
/// nothing does not say so.)
fn last(machine: &Machine, job: &[&str]) -> Duration {
    if job[0] == "watch" {
        return LAST;
    }
    prepare(machine, job);
    let began = Instant::now();
    kill_when_ready(machine, job);
    let took = began.elapsed();
    repair(machine, job);
    took.mul_f64(1.25)
}

/// Makes what the job removes.
fn prepare(machine: &Machine, job: &[&str]) {
    if job == ["guest", "down"] {
        let up = machine.run(TAUT, &["guest", "up"]);
        assert!(up.status.success(), "{up:?}");
    }
}

/// Removes all that a killed job has left, also the programs of `taut guest`, which stay until they are
/// unloaded if they are complete.
fn repair(machine: &Machine, job: &[&str]) {
    let (left, output) = machine.left(&["--repair"]);
    assert!(left.is_empty(), "{left:?} {output:?}");
    if job[0] == "guest" {
        let down = machine.run(TAUT, &["guest", "down"]);
        assert!(down.status.success(), "{down:?}");
    }
}

/// Starts a job and kills it when it is ready. Returns what it has said.
fn kill_when_ready(machine: &Machine, args: &[&str]) -> String {
    let (mut job, said) = start(machine, args);
    job.kill().unwrap();
    job.wait().unwrap();
    said.join("\n")
}

/// Pseudo-random numbers (SplitMix64).
pub(crate) struct Seed(pub(crate) u64);

// === impl Seed ===

impl Seed {
    /// Returns a number of 0 to 1.
    pub(crate) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as f64 / u64::MAX as f64
    }
}

pub(crate) fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).map_or(or, |text| text.parse().unwrap())
}

#[test]
fn what_a_killed_job_leaves_is_found_and_removed() {
    if !has_programs(&["nft"]) {
        return;
    }
    let machine = Machine::new("kills");
    let seed = number("TAUT_SEED", 1);
    let mut moments = Seed(seed);
    let kills = number("TAUT_KILLS", KILLS);
    let only = std::env::var("TAUT_JOB").ok();
    let mut jobs = jobs(&machine);
    jobs.retain(|job| only.as_ref().is_none_or(|only| job[0] == *only));
    for job in jobs {
        let began = Instant::now();
        let job: Vec<_> = job.iter().map(String::as_str).collect();
        let (mut found, mut changed) = (0, 0);
        let state = || match job[0] {
            "guest" => machine.state() + &congestion_controls(),
            _ => machine.state(),
        };
        let loads = (job[0] == "guest").then(programs::alone);
        let clean = state();
        let last = last(&machine, &job);
        drop(loads);
        // The last one when the job has said that it is ready, if it has changed something by then.
        let changes = ["relay", "tune", "snoop"].contains(&job[0]);
        for turn in 0..kills + u64::from(changes) {
            let _loads = (job[0] == "guest").then(programs::alone);
            prepare(&machine, &job);
            let at = last.mul_f64(moments.next());
            let said = match turn == kills {
                true => kill_when_ready(&machine, &job),
                false => kill(&machine, &job, at),
            };
            let context = format!("{job:?}, kill {turn} at {at:?} (seed {seed}): {said}");
            let present = state();
            let (left, _) = machine.left(&[]);
            found += u64::from(!left.is_empty());
            changed += u64::from(present != clean);
            let is_loaded = job[0] == "guest" && left.is_empty();
            assert!(
                present == clean || !left.is_empty() || is_loaded,
                "doctor finds nothing, but this is left: {present}\n{context}"
            );
            assert!(turn < kills || !left.is_empty(), "nothing left: {context}");
            if present != clean || !left.is_empty() {
                repair(&machine, &job);
                assert_eq!(state(), clean, "{context}");
            }
        }
        println!(
            "{job:?}: {kills} kills in the first {last:?}, {changed} left something, {found} found; {:?}",
            began.elapsed()
        );
    }
}
