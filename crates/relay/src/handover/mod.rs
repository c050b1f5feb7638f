//! A new process takes the listening sockets of the old one, and no connection attempt is lost.
//!
//! A second bind to the same port would not do: each SO_REUSEPORT socket has queues of its own, and
//! closing the old one resets what is in them. So the sockets themselves are passed, over a Unix
//! socket (SCM_RIGHTS), and both processes have them for a while:
//!
//! ```text
//! new                                   old
//!  | Take {version}                      |  is it root, or the same user? (SO_PEERCRED)
//!  |------------------------------------>|
//!  |            Offer {version, sockets} |
//!  |<------------------------------------|
//!  |   Sockets {addrs} + descriptors     |  in batches of at most 253
//!  |<------------------------------------|
//!  | starts, accepts                     |  goes on as before
//!  | Serving                             |
//!  |------------------------------------>|  stops to accept; drains
//!  |                            Draining |
//!  |<------------------------------------|
//! ```
//!
//! Whatever goes wrong before `Serving` (the new process dies, is too slow, says something else)
//! leaves the old one as it was, and ready for the next that asks.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | a message | [`MAX_MESSAGE`] | the conversation ends |
//! | sockets | [`MAX_SOCKETS`] | the old process offers none of them; the new one takes none |
//! | waiting for one message | [`STEP`] | the conversation ends |
//! | from the last socket to `Serving` | [`START`] | the conversation ends, the old process goes on |
//! | conversations | one; 8 wait | the new process's `STEP` runs out |
//!
//! The old process has to take its listeners out of every epoll set before it closes them: closing
//! a descriptor does not, while another process has the same socket.

mod giver;
mod message;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use giver::{Events, Giver};
use message::{Message, Taking};
use taut_sys::Errno;
use taut_sys::scm_rights::{self, SeqpacketSocket};
use taut_sys::socket::listening_addr;

/// Bytes of a message: 253 addresses of 57 characters, and some.
pub const MAX_MESSAGE: usize = 64 << 10;
/// Sockets of one handover.
pub const MAX_SOCKETS: usize = 4096;
/// The longest that one message is waited for.
pub const STEP: Duration = Duration::from_secs(5);
/// The longest that the old process waits until the new one serves.
pub const START: Duration = Duration::from_secs(120);

/// Why sockets were not handed over.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// A call on the Unix socket failed.
    #[error("handover at {path}: cannot {what}: {source}", path = path.display())]
    Call {
        /// Where.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: Errno,
    },
    /// The other process is another user's.
    #[error(
        "handover at {path}: the other process is of user {user}, neither root nor the user of \
         this one; choose a path that only this user can write to", path = path.display()
    )]
    Foreign {
        /// Where.
        path: PathBuf,
        /// Its effective user.
        user: u32,
    },
    /// The other process said what it should not have said.
    #[error("handover at {path}: {reason}", path = path.display())]
    Protocol {
        /// Where.
        path: PathBuf,
        /// What it was.
        reason: String,
    },
}

/// A listening socket that was handed over.
#[derive(Debug)]
pub struct Passed {
    /// What it listens on.
    pub addr: SocketAddr,
    /// The socket, for [`taut_sys::socket::Listener::from_fd`].
    pub fd: OwnedFd,
}

/// The sockets of the old process, which still serves them.
///
/// Dropped, it leaves everything to the old process.
#[derive(Debug)]
#[must_use = "the old process goes on until it is told that this one serves"]
pub struct Taken {
    talk: Talk,
    state: Taking,
    sockets: Vec<Passed>,
}

/// Asks the process that listens at `path` for its sockets; `None` when there is none. To be called
/// as the user that the node runs as: after privileges were dropped, or as root.
///
/// # Errors
/// [`HandoverError`]. The old process then goes on as before.
pub fn take(path: &Path) -> Result<Option<Taken>, HandoverError> {
    let call = |what, source| HandoverError::Call {
        path: path.to_owned(),
        what,
        source,
    };
    let connected = SeqpacketSocket::connect(path, STEP).map_err(|e| call("connect", e))?;
    let Some(channel) = connected else {
        return Ok(None);
    };
    let talk = Talk {
        channel,
        path: path.to_owned(),
    };
    talk.check_user()?;
    talk.send(&Message::take(), &[])?;
    let mut state = Taking::default();
    let mut sockets = Vec::new();
    while !state.has_all() {
        let (message, descriptors) = talk.receive()?;
        let addrs = state
            .handle(message, descriptors.len())
            .map_err(|reason| talk.protocol(reason))?;
        for (fd, said) in descriptors.into_iter().zip(addrs) {
            let addr = listening_addr(&fd).map_err(|e| call("use a socket", e))?;
            if addr != said {
                return Err(talk.protocol(format!("the socket for {said} listens on {addr}")));
            }
            sockets.push(Passed { addr, fd });
        }
    }
    Ok(Some(Taken {
        talk,
        state,
        sockets,
    }))
}

// === impl Taken ===

impl Taken {
    /// The sockets. Those that are not wanted are just dropped: once the old process has closed
    /// them too, nobody listens there.
    pub fn take_sockets(&mut self) -> Vec<Passed> {
        std::mem::take(&mut self.sockets)
    }

    /// Tells the old process that this one accepts connections, so that it drains, and waits until
    /// it has heard.
    ///
    /// # Errors
    /// [`HandoverError`]: it cannot be told whether the old process drains. Should it live, both
    /// accept, and neither loses anything.
    pub fn serving(mut self) -> Result<(), HandoverError> {
        self.talk.send(&Message::Serving, &[])?;
        let (message, descriptors) = self.talk.receive()?;
        self.state
            .handle(message, descriptors.len())
            .map(|_| ())
            .map_err(|reason| self.talk.protocol(reason))
    }
}

/// A channel that speaks in messages.
#[derive(Debug)]
struct Talk {
    channel: SeqpacketSocket,
    path: PathBuf,
}

// === impl Talk ===

impl Talk {
    fn check_user(&self) -> Result<(), HandoverError> {
        let user = self
            .channel
            .peer_uid()
            .map_err(|e| self.call("ask who is there", e))?;
        if message::may_talk(user, scm_rights::effective_uid()) {
            return Ok(());
        }
        Err(HandoverError::Foreign {
            path: self.path.clone(),
            user,
        })
    }

    fn send(
        &self,
        message: &Message,
        descriptors: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<(), HandoverError> {
        self.channel
            .send(&message.encode(), descriptors)
            .map_err(|e| self.call("send", e))
    }

    fn receive(&self) -> Result<(Message, Vec<OwnedFd>), HandoverError> {
        let mut buffer = vec![0; MAX_MESSAGE];
        let (len, descriptors) = self
            .channel
            .receive(&mut buffer)
            .map_err(|e| self.call("receive", e))?;
        if len == 0 {
            return Err(self.protocol("the other process has hung up".to_owned()));
        }
        let message = Message::decode(&buffer[..len]).map_err(|e| self.protocol(e))?;
        Ok((message, descriptors))
    }

    fn call(&self, what: &'static str, source: Errno) -> HandoverError {
        HandoverError::Call {
            path: self.path.clone(),
            what,
            source,
        }
    }

    fn protocol(&self, reason: String) -> HandoverError {
        HandoverError::Protocol {
            path: self.path.clone(),
            reason,
        }
    }
}
