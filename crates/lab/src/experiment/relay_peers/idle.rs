//! The memory of idle sessions that have carried a few bytes each way.

use std::fs;
use std::io;
use std::time::Duration;

use super::contender::Contender;
use super::pair::Pair;
use super::rig::{Entrance, Rig};
use crate::experiment::ExperimentError;
use crate::experiment::descriptors::enough_descriptors;
use crate::experiment::process_tree::kilobytes;

/// How long to wait until the kernel has accounted for recent events: it frees sockets a little
/// after they are closed.
const SETTLE: Duration = Duration::from_millis(300);

/// The memory of one session, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Idle {
    /// Resident memory of the relay's processes.
    pub(super) resident: f64,
    /// The kernel's slabs of the whole machine, including the sockets of both ends.
    pub(super) slab: f64,
}

/// Memory at one moment, in bytes.
#[derive(Clone, Copy)]
struct Memory {
    resident: u64,
    slab: u64,
}

/// Opens `sessions` on a relay that has just started.
pub(super) fn measure(
    rig: &Rig,
    contender: Contender,
    sessions: usize,
) -> Result<Idle, ExperimentError> {
    rig.inside("hold both ends of every session", || {
        enough_descriptors(sessions)
    })?;
    let entrance = rig.start(contender)?;
    let what = format!(
        "open {sessions} idle sessions through {}",
        contender.label()
    );
    rig.inside(&what, || {
        // The first session includes one-time allocations.
        drop(Pair::open(&entrance)?);
        let empty = Memory::now(&entrance)?;
        let open = (0..sessions)
            .map(|_| Pair::open(&entrance))
            .collect::<io::Result<Vec<_>>>()?;
        let full = Memory::now(&entrance)?;
        drop(open);
        let each = |full: u64, empty: u64| (full as f64 - empty as f64) / sessions as f64;
        Ok(Idle {
            resident: each(full.resident, empty.resident),
            slab: each(full.slab, empty.slab),
        })
    })
}

impl Memory {
    fn now(entrance: &Entrance) -> io::Result<Self> {
        std::thread::sleep(SETTLE);
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        let slab = kilobytes(&meminfo, "Slab:")
            .ok_or_else(|| io::Error::other("the kernel does not report the size of its slabs"))?;
        Ok(Self {
            resident: entrance.processes.memory()?,
            slab: slab * 1024,
        })
    }
}
