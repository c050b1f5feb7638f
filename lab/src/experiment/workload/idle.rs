//! The memory of idle sessions that have carried a few bytes each way.

use std::fs;
use std::io;
use std::time::Duration;

use super::Entrance;
use super::pair::Pair;
use crate::experiment::process_tree::kilobytes;

/// How long to wait until the kernel has accounted for recent events: it frees sockets a little
/// after they are closed.
const SETTLE: Duration = Duration::from_millis(300);

/// The memory of one session or pooled connection, in bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::experiment) struct Idle {
    /// Resident memory of the relay's processes.
    pub(in crate::experiment) resident: f64,
    /// The kernel's slabs of the whole machine, including the sockets of both ends.
    pub(in crate::experiment) slab: f64,
}

/// Memory at one moment, in bytes.
#[derive(Clone, Copy)]
pub(in crate::experiment) struct Memory {
    resident: u64,
    slab: u64,
}

/// Opens `sessions` through a relay that has just started.
pub(in crate::experiment) fn measure(entrance: &Entrance, sessions: usize) -> io::Result<Idle> {
    // The first session includes one-time allocations.
    drop(Pair::open(entrance)?);
    let empty = Memory::now(entrance)?;
    let open = (0..sessions)
        .map(|_| Pair::open(entrance))
        .collect::<io::Result<Vec<_>>>()?;
    let full = Memory::now(entrance)?;
    drop(open);
    Ok(full.each_since(&empty, sessions))
}

impl Memory {
    /// Measures the memory of the relays of `entrance`, and of the machine's slabs.
    pub(in crate::experiment) fn now(entrance: &Entrance) -> io::Result<Self> {
        std::thread::sleep(SETTLE);
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        let slab = kilobytes(&meminfo, "Slab:")
            .ok_or_else(|| io::Error::other("the kernel does not report the size of its slabs"))?;
        Ok(Self {
            resident: entrance.processes.memory()?,
            slab: slab * 1024,
        })
    }

    /// Returns the growth since `before` for each of `number` things that have come since then.
    pub(in crate::experiment) fn each_since(&self, before: &Self, number: usize) -> Idle {
        let each = |now: u64, before: u64| (now as f64 - before as f64) / number as f64;
        Idle {
            resident: each(self.resident, before.resident),
            slab: each(self.slab, before.slab),
        }
    }
}
