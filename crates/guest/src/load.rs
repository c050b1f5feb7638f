//! Loads the congestion controls so that they outlive the command, and unloads them.

use std::fs::File;
use std::path::Path;

use libbpf_rs::Link;
use rustix::net::sockopt::set_tcp_congestion;
use rustix::net::{AddressFamily, SocketType, socket};
use taut_bpf::{Map, Object, Open};
use taut_sys::job_dir::JobDir;

use crate::control::Control;
pub use crate::error::LoadError;
use crate::error::{bpf, file, libbpf};
use crate::kernel::Kernel;
use crate::operations::{self, Names};
pub use crate::pins::BPF_FS;
use crate::pins::{Pins, map_name, wait_until_unregistered};
use crate::raw::GuestSince;
use crate::since::Since;

/// The directory of the lock and of the record of the previous default.
pub const DIRECTORY: &str = "/run/taut/guest";
/// The lock file: one command at a time changes the pins and the default.
const LOCK: &str = "lock";

const GAP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gap.bpf.o"));
const BBR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bbr.bpf.o"));
const CUBIC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cubic.bpf.o"));
const TIMER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/timer.bpf.o"));

/// Names of the parts in error messages.
const DETECTOR: &str = "the gap detector";
const TICK: &str = "the gap detector's program at the scheduler tick";

/// The result of [`up`].
#[derive(Debug, Default)]
pub struct Up {
    /// The congestion controls that were already loaded.
    pub already: Vec<Control>,
    /// Those that were loaded now.
    pub loaded: Vec<Control>,
    /// Limitations on this kernel, one sentence each.
    pub warnings: Vec<String>,
}

/// The lock on the pins and the default congestion control. Released when dropped.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "it is held")] File);

// === impl Lock ===

impl Lock {
    /// Waits until no other process holds the lock.
    ///
    /// # Errors
    /// [`LoadError::NotRoot`], [`LoadError::Directory`] or [`LoadError::File`].
    pub fn take() -> Result<Self, LoadError> {
        if !taut_sys::probe::is_root() {
            return Err(LoadError::NotRoot);
        }
        let directory = JobDir::create(Path::new(DIRECTORY))?;
        let path = directory.path().join(LOCK);
        let lock = directory.lock(LOCK).map_err(file("lock", &path))?;
        Ok(Self(lock))
    }
}

/// Returns whether all programs of `taut guest` are loaded, as far as this process may know.
pub fn is_up() -> bool {
    matches!(Pins::find(), Ok(Some(pins)) if pins.is_complete())
}

/// Loads and pins the programs that are not pinned yet. A congestion control that this kernel does not
/// support is left out with a warning, unless it is `required` or the other one cannot be loaded either.
///
/// # Errors
/// [`LoadError`]; nothing more than before is loaded then.
pub fn up(_: &Lock, required: Option<Control>) -> Result<Up, LoadError> {
    check()?;
    let pins = match Pins::find()? {
        Some(pins) if pins.is_complete() => {
            let already = pins.controls();
            return load_missing(&pins, required, already);
        }
        // A command that was killed half-way left these.
        Some(pins) => pins.clear().and_then(|_| Pins::make())?,
        None => Pins::make()?,
    };
    let loaded = load_all(&pins, required);
    if loaded.is_err() {
        let _ = pins.clear();
    }
    loaded
}

/// Unloads what [`up`] has loaded. Returns whether anything was loaded. Connections that use one of
/// the congestion controls keep it until they end.
///
/// # Errors
/// [`LoadError`].
pub fn down(_: &Lock) -> Result<bool, LoadError> {
    Pins::find()?.map_or(Ok(false), Pins::clear)
}

