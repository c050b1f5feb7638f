//! Serves taps as they come and go, and retransmits to their guests what was acknowledged early and is lacking.

mod served;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytesize::ByteSize;
use taut_sys::packet::PacketSocket;

use crate::config::{GuestMac, Settings};
use crate::copies::{self, Copies};
use crate::device::Device;
use crate::program::{FILTER_PRIORITY, FLOWS, Program, ProgramError};
use crate::qmp::Source;
use crate::qmp::policy::{HoldReason, Restriction};
use crate::records::Records;
use crate::retransmit::Retained;
use crate::tap::{self, Prepared, TapError};
use crate::trust::Trust;
pub use crate::trust::{REST, TIMES};
use crate::wire::{Config, DELIVERY_MARK, Flow, FromGuest, Key, Net, Prefix, ToGuest};
use served::{Served, owed};

/// How often devices, queueing disciplines and promises are looked at.
pub const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// When nobody has looked for so long, nothing more is acknowledged.
pub const LEASE: Duration = Duration::from_secs(10);

/// Bytes of frames that are retained for all guests, if nothing else is said.
pub const RETAINED: usize = 64 << 20;

/// A flow of which nothing was seen for so long is forgotten. (Keepalives come every two hours unless
/// somebody wants them oftener: RFC 9293 3.8.4.)
pub const IDLE: Duration = Duration::from_secs(3 * 3600);

/// The same of a flow that has begun to end, or that has not begun.
pub const IDLE_SHORT: Duration = Duration::from_secs(120);

/// What is wanted at which taps.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of taps, with `*` and `?`.
    pub taps: Vec<glob::Pattern>,
    /// How each is served; `on` is decided here.
    pub config: Config,
    /// Places of the ring, at least.
    pub ring: Option<u32>,
    /// Flows that are followed at each.
    pub flows: u32,
    /// Bytes of frames that are retained for all guests.
    pub retained: usize,
    /// Guests' own Ethernet addresses, where they are known.
    pub guest_macs: Vec<GuestMac>,
    /// The networks that guests' addresses are in; none: any.
    pub guest_nets: Vec<Net>,
    /// Where the monitors of guests' machines are.
    pub qmp: Vec<Source>,
    /// Where it is written down what has to be put back.
    pub records: Records,
}

/// Whether a tap is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Acknowledgements are given.
    On,
    /// Somebody has asked for none; promises are still open.
    Draining,
    /// Somebody has asked for none.
    Off,
    /// Something is wrong with it: a sentence.
    Unfit(String),
}

/// All taps that are served.
#[derive(Debug)]
pub struct TapSupervisor {
    options: Options,
    copies: Copies,
    retained: Retained,
    /// No tap is served any more.
    stopping: bool,
    taps: BTreeMap<u32, Served>,
    /// What was said of devices that cannot be served, so that it is said once.
    said: BTreeMap<u32, String>,
}

/// What is counted of a tap beside packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Segments that were sent to the guest again.
    pub retransmitted: u64,
    /// Segments that could not be sent again now, such as into a full ring.
    pub not_sent: u64,
    /// Flows of which the guest lacked something that was acknowledged early.
    pub repaired: u64,
    /// Flows of which it never took it.
    pub lost: u64,
    /// The most bytes of one flow that were acknowledged early and not yet by the guest.
    pub exposure_most: u32,
}

/// What is told of a tap.
#[derive(Debug)]
pub struct Status {
    /// Its name.
    pub tap: String,
    /// Its number.
    pub index: u32,
    /// Whether it is served.
    pub state: State,
    /// What happens to the guest, if that is why it is not.
    pub held: Option<&'static str>,
    /// Places of its ring.
    pub ring: u32,
    /// What is counted beside packets.
    pub counts: Counts,
    /// Networks of peers for which nothing is acknowledged early for now.
    pub distrusted: Vec<Prefix>,
    /// Packets towards the guest, by way out.
    pub to_guest: ToGuest,
    /// Packets from it.
    pub from_guest: FromGuest,
    /// Bytes of frames that are retained for its guest.
    pub retained: usize,
    /// Its flows.
    pub flows: Vec<(Key, Flow)>,
}

