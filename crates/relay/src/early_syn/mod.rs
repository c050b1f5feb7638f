//! Early SYN (pied-piper 3.2, improvement 1): the upstream leg is set up while the client's own
//! handshake is still on its way.
//!
//! [`EarlySyn`] is the eye: a BPF program at the ingress of the machine's devices that writes an
//! event for each SYN to a listener of the relay. [`Limiter`] is the judgement: whether a SYN, which
//! anybody can forge, may make this machine do something. Neither opens a connection.
//! `docs/design/early-syn.md` has the data path, the bounds and what an attacker can do at most.

mod cookies;
mod deadlines;
mod devices;
#[cfg(test)]
mod filter_tests;
mod limiter;
mod limits;
mod pending;
#[cfg(test)]
mod program_tests;
mod rate;
mod wire;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::{MapHandle, RingBuffer};
use taut_bpf::{CounterMap, Error, Map, Object, Open};

pub use cookies::{read_syncookies_sent, syncookies_sent};
pub use devices::{Device, Devices};
pub use limiter::{Admission, Counts, Limiter};
pub use limits::Limits;
pub(crate) use pending::PendingTable;
pub use rate::Rate;
use taut_sys::bpf::tc::{AttachPoint, Attached};
pub use wire::{Exit, Exits};

/// The program, compiled by `build.rs`.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/early_syn.bpf.o"));

/// Events that one [`EarlySyn::take`] takes, at most.
pub const TAKE_MAX: usize = 1024;

/// Listeners that can be watched (`WATCHED_MAX` of the program).
pub const WATCHED_MAX: usize = 256;

/// The filter's place among those of a device, where there is no tcx.
const FILTER_PRIORITY: u32 = 50_773;

/// A client's SYN that has reached this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynEvent {
    /// Where it says that it comes from. Nobody has proved it: a SYN is easily forged.
    pub client: SocketAddr,
    /// Where it goes to: what `getsockname` will say of the accepted connection.
    pub listener_addr: SocketAddr,
    /// The number that the listener is watched under.
    pub listener: u32,
}

/// A connection by its two ends: what the SYN and the accepted connection have in common.
///
/// Made with [`FourTuple::new`], so that the two are equal whichever way they were learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FourTuple {
    client: SocketAddr,
    local: SocketAddr,
}

/// The program at work on the machine's devices. Dropped, it is gone from them.
///
/// It may be moved to the thread that reads it, and belongs to the network namespace of the thread
/// that made it.
pub struct EarlySyn {
    // Before the object, whose map it reads.
    ring: RingBuffer<'static>,
    // The ring's own descriptor can be waited for; there is but one ring, so that libbpf's epoll
    // instance would add nothing.
    readable: MapHandle,
    // The ring's callback puts events here. Nobody else has it while `take` runs.
    taken: Arc<Mutex<Vec<SynEvent>>>,
    hooks: Vec<(Device, Attached)>,
    devices: Devices,
    exits: CounterMap<Exit>,
    object: Object,
}

/// Why SYNs cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum EarlySynError {
    /// The kernel does not take the program.
    #[error(
        "early SYN: {0}; the BPF program needs Linux 5.12 or newer and CAP_BPF \
         with CAP_NET_ADMIN and CAP_PERFMON, or root. `taut doctor` shows what this machine can do"
    )]
    Load(#[from] Error),
    /// More listeners than the program has room for.
    #[error("early SYN: {0} listeners are to be watched and {WATCHED_MAX} can be; leave some out")]
    TooManyListeners(usize),
    /// A device that was asked for is not there.
    #[error("early SYN: there is no network device `{0}`; `ip link` lists those there are")]
    NoSuchDevice(String),
    /// There is nothing to watch.
    #[error(
        "early SYN: no network device but loopback is up, so there is nothing to watch; name one, or set one up"
    )]
    NoDevice,
    /// The devices cannot be listed.
    #[error("early SYN: cannot list the network devices: {0}")]
    List(#[source] std::io::Error),
    /// The program cannot be put on a device.
    #[error(
        "early SYN: cannot attach to {device}: {source}; it needs CAP_NET_ADMIN and CAP_BPF, or root"
    )]
    Attach {
        /// The device's name.
        device: String,
        /// What the kernel says.
        #[source]
        source: std::io::Error,
    },
}