/// Returns whether a killed command left an incomplete set of pins; `false` while another command holds
/// the lock.
///
/// # Errors
/// [`LoadError`].
pub fn is_partial() -> Result<bool, LoadError> {
    let path = Path::new(DIRECTORY);
    if let Some(directory) = JobDir::find(path)?
        && directory
            .is_held(LOCK)
            .map_err(file("inspect", &path.join(LOCK)))?
    {
        return Ok(false);
    }
    Ok(Pins::find()?.is_some_and(|pins| !pins.is_complete()))
}

/// The gap detector, loaded while this exists.
pub(crate) struct Detector {
    pub(crate) object: Object,
    _tick: Link,
}

// === impl Detector ===

impl Detector {
    pub(crate) fn load() -> Result<Self, LoadError> {
        check()?;
        let object = open(GAP).and_then(Open::load).map_err(bpf(DETECTOR))?;
        let tick = attach_tick(&object)?;
        Ok(Self {
            object,
            _tick: tick,
        })
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
    taut_bpf::kernel::require_btf().map_err(LoadError::NoBtf)
}

fn load_all(pins: &Pins, required: Option<Control>) -> Result<Up, LoadError> {
    let mut detector = open(GAP).and_then(Open::load).map_err(bpf(DETECTOR))?;
    let now = Since::now();
    let tick = match attach_tick(&detector) {
        Ok(mut tick) => {
            tick.pin(pins.path("tick"))
                .map_err(libbpf(TICK, "pin its link"))?;
            None
        }
        Err(error) => Some(format!(
            "the scheduler tick cannot be observed, so only connections that use taut_bbr detect gaps: {error}"
        )),
    };
    for name in ["gaps", "counts"] {
        pin(&mut detector, pins, name)?;
    }
    let mut up = load_missing(pins, required, Vec::new())?;
    up.warnings.extend(tick);
    // Pinned last: without it, `is_complete` returns `false`, and the next `up` clears what a killed command left.
    let since: Map<u32, GuestSince> = detector.map("since").map_err(bpf(DETECTOR))?;
    since.insert(&0, &now).map_err(bpf(DETECTOR))?;
    pin(&mut detector, pins, "since")?;
    Ok(up)
}

/// Loads the congestion controls that are not `already` loaded, each by itself.
fn load_missing(
    pins: &Pins,
    required: Option<Control>,
    already: Vec<Control>,
) -> Result<Up, LoadError> {
    let mut up = Up {
        already,
        ..Up::default()
    };
    let mut failed = Vec::new();
    for control in Control::ALL {
        if up.already.contains(&control) {
            continue;
        }
        match load_control(pins, control) {
            Ok(()) => up.loaded.push(control),
            Err(error) => failed.push((control, error)),
        }
    }
    let has_none = up.already.is_empty() && up.loaded.is_empty();
    for (control, error) in failed {
        if has_none || required == Some(control) {
            for loaded in up.loaded {
                pins.unload(loaded)?;
            }
            return Err(error);
        }
        up.warnings
            .push(format!("{control} cannot be loaded: {error}"));
    }
    if up.loaded.contains(&Control::Bbr)
        && !Kernel::probe().has_one_cpu
        && !binds_timers().unwrap_or(false)
    {
        up.warnings.push(
            "this kernel cannot bind BPF timers to a CPU (Linux 6.7 and newer can), so taut_bbr does not detect gaps that begin while a \
             CPU idles: it corrects less on machines with several CPUs"
                .to_owned(),
        );
    }
    Ok(up)
}

fn load_control(pins: &Pins, control: Control) -> Result<(), LoadError> {
    // Leftovers of a killed command.
    pins.unload(control)?;
    // The kernel may still be unregistering it.
    wait_until_unregistered(control)?;
    request(control)?;
    let registered = register(pins, control);
    if registered.is_err() {
        let _ = pins.unload(control);
    }
    registered
}

fn pin(object: &mut Object, pins: &Pins, name: &'static str) -> Result<(), LoadError> {
    let mut map = object.map_mut(name).map_err(bpf(DETECTOR))?;
    map.pin(pins.path(name))
        .map_err(libbpf(DETECTOR, "pin a map"))
}

/// Makes sure that the kernel's own congestion control is available, and loads its module if needed.
fn request(control: Control) -> Result<(), LoadError> {
    let name = control.kernels();
    let missing = |source| LoadError::NoKernelControl {
        name,
        config: control.configuration(),
        source,
    };
    // Selecting a control on any socket makes the kernel load its module; the socket need not be
    // connected.
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).map_err(missing)?;
    set_tcp_congestion(&socket, name).map_err(missing)?;
    Ok(())
}

