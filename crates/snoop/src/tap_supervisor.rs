//! Serves taps as they come and go, and retransmits early-acknowledged data to guests that lack it.

mod served;

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::time::Duration;

use bytesize::ByteSize;
use taut_sys::interface;
use taut_sys::packet::PacketSocket;
use taut_sys::privileges::{self, Capability};

use crate::config::{GuestMac, Settings};
use crate::copies::{self, Copies};
use crate::device::Device;
use crate::error::ProgramError;
use crate::foreign_hooks::{HookScanner, Hooks};
use crate::program::{FILTER_PRIORITY, FLOWS, Program};
use crate::qmp::Source;
use crate::qmp::policy::{HoldReason, Restriction};
use crate::records::Records;
use crate::retransmit::Retained;
use crate::tap::{self, Prepared, TapError};
use crate::trust::Trust;
pub use crate::trust::{REST, TIMES};
use crate::wire::{Config, DELIVERY_MARK, Flow, FromGuest, Key, Net, Prefix, ToGuest};
use served::Served;

/// The interval at which devices, queueing disciplines and flows are scanned.
pub const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// The time after the last scan at which early ACKs stop.
pub const LEASE: Duration = Duration::from_secs(10);

/// Default memory for copies, for all guests together, in bytes.
pub const RETAINED: usize = 64 << 20;

/// The idle time after which a flow is removed. (By default, keepalives come every two hours: RFC
/// 9293 3.8.4.)
pub const IDLE: Duration = Duration::from_secs(3 * 3600);

/// The idle time after which a closing flow, or one whose handshake has not finished, is removed.
pub const IDLE_SHORT: Duration = Duration::from_secs(120);

/// The taps to serve, and the settings for them.
#[derive(Clone, Debug)]
pub struct Options {
    /// Patterns of tap names.
    pub taps: Vec<glob::Pattern>,
    /// Configuration of the programs; the supervisor sets `on`.
    pub config: Config,
    /// Minimum length of the ring.
    pub ring: Option<u32>,
    /// Maximum number of flows per tap.
    pub flows: u32,
    /// Memory for copies, for all guests together, in bytes.
    pub retained: usize,
    /// The guests' Ethernet addresses, where known.
    pub guest_macs: Vec<GuestMac>,
    /// Networks of the guests' addresses; empty: any.
    pub guest_nets: Vec<Net>,
    /// QMP sockets of the guests' machines.
    pub qmp: Vec<Source>,
    /// The records of changed settings, kept until the settings are restored.
    pub records: Records,
}

/// The state of a tap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Early ACKs are on.
    On,
    /// Early ACKs are off, and the guest has yet to take what was acknowledged early.
    Draining,
    /// Early ACKs are off.
    Off,
    /// The tap cannot be served, for this reason.
    Unfit(String),
}

/// Serves all matching taps of a network namespace.
#[derive(Debug)]
pub struct TapSupervisor {
    options: Options,
    copies: Copies,
    retained: Retained,
    /// Whether the process is stopping.
    stopping: bool,
    taps: BTreeMap<u32, Served>,
    /// The last warning about each device that cannot be served, so that it is logged once.
    said: BTreeMap<u32, String>,
    /// The log has that no device has a wanted name.
    says_none: bool,
    hook_scanner: HookScanner,
}

/// Counters of a tap other than packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Segments retransmitted to the guest.
    pub retransmitted: u64,
    /// Segments that could not be retransmitted when due, for example because the ring was full.
    pub not_sent: u64,
    /// Flows in which the guest lacked early-acknowledged data.
    pub repaired: u64,
    /// Flows in which the guest never took early-acknowledged data.
    pub lost: u64,
    /// Maximum bytes of one flow that were acknowledged early and not yet by the guest.
    pub exposure_most: u32,
}

/// State, counters and flows of a tap.
#[derive(Debug)]
pub struct Status {
    /// The tap's name.
    pub tap: String,
    /// The tap's interface index.
    pub index: u32,
    /// Whether early ACKs are on.
    pub state: State,
    /// The state of the guest, if that is why early ACKs are off.
    pub held: Option<&'static str>,
    /// Length of the ring.
    pub ring: u32,
    /// Counters other than packets.
    pub counts: Counts,
    /// Peer networks that get no early ACKs for now.
    pub distrusted: Vec<Prefix>,
    /// Packets towards the guest, by exit.
    pub to_guest: ToGuest,
    /// Packets from the guest, by exit.
    pub from_guest: FromGuest,
    /// Bytes of copies retained for the guest.
    pub retained: usize,
    /// Flows whose early-acknowledged data the guest sees and does not take.
    pub refused: u64,
    /// Flows that made room for newer ones.
    pub evicted: u64,
    /// The tap's flows.
    pub flows: Vec<(Key, Flow)>,
}

