//! `taut_pipe`, the congestion control of the legs between relays: it starts at the rate that the leg is
//! known for, paces, repairs rare losses without backing off, and hands a connection to the kernel's
//! own control when loss persists (pied-piper 3.1; `docs/design/turbo.md`).
//!
//! It is written in BPF and registered for as long as the [`Pipe`] lives, however its process ends.
//! Connections that use it then go on with it: the kernel keeps the programs for them, and only
//! refuses it to new ones.

mod address;
mod counters;
mod layout;
mod name;

use std::fmt;
use std::net::IpAddr;

use libbpf_rs::btf::types::{FuncProto, Ptr};
use libbpf_rs::btf::{Btf, BtfType, ReferencesType};
use libbpf_rs::{ErrorKind, Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel};
use taut_sys::socket::has_congestion_control;

pub use counters::{Count, Counters};
use layout::{Config, FALLBACKS};

/// Compiled by the build script from `taut_pipe.bpf.c`.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/taut_pipe.bpf.o"));

/// How a pipe behaves. Every connection that uses it shares this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipeOptions {
    /// The rate at which a connection begins, in bytes a second, unless its socket has a lower pacing
    /// ceiling or its peer is known for a lower rate. It never sends faster.
    pub rate: u64,
    /// What a connection may send before the first acknowledgement, in bytes, and the least that its
    /// window ever is.
    pub initial_window: u32,
    /// Congestion controls of the kernel for connections on which loss persists, the best first; of
    /// those that the kernel has, the first three count.
    pub fallback: Vec<String>,
}

impl Default for PipeOptions {
    /// 125 MB/s (1 Gbit/s, what the smallest machines of clouds are given), 2 MB, BBR or else Cubic or
    /// else Reno, which every kernel has.
    fn default() -> Self {
        Self {
            rate: 125_000_000,
            initial_window: 2_000_000,
            fallback: ["bbr", "cubic", "reno"].map(str::to_owned).to_vec(),
        }
    }
}

/// Why `taut_pipe` cannot be had. Legs then take the next best: BBR, which also keeps its window through
/// idle time, and large buffers.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// The options make no sense.
    #[error("the congestion control taut_pipe cannot be set up: {0}")]
    Options(&'static str),
    /// The kernel has none of the fall-backs.
    #[error(
        "the congestion control taut_pipe needs one to fall back to, and the kernel has none of {}; \
         `sysctl net.ipv4.tcp_available_congestion_control` shows what it has",
        .0.join(", ")
    )]
    NoFallback(Vec<String>),
    /// The kernel cannot do it, or not for this process.
    #[error("the congestion control taut_pipe is not available: {action}: {source}{}", hint(.source))]
    Kernel {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        source: libbpf_rs::Error,
    },
    /// Other processes have registered every name that this one would take.
    #[error(
        "the congestion control taut_pipe is not available: the names {} are registered by others, and names \
         are the whole machine's; stop one of the relays that run here",
        .0.join(" and ")
    )]
    NamesTaken(Vec<String>),
}

fn hint(source: &libbpf_rs::Error) -> &'static str {
    match source.kind() {
        ErrorKind::PermissionDenied => {
            "; it takes CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN: run this as root"
        }
        _ => "; it takes Linux 6.4 or newer with CONFIG_DEBUG_INFO_BTF and CONFIG_BPF_JIT",
    }
}

fn failed(action: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Unavailable {
    move |source| Unavailable::Kernel { action, source }
}

/// `taut_pipe`, registered with the kernel until this is dropped.
pub struct Pipe {
    name: String,
    counts: MapHandle,
    peers: MapHandle,
    /// The registration. It goes first.
    _link: Link,
    _object: Object,
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipe").field("name", &self.name).finish()
    }
}

// === impl Pipe ===

impl Pipe {
    /// Registers it: as `taut_pipe`, or with a suffix of its own when that is taken. What libbpf has to
    /// say goes to the log from here on.
    ///
    /// # Errors
    /// See [`Unavailable`]; nothing is left behind then.
    pub fn load(options: &PipeOptions) -> Result<Self, Unavailable> {
        if options.rate == 0 || options.rate > layout::MAX_RATE {
            return Err(Unavailable::Options(
                "its rate must be between 1 byte and 1 TB a second",
            ));
        }
        // The verifier's account of a refusal is long, and not for the terminal.
        libbpf_rs::set_print(Some((PrintLevel::Warn, |_, message| {
            tracing::debug!(target: "libbpf", "{}", message.trim_end());
        })));
        let config = Config {
            rate: options.rate,
            initial_window: options.initial_window,
            // From here, because a BPF program that asks for one that is a module does not load it.
            fallback: options
                .fallback
                .iter()
                .filter(|name| has_congestion_control(name))
                .take(FALLBACKS)
                .cloned()
                .collect(),
            rate_sample: rate_sample_argument()?,
        };
        if config.fallback.is_empty() {
            return Err(Unavailable::NoFallback(options.fallback.clone()));
        }
        let names = name::candidates(std::process::id());
        for name in &names {
            if let Some(pipe) = Self::register(name, &config)? {
                return Ok(pipe);
            }
        }
        Err(Unavailable::NamesTaken(names.into()))
    }

