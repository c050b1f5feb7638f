//! Loads and attaches the two programs of a tap, and reads and writes their maps.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use libbpf_rs::RingBuffer;
use taut_bpf::{CounterMap, Error, Map, Object, Open, PerCpu};
use taut_sys::bpf::run_time;
use taut_sys::bpf::tc::{AttachPoint, Attached};

use crate::copies::Copies;
use crate::error::ProgramError;
use crate::wire::{Bypass, Config, Doubt, Flow, FromGuest, Key, Net, Prefix, Spent, ToGuest, raw};

/// The programs, compiled by `build.rs`.
const PROGRAMS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/snoop.bpf.o"));

/// Default maximum number of flows per tap. Further flows are counted, and get no early ACKs.
pub const FLOWS: u32 = 4096;

/// Priority of the tc filters, used without tcx.
pub(crate) const FILTER_PRIORITY: u32 = 50_774;

/// The maximum number of unread events; further ones are discarded.
const EVENTS_MAX: usize = 1024;

/// The programs at one tap. They are detached when this is dropped or the process ends; the flows
/// continue.
pub struct Program {
    /// Detached first.
    attached: Vec<Attached>,
    object: Object,
    config: Map<u32, raw::SnoopConfig>,
    flows: Map<raw::SnoopKey, raw::SnoopFlow>,
    to_guest: CounterMap<raw::SnoopToGuest>,
    from_guest: CounterMap<raw::SnoopFromGuest>,
    order: Map<u32, raw::SnoopOrder>,
    guest_nets: Map<raw::SnoopNet, u8>,
    distrusted: Map<raw::SnoopPrefix, u8>,
    source: Map<u32, raw::SnoopSource>,
    evictions: PerCpu<u64>,
    places: u32,
    spending: PerCpu<Spent>,
    events: RingBuffer<'static>,
    doubts: Arc<Mutex<Vec<Doubt>>>,
}

// === impl Program ===

impl Program {
    /// Loads the programs with room for `flows` flows, not attached yet. Copies go into `copies`.
    ///
    /// # Errors
    /// [`ProgramError::Load`].
    pub fn load(flows: u32, copies: &Copies) -> Result<Self, ProgramError> {
        Self::load_measured(flows, copies, false)
    }

    /// Like [`Program::load`]; with `measured`, the programs measure the split of their time.
    pub(crate) fn load_measured(
        flows: u32,
        copies: &Copies,
        measured: bool,
    ) -> Result<Self, ProgramError> {
        let object = load(flows, copies, measured).map_err(ProgramError::Load)?;
        let doubts = Arc::new(Mutex::new(Vec::new()));
        let events = object.ring("events", {
            let doubts = doubts.clone();
            move |bytes: &[u8]| {
                let mut doubts = doubts.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(event) = Doubt::decode(bytes)
                    && doubts.len() < EVENTS_MAX
                {
                    doubts.push(event);
                }
            }
        });
        let maps = || {
            Ok(Self {
                attached: Vec::new(),
                config: object.map("config")?,
                flows: object.map("flows")?.locked(),
                to_guest: object.counters("to_guest_exits")?,
                from_guest: object.counters("from_guest_exits")?,
                order: object.map("order")?,
                guest_nets: object.map("guest_nets")?,
                distrusted: object.map("distrusted")?,
                source: object.map("source")?,
                evictions: object.per_cpu("evictions")?,
                places: flows,
                spending: object.per_cpu("spending")?,
                events: events?,
                doubts,
                object,
            })
        };
        maps().map_err(ProgramError::Load)
    }

