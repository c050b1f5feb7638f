//! Finds and enters the network namespaces of the machine.

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::sync::Arc;

use taut_sys::netns::{NETNS_DIR, Netns, NetnsError, NetnsId};

use crate::owner::Process;
use crate::sanitize;

/// The maximum number of namespaces to observe; others are only counted.
pub const NAMESPACES: usize = 4096;

/// The name of the caller's own namespace.
pub const OWN: &str = "-";

/// The beginning of the name of one that is known by a process only; the pid follows.
const BY_PID: &str = "pid:";

/// A network namespace, with a path to it that was valid when it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its identity.
    pub id: NetnsId,
    /// Its name in `/run/netns`, safe for a terminal, or the pid of a process in it; [`OWN`] for the caller's own.
    pub name: Arc<str>,
    path: Path,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Path {
    Own,
    Named(String),
    Process(u32),
}

/// The namespaces that were found, and counts of those that were not.
#[derive(Debug, Default)]
pub struct Found {
    /// Each namespace once, the caller's own first.
    pub namespaces: Vec<Namespace>,
    /// Number of namespaces beyond [`NAMESPACES`].
    pub left_out: usize,
    /// Processes whose namespace the caller may not inspect.
    pub hidden: usize,
    /// The pid of the first of them.
    pub first_hidden: Option<u32>,
}

/// Finds all namespaces that have a name or a process. A namespace that only open sockets keep
/// alive is not found.
///
/// # Errors
/// The caller's own namespace cannot be opened.
pub fn all() -> Result<Found, NetnsError> {
    let own = own()?;
    let mut known = HashSet::from([own.id]);
    let mut found = Found {
        namespaces: vec![own],
        left_out: 0,
        hidden: 0,
        first_hidden: None,
    };
    let (mut hidden, mut first_hidden) = (0, None);
    let mut add = |id: NetnsId, name: String, path: Path| {
        if !known.insert(id) {
            return;
        }
        match found.namespaces.len() < NAMESPACES {
            true => found.namespaces.push(Namespace {
                id,
                name: name.into(),
                path,
            }),
            false => found.left_out += 1,
        }
    };
    // Named namespaces come first, because a name is more informative than a pid.
    for entry in fs::read_dir(NETNS_DIR).into_iter().flatten().flatten() {
        // A namespace whose name is not UTF-8 is found by its processes.
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        // The namespace may have been deleted since.
        if let Ok(netns) = Netns::open(&name) {
            add(
                netns.id(),
                sanitize::text(name.as_bytes()),
                Path::Named(name),
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
            Ok(id) => add(id, format!("{BY_PID}{pid}"), Path::Process(pid)),
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                hidden += 1;
                first_hidden.get_or_insert(pid);
            }
            // The process has ended.
            Err(_) => {}
        }
    }
    (found.hidden, found.first_hidden) = (hidden, first_hidden);
    Ok(found)
}

/// Returns the caller's own namespace.
///
/// # Errors
/// It cannot be opened.
pub fn own() -> Result<Namespace, NetnsError> {
    Ok(Namespace {
        id: Netns::current()?.id(),
        name: OWN.into(),
        path: Path::Own,
    })
}

/// Returns the namespace with this name in `/run/netns`.
///
/// # Errors
/// There is no such namespace, or it cannot be opened.
pub fn named(name: &str) -> Result<Namespace, NetnsError> {
    Ok(Namespace {
        id: Netns::open(name)?.id(),
        name: sanitize::text(name.as_bytes()).into(),
        path: Path::Named(name.into()),
    })
}

/// Returns how a sentence calls the namespace of this name: by its container or its process if it has no name.
pub fn in_words(name: &str) -> String {
    match (name, pid(name).and_then(Process::of_pid)) {
        (OWN, _) => "this namespace".to_owned(),
        (_, Some(process)) => by_process(&process),
        (named, None) => format!("namespace {named}"),
    }
}

/// Returns the pid in the name of a namespace that is known by a process only.
pub fn pid(name: &str) -> Option<u32> {
    name.strip_prefix(BY_PID)?.parse().ok()
}

fn by_process(process: &Process) -> String {
    match &process.container {
        Some(container) => format!("container {container}"),
        None => format!("the namespace of {}/{}", process.name, process.pid),
    }
}

// === impl Namespace ===

impl Namespace {
    /// Whether it is the caller's own.
    pub fn is_own(&self) -> bool {
        self.path == Path::Own
    }

    /// Whether it was found by a name in `/run/netns`, and is not the caller's own.
    pub fn is_named(&self) -> bool {
        matches!(self.path, Path::Named(_))
    }

    /// Runs `job` in the namespace. Returns `None` if the namespace is gone, or if another
    /// namespace has taken its name.
    ///
    /// # Errors
    /// The caller may not enter it.
    pub fn run<T: Send>(&self, job: impl FnOnce() -> T + Send) -> Result<Option<T>, NetnsError> {
        let netns = match &self.path {
            Path::Own => return Ok(Some(job())),
            Path::Named(name) => Netns::open(name),
            Path::Process(pid) => Netns::of_process(*pid),
        };
        let ran = match netns {
            Ok(netns) if netns.id() == self.id => netns.run(job).map(Some),
            Ok(_) => return Ok(None),
            Err(e) => Err(e),
        };
        match ran {
            // A file in /run/netns that is no longer a namespace can be opened but not entered.
            Err(e) if e.is_gone() => Ok(None),
            ran => ran,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_without_a_name_is_called_by_its_container_or_its_process() {
        let of = |container| by_process(&Process::for_tests(27377, "web", container));
        assert_eq!(of(Some("0123456789ab")), "container 0123456789ab");
        assert_eq!(of(None), "the namespace of web/27377");
        let this = in_words(&format!("pid:{}", std::process::id()));
        assert!(
            this.starts_with("the namespace of ") || this.starts_with("container "),
            "{this}"
        );
        assert_eq!(in_words("pid:none"), "namespace pid:none");
        assert_eq!(in_words("blue"), "namespace blue");
    }
}
