//! curl as the client, and as the stopwatch: times are the ones it reports.

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::program;
use taut_netlab::world::Host;

/// Of any download. The slowest that is meant to end takes a tenth of it.
const LIMIT: Duration = Duration::from_secs(300);

/// What curl says of a download; times are in seconds from its start.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Times {
    /// The first connection's handshake was over.
    #[serde(rename = "time_connect")]
    pub connect: f64,
    /// The first byte of the answer had come.
    #[serde(rename = "time_starttransfer")]
    pub first_byte: f64,
    /// The last byte of the answer had come.
    #[serde(rename = "time_total")]
    pub total: f64,
}

/// SHA-256 of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u8; 32]);

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// curl could not be run or read.
    #[error("{url}: cannot run curl: {source}")]
    Run {
        /// What was to be fetched.
        url: String,
        /// The system's error.
        source: io::Error,
    },
    /// curl says that the download failed.
    #[error("{url}: curl says: {said}")]
    Failed {
        /// What was to be fetched.
        url: String,
        /// curl's message.
        said: String,
    },
    /// What came is not what the server has.
    #[error(
        "{url}: what came differs from what the server has: bytes were lost or changed on the way"
    )]
    Differs {
        /// What was fetched.
        url: String,
    },
}

impl Digest {
    /// Of the bytes of `file`.
    ///
    /// # Errors
    /// The system's error.
    pub fn of(file: &Path) -> io::Result<Self> {
        let mut hash = Sha256::new();
        let mut file = File::open(file)?;
        let mut part = vec![0; 1 << 16];
        loop {
            match file.read(&mut part)? {
                0 => return Ok(Self(hash.finalize().into())),
                n => hash.update(&part[..n]),
            }
        }
    }
}

/// Downloads `http://AT/NAME` on `host` into `into`, and compares it with what it should be.
///
/// # Errors
/// [`FetchError`].
pub fn fetch(
    host: &Host,
    at: SocketAddr,
    name: &str,
    expected: Digest,
    into: &Path,
) -> Result<Times, FetchError> {
    let url = format!("http://{at}/{name}");
    let run = |source| FetchError::Run {
        url: url.clone(),
        source,
    };
    // Never compare with what an earlier download left behind.
    match fs::remove_file(into) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(run(e)),
        _ => {}
    }
    let mut command = command(&url);
    command
        .args(["--write-out", "%{json}", "--output"])
        .arg(into);
    let mut said = Vec::new();
    // It is short enough for a pipe, as is a complaint, so reading one after the other cannot block.
    drain(host, command, &url, |part| said.extend_from_slice(part))?;
    if Digest::of(into).map_err(run)? != expected {
        return Err(FetchError::Differs { url });
    }
    serde_json::from_slice(&said).map_err(|e| run(e.into()))
}

/// Downloads the same and keeps none of it: `arrived` is told of every part's bytes as it comes, and
/// the whole is compared with what it should be.
///
/// # Errors
/// [`FetchError`].
pub fn watch(
    host: &Host,
    at: SocketAddr,
    name: &str,
    expected: Digest,
    mut arrived: impl FnMut(usize),
) -> Result<(), FetchError> {
    let url = format!("http://{at}/{name}");
    let mut command = command(&url);
    command.args(["--no-buffer", "--output", "-"]);
    let mut hash = Sha256::new();
    drain(host, command, &url, |part| {
        arrived(part.len());
        hash.update(part);
    })?;
    match Digest(hash.finalize().into()) == expected {
        true => Ok(()),
        false => Err(FetchError::Differs { url }),
    }
}

/// curl, as every download runs it.
fn command(url: &str) -> Command {
    let mut command = program::CURL.command();
    // -q comes first: a user's .curlrc must not change what is measured.
    command
        .args(["-q", "--silent", "--show-error", "--fail", "--noproxy", "*"])
        .args(["--max-time", &LIMIT.as_secs().to_string()])
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs curl on `host`; `part` gets its output as it comes.
fn drain(
    host: &Host,
    command: Command,
    url: &str,
    mut part: impl FnMut(&[u8]),
) -> Result<(), FetchError> {
    let run = |source| FetchError::Run {
        url: url.to_owned(),
        source,
    };
    let mut child = host.spawn(command).map_err(run)?;
    let mut complaint = String::new();
    if let Some(mut out) = child.pipes().stdout.take() {
        let mut buffer = vec![0; 1 << 16];
        loop {
            match out.read(&mut buffer).map_err(run)? {
                0 => break,
                n => part(&buffer[..n]),
            }
        }
    }
    if let Some(mut err) = child.pipes().stderr.take() {
        err.read_to_string(&mut complaint).map_err(run)?;
    }
    let status = child.wait().map_err(run)?;
    match status.success() {
        true => Ok(()),
        false => Err(FetchError::Failed {
            url: url.to_owned(),
            said: complaint.trim().to_owned(),
        }),
    }
}
