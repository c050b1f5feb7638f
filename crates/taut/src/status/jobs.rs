//! The jobs of Taut's that run on this machine, and how they are.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use taut_observe::sanitize;
use taut_relay::control;
use taut_relay::control::protocol::{Answer, Filter, MeshStatus, Request, SessionRow, Status};
use taut_snoop::protocol::{self, Question, TapStatus};
use taut_snoop::serve;
use taut_sys::plural::counted;

/// How long a job may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The maximum length of what a job says of itself, in characters.
const MAX_STATE: usize = 100;

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

/// What the jobs have answered that were asked.
#[derive(Debug, Default)]
pub(super) struct Answers {
    pub(super) relay: Option<Box<Status>>,
    pub(super) taps: Option<Vec<TapStatus>>,
}

/// Returns the jobs that run here, those first that are not well. Only those at the default control sockets are
/// asked how they are.
pub(super) fn running() -> (Vec<Job>, Answers) {
    let mut jobs: Vec<Job> = processes()
        .into_iter()
        .map(|(pid, name)| Job {
            name,
            pid: Some(pid),
            well: true,
            state: format!("pid {pid}"),
        })
        .collect();
    let mut answers = Answers::default();
    if let Some(job) = listening(&mut jobs, "relay", Path::new(control::PATH)) {
        answers.relay = ask_relay();
        job.says(answers.relay.as_deref().map(of_relay));
    }
    if let Some(job) = listening(&mut jobs, "snoop", Path::new(serve::CONTROL)) {
        answers.taps = ask_snoop();
        job.says(answers.taps.as_deref().map(of_snoop));
    }
    if taut_guest::load::is_up() {
        jobs.push(Job {
            name: "guest",
            pid: None,
            well: true,
            state: "its congestion controls are loaded".to_owned(),
        });
    }
    jobs.sort_by_key(|job| job.well);
    (jobs, answers)
}

/// Returns the job with this name that listens at its default control socket.
fn listening<'a>(jobs: &'a mut [Job], name: &str, socket: &Path) -> Option<&'a mut Job> {
    let at_socket = control::process_at(socket);
    let is_it = |job: &&mut Job| match &at_socket {
        Ok(pid) => job.pid == Some(*pid),
        // Of several with this name, it is not known which.
        Err(error) => error.has_timed_out(),
    };
    let mut jobs = jobs.iter_mut().filter(|job| job.name == name);
    jobs.find(is_it)
}

// === impl Job ===

impl Job {
    /// Takes over whether the job says that all is well, and in which words; `None` if it does not answer.
    fn says(&mut self, said: Option<(bool, String)>) {
        let silent = || (false, format!("{} does not answer", self.state));
        let (well, state) = said.unwrap_or_else(silent);
        (self.well, self.state) = (well, plain(&state));
    }
}

/// Makes the text safe for a terminal, and shortens it: it comes from another process.
fn plain(text: &str) -> String {
    let safe = sanitize::text(text.as_bytes());
    safe.chars().take(MAX_STATE).collect()
}

/// A process's program: its file, or, of a program that has been replaced, its path and the user namespace. In a
/// user namespace of their own, anybody may give any file this program's path.
#[derive(PartialEq)]
enum Program {
    File(u64, u64),
    Replaced(PathBuf, PathBuf),
}

