//! `--with`: what `taut why` says at the other end, over ssh or from a file.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use taut_observe::both_ends::Report;

use crate::Failure;

/// Arguments that name the other end.
#[derive(ClapArgs)]
pub(crate) struct WithArgs {
    /// Look at the other end as well: a host for ssh, or a file that `taut why --json` wrote there
    /// during the same time
    #[arg(long, value_name = "HOST|FILE")]
    with: Option<String>,

    /// The command that runs taut on that host, `sudo taut` for instance
    #[arg(
        long,
        value_name = "COMMAND",
        default_value = "taut",
        requires = "with"
    )]
    with_command: String,
}

/// The other end, while it observes.
pub(crate) struct Other {
    /// The host or file.
    pub(crate) name: String,
    source: Source,
}

enum Source {
    File(PathBuf),
    Ssh {
        child: Child,
        output: JoinHandle<io::Result<Vec<u8>>>,
    },
}

/// The maximum size of a report, in bytes.
const REPORT_MAX: u64 = 256 << 20;
/// How much longer than this end the other one may take, ssh's own set-up included.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time between two looks at ssh.
const LOOK: Duration = Duration::from_millis(20);

// === impl WithArgs ===

impl WithArgs {
    /// Has the other end begin to observe, for `time`. `None`: there is to be none.
    ///
    /// # Errors
    /// If ssh cannot be started.
    pub(crate) fn begin(&self, time: Duration) -> Result<Option<Other>, Failure> {
        let Some(name) = &self.with else {
            return Ok(None);
        };
        let path = Path::new(name);
        if path.is_file() {
            let source = Source::File(path.to_owned());
            return Ok(Some(Other {
                name: name.clone(),
                source,
            }));
        }
        if name.contains('/') {
            return Err(Failure::Usage(format!(
                "--with {name}: there is no such file"
            )));
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
            .spawn();
        let mut child = child.map_err(|error| {
            Failure::Run(format!("--with {name}: cannot start ssh: {error}; a file that `taut why --json` wrote there does without"))
        })?;
        let Some(mut stdout) = child.stdout.take() else {
            return Err(Failure::Run(format!("--with {name}: ssh has no output")));
        };
        let output = std::thread::spawn(move || read(&mut stdout));
        let source = Source::Ssh { child, output };
        Ok(Some(Other {
            name: name.clone(),
            source,
        }))
    }
}

// === impl Other ===

impl Other {
    /// Waits for the other end's report.
    ///
    /// # Errors
    /// If it does not come in time, or is no report. ssh says on standard error why it failed.
    pub(crate) fn finish(self) -> Result<Report, Failure> {
        let name = self.name;
        let fail = |what: String| Failure::Run(format!("--with {name}: {what}"));
        let bytes = match self.source {
            Source::File(path) => {
                let mut file = File::open(&path).map_err(|e| fail(e.to_string()))?;
                read(&mut file).map_err(|e| fail(e.to_string()))?
            }
            Source::Ssh { mut child, output } => {
                let until = Instant::now() + PATIENCE;
                let status = loop {
                    if let Some(status) = child.try_wait().map_err(|e| fail(e.to_string()))? {
                        break status;
                    }
                    if Instant::now() >= until {
                        let _ = child.kill();
                        let _ = child.wait();
                        return Err(fail(format!(
                            "no report {} s after this end was done; try `ssh {name} taut why`",
                            PATIENCE.as_secs()
                        )));
                    }
                    std::thread::sleep(LOOK);
                };
                let bytes = output
                    .join()
                    .unwrap_or_else(|_| Err(io::Error::other("reading panicked")));
                if !status.success() {
                    return Err(fail(format!(
                        "{status}, as ssh says above; taut must be installed there and run as root (--with-command \"sudo taut\")"
                    )));
                }
                bytes.map_err(|e| fail(e.to_string()))?
            }
        };
        Report::parse(&String::from_utf8_lossy(&bytes)).map_err(|e| fail(e.to_string()))
    }
}

fn read(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(REPORT_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > REPORT_MAX {
        return Err(io::Error::other(
            "the report is longer than 256 MiB; give `taut why` there a filter",
        ));
    }
    Ok(bytes)
}
