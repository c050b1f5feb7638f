//! `taut relay upgrade`: replaces the running relay by a process of this program, without closing its ports.
//!
//! The relay cannot do it itself, because it may execute nothing and has given up what a start needs. So this
//! command starts the new process, which takes the sockets over (`taut_relay::handover`), and waits until
//! operators reach that one.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::Parser as _;
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal};
use taut_relay::control;
use taut_relay::control::protocol::{Answer, Request, Status};
use taut_relay::handover::START;
use taut_sys::plural::counted;

use crate::failure::Failure;

/// The interval at which operators' socket is asked whether the new process has taken over.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// How long the new process may take: until the running one gives up, and as long again, because it asks
/// once more then.
const PATIENCE: Duration = Duration::from_secs(2 * START.as_secs());

/// Runs a command in the background with its standard input, and ends. (Before the command's own redirections, a
/// shell gives what it runs in the background an empty one.)
const BACKGROUND: &str = "exec 3<&0; exec \"$0\" \"$@\" <&3 3<&- &";

/// First processes of containers that end with the process that they have started.
const ENDS_WITH_ITS_CHILD: [&str; 4] = ["tini", "docker-init", "dumb-init", "catatonit"];

/// How to replace the running relay.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Configuration file of the new process; by default it has the command line of the running one
    #[arg(short, long, value_name = "FILE", help_heading = "Configuration")]
    config: Option<PathBuf>,

    /// Replace the relay only if its program is no longer the installed one; otherwise, or if it cannot be replaced,
    /// reload its configuration. Units of systemd use this for `systemctl reload`
    #[arg(long, help_heading = "The relay")]
    if_replaced: bool,

    /// Control socket of the relay (relay.control); by default that of --config, or of the unit that is reloaded
    #[arg(long, value_name = "PATH", help_heading = "The relay")]
    control: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    // The process that systemd reloads.
    let main = std::env::var("MAINPID").ok();
    let main: Option<u32> = main.and_then(|pid| pid.parse().ok());
    if let Some(main) = main.filter(|main| !is_own(*main))
        && args.config.is_none()
        && args.control.is_none()
    {
        return hang_up(Some(main), "it is another user's");
    }
    let Some(control) = control_of(args, main)? else {
        return hang_up(main, "relay.control is \"off\"");
    };
    let status = match control::ask(&control, &Request::Status) {
        Ok(Answer::Status(status)) => *status,
        Ok(_) => return Err(Failure::Run("the answer is not understood".to_owned())),
        Err(error) if main.is_some() => return hang_up(main, &error.to_string()),
        Err(error) => return Err(Failure::Run(error.to_string())),
    };
    if main.is_some_and(|main| main != status.pid) {
        let other = format!("{} is that of process {}", control.display(), status.pid);
        return hang_up(main, &other);
    }
    // What it says is not enough: the new process gets what that one has.
    let listens = control::process_at(&control).map_err(|e| Failure::Run(e.to_string()))?;
    if listens != status.pid {
        return Err(Failure::Run(format!(
            "process {listens} listens at {}, and says that it is {}",
            control.display(),
            status.pid
        )));
    }
    if args.if_replaced && is_program_of(status.pid, &status.version) {
        return reload(&control);
    }
    match (prevents(args, &status, main), args.if_replaced) {
        (None, _) => replace(args, &control, &status),
        (Some(why), false) => Err(Failure::Run(why)),
        (Some(why), true) => {
            reload(&control)?;
            crate::failure::print(&format!("the program stays the former one: {why}\n"))
        }
    }
}

/// The command line of a relay.
#[derive(clap::Parser)]
struct Relay {
    #[command(flatten)]
    args: super::Args,
}

/// Returns the control socket of the relay, unless it has none.
fn control_of(args: &Args, main: Option<u32>) -> Result<Option<PathBuf>, Failure> {
    if let Some(control) = &args.control {
        return Ok(Some(control.clone()));
    }
    let usage = |e: &dyn std::fmt::Display| Failure::Usage(e.to_string());
    let config = match (&args.config, main) {
        (Some(file), _) => taut_relay::config::Config::load(file).map_err(|e| usage(&e))?,
        (None, Some(main)) => {
            // `relay` stands where a program has its name.
            let relay = Relay::try_parse_from(arguments_of(main)?).map_err(|e| usage(&e))?;
            super::configuration(&relay.args).map_err(|e| usage(&e))?
        }
        (None, None) => return Ok(Some(control::PATH.into())),
    };
    Ok(config.control_path().map(Path::to_owned))
}

/// Reloads the configuration of a relay that cannot be reached otherwise.
fn hang_up(main: Option<u32>, why: &str) -> Result<(), Failure> {
    let cannot = format!("the relay cannot be replaced: {why}");
    let pid = main.and_then(|main| Pid::from_raw(main.cast_signed()));
    let Some(pid) = pid else {
        return Err(Failure::Run(cannot));
    };
    // Another program would end by the signal.
    arguments_of(pid.as_raw_nonzero().get().cast_unsigned())?;
    let sent = rustix::process::kill_process(pid, Signal::HUP);
    let number = pid.as_raw_nonzero();
    sent.map_err(|e| Failure::Run(format!("cannot signal process {number}: {e}")))?;
    crate::failure::print(&format!(
        "process {number} reads its configuration again; {cannot}\n"
    ))
}

