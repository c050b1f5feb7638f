//! Loads the congestion controls, so that they outlive the command, and takes them away again.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Func, FuncProto, Ptr, Struct};
use libbpf_rs::{
    Link, MapCore as _, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel,
    ProgramInput,
};
use rustix::fs::{FlockOperation, flock};
use rustix::net::sockopt::set_tcp_congestion;
use rustix::net::{AddressFamily, SocketType, socket};
use taut_sys::Errno;

use crate::control::Control;
use crate::pins::{BPF_FS, Pins, map_name};
use crate::since::Since;

/// One command at a time changes what is pinned and what is the default.
const LOCK: &str = "/run/taut/guest.lock";

const GAP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gap.bpf.o"));
const BBR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bbr.bpf.o"));
const CUBIC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cubic.bpf.o"));

const TIMER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/timer.bpf.o"));

/// A gap that is shorter is none. A timer of a machine that is on its CPU is late by tens of microseconds, by a few hundred where
/// the kernel has its interrupts off; a hypervisor's slice is 3 ms and more.
const SHORTEST_NS: u64 = 2_000_000;

/// Why they cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Without privileges.
    #[error("run this as root: it loads BPF programs")]
    NotRoot,
    /// The kernel does not say what its types are.
    #[error(
        "the kernel has no BTF (/sys/kernel/btf/vmlinux, CONFIG_DEBUG_INFO_BTF), without which nothing can be loaded; the kernels of \
         Debian 11, Ubuntu 20.10, RHEL 8.2 and newer have it"
    )]
    NoBtf,
    /// Nowhere to pin them.
    #[error("{BPF_FS} is no BPF file system, where they are kept; run `mount -t bpf bpf {BPF_FS}`")]
    NoBpfFs,
    /// What is pinned there others could exchange.
    #[error(
        "{path} is no directory of root's that only root can write to, so that others could choose what is loaded or removed: see who \
         made it (`ls -ld {path}`), remove it and run this again"
    )]
    NotRoots {
        /// Where.
        path: PathBuf,
    },
    /// The kernel's own is missing.
    #[error(
        "the kernel has no {name} that could be called ({config}): {source}; `modprobe tcp_{name}` may say more"
    )]
    NoOwn {
        /// Which.
        name: &'static str,
        /// What builds it.
        config: &'static str,
        /// What the kernel says.
        source: Errno,
    },
    /// It is there, but its types are not known, or it may not be called.
    #[error(
        "the kernel's {name} cannot be called from BPF: neither the kernel's BTF nor /sys/kernel/btf/tcp_{name} has {function}()"
    )]
    NotCallable {
        /// Which.
        name: &'static str,
        /// Of it.
        function: &'static str,
    },
    /// The kernel does not take it.
    #[error(
        "the kernel does not take {what}: {source} (with TAUT_LOG=taut_guest=debug it is said why)"
    )]
    Load {
        /// What.
        what: &'static str,
        /// Why.
        source: libbpf_rs::Error,
    },
    /// A file.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// What was tried.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What was loaded.
#[derive(Debug, Default)]
pub struct Up {
    /// It was there already.
    pub was_up: bool,
    /// What works less well here than it could, in one sentence each.
    pub troubles: Vec<String>,
}

/// Held while a command changes what is loaded and what is the default, so that no other does meanwhile.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "it is held")] File);

// === impl Lock ===

impl Lock {
    /// When nobody else has it any more.
    ///
    /// # Errors
    /// [`LoadError::NotRoot`], or a file's.
    pub fn take() -> Result<Self, LoadError> {
        if !taut_sys::probe::is_root() {
            return Err(LoadError::NotRoot);
        }
        let path = Path::new(LOCK);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed("make", folder))?;
        }
        let file = File::create(path).map_err(failed("open", path))?;
        let lock = flock(&file, FlockOperation::LockExclusive);
        lock.map_err(|e| failed("lock", path)(e.into()))?;
        Ok(Self(file))
    }
}

