//! Serves taps as they come and go, and watches over the promises made at each.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytesize::ByteSize;

use crate::config::Settings;
use crate::program::{FILTER_PRIORITY, FLOWS, Program, ProgramError};
use crate::records::Records;
use crate::stalls::Stalls;
use crate::tap::{self, Device, Prepared, TapError};
use crate::wire::{Bypass, Config, Flow, FromGuest, Key, Mode, ToGuest};

/// How often devices, queueing disciplines and promises are looked at.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// When nobody has looked for so long, nothing more is acknowledged.
pub const LEASE: Duration = Duration::from_secs(10);

/// So many flows of a guest that lost what was promised are the guest's own fault, and not one
/// client's.
pub const BROKEN_FLOWS: u32 = 3;

/// Such a guest is left alone for so long.
pub const REST: Duration = Duration::from_secs(600);

/// A flow of which so many bytes were acknowledged between two looks has its share of the ring.
const MUCH: u64 = 64 * 1024;

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
pub struct Follow {
    options: Options,
    taps: BTreeMap<u32, Served>,
    /// What was said of devices that cannot be served, so that it is said once.
    said: BTreeMap<u32, String>,
}

#[derive(Debug)]
struct Served {
    device: Device,
    state: State,
    broken: u64,
    /// Flows of which that was found out since it is served.
    broken_flows: u32,
    /// When it became unfit by that.
    broken_at: Option<Duration>,
    stalls: Stalls,
    /// Bytes that were acknowledged for each flow, at the last look.
    acked: HashMap<Key, u64>,
    sharing: u32,
    /// After this, by CLOCK_MONOTONIC, nothing is acknowledged unless somebody has looked.
    until: Duration,
    program: Program,
    /// Dropped after the program: with a queue before the ring no promise may be made.
    #[expect(dead_code, reason = "it is held, and undone when it is dropped")]
    prepared: Prepared,
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
    /// Places of its ring.
    pub ring: u32,
    /// Promises that the guest turned out not to have.
    pub broken: u64,
    /// Packets towards the guest, by way out.
    pub to_guest: ToGuest,
    /// Packets from it.
    pub from_guest: FromGuest,
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
                ring: 0,
                sharing: 0,
                awake_ticks: Config::AWAKE,
            },
            ring: settings.ring,
            flows: settings.flows.unwrap_or(FLOWS),
            ..Self::new(settings.taps.clone())
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.taps.iter().any(|pattern| pattern.matches(name))
    }
}

// === impl Follow ===

