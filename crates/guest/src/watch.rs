//! Reads the counters of the BPF programs, and detects gaps itself if none are loaded.

use std::fs;
use std::iter;
use std::time::Duration;

use libbpf_rs::MapHandle;
use taut_bpf::{CounterMap, Map, PerCpu};
use taut_sys::steal::Steal;

use crate::control::Control;
use crate::counts::{Count, Counts};
use crate::error::{LoadError, bpf, libbpf};
use crate::gaps::Gaps;
use crate::load::{Detector, check};
use crate::pins::Pins;
use crate::raw;
use crate::since::Since;

const COUNTERS: &str = "the counters of taut guest";

/// The counters of the loaded programs, or of a gap detector loaded for the purpose.
#[derive(Debug)]
pub struct Watch {
    gaps: PerCpu<raw::Gaps>,
    counts: CounterMap<Count>,
    since: Option<Since>,
    controls: Vec<Control>,
    detector: Option<Detector>,
}

/// All counters at one moment.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// The gaps of each CPU.
    pub gaps: Vec<Gaps>,
    /// The counters of the congestion controls.
    pub counts: Counts,
    /// The time that the hypervisor reports as stolen; `None` if it reports none.
    pub steal: Option<Steal>,
}

// === impl Sample ===

impl Sample {
    /// Returns the gaps since `earlier` on each CPU.
    pub fn gaps_since(&self, earlier: &Self) -> Vec<Gaps> {
        let then = earlier.gaps.iter().cloned();
        let then = then.chain(iter::repeat_with(Gaps::default));
        let each = self.gaps.iter().zip(then);
        each.map(|(now, then)| now.since(&then)).collect()
    }

    /// Returns the share of all CPU time since `earlier` that the hypervisor reports as stolen.
    pub fn steal_share_since(&self, earlier: &Self) -> Option<f64> {
        self.steal?.share_since(earlier.steal?)
    }
}

// === impl Watch ===

impl Watch {
    /// Opens the counters of the programs that `taut guest up` loaded. If there are none, loads a
    /// gap detector of its own.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn open() -> Result<Self, LoadError> {
        check()?;
        if let Some(pins) = Pins::find()?.filter(Pins::is_complete) {
            let pinned = |name| {
                MapHandle::from_pinned_path(pins.path(name))
                    .map_err(libbpf(COUNTERS, "open a pinned map"))
            };
            let refused = bpf(COUNTERS);
            let since: Map<u32, raw::GuestSince> =
                Map::new(pinned("since")?, "since").map_err(&refused)?;
            let counts = PerCpu::new(pinned("counts")?, "counts").map_err(&refused)?;
            return Ok(Self {
                gaps: PerCpu::new(pinned("gaps")?, "gaps").map_err(&refused)?,
                counts: CounterMap::new(counts),
                since: since.get(&0).map_err(&refused)?.map(Since::from),
                controls: pins.controls(),
                detector: None,
            });
        }
        let detector = Detector::load()?;
        let object = &detector.object;
        Ok(Self {
            gaps: object.per_cpu("gaps").map_err(bpf(COUNTERS))?,
            counts: object.counters("counts").map_err(bpf(COUNTERS))?,
            since: None,
            controls: Vec::new(),
            detector: Some(detector),
        })
    }

    /// Returns whether the congestion controls are loaded.
    pub fn is_up(&self) -> bool {
        self.detector.is_none()
    }

    /// Returns the loaded congestion controls.
    pub fn controls(&self) -> &[Control] {
        &self.controls
    }

    /// Returns the time since the programs were loaded.
    pub fn age(&self) -> Duration {
        self.since.map(Since::age).unwrap_or_default()
    }

    /// Returns the sample of the moment when the programs were loaded.
    pub fn at_load(&self) -> Sample {
        Sample {
            steal: self.since.and_then(|since| since.steal),
            ..Sample::default()
        }
    }

    /// Returns the number of CPUs that are online.
    pub fn cpus(&self) -> usize {
        let online = fs::read_to_string("/sys/devices/system/cpu/online");
        online.ok().and_then(|list| cpus(&list)).unwrap_or(1)
    }

    /// Reads all counters.
    ///
    /// # Errors
    /// [`LoadError::Bpf`].
    pub fn sample(&self) -> Result<Sample, LoadError> {
        let gaps = self.gaps.get(0).map_err(bpf(COUNTERS))?;
        Ok(Sample {
            gaps: gaps.into_iter().map(Gaps::from).collect(),
            counts: self.counts.read().map_err(bpf(COUNTERS))?,
            steal: Steal::read(),
        })
    }
}

/// Returns the number of CPUs in a list of ranges, such as `0-3,6`.
fn cpus(list: &str) -> Option<usize> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    };
    list.trim().split(',').map(range).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted_in_a_list_of_ranges() {
        assert_eq!(cpus("0\n"), Some(1));
        assert_eq!(cpus("0-3,6,8-9\n"), Some(7));
        assert_eq!(cpus(""), None);
        assert_eq!(cpus("3-1"), None);
    }
}
