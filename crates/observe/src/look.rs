//! One look at all connections: a list of each network namespace.
//!
//! A namespace is held for as long as its list takes, and not between looks, so that one that its
//! owner gives up goes away.

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use taut_sys::Errno;
use taut_sys::netns::{NetnsError, NetnsId};
use taut_sys::sock_diag::{Connection, Inside, Listed, SockDiag, SocketId};

use crate::inside::{Iterator, List};
use crate::namespaces::{self, Namespace};

/// A namespace that came since is found this much later at most.
pub const FIND_EVERY: Duration = Duration::from_secs(5);

/// Every so many looks all connections are read, whether they seem to have changed or not: what the program in the kernel compares
/// need not be all that there is.
const ANEW_EVERY: u64 = 30;

/// Of all connections, one of so many may have changed for them to be asked for one by one: that costs some three times as much
/// each as a list does.
const FEW: usize = 4;

/// Who is told what a look finds.
pub trait Sees {
    /// A connection, with its namespace and when that was looked into.
    fn see(&mut self, namespace: &Namespace, at: Instant, connection: Connection);

    /// The connection of this cookie is as it was in the look of this number and in all since. `false`: it was not seen
    /// then, and is to be read.
    fn rests(&mut self, namespace: &Namespace, at: Instant, cookie: u64, since: NonZeroU64)
    -> bool;
}

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

    /// Tells of every connection. `number` is this look's, more than that of the one before.
    ///
    /// # Errors
    /// [`LookError`]: the caller's own namespace, or the one that was named, cannot be looked into.
    /// Another's only is counted.
    pub fn look(&mut self, number: NonZeroU64, to: &mut impl Sees) -> Result<Looked, LookError> {
        self.find()?;
        if let Some(inside) = &self.inside {
            inside.begin(number.get());
        }
        let anew = number.get().is_multiple_of(ANEW_EVERY);
        let mut looked = Looked::default();
        let mut done = HashSet::new();
        if self.pass(&mut done, &mut looked, anew, to)? && self.scope == Scope::Machine {
            // The process by which one was known has ended; others may be in it.
            self.found = None;
            self.find()?;
            self.pass(&mut done, &mut looked, anew, to)?;
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
        anew: bool,
        to: &mut impl Sees,
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
            let changed = match list
                .map(|list| list.map(|list| Changed::of(list, namespace, at, anew, to)))
            {
                None => None,
                Some(Ok(Ok(changed))) => Some(changed),
                Some(_) => {
                    looked.incomplete += 1;
                    None
                }
            };
            match socket.and_then(|socket| read(socket, namespace, at, changed, to)) {
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

/// Reads what has changed, or everything where that is not known or is much.
fn read(
    mut socket: SockDiag,
    namespace: &Namespace,
    at: Instant,
    changed: Option<Changed>,
    to: &mut impl Sees,
) -> Result<Listed, Errno> {
    let Some(Changed {
        wanted,
        mut inside,
        rest,
    }) = changed
    else {
        return socket.connections(|connection| to.see(namespace, at, connection));
    };
    let each = |mut connection: Connection| {
        connection.inside = inside.remove(&connection.cookie);
        to.see(namespace, at, connection);
    };
    if wanted.len() * FEW > rest {
        return socket.connections(each);
    }
    let mut listed = socket.each_of(&wanted, each)?;
    listed.connections += rest;
    Ok(listed)
}

/// What the program in the kernel found in a namespace.
#[derive(Default)]
struct Changed {
    /// These are to be read.
    wanted: Vec<SocketId>,
    /// By cookie: what it told of them.
    inside: FxHashMap<u64, Inside>,
    /// How many others there are.
    rest: usize,
}

// === impl Changed ===

impl Changed {
    fn of(
        list: List,
        namespace: &Namespace,
        at: Instant,
        anew: bool,
        to: &mut impl Sees,
    ) -> std::io::Result<Self> {
        let mut changed = Self::default();
        list.read(|found| {
            let cookie = found.id.cookie;
            let rests = |since| !anew && to.rests(namespace, at, cookie, since);
            if found.since.is_some_and(rests) {
                changed.rest += 1;
                return;
            }
            changed.wanted.push(found.id);
            if let Some(inside) = found.inside {
                changed.inside.insert(cookie, inside);
            }
        })?;
        Ok(changed)
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

    /// Connections that were seen, with their namespaces.
    #[derive(Default)]
    struct Seen(Vec<(String, Connection)>);

    impl Sees for Seen {
        fn see(&mut self, namespace: &Namespace, _: Instant, connection: Connection) {
            self.0.push((namespace.name.clone(), connection));
        }

        fn rests(&mut self, _: &Namespace, _: Instant, _: u64, _: NonZeroU64) -> bool {
            false
        }
    }

    #[test]
    fn what_is_connected_is_seen_in_its_own_namespace() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let local = client.local_addr().unwrap();
        for scope in [Scope::Own, Scope::Machine] {
            let mut seen = Seen::default();
            let mut looker = Looker::new(scope, true);
            let looked = looker.look(NonZeroU64::MIN, &mut seen).unwrap();
            assert_eq!(looked.connections, seen.0.len());
            let is_it = |(netns, c): &(String, Connection)| netns == "-" && c.local == local;
            let found = seen.0.iter().find(|found| is_it(found)).unwrap();
            assert!(found.1.inside.is_some());
        }
    }

    #[test]
    fn a_name_that_nobody_has_is_an_error_that_says_so() {
        let mut looker = Looker::new(Scope::Named("taut-no-such".into()), false);
        let error = looker
            .look(NonZeroU64::MIN, &mut Seen::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("taut-no-such"), "{error}");
    }
}
