//! `taut_pipe`, the congestion control of legs between relays: it starts at the known rate of the
//! leg, paces, repairs rare losses without backing off, and hands a connection to the kernel's own
//! control when loss persists (pied-piper 3.1; `docs/design/turbo.md`).
//!
//! `taut_pipe` is written in BPF. It is registered while the [`Pipe`] lives, and unregistered
//! however the process ends. Existing connections keep it after that: the kernel holds the programs
//! for them and refuses `taut_pipe` only to new connections.

mod address;
mod layout;
mod name;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use libbpf_rs::btf::Btf;
use libbpf_rs::{ErrorKind, Link};
use rustix::time::{ClockId, clock_gettime};
use taut_bpf::kernel::cong_control_arguments;
use taut_bpf::{CounterMap, Error, Map, Object, Open};
use taut_sys::privileges::{self, Capability};
use taut_sys::socket::has_congestion_control;

use layout::{Config, FALLBACKS};

taut_bpf::bindings!(mod raw from "taut_pipe");

/// The events that `taut_pipe` counts.
pub use raw::PipeCount as Count;
/// The counts so far, over all connections.
pub type Counters = taut_bpf::Counters<Count>;

/// The object file that the build script compiles from `taut_pipe.bpf.c`.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/taut_pipe.bpf.o"));

/// How long what was learnt of a peer counts.
const KNOWN_FOR: Duration = Duration::from_secs(raw::PIPE_KNOWN_FOR_S as u64);

/// How the leg to a peer starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegStart {
    /// The initial rate in bytes a second, unless another rate is known for the peer.
    pub rate: u64,
    /// The bytes that a connection may send before the first acknowledgement, and the minimum of
    /// its window.
    pub window: u32,
}

impl Default for LegStart {
    /// 125 MB/s (1 Gbit/s, the rate of the smallest cloud machines) and 2 MB.
    fn default() -> Self {
        Self {
            rate: 125_000_000,
            window: 2_000_000,
        }
    }
}

/// The options of a pipe, shared by every connection that uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipeOptions {
    /// How legs start, unless [`Pipe::set_leg`] says otherwise for their peer.
    pub start: LegStart,
    /// The kernel's congestion controls for connections with persistent loss, the best first. The
    /// first three that the kernel has are used.
    pub fallback: Vec<String>,
    /// The same for connections whose persistent losses come with a queue, so with the flows of others.
    pub fallback_with_queue: Vec<String>,
}

impl Default for PipeOptions {
    /// BBR, else Cubic, else Reno, which every kernel has. With a queue, BBR is the last: its version in the
    /// kernel does not share a link with Cubic.
    fn default() -> Self {
        Self {
            start: LegStart::default(),
            fallback: ["bbr", "cubic", "reno"].map(str::to_owned).to_vec(),
            fallback_with_queue: ["cubic", "reno", "bbr"].map(str::to_owned).to_vec(),
        }
    }
}

/// What is known of the leg to a peer, and what its connections do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// The rate that was found to reach the peer, in bytes a second; `None` if none was measured in the
    /// last hour.
    pub rate: Option<u64>,
    /// The last congestion window of a connection that measured, in bytes; 0 before.
    pub window: u32,
    /// Connections with data in flight.
    pub active: u32,
}

/// The reason why `taut_pipe` is not available. Legs then use BBR, which also keeps its window
/// through idle time, and large buffers.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// The options are invalid.
    #[error("the congestion control taut_pipe cannot be set up: {0}")]
    Options(&'static str),
    /// The kernel has none of the fall-back controls.
    #[error(
        "the congestion control taut_pipe needs one to fall back to, and the kernel has none of {}; \
         `sysctl net.ipv4.tcp_available_congestion_control` shows what it has",
        .0.join(", ")
    )]
    NoFallback(Vec<String>),
    /// The kernel lacks a feature, or denies it to this process.
    #[error("the congestion control taut_pipe is not available: {action}: {source}{}", hint(.source))]
    Kernel {
        /// The action that failed.
        action: &'static str,
        /// The kernel's error.
        source: Error,
    },
    /// Other processes have registered both names.
    #[error(
        "the congestion control taut_pipe is not available: the names {} are registered by others, and names \
         are the whole machine's; stop one of the relays that run here",
        .0.join(" and ")
    )]
    NamesTaken(Vec<String>),
}

