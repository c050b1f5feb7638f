//! Measurements that are made again, because the world was not the one that was asked for.

/// A measurement is made so often at most; in an experiment's short form once.
const TRIES: usize = 3;

/// Makes measurements, and again those during which a link was late.
pub(super) struct Again {
    tries: usize,
    /// How many were made again.
    pub(super) count: u64,
}

// === impl Again ===

impl Again {
    pub(super) fn new(quick: bool) -> Self {
        Self {
            tries: if quick { 1 } else { TRIES },
            count: 0,
        }
    }

    /// The first during which no link was late (it shows the link, and not what is measured, whatever that was); else the last.
    pub(super) fn measure<T, E>(
        &mut self,
        mut once: impl FnMut() -> Result<T, E>,
        was_late: impl Fn(&T) -> bool,
    ) -> Result<T, E> {
        let mut seen = once()?;
        for _ in 1..self.tries {
            if !was_late(&seen) {
                break;
            }
            self.count += 1;
            seen = once()?;
        }
        Ok(seen)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    /// Which of these is taken, each being whether the link was late, and how many were made again.
    fn taken(quick: bool, late: &[bool]) -> (usize, u64) {
        let (mut again, mut made) = (Again::new(quick), 0);
        let once = || {
            made += 1;
            Ok::<_, ()>(made - 1)
        };
        let at = again.measure(once, |at| late[*at]).unwrap();
        (at, again.count)
    }

    #[test]
    fn what_a_late_link_has_spoilt_is_made_again_a_few_times() {
        assert_eq!(taken(false, &[false]), (0, 0));
        assert_eq!(taken(false, &[true, false]), (1, 1));
        assert_eq!(taken(false, &[true, true, true, false]), (2, 2));
        assert_eq!(taken(true, &[true, false]), (0, 0));
    }

    #[test]
    fn what_fails_is_not_made_again() {
        let mut again = Again::new(false);
        let failed = again.measure(|| Err::<(), _>("no guest"), |()| true);
        assert_eq!((failed, again.count), (Err("no guest"), 0));
    }
}
