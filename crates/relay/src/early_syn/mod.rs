//! Early SYN (pied-piper 3.2, improvement 1): the relay dials the upstream leg while the client's
//! own handshake is still under way.
//!
//! [`EarlySyn`] sees the SYNs: a BPF program at the ingress of the machine's devices writes an
//! event for each SYN to a listener of the relay. Any SYN may be forged, so [`Limiter`] of crate `mesh`
//! decides which SYNs may make the relay dial. Neither opens a connection. `docs/design/early-syn.md`
//! describes the data path, the limits and the worst that an attacker can do.

mod cookies;
mod devices;
#[cfg(test)]
mod filter_tests;
mod pending;
#[cfg(test)]
mod program_tests;
mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::{MapHandle, RingBuffer};
use nix::net::if_::if_nametoindex;
use taut_bpf::{CounterMap, Error, Map, Object, Open};

use crate::intercept::{Key, Rule, Taking, key_of, rules_of};
pub use cookies::{read_syncookies_sent, syncookies_sent};
pub use devices::{Device, Devices};
pub(crate) use pending::PendingTable;
pub use taut_mesh::early_syn::{Admission, Counts, FourTuple, Limiter, Limits, Rate, SynEvent};
use taut_sys::bpf::tc::{AttachPoint, Attached};
use taut_sys::privileges::{self, Capability};
pub use wire::{Exit, Exits};

/// The program, compiled by `build.rs`.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/early_syn.bpf.o"));

/// The maximum number of events that one [`EarlySyn::take`] takes.
pub const TAKE_MAX: usize = 1024;

/// The maximum number of watched listeners (`WATCHED_MAX` of the program).
pub const WATCHED_MAX: usize = 256;

/// The priority of the clsact filter at a device, for kernels without tcx.
const FILTER_PRIORITY: u32 = 50_773;

/// The connections whose SYNs are reported.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// Listeners, each with the number that reports carry. An unspecified address matches every
    /// address of its family on this machine.
    pub listeners: Vec<(SocketAddr, u32)>,
    /// The connections of every transparent forward, in order, as for interception, each with its
    /// number; `None`: not reported.
    pub intercepted: Vec<(Taking, Option<u32>)>,
}

/// The program, attached to the machine's devices. Dropping it detaches the program.
///
/// May be moved to the thread that reads it. Belongs to the network namespace of the thread that
/// created it.
pub struct EarlySyn {
    // Declared before the object, so that the ring is dropped before the map that it reads.
    ring: RingBuffer<'static>,
    // The ring's own descriptor is pollable; with one ring, libbpf's epoll instance adds nothing.
    readable: MapHandle,
    // The ring's callback puts events here. Only `take` uses it.
    taken: Arc<Mutex<Vec<SynEvent>>>,
    hooks: Vec<(Device, Attached)>,
    devices: Devices,
    intercepted: Intercepted,
    exits: CounterMap<Exit>,
    object: Object,
}

/// The rules of transparent forwards in the program's table.
struct Intercepted {
    takings: Vec<Taking>,
    numbers: Vec<Option<u32>>,
    rules: BTreeMap<Rule, usize>,
    table: Map<Key, u32>,
}

/// The reason why SYNs cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum EarlySynError {
    /// The kernel does not accept the program.
    #[error("early SYN: {0}{hint}. `taut doctor` shows what this machine can do", hint = load_hint(.0))]
    Load(#[from] Error),
    /// There are more listeners than the program can watch.
    #[error("early SYN: cannot watch {0} listeners; the limit is {WATCHED_MAX}")]
    TooManyListeners(usize),
    /// A named device is missing.
    #[error("early SYN: there is no network device `{0}`; `ip link` lists them")]
    NoSuchDevice(String),
    /// There is no device to watch.
    #[error(
        "early SYN: no network device except loopback is up; name one in `early_syn_devices`, or bring one up"
    )]
    NoDevice,
    /// The devices cannot be listed.
    #[error("early SYN: cannot list the network devices: {0}")]
    List(#[source] std::io::Error),
    /// The program cannot be attached to a device.
    #[error(
        "early SYN: cannot attach to {device}: {source}{hint}",
        hint = privileges::hint(.source, &[Capability::NetAdmin, Capability::Bpf])
    )]
    Attach {
        /// The device's name.
        device: String,
        /// The kernel's error.
        #[source]
        source: std::io::Error,
    },
}

fn load_hint(source: &Error) -> String {
    let needed = [Capability::Bpf, Capability::NetAdmin, Capability::Perfmon];
    privileges::program_hint(
        source.kind() == libbpf_rs::ErrorKind::PermissionDenied,
        &needed,
        "the BPF program needs Linux 5.12 or newer",
    )
}

// === impl EarlySyn ===

