//! What of connections only the kernel's own structures tell, by programs in BPF: two iterators (Linux 5.11), and three at
//! tracepoints, which count what happens between looks (Linux 5.19).
//!
//! sock_diag does not say whether an application has set its buffers, which is what keeps the kernel from sizing
//! them, nor what else bounds a window, nor how long round trips were that no look fell upon.

mod record;

use std::io::{self, Read as _};
use std::ops::Range;
use std::os::fd::AsFd as _;

use libbpf_rs::{Iter, Link};
use taut_bpf::{Error, Map, Object, Open};

pub(crate) use self::record::Found;
use self::record::parse;

taut_bpf::bindings!(mod raw from "connection");

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/connection.bpf.o"));

/// Read at a time; the kernel fills no more than a few pages.
const ROOM: usize = 64 << 10;

const WALK: &str = "taut_connections";
const PLACES: &str = "taut_places";
const PLACES_MAP: &str = "places";
/// Connections that may be counted in a look, each with some 700 bytes of the kernel's memory. Who has a place keeps it.
const COUNTED: i64 = 100_000;

/// The programs; the walk is ready to be run in any network namespace.
pub(crate) struct TcpIter {
    walk: Link,
    events: Option<Counting>,
    _object: Object,
}

/// The programs at tracepoints, for as long as this is there.
struct Counting {
    /// The number of this look, how many connections may be counted in it, and of which namespace.
    look: Map<u32, raw::ConnectionLook>,
    /// Lists those that have a place.
    places: Link,
    _links: Vec<Link>,
}

/// The connections that a program lists.
pub(crate) struct List {
    iter: Iter,
    buffer: Vec<u8>,
    /// The part of the buffer that was read from the kernel and not parsed yet.
    unread: Range<usize>,
    has_ended: bool,
}

// === impl TcpIter ===

impl TcpIter {
    /// Loads the iterator, and what counts events if that is wanted and the kernel can do it.
    ///
    /// # Errors
    /// [`Error`]: without CAP_BPF and CAP_PERFMON, or a kernel without BTF.
    pub(crate) fn load(events: bool) -> Result<Self, Error> {
        if !events {
            return Self::load_with(false);
        }
        Self::load_with(true).or_else(|error| {
            tracing::debug!(%error, "events between looks are not counted");
            Self::load_with(false)
        })
    }

    fn load_with(events: bool) -> Result<Self, Error> {
        let mut open = Open::new("taut_observe", PROGRAM)?;
        for mut program in open.programs() {
            let is_walk = program.name() == WALK;
            program.set_autoload(is_walk || events);
        }
        let object = open.load()?;
        let walk = object.program(WALK)?.attach();
        Ok(Self {
            walk: walk.map_err(Error::during("attach a BPF iterator"))?,
            events: events.then(|| Counting::begin(&object)).transpose()?,
            _object: object,
        })
    }

    /// Whether events are counted.
    pub(crate) fn counts_events(&self) -> bool {
        self.events.is_some()
    }

    /// The look of this number begins, at all namespaces or at the one of this inode.
    ///
    /// How many connections are known to have no place; nothing where events are not counted, or cannot be now.
    pub(crate) fn begin(&self, look: u64, netns: Option<u32>) -> Option<u64> {
        let counted = self
            .events
            .as_ref()
            .map(|events| events.begin_look(look, netns));
        match counted? {
            Ok(missed) => Some(missed),
            Err(error) => {
                tracing::debug!(%error, "the programs are not told that a look begins");
                None
            }
        }
    }

    /// Whether a segment has come since the look began, of a connection that has a place, or one was opened. Nothing where events
    /// are not counted, and where some have no place.
    pub(crate) fn has_stirred(&self) -> Option<bool> {
        let look = self.events.as_ref()?.look.get(&0).ok()??;
        (look.missed == 0).then_some(look.stirred != 0)
    }

    /// For the network namespace that the calling thread is in.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn list(&self) -> Result<List, Error> {
        list(&self.walk)
    }

    /// For all network namespaces: the connections that have a place, which are those that a walk has found since
    /// looks began, and those that were opened since. Nothing where events are not counted.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn places(&self) -> Option<Result<List, Error>> {
        let events = self.events.as_ref()?;
        Some(list(&events.places))
    }
}

#[cfg(test)]
impl TcpIter {
    /// Takes its place away from a socket, as if there had been no room for it.
    pub(crate) fn take_place(&self, socket: &impl std::os::fd::AsRawFd) {
        let places = self._object.handle(PLACES_MAP).unwrap();
        libbpf_rs::MapCore::delete(&places, &socket.as_raw_fd().to_ne_bytes()).unwrap();
    }
}

fn list(iterator: &Link) -> Result<List, Error> {
    let iterator = Iter::new(iterator).map(List::new);
    iterator.map_err(Error::during("run a BPF iterator"))
}

impl std::fmt::Debug for TcpIter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpIter").finish_non_exhaustive()
    }
}

// === impl Counting ===

impl Counting {
    fn begin(object: &Object) -> Result<Self, Error> {
        let attached = || Error::during("attach a BPF program");
        let mut links = Vec::new();
        for program in object.programs() {
            if program.name() != WALK && program.name() != PLACES {
                links.push(program.attach().map_err(attached())?);
            }
        }
        let map = object.handle(PLACES_MAP)?;
        let places = object.program(PLACES)?.attach_iter(map.as_fd());
        Ok(Self {
            look: object.map(".bss")?,
            places: places.map_err(attached())?,
            _links: links,
        })
    }

    /// Returns how many connections had no place in the look before.
    fn begin_look(&self, look: u64, netns: Option<u32>) -> Result<u64, Error> {
        let before = self.look.get(&0)?.unwrap_or_default();
        let look = raw::ConnectionLook {
            number: look,
            room: COUNTED,
            netns: netns.unwrap_or_default(),
            ..raw::ConnectionLook::default()
        };
        self.look.insert(&0, &look)?;
        Ok(before.missed)
    }
}

// === impl List ===

impl List {
    fn new(iter: Iter) -> Self {
        Self {
            iter,
            buffer: vec![0; ROOM],
            unread: 0..0,
            has_ended: false,
        }
    }

    /// Reads more behind what is left of a record that the last read cut. Returns how many bytes were read.
    fn fill(&mut self) -> io::Result<usize> {
        self.buffer.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        loop {
            match self.iter.read(&mut self.buffer[self.unread.end..]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                read => {
                    let read = read?;
                    self.unread.end += read;
                    return Ok(read);
                }
            }
        }
    }
}

/// Yields each connection; after an error it ends.
impl Iterator for List {
    type Item = io::Result<Found>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.has_ended {
            let records = &self.buffer[self.unread.clone()];
            let filled = match parse(records) {
                Ok(Some((found, after))) => {
                    self.unread.start = self.unread.end - after.len();
                    return Some(Ok(found));
                }
                Ok(None) => self.fill(),
                Err(e) => Err(e),
            };
            self.has_ended = !matches!(filled, Ok(1..));
            if let Err(e) = filled {
                return Some(Err(e));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
