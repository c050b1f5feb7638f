//! Each job that changes something beyond its process is killed at seeded moments. What it leaves,
//! `taut doctor` finds and `taut doctor --repair` removes.

use std::process::Stdio;
use std::time::Duration;

use crate::rig::{Machine, TAUT, jobs, start};

/// The number of kills of each job, unless `TAUT_KILLS` gives another one.
const KILLS: u64 = 4;
/// The last moment of a kill after the start of a process. Half of them are in the first quarter.
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

/// Starts a job and kills it when it is ready. Returns what it has said.
fn kill_when_ready(machine: &Machine, args: &[&str]) -> String {
    let (mut job, said) = start(machine, args);
    job.kill().unwrap();
    job.wait().unwrap();
    said.join("\n")
}

/// Pseudo-random numbers (SplitMix64).
struct Seed(u64);

// === impl Seed ===

impl Seed {
    /// Returns a number of 0 to 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as f64 / u64::MAX as f64
    }
}

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).map_or(or, |text| text.parse().unwrap())
}

#[test]
fn what_a_killed_job_leaves_is_found_and_removed() {
    let machine = Machine::new("kills");
    let seed = number("TAUT_SEED", 1);
    let mut moments = Seed(seed);
    let clean = machine.state();
    for job in jobs(&machine) {
        let job: Vec<_> = job.iter().map(String::as_str).collect();
        let (mut found, mut changed) = (0, 0);
        let kills = number("TAUT_KILLS", KILLS);
        // The last one when the job has said that it is ready, if it has changed something by then.
        let changes = ["relay", "tune", "snoop"].contains(&job[0]);
        for turn in 0..kills + u64::from(changes) {
            if job == ["guest", "down"] {
                let up = machine.run(TAUT, &["guest", "up"]);
                assert!(up.status.success(), "{up:?}");
            }
            let at = LAST.mul_f64(moments.next().powi(2));
            let said = match turn == kills {
                true => kill_when_ready(&machine, &job),
                false => kill(&machine, &job, at),
            };
            let context = format!("{job:?}, kill {turn} at {at:?} (seed {seed}): {said}");
            let state = machine.state();
            let (left, _) = machine.left(&[]);
            found += u64::from(!left.is_empty());
            changed += u64::from(state != clean);
            let is_loaded = job[0] == "guest" && left.is_empty();
            assert!(
                state == clean || !left.is_empty() || is_loaded,
                "doctor finds nothing, but this is left: {state}\n{context}"
            );
            assert!(turn < kills || !left.is_empty(), "nothing left: {context}");
            let (left, output) = machine.left(&["--repair"]);
            assert!(left.is_empty(), "{left:?} {output:?} {context}");
            if is_loaded {
                // What is loaded completely stays until it is unloaded.
                let down = machine.run(TAUT, &["guest", "down"]);
                assert!(down.status.success(), "{down:?}");
            }
            assert_eq!(machine.state(), clean, "{context}");
        }
        println!("{job:?}: {changed} left something, {found} found");
    }
}
