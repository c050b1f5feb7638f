//! Reads what the BPF programs have counted, and watches for gaps where none are loaded.

use std::fs;
use std::io;
use std::iter;
use std::time::Duration;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use taut_sys::steal::Steal;

use crate::figures::{COUNTS, Counts, Gaps, words};
use crate::load::{Detector, LoadError, check, refused};
use crate::pins::Pins;
use crate::since::Since;

/// What cannot be read is not told.
const TOLD: &str = "to tell what was counted";
/// The only one of `gaps` and `since`.
const KEY: [u8; 4] = 0_u32.to_ne_bytes();

/// The programs' figures.
#[derive(Debug)]
pub struct Watch {
    gaps: MapHandle,
    counts: MapHandle,
    since: Option<Since>,
    own: Option<Detector>,
}

/// All that was counted until a time.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Of each CPU.
    pub gaps: Vec<Gaps>,
    /// What was done about them.
    pub counts: Counts,
    /// What the hypervisor says it took; nothing where it does not say.
    pub steal: Option<Steal>,
}

// === impl Look ===

impl Look {
    /// Gaps since `earlier`, of each CPU.
    pub fn gaps_since(&self, earlier: &Self) -> Vec<Gaps> {
        let then = earlier.gaps.iter().cloned();
        let then = then.chain(iter::repeat_with(Gaps::default));
        let each = self.gaps.iter().zip(then);
        each.map(|(now, then)| now.since(&then)).collect()
    }

    /// The share of all time since `earlier` that the hypervisor says it took.
    pub fn steal_share_since(&self, earlier: &Self) -> Option<f64> {
        self.steal?.share_since(earlier.steal?)
    }
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
            let pinned = |name| MapHandle::from_pinned_path(pins.path(name)).map_err(refused(TOLD));
            let since = pinned("since")?.lookup(&KEY, MapFlags::ANY);
            let since = since.map_err(refused(TOLD))?.unwrap_or_default();
            return Ok(Self {
                gaps: pinned("gaps")?,
                counts: pinned("counts")?,
                since: Since::decode(&since),
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
    pub fn age(&self) -> Duration {
        self.since.map(Since::age).unwrap_or_default()
    }

    /// What there was when they were loaded.
    pub fn beginning(&self) -> Look {
        Look {
            steal: self.since.and_then(|since| since.steal),
            ..Look::default()
        }
    }

    /// CPUs that could be there.
    pub fn cpus(&self) -> usize {
        let online = fs::read_to_string("/sys/devices/system/cpu/online");
        online.ok().and_then(|list| cpus(&list)).unwrap_or(1)
    }

    /// What there is now.
    ///
    /// # Errors
    /// The kernel's.
    pub fn look(&self) -> Result<Look, LoadError> {
        Ok(Look {
            gaps: self.gaps()?,
            counts: self.counts()?,
            steal: Steal::read(),
        })
    }

    fn gaps(&self) -> Result<Vec<Gaps>, LoadError> {
        let each = self.gaps.lookup_percpu(&KEY, MapFlags::ANY);
        let each = each.map_err(refused(TOLD))?.unwrap_or_default();
        let gaps: Option<_> = each.iter().map(|cpu| Gaps::of(cpu)).collect();
        gaps.ok_or_else(|| refused(TOLD)(io::Error::from(io::ErrorKind::InvalidData).into()))
    }

    fn counts(&self) -> Result<Counts, LoadError> {
        let mut counts = [0; COUNTS as usize];
        for (index, count) in (0_u32..).zip(&mut counts) {
            let each = self
                .counts
                .lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY);
            let each = each.map_err(refused(TOLD))?;
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
