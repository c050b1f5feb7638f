//! `taut tour`: what it shows, and that it leaves nothing, however it ends.

use std::fs;
use std::io::Read as _;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::kills::{Seed, number};
use crate::rig::{Machine, TAUT};

/// The number of kills, unless `TAUT_KILLS` gives another one.
const KILLS: u64 = 4;
/// The last moment of a kill: the tour takes 20 s.
const LAST: Duration = Duration::from_secs(20);
/// How long a killed process may take to end.
const PATIENCE: Timespec = Timespec {
    tv_sec: 20,
    tv_nsec: 0,
};
/// A variable in the environment of every process of a tour.
const MARK: &str = "TAUT_TEST_OF_TOUR";

fn start(machine: &Machine, mark: &str) -> Child {
    machine
        .command(TAUT, &["tour"])
        .env(MARK, mark)
        .env("COLUMNS", "80")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Returns the processes of a tour.
fn processes(mark: &str) -> Vec<Pid> {
    let mark = format!("{MARK}={mark}");
    let all = fs::read_dir("/proc").unwrap();
    all.filter_map(|entry| {
        let path = entry.unwrap().path();
        let pid = path.file_name()?.to_str()?.parse().ok()?;
        let environment = fs::read(path.join("environ")).ok()?;
        let has_mark = environment.split(|b| *b == 0).any(|v| v == mark.as_bytes());
        has_mark.then(|| Pid::from_raw(pid)).flatten()
    })
    .collect()
}

/// Waits until no process of a tour is left.
fn wait_for_end(mark: &str) {
    while let Some(&pid) = processes(mark).first() {
        let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
            continue;
        };
        let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
        let ended = rustix::event::poll(&mut fds, Some(&PATIENCE)).unwrap();
        assert_eq!(ended, 1, "process {pid:?} of the tour goes on");
    }
}

/// Returns what a tour could leave: what jobs can change, the records and sockets of jobs and worlds, and
/// mounts.
fn state(machine: &Machine) -> String {
    let script =
        "find /run/taut; cut -d ' ' -f 5 /proc/self/mountinfo | grep -v netns; ls /sys/class/net";
    let output = machine.run("sh", &["-c", script]);
    machine.state() + &String::from_utf8_lossy(&output.stdout)
}

/// Returns the number before `words`.
fn figure(text: &str, words: &str) -> f64 {
    let before = text.split(words).next().unwrap();
    let figure = before.split_whitespace().last();
    figure
        .and_then(|figure| figure.parse().ok())
        .unwrap_or_else(|| panic!("no figure before {words:?}: {text}"))
}

#[test]
fn the_tour_names_the_limit_repairs_it_and_leaves_nothing() {
    let machine = Machine::new("tour");
    let clean = state(&machine);
    let Output {
        status,
        stdout,
        stderr,
    } = start(&machine, "whole").wait_with_output().unwrap();
    assert!(status.success(), "{status}: {stderr:?}");
    assert!(processes("whole").is_empty());
    assert_eq!(state(&machine), clean);

    let text = String::from_utf8(stdout).unwrap();
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(!text.contains('\x1b') && !text.contains("Enter"), "{text}");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // A machine that is busy shows other limits and no gain. The tour says so then.
    let is_named = text.contains("is limited by the receive buffer");
    assert!(is_named || text.contains("can show another one"), "{text}");
    for change in ["changed: net.ipv4.tcp_rmem", "undone: 2 restored"] {
        assert!(text.contains(change), "{change}: {text}");
    }
    let before = figure(&text, " Mbit/s, over a path");
    let after = figure(&text, " Mbit/s, after ");
    let gain = format!("after {before:.1} before: ");
    let is_repaired = text.contains(&gain);
    assert_eq!(is_repaired, after >= before * 1.2, "{text}");
    assert!(is_repaired || text.contains("That is no gain."), "{text}");
    for last in [
        "through two relays",
        "sudo taut why",
        "sudo taut tune",
        "taut relay",
    ] {
        assert!(text.contains(last), "{last}: {text}");
    }
}

#[test]
fn a_killed_tour_leaves_nothing() {
    let machine = Machine::new("tour-kills");
    let clean = state(&machine);
    let seed = number("TAUT_SEED", 1);
    let mut moments = Seed(seed);
    for turn in 0..number("TAUT_KILLS", KILLS) {
        let at = LAST.mul_f64(moments.next());
        let signal = [Signal::KILL, Signal::TERM, Signal::INT][turn as usize % 3];
        let mark = format!("kill-{turn}");
        let mut tour = start(&machine, &mark);
        // Not a wait for anything: the moment is what is tested.
        std::thread::sleep(at);
        let had = processes(&mark).len();
        let pid = Pid::from_child(&tour);
        rustix::process::kill_process(pid, signal).unwrap();
        let mut said = String::new();
        let mut stderr = tour.stderr.take().unwrap();
        if signal == Signal::KILL {
            // No process is left that could wait for the others.
            wait_for_end(&mark);
        }
        tour.wait().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        let context = format!("{signal:?} at {at:?}, {had} processes (seed {seed}): {said}");
        let left = processes(&mark);
        assert!(left.is_empty(), "{left:?} go on: {context}");
        assert_eq!(state(&machine), clean, "{context}");
        println!("{context}");
    }
}