/// The reason why one tap cannot be served.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Tap(#[from] TapError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(
        "cannot open a packet socket for {tap}: {source}{}",
        privileges::hint(.source, &[Capability::NetRaw])
    )]
    Packet { tap: String, source: std::io::Error },
}

// === impl Options ===

impl Options {
    /// Returns the default options for these taps.
    pub fn new(taps: Vec<glob::Pattern>) -> Self {
        Self {
            taps,
            config: Config::default(),
            ring: None,
            flows: FLOWS,
            retained: RETAINED,
            guest_macs: Vec::new(),
            guest_nets: Vec::new(),
            qmp: Vec::new(),
            records: Records::default(),
        }
    }

    /// Converts settings that passed [`Settings::check`].
    pub fn of(settings: &Settings) -> Self {
        let bytes = |size: Option<ByteSize>| {
            size.map_or(0, |size| u32::try_from(size.as_u64()).unwrap_or(u32::MAX))
        };
        Self {
            config: Config {
                on: true,
                buf_size: bytes(settings.buffer),
                guest_rcvbuf: bytes(settings.guest_rcvbuf),
                start_early: settings.start_early,
                ecn: settings.ecn,
                awake_ticks: Config::AWAKE,
                exposure: match settings.exposure {
                    None => Config::EXPOSURE,
                    size => bytes(size),
                },
                exposure_ticks: settings.exposure_time.map_or(Config::EXPOSURE_TICKS, ticks),
                by_address: !settings.guest_nets.is_empty(),
                guest_ttl: settings.guest_ttl.unwrap_or(0),
                ..Config::default()
            },
            retained: settings
                .copies
                .map_or(RETAINED, |size| size.as_u64() as usize),
            guest_macs: settings.guest_macs.clone(),
            guest_nets: settings.guest_nets.clone(),
            qmp: settings.qmp.clone(),
            ring: settings.ring,
            flows: settings.flows.unwrap_or(FLOWS),
            ..Self::new(settings.taps.clone())
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.taps.iter().any(|pattern| pattern.matches(name))
    }

    /// Fails if no tap can ever be served: each pattern is the name of a device, and each of these
    /// devices is something else. A device that is missing, or that a pattern matches, may appear
    /// later.
    ///
    /// # Errors
    /// [`TapError::Foreign`] or [`TapError::ManyQueues`] of the first device.
    pub(crate) fn require_some_tap(&self, devices: &[Device]) -> Result<(), TapError> {
        let mut first = Ok(());
        for pattern in &self.taps {
            let name = pattern.as_str();
            let is_name = glob::Pattern::escape(name) == name;
            let device = devices.iter().find(|device| is_name && device.name == name);
            match device.map(tap::require_single_queue_tap) {
                Some(Err(error)) => first = first.and(Err(error)),
                _ => return Ok(()),
            }
        }
        first
    }

    /// Returns the guest's Ethernet address if it is configured or follows from the tap's address.
    fn guest_mac(&self, device: &Device) -> Option<[u8; 6]> {
        let said = self
            .guest_macs
            .iter()
            .find(|of| of.tap.matches(&device.name));
        said.map(|of| of.mac).or_else(|| device.guest_mac())
    }
}

// === impl TapSupervisor ===

impl TapSupervisor {
    /// Creates a supervisor that serves no tap yet.
    ///
    /// # Errors
    /// [`ProgramError::Load`]: the kernel cannot create the ring buffer for copies.
    pub fn new(options: Options) -> Result<Self, ProgramError> {
        Ok(Self {
            copies: Copies::new(copies::RING_BYTES)?,
            retained: Retained::default(),
            stopping: false,
            options,
            taps: BTreeMap::new(),
            said: BTreeMap::new(),
            says_none: false,
            hook_scanner: HookScanner::default(),
        })
    }

    /// Returns a handle that waits until [`TapSupervisor::retransmit`] has work.
    pub(crate) fn waiter(&self) -> std::io::Result<copies::Waiter> {
        self.copies.waiter()
    }

