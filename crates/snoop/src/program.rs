//! The two programs at a tap, and what they keep.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use libbpf_rs::{
    MapCore, MapFlags, Object, ObjectBuilder, ProgramInput, RingBuffer, RingBufferBuilder,
};
use taut_sys::Errno;
use taut_sys::bpf::tc::{AttachPoint, Attached};
use taut_sys::bpf::{Entry, hash_entries, run_time};

use crate::copies::Copies;
use crate::wire::{
    Bypass, Config, Doubt, FLOW, Flow, FromGuest, KEY, Key, Net, Prefix, Spent, ToGuest,
};

/// The programs, compiled by `build.rs`.
const PROGRAMS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/snoop.bpf.o"));

/// Flows that are followed at one tap, if nothing else is said. A flow that finds no place is not
/// touched, and counted.
pub const FLOWS: u32 = 4096;

/// The filters' place among those of a device, where there is no tcx.
pub(crate) const FILTER_PRIORITY: u32 = 50_774;

/// Doubts that are kept until somebody reads them; more are not told of.
const EVENTS_MAX: usize = 1024;

/// The programs at one tap. Dropped, or when the process ends, they are gone, and the flows go on.
pub struct Program {
    /// Detached first.
    attached: Vec<Attached>,
    object: Object,
    events: RingBuffer<'static>,
    doubts: Arc<Mutex<Vec<Doubt>>>,
}

/// Why the programs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The kernel does not take them.
    #[error(
        "the kernel does not take the BPF programs: {0} (they need Linux 6.1 or newer with BTF, and CAP_BPF \
         with CAP_NET_ADMIN and CAP_PERFMON, or root)"
    )]
    Load(#[source] libbpf_rs::Error),
    /// The programs are not those that this code was written for.
    #[error("the BPF object has no {0} (a fault of the build: build it anew)")]
    Part(&'static str),
    /// They cannot be put at the tap.
    #[error(
        "the BPF programs cannot be attached to device {ifindex}: {source} (they need CAP_NET_ADMIN, and tcx \
         or clsact of the kernel)"
    )]
    Attach {
        /// The device's number.
        ifindex: u32,
        /// What the kernel says.
        source: io::Error,
    },
    /// The kernel does not say how long they have run.
    #[error("the running time of the BPF program {name} cannot be read: {source}")]
    RunTime {
        /// Which.
        name: &'static str,
        /// What the kernel says.
        source: Errno,
    },
    /// The flows cannot be listed.
    #[error("the BPF programs' flows cannot be listed: {source}")]
    Listing {
        /// What the kernel says.
        source: Errno,
    },
    /// What they keep cannot be read or written.
    #[error("the BPF programs' {what} cannot be reached: {source}")]
    Map {
        /// Which map.
        what: &'static str,
        /// What the kernel says.
        source: libbpf_rs::Error,
    },
}

// === impl Program ===

impl Program {
    /// The programs with room for so many flows, at no tap. What they acknowledge early goes into `copies`.
    ///
    /// # Errors
    /// [`ProgramError`]: the kernel does not take them.
    pub fn load(flows: u32, copies: &Copies) -> Result<Self, ProgramError> {
        Self::load_measured(flows, copies, false)
    }

