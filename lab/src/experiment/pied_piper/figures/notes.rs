//! The references from the paper and the ideal, and the notes.

use serde_json::{Map, Value, json};

use super::super::download::Size;
use super::super::{ideal, route};
use super::{Found, series};
use crate::experiment::side_by_side;

/// Rounds to the microsecond, which removes floating-point error.
fn micro(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

pub(super) fn ideal() -> Map<String, Value> {
    let totals: Map<_, _> = Size::ALL
        .iter()
        .map(|s| (s.label().to_owned(), json!(micro(ideal::total(*s)))))
        .collect();
    Map::from_iter([
        ("ttfb_s".to_owned(), json!(micro(ideal::first_byte()))),
        ("total_s".to_owned(), Value::Object(totals)),
        (
            "ttfb_floor_s".to_owned(),
            json!(micro(ideal::first_byte_floor())),
        ),
        ("jain_two_flows".to_owned(), json!(1)),
        ("long_flow_share".to_owned(), json!(0.5)),
    ])
}

/// Returns the numbers in the text of sections 3.3 and 6.3, because the figures there are bars and
/// curves without numbers. The report shows a number beside the headline's figure of the same key.
pub(crate) fn paper() -> Map<String, Value> {
    Map::from_iter([
        ("rtt_client_near_ms".to_owned(), json!(32.7)),
        ("rtt_near_far_ms".to_owned(), json!(215)),
        ("rtt_far_server_ms".to_owned(), json!(26)),
        ("rtt_routed_ms".to_owned(), json!(274)),
        ("early_syn_saves_ms".to_owned(), json!(60)),
        ("pool_saves_ms".to_owned(), json!(180)),
        (
            "turbo_saves_ttfb_ms".to_owned(),
            json!("does not reduce the TTFB"),
        ),
        ("after_first_byte_10kb_ms".to_owned(), json!(1)),
        ("speedup_pied_piper_over_e2e_at_most".to_owned(), json!(3)),
        ("speedup_64k_window_at_most".to_owned(), json!(7.91)),
        (
            "speedup_10mb_64k_window".to_owned(),
            json!("up to 7.91 (sizes of figure 9; means of 30)"),
        ),
        (
            "jain_two_flows".to_owned(),
            json!("\u{201c}a roughly equal share of the bottleneck link\u{201d} (figure 15)"),
        ),
        (
            "jain_two_flows_routed".to_owned(),
            json!(
                "\u{201c}the flow with the shorter RTT hogs the bottleneck link, and the longer-RTT flow \
                 ramps up only at the end of the shorter flow\u{201d} (figure 14)"
            ),
        ),
    ])
}

pub(super) fn notes(found: &Found) -> Vec<String> {
    let m = &found.measured;
    let mut notes = vec![
        "Times are curl's, from its start: ttfb is time_starttransfer, total is time_total. Every \
         download was compared with the server's file (SHA-256)."
            .to_owned(),
        "e2e has a path of its own, with the same round trip as the route over the relays and the \
             same link to the client; the paper's went over the Internet. routed goes over the relays' \
             hosts as routers. Congestion control is Cubic, as in the paper, and buffers are the kernel's \
             defaults, except where noted."
            .to_owned(),
        "split, split+es, split+es+pool and taut are taut relay with one improvement more each: early \
             SYN, connections between the relays that are ready before they are needed, and turbo start between \
             the relays. The headline is taut's. The relays' legs to the client and to the server use Cubic in \
             all of them; only in taut-bbr does the near relay send to the client with BBR. ssh is the \
             paper's OCD Baseline."
            .to_owned(),
        "over_ideal and times_ideal compare a download with the ideal pipe of section 3.1: one round \
             trip of the whole route, and the file at the rate of the slowest link. ttfb_floor_s also includes \
             the client's handshake with the near relay."
            .to_owned(),
        "With a 64 kB window (figure 9), the client's host does not scale its window, which therefore cannot \
             exceed 65,535 bytes; the window that the server saw is in the calibration."
            .to_owned(),
        format!(
            "Two flows (figures 14 and 15): {} each, from the near relay's host and from the far \
                 server, requested within 20 ms, over the client's link at {} with a queue of {}. Jain's index is \
                 that of the two rates while both flows were active, from the later first byte to the earlier \
                 last one.",
            found.flow.label(),
            route::BOTTLENECK,
            route::bottleneck_queue(),
        ),
    ];
    notes.push(format!(
        "{} The ways' n-th downloads of a size met \
         the same losses. speedup_10mb_loss_0p1_low and _high: 90 % interval of that ratio of \
         medians (bootstrap).",
        side_by_side::note(m.worlds, m.repeated)
    ));
    if m.disturbed() > 0 {
        notes.push(format!(
            "During {} of {} downloads a link delivered more than 1 in 1000 trains over 5 ms late; \
                 these downloads count.",
            m.disturbed(),
            m.downloads()
        ));
    }
    let doubtful = m
        .doubtful()
        .map(|(condition, way, size)| series::name(way, size, condition));
    let doubtful: Vec<_> = doubtful.map(|name| format!("`{name}`")).collect();
    if !doubtful.is_empty() {
        notes.push(format!(
            "Doubtful, because a link was late in at least half of the downloads: {}.",
            doubtful.join(", ")
        ));
    }
    notes
}