impl EarlySyn {
    /// Attaches to `devices` and watches for the SYNs of `watch`. At most `events_per_second` SYNs are reported ([`Limits::events_per_second`]); the rest are counted.
    ///
    /// # Errors
    /// If the program cannot be loaded or attached; nothing stays attached then.
    pub fn attach(
        devices: Devices,
        watch: &Watch,
        events_per_second: u32,
    ) -> Result<Self, EarlySynError> {
        let mut early_syn = Self::load(devices, watch, events_per_second)?;
        early_syn.refresh()?;
        if early_syn.hooks.is_empty() {
            return Err(EarlySynError::NoDevice);
        }
        Ok(early_syn)
    }

    /// Loads the program, ready to be attached.
    fn load(
        devices: Devices,
        watch: &Watch,
        events_per_second: u32,
    ) -> Result<Self, EarlySynError> {
        let listeners = &watch.listeners;
        if listeners.len() > WATCHED_MAX {
            return Err(EarlySynError::TooManyListeners(listeners.len()));
        }
        let mut open = Open::new("taut_early_syn", PROGRAM)?;
        open.set_constant(".rodata.config", &events_per_second)?;
        let object = open.load()?;
        let watched: Map<wire::raw::EarlySynWatch, u32> = object.map("watched")?;
        for (addr, listener) in listeners {
            watched.insert(&wire::watch_key(*addr), listener)?;
        }
        let taken = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&taken);
        let ring = object.ring("ring", move |record| {
            if let Some(event) = wire::event(record) {
                let mut events = into.lock().unwrap_or_else(PoisonError::into_inner);
                events.push(event);
            }
        })?;
        let readable = object.handle("ring")?;
        Ok(Self {
            ring,
            readable,
            taken,
            hooks: Vec::new(),
            devices,
            intercepted: Intercepted::new(watch, &object)?,
            exits: object.counters("exits")?,
            object,
        })
    }

    /// Lists the devices again: attaches to new devices, forgets those that are gone.
    ///
    /// # Errors
    /// As [`EarlySyn::attach`]; attached devices stay attached.
    pub fn refresh(&mut self) -> Result<(), EarlySynError> {
        let wanted = self.devices.find()?;
        self.intercepted.refresh()?;
        self.hooks.retain(|(device, _)| wanted.contains(device));
        for device in wanted {
            if self.hooks.iter().any(|(known, _)| *known == device) {
                continue;
            }
            let program = self.object.program("early_syn")?;
            let (point, priority) = (AttachPoint::Ingress, FILTER_PRIORITY);
            match Attached::attach(program.as_fd(), device.ifindex, point, priority) {
                Ok(hook) => self.hooks.push((device, hook)),
                Err(source) => {
                    return Err(EarlySynError::Attach {
                        device: device.name,
                        source,
                    });
                }
            }
        }
        Ok(())
    }

    /// Returns the devices that are watched.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.hooks.iter().map(|(device, _)| device)
    }

    /// Returns a descriptor that is readable while there are events to take.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }

    /// Adds up to [`TAKE_MAX`] new events to `events` and returns their number.
    pub fn take(&mut self, events: &mut Vec<SynEvent>) -> usize {
        // The only possible error is the callback's, and the callback returns none.
        let _ = self.ring.consume_raw_n(TAKE_MAX);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.len();
        events.append(&mut taken);
        count
    }

    /// Returns the number of packets by exit.
    ///
    /// # Errors
    /// None in ordinary use; the kernel's error otherwise.
    pub fn exits(&self) -> Result<Exits, EarlySynError> {
        Ok(self.exits.read()?)
    }
}

// === impl Intercepted ===

impl Intercepted {
    fn new(watch: &Watch, object: &Object) -> Result<Self, Error> {
        let (takings, numbers) = watch.intercepted.iter().cloned().unzip();
        Ok(Self {
            takings,
            numbers,
            rules: BTreeMap::new(),
            table: object.map("intercepted")?,
        })
    }

    /// Adapts the table to the devices that exist.
    fn refresh(&mut self) -> Result<(), Error> {
        let rules = rules_of(&self.takings, |device| if_nametoindex(device).ok());
        let rules: BTreeMap<_, _> = rules.into_iter().map(|(r, m)| (r, m.taking)).collect();
        if rules == self.rules {
            return Ok(());
        }
        for rule in self.rules.keys().filter(|rule| !rules.contains_key(rule)) {
            self.table.remove(&key_of(rule))?;
        }
        for (rule, &taking) in &rules {
            let number = self.numbers[taking].unwrap_or(wire::raw::EARLY_SYN_UNREPORTED);
            self.table.insert(&key_of(rule), &number)?;
        }
        self.rules = rules;
        Ok(())
    }
}

impl fmt::Debug for EarlySyn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EarlySyn")
            .field("hooks", &self.hooks)
            .finish_non_exhaustive()
    }
}
