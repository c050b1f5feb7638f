//! The calibration: checks that the world showed the problems.

use std::time::Duration;

use super::super::download::{Condition, Size, Way};
use super::super::{ideal, route};
use super::Found;
use crate::experiment::outcome::{Calibration, Check};
use crate::experiment::stats;

/// Checks that the path has the configured round trips, that a download over it is slow, that loss
/// and a small window make it slower, and that a short flow takes most of the bottleneck from a
/// long one.
pub(super) fn of(found: &Found) -> Calibration {
    let m = &found.measured;
    let e2e = |condition, size| {
        let total = found.total(condition, Way::EndToEnd, size);
        total.unwrap_or(f64::NAN)
    };
    let mut checks = vec![
        (
            "e2e_10mb_loss_over_clean",
            at_least(
                1.2,
                e2e(Condition::Lossy, Size::Mb10) / e2e(Condition::Clean, Size::Mb10),
            ),
        ),
        (
            "e2e_1mb_over_ideal",
            at_least(
                3.0,
                e2e(Condition::Clean, Size::Mb1) / ideal::total(Size::Mb1),
            ),
        ),
        (
            "e2e_1mb_64k_window_over_clean",
            at_least(
                1.5,
                e2e(Condition::Window, Size::Mb1) / e2e(Condition::Clean, Size::Mb1),
            ),
        ),
        (
            "client_window_seen_by_server_bytes",
            Check {
                measured: m.window.map_or(f64::NAN, |bytes| bytes as f64),
                least: 60_000.0,
                // The largest window without window scaling.
                most: Some(65_535.0),
            },
        ),
        (
            "jain_two_flows_routed",
            Check {
                measured: stats::median(&found.jain(Way::Routed)).unwrap_or(f64::NAN),
                least: 0.5,
                most: Some(0.85),
            },
        ),
    ];
    // The short form does not measure this.
    if let Some(routed) = found.total(Condition::Clean, Way::Routed, Size::Mb1) {
        checks.push((
            "routed_1mb_over_e2e",
            Check {
                measured: routed / e2e(Condition::Clean, Size::Mb1),
                least: 0.9,
                most: Some(1.1),
            },
        ));
    }
    let handshake_by_taut = handshake(found, Way::Split, route::LEGS[0].rtt());
    checks.push((
        "client_leg_handshake_is_one_round_trip",
        Check {
            most: Some(2.0 * handshake_by_taut.least),
            ..handshake_by_taut
        },
    ));
    let checks = Calibration::of(checks).and_machine([
        (
            "e2e_handshake_ms",
            handshake(found, Way::EndToEnd, route::rtt()),
        ),
        ("client_leg_handshake_ms", handshake_by_taut),
        (
            "share_of_downloads_with_a_late_link",
            Check::at_most(m.disturbed() as f64 / m.downloads() as f64, 0.5),
        ),
    ]);
    checks.without_taut(&[
        "e2e_10mb_loss_over_clean",
        "e2e_1mb_64k_window_over_clean",
        "e2e_1mb_over_ideal",
        "jain_two_flows_routed",
        "routed_1mb_over_e2e",
    ])
}

/// Returns the check of the handshake as curl measures it: the round trip, and the time that a
/// process takes to notice.
fn handshake(found: &Found, way: Way, rtt: Duration) -> Check {
    let rtt = rtt.as_secs_f64() * 1e3;
    let seen = found.median(Condition::Clean, way, Size::Kb10, |t| t.connect);
    Check {
        measured: seen.map_or(f64::NAN, |s| s * 1e3),
        least: rtt,
        most: Some(rtt + 5.0),
    }
}

fn at_least(least: f64, measured: f64) -> Check {
    Check {
        measured,
        least,
        most: None,
    }
}