/// Returns the processes that execute this program and are a job, in the order of their numbers. Anybody may give a
/// process this program's name, but not its file.
fn processes() -> Vec<(u32, &'static str)> {
    let program = |process: &Path| {
        let exe = process.join("exe");
        let path = fs::read_link(&exe).ok()?;
        match path.to_str()?.strip_suffix(" (deleted)") {
            Some(path) => {
                let namespace = fs::read_link(process.join("ns/user")).ok()?;
                Some(Program::Replaced(path.into(), namespace))
            }
            None => {
                let file = fs::metadata(exe).ok()?;
                Some(Program::File(file.dev(), file.ino()))
            }
        }
    };
    let own = Path::new("/proc/self");
    let path = fs::read_link(own.join("exe")).ok();
    let path = path.and_then(|path| Some(path.to_str()?.trim_end_matches(" (deleted)").into()));
    let namespace = fs::read_link(own.join("ns/user")).ok();
    let replaced = path.zip(namespace);
    let replaced = replaced.map(|(path, namespace)| Program::Replaced(path, namespace));
    let own = [program(own), replaced];
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let program = program(&entry.path());
        if program.is_some()
            && own.contains(&program)
            && let Ok(line) = fs::read(entry.path().join("cmdline"))
        {
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
    let is_job = |rest: &[&[u8]]| {
        let ends = |word: &&[u8]| {
            [
                &b"--check"[..],
                b"--off",
                b"--on",
                b"--undo",
                b"status",
                b"cost",
            ]
            .contains(word)
                || word.starts_with(b"--check=")
        };
        rest.first().is_none_or(is_option) && !rest.iter().any(ends)
    };
    match words {
        [b"relay", rest @ ..] if is_job(rest) => Some("relay"),
        [b"snoop", rest @ ..] if is_job(rest) => Some("snoop"),
        [b"mesh", b"dns", ..] => Some("dns"),
        [b"tune", rest @ ..] if !rest.contains(&&b"--undo"[..]) => Some("tune"),
        [b"watch", ..] => Some("watch"),
        _ => None,
    }
}

fn ask_relay() -> Option<Box<Status>> {
    match control::ask_within(Path::new(control::PATH), &Request::Status, PATIENCE) {
        Ok(Answer::Status(status)) => Some(status),
        _ => None,
    }
}

/// Returns up to `limit` sessions of the relay at the default control socket.
pub(super) fn sessions(limit: usize) -> Vec<SessionRow> {
    let filter = Filter::default();
    let request = Request::Sessions { filter, limit };
    match control::ask_within(Path::new(control::PATH), &request, PATIENCE) {
        Ok(Answer::Sessions { sessions, .. }) => sessions,
        _ => Vec::new(),
    }
}

/// Returns the mesh of the relay at the default control socket.
///
/// # Errors
/// A sentence, if the relay does not answer.
pub(super) fn mesh() -> Result<Box<MeshStatus>, String> {
    match control::ask_within(Path::new(control::PATH), &Request::Mesh, PATIENCE) {
        Ok(Answer::Mesh(mesh)) => Ok(mesh),
        Ok(_) => Err("the relay gives another answer: is it of this version?".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn of_relay(status: &Status) -> (bool, String) {
    let sessions = counted(status.sessions, "session");
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

fn ask_snoop() -> Option<Vec<TapStatus>> {
    match serve::ask(Path::new(serve::CONTROL), &Question::Status, PATIENCE) {
        Ok(protocol::Answer::Taps(taps)) => Some(taps),
        _ => None,
    }
}

fn of_snoop(taps: &[TapStatus]) -> (bool, String) {
    let count = |state: &str| taps.iter().filter(|tap| tap.state == state).count();
    let (on, unfit) = (count("on"), count("unfit"));
    let lost: u64 = taps.iter().map(|tap| tap.lost_after_early_ack).sum();
    let mut state = format!("{on} of {} on", counted(taps.len(), "tap"));
    if unfit > 0 {
        state.push_str(&format!(", {unfit} unfit"));
    }
    if lost > 0 {
        state.push_str(&format!(", {} lost data", counted(lost, "flow")));
    }
    (unfit == 0 && lost == 0, state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_job_says_cannot_control_the_terminal() {
        let said = plain(&format!("broken: \x1b[2Jx\ny{}", "z".repeat(1000)));
        assert!(said.starts_with("broken: \u{fffd}[2Jx\u{fffd}yz"), "{said}");
        assert!(!said.contains(char::is_control), "{said:?}");
        assert_eq!(said.chars().count(), MAX_STATE);
    }

    #[test]
    fn command_lines_of_jobs_are_told_from_commands() {
        for (line, job) in [
            ("relay", Some("relay")),
            ("relay --config x", Some("relay")),
            ("relay status", None),
            ("snoop --tap vnet0", Some("snoop")),
            ("snoop status", None),
            ("snoop --control x status", None),
            ("snoop --off tap0", None),
            ("relay --check", None),
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