    /// Takes new copies, and retransmits what guests lack. `now` is CLOCK_MONOTONIC. Returns
    /// whether copies remain; the caller must then call this again.
    pub fn retransmit(&mut self, now: Duration) -> bool {
        // A copy that is still in the ring buffer cannot be retransmitted, so all are taken.
        for copy in self.copies.take() {
            if self.taps.contains_key(&copy.ifindex) {
                self.retained.add(copy, now);
            }
        }
        for (index, served) in &self.taps {
            for doubt in served.program.doubts() {
                tracing::debug!(tap = %served.device.name, ?doubt, "the guest may lack data");
                self.retained.suspect(&(*index, doubt.key));
            }
        }
        for id in self.retained.ids() {
            let (index, key) = id;
            let Some(served) = self.taps.get_mut(&index) else {
                self.retained.forget(index);
                continue;
            };
            // A stopped guest can take nothing, so its timers are not checked.
            if served.is_stopped() {
                continue;
            }
            let flow = match served.program.flow(&key) {
                Ok(flow) => flow,
                Err(error) => {
                    tracing::warn!(tap = %served.device.name, "{error}");
                    continue;
                }
            };
            let retained = &mut self.retained;
            let due = retained.look(&id, flow.as_ref(), now);
            if let Some(flow) = flow {
                served.act(&key, &flow, &due, retained, self.options.config, now);
            }
        }
        self.share_room();
        let more = !self.retained.is_empty();
        if !more && let Err(error) = self.copies.wake_with_the_next() {
            tracing::warn!("{error}");
        }
        more
    }

    /// Stops early ACKs at taps whose guests' copies fill their share of the memory, and resumes
    /// them when half of the share is free. So no guest can use up the memory of the others.
    fn share_room(&mut self) {
        let share = self.options.retained / self.taps.len().max(1);
        for (index, served) in &mut self.taps {
            let bytes = self.retained.bytes_of(*index);
            let full = bytes >= share || served.full && bytes > share / 2;
            if full == served.full {
                continue;
            }
            served.full = full;
            tracing::debug!(tap = %served.device.name, bytes, full, "share of the memory for copies");
            if let Err(error) = served.configure(self.options.config) {
                tracing::warn!(tap = %served.device.name, "{error}");
            }
        }
    }

    /// Stops early ACKs at all taps, and serves no new ones.
    pub(crate) fn turn_all_off(&mut self) {
        self.stopping = true;
        let config = self.options.config;
        for served in self.taps.values_mut() {
            served.turned_off = true;
            served.set(config, State::Off);
        }
    }

    /// Scans for new and vanished taps, and examines the flows of served ones. `now` is
    /// CLOCK_MONOTONIC.
    ///
    /// # Errors
    /// [`TapError::Socket`] if the devices cannot be listed. A failure at one tap is
    /// logged, and does not affect the others.
    pub fn scan(&mut self, now: Duration) -> Result<(), TapError> {
        let devices = tap::devices()?;
        let present = |index: &u32| devices.iter().find(|device| device.index == *index);
        self.said.retain(|index, _| present(index).is_some());
        let retained = &mut self.retained;
        self.taps.retain(|index, served| {
            let stays = present(index).is_some();
            if !stays {
                tracing::info!(tap = %served.device.name, "gone");
                retained.forget(*index);
            }
            stays
        });
        let taps: Vec<_> = devices
            .iter()
            .filter(|d| self.taps.contains_key(&d.index) || self.options.wants(&d.name))
            .collect();
        let mut hooks = self.hook_scanner.scan(&taps, FILTER_PRIORITY)?;
        for (index, served) in &mut self.taps {
            served.watch(self.options.config, &self.retained, now);
            if let Some(device) = present(index) {
                served.rename(&device.name);
                served.look_before_the_ring(self.options.config, device, &mut hooks);
            }
        }
        for device in &devices {
            let known = self.taps.contains_key(&device.index);
            if known || self.stopping || !self.options.wants(&device.name) {
                continue;
            }
            match self.serve(device, &mut hooks, now) {
                Ok(served) => {
                    tracing::info!(tap = %device.name, ring = served.device.ring, "serving");
                    self.said.remove(&device.index);
                    self.taps.insert(device.index, served);
                }
                Err(error) => {
                    let sentence = error.to_string();
                    if self.said.get(&device.index) != Some(&sentence) {
                        tracing::warn!("{sentence}");
                        self.said.insert(device.index, sentence);
                    }
                }
            }
        }
        let has_none = !devices
            .iter()
            .any(|device| self.options.wants(&device.name));
        if has_none && !self.stopping && !self.says_none {
            let names: Vec<_> = self
                .options
                .taps
                .iter()
                .map(glob::Pattern::as_str)
                .collect();
            tracing::info!(
                tap = names.join(","),
                "no device has this name; `ip link` lists the devices, and one that appears is served"
            );
        }
        self.says_none = has_none;
        Ok(())
    }