fn hint(source: &Error) -> String {
    match source.kind() {
        ErrorKind::PermissionDenied => {
            let needed = [Capability::Bpf, Capability::Perfmon, Capability::NetAdmin];
            format!("; {}", privileges::advice(&needed))
        }
        _ => {
            "; it takes Linux 6.4 or newer with CONFIG_DEBUG_INFO_BTF and CONFIG_BPF_JIT".to_owned()
        }
    }
}

fn failed(action: &'static str) -> impl FnOnce(Error) -> Unavailable {
    move |source| Unavailable::Kernel { action, source }
}

/// `taut_pipe`, registered with the kernel until this is dropped.
pub struct Pipe {
    name: String,
    counts: CounterMap<Count>,
    peers: Map<[u8; 16], raw::PipeLeg>,
    defaults: Map<u32, raw::PipeSettings>,
    settings: Map<[u8; 16], raw::PipeSettings>,
    /// The registration, dropped first.
    _link: Link,
    _object: Object,
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipe").field("name", &self.name).finish()
    }
}

// === impl Leg ===

impl Leg {
    /// Returns what the kernel's element says at `now`, a time of `CLOCK_MONOTONIC`, as its stamps are.
    fn at(leg: &raw::PipeLeg, now: Duration) -> Self {
        let age = now.saturating_sub(Duration::from_nanos(leg.stamp));
        Self {
            rate: (leg.rate != 0 && age < KNOWN_FOR).then_some(leg.rate),
            window: leg.window,
            active: u32::try_from(leg.active).unwrap_or(0),
        }
    }
}

// === impl Pipe ===

impl Pipe {
    /// Registers the control as `taut_pipe`, or with a suffix if that name is taken. From then on,
    /// libbpf's messages go to the log.
    ///
    /// # Errors
    /// [`Unavailable`]; nothing is left behind then.
    pub fn load(options: &PipeOptions) -> Result<Self, Unavailable> {
        if options.start.rate == 0 || options.start.rate > layout::MAX_RATE {
            return Err(Unavailable::Options(
                "its rate must be between 1 byte and 1 TB a second",
            ));
        }
        let config = Config {
            fallback: available(&options.fallback),
            fallback_with_queue: available(&options.fallback_with_queue),
            rate_sample: rate_sample_argument()?,
        };
        for (found, names) in [
            (&config.fallback, &options.fallback),
            (&config.fallback_with_queue, &options.fallback_with_queue),
        ] {
            if found.is_empty() {
                return Err(Unavailable::NoFallback(names.clone()));
            }
        }
        let random = u32::from_ne_bytes(taut_sys::random::bytes());
        let names = name::candidates(std::process::id(), random);
        for name in &names {
            if let Some(pipe) = Self::register(name, &config)? {
                pipe.set_default(options.start)
                    .map_err(failed("setting its initial rate"))?;
                return Ok(pipe);
            }
        }
        Err(Unavailable::NamesTaken(names.into()))
    }

    /// Loads the control under one name. Returns `None` if the name is taken.
    fn register(name: &str, config: &Config) -> Result<Option<Self>, Unavailable> {
        let mut open = Open::new("taut_pipe", OBJECT).map_err(failed("opening its programs"))?;
        open.set_constant(".rodata.config", &config.encode())
            .map_err(failed("configuring it"))?;
        let mut operations = open.map("taut_pipe").map_err(failed("naming it"))?;
        if let Some(initial) = operations.initial_value_mut() {
            name::write(name, initial);
        }
        let mut object = open.load().map_err(failed("loading its programs"))?;
        let mut map = object
            .map_mut("taut_pipe")
            .map_err(failed("registering it"))?;
        let link = match map.attach_struct_ops() {
            Ok(link) => link,
            Err(e) if e.kind() == ErrorKind::AlreadyExists => return Ok(None),
            Err(e) => return Err(failed("registering it")(Error::during("register it")(e))),
        };
        Ok(Some(Self {
            name: name.to_owned(),
            counts: object
                .counters("counts")
                .map_err(failed("opening its counters"))?,
            peers: object
                .map("peers")
                .map_err(failed("opening its table of peers"))?,
            defaults: object
                .map("defaults")
                .map_err(failed("opening its settings"))?,
            settings: object
                .map("settings")
                .map_err(failed("opening its settings of peers"))?,
            _link: link,
            _object: object,
        }))
    }