    /// Loads it under one name; `None` when that is taken.
    fn register(name: &str, config: &Config) -> Result<Option<Self>, Unavailable> {
        let mut open = ObjectBuilder::default()
            .name("taut_pipe")
            .and_then(|builder| builder.open_memory(OBJECT))
            .map_err(failed("opening its programs"))?;
        for mut map in open.maps_mut() {
            let map_name = map.name().to_owned();
            let Some(initial) = map.initial_value_mut() else {
                continue;
            };
            if map_name == "taut_pipe" {
                name::write(name, initial);
            } else if map_name.as_encoded_bytes().ends_with(b"rodata.config") {
                config.write(initial);
            }
        }
        let mut object = open.load().map_err(failed("loading its programs"))?;
        let mut link = None;
        let mut counts = None;
        let mut peers = None;
        for mut map in object.maps_mut() {
            match map.name().as_encoded_bytes() {
                b"taut_pipe" => match map.attach_struct_ops() {
                    Ok(attached) => link = Some(attached),
                    Err(e) if e.kind() == ErrorKind::AlreadyExists => return Ok(None),
                    Err(e) => return Err(failed("registering it")(e)),
                },
                b"counts" => counts = Some(MapHandle::try_from(&*map)),
                b"peers" => peers = Some(MapHandle::try_from(&*map)),
                _ => {}
            }
        }
        let (Some(link), Some(counts), Some(peers)) = (link, counts, peers) else {
            unreachable!("the object that this is built with has these maps");
        };
        Ok(Some(Self {
            name: name.to_owned(),
            counts: counts.map_err(failed("opening its counters"))?,
            peers: peers.map_err(failed("opening its table of peers"))?,
            _link: link,
            _object: object,
        }))
    }

    /// The name under which sockets of this process can have it
    /// ([`taut_sys::socket::LegOptions::congestion`]).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it has done so far, for all its connections.
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn counters(&self) -> Result<Counters, libbpf_rs::Error> {
        Counters::read(&self.counts)
    }

    /// The rate in bytes a second that was found to reach `peer`, where that was less than the
    /// configured one. Used for an hour after it was found.
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn known_rate(&self, peer: IpAddr) -> Result<Option<u64>, libbpf_rs::Error> {
        let value = self.peers.lookup(&address::key(peer), MapFlags::ANY)?;
        Ok(value.and_then(|value| Some(u64::from_ne_bytes(*value.first_chunk()?))))
    }
}

/// Which argument of `cong_control` is the rate sample: Linux 6.10 put two before it. The
/// kernel's own description of its types tells, whatever its version says.
fn rate_sample_argument() -> Result<u32, Unavailable> {
    let btf = Btf::from_vmlinux().map_err(failed("reading the kernel's types (BTF)"))?;
    Ok(match cong_control_arguments(&btf) {
        Some(4) => 3,
        _ => 1,
    })
}

fn cong_control_arguments(btf: &Btf<'_>) -> Option<usize> {
    let ops: libbpf_rs::btf::types::Struct<'_> = btf.type_by_name("tcp_congestion_ops")?;
    let member = ops
        .iter()
        .find(|member| member.name.is_some_and(|name| name == "cong_control"))?;
    let pointer: BtfType<'_> = btf.type_by_id(member.ty)?;
    let pointer = Ptr::try_from(pointer).ok()?;
    let function = FuncProto::try_from(pointer.referenced_type()).ok()?;
    Some(function.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_without_sense_are_refused_before_the_kernel_is_asked() {
        for rate in [0, layout::MAX_RATE + 1] {
            let options = PipeOptions {
                rate,
                ..PipeOptions::default()
            };
            assert!(matches!(Pipe::load(&options), Err(Unavailable::Options(_))));
        }
    }

    #[test]
    fn without_anything_to_fall_back_to_there_is_no_pipe() {
        let options = PipeOptions {
            fallback: vec!["no-such-one".to_owned()],
            ..PipeOptions::default()
        };
        let refused = Pipe::load(&options).expect_err("nothing to fall back to");
        assert!(refused.to_string().contains("no-such-one"), "{refused}");
    }
}
