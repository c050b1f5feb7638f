//! Hysteresis: what is granted stays as it is while it is near the share.

/// A grant that is less than the share by no more than this part of it stays.
const NEAR: u64 = 4;
/// One that has to be made smaller is made smaller than the share by this part of it, so that the next breath does not move it again.
const BELOW: u64 = 8;

/// What is to be granted to one who has `now` (`None`: nothing yet) and whose share is `share`, `least` of which cannot be taken away.
///
/// Never more than the share, so that a budget holds for settled grants, too; three quarters of it at least.
pub fn settle(now: Option<u64>, share: u64, least: u64) -> u64 {
    match now {
        Some(now) if now <= share && now >= share - share / NEAR => now,
        Some(now) if now > share => (share - share / BELOW).max(least.min(share)),
        Some(_) | None => share,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_grant_moves_when_its_share_has_gone_far() {
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
        fn a_grant_is_never_above_its_share_and_near_it(now: Option<u64>, share: u64, least: u64) {
            let grant = settle(now, share, least);
            prop_assert!(grant <= share);
            prop_assert!(grant >= share - share / NEAR);
        }

        #[test]
        fn what_has_settled_stays(now: Option<u64>, share: u64, least: u64) {
            let grant = settle(now, share, least);
            prop_assert_eq!(settle(Some(grant), share, least), grant);
        }

        /// A share that breathes by a tenth moves a grant once at most.
        #[test]
        fn small_changes_move_nothing(share in 1000u64..1 << 40, breaths in prop::collection::vec(0u64..100, 1..50)) {
            let mut grant = settle(None, share, 0);
            let mut moved = 0;
            for breath in breaths {
                let settled = settle(Some(grant), share - share / 1000 * breath, 0);
                moved += usize::from(settled != grant);
                grant = settled;
            }
            prop_assert!(moved <= 1, "{moved}");
        }
    }
}
