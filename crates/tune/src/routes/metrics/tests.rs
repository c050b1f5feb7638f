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
fn a_metric_that_another_program_has_set_stays() {
    let asked = some(20, 30);
    let both = Step::Set {
        to: asked,
        ours: asked,
    };
    assert_eq!(asked.step(some(0, 0), &[]), both);
    assert_eq!(asked.step(asked, &[]), Step::Keep);
    assert_eq!(asked.step(some(40, 0), &[]), Step::Foreign);
    assert_eq!(asked.step(some(0, 40), &[]), Step::Foreign);
    // A metric that was not requested is ignored and stays with its owner.
    assert_eq!(
        some(20, 0).step(some(0, 40), &[]),
        Step::Set {
            to: some(20, 40),
            ours: some(20, 0)
        }
    );
    // A metric that another program has set to the requested value is not ours.
    assert_eq!(
        asked.step(some(20, 0), &[]),
        Step::Set {
            to: asked,
            ours: some(0, 30)
        }
    );
    // A value that this program has set is ours.
    assert_eq!(asked.step(some(25, 0), &[some(25, 0)]), both);
    assert_eq!(asked.step(some(25, 0), &[some(26, 25)]), Step::Foreign);
}

#[test]
fn restoring_leaves_what_another_program_has_set_since() {
    let before = Metrics::default();
    let back = |now, made: &[Metrics]| {
        let Restoration { to, is_foreign } = before.restore(now, made);
        (to, is_foreign)
    };
    assert_eq!(back(some(20, 30), &[some(20, 30)]), (before, false));
    assert_eq!(back(some(20, 40), &[some(20, 30)]), (some(0, 40), true));
    assert_eq!(back(some(25, 0), &[some(20, 0)]), (some(25, 0), true));
    // A metric that was not set is not restored.
    assert_eq!(back(some(20, 40), &[some(20, 0)]), (some(0, 40), false));
    // The entry was written, but the metric was not set.
    assert_eq!(back(before, &[some(20, 30)]), (before, false));
    // The writer ended between the entry and the last change.
    assert_eq!(
        back(some(20, 0), &[some(25, 0), some(20, 0)]),
        (before, false)
    );
}

proptest! {
    #[test]
    fn a_step_is_undone_unless_another_program_changes_it(
        asked in (0u32..4, 0u32..4).prop_map(|(one, other)| some(one, other)),
        now in (0u32..4, 0u32..4).prop_map(|(one, other)| some(one, other)),
        others in (0u32..4, 0u32..4).prop_map(|(one, other)| some(one, other)),
    ) {
        let Step::Set { to, ours } = asked.step(now, &[]) else { return Ok(()) };
        let before = now.among(ours);
        prop_assert_eq!(to.among(asked), asked);
        prop_assert_eq!(before.restore(to, &[ours]), Restoration { to: now, is_foreign: false });
        // At the end each metric has its original value, or the value that another program has set.
        let Restoration { to: end, .. } = before.restore(others, &[ours]);
        for at in 0..2 {
            let end = end.values()[at];
            prop_assert!(end == now.values()[at] || end == others.values()[at]);
        }
    }
}
