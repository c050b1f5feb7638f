//! Why etcd could not be used.

use std::io;
use std::path::{Path, PathBuf};

use taut_mesh::etcd::{Fault, ReplyError};

/// The reason why a server of etcd could not be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The name has no address.
    #[error("the name of the server cannot be looked up: {0}")]
    LookUp(io::Error),
    /// No connection was accepted.
    #[error("no connection: {0}")]
    Unreachable(io::Error),
    /// A connection or call took too long.
    #[error("no answer within relay.mesh.etcd.timeout; check the server, or raise it")]
    TimedOut,
    /// The connection ended.
    #[error("the connection has ended: {0}")]
    Closed(String),
    /// The certificate of either side was refused.
    #[error("TLS: {0}")]
    Tls(String),
    /// This relay may not do that.
    #[error("{0}; check the user, its password and its role")]
    Denied(Fault),
    /// etcd reports an error.
    #[error("{0}")]
    Etcd(Fault),
    /// The answer is not understood.
    #[error("{0}")]
    Reply(ReplyError),
    /// A file for the connection cannot be used.
    #[error("{path}: {problem}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The problem, and what to do.
        problem: String,
    },
}

// === impl Failure ===

impl Failure {
    /// All labels, in an order that does not change.
    pub(super) const LABELS: [&'static str; 8] = [
        "look_up",
        "unreachable",
        "timed_out",
        "closed",
        "tls",
        "denied",
        "etcd",
        "files",
    ];

    /// Returns the place of the label in [`Self::LABELS`].
    pub(super) fn index(&self) -> usize {
        match self {
            Self::LookUp(_) => 0,
            Self::Unreachable(_) => 1,
            Self::TimedOut => 2,
            Self::Closed(_) => 3,
            Self::Tls(_) => 4,
            Self::Denied(_) => 5,
            Self::Etcd(_) | Self::Reply(_) => 6,
            Self::File { .. } => 7,
        }
    }

    /// Returns whether another token may help.
    pub(super) fn wants_token(&self) -> bool {
        matches!(self, Self::Denied(fault) if fault.wants_token())
    }

    /// Returns whether further calls need a new connection: this one has ended, cannot be trusted to match
    /// answers to calls, or has an old token.
    pub(super) fn ends_connection(&self) -> bool {
        match self {
            Self::Denied(_) => self.wants_token(),
            Self::Etcd(_) => false,
            Self::LookUp(_) | Self::Unreachable(_) | Self::TimedOut | Self::Closed(_) => true,
            Self::Tls(_) | Self::Reply(_) | Self::File { .. } => true,
        }
    }

    pub(super) fn file(path: &Path, problem: impl ToString) -> Self {
        Self::File {
            path: path.to_owned(),
            problem: problem.to_string(),
        }
    }

    /// Returns the failure of a TLS handshake.
    pub(super) fn tls(error: io::Error) -> Self {
        match error.get_ref().is_some_and(|e| e.is::<rustls::Error>()) {
            true => Self::Tls(error.to_string()),
            false => Self::Closed(error.to_string()),
        }
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        match fault.is_denial() {
            true => Self::Denied(fault),
            false => Self::Etcd(fault),
        }
    }
}

impl From<ReplyError> for Failure {
    fn from(error: ReplyError) -> Self {
        match error {
            ReplyError::Fault(fault) => fault.into(),
            other => Self::Reply(other),
        }
    }
}

impl From<hyper::Error> for Failure {
    fn from(error: hyper::Error) -> Self {
        use std::error::Error;
        // A server that refuses this relay's certificate says so after the handshake.
        let cause = error.source().and_then(|e| e.downcast_ref::<io::Error>());
        match cause.and_then(io::Error::get_ref) {
            Some(cause) if cause.is::<rustls::Error>() => Self::Tls(cause.to_string()),
            _ => Self::Closed(error.to_string()),
        }
    }
}