    /// The same, and `measured` says whether they are to measure where their time goes.
    pub(crate) fn load_measured(
        flows: u32,
        copies: &Copies,
        measured: bool,
    ) -> Result<Self, ProgramError> {
        // What libbpf has to say beside the error is for those who look for a fault.
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, |_, text| {
            tracing::debug!(target: "libbpf", "{}", text.trim_end());
        })));
        let mut open = ObjectBuilder::default()
            .name("taut_snoop")
            .and_then(|builder| builder.open_memory(PROGRAMS))
            .map_err(ProgramError::Load)?;
        open.maps_mut()
            .find(|map| map.name() == "flows")
            .ok_or(ProgramError::Part("map `flows`"))?
            .set_max_entries(flows)
            .map_err(ProgramError::Load)?;
        open.maps_mut()
            .find(|map| map.name() == ".rodata.config")
            .ok_or(ProgramError::Part("section `.rodata.config`"))?
            .set_initial_value(&[u8::from(measured)])
            .map_err(ProgramError::Load)?;
        for (name, part, shared) in [
            ("retained", "map `retained`", copies.map()),
            ("asleep", "map `asleep`", copies.asleep()),
        ] {
            open.maps_mut()
                .find(|map| map.name() == name)
                .ok_or(ProgramError::Part(part))?
                .reuse_fd(shared)
                .map_err(ProgramError::Load)?;
        }
        let object = open.load().map_err(ProgramError::Load)?;
        let flows = map(&object, "flows")?;
        let sizes = (flows.key_size() as usize, flows.value_size() as usize);
        if sizes != (KEY, FLOW) {
            return Err(ProgramError::Part("map `flows` of this layout"));
        }
        let doubts = Arc::new(Mutex::new(Vec::new()));
        let mut events = RingBufferBuilder::new();
        let map = map(&object, "events")?;
        events
            .add(&map, {
                let doubts = doubts.clone();
                move |bytes: &[u8]| {
                    let mut doubts = doubts.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(event) = Doubt::decode(bytes)
                        && doubts.len() < EVENTS_MAX
                    {
                        doubts.push(event);
                    }
                    0
                }
            })
            .map_err(ProgramError::Load)?;
        let events = events.build().map_err(ProgramError::Load)?;
        Ok(Self {
            attached: Vec::new(),
            object,
            events,
            doubts,
        })
    }

    /// Says how the tap is served, until `until` of CLOCK_MONOTONIC: after that, and before the first
    /// time, nothing is acknowledged. So nothing is promised that nobody watches.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub fn configure(&self, config: &Config, until: Duration) -> Result<(), ProgramError> {
        map(&self.object, "config")?
            .update(&0u32.to_ne_bytes(), &config.encode(until), MapFlags::ANY)
            .map_err(refused("configuration"))
    }

    /// Puts them at the tap of this number, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`ProgramError::Attach`], and then they are at none of its hooks.
    pub fn attach(&mut self, ifindex: u32) -> Result<(), ProgramError> {
        let mut attached = Vec::with_capacity(2);
        // First the one that learns.
        for (name, point) in [
            ("snoop_from_guest", AttachPoint::IngressFirst),
            ("snoop_to_guest", AttachPoint::Egress),
        ] {
            let program = self
                .object
                .progs()
                .find(|p| p.name() == name)
                .ok_or(ProgramError::Part(name))?;
            let program = Attached::attach(program.as_fd(), ifindex, point, FILTER_PRIORITY)
                .map_err(|source| ProgramError::Attach { ifindex, source })?;
            attached.push(program);
        }
        self.attached = attached;
        Ok(())
    }

    /// Packets towards the guest so far.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub fn to_guest(&self) -> Result<ToGuest, ProgramError> {
        ToGuest::read(|exit| self.count("to_guest_exits", exit))
    }

    /// Packets from the guest so far.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub fn from_guest(&self) -> Result<FromGuest, ProgramError> {
        FromGuest::read(|exit| self.count("from_guest_exits", exit))
    }

    /// The flows that are followed. While packets come and go some that are new may be missed.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub fn flows(&self) -> Result<Vec<(Key, Flow)>, ProgramError> {
        let map = map(&self.object, "flows")?;
        let listed = hash_entries(map.as_fd(), KEY, FLOW, MapFlags::LOCK.bits());
        let listed = listed.map_err(|source| ProgramError::Listing { source })?;
        let flow = |(key, flow): &Entry| Key::decode(key).zip(Flow::decode(flow));
        Ok(listed.iter().filter_map(flow).collect())
    }

    /// Forgets a flow. It goes on without us, and is met again in its middle.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub fn forget(&self, key: &Key) -> Result<(), ProgramError> {
        match map(&self.object, "flows")?.delete(&key.encode()) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(refused("flows")(error))
            }
            _ => Ok(()),
        }
    }

    /// Promises that came to look broken since the last call.
    pub fn doubts(&self) -> Vec<Doubt> {
        // An error says that there is nothing now.
        let _ = self.events.consume();
        let mut doubts = self.doubts.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *doubts)
    }

    /// Where the time went.
    pub(crate) fn spent(&self) -> Result<Spent, ProgramError> {
        let values = map(&self.object, "spending")?
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(refused("times"))?;
        let spent = values.iter().flatten();
        Ok(spent
            .filter_map(|bytes| Spent::decode(bytes))
            .fold(Spent::default(), Spent::and))
    }

    /// How long the program of this name has run, if the kernel counts it.
    pub(crate) fn run_time(&self, name: &'static str) -> Result<Duration, ProgramError> {
        let mut programs = self.object.progs();
        let program = programs.find(|p| p.name() == name);
        let program = program.ok_or(ProgramError::Part(name))?;
        run_time(program.as_fd()).map_err(|source| ProgramError::RunTime { name, source })
    }

    /// A flow, if it is followed.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub(crate) fn flow(&self, key: &Key) -> Result<Option<Flow>, ProgramError> {
        let found = map(&self.object, "flows")?.lookup(&key.encode(), MapFlags::LOCK);
        let found = found.map_err(refused("flows"))?;
        Ok(found.and_then(|bytes| Flow::decode(&bytes)))
    }

    /// Leaves a flow alone from now on.
    pub(crate) fn leave(&self, key: &Key, why: Bypass) -> Result<(), ProgramError> {
        let mut order = key.encode().to_vec();
        order.extend(u32::from(why.encode()).to_ne_bytes());
        map(&self.object, "order")?
            .update(&0u32.to_ne_bytes(), &order, MapFlags::ANY)
            .map_err(refused("order"))?;
        // By a program, for what was read here would be old when it is written.
        let name = "snoop_leave";
        let mut programs = self.object.progs_mut();
        let program = programs.find(|p| p.name() == name);
        let input = ProgramInput {
            data_in: Some(&[0; 64]),
            ..Default::default()
        };
        program
            .ok_or(ProgramError::Part(name))?
            .test_run(input)
            .map(|_| ())
            .map_err(refused("flows"))
    }

    /// Says of which networks guests are, for [`Config::by_address`].
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub fn allow(&self, nets: &[Net]) -> Result<(), ProgramError> {
        let map = map(&self.object, "guest_nets")?;
        for net in nets {
            map.update(&net.encode(), &[1], MapFlags::ANY)
                .map_err(refused("networks of guests"))?;
        }
        Ok(())
    }

    /// Says which networks of peers are distrusted: these, instead of those before.
    pub(crate) fn distrust(&self, prefixes: &[Prefix]) -> Result<(), ProgramError> {
        let map = map(&self.object, "distrusted")?;
        let wanted: Vec<_> = prefixes.iter().map(Prefix::encode).collect();
        let present: Vec<_> = map.keys().collect();
        for key in present {
            if !wanted.iter().any(|prefix| prefix[..] == key[..]) {
                // It may be gone already.
                let _ = map.delete(&key);
            }
        }
        for prefix in wanted {
            map.update(&prefix, &[1], MapFlags::ANY)
                .map_err(refused("distrusted networks"))?;
        }
        Ok(())
    }

    /// Whether frames from more than one Ethernet address came from the tap, and it is not known which is the guest's.
    pub(crate) fn sees_several_macs(&self) -> Result<bool, ProgramError> {
        let found = map(&self.object, "source")?.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let found = found.map_err(refused("source"))?;
        Ok(found.is_some_and(|bytes| bytes.get(7) == Some(&1)))
    }

    /// Learns the guest's Ethernet address from the next frame.
    pub(crate) fn forget_source(&self) -> Result<(), ProgramError> {
        map(&self.object, "source")?
            .update(&0u32.to_ne_bytes(), &[0; 8], MapFlags::ANY)
            .map_err(refused("source"))
    }

    /// Links of tcx at the tap's egress that are this one's.
    pub(crate) fn egress_links(&self) -> u32 {
        u32::from(matches!(self.attached.last(), Some(Attached::Link(_))))
    }

    fn count(&self, name: &'static str, exit: u32) -> Result<u64, ProgramError> {
        let values = map(&self.object, name)?
            .lookup_percpu(&exit.to_ne_bytes(), MapFlags::ANY)
            .map_err(refused("counters"))?;
        let count = |bytes: &Vec<u8>| {
            let bytes = bytes.first_chunk().copied();
            bytes.map_or(0, u64::from_ne_bytes)
        };
        Ok(values.iter().flatten().map(count).sum())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The last first: what comes from the first is at home while the second is there.
        while self.attached.pop().is_some() {}
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("Program");
        f.field("attached", &self.attached).finish_non_exhaustive()
    }
}

fn map<'o>(object: &'o Object, name: &'static str) -> Result<libbpf_rs::Map<'o>, ProgramError> {
    let mut maps = object.maps();
    maps.find(|map| map.name() == name)
        .ok_or(ProgramError::Part(name))
}

fn refused(what: &'static str) -> impl Fn(libbpf_rs::Error) -> ProgramError {
    move |source| ProgramError::Map { what, source }
}