/// Loads and pins what is not there yet.
///
/// # Errors
/// [`LoadError`]; then nothing is left of it.
pub fn up(_: &Lock) -> Result<Up, LoadError> {
    check()?;
    if let Some(pins) = Pins::find()? {
        if pins.is_complete() {
            return Ok(Up {
                was_up: true,
                troubles: Vec::new(),
            });
        }
        // Of one that was killed half-way.
        pins.clear()?;
    }
    let pins = Pins::make()?;
    let loaded = load_all(&pins);
    if loaded.is_err() {
        let _ = pins.clear();
    }
    loaded
}

/// Takes away what [`up`] has loaded; whether there was anything. Connections that have one of them keep it until they end.
///
/// # Errors
/// [`LoadError`].
pub fn down(_: &Lock) -> Result<bool, LoadError> {
    Pins::find()?.map_or(Ok(false), Pins::clear)
}

/// The programs that see gaps, while it is held.
pub(crate) struct Detector {
    object: Object,
    _tick: Link,
}

// === impl Detector ===

impl Detector {
    /// # Errors
    /// [`LoadError`].
    pub(crate) fn load() -> Result<Self, LoadError> {
        check()?;
        let object = load_gap()?;
        let tick = attach_tick(&object)?;
        Ok(Self {
            object,
            _tick: tick,
        })
    }

    pub(crate) fn map(&self, name: &'static str) -> Result<MapHandle, LoadError> {
        handle(&self.object, name)
    }
}

impl std::fmt::Debug for Detector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Detector").finish_non_exhaustive()
    }
}

pub(crate) fn check() -> Result<(), LoadError> {
    if !taut_sys::probe::is_root() {
        return Err(LoadError::NotRoot);
    }
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err(LoadError::NoBtf);
    }
    Ok(())
}

fn load_all(pins: &Pins) -> Result<Up, LoadError> {
    for control in Control::ALL {
        bring_in(control)?;
    }
    let mut up = Up::default();
    let mut gap = load_gap()?;
    let now = Since::now();
    match attach_tick(&gap) {
        Ok(mut tick) => tick.pin(pins.path("tick")).map_err(refused("the tick's watch"))?,
        Err(error) => up.troubles.push(format!(
            "the tick cannot be watched, so that gaps are only seen by connections of taut_bbr: {error}"
        )),
    }
    for mut map in gap.maps_mut() {
        if let Some(name @ ("gaps" | "counts")) = map.name().to_str() {
            map.pin(pins.path(name)).map_err(refused("maps"))?;
        }
    }
    for control in Control::ALL {
        register(pins, control)?;
    }
    if !Kernel::look().has_one_cpu && !binds_timers().unwrap_or(false) {
        up.troubles.push(
            "this kernel cannot bind timers to a CPU (Linux 6.7 and newer can), so that taut_bbr does not see gaps that begin while a \
             CPU idles: it corrects less on machines with several CPUs"
                .to_owned(),
        );
    }
    // The last: with it all of it is there.
    let mut since = gap.maps_mut().find(|map| map.name() == "since");
    let since = since.as_mut().ok_or_else(none("maps"))?;
    since
        .update(&0_u32.to_ne_bytes(), &now, MapFlags::ANY)
        .map_err(refused("maps"))?;
    since.pin(pins.path("since")).map_err(refused("maps"))?;
    Ok(up)
}

/// Has the kernel load its own, if that is a module.
fn bring_in(control: Control) -> Result<(), LoadError> {
    let name = control.kernels();
    let missing = |source| LoadError::NoOwn {
        name,
        config: control.configuration(),
        source,
    };
    // On a socket that is never connected: the kernel then looks for the module itself.
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).map_err(missing)?;
    set_tcp_congestion(&socket, name).map_err(missing)?;
    let function = match control {
        Control::Bbr => "bbr_main",
        Control::Cubic => "cubictcp_acked",
    };
    let module = format!("/sys/kernel/btf/tcp_{name}");
    let is_built_in = || {
        Some(
            Btf::from_vmlinux()
                .ok()?
                .type_by_name::<Func<'_>>(function)
                .is_some(),
        )
    };
    match Path::new(&module).exists() || is_built_in().unwrap_or(false) {
        true => Ok(()),
        false => Err(LoadError::NotCallable { name, function }),
    }
}