fn reload(control: &Path) -> Result<(), Failure> {
    let answer =
        control::ask(control, &Request::Reload).map_err(|e| Failure::Run(e.to_string()))?;
    let Answer::Done { notes } = answer else {
        return Err(Failure::Run("the answer is not understood".to_owned()));
    };
    let notes: String = notes.iter().map(|note| format!("{note}\n")).collect();
    crate::failure::print(&super::plain(&notes))
}

/// Returns whether a process runs the program that this one runs.
fn is_program_of(pid: u32, version: &str) -> bool {
    let identity = |path: &str| {
        let found = fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    match (
        identity(&format!("/proc/{pid}/exe")),
        identity("/proc/self/exe"),
    ) {
        (Some(running), Some(own)) => running == own,
        // A container may hide it.
        _ => version == env!("CARGO_PKG_VERSION"),
    }
}

/// Returns why the relay cannot be replaced while it runs.
fn prevents(args: &Args, status: &Status, main: Option<u32>) -> Option<String> {
    let pid = status.pid;
    if args.config.is_none() && !is_own(pid) {
        return Some(format!(
            "process {pid} is another user's; say which configuration the new process gets: --config FILE"
        ));
    }
    if status.draining {
        return Some(format!("process {pid} drains already"));
    }
    if status.handover.is_none() {
        return Some(format!(
            "process {pid} does not hand its sockets over: relay.handover is \"off\", it is an earlier version, or it \
             runs as a user that cannot make a socket beside relay.control; restart it"
        ));
    }
    if pid == 1 {
        return Some(
            "the relay is the first process of a container, which ends with it; start another container with the same \
             relay.handover"
                .to_owned(),
        );
    }
    let network = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    if let (Some(there), Some(here)) = (network(&pid.to_string()), network("self"))
        && there != here
    {
        return Some(format!(
            "process {pid} runs in another network namespace; run this command there:\n  nsenter --target {pid} --net \
             taut relay upgrade"
        ));
    }
    let (unit, own) = (unit_of(&pid.to_string()), unit_of("self"));
    let Some(unit) = unit else {
        return match own {
            Some(own) => Some(format!(
                "this command runs in {own}, and the new process would end with it; run it elsewhere"
            )),
            None => ends_its_container(pid),
        };
    };
    if own.as_ref() == Some(&unit) {
        // The notification that the new process sends would be lost, and the service would end with the old one.
        let notifies = main.is_none() || std::env::var_os("NOTIFY_SOCKET").is_some();
        return (!notifies).then(|| {
            format!("{unit} does not accept another main process; add NotifyAccess=all to it")
        });
    }
    Some(format!(
        "systemd has started process {pid}, and would not know the new one. If the program has been replaced, this \
         upgrades it:\n  systemctl reload {unit}\notherwise restart it"
    ))
}

/// Returns why the first process of a container would end with a relay that it has started.
fn ends_its_container(pid: u32) -> Option<String> {
    let parent = status_line(&pid.to_string(), "PPid:")?;
    let first = fs::read_to_string("/proc/1/comm").ok()?;
    let ends = parent == ["1"] && ENDS_WITH_ITS_CHILD.contains(&first.trim());
    ends.then(|| {
        format!(
            "process 1 of this container, {}, ends with process {pid}; start another container with the same \
             relay.handover",
            first.trim()
        )
    })
}

/// Returns the words of a line of `/proc/PID/status`.
fn status_line(pid: &str, name: &str) -> Option<Vec<String>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().map(str::to_owned).collect())
}

/// Returns whether a process has the users of this one. What another user's process says of itself, its command line for
/// example, is not a thing to do with this one's rights.
fn is_own(pid: u32) -> bool {
    let users = |pid: &str| status_line(pid, "Uid:");
    let theirs = users(&pid.to_string());
    theirs.is_some() && theirs == users("self")
}

/// Returns the service of systemd that a process belongs to.
fn unit_of(pid: &str) -> Option<String> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let unit = groups.lines().find_map(|line| {
        let name = line.rsplit('/').next()?;
        name.ends_with(".service").then_some(name)
    });
    unit.map(str::to_owned)
}

/// Returns the arguments of a relay's command line.
fn arguments_of(pid: u32) -> Result<Vec<OsString>, Failure> {
    let line = fs::read(format!("/proc/{pid}/cmdline"));
    let line = line.map_err(|e| {
        Failure::Run(format!(
            "cannot read the command line of process {pid}: {e}"
        ))
    })?;
    let words = line.split(|byte| *byte == 0).skip(1);
    let words = words.map(|word| OsString::from_vec(word.to_owned()));
    let mut words: Vec<_> = words.collect();
    // Each word ends with a zero byte.
    words.pop();
    words.retain(|word| word != "--replace");
    match words.first().is_some_and(|word| word == "relay") {
        true => Ok(words),
        false => Err(not_a_relay(pid)),
    }
}

