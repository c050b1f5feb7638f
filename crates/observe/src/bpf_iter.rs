//! Reads kernel data that sock_diag does not report, with BPF programs: two iterators (Linux 5.11),
//! four programs at tracepoints that count events between scans (Linux 5.19), and one that notes
//! the process that accepts a connection.
//!
//! sock_diag reports neither whether an application set a buffer size, which disables autotuning,
//! nor what else bounds a window, nor the round trips between two scans.

mod ends;
mod figures;
mod record;

use std::io::{self, Read as _};
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use libbpf_rs::{Iter, Link, MapHandle};
use taut_bpf::{Error, Map, Object, Open};

use self::ends::Clock;
#[cfg(test)]
pub(crate) use self::ends::EndFlags;
pub(crate) use self::ends::{EndRecord, Ends, OwnerRecord};
pub(crate) use self::figures::Figures;
use self::figures::{PLACES, Pages};
pub(crate) use self::record::{Details, Found};
use self::record::{details_in, parse};

taut_bpf::bindings!(mod raw from "connection");

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/connection.bpf.o"));

/// The size of a read, in bytes; the kernel fills at most a few pages.
const ROOM: usize = 64 << 10;

const WALK: &str = "taut_connections";
const SLOTS: &str = "taut_slots";
const SLOTS_MAP: &str = "slots";
const FIGURES_MAP: &str = "figures";
const TO_WALK_MAP: &str = "to_walk";
/// The sections of the programs' variables.
const SCAN: &str = ".bss";
const COUNTED_SECTION: &str = ".data.counted";
/// The programs that note the process that accepts a connection, the best first. One of them is
/// loaded: the first that the kernel accepts.
const ACCEPT: [&str; 3] = [
    "taut_accept_of_two",
    "taut_accept_of_four",
    "taut_accept_by_read",
];
/// The maximum number of connections with a slot. A slot takes some 800 bytes of kernel memory, and
/// a connection keeps its slot until it ends.
const COUNTED: i64 = 100_000;

/// The data that a caller wants in addition to that of the iterators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Events between scans, which cost some time for each segment.
    pub events: bool,
    /// The ends of connections, with their owners. Requires `events`.
    pub ends: bool,
}

impl Wants {
    /// Events alone.
    pub const EVENTS: Self = Self {
        events: true,
        ends: false,
    };
    /// Events and ends.
    pub const ALL: Self = Self {
        events: true,
        ends: true,
    };
}

/// The loaded programs. The walk can run in any network namespace.
pub(crate) struct TcpIter {
    walk: Link,
    events: Option<Counting>,
    /// Why events are not counted although they are wanted.
    problem: Option<String>,
    object: Object,
}

/// The attached programs at tracepoints. Dropping this value detaches them.
struct Counting {
    /// The variable that each scan sets, and the one that only the programs write.
    scan: Map<u32, raw::ConnectionScan>,
    counted: Map<u32, raw::ConnectionCounted>,
    /// The count of connections without a slot when the last scan began.
    missed_before: AtomicU64,
    /// Whether the programs report the ends of connections.
    writes_ends: bool,
    /// Inode of the pid namespace in which the programs report processes.
    pidns: u32,
    /// Lists the connections that have a slot, and the figures that it writes. `None`: the kernel refuses the
    /// iterator.
    slots: Option<Link>,
    figures: Arc<MapHandle>,
    /// Inodes of namespaces to walk: those with handshakes that a peer has begun, and without `slots` those in which
    /// a connection was opened. And how many were not noted when they were read last.
    to_walk: Map<u32, u8>,
    unnoted_before: AtomicU64,
    /// The length of a tick, in which figures count.
    clock: Mutex<Clock>,
    _links: Vec<Link>,
}

/// The connections that a program lists.
pub(crate) struct List {
    iter: Iter,
    buffer: Vec<u8>,
    /// The part of the buffer that is not parsed yet.
    unread: Range<usize>,
    /// The record of the last connection.
    last: Range<usize>,
    /// The place of its figures; 0 without any.
    place: usize,
    pages: Option<Pages>,
    has_ended: bool,
}

// === impl TcpIter ===

