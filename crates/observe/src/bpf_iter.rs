//! What of connections only the kernel's own structures tell, by programs in BPF: two iterators (Linux 5.11), and three at
//! tracepoints, which count what happens between looks (Linux 5.19).
//!
//! sock_diag does not say whether an application has set its buffers, which is what keeps the kernel from sizing
//! them, nor what else bounds a window, nor how long round trips were that no look fell upon.

mod record;

use std::io::{self, Read as _};
use std::os::fd::AsFd as _;

use libbpf_rs::{Iter, Link, MapCore as _, MapFlags, MapHandle, Object, ObjectBuilder, ProgramMut};

pub(crate) use self::record::Found;
use self::record::parse;

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/connection.bpf.o"));

/// Read at a time; the kernel fills no more than a few pages.
const ROOM: usize = 64 << 10;

/// Bytes of `struct look` of connection.bpf.c, and where it has those that have no place, and whether something has happened.
const LOOK: usize = 32;
const MISSED: std::ops::Range<usize> = 16..24;
const STIRRED: std::ops::Range<usize> = 28..32;

const WALK: &str = "taut_connections";
const PLACES: &str = "taut_places";
const PLACES_MAP: &str = "places";
/// Connections that may be counted in a look, each with some 700 bytes of the kernel's memory. Who has a place keeps it.
const COUNTED: u64 = 100_000;

/// The programs; the walk is ready to be run in any network namespace.
pub(crate) struct TcpIter {
    walk: Link,
    events: Option<Counting>,
    _object: Object,
}

/// The programs at tracepoints, for as long as this is there.
struct Counting {
    /// The number of this look, how many connections may be counted in it, and of which namespace.
    look: MapHandle,
    /// Lists those that have a place.
    places: Link,
    _links: Vec<Link>,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IterError {
    /// The kernel does not take it, or not from this caller.
    #[error("{0}")]
    Load(#[from] libbpf_rs::Error),
    /// What was built is not what was meant.
    #[error("the BPF program has no part of the name it should have")]
    Part,
}

/// Lists connections.
pub(crate) struct List(Iter);

// === impl TcpIter ===

impl TcpIter {
    /// Loads the iterator, and what counts events if that is wanted and the kernel can do it.
    ///
    /// # Errors
    /// [`IterError`]: without CAP_BPF and CAP_PERFMON, or a kernel without BTF.
    pub(crate) fn load(events: bool) -> Result<Self, IterError> {
        // What libbpf has to say beside the error would be said on the terminal.
        libbpf_rs::set_print(None);
        if !events {
            return Self::load_with(false);
        }
        Self::load_with(true).or_else(|error| {
            tracing::debug!(%error, "events between looks are not counted");
            Self::load_with(false)
        })
    }

    fn load_with(events: bool) -> Result<Self, IterError> {
        let mut object = ObjectBuilder::default()
            .name("taut_observe")
            .and_then(|builder| builder.open_memory(PROGRAM))?;
        for mut program in object.progs_mut() {
            let is_walk = program.name() == WALK;
            program.set_autoload(is_walk || events);
        }
        let object = object.load()?;
        let walk = program(&object, WALK)?.attach()?;
        let events = events.then(|| Counting::begin(&object)).transpose()?;
        Ok(Self {
            walk,
            events,
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
        let look = &self.events.as_ref()?.look;
        let value = look.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()??;
        let is_none = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        is_none(value.get(MISSED)?).then(|| Some(!is_none(value.get(STIRRED)?)))?
    }

    /// For the network namespace that the calling thread is in.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn list(&self) -> Result<List, IterError> {
        Ok(List(Iter::new(&self.walk)?))
    }

    /// For all network namespaces: the connections that have a place, which are those that a walk has found since
    /// looks began, and those that were opened since. Nothing where events are not counted.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn places(&self) -> Option<Result<List, IterError>> {
        let events = self.events.as_ref()?;
        Some(Iter::new(&events.places).map(List).map_err(Into::into))
    }
}

#[cfg(test)]
impl TcpIter {
    /// Takes its place away from a socket, as if there had been no room for it.
    pub(crate) fn take_place(&self, socket: &impl std::os::fd::AsRawFd) {
        let mut maps = self._object.maps();
        let places = maps.find(|map| map.name() == PLACES_MAP).unwrap();
        places.delete(&socket.as_raw_fd().to_ne_bytes()).unwrap();
    }
}

/// The program of this name.
fn program<'a>(object: &'a Object, name: &str) -> Result<ProgramMut<'a>, IterError> {
    let found = object.progs_mut().find(|program| program.name() == name);
    found.ok_or(IterError::Part)
}

impl std::fmt::Debug for TcpIter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpIter").finish_non_exhaustive()
    }
}

// === impl Counting ===

impl Counting {
    fn begin(object: &Object) -> Result<Self, IterError> {
        let programs = object.progs_mut();
        let links = programs
            .filter(|program| program.name() != WALK && program.name() != PLACES)
            .map(|program| program.attach());
        let look = object
            .maps()
            .find(|map| map.name().to_string_lossy().ends_with(".bss"))
            .ok_or(IterError::Part)?;
        let places = object
            .maps()
            .find(|map| map.name() == PLACES_MAP)
            .ok_or(IterError::Part)?;
        Ok(Self {
            places: program(object, PLACES)?.attach_iter(places.as_fd())?,
            _links: links.collect::<Result<_, _>>()?,
            look: MapHandle::try_from(&look)?,
        })
    }

    /// Reads and writes `struct look` of connection.bpf.c.
    fn begin_look(&self, look: u64, netns: Option<u32>) -> Result<u64, libbpf_rs::Error> {
        let key = 0u32.to_ne_bytes();
        let before = self.look.lookup(&key, MapFlags::ANY)?;
        let missed = before
            .as_deref()
            .and_then(|look| look.get(MISSED)?.first_chunk());
        let mut value = [0; LOOK];
        value[..8].copy_from_slice(&look.to_ne_bytes());
        value[8..16].copy_from_slice(&COUNTED.to_ne_bytes());
        value[24..28].copy_from_slice(&netns.unwrap_or_default().to_ne_bytes());
        self.look.update(&key, &value, MapFlags::ANY)?;
        Ok(missed.map_or(0, |missed| u64::from_ne_bytes(*missed)))
    }
}

// === impl List ===

impl List {
    /// Hands over each connection.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn read(mut self, mut each: impl FnMut(Found)) -> io::Result<()> {
        let mut room = vec![0; ROOM];
        // A record may be cut at the end of a read.
        let mut rest = 0;
        loop {
            let filled = match self.0.read(&mut room[rest..]) {
                Ok(0) => return Ok(()),
                Ok(filled) => rest + filled,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            let mut records = &room[..filled];
            while let Some((found, after)) = parse(records)? {
                each(found);
                records = after;
            }
            rest = records.len();
            room.copy_within(filled - rest..filled, 0);
        }
    }
}

#[cfg(test)]
mod tests;
