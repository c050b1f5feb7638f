//! curl as the client, and the times that it reports.

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

/// The time limit of a download. The slowest download that is expected to finish takes a third of
/// it.
const LIMIT: Duration = Duration::from_secs(900);

/// curl's figures of a download; times are in seconds from its start.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Times {
    /// When the handshake of the first connection was complete.
    #[serde(rename = "time_connect")]
    pub connect: f64,
    /// When the first byte of the response arrived.
    #[serde(rename = "time_starttransfer")]
    pub first_byte: f64,
    /// When the last byte of the response arrived.
    #[serde(rename = "time_total")]
    pub total: f64,
}

/// The SHA-256 of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u8; 32]);

/// A reason why a download was not measured.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// curl could not be run or read.
    #[error("{url}: cannot run curl: {source}")]
    Run {
        /// The URL.
        url: String,
        /// The system's error.
        source: io::Error,
    },
    /// curl reports that the download failed.
    #[error("{url}: curl says: {said}")]
    Failed {
        /// The URL.
        url: String,
        /// curl's message.
        said: String,
    },
    /// The downloaded bytes are not those of the file on the server.
    #[error(
        "{url}: the download differs from the file on the server: bytes were lost or changed on the way"
    )]
    Differs {
        /// The URL.
        url: String,
    },
}

impl Digest {
    /// Hashes the bytes of `file`.
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

/// Downloads `http://AT/NAME` on `host` into `into`, and compares the file with the expected hash.
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
    // An earlier download may have left a file that would be compared instead.
    match fs::remove_file(into) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(run(e)),
        _ => {}
    }
    let mut command = command(&url);
    command
        .args(["--write-out", "%{json}", "--output"])
        .arg(into);
    let mut said = Vec::new();
    // The output fits into a pipe, and so do error messages. Reading one after the other therefore
    // cannot block.
    drain(host, command, &url, |part| said.extend_from_slice(part))?;
    if Digest::of(into).map_err(run)? != expected {
        return Err(FetchError::Differs { url });
    }
    serde_json::from_slice(&said).map_err(|e| run(e.into()))
}

/// Like [`fetch`], but without a file: the bytes are hashed as they arrive.
///
/// # Errors
/// [`FetchError`].
pub fn time(
    host: &Host,
    at: SocketAddr,
    name: &str,
    expected: Digest,
) -> Result<Times, FetchError> {
    let url = format!("http://{at}/{name}");
    let mut command = command(&url);
    // The times go to standard error, because the bytes go to standard output.
    command.args(["--write-out", "%{stderr}%{json}", "--output", "-"]);
    let mut hash = Sha256::new();
    let said = drain(host, command, &url, |part| hash.update(part))?;
    if Digest(hash.finalize().into()) != expected {
        return Err(FetchError::Differs { url });
    }
    serde_json::from_str(&said).map_err(|e| FetchError::Run {
        url,
        source: e.into(),
    })
}

/// Like [`fetch`], but discards the bytes. Calls `arrived` with the length of each part as it
/// arrives, and compares the hash of all bytes with the expected one.
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

/// Returns the curl command of every download.
fn command(url: &str) -> Command {
    let mut command = program::CURL.command();
    // -q must come first: a user's .curlrc must not change the measurement.
    command
        .args(["-q", "--silent", "--show-error", "--fail", "--noproxy", "*"])
        .args(["--max-time", &LIMIT.as_secs().to_string()])
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs curl on `host`, and calls `part` with each part of its output as it arrives. Returns its
/// standard error.
fn drain(
    host: &Host,
    command: Command,
    url: &str,
    mut part: impl FnMut(&[u8]),
) -> Result<String, FetchError> {
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
        true => Ok(complaint),
        false => Err(FetchError::Failed {
            url: url.to_owned(),
            said: complaint.trim().to_owned(),
        }),
    }
}