fn open(bytes: &[u8], what: &'static str) -> Result<OpenObject, LoadError> {
    libbpf_rs::set_print(Some((PrintLevel::Debug, |_, text| {
        tracing::debug!("{}", text.trim_end());
    })));
    let mut builder = ObjectBuilder::default();
    let named = builder.name("taut_guest").map_err(refused(what))?;
    let mut object = named.open_memory(bytes).map_err(refused(what))?;
    let kernel = Kernel::look();
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if name.ends_with(".rodata") {
            map.set_initial_value(&kernel.config())
                .map_err(refused(what))?;
        }
    }
    Ok(object)
}

fn load_gap() -> Result<Object, LoadError> {
    let what = "the watch for gaps";
    open(GAP, what)?.load().map_err(refused(what))
}

fn attach_tick(object: &Object) -> Result<Link, LoadError> {
    let what = "the tick's watch";
    let program = object.progs_mut().next();
    program
        .ok_or_else(none(what))?
        .attach()
        .map_err(refused(what))
}

/// Whether timers can be bound to a CPU.
fn binds_timers() -> Result<bool, LoadError> {
    let what = "a timer";
    let object = open(TIMER, what)?.load().map_err(refused(what))?;
    let program = object.progs_mut().next().ok_or_else(none(what))?;
    // The least that a packet has; it is not looked at.
    let input = ProgramInput {
        data_in: Some(&[0; 64]),
        ..ProgramInput::default()
    };
    let said = program.test_run(input).map_err(refused(what))?;
    Ok(said.return_value == 0)
}

fn register(pins: &Pins, control: Control) -> Result<(), LoadError> {
    let (bytes, what) = match control {
        Control::Bbr => (BBR, "taut_bbr"),
        Control::Cubic => (CUBIC, "taut_cubic"),
    };
    let kernel = Kernel::look();
    let operations = match control {
        Control::Bbr if kernel.has_ack_and_flag => "taut_bbr_4",
        Control::Bbr => "taut_bbr_2",
        Control::Cubic => "taut_cubic",
    };
    let mut object = open(bytes, what)?;
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        match name.as_str() {
            "gaps" | "counts" => map.reuse_pinned_map(pins.path(&name)),
            "beats" => {
                let cpus = libbpf_rs::num_possible_cpus().map_err(refused(what))?;
                map.set_max_entries(u32::try_from(cpus).unwrap_or(1))
            }
            _ if name == operations => match kernel.has_links {
                true => Ok(()),
                false => map.set_map_flags(0),
            },
            "taut_bbr_2" | "taut_bbr_4" => map.set_autocreate(false),
            _ => Ok(()),
        }
        .map_err(refused(what))?;
    }
    let mut object = object.load().map_err(refused(what))?;
    // Timers end with the last user of their map.
    if let Some(mut beats) = object.maps_mut().find(|map| map.name() == "beats") {
        beats.pin(pins.path("beats")).map_err(refused(what))?;
    }
    let mut maps = object.maps_mut();
    let mut map = maps
        .find(|map| map.name() == operations)
        .ok_or_else(none(what))?;
    if kernel.has_links {
        // Until it is pinned it goes with this process.
        let mut link = map.attach_struct_ops().map_err(refused(what))?;
        return link
            .pin(pins.path(control.kernels()))
            .map_err(refused(what));
    }
    // Registered by its map it stays whatever becomes of this process, and could be let go of by nobody, were it not pinned before.
    map.pin(pins.path(&map_name(control)))
        .map_err(refused(what))?;
    let mut link = map.attach_struct_ops().map_err(refused(what))?;
    // One of libbpf's only, which would let go of it.
    link.disconnect();
    Ok(())
}