// === impl FourTuple ===

impl FourTuple {
    /// The connection from `client` to `local`, which is an address of this machine.
    ///
    /// An IPv4 address in IPv6 clothes becomes IPv4; flow labels and scopes, of which a SYN and
    /// `getpeername` say different things, are left out.
    pub fn new(client: SocketAddr, local: SocketAddr) -> Self {
        let plain = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
        Self {
            client: plain(client),
            local: plain(local),
        }
    }

    /// The client's end.
    pub fn client(&self) -> SocketAddr {
        self.client
    }

    /// This machine's end.
    pub fn local(&self) -> SocketAddr {
        self.local
    }
}

// === impl SynEvent ===

impl SynEvent {
    /// The connection that it would open.
    pub fn connection(&self) -> FourTuple {
        FourTuple::new(self.client, self.listener_addr)
    }
}

// === impl EarlySyn ===

impl EarlySyn {
    /// Watches for SYNs to the addresses in `watch`, each with the number to report it by, on
    /// `devices`. An unspecified address is every address of its family that is this machine's. No
    /// more than `events_per_second` are reported ([`Limits::events_per_second`]); the others are
    /// counted.
    ///
    /// # Errors
    /// When the program cannot be loaded or attached; nothing is attached then.
    pub fn attach(
        devices: Devices,
        watch: &[(SocketAddr, u32)],
        events_per_second: u32,
    ) -> Result<Self, EarlySynError> {
        let mut early_syn = Self::load(devices, watch, events_per_second)?;
        early_syn.refresh()?;
        if early_syn.hooks.is_empty() {
            return Err(EarlySynError::NoDevice);
        }
        Ok(early_syn)
    }

    /// The program, ready to be attached.
    fn load(
        devices: Devices,
        watch: &[(SocketAddr, u32)],
        events_per_second: u32,
    ) -> Result<Self, EarlySynError> {
        if watch.len() > WATCHED_MAX {
            return Err(EarlySynError::TooManyListeners(watch.len()));
        }
        let mut open = Open::new("taut_early_syn", PROGRAM)?;
        open.set_constant(".rodata.config", &events_per_second)?;
        let object = open.load()?;
        let watched: Map<wire::raw::EarlySynWatch, u32> = object.map("watched")?;
        for (addr, listener) in watch {
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
            exits: object.counters("exits")?,
            object,
        })
    }

    /// Looks at the devices again: attaches to those that have come, forgets those that have gone.
    ///
    /// # Errors
    /// As [`EarlySyn::attach`]; devices that are attached to stay so.
    pub fn refresh(&mut self) -> Result<(), EarlySynError> {
        let wanted = self.devices.find()?;
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

    /// The devices that are watched.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.hooks.iter().map(|(device, _)| device)
    }

    /// Readable for as long as there are events to take.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }

    /// Adds the events that have come to `events`, at most [`TAKE_MAX`], and returns how many.
    pub fn take(&mut self, events: &mut Vec<SynEvent>) -> usize {
        // The only error is one of the callback's, which has none.
        let _ = self.ring.consume_raw_n(TAKE_MAX);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.len();
        events.append(&mut taken);
        count
    }

    /// What has become of the packets that were looked at.
    ///
    /// # Errors
    /// None in ordinary use; the kernel's error otherwise.
    pub fn exits(&self) -> Result<Exits, EarlySynError> {
        Ok(self.exits.read()?)
    }
}

impl fmt::Debug for EarlySyn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EarlySyn")
            .field("hooks", &self.hooks)
            .finish_non_exhaustive()
    }
}
