//! Hands the listening sockets of an old process to a new one without losing a connection attempt, and with
//! them the lock of interception.
//!
//! A second bind to the same port is not enough: each SO_REUSEPORT socket has its own queues, and
//! closing the old socket resets the connections in them. So the sockets themselves are passed over
//! a Unix socket (SCM_RIGHTS), and both processes have them for a while:
//!
//! ```text
//! new                                   old
//!  | Take {version}                      |  is it root, or the same user? (SO_PEERCRED)
//!  |------------------------------------>|
//!  |            Offer {version, sockets} |
//!  |<------------------------------------|
//!  |   Interception + its lock           |  if the old process intercepts
//!  |<------------------------------------|
//!  |   Sockets {addrs} + descriptors     |  in batches of at most 253
//!  |<------------------------------------|
//!  | starts, accepts                     |  continues as before
//!  | Serving                             |
//!  |------------------------------------>|  stops to accept; drains
//!  |                            Draining |
//!  |<------------------------------------|
//! ```
//!
//! If anything fails before `Serving` (the new process dies, is too slow or breaks the protocol),
//! the old process continues and waits for the next new process.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | a message | [`MAX_MESSAGE`] | the conversation ends |
//! | sockets | [`MAX_SOCKETS`] | the old process offers none of them; the new one takes none |
//! | waiting for one message | [`STEP`] | the conversation ends |
//! | from the last socket to `Serving` | [`START`] | the conversation ends, the old process
//! continues |
//! | conversations | one; 8 wait | the new process's `STEP` expires |
//!
//! The old process must remove its listeners from every epoll set before it closes them: closing a
//! descriptor does not remove the socket while another process has it open.

mod giver;
mod message;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use giver::{Events, Giver, Successor};
use message::{Message, Taking};
use taut_sys::Errno;
use taut_sys::scm_rights::{self, SeqpacketSocket};
use taut_sys::socket::listening_addr;

/// The maximum size of a message in bytes: 253 addresses of 57 characters, and a margin.
pub const MAX_MESSAGE: usize = 64 << 10;
/// The maximum number of sockets in one handover.
pub const MAX_SOCKETS: usize = 4096;
/// The time that each process waits for a message.
pub const STEP: Duration = Duration::from_secs(5);
/// The time that the old process waits for the new one to serve.
pub const START: Duration = Duration::from_secs(120);

/// The reason why sockets were not handed over.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// A call on the Unix socket failed.
    #[error("handover at {path}: cannot {what}: {source}", path = path.display())]
    Call {
        /// The path.
        path: PathBuf,
        /// The action.
        what: &'static str,
        /// The system's error.
        source: Errno,
    },
    /// The other process belongs to another user.
    #[error(
        "handover at {path}: the other process is of user {user}, neither root nor the user of \
         this one; choose a path that only this user can write to", path = path.display()
    )]
    Foreign {
        /// The path.
        path: PathBuf,
        /// The effective user of the other process.
        user: u32,
    },
    /// The other process broke the protocol.
    #[error("handover at {path}: {reason}", path = path.display())]
    Protocol {
        /// The path.
        path: PathBuf,
        /// The violation.
        reason: String,
    },
}

/// A listening socket that was handed over.
#[derive(Debug)]
pub struct Passed {
    /// The address that it listens on.
    pub addr: SocketAddr,
    /// The socket, for [`taut_sys::socket::Listener::from_fd`].
    pub fd: OwnedFd,
}

/// What a node takes over from the process that it replaces, or from the service manager.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Listening sockets.
    pub sockets: Vec<Passed>,
    /// The lock of interception, which the other process has, too.
    pub interception: Option<OwnedFd>,
}

/// The sockets of the old process, which still accepts on them.
///
/// If this is dropped, the old process keeps them.
#[derive(Debug)]
#[must_use = "the old process continues until it is told that this one serves"]
pub struct Taken {
    talk: Talk,
    state: Taking,
    inherited: Inherited,
}

/// Requests the sockets of the process that listens at `path`. Returns `None` if no process
/// listens. Call this as the user that the node runs as, after dropping privileges, or as root.
///
/// # Errors
/// [`HandoverError`]; the old process continues then.
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
    let mut inherited = Inherited::default();
    while !state.has_all() {
        let (message, mut descriptors) = talk.receive()?;
        let is_lock = message == Message::Interception;
        let addrs = state
            .handle(message, descriptors.len())
            .map_err(|reason| talk.protocol(reason))?;
        if is_lock {
            inherited.interception = descriptors.pop();
        }
        for (fd, said) in descriptors.into_iter().zip(addrs) {
            let addr = listening_addr(&fd).map_err(|e| call("use a socket", e))?;
            if addr != said {
                return Err(talk.protocol(format!("the socket for {said} listens on {addr}")));
            }
            inherited.sockets.push(Passed { addr, fd });
        }
    }
    Ok(Some(Taken {
        talk,
        state,
        inherited,
    }))
}

// === impl Taken ===

impl Taken {
    /// Takes the sockets, and the lock of interception if the old process intercepts. (One of the first release
    /// does not pass it on.) Unwanted sockets can be dropped; their ports close when the old process has
    /// closed them too.
    pub fn take_inherited(&mut self) -> Inherited {
        std::mem::take(&mut self.inherited)
    }

    /// Reports to the old process that this one accepts connections, so that the old one drains,
    /// and waits for the answer. As long as the result is kept, the old one knows that this one lives.
    ///
    /// # Errors
    /// [`HandoverError`]: it is unknown whether the old process drains. If it lives, both
    /// accept, and neither loses a connection.
    pub fn serving(mut self) -> Result<Life, HandoverError> {
        self.talk.send(&Message::Serving, &[])?;
        let (message, descriptors) = self.talk.receive()?;
        match self.state.handle(message, descriptors.len()) {
            Ok(_) => Ok(Life(self.talk)),
            Err(reason) => Err(self.talk.protocol(reason)),
        }
    }
}

/// A sign of life for the process that this one has replaced.
#[derive(Debug)]
pub struct Life(#[expect(dead_code, reason = "the other end sees it close")] Talk);

/// A connection that carries messages.
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
            .map_err(|e| self.call("read the credentials of the other process", e))?;
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
            return Err(self.protocol("the other process closed the connection".to_owned()));
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
