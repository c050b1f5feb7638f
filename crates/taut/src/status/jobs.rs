//! The jobs of Taut's that run on this machine, and how they are.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use taut_relay::control::protocol::{Answer, Request, Status};
use taut_snoop::protocol::{self, Question, TapStatus};
use taut_snoop::serve;

/// How long snoop may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// A job.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Job {
    /// `relay`, `dns`, `snoop`, `tune`, `watch` or `guest`.
    pub(super) name: &'static str,
    /// Its process; `null` for the congestion controls of `taut guest`, which need none.
    pub(super) pid: Option<u32>,
    /// Whether it says that all is well. A job that is not asked is taken for well.
    pub(super) well: bool,
    /// What it does, in a few words.
    pub(super) state: String,
}

/// Returns the jobs that run here. Only those at the default control sockets are asked how they are.
pub(super) fn running() -> Vec<Job> {
    let mut jobs: Vec<Job> = processes()
        .into_iter()
        .map(|(pid, name)| Job {
            name,
            pid: Some(pid),
            well: true,
            state: format!("pid {pid}"),
        })
        .collect();
    for job in &mut jobs {
        match job.name {
            "relay" => ask_relay(job),
            "snoop" => ask_snoop(job),
            _ => {}
        }
    }
    if taut_guest::load::is_up() {
        jobs.push(Job {
            name: "guest",
            pid: None,
            well: true,
            state: "its congestion controls are loaded".to_owned(),
        });
    }
    jobs
}

/// Returns the processes that are a job, in the order of their numbers.
fn processes() -> Vec<(u32, &'static str)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let is_taut =
            fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm == "taut\n");
        if is_taut && let Ok(line) = fs::read(entry.path().join("cmdline")) {
            let words: Vec<_> = line.split(|byte| *byte == 0).skip(1).collect();
            found.extend(job_of(&words).map(|name| (pid, name)));
        }
    }
    found.sort_unstable();
    found
}

/// Returns the job that a command line of `taut` without its first word starts; `None` if it is a command
/// that ends by itself.
fn job_of(words: &[&[u8]]) -> Option<&'static str> {
    let is_option = |word: &&[u8]| word.is_empty() || word.starts_with(b"-");
    match words {
        [b"relay", rest @ ..] if rest.first().is_none_or(is_option) => Some("relay"),
        [b"snoop", rest @ ..] if rest.first().is_none_or(is_option) => Some("snoop"),
        [b"mesh", b"dns", ..] => Some("dns"),
        [b"tune", rest @ ..] if !rest.contains(&&b"--undo"[..]) => Some("tune"),
        [b"watch", ..] => Some("watch"),
        _ => None,
    }
}

fn ask_relay(job: &mut Job) {
    let path = Path::new(taut_relay::control::PATH);
    if let Ok(Answer::Status(status)) = taut_relay::control::ask(path, &Request::Status)
        && Some(status.pid) == job.pid
    {
        (job.well, job.state) = of_relay(&status);
    }
}

fn of_relay(status: &Status) -> (bool, String) {
    let sessions = match status.sessions {
        1 => "1 session".to_owned(),
        sessions => format!("{sessions} sessions"),
    };
    let draining = if status.draining { ", draining" } else { "" };
    match status.broken.as_slice() {
        [] => (true, format!("{sessions}{draining}, nothing is broken")),
        [first, rest @ ..] => {
            let subject = Some(&*first.subject).filter(|subject| !subject.is_empty());
            let subject = subject
                .map(|subject| format!(" {subject}"))
                .unwrap_or_default();
            let more = match rest.len() {
                0 => String::new(),
                more => format!(", and {more} more"),
            };
            (
                false,
                format!(
                    "{sessions}{draining}, broken: {}{subject}{more}",
                    first.condition
                ),
            )
        }
    }
}

fn ask_snoop(job: &mut Job) {
    let path = Path::new(serve::CONTROL);
    if let Ok(protocol::Answer::Taps(taps)) = serve::ask(path, &Question::Status, PATIENCE) {
        (job.well, job.state) = of_snoop(&taps);
    }
}

fn of_snoop(taps: &[TapStatus]) -> (bool, String) {
    let count = |state: &str| taps.iter().filter(|tap| tap.state == state).count();
    let (on, unfit) = (count("on"), count("unfit"));
    let lost: u64 = taps.iter().map(|tap| tap.lost_after_early_ack).sum();
    let mut state = format!("{on} of {} taps on", taps.len());
    if unfit > 0 {
        state.push_str(&format!(", {unfit} unfit"));
    }
    if lost > 0 {
        state.push_str(&format!(", {lost} flows lost data"));
    }
    (unfit == 0 && lost == 0, state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_jobs_are_told_from_commands() {
        for (line, job) in [
            ("relay", Some("relay")),
            ("relay --config x", Some("relay")),
            ("relay status", None),
            ("snoop --tap vnet0", Some("snoop")),
            ("snoop status", None),
            ("mesh dns --config x", Some("dns")),
            ("mesh plan", None),
            ("tune --apply", Some("tune")),
            ("tune --undo", None),
            ("watch", Some("watch")),
            ("why", None),
            ("", None),
        ] {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            assert_eq!(job_of(&words), job, "{line}");
        }
    }
}