    /// Configures the programs until `until` (CLOCK_MONOTONIC). After that time, and before the
    /// first call, they give no early ACKs, so that no early ACK is unwatched.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub fn configure(&self, config: &Config, until: Duration) -> Result<(), ProgramError> {
        let config = config.encode(until);
        self.config.insert(&0, &config).map_err(ProgramError::Map)
    }

    /// Attaches the programs to the tap of this index, in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`ProgramError::Attach`]; neither program is attached then.
    pub fn attach(&mut self, ifindex: u32) -> Result<(), ProgramError> {
        let mut attached = Vec::with_capacity(2);
        // The program that learns is attached first.
        for (name, point) in [
            ("snoop_from_guest", AttachPoint::IngressFirst),
            ("snoop_to_guest", AttachPoint::Egress),
        ] {
            let program = self.object.program(name).map_err(ProgramError::Load)?;
            let program = Attached::attach(program.as_fd(), ifindex, point, FILTER_PRIORITY)
                .map_err(|source| ProgramError::Attach { ifindex, source })?;
            attached.push(program);
        }
        self.attached = attached;
        Ok(())
    }

    /// Returns the number of packets towards the guest so far, by exit.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub fn to_guest(&self) -> Result<ToGuest, ProgramError> {
        self.to_guest.read().map_err(ProgramError::Map)
    }

    /// Returns the number of packets from the guest so far, by exit.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub fn from_guest(&self) -> Result<FromGuest, ProgramError> {
        self.from_guest.read().map_err(ProgramError::Map)
    }

    /// Returns the tracked flows. Flows that start during the call may be missing.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub fn flows(&self) -> Result<Vec<(Key, Flow)>, ProgramError> {
        let listed = self.flows.entries().map_err(ProgramError::Map)?;
        let flow = |(key, flow): &(raw::SnoopKey, raw::SnoopFlow)| {
            Key::decode(key).zip(Flow::decode(flow))
        };
        Ok(listed.iter().filter_map(flow).collect())
    }

    /// Removes a flow. The connection continues, and its flow is found again in mid-flow.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub fn forget(&self, key: &Key) -> Result<(), ProgramError> {
        let forgotten = self.flows.remove(&key.encode());
        forgotten.map(|_| ()).map_err(ProgramError::Map)
    }

    /// Returns the events since the last call: guests that may lack, or say that they lack,
    /// early-acknowledged data.
    pub fn doubts(&self) -> Vec<Doubt> {
        // An error means that there are no events.
        let _ = self.events.consume();
        let mut doubts = self.doubts.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *doubts)
    }

    /// Returns the number of flows that were removed because newer ones needed their places.
    pub(crate) fn evicted(&self) -> Result<u64, ProgramError> {
        let counts = self.evictions.get(0).map_err(ProgramError::Map)?;
        Ok(counts.into_iter().sum())
    }

    /// Returns the split of the programs' time.
    pub(crate) fn spent(&self) -> Result<Spent, ProgramError> {
        let spent = self.spending.get(0).map_err(ProgramError::Map)?;
        Ok(spent.into_iter().fold(Spent::default(), Spent::and))
    }

    /// Returns the run time of the named program, as counted by the kernel.
    pub(crate) fn run_time(&self, name: &'static str) -> Result<Duration, ProgramError> {
        let program = self.object.program(name).map_err(ProgramError::Load)?;
        run_time(program.as_fd()).map_err(|source| ProgramError::RunTime { name, source })
    }

    /// Returns a flow, if it is tracked.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub(crate) fn flow(&self, key: &Key) -> Result<Option<Flow>, ProgramError> {
        let found = self.flows.get(&key.encode()).map_err(ProgramError::Map)?;
        Ok(found.and_then(|flow| Flow::decode(&flow)))
    }

    /// Puts a flow into BYPASS.
    pub(crate) fn bypass(&self, key: &Key, why: Bypass) -> Result<(), ProgramError> {
        self.order("snoop_leave", key, why as u32).map(|_| ())
    }

    /// Removes a flow if it is idle. Returns whether it was.
    pub(crate) fn evict(&self, key: &Key) -> Result<bool, ProgramError> {
        let evicted = self.order("snoop_evict", key, 0);
        evicted.map(|evicted| evicted != 0)
    }

    /// Has a program change a flow, because a value read here would be outdated when written back.
    /// Returns what it returns.
    fn order(&self, program: &'static str, key: &Key, bypass: u32) -> Result<u32, ProgramError> {
        let key = key.encode();
        let ordered = self.order.insert(&0, &raw::SnoopOrder { key, bypass });
        ordered
            .and_then(|()| self.object.run(program))
            .map_err(ProgramError::Map)
    }

    /// Returns the maximum number of flows.
    pub(crate) fn places(&self) -> usize {
        self.places as usize
    }

    /// Sets the guests' networks, for [`Config::by_address`].
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub fn allow(&self, nets: &[Net]) -> Result<(), ProgramError> {
        for net in nets {
            let allowed = self.guest_nets.insert(&net.encode(), &1);
            allowed.map_err(ProgramError::Map)?;
        }
        Ok(())
    }

    /// Replaces the distrusted peer networks.
    pub(crate) fn distrust(&self, prefixes: &[Prefix]) -> Result<(), ProgramError> {
        let wanted: Vec<_> = prefixes.iter().map(Prefix::encode).collect();
        let present: Vec<_> = self.distrusted.keys().collect();
        for key in present.iter().filter(|key| !wanted.contains(key)) {
            // The entry may be gone already.
            let _ = self.distrusted.remove(key);
        }
        for prefix in wanted {
            let distrusted = self.distrusted.insert(&prefix, &1);
            distrusted.map_err(ProgramError::Map)?;
        }
        Ok(())
    }

    /// Returns whether the tap has sent frames from several Ethernet addresses while the guest's is
    /// unknown.
    pub(crate) fn sees_several_macs(&self) -> Result<bool, ProgramError> {
        let found = self.source.get(&0).map_err(ProgramError::Map)?;
        Ok(found.is_some_and(|source| source.several != 0))
    }

    /// Forgets the learnt Ethernet address; the next frame sets it.
    pub(crate) fn forget_source(&self) -> Result<(), ProgramError> {
        let unknown = raw::SnoopSource::default();
        self.source.insert(&0, &unknown).map_err(ProgramError::Map)
    }

    /// Returns the number of these programs' tcx links at each hook of the tap.
    pub(crate) fn links(&self) -> u32 {
        u32::from(matches!(self.attached.last(), Some(Attached::Link(_))))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Detached in reverse order: an early ACK of the second program needs the first one.
        while self.attached.pop().is_some() {}
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("Program");
        f.field("attached", &self.attached).finish_non_exhaustive()
    }
}

fn load(flows: u32, copies: &Copies, measured: bool) -> Result<Object, Error> {
    let mut open = Open::new("taut_snoop", PROGRAMS)?;
    for name in ["flows", "started"] {
        let sized = open.map(name)?.set_max_entries(flows);
        sized.map_err(Error::during("size a BPF map of flows"))?;
    }
    open.set_constant(".rodata.config", &u8::from(measured))?;
    for (name, shared) in [("retained", copies.map()), ("asleep", copies.asleep())] {
        let reused = open.map(name)?.reuse_fd(shared);
        reused.map_err(Error::during("share a BPF map between taps"))?;
    }
    open.load()
}