fn not_a_relay(pid: u32) -> Failure {
    Failure::Run(format!(
        "process {pid} is no relay here; does it run in a container? Then run this command there"
    ))
}

/// Starts the new process, and waits until it has taken over.
fn replace(args: &Args, control: &Path, running: &Status) -> Result<(), Failure> {
    let pid = running.pid;
    let is_own = is_own(pid);
    let arguments = match &args.config {
        Some(file) => {
            let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
            vec!["relay".into(), "--config".into(), file.into()]
        }
        None => arguments_of(pid)?,
    };
    let program = std::env::current_exe()
        .map_err(|e| Failure::Run(format!("cannot find this program's file: {e}")))?;
    let failed = |e: io::Error| Failure::Run(format!("cannot start {}: {e}", program.display()));
    let folder = { fs::read_link(format!("/proc/{pid}/cwd")).ok() }.filter(|_| is_own);
    let folder = folder.unwrap_or_else(|| "/".into());
    let command = |name: &OsStr| {
        let mut command = Command::new(name);
        command.current_dir(&folder).stdin(Stdio::null());
        command
    };
    let checked = command(program.as_os_str())
        .args(&arguments)
        .arg("--check")
        .stdout(Stdio::null())
        .status()
        .map_err(failed)?;
    match checked.code() {
        Some(0) => {}
        Some(2) => return Err(Failure::Usage(continues(pid))),
        _ => return Err(Failure::Run(continues(pid))),
    }
    let output = |number| {
        let same = is_own.then(|| output_of(pid, number)).flatten();
        let unit = unit_of(&pid.to_string());
        same.unwrap_or_else(|| match unit.is_some() && unit == unit_of("self") {
            // The journal, which cannot be opened. A pipe of the caller's would stay open with the relay.
            true => Stdio::inherit(),
            false => Stdio::null(),
        })
    };
    let (lives, life) = io::pipe().map_err(failed)?;
    // In the background of a shell that ends, so that it is a child of the first process, as the running one is.
    command(OsStr::new("/bin/sh"))
        .args(["-c", BACKGROUND])
        .arg(&program)
        .args(&arguments)
        .arg("--replace")
        // Its end is seen by the pipe's.
        .stdin(OwnedFd::from(life))
        .stdout(output(1))
        .stderr(output(2))
        .status()
        .map_err(failed)?;
    let new = wait_for(control, pid, &watch(lives))?;
    crate::failure::print(&format!(
        "process {new} has taken over from {pid}, which drains {}\n",
        counted(running.sessions, "session")
    ))
}

fn continues(pid: u32) -> String {
    format!("the new process could not start; process {pid} continues")
}

/// Returns a channel that closes when all writers of the pipe have ended.
fn watch(mut lives: io::PipeReader) -> Receiver<()> {
    let (lives_still, ended) = channel();
    std::thread::spawn(move || {
        let _ = lives.read(&mut [0]);
        drop(lives_still);
    });
    ended
}

/// Waits until another process than `pid` answers operators, and returns its number.
fn wait_for(control: &Path, pid: u32, ended: &Receiver<()>) -> Result<u32, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let has_ended = ended.recv_timeout(ASK_EVERY) == Err(RecvTimeoutError::Disconnected);
        if let Ok(Answer::Status(status)) = control::ask(control, &Request::Status)
            && status.pid != pid
        {
            return Ok(status.pid);
        }
        if has_ended {
            let goes_on = matches!(
                control::ask(control, &Request::Status),
                Ok(Answer::Status(status)) if status.pid == pid && !status.draining
            );
            return Err(Failure::Run(match goes_on {
                true => format!("{}; the relay's log has the reason", continues(pid)),
                false => format!(
                    "the new process has ended, and process {pid} may accept no more connections; the relay's log has \
                     the reason; start the relay"
                ),
            }));
        }
        if Instant::now() >= deadline {
            return Err(Failure::Run(format!(
                "the new process has not taken over within {}; see `taut relay status` and the relay's log",
                humantime::format_duration(PATIENCE)
            )));
        }
    }
}

/// Returns where a process of this user's writes standard output or error, if that is a file, a pipe or a terminal.
fn output_of(pid: u32, number: u32) -> Option<Stdio> {
    let mut appended = OpenOptions::new();
    // A FIFO without a reader is not waited for.
    let opened: io::Result<File> = appended
        .append(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(format!("/proc/{pid}/fd/{number}"));
    let file = opened.ok()?;
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND).ok()?;
    Some(file.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    #[test]
    fn this_process_runs_its_own_program_and_another_does_not() {
        let own = std::process::id();
        assert!(is_program_of(own, "of no matter"));
        let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        // It may not have executed its program yet.
        while is_program_of(other.id(), "none") {
            std::thread::yield_now();
        }
        drop(other.stdin.take());
        other.wait().unwrap();
    }

    #[test]
    fn a_command_line_of_another_program_is_no_relays() {
        let refused = arguments_of(std::process::id()).unwrap_err();
        assert!(matches!(refused, Failure::Run(why) if why.contains("is no relay here")));
    }
}
