//! The headline figures of the experiment.

use std::collections::BTreeMap;

use super::super::download::{Condition, Size, Way};
use super::super::ideal::{self, Distance};
use super::Found;
use crate::experiment::stats;

/// Returns the figures that were measured: the short form leaves some out.
pub(super) fn of(found: &Found) -> BTreeMap<String, f64> {
    let best = Way::Taut;
    let speedup = |condition, way, size| {
        Some(found.total(condition, Way::EndToEnd, size)? / found.total(condition, way, size)?)
    };
    let totals = |way| {
        let (condition, size) = (Condition::Lossy, Size::Mb10);
        found.measured.samples(condition, way, size, |t| t.total)
    };
    // With loss, the times of downloads vary by an order of magnitude. The interval of the ratio
    // shows whether there were enough samples.
    let spread = stats::ratio_interval(&totals(Way::EndToEnd), &totals(best));
    let far = |size| {
        Some(Distance::of(
            found.total(Condition::Clean, best, size)?,
            size,
        ))
    };
    let ttfb = found.first_byte(best);
    // How much each improvement reduces the time to the first byte, in milliseconds.
    let saves = |before, after| Some((found.first_byte(before)? - found.first_byte(after)?) * 1e3);
    let (one, ten) = (Size::Mb1, Size::Mb10);
    [
        (
            "ttfb_over_floor_ms",
            ttfb.map(|s| (s - ideal::first_byte_floor()) * 1e3),
        ),
        ("early_syn_saves_ms", saves(Way::Split, Way::EarlySyn)),
        ("pool_saves_ms", saves(Way::EarlySyn, Way::Pool)),
        ("turbo_saves_ttfb_ms", saves(Way::Pool, Way::Taut)),
        ("speedup_1mb", speedup(Condition::Clean, best, one)),
        ("speedup_10mb", speedup(Condition::Clean, best, ten)),
        ("over_ideal_1mb_ms", far(one).map(|d| d.over_ms)),
        ("over_ideal_10mb_ms", far(ten).map(|d| d.over_ms)),
        ("times_ideal_1mb", far(one).map(|d| d.times)),
        ("times_ideal_10mb", far(ten).map(|d| d.times)),
        (
            "speedup_10mb_loss_0p1",
            speedup(Condition::Lossy, best, ten),
        ),
        (
            "speedup_10mb_loss_0p1_bbr",
            speedup(Condition::Lossy, Way::TautBbr, ten),
        ),
        ("speedup_10mb_loss_0p1_low", spread.map(|(low, _)| low)),
        ("speedup_10mb_loss_0p1_high", spread.map(|(_, high)| high)),
        (
            "speedup_1mb_64k_window",
            speedup(Condition::Window, best, one),
        ),
        (
            "speedup_10mb_64k_window",
            speedup(Condition::Window, best, ten),
        ),
        ("jain_two_flows", stats::median(&found.jain(best))),
        (
            "jain_two_flows_routed",
            stats::median(&found.jain(Way::Routed)),
        ),
        ("long_flow_share", stats::median(&found.long_share(best))),
        (
            "long_flow_share_routed",
            stats::median(&found.long_share(Way::Routed)),
        ),
    ]
    .into_iter()
    .filter_map(|(key, figure)| Some((key.to_owned(), figure?)))
    .collect()
}
