//! Reads what the BPF programs have counted, and watches for gaps where none are loaded.

use std::fs;
use std::io;
use std::time::{Duration, SystemTime};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use crate::figures::{COUNTS, Counts, Gaps, words};
use crate::load::{Detector, LoadError, check, refused};
use crate::pins::Pins;

/// The programs' figures.
#[derive(Debug)]
pub struct Watch {
    gaps: MapHandle,
    counts: MapHandle,
    since: Option<SystemTime>,
    own: Option<Detector>,
}

// === impl Watch ===

impl Watch {
    /// Of the programs that `taut guest up` has loaded, or of some that are loaded for this.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn open() -> Result<Self, LoadError> {
        check()?;
        if let Some(pins) = Pins::find()?.filter(Pins::is_complete) {
            let pinned = |name| MapHandle::from_pinned_path(pins.path(name));
            let since = fs::metadata(pins.path("gaps")).and_then(|file| file.modified());
            return Ok(Self {
                gaps: pinned("gaps").map_err(refused("to tell of gaps"))?,
                counts: pinned("counts").map_err(refused("to tell of its counters"))?,
                since: since.ok(),
                own: None,
            });
        }
        let own = Detector::load()?;
        Ok(Self {
            gaps: own.map("gaps")?,
            counts: own.map("counts")?,
            since: None,
            own: Some(own),
        })
    }

    /// Whether it is of programs that were there before.
    pub fn is_up(&self) -> bool {
        self.own.is_none()
    }

    /// For how long they have been there.
    pub fn age(&self) -> Option<Duration> {
        self.since?.elapsed().ok()
    }

    /// CPUs that could be there.
    pub fn cpus(&self) -> usize {
        let online = fs::read_to_string("/sys/devices/system/cpu/online");
        online.ok().and_then(|list| cpus(&list)).unwrap_or(1)
    }

    /// All gaps until now, of each CPU.
    ///
    /// # Errors
    /// The kernel's.
    pub fn gaps(&self) -> Result<Vec<Gaps>, LoadError> {
        let read = refused("to tell of gaps");
        let zero = 0_u32.to_ne_bytes();
        let each = self.gaps.lookup_percpu(&zero, MapFlags::ANY);
        let each = each.map_err(&read)?.unwrap_or_default();
        let gaps: Option<_> = each.iter().map(|cpu| Gaps::of(cpu)).collect();
        gaps.ok_or_else(|| read(io::Error::from(io::ErrorKind::InvalidData).into()))
    }

    /// All that was done about them until now.
    ///
    /// # Errors
    /// The kernel's.
    pub fn counts(&self) -> Result<Counts, LoadError> {
        let mut counts = [0; COUNTS as usize];
        for (index, count) in (0_u32..).zip(&mut counts) {
            let each = self
                .counts
                .lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY);
            let each = each.map_err(refused("to tell of its counters"))?;
            *count = each.iter().flatten().flat_map(|cpu| words(cpu)).sum();
        }
        Ok(Counts::of(counts))
    }
}

/// How many a list of ranges has, such as `0-3,6`.
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
