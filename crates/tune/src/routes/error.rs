//! Why routes were not changed.

use std::borrow::Cow;

use taut_observe::namespaces::in_words;
use taut_sys::Errno;
use taut_sys::netns::NetnsError;
use taut_sys::privileges::{self, Capability};

use super::message::{Obstacle, RouteKey};
use crate::journal::JournalWriteError;

/// Why a route, or all routes of a namespace, were left unchanged.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// The routes of a namespace could not be listed.
    #[error("routes of {}: {error}{}", in_words(netns), list_hint(*error))]
    List {
        /// The namespace's name.
        netns: String,
        /// The kernel's error.
        error: Errno,
    },
    /// The kernel refused to replace a route.
    #[error("route {route}: {error}{}", replace_hint(*error))]
    Replace {
        /// The route.
        route: RouteKey,
        /// The kernel's error.
        error: Errno,
    },
    /// The route must not be replaced.
    #[error("route {route}: {obstacle}")]
    LeftAlone {
        /// The route.
        route: RouteKey,
        /// Why it must not be replaced.
        obstacle: Obstacle,
    },
    /// The kernel acknowledged the request but kept the route or created another one.
    #[error("route {route}: the kernel acknowledged the change but did not make it")]
    NotApplied {
        /// The route.
        route: RouteKey,
    },
    /// Every list may have missed routes, because other routes were added or removed meanwhile.
    #[error(
        "routes of {}: they change faster than they can be listed",
        in_words(netns)
    )]
    Unsteady {
        /// The namespace's name.
        netns: String,
    },
    /// More routes match than the limit for one namespace.
    #[error(
        "routes of {}: more than {limit} of them match: none is changed",
        in_words(netns)
    )]
    TooMany {
        /// The namespace's name.
        netns: String,
        /// The maximum number of routes.
        limit: usize,
    },
    /// A route of another program was replaced by accident and may not have been restored exactly.
    #[error(
        "route {route}: another program changed it at the same moment, and its change may not be restored ({why}); check `ip route`"
    )]
    NotRestored {
        /// The route.
        route: RouteKey,
        /// What may be missing.
        why: String,
    },
    /// The change stays in the journal, because none of its namespace's routes could be handled.
    #[error("route {route}: {why}")]
    NotUndone {
        /// The route.
        route: RouteKey,
        /// The namespace's error.
        why: String,
    },
    /// The namespace was not found, but not all namespaces could be entered.
    #[error("not all namespaces could be entered; the one with cookie {cookie} may be among them")]
    NamespaceUnknown {
        /// The namespace's cookie.
        cookie: u64,
    },
    /// The namespace could not be entered.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// The change could not be written to the journal.
    #[error(transparent)]
    Journal(#[from] JournalWriteError),
}

fn replace_hint(error: Errno) -> Cow<'static, str> {
    match error {
        Errno::PERM => format!(" ({})", privileges::advice(&[Capability::NetAdmin])).into(),
        Errno::NETDOWN | Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::INVAL | Errno::NODEV => {
            " (its device or next hop is down or unreachable; the kernel refuses such a route, which stays as it is)".into()
        }
        Errno::BUSY => " (another program keeps changing it)".into(),
        _ => "".into(),
    }
}

fn list_hint(error: Errno) -> &'static str {
    match error {
        Errno::TIMEDOUT => " (listing them takes too long)",
        _ => "",
    }
}
