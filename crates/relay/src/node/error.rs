//! Why a node does not start or does not accept another configuration.

use std::net::SocketAddr;

use super::early_syn_thread::ReaderError;
use super::mesh::MeshError;
use crate::access::TooManyRules;
use crate::intercept::InterceptError;
use crate::net::addr::{Destination, names_of};
use crate::net::names::ResolveError;
use crate::session_log::SessionLogError;

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The limit of open descriptors is too low.
    #[error(
        "{sessions} sessions need {needed} file descriptors and this process may open {limit}: raise \
         the limit (`ulimit -n {needed}`, or LimitNOFILE={needed} in the systemd unit) or lower \
         relay.max_sessions, relay.max_pipes or relay.workers"
    )]
    TooFewDescriptors {
        /// Sessions asked for, or 1.
        sessions: u64,
        /// The descriptors that these take.
        needed: u64,
        /// The hard limit.
        limit: u64,
    },
    /// Paths to other relays cannot be measured.
    #[error(
        "cannot measure paths to other relays: {0}; raise the limit of open files, or of threads"
    )]
    Rows(std::io::Error),
    /// The windows of connections to other relays cannot be found.
    #[error(
        "cannot measure connections to other relays: {0}; raise the limit of threads, or set relay.mesh.window"
    )]
    Windows(std::io::Error),
    /// A destination has no address.
    #[error("{0}; check the name and /etc/resolv.conf")]
    Resolve(#[from] ResolveError),
    /// An address cannot be listened on.
    #[error("cannot listen on {addr}: {reason}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The reason and what to do.
        reason: ListenProblem,
    },
    /// The congestion control is unknown or not permitted.
    #[error(
        "cannot use the congestion control `{name}`: {source}; \
         `sysctl net.ipv4.tcp_available_congestion_control` shows what is loaded, `modprobe tcp_{name}` \
         may load it"
    )]
    Congestion {
        /// Its name.
        name: String,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The kernel refuses the mark, the device or the source address of upstream legs.
    #[error("cannot use {section}.{what}: {source}{hint}")]
    Path {
        /// The section of the configuration.
        section: &'static str,
        /// The setting.
        what: &'static str,
        /// The kernel's error.
        source: std::io::Error,
        /// What to do.
        hint: String,
    },
    /// A forward leads back to itself.
    #[error(
        "forwarding to {destination} leads back to this relay's own listener for it: every connection \
         would go round until max_sessions are open"
    )]
    Loop {
        /// Its destinations that do.
        destination: String,
    },
    /// The node cannot be part of the mesh.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// A list has more rules than can be checked for every session.
    #[error("relay.mesh or relay.forward, allow or deny: {0}")]
    Rules(#[from] TooManyRules),
    /// Sessions cannot be logged.
    #[error("relay.session_log: {0}")]
    SessionLog(#[from] SessionLogError),
    /// Connections cannot be intercepted.
    #[error(transparent)]
    Intercept(#[from] InterceptError),
    /// SYNs cannot be watched.
    #[error("{0}; remove `early_syn` to run without it")]
    EarlySyn(#[from] ReaderError),
    /// This machine's addresses cannot be read.
    #[error("cannot read this machine's own addresses: {0}")]
    Addresses(std::io::Error),
    /// The kernel has no resources for a worker.
    #[error("cannot set up worker {worker}: {source}")]
    Worker {
        /// Its number.
        worker: usize,
        /// The kernel's error.
        source: std::io::Error,
    },
}

// === impl StartError ===

impl StartError {
    /// Returns the error of a forward whose destinations `to` lead back to it. Names the first ones.
    pub(super) fn looped(to: &[Destination]) -> Self {
        let destination = match to {
            [first @ .., _, _] if first.len() >= 3 => {
                format!("{} and {} more", names_of(&first[..3]), to.len() - 3)
            }
            all => names_of(all),
        };
        Self::Loop { destination }
    }
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenProblem {
    /// Another program uses the port.
    #[error("the port is in use; `ss -ltnp 'sport = :{0}'` shows which process has it")]
    InUse(u16),
    /// A socket with this port was passed, for another address.
    #[error(
        "a socket at {0} has been passed by the service manager, or by the relay before this one; write that \
         address in `listen`, or this one in ListenStream= of the socket unit"
    )]
    PassedAs(SocketAddr),
    /// It is not an address of this machine.
    #[error("it is not an address of this machine; `ip address` shows those")]
    NotHere,
    /// The port is privileged.
    #[error("ports below net.ipv4.ip_unprivileged_port_start need root or CAP_NET_BIND_SERVICE")]
    Privileged,
    /// Another error of the kernel.
    #[error("{0}")]
    Other(std::io::Error),
}
