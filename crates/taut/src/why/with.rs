//! `--with`: the report of `taut why` at the other end, over ssh, or from a file or a pipe.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use rustix::fs::OFlags;
use taut_observe::both_ends::Report;
use taut_observe::sanitize;

use crate::failure::Failure;

/// Arguments that name the other end.
#[derive(ClapArgs)]
pub(crate) struct WithArgs {
    /// Observe the other end as well: a host for ssh, or a file or pipe (a path with a `/`) to which
    /// `taut why --json` writes there during the same time
    #[arg(long, value_name = "HOST|FILE", help_heading = "The other end")]
    with: Option<String>,

    /// The command that runs taut on that host, such as `sudo taut`
    #[arg(
        long,
        value_name = "COMMAND",
        default_value = "taut",
        requires = "with",
        help_heading = "The other end"
    )]
    with_command: String,
}

/// An observation at the other end that has started, and that nothing reads yet.
pub(crate) struct Started {
    name: String,
    from: Unread,
}

enum Unread {
    File(PathBuf),
    Pipe(PathBuf),
    Ssh(Ssh),
}

/// The other end, while it observes.
pub(crate) struct Other {
    /// The host or file.
    pub(crate) name: String,
    source: Source,
}

enum Source {
    File(PathBuf),
    /// What a thread reads from a pipe.
    Pipe(mpsc::Receiver<io::Result<Vec<u8>>>),
    Ssh(Ssh),
}

/// A running ssh. Dropping it ends ssh.
struct Ssh {
    child: Child,
    output: Option<JoinHandle<io::Result<Vec<u8>>>>,
}

/// The maximum size of a report, in bytes.
const REPORT_MAX: u64 = 256 << 20;
/// The maximum size of the messages of ssh, and of taut there, on standard error, in bytes.
const MESSAGES_MAX: u64 = 64 << 10;
/// The time that the other end may take longer than this one, ssh's connection set-up included.
const PATIENCE: Duration = Duration::from_secs(30);
/// The interval at which ssh and files are polled.
const POLL: Duration = Duration::from_millis(20);

// === impl WithArgs ===

impl WithArgs {
    /// Starts the observation at the other end, for `time`, without a thread of this process. `None`
    /// without `--with`.
    ///
    /// # Errors
    /// If ssh cannot be started.
    pub(crate) fn start(&self, time: Duration) -> Result<Option<Started>, Failure> {
        let Some(name) = &self.with else {
            return Ok(None);
        };
        let path = Path::new(name);
        // A bare word is a host, even if the current directory has a file of that name.
        if name.contains('/') {
            let from = match path.metadata() {
                Ok(file) if file.is_dir() => {
                    return Err(Failure::Usage(format!("--with {name}: it is a directory")));
                }
                Ok(file) if file.is_file() => Unread::File(path.to_owned()),
                Ok(_) => Unread::Pipe(path.to_owned()),
                Err(error) => {
                    return Err(Failure::Usage(format!("--with {name}: {error}")));
                }
            };
            return Ok(Some(Started {
                name: name.clone(),
                from,
            }));
        }
        let command = format!(
            "{} why --json --for {}ms",
            self.with_command,
            time.as_millis()
        );
        let child = Command::new("ssh")
            .args(["-T", "--", name, &command])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let child = child.map_err(|error| {
            Failure::Run(format!("--with {name}: cannot start ssh: {error}; or give a file that `taut why --json` wrote there"))
        })?;
        let ssh = Ssh {
            child,
            output: None,
        };
        Ok(Some(Started {
            name: name.clone(),
            from: Unread::Ssh(ssh),
        }))
    }
}

// === impl Started ===

impl Started {
    /// Starts the threads that read the report.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(crate) fn read(self) -> Result<Other, Failure> {
        let Self { name, from } = self;
        let source = match from {
            Unread::File(path) => Ok(Source::File(path)),
            Unread::Pipe(path) => read_pipe(path).map(Source::Pipe),
            Unread::Ssh(ssh) => ssh.read(&name).map(Source::Ssh),
        };
        match source {
            Ok(source) => Ok(Other { name, source }),
            Err(error) => Err(Failure::Run(format!(
                "--with {name}: cannot start a thread that reads its report: {error}"
            ))),
        }
    }
}

// === impl Other ===

