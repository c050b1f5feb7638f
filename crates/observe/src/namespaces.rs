//! The network namespaces of the machine.

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::sync::Arc;

use taut_sys::netns::{NETNS_DIR, Netns, NetnsError, NetnsId};

use crate::sanitize;

/// Namespaces that are looked into; more are counted.
pub const NAMESPACES: usize = 4096;

/// A network namespace, by a way to it that held a moment ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Which.
    pub id: NetnsId,
    /// What it is called: its name in `/run/netns`, fit for a terminal, else a process that is in it.
    pub name: Arc<str>,
    way: Way,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    Own,
    Named(String),
    Process(u32),
}

/// What there is, and what was left out.
#[derive(Debug, Default)]
pub struct Found {
    /// Each once, the caller's own first.
    pub namespaces: Vec<Namespace>,
    /// Beyond [`NAMESPACES`].
    pub left_out: usize,
    /// Processes of which the caller may not know where they are.
    pub hidden: usize,
}

/// All namespaces that have a name or a process. One that has neither any more, but sockets that
/// something holds, is not found.
///
/// # Errors
/// The caller's own cannot be opened.
pub fn all() -> Result<Found, NetnsError> {
    let own = own()?;
    let mut known = HashSet::from([own.id]);
    let mut found = Found {
        namespaces: vec![own],
        left_out: 0,
        hidden: 0,
    };
    let mut hidden = 0;
    let mut add = |id: NetnsId, name: String, way: Way| {
        if !known.insert(id) {
            return;
        }
        match found.namespaces.len() < NAMESPACES {
            true => found.namespaces.push(Namespace {
                id,
                name: name.into(),
                way,
            }),
            false => found.left_out += 1,
        }
    };
    // A name tells more than a process.
    for entry in fs::read_dir(NETNS_DIR).into_iter().flatten().flatten() {
        // A name that is no text is found by its processes.
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        // One that has gone since.
        if let Ok(netns) = Netns::open(&name) {
            add(
                netns.id(),
                sanitize::text(name.as_bytes()),
                Way::Named(name),
            );
        }
    }
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        match NetnsId::try_of_process(pid) {
            Ok(id) => add(id, format!("pid:{pid}"), Way::Process(pid)),
            Err(e) if e.kind() == ErrorKind::PermissionDenied => hidden += 1,
            // It has ended.
            Err(_) => {}
        }
    }
    found.hidden = hidden;
    Ok(found)
}

/// The caller's own.
///
/// # Errors
/// It cannot be opened.
pub fn own() -> Result<Namespace, NetnsError> {
    Ok(Namespace {
        id: Netns::current()?.id(),
        name: "-".into(),
        way: Way::Own,
    })
}

/// The one of this name in `/run/netns`.
///
/// # Errors
/// There is none, or it cannot be opened.
pub fn named(name: &str) -> Result<Namespace, NetnsError> {
    Ok(Namespace {
        id: Netns::open(name)?.id(),
        name: sanitize::text(name.as_bytes()).into(),
        way: Way::Named(name.into()),
    })
}

// === impl Namespace ===

impl Namespace {
    /// Whether it is the caller's own.
    pub fn is_own(&self) -> bool {
        self.way == Way::Own
    }

    /// Whether it has a name in `/run/netns`, and is not the caller's own.
    pub fn is_named(&self) -> bool {
        matches!(self.way, Way::Named(_))
    }

    /// Runs `job` in it; `None` when it is gone, or another has taken its place.
    ///
    /// # Errors
    /// It may not be entered.
    pub fn run<T: Send>(&self, job: impl FnOnce() -> T + Send) -> Result<Option<T>, NetnsError> {
        let netns = match &self.way {
            Way::Own => return Ok(Some(job())),
            Way::Named(name) => Netns::open(name),
            Way::Process(pid) => Netns::of_process(*pid),
        };
        let ran = match netns {
            Ok(netns) if netns.id() == self.id => netns.run(job).map(Some),
            Ok(_) => return Ok(None),
            Err(e) => Err(e),
        };
        match ran {
            // A file in /run/netns that is no namespace any more can be opened, and not entered.
            Err(e) if e.is_gone() => Ok(None),
            ran => ran,
        }
    }
}
