//! One look at all connections: a list of each network namespace.
//!
//! A namespace is held for as long as its list takes, and not between looks, so that one that its
//! owner gives up goes away.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use taut_sys::Errno;
use taut_sys::netns::{NetnsError, NetnsId};
use taut_sys::sock_diag::{Connection, Listed, SockDiag};

use crate::inside::{Iterator, List};
use crate::namespaces::{self, Namespace};

/// A namespace that came since is found this much later at most.
pub const FIND_EVERY: Duration = Duration::from_secs(5);

/// Where to look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All namespaces that may be entered.
    Machine,
    /// The caller's own.
    Own,
    /// The one of this name in `/run/netns`.
    Named(String),
}

/// Looks, again and again.
#[derive(Debug)]
pub struct Looker {
    scope: Scope,
    namespaces: Vec<Namespace>,
    left_out: usize,
    hidden: usize,
    found: Option<Instant>,
    /// Nothing without BPF.
    inside: Option<Iterator>,
    events: bool,
}

/// What a look came to, beside connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Namespaces that were looked into.
    pub namespaces: usize,
    /// Namespaces that the caller may not enter.
    pub denied: usize,
    /// Namespaces beyond [`namespaces::NAMESPACES`].
    pub left_out: usize,
    /// Processes of which the caller may not know in which namespace they are.
    pub hidden: usize,
    /// Connections that were handed over.
    pub connections: usize,
    /// Messages of the kernel that this code does not know, and lists that it calls not whole.
    pub incomplete: usize,
    /// What only BPF tells is missing.
    pub without_bpf: bool,
    /// Events between looks are to be counted, and cannot be.
    pub without_events: bool,
}

/// Why nothing can be seen.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The namespace.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The list.
    #[error(
        "the kernel does not list the connections of namespace {namespace}: {source} (it needs CONFIG_INET_DIAG)"
    )]
    List {
        /// Of which.
        namespace: String,
        /// What it says.
        source: Errno,
    },
}

// === impl Looker ===

impl Looker {
    /// Has not looked yet. `events`: what happens between looks is to be counted, which costs some time at each segment.
    pub fn new(scope: Scope, events: bool) -> Self {
        Self {
            scope,
            namespaces: Vec::new(),
            left_out: 0,
            hidden: 0,
            found: None,
            inside: load(events),
            events,
        }
    }

    /// Hands over every connection, with its namespace and when that was looked into.
    ///
    /// # Errors
    /// [`LookError`]: the caller's own namespace, or the one that was named, cannot be looked into.
    /// Another's only is counted.
    pub fn look(
        &mut self,
        mut each: impl FnMut(&Namespace, Instant, Connection),
    ) -> Result<Looked, LookError> {
        self.find()?;
        if let Some(inside) = &self.inside {
            inside.begin();
        }
        let mut looked = Looked::default();
        let mut done = HashSet::new();
        if self.pass(&mut done, &mut looked, &mut each)? && self.scope == Scope::Machine {
            // The process by which one was known has ended; others may be in it.
            self.found = None;
            self.find()?;
            self.pass(&mut done, &mut looked, &mut each)?;
        }
        looked.left_out = self.left_out;
        looked.hidden = self.hidden;
        looked.without_bpf = self.inside.is_none();
        let counts_events = self.inside.as_ref().is_some_and(Iterator::counts_events);
        looked.without_events = self.events && !counts_events;
        Ok(looked)
    }

    /// Where it looked last, and will look next.
    pub(crate) fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// Looks into all namespaces but those that are done. `true`: one was not there any more.
    fn pass(
        &self,
        done: &mut HashSet<NetnsId>,
        looked: &mut Looked,
        each: &mut impl FnMut(&Namespace, Instant, Connection),
    ) -> Result<bool, LookError> {
        let mut lost = false;
        for (index, namespace) in self.namespaces.iter().enumerate() {
            if done.contains(&namespace.id) {
                continue;
            }
            let open = || (SockDiag::open(), self.inside.as_ref().map(Iterator::list));
            let (socket, list) = match namespace.run(open) {
                Ok(Some(opened)) => opened,
                Ok(None) => {
                    lost = true;
                    continue;
                }
                Err(e) if index == 0 => return Err(e.into()),
                Err(_) => {
                    done.insert(namespace.id);
                    looked.denied += 1;
                    continue;
                }
            };
            done.insert(namespace.id);
            let at = Instant::now();
            let inside = list.map(|list| list.map(List::read));
            let mut inside = match inside {
                None => HashMap::new(),
                Some(Ok(Ok(inside))) => inside,
                Some(_) => {
                    looked.incomplete += 1;
                    HashMap::new()
                }
            };
            let listed = socket.and_then(|mut socket| {
                socket.connections(|mut connection| {
                    connection.inside = inside.remove(&connection.cookie);
                    each(namespace, at, connection);
                })
            });
            match listed {
                Ok(listed) => looked.add(listed),
                Err(source) if index == 0 => {
                    return Err(LookError::List {
                        namespace: namespace.name.clone(),
                        source,
                    });
                }
                Err(_) => looked.incomplete += 1,
            }
        }
        Ok(lost)
    }

    fn find(&mut self) -> Result<(), NetnsError> {
        match &self.scope {
            Scope::Machine if self.found.is_some_and(|found| found.elapsed() < FIND_EVERY) => {}
            Scope::Machine => {
                let found = namespaces::all()?;
                self.namespaces = found.namespaces;
                self.left_out = found.left_out;
                self.hidden = found.hidden;
                self.found = Some(Instant::now());
            }
            Scope::Own if !self.namespaces.is_empty() => {}
            Scope::Own => self.namespaces = vec![namespaces::own()?],
            // Another may have taken the name.
            Scope::Named(name) => self.namespaces = vec![namespaces::named(name)?],
        }
        Ok(())
    }
}

/// What BPF tells is more, and not needed.
fn load(events: bool) -> Option<Iterator> {
    match Iterator::load(events) {
        Ok(inside) => Some(inside),
        Err(error) => {
            tracing::debug!(%error, "connections are looked at without BPF");
            None
        }
    }
}

// === impl Looked ===

impl Looked {
    fn add(&mut self, listed: Listed) {
        self.namespaces += 1;
        self.connections += listed.connections;
        self.incomplete += listed.unknown + usize::from(listed.interrupted);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn what_is_connected_is_seen_in_its_own_namespace() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let local = client.local_addr().unwrap();
        for scope in [Scope::Own, Scope::Machine] {
            let mut seen = Vec::new();
            let mut looker = Looker::new(scope, true);
            let looked = looker
                .look(|n, _, c| seen.push((n.name.clone(), c.local)))
                .unwrap();
            assert_eq!(looked.connections, seen.len());
            assert!(seen.contains(&("-".to_owned(), local)));
        }
    }

    #[test]
    fn a_name_that_nobody_has_is_an_error_that_says_so() {
        let mut looker = Looker::new(Scope::Named("taut-no-such".into()), false);
        let error = looker.look(|_, _, _| {}).unwrap_err().to_string();
        assert!(error.contains("taut-no-such"), "{error}");
    }
}