impl TcpIter {
    /// Loads the programs for what the caller wants, as far as the kernel supports them.
    ///
    /// # Errors
    /// [`Error`]: without CAP_BPF and CAP_PERFMON, or a kernel without BTF.
    pub(crate) fn load(wants: Wants) -> Result<Self, Error> {
        if !wants.events {
            return Self::load_with(wants, None);
        }
        let mut problem = None;
        for (accept, slots) in ACCEPT.iter().flat_map(|one| [(one, true), (one, false)]) {
            match Self::load_with(wants, Some((accept, slots))) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => {
                    tracing::debug!(%error, accept, slots, "events between scans are not counted this way");
                    problem = Some(error.to_string());
                }
            }
        }
        let loaded = Self::load_with(wants, None)?;
        Ok(Self { problem, ..loaded })
    }

    /// Returns why events are not counted although they are wanted.
    pub(crate) fn without_events(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Loads the walk, and with `counts` also the programs that count events: the one of this name notes the process
    /// that accepts a connection, and if the kernel allows it, one lists the connections with a slot.
    fn load_with(wants: Wants, counts: Option<(&str, bool)>) -> Result<Self, Error> {
        let mut open = Open::new("taut_observe", PROGRAM)?;
        for mut program in open.programs() {
            let name = program.name().to_owned();
            let is_accept = ACCEPT.iter().any(|one| name == *one);
            let loads = match counts {
                Some((accept, slots)) => (!is_accept || name == accept) && (slots || name != SLOTS),
                None => name == WALK,
            };
            program.set_autoload(loads);
        }
        if counts.is_none_or(|(_, slots)| !slots) {
            let set = open.map(FIGURES_MAP)?.set_max_entries(1);
            set.map_err(Error::during("size a BPF map"))?;
        }
        let wants_ends = wants.ends && counts.is_some();
        ends::reserve(&mut open, wants_ends)?;
        let object = open.load()?;
        let walk = object.program(WALK)?.attach();
        Ok(Self {
            walk: walk.map_err(Error::during("attach a BPF iterator"))?,
            events: counts
                .map(|(accept, slots)| Counting::begin(&object, accept, slots, wants_ends))
                .transpose()?,
            problem: None,
            object,
        })
    }

    /// Whether events are counted.
    pub(crate) fn counts_events(&self) -> bool {
        self.events.is_some()
    }

    /// Opens the ring buffer of ended connections. `None` if the programs do not report ends.
    pub(crate) fn ends(&self) -> Option<Result<Ends, Error>> {
        let events = self.events.as_ref()?;
        events.writes_ends.then(|| Ends::open(&self.object))
    }

    /// Tells the programs that scan `number` begins, either of all namespaces or of the one with
    /// inode `netns`. Returns the number of connections without a slot; `None` if events are not
    /// counted.
    pub(crate) fn begin(&self, number: u64, netns: Option<u32>) -> Option<u64> {
        let counted = self
            .events
            .as_ref()
            .map(|events| events.begin_scan(number, netns));
        match counted? {
            Ok(missed) => Some(missed),
            Err(error) => {
                tracing::debug!(%error, "cannot tell the BPF programs that a scan begins");
                None
            }
        }
    }

    /// Returns whether a segment arrived, or a connection was opened, since the scan began. `None`
    /// if events are not counted or a connection has no slot.
    pub(crate) fn has_activity(&self) -> Option<bool> {
        let events = self.events.as_ref()?;
        let scan = events.scan.get(&0).ok()??;
        let missed = events.counted.get(&0).ok()??.missed;
        (missed == events.missed_before.load(Relaxed)).then_some(scan.has_activity != 0)
    }

    /// Whether connections with a slot can be [listed](Self::slots) without a walk.
    pub(crate) fn lists_slots(&self) -> bool {
        { self.events.as_ref() }.is_some_and(|events| events.slots.is_some())
    }

    /// Returns the inodes of the namespaces in which, since the last call, a handshake that a peer has begun has lasted
    /// for a second or more; or, if slots cannot be listed, a connection was opened. `None` if events are not counted,
    /// or there were too many.
    pub(crate) fn take_to_walk(&self) -> Option<Vec<u32>> {
        let events = self.events.as_ref()?;
        let noted: Vec<_> = events.to_walk.keys().collect();
        for netns in &noted {
            events.to_walk.remove(netns).ok()?;
        }
        let unnoted = events.counted.get(&0).ok()??.namespaces_missed;
        (unnoted == events.unnoted_before.swap(unnoted, Relaxed)).then_some(noted)
    }

    /// Lists the connections of the calling thread's network namespace.
    ///
    /// # Errors
    /// The program cannot run.
    pub(crate) fn list(&self) -> Result<List, Error> {
        list(&self.walk, None)
    }

    /// Lists the connections with a slot in all network namespaces. A connection has a slot if a
    /// walk has found it, or if it was opened since. `None` if events are not counted, or the kernel
    /// refuses the iterator.
    ///
    /// # Errors
    /// The program cannot run.
    pub(crate) fn slots(&self) -> Option<Result<List, Error>> {
        let events = self.events.as_ref()?;
        let slots = events.slots.as_ref()?;
        let rate = events.clock.lock().ok()?.rate;
        let pages = rate.map(|rate| Pages::new(Arc::clone(&events.figures), rate));
        Some(list(slots, pages))
    }
}

#[cfg(test)]
impl TcpIter {
    /// Loads the programs that count events, without the iterator over slots.
    pub(crate) fn load_without_slots() -> Self {
        let mut ways = ACCEPT.iter();
        let loaded = ways.find_map(|one| Self::load_with(Wants::EVENTS, Some((one, false))).ok());
        loaded.unwrap()
    }