/// Opens a BPF object and sets its `struct guest_config`.
fn open(object: &[u8]) -> Result<Open, taut_bpf::Error> {
    let mut open = Open::new("taut_guest", object)?;
    open.set_constant(".rodata", &Kernel::probe().config())?;
    Ok(open)
}

fn attach_tick(detector: &Object) -> Result<Link, LoadError> {
    let program = detector.program("taut_tick").map_err(bpf(TICK))?;
    program.attach().map_err(libbpf(TICK, "attach it"))
}

/// Returns whether timers can be bound to a CPU.
fn binds_timers() -> Result<bool, taut_bpf::Error> {
    let object = Open::new("taut_guest", TIMER)?.load()?;
    Ok(object.run("taut_timer")? == 0)
}

/// Loads a congestion control, registers it and pins the registration.
fn register(pins: &Pins, control: Control) -> Result<(), LoadError> {
    let kernel = Kernel::probe();
    let chosen = operations::choose(control, kernel.has_ack_and_flag, &Names::read(control));
    let operations = chosen.map_err(|function| LoadError::NotCallable { control, function })?;
    let bytes = match control {
        Control::Bbr => BBR,
        Control::Cubic => CUBIC,
    };
    let what = control.name();
    let refused = |action| libbpf(what, action);
    let mut open = open(bytes).map_err(bpf(what))?;
    for name in ["gaps", "counts"] {
        let mut map = open.map(name).map_err(bpf(what))?;
        map.reuse_pinned_map(pins.path(name))
            .map_err(refused("use the gap detector's maps"))?;
    }
    if control == Control::Bbr {
        let cpus = libbpf_rs::num_possible_cpus().map_err(refused("count CPUs"))?;
        let mut beats = open.map("beats").map_err(bpf(what))?;
        beats
            .set_max_entries(u32::try_from(cpus).unwrap_or(1))
            .map_err(refused("size its map of timers"))?;
    }
    if !kernel.has_links {
        let mut map = open.map(operations).map_err(bpf(what))?;
        map.set_map_flags(0)
            .map_err(refused("configure its registration"))?;
    }
    for unused in operations::all(control) {
        if *unused != operations {
            let mut map = open.map(unused).map_err(bpf(what))?;
            map.set_autocreate(false)
                .map_err(refused("leave out operations of other kernels"))?;
        }
    }
    let mut object = open.load().map_err(bpf(what))?;
    if control == Control::Bbr {
        // The kernel cancels BPF timers when the last descriptor or pin of their map is gone.
        let mut beats = object.map_mut("beats").map_err(bpf(what))?;
        beats
            .pin(pins.path("beats"))
            .map_err(refused("pin its map of timers"))?;
    }
    let mut map = object.map_mut(operations).map_err(bpf(what))?;
    if kernel.has_links {
        // Until the link is pinned, the registration ends with this process.
        let mut link = map.attach_struct_ops().map_err(refused("register it"))?;
        return link
            .pin(pins.path(control.kernels()))
            .map_err(refused("pin its registration"));
    }
    // A control registered by its map outlives this process. The map is pinned first; otherwise the
    // control could never be unregistered.
    map.pin(pins.path(&map_name(control)))
        .map_err(refused("pin its registration"))?;
    let mut link = map.attach_struct_ops().map_err(refused("register it"))?;
    // This link exists only in libbpf, and would unregister the control when dropped.
    link.disconnect();
    Ok(())
}