    fn serve(
        &self,
        device: &Device,
        hooks: &mut Hooks,
        now: Duration,
    ) -> Result<Served, ServeError> {
        // Everything that can fail without a change to the tap comes first.
        tap::require_single_queue_tap(device)?;
        let mut program = Program::load(self.options.flows, &self.copies)?;
        program.allow(&self.options.guest_nets)?;
        let socket = PacketSocket::open(device.index, DELIVERY_MARK).map_err(|source| {
            ServeError::Packet {
                tap: device.name.clone(),
                source,
            }
        })?;
        if let Some(hook) = hooks.take(device, 0)? {
            let name = device.name.clone();
            return Err(TapError::Filtered { name, hook }.into());
        }
        let prepared = Prepared::prepare(device, self.options.ring, &self.options.records)?;
        program.attach(device.index)?;
        let served = Served {
            device: Device {
                ring: self.options.ring.unwrap_or(device.ring),
                ..device.clone()
            },
            state: State::On,
            turned_off: false,
            hold: None,
            unheard: None,
            counts: Counts::default(),
            trust: Trust::default(),
            distrusted: Vec::new(),
            full: false,
            guest_mac: self.options.guest_mac(device),
            socket,
            acked: HashMap::new(),
            sharing: 0,
            until: now + LEASE,
            program,
            prepared,
        };
        served.configure(self.options.config)?;
        Ok(served)
    }

    /// Returns the interface index of the tap with this name now, if it is served. The name of a tap
    /// may change, and another tap may get it.
    pub fn index_of(&self, name: &str) -> Option<u32> {
        // The kernel knows a new name at once; those of the served taps are read again from time to time.
        let index = interface::index(&CString::new(name).ok()?).ok()??;
        self.taps.contains_key(&index).then_some(index)
    }

    /// Stops early ACKs at the tap with this name until [`TapSupervisor::turn_on`]. A later tap of
    /// the same name belongs to another guest and is served. Returns the tap's interface index, if it
    /// is served.
    pub fn turn_off(&mut self, name: &str) -> Option<u32> {
        let index = self.index_of(name)?;
        let served = self.taps.get_mut(&index)?;
        served.turned_off = true;
        if served.state != State::Off {
            served.set(self.options.config, State::Draining);
        }
        Some(index)
    }

    /// Returns whether the guests at all these taps, named by interface index, have acknowledged
    /// everything that was acknowledged early, and all held segments, which the next early ACK would
    /// include: `None`, or the number of flows that are left out because the guest refuses their data.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub fn drained(&mut self, which: impl Fn(u32) -> bool) -> Result<Option<u64>, ProgramError> {
        let mut refused = 0;
        let taps = self.taps.iter_mut().filter(|(index, _)| which(**index));
        for (_, served) in taps {
            match served.drained(&self.retained)? {
                Some(flows) => refused += flows,
                None => return Ok(None),
            }
        }
        Ok(Some(refused))
    }

    /// Resumes early ACKs at the tap with this name, unless a queue or filter is in front of its
    /// ring. Returns whether the tap exists.
    ///
    /// # Errors
    /// [`TapError::Queued`], [`TapError::Filtered`], or [`TapError::Socket`] if the
    /// devices cannot be listed.
    pub fn turn_on(&mut self, name: &str) -> Result<bool, TapError> {
        let config = self.options.config;
        let devices = tap::devices()?;
        let index = self.index_of(name);
        let Some((index, served)) = index.and_then(|at| Some((at, self.taps.get_mut(&at)?))) else {
            return Ok(false);
        };
        if let Some(device) = devices.iter().find(|device| device.index == index) {
            if device.has_queue() {
                return Err(TapError::Queued(name.to_owned()));
            }
            let mut hooks = self.hook_scanner.scan(&[device], FILTER_PRIORITY)?;
            if let Some(hook) = hooks.take(device, served.program.links())? {
                let name = name.to_owned();
                return Err(TapError::Filtered { name, hook });
            }
        }
        (served.turned_off, served.hold, served.unheard) = (false, None, None);
        served.trust.restore();
        if let Err(error) = served.program.forget_source() {
            tracing::warn!(tap = %name, "{error}");
        }
        served.set(config, State::On);
        Ok(true)
    }

    /// Applies the restriction that follows from the machine's state to the tap with this name.
    /// `now` is CLOCK_MONOTONIC.
    pub(crate) fn restrict(&mut self, name: &str, restriction: Restriction, now: Duration) {
        let config = self.options.config;
        for (index, served) in &mut self.taps {
            if served.device.name != name {
                continue;
            }
            if served.is_stopped() && restriction.hold != Some(HoldReason::Stopped) {
                self.retained.resume(*index, now);
            }
            served.restrict(config, restriction);
        }
    }

    /// Returns the names of the served taps.
    pub(crate) fn names(&self) -> Vec<String> {
        let names = self.taps.values().map(|served| served.device.name.clone());
        names.collect()
    }

    /// Returns the status of every tap.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub fn status(&self) -> Result<Vec<Status>, ProgramError> {
        let status = |served: &Served| served.status(&self.retained);
        self.taps.values().map(status).collect()
    }
}

/// Converts a time to the programs' ticks of 2^20 ns.
fn ticks(time: Duration) -> u32 {
    u32::try_from(time.as_nanos() >> 20).unwrap_or(u32::MAX)
}
