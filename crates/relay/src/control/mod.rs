//! The control socket: an operator's commands to a running relay.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | operators at a time | [`ASKERS`] | further connections are closed |
//! | a request | [`REQUEST_MAX`] bytes, [`PATIENCE`] | the connection is closed, or the answer is an error |
//! | sessions in an answer | [`MAX_ROWS`] | the rest is only counted |
//! | the wait for a worker | [`PATIENCE`] | the answer lacks its sessions |

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use taut_sys::control_socket::{self, ControlError};

pub mod protocol;

use protocol::{Answer, Request};

/// The default path of the socket. Its directory may belong to the relay's user.
pub const PATH: &str = "/run/taut/relay/relay.sock";

/// The maximum number of operators at a time.
pub(crate) const ASKERS: usize = 8;

/// The maximum length of a request in bytes.
const REQUEST_MAX: u64 = 16 << 10;

/// The time that either side waits for a part of the other's message.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The time that an operator waits for an answer: a reload waits for the resolver.
const ANSWER: Duration = Duration::from_secs(120);

/// The maximum number of sessions in an answer.
pub const MAX_ROWS: usize = 10_000;

/// Carries out a request.
pub(crate) type Handler = Arc<dyn Fn(Request) -> Reply + Send + Sync>;

/// What a request leads to.
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    /// What is done once the operator has the answer, or cannot get it: it may end the process.
    pub(crate) then: Option<Box<dyn FnOnce() + Send>>,
}

/// The reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No relay listens.
    #[error(
        "no relay answers: {0}. If it has another control socket (relay.control), name it with --control"
    )]
    Absent(ControlError),
    /// This user may not connect, or what listens is not trusted.
    #[error(transparent)]
    Control(ControlError),
    /// The conversation failed.
    #[error("the relay does not answer: {0}")]
    Io(#[from] io::Error),
    /// The answer is not understood.
    #[error("the answer is not understood: {0}; is the relay of this version?")]
    Garbled(#[from] serde_json::Error),
    /// The relay refused the request.
    #[error("{0}")]
    Refused(String),
}

// === impl AskError ===

impl AskError {
    /// Returns whether a process listens at the path, but has not accepted connections for a second.
    pub fn has_timed_out(&self) -> bool {
        matches!(self, Self::Control(error) if error.has_timed_out())
    }
}

/// Sends a request to the relay at `path` and returns its answer.
///
/// # Errors
/// [`AskError`]; [`Answer::Error`] becomes [`AskError::Refused`].
pub fn ask(path: &Path, request: &Request) -> Result<Answer, AskError> {
    ask_within(path, request, ANSWER)
}

/// As [`ask`], where the answer comes within `patience`.
///
/// # Errors
/// As [`ask`].
pub fn ask_within(path: &Path, request: &Request, patience: Duration) -> Result<Answer, AskError> {
    let connected = control_socket::connect_to_owner(path);
    let mut stream = connected.map_err(|error| match error.is_absent() {
        true => AskError::Absent(error),
        false => AskError::Control(error),
    })?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let answer = control_socket::read_answer(stream, patience)?;
    match serde_json::from_str(&answer)? {
        Answer::Error(why) => Err(AskError::Refused(why)),
        answer => Ok(answer),
    }
}

/// Returns the process that listens at a relay's control socket.
///
/// # Errors
/// As [`ask`].
pub fn process_at(path: &Path) -> Result<u32, AskError> {
    let stream = control_socket::connect_to_owner(path).map_err(AskError::Control)?;
    let credentials = rustix::net::sockopt::socket_peercred(&stream);
    let pid = credentials.map_err(io::Error::from)?.pid;
    Ok(pid.as_raw_nonzero().get().cast_unsigned())
}

/// Starts the thread that answers at `listener`, until the process ends.
pub(crate) fn serve(listener: UnixListener, handle: Handler) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("relay-control".into());
    let answer = move |stream| {
        if let Err(error) = answer_one(stream, &handle) {
            tracing::debug!(%error, "an operator got no answer");
        }
    };
    thread
        .spawn(move || control_socket::answer_all(&listener, "relay-asker", ASKERS, answer))
        .map(drop)
}

fn answer_one(mut stream: UnixStream, handle: &Handler) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(REQUEST_MAX)).read_line(&mut line)?;
    let reply = match serde_json::from_str(&line) {
        Ok(request) => handle(request),
        Err(error) => Answer::Error(format!("the request is not understood: {error}")).into(),
    };
    let written = write(&mut stream, &reply.answer);
    if let Some(then) = reply.then {
        then();
    }
    written
}

fn write(stream: &mut UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_string(answer)?;
    line.push('\n');
    stream.write_all(line.as_bytes())
}

// === impl Reply ===

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self { answer, then: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_end_the_process_waits_until_the_operator_has_the_answer() {
        let (mut operator, ours) = UnixStream::pair().unwrap();
        operator.write_all(b"{\"do\":\"status\"}\n").unwrap();
        let seen = operator.try_clone().unwrap();
        let (say, said) = std::sync::mpsc::channel();
        let handle: Handler = Arc::new(move |_| {
            let (seen, say) = (seen.try_clone().unwrap(), say.clone());
            let then = move || {
                seen.set_nonblocking(true).unwrap();
                let mut answer = String::new();
                let read = BufReader::new(seen).read_line(&mut answer);
                say.send(read.map(|_| answer)).unwrap();
            };
            Reply {
                answer: Answer::Done { notes: Vec::new() },
                then: Some(Box::new(then)),
            }
        });
        answer_one(ours, &handle).unwrap();
        assert!(said.recv().unwrap().unwrap().ends_with("\n"));
    }
}
