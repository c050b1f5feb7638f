//! Hysteresis: keeps a grant unchanged while it is near its share. Pure.

/// A grant stays if it is below its share by at most the share divided by this.
const STAYS_WITHIN: u64 = 4;
/// A grant that must shrink drops below its share by the share divided by this, so that the next
/// small change does not move it again.
const SHRINKS_BELOW: u64 = 8;

/// Returns the new grant of a buffer with the present grant `now` (`None`: no grant yet) and the
/// share `share`. `least` bytes cannot be taken away.
///
/// The grant is between three quarters of the share and the whole share, so the budget also bounds
/// the grants.
pub fn settle(now: Option<u64>, share: u64, least: u64) -> u64 {
    match now {
        Some(now) if now <= share && now >= share - share / STAYS_WITHIN => now,
        Some(now) if now > share => (share - share / SHRINKS_BELOW).max(least.min(share)),
        Some(_) | None => share,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_grant_moves_when_its_share_has_moved_far() {
        assert_eq!(settle(None, 100, 0), 100);
        assert_eq!(settle(Some(100), 100, 0), 100);
        assert_eq!(settle(Some(80), 100, 0), 80);
        assert_eq!(settle(Some(74), 100, 0), 100);
        assert_eq!(settle(Some(101), 100, 0), 88);
        assert_eq!(settle(Some(101), 100, 95), 95);
        assert_eq!(settle(Some(101), 100, 200), 100);
    }

    proptest! {
        #[test]
        fn a_grant_is_near_its_share_and_never_above(now: Option<u64>, share: u64, least: u64) {
            let grant = settle(now, share, least);
            prop_assert!(grant <= share);
            prop_assert!(grant >= share - share / STAYS_WITHIN);
        }

        #[test]
        fn a_settled_grant_stays(now: Option<u64>, share: u64, least: u64) {
            let grant = settle(now, share, least);
            prop_assert_eq!(settle(Some(grant), share, least), grant);
        }

        /// A share that varies by a tenth moves a grant at most once.
        #[test]
        fn small_changes_move_nothing(share in 1000u64..1 << 40, changes in prop::collection::vec(0u64..100, 1..50)) {
            let mut grant = settle(None, share, 0);
            let mut moved = 0;
            for change in changes {
                let settled = settle(Some(grant), share - share / 1000 * change, 0);
                moved += usize::from(settled != grant);
                grant = settled;
            }
            prop_assert!(moved <= 1, "{moved}");
        }
    }
}
