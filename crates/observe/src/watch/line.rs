//! A line of JSON for what is told.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::Serialize;

use super::{Event, Told};
use crate::record::Record;
use crate::verdict::Factor;

/// A record with what is known of a connection's time.
#[derive(Serialize)]
struct Line<'a> {
    /// When it was told (RFC 3339, UTC).
    time: String,
    /// `end` or `open`.
    event: &'static str,
    /// Since it was first seen; nothing of one that was in no look.
    seconds: Option<f64>,
    /// Seconds that each factor limited it.
    limited: BTreeMap<&'static str, f64>,
    #[serde(flatten)]
    record: Record<'a>,
}

/// Appends the line, with its end.
///
/// # Errors
/// The library's.
pub fn write(told: &Told<'_>, now: SystemTime, to: &mut Vec<u8>) -> serde_json::Result<()> {
    let seconds = told.life.map(|life| {
        let last = told.tracked.last().at;
        last.saturating_sub(life.since).as_secs_f64()
    });
    let limited = told.life.into_iter().flat_map(|life| {
        let each = Factor::ALL.iter().zip(life.limited);
        each.filter(|(_, seconds)| *seconds > 0.0)
            .map(|(factor, seconds)| (factor.name(), seconds))
    });
    let line = Line {
        time: humantime::format_rfc3339_millis(now).to_string(),
        event: match told.event {
            Event::End => "end",
            Event::Open => "open",
        },
        seconds,
        limited: limited.collect(),
        record: Record::of(
            told.cookie,
            told.tracked,
            told.process,
            told.verdict.clone(),
        ),
    };
    serde_json::to_writer(&mut *to, &line)?;
    to.push(b'\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::table::Tracked;
    use crate::watch::Life;
    use crate::window::tests::sample;

    #[test]
    fn a_line_has_the_record_and_its_time() {
        let mut tracked = Tracked::only("-".into(), sample(1000, |_| {}));
        tracked.finish(sample(6500, |info| {
            (info.segs_out, info.bytes_acked) = (Some(9), Some(77));
        }));
        let mut life = Life {
            since: Duration::from_secs(1),
            ..Life::default()
        };
        life.limited[Factor::Loss.index()] = 2.5;
        let told = Told {
            event: Event::End,
            cookie: 9,
            tracked: &tracked,
            process: None,
            life: Some(&life),
            verdict: None,
        };
        let mut text = Vec::new();
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        write(&told, now, &mut text).unwrap();
        assert_eq!(text.pop(), Some(b'\n'));
        let line: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(line["time"], "1970-01-01T00:00:01.500Z");
        assert_eq!(line["event"], "end");
        assert_eq!(line["seconds"], 5.5);
        assert_eq!(line["limited"], serde_json::json!({"loss": 2.5}));
        assert_eq!(line["cookie"], 9);
        assert_eq!(line["instruments"]["HCThruOctetsAcked"], 77);
    }
}