    /// Returns how many more connections may get a slot.
    pub(crate) fn room(&self) -> i64 {
        let scan = &self.events.as_ref().unwrap().scan;
        scan.get(&0).unwrap().unwrap().room
    }

    /// Removes the slot of a socket, as if there had been no room for it.
    pub(crate) fn take_slot(&self, socket: &impl std::os::fd::AsRawFd) {
        let slots = self.object.handle(SLOTS_MAP).unwrap();
        libbpf_rs::MapCore::delete(&slots, &socket.as_raw_fd().to_ne_bytes()).unwrap();
    }
}

fn list(iterator: &Link, pages: Option<Pages>) -> Result<List, Error> {
    let iterator = Iter::new(iterator).map(|iter| List::new(iter, pages));
    iterator.map_err(Error::during("run a BPF iterator"))
}

impl std::fmt::Debug for TcpIter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpIter").finish_non_exhaustive()
    }
}

// === impl Counting ===

impl Counting {
    fn begin(object: &Object, accept: &str, slots: bool, wants_ends: bool) -> Result<Self, Error> {
        let attached = || Error::during("attach a BPF program");
        let mut links = Vec::new();
        for program in object.programs() {
            let name = program.name();
            let is_accept = ACCEPT.iter().any(|one| name == *one);
            if name != WALK && name != SLOTS && (!is_accept || name == accept) {
                links.push(program.attach().map_err(attached())?);
            }
        }
        let attach_slots = || -> Result<Link, Error> {
            let map = object.handle(SLOTS_MAP)?;
            let link = object.program(SLOTS)?.attach_iter(map.as_fd());
            link.map_err(attached())
        };
        Ok(Self {
            scan: object.map(SCAN)?,
            counted: object.map(COUNTED_SECTION)?,
            missed_before: AtomicU64::default(),
            writes_ends: wants_ends,
            pidns: ends::pid_namespace(),
            slots: slots.then(attach_slots).transpose()?,
            figures: Arc::new(object.handle(FIGURES_MAP)?),
            to_walk: object.map(TO_WALK_MAP)?,
            unnoted_before: AtomicU64::default(),
            clock: Mutex::default(),
            _links: links,
        })
    }

    /// Starts a scan. Returns the number of connections without a slot in the previous scan.
    fn begin_scan(&self, number: u64, netns: Option<u32>) -> Result<u64, Error> {
        let counted = self.counted.get(&0)?.unwrap_or_default();
        // Figures count in ticks.
        let has_clock = self.clock.lock().is_ok_and(|mut clock| {
            clock.read(counted.at, counted.ticks);
            clock.rate.is_some()
        });
        let missed = counted.missed;
        let scan = raw::ConnectionScan {
            number,
            room: COUNTED,
            netns: netns.unwrap_or_default(),
            writes_ends: self.writes_ends.into(),
            pidns: self.pidns,
            places: if has_clock { PLACES } else { 0 },
            notes_opened: self.slots.is_none().into(),
            ..raw::ConnectionScan::default()
        };
        self.scan.insert(&0, &scan)?;
        Ok(missed - self.missed_before.swap(missed, Relaxed))
    }
}

// === impl List ===

impl List {
    fn new(iter: Iter, pages: Option<Pages>) -> Self {
        Self {
            iter,
            buffer: vec![0; ROOM],
            unread: 0..0,
            last: 0..0,
            place: 0,
            pages,
            has_ended: false,
        }
    }

    /// Returns the details of the connection that was returned last, and its figures if the program
    /// has written them; `None` for an unchanged connection that was listed by its slot.
    ///
    /// # Errors
    /// The figures cannot be read.
    pub(crate) fn details(&mut self) -> io::Result<Option<(Details, Option<Figures>)>> {
        match (self.place, &mut self.pages) {
            (1.., Some(pages)) => {
                let (details, figures) = pages.get(self.place)?;
                Ok(Some((details, Some(figures))))
            }
            _ => Ok(details_in(&self.buffer[self.last.clone()]).map(|details| (details, None))),
        }
    }

    /// Reads more data after the incomplete record that the last read left. Returns the number of
    /// bytes read.
    fn fill(&mut self) -> io::Result<usize> {
        self.buffer.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        if let Some(pages) = &mut self.pages {
            pages.expire();
        }
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

/// Yields each connection. Ends after an error.
impl Iterator for List {
    type Item = io::Result<Found>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.has_ended {
            let filled = match parse(&self.buffer[self.unread.clone()]) {
                Ok(Some(record)) => {
                    self.last = self.unread.start..self.unread.start + record.size;
                    self.unread.start = self.last.end;
                    self.place = record.place;
                    return Some(Ok(record.found));
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