impl Follow {
    /// At no tap yet.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            taps: BTreeMap::new(),
            said: BTreeMap::new(),
        }
    }

    /// Looks for taps that have come or gone, and at what has been promised. `now`: CLOCK_MONOTONIC.
    ///
    /// # Errors
    /// [`TapError::Socket`]: the devices cannot be listed. What cannot be done at one tap is said,
    /// and the others are served.
    pub fn look(&mut self, now: Duration) -> Result<(), TapError> {
        let devices = tap::devices()?;
        let present = |index: &u32| devices.iter().find(|device| device.index == *index);
        self.said.retain(|index, _| present(index).is_some());
        self.taps.retain(|index, served| {
            let stays = present(index).is_some();
            if !stays {
                tracing::info!(tap = %served.device.name, "gone");
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
            if self.taps.contains_key(&device.index) || !self.options.wants(&device.name) {
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
        tap::judge(device)?;
        let mut program = Program::load(self.options.flows)?;
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
            broken: 0,
            broken_flows: 0,
            broken_at: None,
            stalls: Stalls::default(),
            acked: HashMap::new(),
            sharing: 0,
            until: now + LEASE,
            program,
            prepared,
        };
        served.configure(self.options.config)?;
        Ok(served)
    }

    /// Gives no more acknowledgements at the tap of this name, until [`Follow::turn_on`] or until it
    /// is gone: one that comes later under the same name is another guest's. Returns whether there
    /// is one.
    pub fn turn_off(&mut self, name: &str) -> bool {
        let config = self.options.config;
        let mut found = false;
        for served in self.taps.values_mut().filter(|s| s.device.name == name) {
            found = true;
            // Also one that rests is not to come back by itself.
            served.broken_at = None;
            if served.state != State::Off {
                served.set(config, State::Draining);
            }
        }
        found
    }

    /// Whether nothing that was promised at the tap, or would be with what comes after it, is still to be
    /// taken by its guest.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub fn is_drained(&self, name: &str) -> Result<bool, ProgramError> {
        for served in self.taps.values().filter(|s| s.device.name == name) {
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
            served.broken_flows = 0;
            served.broken_at = None;
            served.set(config, State::On);
        }
        Ok(found)
    }

    /// What there is to tell of every tap.
    ///
    /// # Errors
    /// [`ProgramError::Map`].
    pub fn status(&self) -> Result<Vec<Status>, ProgramError> {
        self.taps.values().map(Served::status).collect()
    }
}

// === impl Served ===

impl Served {
    fn set(&mut self, config: Config, state: State) {
        let before = std::mem::replace(&mut self.state, state);
        if let Err(error) = self.configure(config) {
            tracing::error!(tap = %self.device.name, "{error}");
            self.state = before;
        }
    }

    fn configure(&self, config: Config) -> Result<(), ProgramError> {
        let config = Config {
            on: self.state == State::On,
            ring: self.device.ring,
            sharing: self.sharing,
            ..config
        };
        self.program.configure(&config, self.until)
    }

    fn watch(&mut self, config: Config, now: Duration) {
        self.until = now + LEASE;
        let watched = self.watch_promises(config, now);
        if let Err(error) = watched.and_then(|()| self.configure(config)) {
            tracing::warn!(tap = %self.device.name, "{error}");
        }
    }

    /// With a queue or a filter before the ring, what is said to be delivered may not be.
    fn look_before_the_ring(&mut self, config: Config, device: &Device) {
        if self.state != State::On {
            return;
        }
        let name = &device.name;
        let own = self.program.egress_links();
        let why = if device.has_queue() {
            format!(
                "`tc qdisc replace dev {name} root noqueue`, for there is a queue before the ring"
            )
        } else {
            match tap::is_filtered(device, own, FILTER_PRIORITY) {
                Ok(false) => return,
                Ok(true) => {
                    "its other filters are gone, for they may take what has been acknowledged"
                        .to_owned()
                }
                Err(error) => {
                    tracing::warn!(tap = %name, "{error}");
                    return;
                }
            }
        };
        tracing::warn!(tap = %name, "nothing is promised until {why}, and `taut snoop --on {name}`");
        self.set(config, State::Unfit(format!("until {why}")));
    }

    fn watch_promises(&mut self, config: Config, now: Duration) -> Result<(), ProgramError> {
        let flows = self.program.flows()?;
        for doubt in self.program.doubts() {
            tracing::warn!(
                tap = %self.device.name, flow = %doubt.key, lacks = doubt.lacks, reach = doubt.reach,
                "the guest seems to lack bytes that were acknowledged for it; the flow is left alone"
            );
        }
        let broken = self.stalls.look(self.heard()?, &flows);
        for one in &broken {
            tracing::error!(
                tap = %self.device.name, flow = %one.key, lacks = one.told_seq.wrapping_sub(one.vm_seq),
                "the guest lacks bytes that were acknowledged for it, which cannot be repaired"
            );
            self.program.leave(&one.key)?;
        }
        self.broken += broken.len() as u64;
        self.broken_flows += broken.len() as u32;
        if self.broken_flows >= BROKEN_FLOWS && self.state == State::On {
            tracing::error!(
                tap = %self.device.name,
                "nothing is acknowledged for this guest for the next {} minutes", REST.as_secs() / 60
            );
            self.set(
                config,
                State::Unfit("the guest lost what was promised".into()),
            );
            self.broken_at = Some(now);
        }
        if self
            .broken_at
            .is_some_and(|at| now.saturating_sub(at) > REST)
        {
            self.broken_at = None;
            self.broken_flows = 0;
            self.set(config, State::On);
        }
        self.sharing = self.sharers(&flows);
        if self.state == State::Draining && owed(&flows) == 0 {
            tracing::info!(tap = %self.device.name, "drained: nothing is owed");
            self.state = State::Off;
        }
        for (key, flow) in &flows {
            let idle = now.saturating_sub(Duration::from_nanos(flow.seen_ns));
            if idle > patience(flow) {
                self.program.forget(key)?;
            }
        }
        Ok(())
    }

    /// Flows that fill the ring: of which much was acknowledged since the last look.
    fn sharers(&mut self, flows: &[(Key, Flow)]) -> u32 {
        let acked: HashMap<_, _> = flows
            .iter()
            .map(|(key, flow)| (*key, flow.acked_bytes))
            .collect();
        let much = acked.iter().filter(|(key, now)| {
            let before = self.acked.get(key).copied().unwrap_or(0);
            now.saturating_sub(before) >= MUCH
        });
        let sharing = much.count() as u32;
        self.acked = acked;
        sharing
    }

    /// Packets that the guest itself has sent.
    fn heard(&self) -> Result<u64, ProgramError> {
        let ways = self.program.from_guest()?;
        let own = ways
            .iter()
            .filter(|(way, _)| !["ours", "leftover"].contains(way));
        Ok(own.map(|(_, count)| count).sum())
    }

    fn status(&self) -> Result<Status, ProgramError> {
        Ok(Status {
            tap: self.device.name.clone(),
            index: self.device.index,
            state: self.state.clone(),
            ring: self.device.ring,
            broken: self.broken,
            to_guest: self.program.to_guest()?,
            from_guest: self.program.from_guest()?,
            flows: self.program.flows()?,
        })
    }
}

/// Bytes that senders believe a guest to have, or may come to, and that it has not taken.
fn owed(flows: &[(Key, Flow)]) -> u64 {
    // What was lost will not be taken.
    let lost = Mode::Bypass(Bypass::BrokenPromise);
    let open = flows.iter().filter(|(_, flow)| flow.mode != lost);
    open.map(|(_, flow)| u64::from(flow.owed())).sum()
}

fn patience(flow: &Flow) -> Duration {
    match flow.mode {
        // What is owed is not forgotten.
        _ if flow.promised() > 0 => IDLE,
        // A SYN that nobody answers, or that nobody meant (a flood of them would fill the table).
        Mode::Syn
        | Mode::Unproven
        | Mode::Bypass(Bypass::Closing | Bypass::BrokenPromise | Bypass::Doubt) => IDLE_SHORT,
        _ => IDLE,
    }
}