impl Other {
    /// Waits for the report of the other end.
    ///
    /// # Errors
    /// If it does not come in time, or is not a report.
    pub(crate) fn finish(self) -> Result<Report, Failure> {
        let name = self.name;
        let fail = |what: String| Failure::Run(format!("--with {name}: {what}"));
        let bytes = match self.source {
            Source::File(path) => read_whole(&path).map_err(fail)?,
            Source::Pipe(bytes) => {
                let bytes = bytes.recv_timeout(PATIENCE).map_err(|_| {
                    let seconds = PATIENCE.as_secs();
                    fail(format!(
                        "no whole report {seconds} s after this end had finished"
                    ))
                })?;
                bytes.map_err(|e| fail(e.to_string()))?
            }
            Source::Ssh(ssh) => ssh.finish(&name).map_err(fail)?,
        };
        let report = Report::parse(&String::from_utf8_lossy(&bytes));
        let report = report.map_err(|e| fail(e.to_string()))?;
        match report.is_empty() {
            true => Err(fail("its report has no connection".into())),
            false => Ok(report),
        }
    }
}

/// Reads a report from a file, to which `taut why` writes at its end: until then it is empty.
fn read_whole(path: &Path) -> Result<Vec<u8>, String> {
    let until = Instant::now() + PATIENCE;
    loop {
        let file = open_file(path).and_then(|mut file| read(&mut file, REPORT_MAX));
        let bytes = file.map_err(|e| e.to_string())?;
        if bytes.ends_with(b"\n") {
            return Ok(bytes);
        }
        if Instant::now() >= until {
            let seconds = PATIENCE.as_secs();
            return Err(format!(
                "no report {seconds} s after this end had finished: `taut why --json` there has seen no connection, or goes on"
            ));
        }
        std::thread::sleep(POLL);
    }
}

/// Opens a regular file. It was one when the observation began; should it be a pipe by now, opening it
/// must not wait for a writer.
fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it was a file and is none any more")),
    }
}

// === impl Ssh ===

impl Ssh {
    /// Starts the threads that read what ssh prints.
    fn read(mut self, name: &str) -> io::Result<Self> {
        if let Some(mut stdout) = self.child.stdout.take() {
            let reading = move || read(&mut stdout, REPORT_MAX);
            self.output = Some(Builder::new().spawn(reading)?);
        }
        if let Some(stderr) = self.child.stderr.take() {
            let name = name.to_owned();
            // Not joined: a connection that ssh shares with others keeps the pipe open.
            Builder::new().spawn(move || pass_on(&name, stderr))?;
        }
        Ok(self)
    }

    fn finish(mut self, name: &str) -> Result<Vec<u8>, String> {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().map_err(|e| e.to_string())? {
                break status;
            }
            if Instant::now() >= until {
                let seconds = PATIENCE.as_secs();
                return Err(format!(
                    "no report {seconds} s after this end had finished; try `ssh {name} taut why`"
                ));
            }
            std::thread::sleep(POLL);
        };
        let output = self.output.take();
        let output = output.map_or_else(|| Ok(Ok(Vec::new())), JoinHandle::join);
        let bytes = output.unwrap_or_else(|_| Err(io::Error::other("reading panicked")));
        let bytes = bytes.map_err(|e| e.to_string())?;
        if !status.success() {
            return Err(format!(
                "{status} of ssh, whose messages are above; taut must be installed there and run as root (--with-command \"sudo taut\")"
            ));
        }
        Ok(bytes)
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes the messages of ssh, and of taut at the other end, to standard error, safe for a
/// terminal.
fn pass_on(name: &str, stderr: impl Read) {
    let lines = BufReader::new(stderr.take(MESSAGES_MAX)).split(b'\n');
    for line in lines.map_while(Result::ok).filter(|line| !line.is_empty()) {
        // Nobody may read standard error any more.
        let _ = writeln!(io::stderr(), "{name}: {}", sanitize::text(&line));
    }
}

/// Reads a report from a pipe on a thread: the program that writes it may not end in time.
fn read_pipe(path: PathBuf) -> io::Result<mpsc::Receiver<io::Result<Vec<u8>>>> {
    let (sender, receiver) = mpsc::channel();
    Builder::new().spawn(move || {
        let bytes = File::open(path).and_then(|mut pipe| read(&mut pipe, REPORT_MAX));
        // This end may have given up.
        let _ = sender.send(bytes);
    })?;
    Ok(receiver)
}

/// Reads a report of at most `max` bytes.
fn read(from: &mut impl Read, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        let mib = max >> 20;
        return Err(io::Error::other(format!(
            "the report has more than {mib} MiB; give `taut why` there a filter"
        )));
    }
    Ok(bytes)
}