/// What of this kernel the programs have to know.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    has_ack_and_flag: bool,
    has_links: bool,
    has_one_cpu: bool,
}

// === impl Kernel ===

impl Kernel {
    fn look() -> Self {
        let btf = Btf::from_vmlinux().ok();
        let btf = btf.as_ref();
        let online = fs::read_to_string("/sys/devices/system/cpu/online");
        Self {
            has_ack_and_flag: btf.and_then(arguments).is_some_and(|count| count == 4),
            has_links: btf
                .and_then(|btf| btf.type_by_name::<Struct<'_>>("bpf_struct_ops_link"))
                .is_some(),
            has_one_cpu: online.is_ok_and(|cpus| cpus.trim() == "0"),
        }
    }

    /// `struct guest_config` of guest.h.
    fn config(self) -> [u8; 16] {
        let mut config = [0; 16];
        config[..8].copy_from_slice(&SHORTEST_NS.to_ne_bytes());
        config[8] = self.has_ack_and_flag.into();
        config[9] = self.has_one_cpu.into();
        config
    }
}

/// Of `cong_control` of `struct tcp_congestion_ops`.
fn arguments(btf: &Btf<'_>) -> Option<usize> {
    let operations = btf.type_by_name::<Struct<'_>>("tcp_congestion_ops")?;
    let mut members = operations.iter();
    let control = members.find(|member| member.name.is_some_and(|name| name == "cong_control"))?;
    let pointer = btf.type_by_id::<Ptr<'_>>(control.ty)?;
    let function = pointer.next_type()?;
    Some(FuncProto::try_from(function).ok()?.len())
}

pub(crate) fn handle(object: &Object, name: &'static str) -> Result<MapHandle, LoadError> {
    let map = object.maps().find(|map| map.name() == name);
    MapHandle::try_from(&map.ok_or_else(none("maps"))?).map_err(refused("maps"))
}

pub(crate) fn refused(what: &'static str) -> impl Fn(libbpf_rs::Error) -> LoadError {
    move |source| LoadError::Load { what, source }
}

/// It is not in the object.
fn none(what: &'static str) -> impl Fn() -> LoadError {
    move || refused(what)(io::Error::from(io::ErrorKind::NotFound).into())
}

pub(crate) fn failed(what: &'static str, path: &Path) -> impl Fn(io::Error) -> LoadError {
    let path = path.to_owned();
    move |source| LoadError::File {
        what,
        path: path.clone(),
        source,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_gap_is_that_of_the_programs_by_themselves() {
        let header = include_str!("bpf/gap.h");
        let shortest = header.split_once(".shortest_ns =").unwrap().1;
        let (shortest, _) = shortest.split_once(" * NS_PER_MS,").unwrap();
        let shortest: u64 = shortest.trim().parse().unwrap();
        assert_eq!(shortest * 1_000_000, SHORTEST_NS);
    }

    #[test]
    fn the_configuration_stands_where_the_programs_look_for_it() {
        let kernel = |has_ack_and_flag, has_one_cpu| Kernel {
            has_ack_and_flag,
            has_links: false,
            has_one_cpu,
        };
        let header = include_str!("bpf/guest.h");
        let fields = header.split_once("struct guest_config {").unwrap().1;
        let fields = fields.split_once("};").unwrap().0;
        let fields = fields
            .lines()
            .filter_map(|line| line.trim().split_once(';'));
        let fields: Vec<_> = fields.map(|(field, _)| field).collect();
        let expected = [
            "__u64 shortest_ns",
            "__u8 has_ack_and_flag",
            "__u8 has_one_cpu",
            "__u8 pad[6]",
        ];
        assert_eq!(fields, expected);
        let (ack, one) = (kernel(true, false).config(), kernel(false, true).config());
        assert_eq!(ack[..8], SHORTEST_NS.to_ne_bytes());
        assert_eq!(ack[8..], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(one[8..], [0, 1, 0, 0, 0, 0, 0, 0]);
    }
}
