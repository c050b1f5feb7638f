//! The instruments of a connection: the variables of RFC 4898 that Linux provides, and others under
//! their names in `tcp_info`.
//!
//! One table defines all of them for JSON, the guide and the screen. An instrument that the kernel
//! does not report is left out.

use std::time::Duration;

use taut_sys::sock_diag::{Connection, Events, Internals, Memory};
use taut_sys::tcp_info::TcpInfo;

use crate::event_delta::EventDelta;

/// The unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of bytes.
    Bytes,
    /// A rate in bytes a second.
    BytesPerSecond,
    /// A time in seconds.
    Seconds,
    /// A number of segments.
    Segments,
    /// Events since the connection began.
    Count,
    /// Bits by which a window is shifted.
    Shift,
    /// 0 or 1.
    Flag,
    /// A share or a multiple.
    Ratio,
}

/// A figure that is read from each connection.
pub struct Instrument {
    /// Its name in RFC 4898, which begins with a capital letter, or else in linux/tcp.h.
    pub name: &'static str,
    /// The unit of its value.
    pub unit: Unit,
    /// The fields of `tcp_info` or `inet_diag` that it is computed from.
    pub source: &'static str,
    /// The first Linux version that provides it, if newer than the oldest supported version.
    pub since: Option<&'static str>,
    read: fn(&Connection) -> Option<f64>,
}

// === impl Instrument ===

impl Instrument {
    /// Returns its value; `None` if the kernel does not report it, or has no sample yet.
    pub fn read(&self, connection: &Connection) -> Option<f64> {
        (self.read)(connection)
    }
}

// === impl Unit ===

impl Unit {
    /// Returns the name used in the guide.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "bytes/s",
            Self::Seconds => "s",
            Self::Segments => "segments",
            Self::Count => "count",
            Self::Shift => "bits",
            Self::Flag => "0 or 1",
            Self::Ratio => "ratio",
        }
    }
}

fn of<T: Into<f64>>(connection: &Connection, read: impl Fn(&TcpInfo) -> Option<T>) -> Option<f64> {
    read(connection.info.as_ref()?).map(Into::into)
}

/// Reads a 64-bit count, which is exact up to 2^53.
fn big(connection: &Connection, read: impl Fn(&TcpInfo) -> Option<u64>) -> Option<f64> {
    read(connection.info.as_ref()?).map(|value| value as f64)
}

fn time(connection: &Connection, read: impl Fn(&TcpInfo) -> Option<Duration>) -> Option<f64> {
    read(connection.info.as_ref()?).map(|value| value.as_secs_f64())
}

fn memory(connection: &Connection, read: impl Fn(&Memory) -> u32) -> Option<f64> {
    Some(read(connection.memory.as_ref()?).into())
}

fn internal<T: Into<f64>>(connection: &Connection, read: impl Fn(&Internals) -> T) -> Option<f64> {
    Some(read(connection.internals.as_ref()?).into())
}

fn events<T: Into<f64>>(
    connection: &Connection,
    read: impl Fn(&Events) -> Option<T>,
) -> Option<f64> {
    let events = connection.internals.as_ref()?.events.as_ref()?;
    read(events).map(Into::into)
}

/// Converts a number of segments to bytes, by the current sending segment size.
fn segments(info: &TcpInfo, count: u32) -> f64 {
    f64::from(count) * f64::from(info.snd_mss)
}

macro_rules! instruments {
    (@since) => { None };
    (@since $since:literal) => { Some($since) };
    ($($name:literal $unit:ident $source:literal $($since:literal)? => $read:expr;)*) => {
        /// All instruments.
        pub const INSTRUMENTS: &[Instrument] = &[$(Instrument {
            name: $name,
            unit: Unit::$unit,
            source: $source,
            since: instruments!(@since $($since)?),
            read: $read,
        }),*];
    };
}