/// What went wrong with one tap.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Tap(#[from] TapError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("cannot open a packet socket for {tap}: {source}; it needs CAP_NET_RAW, or root")]
    Packet { tap: String, source: std::io::Error },
}

// === impl Options ===

impl Options {
    /// These taps, as the default is.
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

    /// Those of settings that make sense.
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

    /// The guest's Ethernet address, if it was said or the tap's own says it.
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
    /// At no tap yet.
    ///
    /// # Errors
    /// [`ProgramError::Load`]: the kernel has no ring buffer for copies.
    pub fn new(options: Options) -> Result<Self, ProgramError> {
        Ok(Self {
            copies: Copies::new(copies::RING_BYTES)?,
            retained: Retained::default(),
            stopping: false,
            options,
            taps: BTreeMap::new(),
            said: BTreeMap::new(),
        })
    }

    /// A descriptor to wait with until [`TapSupervisor::retransmit`] has something to do.
    pub(crate) fn waiter(&self) -> std::io::Result<copies::Waiter> {
        self.copies.waiter()
    }

    /// Retains what has been acknowledged early, and retransmits to guests what they lack of it. `now`: CLOCK_MONOTONIC.
    /// Returns whether anything is retained, so that this has to be called again.
    pub fn retransmit(&mut self, now: Duration) -> bool {
        // All of them: what waits in the ring buffer cannot be retransmitted.
        for copy in self.copies.take() {
            if self.taps.contains_key(&copy.ifindex) {
                self.retained.add(copy, now);
            }
        }
        for (index, served) in &self.taps {
            for doubt in served.program.doubts() {
                tracing::debug!(tap = %served.device.name, ?doubt, "the guest seems to lack something");
                self.retained.suspect(&(*index, doubt.key));
            }
        }
        for id in self.retained.ids() {
            let (index, key) = id;
            let Some(served) = self.taps.get_mut(&index) else {
                self.retained.forget(index);
                continue;
            };
            // It can take nothing, and its time does not run.
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

    /// Ends early ACKs at taps for whose guests as much is retained as their share of the room allows, and has them go on
    /// when half of it is free. So no guest can take the room of the others.
    fn share_room(&mut self) {
        let share = self.options.retained / self.taps.len().max(1);
        for (index, served) in &mut self.taps {
            let bytes = self.retained.bytes_of(*index);
            let full = bytes >= share || served.full && bytes > share / 2;
            if full == served.full {
                continue;
            }
            served.full = full;
            tracing::debug!(tap = %served.device.name, bytes, full, "the share of copies");
            if let Err(error) = served.configure(self.options.config) {
                tracing::warn!(tap = %served.device.name, "{error}");
            }
        }
    }

    /// Gives no more early ACKs at any tap, and serves no new ones.
    pub(crate) fn turn_all_off(&mut self) {
        self.stopping = true;
        let config = self.options.config;
        for served in self.taps.values_mut() {
            served.turned_off = true;
            served.unfit_since = None;
            served.set(config, State::Off);
        }
    }

    /// Looks for taps that have come or gone, and at what has been promised. `now`: CLOCK_MONOTONIC.
    ///
    /// # Errors
    /// [`TapError::Socket`]: the devices cannot be listed. What cannot be done at one tap is said,
    /// and the others are served.
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
        for (index, served) in &mut self.taps {
            served.watch(self.options.config, now);
            if let Some(device) = present(index) {
                served.look_before_the_ring(self.options.config, device);
            }
        }
        for device in &devices {
            let known = self.taps.contains_key(&device.index);
            if known || self.stopping || !self.options.wants(&device.name) {
                continue;
            }
            match self.serve(device, now) {
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
        Ok(())
    }

    fn serve(&self, device: &Device, now: Duration) -> Result<Served, ServeError> {
        // What cannot be had is found out before anything is changed.
        tap::require_single_queue_tap(device)?;
        let mut program = Program::load(self.options.flows, &self.copies)?;
        program.allow(&self.options.guest_nets)?;
        let socket = PacketSocket::open(device.index, DELIVERY_MARK).map_err(|source| {
            ServeError::Packet {
                tap: device.name.clone(),
                source,
            }
        })?;
        if tap::is_filtered(device, 0, FILTER_PRIORITY)? {
            return Err(TapError::Filtered(device.name.clone()).into());
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
            unfit_since: None,
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

    /// Gives no more acknowledgements at the tap of this name, until [`TapSupervisor::turn_on`] or until it
    /// is gone: one that comes later under the same name is another guest's. Returns whether there
    /// is one.
    pub fn turn_off(&mut self, name: &str) -> bool {
        let config = self.options.config;
        let mut found = false;
        for served in self.taps.values_mut().filter(|s| s.device.name == name) {
            found = true;
            served.turned_off = true;
            // Also one that rests is not to come back by itself.
            served.unfit_since = None;
            if served.state != State::Off {
                served.set(config, State::Draining);
            }
        }
        found
    }

    /// Returns whether the guest at the tap of this name has taken everything that was acknowledged early, and what is
    /// held to be acknowledged with the next segment.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub fn is_drained(&self, name: &str) -> Result<bool, ProgramError> {
        self.are_drained(|tap| tap == name)
    }

    /// The same of all taps with such names.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub(crate) fn are_drained(&self, which: impl Fn(&str) -> bool) -> Result<bool, ProgramError> {
        for served in self.taps.values().filter(|s| which(&s.device.name)) {
            if owed(&served.program.flows()?) > 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gives acknowledgements at the tap of this name again, if nothing stands before its ring. Returns
    /// whether there is one.
    ///
    /// # Errors
    /// [`TapError::Queued`], [`TapError::Filtered`], or [`TapError::Socket`]: the devices cannot be listed.
    pub fn turn_on(&mut self, name: &str) -> Result<bool, TapError> {
        let config = self.options.config;
        let devices = tap::devices()?;
        let mut found = false;
        for served in self.taps.values_mut().filter(|s| s.device.name == name) {
            found = true;
            let device = devices.iter().find(|d| d.index == served.device.index);
            if let Some(device) = device {
                if device.has_queue() {
                    return Err(TapError::Queued(name.to_owned()));
                }
                if tap::is_filtered(device, served.program.egress_links(), FILTER_PRIORITY)? {
                    return Err(TapError::Filtered(name.to_owned()));
                }
            }
            (served.turned_off, served.hold, served.unheard) = (false, None, None);
            served.unfit_since = None;
            served.trust.restore();
            if let Err(error) = served.program.forget_source() {
                tracing::warn!(tap = %name, "{error}");
            }
            served.set(config, State::On);
        }
        Ok(found)
    }

    /// Does at the tap of this name what follows from the state of the guest's machine. `now`: CLOCK_MONOTONIC.
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

    /// The names of the taps that are served.
    pub(crate) fn names(&self) -> Vec<String> {
        let names = self.taps.values().map(|served| served.device.name.clone());
        names.collect()
    }

    /// What there is to tell of every tap.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub fn status(&self) -> Result<Vec<Status>, ProgramError> {
        let status = |(index, served): (&u32, &Served)| {
            let retained = self.retained.bytes_of(*index);
            served.status(retained)
        };
        self.taps.iter().map(status).collect()
    }
}

/// A time in the programs' ticks of 2^20 ns.
fn ticks(time: Duration) -> u32 {
    u32::try_from(time.as_nanos() >> 20).unwrap_or(u32::MAX)
}