    /// Returns the name under which sockets of this process can use the control
    /// ([`taut_sys::socket::LegOptions::congestion`]).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the counts so far, over all connections.
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn counters(&self) -> Result<Counters, Error> {
        self.counts.read()
    }

    /// Sets how legs start. A connection adopts it when it begins to send after idle time.
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn set_default(&self, start: LegStart) -> Result<(), Error> {
        self.defaults.insert(&0, &encode(start))
    }

    /// Sets how the leg to `peer` starts; `None`: as legs do by default.
    ///
    /// # Errors
    /// The kernel's, if 4096 peers have settings of their own.
    pub fn set_leg(&self, peer: IpAddr, start: Option<LegStart>) -> Result<(), Error> {
        let key = address::key(peer);
        match start {
            Some(start) => self.settings.insert(&key, &encode(start)),
            None if self.settings.get(&key)?.is_some() => self.settings.remove(&key).map(drop),
            None => Ok(()),
        }
    }

    /// Returns what is known of the leg to `peer`, if it has been used.
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn leg(&self, peer: IpAddr) -> Result<Option<Leg>, Error> {
        let leg = self.peers.get(&address::key(peer))?;
        // After the element: what is learnt later than `now` would have no age.
        let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
        Ok(leg.map(|leg| Leg::at(&leg, now)))
    }

    /// Returns the rate in bytes a second that was found to reach `peer`. New connections use it
    /// for an hour.
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn known_rate(&self, peer: IpAddr) -> Result<Option<u64>, Error> {
        Ok(self.leg(peer)?.and_then(|leg| leg.rate))
    }
}

/// Returns the first of `names` that the kernel has, and loads their modules: a BPF program that selects
/// a control does not.
fn available(names: &[String]) -> Vec<String> {
    let mut found: Vec<String> = names.to_vec();
    found.retain(|name| has_congestion_control(name));
    found.truncate(FALLBACKS);
    found
}

fn encode(start: LegStart) -> raw::PipeSettings {
    raw::PipeSettings {
        rate: start.rate.clamp(1, layout::MAX_RATE),
        window: start.window,
        reserved: 0,
    }
}

/// Returns the index of the rate sample among the arguments of `cong_control`: Linux 6.10 put two
/// arguments before it. The kernel's BTF is examined, because version numbers do not prove it.
fn rate_sample_argument() -> Result<u32, Unavailable> {
    let btf = Btf::from_vmlinux().map_err(Error::during("read the kernel's types (BTF)"));
    let btf = btf.map_err(failed("looking at the kernel"))?;
    Ok(match cong_control_arguments(&btf) {
        Some(4) => 3,
        _ => 1,
    })
}

#[cfg(test)]
mod trial;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_rate_of_a_leg_is_unknown_after_an_hour() {
        let learnt = Duration::from_secs(5);
        let raw = raw::PipeLeg {
            rate: 7,
            stamp: 5_000_000_000,
            window: 9,
            active: 2,
            ..raw::PipeLeg::default()
        };
        let rate = |now| Leg::at(&raw, now).rate;
        let hour = Duration::from_secs(3600);
        assert_eq!(rate(learnt), Some(7));
        assert_eq!(rate(learnt + hour - Duration::from_nanos(1)), Some(7));
        assert_eq!(rate(learnt + hour), None);
        // The rest is not a finding that ages.
        let old = Leg::at(&raw, learnt + hour);
        assert_eq!((old.window, old.active), (9, 2));
    }

    #[test]
    fn invalid_options_are_refused_before_the_kernel_is_asked() {
        for rate in [0, layout::MAX_RATE + 1] {
            let options = PipeOptions {
                start: LegStart {
                    rate,
                    ..LegStart::default()
                },
                ..PipeOptions::default()
            };
            assert!(matches!(Pipe::load(&options), Err(Unavailable::Options(_))));
        }
    }

    #[test]
    fn without_anything_to_fall_back_to_there_is_no_pipe() {
        let missing = vec!["no-such-one".to_owned()];
        let always = PipeOptions {
            fallback: missing.clone(),
            ..PipeOptions::default()
        };
        let with_queue = PipeOptions {
            fallback_with_queue: missing,
            ..PipeOptions::default()
        };
        for options in [always, with_queue] {
            let refused = Pipe::load(&options).expect_err("nothing to fall back to");
            assert!(refused.to_string().contains("no-such-one"), "{refused}");
        }
    }
}