instruments! {
    "SmoothedRTT" Seconds "rtt" => |c| time(c, |i| i.rtt);
    "RTTVar" Seconds "rttvar" => |c| time(c, |i| i.rttvar);
    "MinRTT" Seconds "min_rtt: of the last net.ipv4.tcp_min_rtt_wlen seconds (300), not of all" => |c| time(c, |i| i.min_rtt);
    "CurRTO" Seconds "rto" => |c| time(c, |i| Some(i.rto));
    "CurMSS" Bytes "snd_mss" => |c| of(c, |i| Some(i.snd_mss));
    "CurCwnd" Bytes "snd_cwnd * snd_mss" => |c| of(c, |i| Some(segments(i, i.snd_cwnd)));
    "CurSsthresh" Bytes "snd_ssthresh * snd_mss; none while it is infinite: before the first congestion, or before slow start ends otherwise" => |c| of(c, |i| Some(segments(i, i.snd_ssthresh?)));
    "CurRwinRcvd" Bytes "snd_wnd" => |c| of(c, |i| i.snd_wnd);
    "CurRwinSent" Bytes "rcv_wnd" "6.2" => |c| of(c, |i| i.rcv_wnd);
    "SndWindScale" Shift "snd_wscale" => |c| of(c, |i| Some(i.window_scales?.0));
    "RcvWindScale" Shift "rcv_wscale" => |c| of(c, |i| Some(i.window_scales?.1));
    "SegsOut" Count "segs_out" => |c| of(c, |i| i.segs_out);
    "SegsIn" Count "segs_in" => |c| of(c, |i| i.segs_in);
    "DataSegsOut" Count "data_segs_out" => |c| of(c, |i| i.data_segs_out);
    "DataSegsIn" Count "data_segs_in" => |c| of(c, |i| i.data_segs_in);
    "HCDataOctetsOut" Bytes "bytes_sent" => |c| big(c, |i| i.bytes_sent);
    "HCThruOctetsAcked" Bytes "bytes_acked" => |c| big(c, |i| i.bytes_acked);
    "HCThruOctetsReceived" Bytes "bytes_received" => |c| big(c, |i| i.bytes_received);
    "SegsRetrans" Count "total_retrans" => |c| of(c, |i| Some(i.total_retrans));
    "OctetsRetrans" Bytes "bytes_retrans" => |c| big(c, |i| i.bytes_retrans);
    "DSACKDups" Count "dsack_dups" => |c| of(c, |i| i.dsack_dups);
    "Timeouts" Count "total_rto" "6.7" => |c| of(c, |i| i.total_rto);
    "CurTimeoutCount" Count "retransmits" => |c| of(c, |i| Some(i.retransmits));
    "SndLimTimeRwin" Seconds "rwnd_limited" => |c| time(c, |i| i.rwnd_limited);
    "SndLimTimeSnd" Seconds "sndbuf_limited" => |c| time(c, |i| i.sndbuf_limited);
    "SndLimTimeCwnd" Seconds "busy_time - rwnd_limited - sndbuf_limited" => |c| time(c, |i| {
        Some(i.busy_time?.saturating_sub(i.rwnd_limited?).saturating_sub(i.sndbuf_limited?))
    });
    "CurAppWQueue" Bytes "notsent_bytes" => |c| of(c, |i| i.notsent_bytes);
    "CurAppRQueue" Bytes "idiag_rqueue" => |c| Some(c.recv_queue.into());
    "CurRetxQueue" Bytes "idiag_wqueue - notsent_bytes" => |c| of(c, |i| Some(c.send_queue.saturating_sub(i.notsent_bytes?)));
    "busy_time" Seconds "busy_time" => |c| time(c, |i| i.busy_time);
    "delivery_rate" BytesPerSecond "delivery_rate" => |c| big(c, |i| i.delivery_rate);
    "pacing_rate" BytesPerSecond "pacing_rate" => |c| big(c, |i| i.pacing_rate);
    "max_pacing_rate" BytesPerSecond "max_pacing_rate; none without a limit" => |c| big(c, |i| i.max_pacing_rate);
    "unacked" Segments "unacked" => |c| of(c, |i| Some(i.unacked));
    "sacked" Segments "sacked" => |c| of(c, |i| Some(i.sacked));
    "lost" Segments "lost" => |c| of(c, |i| Some(i.lost));
    "reordering" Segments "reordering" => |c| of(c, |i| Some(i.reordering));
    "delivered_ce" Segments "delivered_ce" => |c| of(c, |i| i.delivered_ce);
    "rcv_ooopack" Segments "rcv_ooopack" => |c| of(c, |i| i.rcv_ooopack);
    "pmtu" Bytes "pmtu" => |c| of(c, |i| Some(i.pmtu));
    "rcv_rtt" Seconds "rcv_rtt" => |c| time(c, |i| i.rcv_rtt);
    "rcv_space" Bytes "rcv_space" => |c| of(c, |i| Some(i.rcv_space));
    "total_rto_time" Seconds "total_rto_time" "6.7" => |c| time(c, |i| i.total_rto_time);
    "since_last_ack" Seconds "last_ack_recv" => |c| time(c, |i| Some(i.last_ack_recv));
    "sndbuf" Bytes "skmem.sndbuf, overhead included" => |c| memory(c, |m| m.sndbuf);
    "rcvbuf" Bytes "skmem.rcvbuf, overhead included" => |c| memory(c, |m| m.rcvbuf);
    "wmem_queued" Bytes "skmem.wmem_queued, overhead included" => |c| memory(c, |m| m.wmem_queued);
    "rmem_alloc" Bytes "skmem.rmem_alloc, overhead included" => |c| memory(c, |m| m.rmem_alloc);
    "drops" Count "skmem.drops" => |c| memory(c, |m| m.drops);
    "sndbuf_locked" Flag "BPF: sk_userlocks: the application has set SO_SNDBUF" => |c| internal(c, |i| u8::from(i.sndbuf_locked));
    "rcvbuf_locked" Flag "BPF: sk_userlocks: the application has set SO_RCVBUF" => |c| internal(c, |i| u8::from(i.rcvbuf_locked));
    "window_clamp" Bytes "BPF: window_clamp: no wider window is offered" => |c| internal(c, |i| i.window_clamp);
    "MaxRTT" Seconds "events: rack.rtt_us" => |c| events(c, |e| (e.rtts > 0).then_some(e.rtt_most.as_secs_f64()));
    "CountRTT" Count "events: rack.rtt_us, each once" => |c| events(c, |e| Some(e.rtts));
    "HCSumRTT" Seconds "events: rack.rtt_us, each once" => |c| events(c, |e| Some(e.rtt_sum.as_secs_f64()));
    "CongSignals" Count "events: from Open or Disorder into CWR, Recovery or Loss" => |c| events(c, |e| Some(e.signals));
    "FastRetran" Count "events: from Open or Disorder into Recovery" => |c| events(c, |e| Some(e.fast_retransmits));
    "PreCongSumRTT" Seconds "events: rack.rtt_us at each signal" => |c| events(c, |e| Some(e.signal_rtt_sum.as_secs_f64()));
    "PreCongSumCwnd" Bytes "events: prior_cwnd at each signal * snd_mss" => |c| {
        let mss = f64::from(c.info.as_ref()?.snd_mss);
        events(c, |e| Some(e.signal_cwnd_sum as f64 * mss))
    };
    "signal_interval" Segments "events: delivered, from a signal to the next: mean" => |c| events(c, |e| Some(EventDelta(*e).intervals()?.mean));
    "signal_interval_deviation" Segments "events: the same: deviation" => |c| events(c, |e| Some(EventDelta(*e).intervals()?.deviation));
    "signal_unevenness" Segments "events: the same, less what the mean rate would have delivered: deviation" => |c| events(c, |e| Some(EventDelta(*e).uneven()?.deviation));
    "signal_cwnd_deviation" Segments "events: prior_cwnd at each signal: deviation" => |c| events(c, |e| Some(EventDelta(*e).windows()?.deviation));
    "train_rate" BytesPerSecond "events: delivered, over the time of the fastest train of acknowledgements since the scan before: segments * snd_mss" => |c| {
        let mss = f64::from(c.info.as_ref()?.snd_mss);
        events(c, |e| (e.train_most_recent > 0).then(|| f64::from(e.train_most_recent) * mss))
    };
    "mtu_probing" Flag "BPF: icsk_mtup.enabled" => |c| internal(c, |i| u8::from(i.mtu_probing));
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::window::tests::sample;

    #[test]
    fn names_are_unique() {
        let names: HashSet<_> = INSTRUMENTS
            .iter()
            .map(|instrument| instrument.name)
            .collect();
        assert_eq!(names.len(), INSTRUMENTS.len());
    }

    #[test]
    fn the_guide_lists_exactly_these_instruments() {
        let guide = include_str!("../../../docs/instruments.md");
        let rows = guide.lines().filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split("` | ");
            Some((cells.next()?, cells.next()?))
        });
        let rows: Vec<_> = rows.collect();
        for instrument in INSTRUMENTS {
            let since = instrument
                .since
                .map_or(String::new(), |since| format!(" (Linux {since})"));
            let row = format!(
                "{} | {}{since} |",
                instrument.unit.name(),
                instrument.source
            );
            assert!(
                rows.contains(&(instrument.name, &row)),
                "docs/instruments.md has no line\n| `{}` | {row}",
                instrument.name
            );
        }
        let known: HashSet<_> = INSTRUMENTS
            .iter()
            .map(|instrument| instrument.name)
            .collect();
        for (name, _) in rows {
            assert!(known.contains(name), "{name} is no instrument");
        }
    }

    #[test]
    fn windows_are_in_bytes() {
        let connection = sample(0, |info| (info.snd_cwnd, info.snd_mss) = (10, 1448)).connection;
        let read = |name| {
            INSTRUMENTS
                .iter()
                .find(|i| i.name == name)
                .unwrap()
                .read(&connection)
        };
        assert_eq!(read("CurCwnd"), Some(14_480.0));
        assert_eq!((read("SmoothedRTT"), read("sndbuf")), (None, None));
    }
}
