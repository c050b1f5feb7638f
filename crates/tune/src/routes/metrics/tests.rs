use proptest::prelude::*;

use super::*;

fn some(initcwnd: u32, initrwnd: u32) -> Metrics {
    let some = |value| (value > 0).then_some(value);
    Metrics {
        initcwnd: some(initcwnd),
        initrwnd: some(initrwnd),
    }
}

#[test]
fn a_metric_that_somebody_has_chosen_stays() {
    let asked = some(20, 30);
    let both = Step::Set {
        to: asked,
        ours: asked,
    };
    assert_eq!(asked.step(some(0, 0), &[]), both);
    assert_eq!(asked.step(asked, &[]), Step::Nothing);
    assert_eq!(asked.step(some(40, 0), &[]), Step::Others);
    assert_eq!(asked.step(some(0, 40), &[]), Step::Others);
    // What nobody asked for does not matter, and is nobody's but its owner's.
    assert_eq!(
        some(20, 0).step(some(0, 40), &[]),
        Step::Set {
            to: some(20, 40),
            ours: some(20, 0)
        }
    );
    // One that somebody has chosen as it is asked for is still his.
    assert_eq!(
        asked.step(some(20, 0), &[]),
        Step::Set {
            to: asked,
            ours: some(0, 30)
        }
    );
    // What this program has made is not somebody else's.
    assert_eq!(asked.step(some(25, 0), &[some(25, 0)]), both);
    assert_eq!(asked.step(some(25, 0), &[some(26, 25)]), Step::Others);
}

#[test]
fn undoing_leaves_what_somebody_has_chosen_since() {
    let before = Metrics::default();
    let back = |now, made: &[Metrics]| {
        let Back { to, others } = before.back(now, made);
        (to, others)
    };
    assert_eq!(back(some(20, 30), &[some(20, 30)]), (before, false));
    assert_eq!(back(some(20, 40), &[some(20, 30)]), (some(0, 40), true));
    assert_eq!(back(some(25, 0), &[some(20, 0)]), (some(25, 0), true));
    // What was not made is not undone.
    assert_eq!(back(some(20, 40), &[some(20, 0)]), (some(0, 40), false));
    // It was written down, and not made.
    assert_eq!(back(before, &[some(20, 30)]), (before, false));
    // It was made what it was to be before its writer ended.
    assert_eq!(
        back(some(20, 0), &[some(25, 0), some(20, 0)]),
        (before, false)
    );
}

proptest! {
    #[test]
    fn what_a_step_makes_is_undone_unless_somebody_changes_it(
        asked in (0u32..4, 0u32..4).prop_map(|(one, other)| some(one, other)),
        now in (0u32..4, 0u32..4).prop_map(|(one, other)| some(one, other)),
        others in (0u32..4, 0u32..4).prop_map(|(one, other)| some(one, other)),
    ) {
        let Step::Set { to, ours } = asked.step(now, &[]) else { return Ok(()) };
        let before = now.among(ours);
        prop_assert_eq!(to.among(asked), asked);
        prop_assert_eq!(before.back(to, &[ours]), Back { to: now, others: false });
        // Whatever is there at the end: each is as it was, or as somebody has made it.
        let Back { to: end, .. } = before.back(others, &[ours]);
        for at in 0..2 {
            let end = end.values()[at];
            prop_assert!(end == now.values()[at] || end == others.values()[at]);
        }
    }
}
